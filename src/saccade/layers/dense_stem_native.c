/* A 3x3 convolution of images and max pooling to half their side, and the gradient of its kernels: what is pooled never
   leaves the cache. */

#include "native_product.h"

enum { BAND = 8, SOME = 64 }; /* rows of the result made at a time; positions of a row that are summed up at a time */
enum { GROUPS = 16 };         /* parts of the images that are summed up apart, however many threads there are */

typedef struct {
    const float *x, *matrix, *bias; /* B, H + 2, W + 2, channels with a margin; 9 * channels up to 4, out up to COLS */
    const float *grad;              /* B, H', W', out, on the way back */
    float *out;                     /* likewise, or GROUPS sums, 9 * channels up to ROWS, out up to COLS */
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

/* A row of the convolution, what its positions read, and its gradient. */
typedef struct {
    float *row, *cells, *grad;
} line;

/* Hand the gradient of one position back to the largest of its 3x3 cell, the first of several, as PyTorch does; rows and
   columns go from a first to a last one, and the middle of the cell is number 4. */
static inline __attribute__((always_inline)) void cell_back(const task *t, const float *coming, float *const *rows,
                                                            float *const *grads, int wide, const int top,
                                                            const int bottom, const int left, const int right) {
    for (int o = 0; o < t->out_width; o += LANES) {
        vec most = load(rows[top] + (left - 1) * wide + o), grad = load(coming + o);
        mask place = (mask){0} + (3 * top + left);
        _Pragma("GCC unroll 3") for (int r = top; r <= bottom; r++)
            _Pragma("GCC unroll 3") for (int c = left; c <= right; c++) {
                vec value = load(rows[r] + (c - 1) * wide + o);
                mask more = (value > most) | (value != value);
                most = choose(more, value, most);
                place = (more & (3 * r + c)) | (~more & place);
            }
        _Pragma("GCC unroll 3") for (int r = top; r <= bottom; r++)
            _Pragma("GCC unroll 3") for (int c = left; c <= right; c++) {
                float *to = grads[r] + (c - 1) * wide + o;
                store(to, load(to) + (vec)((place == 3 * r + c) & (mask)grad));
            }
    }
}

/* The same for a row of positions. */
static void pool_back(const task *t, const float *coming, const line *lines, int y, int wide) {
    int top = y ? 0 : 1, bottom = 2 * y + 1 < t->height ? 2 : 1, across = (t->width + 1) / 2;
    for (int x = 0; x < across; x++, coming += t->out_width) {
        int left = x ? 0 : 1, right = 2 * x + 1 < t->width ? 2 : 1;
        float *rows[3], *grads[3];
        for (int r = top; r <= bottom; r++) {
            rows[r] = lines[(2 * y + r - 1) % 3].row + (size_t)2 * x * wide;
            grads[r] = lines[(2 * y + r - 1) % 3].grad + (size_t)2 * x * wide;
        }
        if (top == 0 && bottom == 2 && left == 0 && right == 2)
            cell_back(t, coming, rows, grads, wide, 0, 2, 0, 2);
        else
            cell_back(t, coming, rows, grads, wide, top, bottom, left, right);
    }
}

static void work_back(void *given) {
    task *t = given;
    int deep = up(9 * t->channels, ROWS), wide = up(t->out_width, COLS), even = up(t->width, ROWS);
    int tall = (t->height + 1) / 2, across = (t->width + 1) / 2, bands = (tall + BAND - 1) / BAND;
    size_t size = (size_t)even * (deep + 2 * wide);
    float *room = calloc(3 * size, sizeof(float));
    if (!room) {
        __atomic_store_n(&t->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    line lines[3];
    for (int i = 0; i < 3; i++) {
        lines[i].row = room + i * size;
        lines[i].grad = lines[i].row + (size_t)even * wide;
        lines[i].cells = lines[i].grad + (size_t)even * wide;
    }
    for (;;) {
        int64_t group = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        if (group >= GROUPS) break;
        float *sums = t->out + group * deep * wide;
        for (int64_t piece = group; piece < (int64_t)t->batch * bands; piece += GROUPS) {
            int image = (int)(piece / bands), first = BAND * (int)(piece % bands);
            int stop = first + BAND < tall ? first + BAND : tall, made = first ? 2 * first - 1 : 0, done = made;
            const float *from = t->x + (size_t)image * t->channels * (t->height + 2) * (t->width + 2);
            for (int y = first; y < stop; y++) {
                int last = 2 * y + 1 < t->height ? 2 * y + 1 : t->height - 1;
                for (; made <= last; made++)
                    convolve_row(t, from, lines[made % 3].row, lines[made % 3].cells, made, deep, wide);
                pool_back(t, t->grad + ((size_t)image * tall + y) * across * t->out_width, lines, y, wide);
                for (; done <= last && (done <= 2 * y || y == stop - 1); done++) { /* nothing more comes to these rows */
                    line *l = &lines[done % 3];
                    for (int x = 0; x < t->width; x += SOME) /* what is read stays in the nearest cache */
                        product(sums, wide, l->cells + (size_t)x * deep, deep, l->grad + (size_t)x * wide, wide, deep,
                                t->width - x < SOME ? t->width - x : SOME, wide, 1, 1);
                    memset(l->grad, 0, sizeof(float) * t->width * wide);
                }
            }
        }
    }
    free(room);
}

/* Lay out kernels out, 3, 3, channels as a matrix, 9 * channels up to a multiple, out up to COLS; NULL without memory. */
static float *as_matrix(const float *kernels, int count, int multiple, int out_width) {
    int wide = up(out_width, COLS);
    float *matrix = calloc((size_t)up(count, multiple) * wide, sizeof(float));
    for (int o = 0; matrix && o < out_width; o++)
        for (int k = 0; k < count; k++) matrix[(size_t)k * wide + o] = kernels[(size_t)o * count + k];
    return matrix;
}

/* Write images with a margin of one, convolved by kernels out, 3, 3, channels and pooled, to `out`. All lie channels last.
   Returns 0, or 1 if there was no memory. */
int stem(parallel start, int threads, const float *x, const float *kernels, const float *bias, float *out, int batch,
         int channels, int height, int width, int out_width) {
    float *matrix = as_matrix(kernels, 9 * channels, 4, out_width);
    if (!matrix) return 1;
    task t = {.x = x, .matrix = matrix, .bias = bias, .out = out, .batch = batch, .channels = channels};
    t.height = height, t.width = width, t.out_width = out_width;
    spread(start, threads, work, &t);
    free(matrix);
    return t.failed;
}

/* Write the gradient of kernels from that of the result, `grad`; the rest as above. */
int stem_back(parallel start, int threads, const float *x, const float *kernels, const float *grad, float *of_kernels,
              int batch, int channels, int height, int width, int out_width) {
    int count = 9 * channels, wide = up(out_width, COLS);
    size_t size = (size_t)up(count, ROWS) * wide;
    float *matrix = as_matrix(kernels, count, ROWS, out_width), *sums = calloc(GROUPS * size, sizeof(float));
    task t = {.x = x, .matrix = matrix, .grad = grad, .out = sums, .batch = batch, .channels = channels};
    t.height = height, t.width = width, t.out_width = out_width, t.failed = !matrix || !sums;
    if (!t.failed) spread(start, threads, work_back, &t);
    for (int o = 0; o < out_width && !t.failed; o++)
        for (int k = 0; k < count; k++) {
            double sum = 0;
            for (int group = 0; group < GROUPS; group++) sum += sums[group * size + (size_t)k * wide + o];
            of_kernels[(size_t)o * count + k] = (float)sum;
        }
    free(matrix);
    free(sums);
    return t.failed;
}
