/* What training needs beside a dense block: means and variances of channels, and the gradients that come by them. */

#include "native.h"

enum { PARTS = 16, ROWS = 64, SOME = 16 }; /* parts of the rows, however many threads; rows, channels at a time */
enum { VECTORS = SOME / LANES };

typedef struct {
    const float *x, *grad, *slope, *offset;
    float *out;
    double *found; /* PARTS, 2, channels: means and sums of squared deviations */
    int64_t count, next;
    int channels, height, width, halve;
} task;

static inline int64_t start_of(const task *t, int64_t part) { return part * t->count / PARTS; }

/* Add the mean and the squared deviations of some rows' SOME channels to those of the rows before them. */
static void add_rows(const float *x, int channels, int rows, int64_t before, double *mean, double *spread) {
    vec sum[VECTORS] = {{0}}, squares[VECTORS] = {{0}}, middle[VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) sum[v] += load(x + (size_t)r * channels + v * LANES);
    for (int v = 0; v < VECTORS; v++) middle[v] = sum[v] * (1.0f / rows);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++) {
            vec apart = load(x + (size_t)r * channels + v * LANES) - middle[v];
            squares[v] += apart * apart;
        }
    for (int c = 0; c < SOME; c++) {
        int v = c / LANES, lane = c % LANES;
        /* the deviations from a rounded mean sum up to almost nothing, and what they do is put right */
        double exact = (double)sum[v][lane] / rows, off = exact - middle[v][lane], apart = exact - mean[c];
        mean[c] += apart * rows / (before + rows);
        spread[c] += squares[v][lane] - rows * off * off + apart * apart * before * rows / (before + rows);
    }
}

static void moments_of_parts(void *given) {
    task *t = given;
    for (;;) {
        int64_t part = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        if (part >= PARTS) return;
        int64_t from = start_of(t, part), stop = start_of(t, part + 1);
        double *mean = t->found + part * 2 * t->channels, *spread = mean + t->channels;
        memset(mean, 0, sizeof(double) * 2 * t->channels);
        for (int64_t row = from; row < stop; row += ROWS)
            for (int c = 0; c < t->channels; c += SOME)
                add_rows(t->x + row * t->channels + c, t->channels, stop - row < ROWS ? (int)(stop - row) : ROWS,
                         row - from, mean + c, spread + c);
    }
}

/* Write the mean of each channel of `count` rows, then the sum of its squared deviations, to the first part of `found`,
   which has PARTS of them; channels are multiples of SOME. */
void moments(parallel start, int threads, const float *x, double *found, int64_t count, int channels) {
    task t = {.x = x, .found = found, .count = count, .channels = channels};
    spread(start, threads, moments_of_parts, &t);
    for (int part = 1; part < PARTS; part++) {
        double before = (double)start_of(&t, part), rows = (double)(start_of(&t, part + 1) - start_of(&t, part));
        double *other = found + (size_t)part * 2 * channels;
        for (int c = 0; c < channels && rows > 0; c++) {
            double apart = other[c] - found[c], share = rows / (before + rows);
            found[c] += apart * share;
            found[channels + c] += other[channels + c] + apart * apart * before * share;
        }
    }
}

static void rows_back(void *given) {
    task *t = given;
    int tall = t->halve ? t->height / 2 : t->height, wide = t->halve ? t->width / 2 : t->width, step = t->halve + 1;
    float part = t->halve ? 0.25f : 1.0f;
    for (;;) {
        int64_t at = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        if (at >= t->count) return;
        int64_t image = at / t->height, y = at % t->height / step;
        const float *x = t->x + at * t->width * t->channels;
        float *out = t->out + at * t->width * t->channels;
        for (int i = 0; i < t->width; i++, x += t->channels, out += t->channels) {
            int pooled = y < tall && i / step < wide;
            const float *grad = t->grad + ((image * tall + y) * wide + i / step) * t->channels;
            for (int c = 0; c < t->channels; c += LANES) {
                vec sum = load(t->offset + c) + load(x + c) * load(t->slope + c);
                store(out + c, pooled ? sum + part * load(grad + c) : sum);
            }
        }
    }
}

/* Write offset + slope * x, and the gradient of the average over cells of 2x2, if those were halved, or of x itself, for
   images, rows of positions and channels, multiples of SOME. What is left over at the edges was not pooled. */
void gradient(parallel start, int threads, const float *x, const float *grad, const float *slope, const float *offset,
              float *out, int images, int height, int width, int channels, int halve) {
    task t = {.x = x, .grad = grad, .slope = slope, .offset = offset, .out = out, .count = (int64_t)images * height};
    t.channels = channels, t.height = height, t.width = width, t.halve = halve;
    spread(start, threads, rows_back, &t);
}
