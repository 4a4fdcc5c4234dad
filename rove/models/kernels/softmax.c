/* Softmax over a large vocabulary on a CPU, for training and sampling, in two passes over logits of type `number`.
 *
 * A call computes the rows `first` to `last` - 1, so that threads share the work.
 */
#include <math.h>

#include "vectors.h"

/* The last `vocab % W` logits of a row, filled up with -1e30: their exponentials are 0. */
INLINE vf tail(const number *row, int64_t vocab, float scale) {
    vf x = broadcast(-1e30f);
    int64_t whole = vocab / W * W;
    number padded[W]; /* `load` converts a whole vector; behind the row, another row or nothing begins */
    for (int64_t i = whole; i < vocab; i++) {
        padded[0] = row[i];
        for (int j = 1; j < W; j++) padded[j] = 0;
        x[i - whole] = load(padded)[0] * scale;
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
            high += x - x; /* NaN stays NaN */
        }
        float most = most_of(high);
        vf weight = exponential(rest - most), sum = weight, products = weight * pick(rest > -1e29f, rest - most, broadcast(0.f));
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

/* p (factor - slope (log p + entropy)) for log p; 0 where p is 0. In fp32, and rounded once when it is stored: as the sum of two
 * bf16 numbers, the gradient of a target with p = 0.99 was off by 12% (benchmarks/LOG.md). */
INLINE vf gradient(vf logp, float factor, float slope, float entropy) {
    logp = pick(logp < -1e30f, broadcast(-1e30f), logp);
    return exponential(logp) * (factor - slope * (logp + entropy));
}

/* Replace logits [N, vocab] by a gradient of their softmax p: factor [N] times p, plus slope [N] times that of the entropy. */
void softmax_gradient(number *logits, const float *scale, const float *lse, const float *entropy, const float *factor,
                      const float *slope, int64_t vocab, int64_t first, int64_t last) {
    int64_t whole = vocab / W * W;
    for (int64_t n = first; n < last; n++) {
        number *row = logits + n * vocab;
        vf rest = gradient(tail(row, vocab, scale[n]) - lse[n], factor[n], slope[n], entropy[n]);
        for (int64_t i = 0; i < whole; i += W)
            store(row + i, gradient(load(row + i) * scale[n] - lse[n], factor[n], slope[n], entropy[n]));
        number tail_gradients[W];
        store(tail_gradients, rest);
        for (int64_t i = whole; i < vocab; i++) row[i] = tail_gradients[i - whole];
    }
}

enum { BLOCK = 512 }; /* tokens whose probabilities are summed together; a multiple of W */

/* exp(x * inverse - most) of W logits; 0 for a logit of -infinity. */
INLINE vf weight_of(vf x, float inverse, float most) {
    vf scaled = x * inverse - most;
    return pick(scaled < -1e29f, broadcast(0.f), exponential(pick(scaled < -1e29f, broadcast(0.f), scaled)));
}

/* Sample a token of each row of logits [N, vocab] by inverse transform sampling: where uniform [N], from 0 to less than 1, falls
 * in the cumulative distribution of the softmax at temperature [N]. Rows of temperature 0 take the first most likely token.
 * logprobs [N]: the token's log-probability at the row's temperature, at 1 in rows of temperature 0; NaN if a logit is NaN or
 * infinity, or if all are -infinity. */
void sample(const number *logits, const float *temperature, const double *uniform, int64_t *ids, float *logprobs, int64_t vocab,
            int64_t first, int64_t last) {
    int64_t whole = vocab / W * W, blocks = (vocab + BLOCK - 1) / BLOCK;
    double sums[blocks];
    for (int64_t n = first; n < last; n++) {
        const number *row = logits + n * vocab;
        float inverse = temperature[n] == 0 ? 1.f : 1.f / temperature[n];
        vf rest = tail(row, vocab, 1.f), high = rest, nans = {};
        for (int64_t i = 0; i < whole; i += W) {
            vf x = load(row + i);
            high = pick(x > high, x, high);
            nans = pick(x != x, x, nans);
        }
        float most = most_of(high) * inverse;
        if (!(most > -1e29f)) {
            ids[n] = 0;
            logprobs[n] = NAN;
            continue;
        }
        /* Sums of blocks first, in doubles: the token is then found by one look at each block and at each token of one block. */
        double total = 0;
        for (int64_t b = 0; b < blocks; b++) {
            int64_t end = (b + 1) * BLOCK < whole ? (b + 1) * BLOCK : whole;
            vf sum = b == blocks - 1 && whole < vocab ? weight_of(rest, inverse, most) : (vf){};
            for (int64_t i = b * BLOCK; i < end; i += W) sum += weight_of(load(row + i), inverse, most);
            total += sums[b] = sum_of(sum);
        }
        int64_t id = 0;
        if (temperature[n] == 0) {
            for (int64_t i = 0; i < vocab; i += W) {
                vf x = i < whole ? load(row + i) : rest;
                int64_t j = 0;
                while (j < W && i + j < vocab && x[j] != most) j++;
                if (j < W && i + j < vocab) {
                    id = i + j;
                    break;
                }
            }
        } else {
            double target = uniform[n] * total, cumulative = 0;
            int64_t b = 0, likely = 0;
            while (b < blocks - 1 && cumulative + sums[b] <= target) cumulative += sums[b++];
            id = -1;
            for (int64_t i = b * BLOCK; id < 0 && i < vocab && i < (b + 1) * BLOCK; i += W) {
                vf weight = weight_of(i < whole ? load(row + i) : rest, inverse, most);
                for (int j = 0; id < 0 && j < W && i + j < vocab; j++) {
                    cumulative += weight[j];
                    if (weight[j] > 0) likely = i + j;
                    if (cumulative > target) id = i + j;
                }
            }
            if (id < 0) id = likely; /* the sums of a block and of its tokens are rounded differently */
        }
        number chosen[W];
        for (int j = 0; j < W; j++) chosen[j] = row[id];
        ids[n] = id;
        logprobs[n] = load(chosen)[0] * inverse - most - (float)__builtin_log(total) + sum_of(nans - nans);
    }
}
