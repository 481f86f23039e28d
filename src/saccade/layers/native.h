/* What the C sources here share: vectors, powers of two, and work spread over threads. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* floats in a vector register */
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));

/* Runs a function on so many threads at once, each with the same argument: OpenMP's GOMP_parallel, of the library that
   PyTorch has loaded, so that there are no more threads than those which PyTorch's own operators use. */
typedef void (*parallel)(void (*)(void *), void *, unsigned, unsigned);

static inline void spread(parallel start, int threads, void (*work)(void *), void *task) {
    if (threads > 1 && start)
        start(work, task, threads, 0);
    else
        work(task);
}

typedef vec loose __attribute__((aligned(4))); /* one that lies anywhere */

static inline vec load(const float *x) { return *(const loose *)x; }

static inline void store(float *x, vec v) { *(loose *)x = v; }

static inline vec choose(mask yes, vec a, vec b) { return (vec)((yes & (mask)a) | (~yes & (mask)b)); }

/* 2 ** y for y of -126 to 126, right to 1e-7 of itself; what is no number stays none. */
static inline vec power_of_two(vec y) {
    vec shifted = y + 0x1.8p23f; /* the whole part, in the last bits */
    vec f = y - (shifted - 0x1.8p23f), g = f * f;
    vec low = 6.931469492e-01f * f + 1.000000071f, mid = 5.550742616e-02f * f + 2.402212175e-01f;
    mid += (1.326697039e-03f * f + 9.675459746e-03f) * g;
    low += mid * g;
    return choose(y == y, (vec)((mask)low + ((mask)shifted << 23)), y);
}
