/* Call every function of one kernel source with fixed inputs and print the results; see kernels_aarch64.py. */
#include <stdio.h>
#include <stdlib.h>

#ifdef DECODE
#include "decode.c"
#elif defined(SOFTMAX)
#include "softmax.c"
#elif defined(LAYER)
#include "layer.c"
#else
#include "attention.c"
#endif

static uint32_t seed = 1;

/* From -1 to 1. */
static float next_value(void) {
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (1 << 23) - 1.f;
}

static float to_float(number x) {
#ifdef BF16
    union { uint32_t bits; float value; } converted = {.bits = (uint32_t)x << 16};
    return converted.value;
#else
    return x;
#endif
}

/* Arrays have a vector more than needed, because the kernels may read ahead. */
static number *numbers(int64_t count) {
    number *all = calloc(count + 4 * W, sizeof(number));
    for (int64_t i = 0; i < count; i++) {
        float value = next_value();
#ifdef BF16
        union { float value; uint32_t bits; } converted = {.value = value};
        all[i] = converted.bits >> 16;
#else
        all[i] = value;
#endif
    }
    return all;
}

static float *floats(int64_t count) {
    float *all = calloc(count + 4 * W, sizeof(float));
    for (int64_t i = 0; i < count; i++) all[i] = next_value();
    return all;
}

static float *zeros(int64_t count) { return calloc(count + 4 * W, sizeof(float)); }

static void print_numbers(const char *name, const number *values, int64_t count) {
    printf("%s", name);
    for (int64_t i = 0; i < count; i++) printf(" %.9g", to_float(values[i]));
    printf("\n");
}

static void print_floats(const char *name, const float *values, int64_t count) {
    printf("%s", name);
    for (int64_t i = 0; i < count; i++) printf(" %.9g", values[i]);
    printf("\n");
}

enum { KEYS = 2, QUERIES = KEYS * HEADS, ROWS = 3, WIDTH = 64, VOCAB = 301 };

int main(void) {
#ifdef DECODE
    enum { CAPACITY = 320 };
    int64_t rows[ROWS] = {0, 1, 2}, positions[ROWS] = {5, 299, 64}, sources[ROWS] = {0, 0, 0}, shared[ROWS] = {0, 16, 0};
    number *qkv = numbers(ROWS * (QUERIES + 2 * KEYS) * SIZE), *out = numbers(ROWS * QUERIES * SIZE);
    float *norms = floats((QUERIES + KEYS) * SIZE), *angles = floats(CAPACITY * SIZE);
    number *keys = numbers(ROWS * KEYS * CAPACITY * SIZE), *values = numbers(ROWS * KEYS * CAPACITY * SIZE);
    attend(qkv, norms, 1e-6f, angles, 0.25f, keys, values, rows, positions, sources, shared, out, ROWS, KEYS, CAPACITY);
    print_numbers("attend", out, ROWS * QUERIES * SIZE);
    attend(qkv, 0, 1e-6f, angles, 0.25f, keys, values, rows, positions, sources, shared, out, ROWS, KEYS, CAPACITY);
    print_numbers("attend_without_norms", out, ROWS * QUERIES * SIZE);
    number *gate_up = numbers(ROWS * 2 * WIDTH), *gated = numbers(ROWS * WIDTH);
    gate(gate_up, gated, ROWS, WIDTH);
    print_numbers("gate", gated, ROWS * WIDTH);
    number *x = numbers(ROWS * WIDTH), *residual = numbers(ROWS * WIDTH);
    float *weight = floats(WIDTH);
    add_norm(x, residual, weight, 1e-6f, gated, ROWS, WIDTH);
    print_numbers("add_norm", gated, ROWS * WIDTH);
#elif defined(SOFTMAX)
    number *logits = numbers(ROWS * VOCAB);
    float scale[ROWS] = {1.f, 2.f, 0.5f}, factor[ROWS] = {1.f, -2.f, 0.5f}, slope[ROWS] = {0.f, 0.1f, 1.f};
    float *lse = zeros(ROWS), *entropy = zeros(ROWS), *logprobs = zeros(ROWS);
    softmax(logits, scale, lse, entropy, VOCAB, 0, ROWS);
    print_floats("lse", lse, ROWS);
    print_floats("entropy", entropy, ROWS);
    float temperature[ROWS] = {1.f, 0.f, 0.7f};
    double uniform[ROWS] = {0.25, 0.5, 0.9};
    int64_t ids[ROWS];
    sample(logits, temperature, uniform, ids, logprobs, VOCAB, 0, ROWS);
    print_floats("logprobs", logprobs, ROWS);
    printf("ids %d %d %d\n", (int)ids[0], (int)ids[1], (int)ids[2]);
    softmax_gradient(logits, scale, lse, entropy, factor, slope, VOCAB, 0, ROWS);
    print_numbers("softmax_gradient", logits, ROWS * VOCAB);
#elif defined(LAYER)
    float *x = floats(ROWS * WIDTH), *residual_sum = zeros(ROWS * WIDTH), *weight = floats(WIDTH);
    number *residual = numbers(ROWS * WIDTH), *out = numbers(ROWS * WIDTH);
    norm(x, residual, weight, 1e-6f, residual_sum, out, WIDTH, 0, ROWS);
    print_numbers("norm", out, ROWS * WIDTH);
    float *d_x = zeros(ROWS * WIDTH), *d_weight = zeros(WIDTH);
    norm_backward(x, weight, 1e-6f, residual, d_x, d_weight, WIDTH, 0, ROWS);
    print_floats("norm_backward_x", d_x, ROWS * WIDTH);
    print_floats("norm_backward_weight", d_weight, WIDTH);
    number *gate_up = numbers(ROWS * 2 * WIDTH), *d_gate_up = numbers(ROWS * 2 * WIDTH);
    gate(gate_up, out, WIDTH, 0, ROWS);
    print_numbers("gate", out, ROWS * WIDTH);
    gate_backward(gate_up, residual, d_gate_up, out, WIDTH, 0, ROWS);
    print_numbers("gate_backward", d_gate_up, ROWS * 2 * WIDTH);
    enum { HEADS_IN_ALL = QUERIES + 2 * KEYS };
    number *qkv = numbers(ROWS * HEADS_IN_ALL * SIZE), *d_qkv = numbers(ROWS * HEADS_IN_ALL * SIZE);
    float *norms = floats((QUERIES + KEYS) * SIZE), *cosine = floats(ROWS * SIZE), *sine = floats(ROWS * SIZE);
    float *q = zeros(ROWS * QUERIES * SIZE), *k = zeros(ROWS * KEYS * SIZE), *v = zeros(ROWS * KEYS * SIZE);
    rotate(qkv, norms, 1e-6f, cosine, sine, q, k, v, KEYS, 0, ROWS);
    print_floats("rotate_q", q, ROWS * QUERIES * SIZE);
    print_floats("rotate_k", k, ROWS * KEYS * SIZE);
    print_floats("rotate_v", v, ROWS * KEYS * SIZE);
    float *d_norms = zeros((QUERIES + KEYS) * SIZE);
    rotate_backward(qkv, norms, 1e-6f, cosine, sine, q, k, v, d_qkv, d_norms, KEYS, 0, ROWS);
    print_numbers("rotate_backward", d_qkv, ROWS * HEADS_IN_ALL * SIZE);
    print_floats("rotate_backward_norms", d_norms, (QUERIES + KEYS) * SIZE);
#else
    enum { TOKENS = 37 };
    int64_t places[TOKENS + 5], offsets[3] = {0, 20, 42}, shared[2] = {0, 5};
    for (int i = 0; i < 20; i++) places[i] = i;
    for (int i = 0; i < 5; i++) places[20 + i] = i; /* the second row begins with tokens of the first */
    for (int i = 0; i < 17; i++) places[25 + i] = 20 + i;
    float *q = floats(TOKENS * QUERIES * SIZE), *k = floats(TOKENS * KEYS * SIZE), *v = floats(TOKENS * KEYS * SIZE);
    float *out = zeros(TOKENS * QUERIES * SIZE), *lse = zeros(TOKENS * QUERIES), *d_out = floats(TOKENS * QUERIES * SIZE);
    float *d_q = zeros(TOKENS * QUERIES * SIZE), *d_k = zeros(TOKENS * KEYS * SIZE), *d_v = zeros(TOKENS * KEYS * SIZE);
    if (forward(q, k, v, 0.25f, places, offsets, shared, 2, KEYS, 0, KEYS, out, lse)) return 1;
    print_floats("forward", out, TOKENS * QUERIES * SIZE);
    print_floats("lse", lse, TOKENS * QUERIES);
    if (backward(q, k, v, 0.25f, places, offsets, shared, 2, KEYS, 0, KEYS, out, lse, d_out, d_q, d_k, d_v)) return 1;
    print_floats("d_q", d_q, TOKENS * QUERIES * SIZE);
    print_floats("d_k", d_k, TOKENS * KEYS * SIZE);
    print_floats("d_v", d_v, TOKENS * KEYS * SIZE);
#endif
    return 0;
}
