/* Small products of matrices whose operands are in the cache. */

#include "native.h"

enum { ROWS = 8, COLS = 2 * LANES }; /* of a tile, which registers hold */

typedef float four __attribute__((vector_size(16)));
typedef four loose_four __attribute__((aligned(4)));

static inline int up(int size, int step) { return (size + step - 1) / step * step; }

static inline four load_four(const float *x) { return *(const loose_four *)x; }

static inline void store_four(float *x, four v) { *(loose_four *)x = v; }

/* C = A B, or C += A B if `more`. Element (i, k) of A is a[i * wide + k], or a[k * wide + i] if `turned`; else `inner`
   is a multiple of four. Rows are multiples of ROWS and columns of COLS. */
static inline __attribute__((always_inline)) void product(float *restrict c, int cw, const float *restrict a, int aw,
                                                          const float *restrict b, int bw, int rows, int inner,
                                                          int cols, const int turned, const int more) {
    for (int j = 0; j < cols; j += COLS)
        for (int i = 0; i < rows; i += ROWS) {
            vec sum[ROWS][2];
            float *to = c + (size_t)i * cw + j;
            for (int r = 0; r < ROWS; r++)
                for (int p = 0; p < 2; p++) sum[r][p] = more ? load(to + (size_t)r * cw + p * LANES) : (vec){0};
            const float *left = turned ? a + i : a + (size_t)i * aw, *right = b + j;
            if (turned)
                for (int k = 0; k < inner; k++, left += aw, right += bw) {
                    four first = load_four(left), second = load_four(left + 4);
                    vec b0 = load(right), b1 = load(right + LANES);
                    _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++) {
                        sum[r][0] += first[r] * b0;
                        sum[r][1] += first[r] * b1;
                        sum[r + 4][0] += second[r] * b0;
                        sum[r + 4][1] += second[r] * b1;
                    }
                }
            else
                for (int k = 0; k < inner; k += 4, left += 4) {
                    four held[ROWS];
                    _Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++) held[r] = load_four(left + (size_t)r * aw);
                    _Pragma("GCC unroll 4") for (int s = 0; s < 4; s++, right += bw) {
                        vec b0 = load(right), b1 = load(right + LANES);
                        _Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++) {
                            sum[r][0] += held[r][s] * b0;
                            sum[r][1] += held[r][s] * b1;
                        }
                    }
                }
            _Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++)
                for (int p = 0; p < 2; p++) store(to + (size_t)r * cw + p * LANES, sum[r][p]);
        }
}

static void by_rows(float *c, int cw, const float *a, int aw, const float *b, int bw, int rows, int inner, int cols) {
    product(c, cw, a, aw, b, bw, rows, inner, cols, 0, 0);
}
