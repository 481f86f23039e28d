/* GELU by the normal distribution; its slope, or a gradient times that, in the same pass where they are asked for. */

#include "native.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { PIECE = 8192 }; /* numbers that a thread takes at a time */

typedef struct {
    const float *x;
    float *out, *slope, *grad; /* one of the last two, or none */
    int64_t count, next;
} task;

/* |x|, but no more than `far`; what is no number stays none. */
static inline vec size_within(vec x, vec far) {
#if defined(__aarch64__)
    return (vec)vminq_f32(vabsq_f32((float32x4_t)x), (float32x4_t)far);
#else
    vec size = (vec)((mask)x & INT32_MAX);
    return choose(size > far, far, size);
#endif
}

/* The share below x is 1 - beyond, or beyond where x is negative: the bell exp(-x * x / 2), which the slope needs anyway,
   times a polynomial of 1 / (1 + 0.34 |x|), fitted so that the share is right to 1.2e-8. Beyond 13.2 it is none. */
static inline vec gelu_of(vec x, vec *slope) {
    vec near = size_within(x, (vec){0} + 13.2f);
    vec bell = power_of_two(near * near * -0.72134752f);
    vec t = 1.0f / (0.34f * near + 1.0f), s = t * t;
    vec low = 1.305294261e-01f * t + 1.359504307e-01f, mid = -2.431380319e-02f * t + 1.534106140e-01f;
    mid += (4.394423057e-02f * s + (-1.966295469e-01f * t + 2.571086511e-01f)) * s;
    low += mid * s;
    vec beyond = low * (t * bell), share = choose(x < 0, beyond, 1.0f - beyond);
    *slope = share + choose(x < 0, -near, near) * (bell * 0.39894228f);
    return x * share;
}

static inline void step(const task *t, int64_t at, size_t bytes) {
    vec x = {0}, slope, grad = {0};
    memcpy(&x, t->x + at, bytes);
    x = gelu_of(x, &slope);
    memcpy(t->out + at, &x, bytes);
    if (t->grad) {
        memcpy(&grad, t->grad + at, bytes);
        slope *= grad;
    }
    memcpy((t->grad ? t->grad : t->slope) + at, &slope, bytes);
}

enum { STEPS = 10, AT_ONCE = 4 }; /* terms of the polynomial; vectors whose steps take turns, lest one wait for the last */

/* GELU is x, or nothing where x is negative, less |x| times the share beyond |x|, whose eighth root is almost straight: a
   polynomial of |x|, right to 4e-7 of |x| in all. Beyond 7 the share is none. The factors are read from memory at every
   step: an addition of a product writes over what it adds to, and to copy that takes as long as the addition. */
static inline void gelu_alone(const float *x, float *out, const volatile vec *factors) {
    vec given[AT_ONCE], size[AT_ONCE], square[AT_ONCE], even[AT_ONCE], odd[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) given[i] = load(x + i * LANES);
    vec last = factors[STEPS - 2], odd_last = factors[STEPS - 1];
    for (int i = 0; i < AT_ONCE; i++) {
        size[i] = size_within(given[i], (vec){0} + 7.0f), square[i] = size[i] * size[i];
        even[i] = last, odd[i] = odd_last;
    }
    _Pragma("GCC unroll 8") for (int k = STEPS - 4; k >= 0; k -= 2)
        for (int i = 0; i < AT_ONCE; i++) {
            even[i] = factors[k] + even[i] * square[i];
            odd[i] = factors[k + 1] + odd[i] * square[i];
        }
    for (int i = 0; i < AT_ONCE; i++) even[i] += odd[i] * size[i];
    _Pragma("GCC unroll 4") for (int k = 0; k < 3; k++)
        for (int i = 0; i < AT_ONCE; i++) even[i] *= even[i];
    for (int i = 0; i < AT_ONCE; i++)
        store(out + i * LANES, choose(given[i] > 0, given[i], (vec){0}) - size[i] * even[i]);
}

/* gcc's scheduler would hold more at a time than there are registers. */
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("no-schedule-insns")))
#endif
static void without_slope(const task *t, int64_t at, int64_t stop) {
    static const float FACTORS[STEPS] = {9.170040488e-01f,  -9.145789593e-02f, -3.192568198e-02f, -6.776172086e-04f,
                                         1.511699753e-03f,  2.872106961e-05f,  -5.772208169e-05f, 6.803110409e-06f,
                                         -1.987045408e-07f, -5.780776302e-09f};
    volatile vec factors[STEPS];
    for (int k = 0; k < STEPS; k++) factors[k] = (vec){0} + FACTORS[k];
    for (; at + AT_ONCE * LANES <= stop; at += AT_ONCE * LANES) gelu_alone(t->x + at, t->out + at, factors);
    if (at == stop) return;
    float last[AT_ONCE * LANES] = {0};
    memcpy(last, t->x + at, sizeof(float) * (stop - at));
    gelu_alone(last, last, factors);
    memcpy(t->out + at, last, sizeof(float) * (stop - at));
}

static void work(void *given) {
    task *t = given;
    for (;;) {
        int64_t at = __atomic_fetch_add(&t->next, PIECE, __ATOMIC_RELAXED), stop = at + PIECE;
        if (at >= t->count) return;
        if (stop > t->count) stop = t->count;
        if (!t->slope && !t->grad) {
            without_slope(t, at, stop);
            continue;
        }
        for (; at + LANES <= stop; at += LANES) step(t, at, sizeof(vec));
        if (at < stop) step(t, at, sizeof(float) * (stop - at));
    }
}

/* Write GELU of `count` numbers to `out`, which may be `x`, and its slope to `slope`, or multiply `grad` by it, if one of
   them is given. */
void gelu(parallel start, int threads, const float *x, float *out, float *slope, float *grad, int64_t count) {
    task t = {x, out, slope, grad, count, 0};
    int64_t pieces = (count + PIECE - 1) / PIECE;
    if (threads > pieces) threads = (int)pieces;
    spread(start, threads, work, &t);
}
