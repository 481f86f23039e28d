/* Self-attention, head by head: what a head reads and writes stays in the cache, and nothing is copied in between.

   Weights lie with keys down and queries across, so that a query's sums run down and vectors hold queries. Logits are
   in powers of two. A result depends on its own head alone, not on the others nor on the number of threads. */

#include <math.h>

#include "native_product.h"

enum { EVEN = COLS > ROWS ? COLS : ROWS, BLOCK = 64 }; /* sides are multiples of EVEN; queries at a time */

static const float LOG2_E = 1.44269504f, LN_2 = 0.69314718f, LEAST = -126.0f;

typedef struct {
    const float *qkv, *grad; /* B, N, 3, heads, d; B, N, heads, d, or none on the way forward */
    float *out, *norms;      /* what comes of it, in the same order; logarithms of the sums of weights, B, heads, N */
    int batch, tokens, heads, width, failed;
    float scale;
    int64_t next;
} task;

static void add_by_rows(float *c, int cw, const float *a, int aw, const float *b, int bw, int rows, int inner,
                        int cols) {
    product(c, cw, a, aw, b, bw, rows, inner, cols, 0, 1);
}

static void by_columns(float *c, int cw, const float *a, int aw, const float *b, int bw, int rows, int inner,
                       int cols) {
    product(c, cw, a, aw, b, bw, rows, inner, cols, 1, 0);
}

/* Copy rows of a head, times a factor, to rows of `wide` numbers, `tall` of them, with zeros around. */
static void take(float *restrict out, int wide, int tall, const float *restrict x, int64_t far, int rows, int width,
                 float factor) {
    for (int i = 0; i < rows; i++, out += wide, x += far) {
        for (int c = 0; c < width; c++) out[c] = x[c] * factor;
        for (int c = width; c < wide; c++) out[c] = 0;
    }
    memset(out, 0, sizeof(float) * (tall - rows) * wide);
}

/* Copy rows back, times a factor. */
static void give(float *restrict out, int64_t far, const float *restrict x, int wide, int rows, int width,
                 float factor) {
    for (int i = 0; i < rows; i++, out += far, x += wide)
        for (int c = 0; c < width; c++) out[c] = x[c] * factor;
}

/* Transpose a matrix whose sides are multiples of four. */
static void turn(float *restrict out, int ow, const float *restrict x, int xw, int rows, int cols) {
    for (int i = 0; i < rows; i += 4)
        for (int j = 0; j < cols; j += 4) {
            const float *from = x + (size_t)i * xw + j;
            float *to = out + (size_t)j * ow + i;
            four held[4];
            for (int k = 0; k < 4; k++) held[k] = load_four(from + (size_t)k * xw);
            turn_four(held);
            for (int k = 0; k < 4; k++) store_four(to + (size_t)k * ow, held[k]);
        }
}

static inline vec weight_of(vec logit, vec norm) {
    vec y = logit - norm, least = (vec){0} + LEAST;
    return power_of_two(choose(y < least, least, y));
}

static void forward(task *t, float *room, int64_t which) {
    int n = t->tokens, d = t->width, heads = t->heads, wide = up(d, EVEN), tall = up(n, EVEN);
    int64_t far = 3 * (int64_t)heads * d, image = which / heads, head = which % heads;
    const float *queries = t->qkv + image * n * far + head * d;
    float *keys = room, *values = keys + tall * wide, *rows = values + tall * wide, *columns = rows + BLOCK * wide;
    float *found = columns + BLOCK * wide, *weights = found + BLOCK * wide;
    take(keys, wide, tall, queries + heads * d, far, n, d, 1);
    take(values, wide, tall, queries + 2 * heads * d, far, n, d, 1);
    for (int start = 0; start < n; start += BLOCK) {
        int some = n - start < BLOCK ? n - start : BLOCK, even = up(some, EVEN);
        float norm[BLOCK], inverse[BLOCK];
        take(rows, wide, even, queries + start * far, far, some, d, t->scale * LOG2_E);
        turn(columns, BLOCK, rows, wide, even, wide);
        by_rows(weights, BLOCK, keys, wide, columns, BLOCK, tall, wide, even);
        for (int j = 0; j < even; j += LANES) {
            vec top = load(weights + j), sum = {0};
            for (int i = 1; i < n; i++) {
                vec logit = load(weights + (size_t)i * BLOCK + j);
                top = choose(logit > top, logit, top);
            }
            for (int i = 0; i < n; i++) {
                float *at = weights + (size_t)i * BLOCK + j;
                vec weight = weight_of(load(at), top);
                store(at, weight);
                sum += weight;
            }
            store(norm + j, top);
            store(inverse + j, sum);
        }
        by_columns(found, wide, weights, BLOCK, values, wide, even, n, wide);
        float *out = t->out + ((image * n + start) * heads + head) * d;
        for (int i = 0; i < some; i++) {
            if (t->norms) t->norms[which * n + start + i] = norm[i] + log2f(inverse[i]);
            give(out + (int64_t)i * heads * d, 0, found + (size_t)i * wide, wide, 1, d, 1 / inverse[i]);
        }
    }
}

static void backward(task *t, float *room, int64_t which) {
    int n = t->tokens, d = t->width, heads = t->heads, wide = up(d, EVEN), tall = up(n, EVEN);
    int64_t near = (int64_t)heads * d, far = 3 * near, image = which / heads, head = which % heads;
    const float *queries = t->qkv + image * n * far + head * d, *grad = t->grad + image * n * near + head * d;
    float *out = t->out + image * n * far + head * d;
    float *keys = room, *values = keys + tall * wide, *of_keys = values + tall * wide, *of_values = of_keys + tall * wide;
    float *rows = of_values + tall * wide, *grads = rows + BLOCK * wide, *columns = grads + BLOCK * wide;
    float *found = columns + BLOCK * wide, *weights = found + BLOCK * wide, *slopes = weights + tall * BLOCK;
    take(keys, wide, tall, queries + near, far, n, d, 1);
    take(values, wide, tall, queries + 2 * near, far, n, d, 1);
    for (int start = 0; start < n; start += BLOCK) {
        int some = n - start < BLOCK ? n - start : BLOCK, even = up(some, EVEN);
        float norm[BLOCK] = {0};
        memcpy(norm, t->norms + which * n + start, sizeof(float) * some);
        take(rows, wide, even, queries + start * far, far, some, d, t->scale * LOG2_E);
        turn(columns, BLOCK, rows, wide, even, wide);
        by_rows(weights, BLOCK, keys, wide, columns, BLOCK, tall, wide, even);
        take(grads, wide, even, grad + start * near, near, some, d, 1);
        turn(columns, BLOCK, grads, wide, even, wide);
        by_rows(slopes, BLOCK, values, wide, columns, BLOCK, tall, wide, even);
        for (int j = 0; j < even; j += LANES) {
            vec sum = {0};
            for (int i = 0; i < n; i++) {
                float *at = weights + (size_t)i * BLOCK + j;
                vec weight = weight_of(load(at), load(norm + j));
                store(at, weight);
                sum += weight * load(slopes + (size_t)i * BLOCK + j);
            }
            for (int i = 0; i < n; i++) {
                float *at = slopes + (size_t)i * BLOCK + j;
                store(at, load(weights + (size_t)i * BLOCK + j) * (load(at) - sum));
            }
        }
        by_columns(found, wide, slopes, BLOCK, keys, wide, even, n, wide);
        give(out + start * far, far, found, wide, some, d, t->scale);
        /* rows of queries and gradients beyond the last are zero */
        (start ? add_by_rows : by_rows)(of_keys, wide, slopes, BLOCK, rows, wide, tall, even, wide);
        (start ? add_by_rows : by_rows)(of_values, wide, weights, BLOCK, grads, wide, tall, even, wide);
    }
    give(out + near, far, of_keys, wide, n, d, LN_2);
    give(out + 2 * near, far, of_values, wide, n, d, 1);
}

static void work(void *given) {
    task *t = given;
    size_t wide = up(t->width, EVEN), tall = up(t->tokens, EVEN);
    float *room = malloc(sizeof(float) * (4 * tall * wide + 4 * BLOCK * wide + 2 * tall * BLOCK));
    if (!room) {
        __atomic_store_n(&t->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    for (;;) {
        int64_t which = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        if (which >= (int64_t)t->batch * t->heads) break;
        (t->grad ? backward : forward)(t, room, which);
    }
    free(room);
}

/* Write what tokens gather to `out`, or, given their gradient, that of queries, keys and values; `norms` are written on
   the way forward if they are asked for, and read on the way back. Returns 0, or 1 if there was no memory. */
int attend(parallel start, int threads, const float *qkv, const float *grad, float *out, float *norms, int batch,
           int tokens, int heads, int width, float scale) {
    task t = {qkv, grad, out, norms, batch, tokens, heads, width, 0, scale, 0};
    if (threads > batch * heads) threads = batch * heads;
    spread(start, threads, work, &t);
    return t.failed;
}
