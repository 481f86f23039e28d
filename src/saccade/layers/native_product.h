/* Products of matrices whose operands are in the cache. */

#include "native.h"

enum { ROWS = 8, COLS = 2 * LANES }; /* of a tile, which registers hold */

typedef float four __attribute__((vector_size(16)));
typedef four loose_four __attribute__((aligned(4)));

static inline int up(int size, int step) { return (size + step - 1) / step * step; }

static inline four load_four(const float *x) { return *(const loose_four *)x; }

static inline void store_four(float *x, four v) { *(loose_four *)x = v; }

/* Transpose four by four numbers. */
static inline void turn_four(four *x) {
    four a = x[0], b = x[1], c = x[2], d = x[3];
#if defined(__has_builtin) && __has_builtin(__builtin_shufflevector)
    four e = __builtin_shufflevector(a, c, 0, 4, 1, 5), f = __builtin_shufflevector(a, c, 2, 6, 3, 7);
    four g = __builtin_shufflevector(b, d, 0, 4, 1, 5), h = __builtin_shufflevector(b, d, 2, 6, 3, 7);
    x[0] = __builtin_shufflevector(e, g, 0, 4, 1, 5), x[1] = __builtin_shufflevector(e, g, 2, 6, 3, 7);
    x[2] = __builtin_shufflevector(f, h, 0, 4, 1, 5), x[3] = __builtin_shufflevector(f, h, 2, 6, 3, 7);
#else
    for (int k = 0; k < 4; k++) x[k] = (four){a[k], b[k], c[k], d[k]};
#endif
}

/* Says that a vector is to be in a register here: without it gcc moves sums to and fro, for 5 % of a product's time. */
#if defined(__aarch64__) && LANES == 4
#define IN_REGISTER(v) __asm__("" : "+w"(v))
#else
#define IN_REGISTER(v) (void)(v)
#endif

/* Add A B to a tile C of so many rows and COLS columns. Element (i, k) of A is a[i * aw + k], and `inner` a multiple of
   four; or it is a[k * aw + i] if `turned`, and the tile has ROWS rows. Where `first` is given C holds nothing yet, and
   each of its rows begins as that one. */
static inline __attribute__((always_inline)) void tile(float *restrict c, size_t cw, const float *restrict a, size_t aw,
                                                       const float *restrict b, size_t bw, int inner, const int rows,
                                                       const int turned, const float *first) {
    vec sum[ROWS][2];
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)
        for (int p = 0; p < 2; p++) sum[r][p] = load((first ? first : c + r * cw) + p * LANES);
    if (turned)
        for (int k = 0; k < inner; k++, a += aw, b += bw) {
            four held[2] = {load_four(a), load_four(a + 4)};
            vec b0 = load(b), b1 = load(b + LANES);
            _Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++) {
                sum[r][0] += held[r / 4][r % 4] * b0;
                sum[r][1] += held[r / 4][r % 4] * b1;
            }
        }
    else
        for (int k = 0; k < inner; k += 4, a += 4) {
            four held[ROWS];
            _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++) held[r] = load_four(a + r * aw);
            _Pragma("GCC unroll 4") for (int s = 0; s < 4; s++, b += bw) {
                vec b0 = load(b), b1 = load(b + LANES);
                _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++) {
                    sum[r][0] += held[r][s] * b0;
                    sum[r][1] += held[r][s] * b1;
                }
            }
            _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++) {
                IN_REGISTER(sum[r][0]);
                IN_REGISTER(sum[r][1]);
            }
        }
    _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)
        for (int p = 0; p < 2; p++) store(c + r * cw + p * LANES, sum[r][p]);
}

static const float NOTHING[COLS]; /* zeros */

/* C = A B, or C += A B if `more`; rows are multiples of ROWS and columns of COLS. */
static inline __attribute__((always_inline)) void product(float *c, int cw, const float *a, int aw, const float *b,
                                                          int bw, int rows, int inner, int cols, const int turned,
                                                          const int more) {
    for (int j = 0; j < cols; j += COLS)
        for (int i = 0; i < rows; i += ROWS)
            tile(c + (size_t)i * cw + j, cw, turned ? a + i : a + (size_t)i * aw, aw, b + j, bw, inner, ROWS, turned,
                 more ? NULL : NOTHING);
}

static inline void by_rows(float *c, int cw, const float *a, int aw, const float *b, int bw, int rows, int inner,
                           int cols) {
    product(c, cw, a, aw, b, bw, rows, inner, cols, 0, 0);
}
