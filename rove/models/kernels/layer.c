/* Training of a decoder layer on a CPU: the work between its matrix products and its attention, forward and backward. Each
 * function is one pass over memory (docs/decisions/bf16_training.md).
 *
 * Activations are of type `number`; the residual stream, norms and sums are fp32. Shapes: N tokens; `width` is a multiple of W;
 * a head has SIZE values, HEADS query heads share a key head. A call computes the tokens `first` to `last` - 1, so that threads
 * share the work; gradients of weights are sums over these tokens.
 */
#include <math.h>

#include "vectors.h"

enum { HALF = SIZE / 2 };

/* sum [N, width] = x + residual, unless residual is null (then sum is not used); out = the sum divided by its root mean square,
 * times weight [width]. x and sum may be the same. */
void norm(const float *x, const number *residual, const float *weight, float eps, float *sum, number *out, int64_t width,
          int64_t first, int64_t last) {
    for (int64_t n = first; n < last; n++) {
        const float *row = x + n * width;
        vf squares = {};
        if (residual) {
            for (int64_t i = 0; i < width; i += W) {
                vf value = load_f32(row + i) + load(residual + n * width + i);
                store_f32(sum + n * width + i, value);
                squares += value * value;
            }
            row = sum + n * width;
        } else
            for (int64_t i = 0; i < width; i += W) squares += load_f32(row + i) * load_f32(row + i);
        float inverse = 1.f / sqrtf(sum_of(squares) / width + eps);
        for (int64_t i = 0; i < width; i += W)
            store(out + n * width + i, load_f32(row + i) * inverse * load_f32(weight + i));
    }
}

/* d_x [N, width] += the gradient of `norm`'s input x for the gradient d_out of its output; d_weight [width] += that of its
 * weight, unless d_weight is null. */
void norm_backward(const float *x, const float *weight, float eps, const number *d_out, float *d_x, float *d_weight,
                   int64_t width, int64_t first, int64_t last) {
    for (int64_t n = first; n < last; n++) {
        const float *row = x + n * width;
        const number *d = d_out + n * width;
        vf squares = {}, products = {};
        for (int64_t i = 0; i < width; i += W) {
            vf value = load_f32(row + i);
            squares += value * value;
            products += value * load(d + i) * load_f32(weight + i);
        }
        float inverse = 1.f / sqrtf(sum_of(squares) / width + eps);
        float mean = sum_of(products) * inverse * inverse / width;
        for (int64_t i = 0; i < width; i += W) {
            vf value = load_f32(row + i), d_value = load(d + i);
            vf grad = (d_value * load_f32(weight + i) - value * mean) * inverse;
            store_f32(d_x + n * width + i, load_f32(d_x + n * width + i) + grad);
            if (d_weight) store_f32(d_weight + i, load_f32(d_weight + i) + d_value * value * inverse);
        }
    }
}

/* gate_up [N, 2, width]: gates, and what they gate; out [N, width] = silu(gate) * up. */
void gate(const number *gate_up, number *out, int64_t width, int64_t first, int64_t last) {
    for (int64_t n = first; n < last; n++)
        for (int64_t i = 0; i < width; i += W) {
            const number *from = gate_up + 2 * n * width + i;
            vf x = load(from);
            store(out + n * width + i, x / (exponential(-x) + 1.f) * load(from + width));
        }
}

/* d_gate_up [N, 2, width], from the gradient d_out of `gate`'s output; out is that output, computed again. */
void gate_backward(const number *gate_up, const number *d_out, number *d_gate_up, number *out, int64_t width, int64_t first,
                   int64_t last) {
    for (int64_t n = first; n < last; n++)
        for (int64_t i = 0; i < width; i += W) {
            const number *from = gate_up + 2 * n * width + i;
            number *to = d_gate_up + 2 * n * width + i;
            vf x = load(from), up = load(from + width), d = load(d_out + n * width + i);
            vf sigmoid = 1.f / (exponential(-x) + 1.f), silu = x * sigmoid;
            store(out + n * width + i, silu * up);
            store(to, d * up * sigmoid * (x - silu + 1.f));
            store(to + width, d * silu);
        }
}

INLINE void read_head(const number *from, float to[SIZE]) {
    for (int j = 0; j < SIZE; j += W) store_f32(to + j, load(from + j));
}

INLINE float inverse_root(const float x[SIZE], float eps) {
    float squares = 0;
    for (int j = 0; j < SIZE; j += W) squares += sum_of(load_f32(x + j) * load_f32(x + j));
    return 1.f / sqrtf(squares / SIZE + eps);
}

/* Rotate query and key heads by the token's position, and convert all heads to fp32.
 *
 * qkv [N, heads, SIZE]: query heads, key heads, value heads; norms [query and key heads, SIZE] of norms before the rotation, or
 * null; cosine and sine [N, SIZE]; q [N, query heads, SIZE], k and v [N, key heads, SIZE].
 */
void rotate(const number *qkv, const float *norms, float eps, const float *cosine, const float *sine, float *q, float *k,
            float *v, int64_t key_heads, int64_t first, int64_t last) {
    int64_t heads = key_heads * HEADS;
    for (int64_t n = first; n < last; n++) {
        const number *from = qkv + n * (heads + 2 * key_heads) * SIZE;
        const float *c = cosine + n * SIZE, *s = sine + n * SIZE;
        for (int64_t h = 0; h < heads + key_heads; h++) {
            float x[SIZE], *to = h < heads ? q + (n * heads + h) * SIZE : k + (n * key_heads + h - heads) * SIZE;
            read_head(from + h * SIZE, x);
            if (norms) {
                float inverse = inverse_root(x, eps);
                for (int j = 0; j < SIZE; j++) x[j] *= inverse * norms[h * SIZE + j];
            }
            for (int j = 0; j < HALF; j++) {
                to[j] = x[j] * c[j] - x[j + HALF] * s[j];
                to[j + HALF] = x[j + HALF] * c[j + HALF] + x[j] * s[j + HALF];
            }
        }
        for (int64_t h = 0; h < key_heads; h++)
            read_head(from + (heads + key_heads + h) * SIZE, v + (n * key_heads + h) * SIZE);
    }
}

/* d_qkv, from the gradients of `rotate`'s results; d_norms [query and key heads, SIZE] +=, where there are norms. */
void rotate_backward(const number *qkv, const float *norms, float eps, const float *cosine, const float *sine,
                     const float *d_q, const float *d_k, const float *d_v, number *d_qkv, float *d_norms,
                     int64_t key_heads, int64_t first, int64_t last) {
    int64_t heads = key_heads * HEADS;
    for (int64_t n = first; n < last; n++) {
        const number *from = qkv + n * (heads + 2 * key_heads) * SIZE;
        number *to = d_qkv + n * (heads + 2 * key_heads) * SIZE;
        const float *c = cosine + n * SIZE, *s = sine + n * SIZE;
        for (int64_t h = 0; h < heads + key_heads; h++) {
            const float *d = h < heads ? d_q + (n * heads + h) * SIZE : d_k + (n * key_heads + h - heads) * SIZE;
            float grad[SIZE];
            for (int j = 0; j < HALF; j++) {
                grad[j] = d[j] * c[j] + d[j + HALF] * s[j + HALF];
                grad[j + HALF] = d[j + HALF] * c[j + HALF] - d[j] * s[j];
            }
            if (norms) {
                const float *weight = norms + h * SIZE;
                float x[SIZE], product = 0;
                read_head(from + h * SIZE, x);
                float inverse = inverse_root(x, eps);
                for (int j = 0; j < SIZE; j++) {
                    d_norms[h * SIZE + j] += grad[j] * x[j] * inverse;
                    product += grad[j] * weight[j] * x[j];
                }
                float mean = product * inverse * inverse / SIZE;
                for (int j = 0; j < SIZE; j++) grad[j] = (grad[j] * weight[j] - x[j] * mean) * inverse;
            }
            for (int j = 0; j < SIZE; j += W) store(to + h * SIZE + j, load_f32(grad + j));
        }
        for (int64_t h = 0; h < key_heads; h++)
            for (int j = 0; j < SIZE; j += W)
                store(to + (heads + key_heads + h) * SIZE + j, load_f32(d_v + (n * key_heads + h) * SIZE + j));
    }
}
