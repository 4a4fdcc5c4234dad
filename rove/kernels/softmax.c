/* Softmax over a large vocabulary for training on a CPU, in two passes over logits of type `number`.
 *
 * A call computes the rows `first` to `last` - 1, so that threads share the work.
 */
#include <math.h>

#include "vectors.h"

/* The last `vocab % W` logits of a row, filled up with -1e30: their exponentials are 0. */
INLINE vf tail(const number *row, int64_t vocab, float scale) {
    vf x = all(-1e30f);
    int64_t whole = vocab / W * W;
    number one[W];
    for (int64_t i = whole; i < vocab; i++) {
        vf only = {};
        one[0] = row[i];
        for (int j = 1; j < W; j++) one[j] = 0;
        only = load(one);
        x[i - whole] = only[0] * scale;
    }
    return x;
}

/* lse [N]: the logarithm of the sum of exponentials of logits [N, vocab] times scale [N]; entropy [N] of their softmax. */
void softmax(const number *logits, const float *scale, float *lse, float *entropy, int64_t vocab, int64_t first, int64_t last) {
    int64_t whole = vocab / W * W;
    for (int64_t n = first; n < last; n++) {
        const number *row = logits + n * vocab;
        vf rest = tail(row, vocab, scale[n]), high = rest;
        for (int64_t i = 0; i < whole; i += W) {
            vf x = load(row + i) * scale[n];
            high = pick(x > high, x, high);
            high += x - x; /* a logit that is no number makes the sum none */
        }
        float most = most_of(high);
        vf weight = exponential(rest - most), sum = weight, products = weight * pick(rest > -1e29f, rest - most, all(0.f));
        for (int64_t i = 0; i < whole; i += W) {
            vf x = load(row + i) * scale[n] - most;
            weight = exponential(x);
            sum += weight;
            products += weight * x;
        }
        float total = sum_of(sum), log_total = logf(total);
        lse[n] = most + log_total;
        entropy[n] = log_total - sum_of(products) / total;
    }
}

/* Replace logits [N, vocab] by factor [N] times their softmax. */
void softmax_gradient(number *logits, const float *scale, const float *lse, const float *factor, int64_t vocab, int64_t first,
                      int64_t last) {
    int64_t whole = vocab / W * W;
    for (int64_t n = first; n < last; n++) {
        number *row = logits + n * vocab;
        vf rest = exponential(tail(row, vocab, scale[n]) - lse[n]) * factor[n];
        for (int64_t i = 0; i < whole; i += W)
            store(row + i, exponential(load(row + i) * scale[n] - lse[n]) * factor[n]);
        number last_ones[W];
        store(last_ones, rest);
        for (int64_t i = whole; i < vocab; i++) row[i] = last_ones[i - whole];
    }
}
