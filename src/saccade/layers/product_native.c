/* Products of large matrices, at most of what the processor can: columns of B are laid out as tiles read them, a part at
   a time that stays in the cache, and A is read as it lies. A number does not depend on the number of threads. */

#include "native_product.h"

enum { DEPTH = 384, WIDE = 96 }; /* of the part of B that a thread has laid out */

typedef struct {
    const float *a, *b, *bias; /* batch, rows, inner; batch, inner, cols or its transpose; cols, or none */
    float *c;                  /* batch, rows, cols */
    int64_t batch, rows, tall, next; /* tall: rows of a task */
    int inner, cols, turned, wide;
} task;

/* Lay out a panel of B, `depth` by `cols` of COLS columns from (k, col) on; zeros are beyond its columns. */
static inline __attribute__((always_inline)) void lay(float *restrict out, const task *t, const float *b, int k, int col,
                                                      int depth, const int cols) {
    if (!t->turned) {
        const float *from = b + (size_t)k * t->cols + col;
        for (int i = 0; i < depth; i++, from += t->cols, out += COLS)
            for (int c = 0; c < COLS; c++) out[c] = c < cols ? from[c] : 0;
        return;
    }
    for (int c = 0; c < COLS; c += 4) {
        const float *from = b + (size_t)(col + c) * t->inner + k;
        for (int i = 0; i < depth; i += 4) {
            four held[4];
            for (int r = 0; r < 4; r++)
                held[r] = c + r < cols ? load_four(from + (size_t)r * t->inner + i) : (four){0};
            turn_four(held);
            for (int r = 0; r < 4; r++) store_four(out + (i + r) * COLS + c, held[r]);
        }
    }
}

static void strip(float *c, size_t cw, const float *a, size_t aw, const float *panel, int depth, int rows,
                  const float *first) {
    if (rows == ROWS) {
        tile(c, cw, a, aw, panel, COLS, depth, ROWS, 0, first);
        return;
    }
    if (rows & 4) {
        tile(c, cw, a, aw, panel, COLS, depth, 4, 0, first);
        c += 4 * cw, a += 4 * aw;
    }
    if (rows & 2) {
        tile(c, cw, a, aw, panel, COLS, depth, 2, 0, first);
        c += 2 * cw, a += 2 * aw;
    }
    if (rows & 1) tile(c, cw, a, aw, panel, COLS, depth, 1, 0, first);
}

/* The last columns, fewer than a tile has, by way of a tile of their own. */
static void edge(float *c, size_t cw, const float *a, size_t aw, const float *panel, int depth, int rows,
                 const float *first, int cols) {
    float whole[ROWS * COLS] = {0}, start[COLS] = {0};
    if (first) memcpy(start, first, sizeof(float) * cols);
    for (int r = 0; r < rows && !first; r++) memcpy(whole + r * COLS, c + r * cw, sizeof(float) * cols);
    strip(whole, COLS, a, aw, panel, depth, rows, first ? start : NULL);
    for (int r = 0; r < rows; r++) memcpy(c + r * cw, whole + r * COLS, sizeof(float) * cols);
}

static void work(void *given) {
    static __thread float panels[DEPTH * WIDE];
    task *t = given;
    int64_t across = (t->cols + t->wide - 1) / t->wide, down = (t->rows + t->tall - 1) / t->tall;
    for (;;) {
        int64_t at = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED), which = at / (across * down);
        if (which >= t->batch) return;
        int64_t row = at / across % down * t->tall, stop = t->rows - row < t->tall ? t->rows : row + t->tall;
        int col = (int)(at % across) * t->wide, cols = t->cols - col < t->wide ? t->cols - col : t->wide;
        const float *left = t->a + which * t->rows * t->inner, *right = t->b + which * t->inner * t->cols;
        float *out = t->c + which * t->rows * t->cols + col;
        for (int k = 0; k < t->inner; k += DEPTH) {
            int depth = t->inner - k < DEPTH ? t->inner - k : DEPTH;
            for (int j = 0; j < cols; j += COLS)
                if (cols - j < COLS)
                    lay(panels + j * depth, t, right, k, col + j, depth, cols - j);
                else
                    lay(panels + j * depth, t, right, k, col + j, depth, COLS);
            for (int64_t i = row; i < stop; i += ROWS)
                for (int j = 0; j < cols; j += COLS) {
                    int rows = stop - i < ROWS ? (int)(stop - i) : ROWS;
                    const float *a = left + i * t->inner + k, *panel = panels + j * depth;
                    const float *first = k ? NULL : t->bias ? t->bias + col + j : NOTHING;
                    float *c = out + i * t->cols + j;
                    if (cols - j < COLS)
                        edge(c, t->cols, a, t->inner, panel, depth, rows, first, cols - j);
                    else
                        strip(c, t->cols, a, t->inner, panel, depth, rows, first);
                }
        }
    }
}

/* C = A B + bias for each of a batch, where B is given as its transpose if `turned`; `inner` is a multiple of four. */
void multiply(parallel start, int threads, const float *a, const float *b, const float *bias, float *c, int64_t batch,
              int64_t rows, int inner, int cols, int turned) {
    task t = {a, b, bias, c, batch, rows, rows, 0, inner, cols, turned, WIDE};
    while (batch * ((cols + t.wide - 1) / t.wide) * ((rows + t.tall - 1) / t.tall) < 4 * threads) { /* enough for all */
        if (t.tall <= 512 && t.wide == WIDE)
            t.wide = WIDE / 2;
        else if (t.tall > 128)
            t.tall = ((t.tall + 1) / 2 + ROWS - 1) / ROWS * ROWS;
        else
            break;
    }
    spread(start, threads, work, &t);
}
