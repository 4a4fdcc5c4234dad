/* What a decoding step on a CPU does between its matrix products, in GCC's vector extensions: one source for AVX-512, AVX2 and
 * NEON, compiled for one model. Given with -D: HEADS query heads share a key head, each has SIZE values; vectors of W floats, a
 * divisor of SIZE; BF16, if that is what is read and written. Everything is computed in fp32.
 */
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef float vf __attribute__((vector_size(W * 4), aligned(4)));
typedef int32_t vi __attribute__((vector_size(W * 4), aligned(4)));
typedef uint32_t vu __attribute__((vector_size(W * 4), aligned(4)));
typedef uint16_t vh __attribute__((vector_size(W * 2), aligned(2)));

enum {
    VECTORS = SIZE / W,
    MANY = HEADS > 4 ? 1 : 8 / HEADS, /* key vectors whose products are summed side by side, to keep the adders busy */
    BLOCK = 256,                      /* positions whose scores are there at once; a multiple of W */
};

#ifdef BF16
typedef uint16_t number;
INLINE vf load(const number *p) { return (vf)(__builtin_convertvector(*(const vh *)p, vu) << 16); }
INLINE void store(number *p, vf x) { /* to nearest, ties to even; what is no number stays none */
    vu bits = (vu)x, none = (vu)(x != x);
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    *(vh *)p = __builtin_convertvector((rounded & ~none) | (none & 0x7fc0), vh);
}
#else
typedef float number;
INLINE vf load(const number *p) { return *(const vf *)p; }
INLINE void store(number *p, vf x) { *(vf *)p = x; }
#endif

INLINE vf load_f32(const float *p) { return *(const vf *)p; }
INLINE void store_f32(float *p, vf x) { *(vf *)p = x; }
INLINE vf all(float x) { return (vf){} + x; }
INLINE vf pick(vi which, vf a, vf b) { return (vf)(((vi)a & which) | ((vi)b & ~which)); }
INLINE float sum_of(vf x) {
    float sum = 0;
    for (int i = 0; i < W; i++) sum += x[i];
    return sum;
}
INLINE float most_of(vf x) {
    float most = x[0];
    for (int i = 1; i < W; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* e^x to a few units in the last place (Cephes' polynomial); below -87 it is e^-87, above 87 e^87. What is no number stays none. */
INLINE vf exponential(vf x) {
    vf nothing = x - x;
    x = pick(x < -87.f, all(-87.f), x);
    x = pick(x > 87.f, all(87.f), x);
    vf shifted = x * 1.44269504f + 12582912.f; /* adding 1.5 * 2^23 leaves the nearest integer in the lowest bits */
    vi power = (vi)shifted - 0x4B400000;
    vf whole = shifted - 12582912.f;
    vf rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vf sum = all(1.9875691500e-4f);
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.f;
    return (vf)((vi)sum + (power << 23)) + nothing;
}

#if W == 16
#define EVEN 0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14
#define ODD 1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15
#define SWAPPED 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14
#define SIGNS -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1
#else
#define EVEN 0, 0, 2, 2, 4, 4, 6, 6
#define ODD 1, 1, 3, 3, 5, 5, 7, 7
#define SWAPPED 1, 0, 3, 2, 5, 4, 7, 6
#define SIGNS -1, 1, -1, 1, -1, 1, -1, 1
#endif

/* One head's values: normalised if there is a norm, its pairs turned by angles (cosine, sine, cosine, ...), and scaled. */
INLINE void turn(const number *from, const float *norm, float eps, const float *angles, float scale, float *to) {
    vf x[VECTORS], squares = {};
    UNROLL for (int j = 0; j < VECTORS; j++) {
        x[j] = load(from + j * W);
        squares += x[j] * x[j];
    }
    if (norm) {
        float inverse = 1.f / __builtin_sqrtf(sum_of(squares) / SIZE + eps);
        UNROLL for (int j = 0; j < VECTORS; j++) x[j] = x[j] * inverse * load_f32(norm + j * W);
    }
    UNROLL for (int j = 0; j < VECTORS; j++) {
        vf angle = load_f32(angles + j * W);
        vf cosine = __builtin_shufflevector(angle, angle, EVEN), sine = __builtin_shufflevector(angle, angle, ODD);
        vf other = __builtin_shufflevector(x[j], x[j], SWAPPED) * (vf){SIGNS};
        store_f32(to + j * W, (x[j] * cosine + other * sine) * scale);
    }
}

/* Products of HEADS queries with `many` blocks of W keys, stored one value after another: [many, SIZE, W]. */
INLINE void multiply(const number *keys, float query[HEADS][SIZE], float score[HEADS][BLOCK], int64_t at, int many) {
    vf sum[MANY][HEADS];
    UNROLL for (int j = 0; j < many; j++) UNROLL for (int g = 0; g < HEADS; g++) sum[j][g] = (vf){};
    for (int d = 0; d < SIZE; d++) {
        vf key[MANY];
        UNROLL for (int j = 0; j < many; j++) {
            __builtin_prefetch(keys + ((MANY + j) * SIZE + d) * W);
            key[j] = load(keys + (j * SIZE + d) * W);
        }
        UNROLL for (int g = 0; g < HEADS; g++) UNROLL for (int j = 0; j < many; j++) sum[j][g] += query[g][d] * key[j];
    }
    UNROLL for (int j = 0; j < many; j++) UNROLL for (int g = 0; g < HEADS; g++) store_f32(score[g] + at + j * W, sum[j][g]);
}

/* seen += the values of `count` positions, each times its score. */
INLINE void gather(const number *values, int64_t count, float score[HEADS][BLOCK], vf seen[HEADS][VECTORS]) {
    vf sum[HEADS][VECTORS];
    UNROLL for (int g = 0; g < HEADS; g++) UNROLL for (int j = 0; j < VECTORS; j++) sum[g][j] = seen[g][j];
    for (int64_t t = 0; t < count; t++, values += SIZE) {
        vf value[VECTORS];
        UNROLL for (int j = 0; j < VECTORS; j++) {
            __builtin_prefetch(values + 16 * SIZE + j * W);
            value[j] = load(values + j * W);
        }
        UNROLL for (int g = 0; g < HEADS; g++) UNROLL for (int j = 0; j < VECTORS; j++) sum[g][j] += score[g][t] * value[j];
    }
    UNROLL for (int g = 0; g < HEADS; g++) UNROLL for (int j = 0; j < VECTORS; j++) seen[g][j] = sum[g][j];
}

/* One token of each of `count` sequences: its key and value are put into the cache, and it attends to all up to itself.
 *
 * qkv [count, heads, SIZE]: query heads, key heads, value heads; norms [query and key heads, SIZE] or null;
 * angles [positions, SIZE]; keys [rows, key heads, capacity / W, SIZE, W]; values [rows, key heads, capacity, SIZE];
 * rows, positions, sources, shared [count]: where a sequence is, its token's position, and a row that has the same in its
 * first `shared` positions: read there, they are in the processor's cache already if others share them too;
 * out [count, query heads, SIZE].
 */
void attend(const number *qkv, const float *norms, float eps, const float *angles, float scale, number *keys, number *values,
            const int64_t *rows, const int64_t *positions, const int64_t *sources, const int64_t *shared, number *out,
            int64_t count, int64_t key_heads, int64_t capacity) {
    int64_t heads = key_heads * HEADS;
    for (int64_t b = 0; b < count; b++, qkv += (heads + 2 * key_heads) * SIZE) {
        const float *angle = angles + positions[b] * SIZE;
        int64_t length = positions[b] + 1, border = shared[b] / W * W;
        for (int64_t k = 0; k < key_heads; k++, out += HEADS * SIZE) {
            float query[HEADS][SIZE], key[SIZE], score[HEADS][BLOCK], most[HEADS];
            vf seen[HEADS][VECTORS], sums[HEADS];
            for (int g = 0; g < HEADS; g++) {
                int64_t head = (k * HEADS + g) * SIZE;
                turn(qkv + head, norms ? norms + head : 0, eps, angle, scale, query[g]);
                for (int j = 0; j < VECTORS; j++) seen[g][j] = (vf){};
                sums[g] = (vf){};
                most[g] = -1e30f;
            }
            int64_t own = (rows[b] * key_heads + k) * capacity * SIZE, other = (sources[b] * key_heads + k) * capacity * SIZE;
            int64_t key_head = (heads + k) * SIZE, value_head = (heads + key_heads + k) * SIZE;
            turn(qkv + key_head, norms ? norms + key_head : 0, eps, angle, 1.f, key);
            number rounded[SIZE];
            for (int j = 0; j < VECTORS; j++) store(rounded + j * W, load_f32(key + j * W));
            number *to = keys + own + positions[b] / W * W * SIZE + positions[b] % W;
            for (int d = 0; d < SIZE; d++) to[d * W] = rounded[d];
            for (int j = 0; j < VECTORS; j++)
                store(values + own + positions[b] * SIZE + j * W, load(qkv + value_head + j * W));

            for (int64_t start = 0, end; start < length; start = end) { /* a running softmax: what came before is shrunk */
                int64_t limit = start < border ? border : length;
                end = start + BLOCK < limit ? start + BLOCK : limit;
                int64_t from = (start < border ? other : own) + start * SIZE;
                int64_t count = end - start, whole = (count + W - 1) / W * W, t = 0;
                for (; t + MANY * W <= whole; t += MANY * W) multiply(keys + from + t * SIZE, query, score, t, MANY);
                for (; t < whole; t += W) multiply(keys + from + t * SIZE, query, score, t, 1);
                for (int g = 0; g < HEADS; g++) {
                    for (int64_t t = count; t < whole; t++) score[g][t] = -1e30f;
                    vf high = all(most[g]);
                    for (int64_t t = 0; t < whole; t += W) {
                        vf x = load_f32(score[g] + t);
                        high = pick(x > high, x, high);
                    }
                    float top = most_of(high);
                    vf shrink = exponential(all(most[g] - top));
                    sums[g] *= shrink;
                    for (int j = 0; j < VECTORS; j++) seen[g][j] *= shrink;
                    most[g] = top;
                    for (int64_t t = 0; t < whole; t += W) {
                        vf weight = exponential(load_f32(score[g] + t) - top);
                        sums[g] += weight;
                        store_f32(score[g] + t, weight);
                    }
                }
                gather(values + from, count, score, seen);
            }
            for (int g = 0; g < HEADS; g++)
                for (int j = 0; j < VECTORS; j++) store(out + g * SIZE + j * W, seen[g][j] / sum_of(sums[g]));
        }
    }
}

/* both [count, 2, width]: gates, and what they gate; out [count, width] = gate / (1 + e^-gate) * other. W divides width. */
void gate(const number *both, number *out, int64_t count, int64_t width) {
    for (int64_t b = 0; b < count; b++, both += 2 * width, out += width)
        for (int64_t i = 0; i < width; i += W) {
            vf x = load(both + i);
            store(out + i, x / (exponential(-x) + 1.f) * load(both + width + i));
        }
}

/* x [count, width] += more, unless that is null; out = x / the root of its row's mean square, * weight. W divides width. */
void add_norm(number *x, const number *more, const float *weight, float eps, number *out, int64_t count, int64_t width) {
    for (int64_t b = 0; b < count; b++, x += width, out += width) {
        vf squares = {};
        for (int64_t i = 0; i < width; i += W) {
            if (more) store(x + i, load(x + i) + load(more + b * width + i));
            vf v = load(x + i);
            squares += v * v;
        }
        float inverse = 1.f / __builtin_sqrtf(sum_of(squares) / width + eps);
        for (int64_t i = 0; i < width; i += W) store(out + i, load(x + i) * inverse * load_f32(weight + i));
    }
}
