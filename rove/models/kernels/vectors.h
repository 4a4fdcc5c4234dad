/* Arithmetic of all kernels, in GCC's vector extensions: one source for AVX-512, AVX2 and NEON (docs/decisions/kernels.md).
 *
 * A kernel is compiled for one model, with these macros: HEADS query heads share a key head, each has SIZE values; vectors have
 * W floats, a divisor of SIZE; with BF16, tensors are bf16 instead of fp32. Everything is computed in fp32.
 *
 * W must not exceed the processor's vectors: GCC splits longer ones through memory, which made attention on AVX2 several times
 * as slow.
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
};

#ifdef BF16
typedef uint16_t number;
INLINE vf load(const number *p) { return (vf)(__builtin_convertvector(*(const vh *)p, vu) << 16); }
INLINE void store(number *p, vf x) { /* to nearest, ties to even, as PyTorch rounds */
    vu bits = (vu)x, is_nan = (vu)(x != x);
    vu rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16; /* this could carry a NaN over to a number */
    *(vh *)p = __builtin_convertvector((rounded & ~is_nan) | (is_nan & 0x7fc0), vh);
}
#else
typedef float number;
INLINE vf load(const number *p) { return *(const vf *)p; }
INLINE void store(number *p, vf x) { *(vf *)p = x; }
#endif

INLINE vf load_f32(const float *p) { return *(const vf *)p; }
INLINE void store_f32(float *p, vf x) { *(vf *)p = x; }
INLINE vf broadcast(float x) { return (vf){} + x; }
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

/* e^x to a few units in the last place (Cephes' polynomial). Below -87 it is e^-87 and above 87 e^87: beyond them, the exponent
 * would leave the range of a float and the shift below would write into the sign. */
INLINE vf exponential(vf x) {
    vf zero_or_nan = x - x; /* NaN and infinity must not become numbers: they show that training diverged */
    x = pick(x < -87.f, broadcast(-87.f), x);
    x = pick(x > 87.f, broadcast(87.f), x);
    vf shifted = x * 1.44269504f + 12582912.f; /* adding 1.5 * 2^23 leaves the nearest integer in the lowest bits */
    vi power = (vi)shifted - 0x4B400000;
    vf whole = shifted - 12582912.f;
    vf rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vf sum = broadcast(1.9875691500e-4f);
    sum = sum * rest + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * rest * rest + rest + 1.f;
    return (vf)((vi)sum + (power << 23)) + zero_or_nan;
}

/* Products of HEADS queries with `many` blocks of W keys, stored one value after another: [many, SIZE, W]; `stride` numbers lie
 * between the scores of two queries. Blocks of keys are read sequentially; keys transposed as a whole took 1.45 instead of 1.2 ms
 * per layer, and 1.8 ms without the prefetch (benchmarks/LOG.md). */
INLINE void multiply(const number *keys, float query[HEADS][SIZE], float *score, int64_t stride, int many) {
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
    UNROLL for (int j = 0; j < many; j++) UNROLL for (int g = 0; g < HEADS; g++) store_f32(score + g * stride + j * W, sum[j][g]);
}

/* total += the values of `count` positions, each times its score. All sums of all heads are kept at once, more than AVX2 has
 * registers; working on some of them at a time was not faster (benchmarks/LOG.md). */
INLINE void gather(const number *values, int64_t count, const float *score, int64_t stride, vf total[HEADS][VECTORS]) {
    vf sum[HEADS][VECTORS];
    UNROLL for (int g = 0; g < HEADS; g++) UNROLL for (int j = 0; j < VECTORS; j++) sum[g][j] = total[g][j];
    for (int64_t t = 0; t < count; t++, values += SIZE) {
        vf value[VECTORS];
        UNROLL for (int j = 0; j < VECTORS; j++) {
            __builtin_prefetch(values + 16 * SIZE + j * W);
            value[j] = load(values + j * W);
        }
        UNROLL for (int g = 0; g < HEADS; g++) UNROLL for (int j = 0; j < VECTORS; j++) sum[g][j] += score[g * stride + t] * value[j];
    }
    UNROLL for (int g = 0; g < HEADS; g++) UNROLL for (int j = 0; j < VECTORS; j++) total[g][j] = sum[g][j];
}

/* `multiply` with all blocks of `whole` keys, a multiple of W. */
INLINE void multiply_all(const number *keys, int64_t whole, float query[HEADS][SIZE], float *score, int64_t stride) {
    int64_t t = 0;
    for (; t + MANY * W <= whole; t += MANY * W) multiply(keys + t * SIZE, query, score + t, stride, MANY);
    for (; t < whole; t += W) multiply(keys + t * SIZE, query, score + t, stride, 1);
}
