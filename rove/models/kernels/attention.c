/* Causal attention for training on a CPU, forward and backward, over a packed batch. It takes half as long as PyTorch's
 * attention, for which shared tokens would have to be gathered and rows padded (docs/decisions/kernels.md).
 *
 * A row is a sequence of `length` tokens, each given by its index in the batch. The first `shared` tokens are a prefix that
 * another row computes: here they are only keys and values. Each later token is a query that attends to all tokens up to itself.
 *
 * Shapes: q, out, d_out, d_q [tokens, query heads, SIZE]; k, v, d_k, d_v [tokens, key heads, SIZE]; lse [tokens, query heads],
 * the logarithm of the sum of exponentials, which the backward pass needs; places [sum of lengths], the indices of all rows;
 * offsets [rows + 1], where each row begins in places; shared [rows]. A call computes the key heads `first` to `last` - 1, so
 * that threads share the work without writing to the same memory.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vectors.h"

typedef struct {
    int64_t length, whole; /* tokens, and those rounded up to vectors */
    float *keys, *values;  /* [whole / W, SIZE, W] each */
    float *plain;          /* [length, SIZE] values going forward, keys going backward */
    float *score, *d_score; /* [HEADS, whole] */
    float *d_key, *d_value; /* [length, SIZE] */
} Row;

static int64_t longest(const int64_t *offsets, int64_t rows) {
    int64_t most = 0;
    for (int64_t b = 0; b < rows; b++)
        if (offsets[b + 1] - offsets[b] > most) most = offsets[b + 1] - offsets[b];
    return (most + W - 1) / W * W;
}

/* Allocate memory for rows of up to `most` tokens; return 0 if there is none. It has one block more than needed because the
 * loops read ahead. */
static float *allocate(Row *row, int64_t most) {
    float *all = calloc((5 * SIZE + 2 * HEADS) * most + W * SIZE * (MANY + 1), sizeof(float)), *next = all;
    if (!all) return 0;
    row->keys = next, next += most * SIZE;
    row->values = next, next += most * SIZE;
    row->plain = next, next += most * SIZE;
    row->d_key = next, next += most * SIZE;
    row->d_value = next, next += most * SIZE;
    row->score = next, next += most * HEADS;
    row->d_score = next;
    return all;
}

/* Store the vector of token `t` in blocks of W tokens, so that one load gives the same dimension of W tokens. */
INLINE void blocked(const float *from, int64_t t, float *to) {
    for (int d = 0; d < SIZE; d++) to[(t / W * SIZE + d) * W + t % W] = from[d];
}

INLINE void read_query(const float *from, float scale, float to[HEADS][SIZE]) {
    for (int g = 0; g < HEADS; g++)
        for (int d = 0; d < SIZE; d++) to[g][d] = from[g * SIZE + d] * scale;
}

/* Return 0, or 1 if there is no memory. */
int forward(const float *q, const float *k, const float *v, float scale, const int64_t *places, const int64_t *offsets,
            const int64_t *shared, int64_t rows, int64_t key_heads, int64_t first, int64_t last, float *out, float *lse) {
    Row row;
    float *memory = allocate(&row, longest(offsets, rows));
    if (!memory) return 1;
    int64_t heads = key_heads * HEADS;
    for (int64_t b = 0; b < rows; b++)
        for (int64_t h = first; h < last; h++) {
            const int64_t *place = places + offsets[b];
            int64_t length = offsets[b + 1] - offsets[b];
            for (int64_t t = 0; t < length; t++) {
                blocked(k + (place[t] * key_heads + h) * SIZE, t, row.keys);
                memcpy(row.plain + t * SIZE, v + (place[t] * key_heads + h) * SIZE, SIZE * sizeof(float));
            }
            for (int64_t i = shared[b]; i < length; i++) {
                int64_t count = i + 1, whole = (count + W - 1) / W * W, head = place[i] * heads + h * HEADS;
                float query[HEADS][SIZE];
                read_query(q + head * SIZE, scale, query);
                multiply_all(row.keys, whole, query, row.score, whole);
                vf total[HEADS][VECTORS], sums[HEADS];
                for (int g = 0; g < HEADS; g++) {
                    float *score = row.score + g * whole;
                    /* Not -INFINITY: the difference of two infinities is not a number. exp(-1e30) is 0. */
                    for (int64_t t = count; t < whole; t++) score[t] = -1e30f;
                    vf high = broadcast(-1e30f), sum = {};
                    for (int64_t t = 0; t < whole; t += W) {
                        vf x = load_f32(score + t);
                        high = pick(x > high, x, high);
                    }
                    float most = most_of(high); /* subtracted so that no exponential overflows */
                    for (int64_t t = 0; t < whole; t += W) {
                        vf weight = exponential(load_f32(score + t) - most);
                        sum += weight;
                        store_f32(score + t, weight);
                    }
                    sums[g] = broadcast(sum_of(sum));
                    lse[head + g] = most + logf(sums[g][0]);
                    for (int j = 0; j < VECTORS; j++) total[g][j] = (vf){};
                }
                gather(row.plain, count, row.score, whole, total);
                for (int g = 0; g < HEADS; g++)
                    for (int j = 0; j < VECTORS; j++) store_f32(out + (head + g) * SIZE + j * W, total[g][j] / sums[g]);
            }
        }
    free(memory);
    return 0;
}

/* Add the gradients of one query to d_key and d_value of `count` tokens. */
INLINE void scatter(Row *row, int64_t count, int64_t stride, float query[HEADS][SIZE], float d_total[HEADS][SIZE]) {
    for (int64_t t = 0; t < count; t++)
        UNROLL for (int j = 0; j < VECTORS; j++) {
            vf key = load_f32(row->d_key + t * SIZE + j * W), value = load_f32(row->d_value + t * SIZE + j * W);
            UNROLL for (int g = 0; g < HEADS; g++) {
                key += row->d_score[g * stride + t] * load_f32(query[g] + j * W);
                value += row->score[g * stride + t] * load_f32(d_total[g] + j * W);
            }
            store_f32(row->d_key + t * SIZE + j * W, key);
            store_f32(row->d_value + t * SIZE + j * W, value);
        }
}

/* Set d_q, and add to d_k and d_v (rows may share tokens). Return 0, or 1 if there is no memory. */
int backward(const float *q, const float *k, const float *v, float scale, const int64_t *places, const int64_t *offsets,
             const int64_t *shared, int64_t rows, int64_t key_heads, int64_t first, int64_t last, const float *out,
             const float *lse, const float *d_out, float *d_q, float *d_k, float *d_v) {
    Row row;
    float *memory = allocate(&row, longest(offsets, rows));
    if (!memory) return 1;
    int64_t heads = key_heads * HEADS;
    for (int64_t b = 0; b < rows; b++)
        for (int64_t h = first; h < last; h++) {
            const int64_t *place = places + offsets[b];
            int64_t length = offsets[b + 1] - offsets[b];
            for (int64_t t = 0; t < length; t++) {
                int64_t from = (place[t] * key_heads + h) * SIZE;
                blocked(k + from, t, row.keys);
                blocked(v + from, t, row.values);
                memcpy(row.plain + t * SIZE, k + from, SIZE * sizeof(float));
            }
            memset(row.d_key, 0, length * SIZE * sizeof(float));
            memset(row.d_value, 0, length * SIZE * sizeof(float));
            for (int64_t i = shared[b]; i < length; i++) {
                int64_t count = i + 1, whole = (count + W - 1) / W * W, head = place[i] * heads + h * HEADS;
                float query[HEADS][SIZE], d_total[HEADS][SIZE];
                read_query(q + head * SIZE, scale, query);
                read_query(d_out + head * SIZE, 1.f, d_total);
                multiply_all(row.keys, whole, query, row.score, whole);
                multiply_all(row.values, whole, d_total, row.d_score, whole);
                vf d_query[HEADS][VECTORS];
                for (int g = 0; g < HEADS; g++) {
                    vf dot = {};
                    for (int j = 0; j < VECTORS; j++) {
                        dot += load_f32(d_total[g] + j * W) * load_f32(out + (head + g) * SIZE + j * W);
                        d_query[g][j] = (vf){};
                    }
                    float *score = row.score + g * whole, *d_score = row.d_score + g * whole, mean = sum_of(dot);
                    /* Scores are computed again from `lse`: storing them would take length² numbers per head. */
                    for (int64_t t = 0; t < whole; t += W) {
                        vf weight = exponential(load_f32(score + t) - lse[head + g]);
                        store_f32(score + t, weight);
                        store_f32(d_score + t, weight * (load_f32(d_score + t) - mean));
                    }
                }
                gather(row.plain, count, row.d_score, whole, d_query);
                for (int g = 0; g < HEADS; g++)
                    for (int j = 0; j < VECTORS; j++) store_f32(d_q + (head + g) * SIZE + j * W, d_query[g][j] * scale);
                scatter(&row, count, whole, query, d_total);
            }
            for (int64_t t = 0; t < length; t++) {
                int64_t to = (place[t] * key_heads + h) * SIZE;
                for (int j = 0; j < VECTORS; j++) {
                    store_f32(d_k + to + j * W, load_f32(d_k + to + j * W) + load_f32(row.d_key + t * SIZE + j * W));
                    store_f32(d_v + to + j * W, load_f32(d_v + to + j * W) + load_f32(row.d_value + t * SIZE + j * W));
                }
            }
        }
    free(memory);
    return 0;
}
