/* A 3x3 convolution of images and max pooling to half their side: what is pooled never leaves the cache. */

#include "native_product.h"

enum { BAND = 8 }; /* rows of the result that a thread makes at a time */

typedef struct {
    const float *x, *matrix, *bias; /* B, H + 2, W + 2, channels with a margin; 9 * channels up to 4, out up to COLS */
    float *out;                     /* B, H', W', out */
    int batch, channels, height, width, out_width, failed;
    int64_t next;
} task;

/* One row of the convolution, W, wide, without its bias; `cells` has room for what its positions read. */
static void convolve_row(const task *t, const float *image, float *row, float *cells, int y, int deep, int wide) {
    int three = 3 * t->channels;
    for (int r = 0; r < 3; r++) {
        const float *line = image + (size_t)(y + r) * (t->width + 2) * t->channels;
        for (int x = 0; x < t->width; x++)
            for (int k = 0; k < three; k++) cells[(size_t)x * deep + r * three + k] = line[x * t->channels + k];
    }
    by_rows(row, wide, cells, deep, t->matrix, wide, up(t->width, ROWS), deep, wide);
}

#if defined(__aarch64__) && LANES == 4
#include <arm_neon.h>
static inline vec larger(vec a, vec b) { return (vec)vmaxq_f32((float32x4_t)a, (float32x4_t)b); }
#else
static inline vec larger(vec a, vec b) { return choose((a > b) | (a != a), a, b); }
#endif

static void work(void *given) {
    task *t = given;
    int deep = up(9 * t->channels, 4), wide = up(t->out_width, COLS), even = up(t->width, ROWS);
    int tall = (t->height + 1) / 2, across = (t->width + 1) / 2, bands = (tall + BAND - 1) / BAND;
    size_t size = (size_t)even * wide;
    float *cells = calloc((size_t)even * deep + 4 * size, sizeof(float));
    if (!cells) {
        __atomic_store_n(&t->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    float *rows = cells + (size_t)even * deep, *most = rows + 3 * size;
    for (;;) {
        int64_t piece = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        if (piece >= (int64_t)t->batch * bands) break;
        int image = (int)(piece / bands), first = BAND * (int)(piece % bands);
        int stop = first + BAND < tall ? first + BAND : tall;
        const float *from = t->x + (size_t)image * t->channels * (t->height + 2) * (t->width + 2);
        if (first) convolve_row(t, from, rows + (2 * first - 1) % 3 * size, cells, 2 * first - 1, deep, wide);
        for (int y = first; y < stop; y++) {
            int top = y ? 2 * y - 1 : 0, bottom = 2 * y + 1 < t->height ? 2 * y + 1 : t->height - 1;
            for (int row = 2 * y; row <= bottom; row++)
                convolve_row(t, from, rows + row % 3 * size, cells, row, deep, wide);
            const float *above = rows + top % 3 * size, *middle = rows + 2 * y % 3 * size, *below = rows + bottom % 3 * size;
            for (size_t i = 0; i < (size_t)t->width * wide; i += LANES)
                store(most + i, larger(larger(load(above + i), load(middle + i)), load(below + i)));
            for (int x = 0; x < across; x++) {
                const float *at = most + (size_t)2 * x * wide;
                const float *left = x ? at - wide : at, *right = 2 * x + 1 < t->width ? at + wide : at;
                float *to = t->out + (((size_t)image * tall + y) * across + x) * t->out_width;
                for (int o = 0; o < t->out_width; o += LANES)
                    store(to + o, larger(larger(load(left + o), load(at + o)), load(right + o)) + load(t->bias + o));
            }
        }
    }
    free(cells);
}

/* Write images with a margin of one, convolved by kernels out, 3, 3, channels and pooled, to `out`. All lie channels last.
   Returns 0, or 1 if there was no memory. */
int stem(parallel start, int threads, const float *x, const float *kernels, const float *bias, float *out, int batch,
         int channels, int height, int width, int out_width) {
    int count = 9 * channels, wide = up(out_width, COLS);
    float *matrix = calloc((size_t)up(count, 4) * wide, sizeof(float));
    if (!matrix) return 1;
    for (int o = 0; o < out_width; o++)
        for (int k = 0; k < count; k++) matrix[(size_t)k * wide + o] = kernels[(size_t)o * count + k];
    task t = {x, matrix, bias, out, batch, channels, height, width, out_width, 0, 0};
    spread(start, threads, work, &t);
    free(matrix);
    return t.failed;
}
