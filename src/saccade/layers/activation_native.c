/* GELU by the normal distribution; its slope, and a gradient times that, in the same pass. */

#include "native.h"

enum { PIECE = 8192 }; /* numbers that a thread takes at a time */

typedef struct {
    const float *x;
    float *out, *slope, *grad; /* one of the last two */
    int64_t count, next;
} task;

/* The share below x is 1 - beyond, or beyond where x is negative: the bell exp(-x * x / 2), which the slope needs anyway,
   times a polynomial of 1 / (1 + 0.34 |x|), fitted so that the share is right to 1.2e-8. Beyond FAR it is none. */
static inline vec gelu_of(vec x, vec *slope) {
    static const float FAR = 13.2f;
    vec size = (vec)((mask)x & INT32_MAX), far = (vec){0} + FAR;
    vec near = choose(size > far, far, size);
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

static void work(void *given) {
    task *t = given;
    for (;;) {
        int64_t at = __atomic_fetch_add(&t->next, PIECE, __ATOMIC_RELAXED), stop = at + PIECE;
        if (at >= t->count) return;
        if (stop > t->count) stop = t->count;
        for (; at + LANES <= stop; at += LANES) step(t, at, sizeof(vec));
        if (at < stop) step(t, at, sizeof(float) * (stop - at));
    }
}

/* Write GELU of `count` numbers to `out`, and its slope to `slope`, or multiply `grad` by it if that is given. */
void gelu(parallel start, int threads, const float *x, float *out, float *slope, float *grad, int64_t count) {
    task t = {x, out, slope, grad, count, 0};
    int64_t pieces = (count + PIECE - 1) / PIECE;
    if (threads > pieces) threads = (int)pieces;
    spread(start, threads, work, &t);
}
