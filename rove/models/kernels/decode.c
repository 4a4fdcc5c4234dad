/* The work of a decoding step on a CPU between its matrix products. In PyTorch, many small operators took two thirds of the step
 * (docs/decisions/kernels.md). */
#include "vectors.h"

enum { BLOCK = 256 }; /* positions whose scores are kept at once, in the processor's cache; a multiple of W */

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

/* One head's values: normed if there is a norm, its pairs rotated by angles (cosine, sine, cosine, ...), and scaled. */
INLINE void rotate(const number *from, const float *norm, float eps, const float *angles, float scale, float *to) {
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
        vf swapped = __builtin_shufflevector(x[j], x[j], SWAPPED) * (vf){SIGNS};
        store_f32(to + j * W, (x[j] * cosine + swapped * sine) * scale);
    }
}

/* One token of each of `count` sequences: its key and value are put into the cache, and it attends to all up to itself.
 *
 * qkv [count, heads, SIZE]: query heads, key heads, value heads; norms [query and key heads, SIZE] or null;
 * angles [positions, SIZE]; keys [rows, key heads, capacity / W, SIZE, W]; values [rows, key heads, capacity, SIZE];
 * rows, positions, sources, shared [count]: the row of a sequence, its token's position, and a row with equal content in its
 * first `shared` positions; out [count, query heads, SIZE].
 *
 * Members of a group read shared positions from one row, which then stays in the processor's cache: 1.0 instead of 1.2 ms per
 * layer with groups of 8. Slower were prefetching the next sequence's positions, and an outer loop over key heads.
 */
void attend(const number *qkv, const float *norms, float eps, const float *angles, float scale, number *keys, number *values,
            const int64_t *rows, const int64_t *positions, const int64_t *sources, const int64_t *shared, number *out,
            int64_t count, int64_t key_heads, int64_t capacity) {
    int64_t heads = key_heads * HEADS;
    for (int64_t b = 0; b < count; b++, qkv += (heads + 2 * key_heads) * SIZE) {
        const float *angle = angles + positions[b] * SIZE;
        int64_t length = positions[b] + 1, border = shared[b] / W * W;
        for (int64_t k = 0; k < key_heads; k++, out += HEADS * SIZE) {
            float query[HEADS][SIZE], key[SIZE], score[HEADS][BLOCK], highest[HEADS];
            vf total[HEADS][VECTORS], sums[HEADS];
            for (int g = 0; g < HEADS; g++) {
                int64_t head = (k * HEADS + g) * SIZE;
                rotate(qkv + head, norms ? norms + head : 0, eps, angle, scale, query[g]);
                for (int j = 0; j < VECTORS; j++) total[g][j] = (vf){};
                sums[g] = (vf){};
                highest[g] = -1e30f;
            }
            int64_t own_row = (rows[b] * key_heads + k) * capacity * SIZE;
            int64_t shared_row = (sources[b] * key_heads + k) * capacity * SIZE;
            int64_t key_head = (heads + k) * SIZE, value_head = (heads + key_heads + k) * SIZE;
            rotate(qkv + key_head, norms ? norms + key_head : 0, eps, angle, 1.f, key);
            number rounded[SIZE]; /* in a block of keys, the values of one key are W apart: each is written alone */
            for (int j = 0; j < VECTORS; j++) store(rounded + j * W, load_f32(key + j * W));
            number *to = keys + own_row + positions[b] / W * W * SIZE + positions[b] % W;
            for (int d = 0; d < SIZE; d++) to[d * W] = rounded[d];
            for (int j = 0; j < VECTORS; j++)
                store(values + own_row + positions[b] * SIZE + j * W, load(qkv + value_head + j * W));

            /* A running softmax: whenever a higher score appears, the sums so far are multiplied by `shrink`. */
            for (int64_t start = 0, end; start < length; start = end) {
                int64_t limit = start < border ? border : length;
                end = start + BLOCK < limit ? start + BLOCK : limit;
                int64_t from = (start < border ? shared_row : own_row) + start * SIZE;
                int64_t count = end - start, whole = (count + W - 1) / W * W;
                multiply_all(keys + from, whole, query, score[0], BLOCK);
                for (int g = 0; g < HEADS; g++) {
                    for (int64_t t = count; t < whole; t++) score[g][t] = -1e30f; /* later positions hold old keys */
                    vf high = broadcast(highest[g]);
                    for (int64_t t = 0; t < whole; t += W) {
                        vf x = load_f32(score[g] + t);
                        high = pick(x > high, x, high);
                    }
                    float top = most_of(high);
                    vf shrink = exponential(broadcast(highest[g] - top));
                    sums[g] *= shrink;
                    for (int j = 0; j < VECTORS; j++) total[g][j] *= shrink;
                    highest[g] = top;
                    for (int64_t t = 0; t < whole; t += W) {
                        vf weight = exponential(load_f32(score[g] + t) - top);
                        sums[g] += weight;
                        store_f32(score[g] + t, weight);
                    }
                }
                gather(values + from, count, score[0], BLOCK, total);
            }
            for (int g = 0; g < HEADS; g++)
                for (int j = 0; j < VECTORS; j++) store(out + g * SIZE + j * W, total[g][j] / sum_of(sums[g]));
        }
    }
}

/* gate_up [count, 2, width]: gates, and what they gate; out [count, width] = gate / (1 + e^-gate) * up. W divides width. */
void gate(const number *gate_up, number *out, int64_t count, int64_t width) {
    for (int64_t b = 0; b < count; b++, gate_up += 2 * width, out += width)
        for (int64_t i = 0; i < width; i += W) {
            vf x = load(gate_up + i);
            store(out + i, x / (exponential(-x) + 1.f) * load(gate_up + width + i));
        }
}

/* x [count, width] += residual, unless that is null; out = x / the root of its row's mean square, * weight. W divides width. */
void add_norm(number *x, const number *residual, const float *weight, float eps, number *out, int64_t count, int64_t width) {
    for (int64_t b = 0; b < count; b++, x += width, out += width) {
        vf squares = {};
        for (int64_t i = 0; i < width; i += W) {
            if (residual) store(x + i, load(x + i) + load(residual + b * width + i));
            vf v = load(x + i); /* the stored sum, rounded if it is bf16: PyTorch norms the same numbers */
            squares += v * v;
        }
        float inverse = 1.f / __builtin_sqrtf(sum_of(squares) / width + eps);
        for (int64_t i = 0; i < width; i += W) store(out + i, load(x + i) * inverse * load_f32(weight + i));
    }
}
