/* svPN on the CPU: U diag(s**alpha) V^T of many small matrices.

   A^T A = P R^T R P^T by a Cholesky decomposition with pivoting, in double precision. Columns of R^T are then rotated
   in pairs until they are orthogonal, R^T W = V diag(s), with one matrix in each vector lane; W is not needed. Since R^T
   has its large columns first, rounding disturbs a singular vector in proportion to its own value, and single precision
   will do. All lanes take the same steps and a lane that has converged is turned no further, so a result depends on its
   own matrix alone. At last A V in double precision shows what is left to correct in V. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* matrices at a time: as many as a vector register takes */
#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif

enum { LARGEST = 64, BLOCK = 8, PAIRS = 4, COUPLES = LARGEST / 2, SWEEPS = 20, PASSES = 4 };

/* A sweep in which no squared cosine between columns was above the rough bound was the last. The correction that follows
   is exact but for the square of its elements, so it is repeated while one is not small; values whose squares are below
   RESOLVED of the largest are rounding. */
static const float ROUGH = 1e-5f, SMALL = 3e-4f, ORTHOGONAL = 2e-6f, RESOLVED = 1e-15f;

/* Columns of R^T that are nothing but rounding get the length LEAST, for a full set of directions. Lengths are stored
   times UNIT, which keeps the squares of their squares in the range of single precision. */
static const double LEAST = 1e-9, UNIT = 0x1p20, TINY = 1e-300;

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t mask __attribute__((vector_size(4 * LANES)));
typedef float floats __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(16)));

static int up(int size, int step) { return (size + step - 1) / step * step; }

static inline vec magnitude(vec a) { return (vec)((mask)a & INT32_MAX); }

/* 1 / sqrt(a) to three digits. */
static inline vec inverse_root(vec a) {
    vec y = (vec)(0x5f1ffff9 - ((mask)a >> 1));
    return y * (1.68191391f - 0.703952253f * (a * y * y));
}

static int any(mask yes) {
    int32_t found = 0;
    for (int lane = 0; lane < LANES; lane++) found |= yes[lane];
    return found != 0;
}

/* C = A B with B and C in rows of `width`, a multiple of BLOCK; element (i, k) of A is a[i * down + k * across]. */
#define PRODUCT(name, type, vector, ROWS)                                                                              \
    static void name(type *restrict c, const type *restrict a, int down, int across, const type *restrict b, int rows, \
                     int inner, int width) {                                                                           \
        enum { COUNT = BLOCK * sizeof(type) / 16 };                                                                    \
        for (int i = 0; i < rows; i += ROWS)                                                                           \
            for (int j = 0; j < width; j += BLOCK) {                                                                   \
                vector sum[ROWS][COUNT] = {0};                                                                         \
                for (int k = 0; k < inner; k++) {                                                                      \
                    const vector *right = (const vector *)(b + (size_t)k * width + j);                                 \
                    for (int r = 0; r < ROWS; r++)                                                                     \
                        for (int p = 0; p < COUNT; p++)                                                                \
                            sum[r][p] += a[(size_t)(i + r) * down + (size_t)k * across] * right[p];                    \
                }                                                                                                      \
                _Pragma("GCC unroll 8") for (int r = 0; r < ROWS; r++)                                                 \
                    _Pragma("GCC unroll 4") for (int p = 0; p < COUNT; p++)                                            \
                        ((vector *)(c + (size_t)(i + r) * width + j))[p] = sum[r][p];                                  \
            }                                                                                                          \
    }

PRODUCT(product_float, float, floats, 8)
PRODUCT(product_double, double, doubles, 4)

/* What belongs to a column: its elements are `scale` times those stored. */
typedef struct {
    vec scale, inverse, square;
} column;

/* A rotation of columns a and b, stored as a -= minus * b, then b += plus * a: scales take the rest of it. */
typedef struct {
    vec minus, plus;
} rotation;

/* Two columns that meet. */
typedef struct {
    column *a, *b;
} couple;

/* Two blocks that meet: columns p, p + 1 and q, q + 1. First p meets q and p + 1 meets q + 1, then crosswise. */
typedef struct {
    int p, q;
} meeting;

/* Room for the work on a group of matrices, and on one of them. */
typedef struct {
    int m, n, width, deep; /* rows and columns; rows of `width` elements, `deep` of them, hold a matrix with margins */
    int size, rounds, games;
    column columns[LARGEST + 2];
    couple neighbours[COUPLES], early[COUPLES * COUPLES], late[COUPLES * COUPLES];
    meeting meetings[COUPLES * COUPLES / 2];
    vec *x; /* R^T, `size` columns of `size` elements */
    double *a, *b, *v;
    float *s, *p, *flat, *left, *right, *change, *out;
} room;

/* Write the matrix to rows of `width` doubles. */
static void load(double *restrict a, const float *restrict q, double inverse, int m, int n, int width) {
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) a[(size_t)i * width + j] = q[i * n + j] * inverse;
}

/* Say which is the largest of n numbers that are not negative; nearly equal ones may pass for equal. */
static int largest(const double *x, int n) {
    int64_t top = 0, bits[LARGEST];
    memcpy(bits, x, sizeof *bits * n); /* sorts as the numbers do; a place fits into the last six bits */
    for (int j = 0; j < n; j++) {
        int64_t key = (bits[j] & ~(int64_t)63) | j;
        top = key > top ? key : top;
    }
    return (int)(top & 63);
}

/* Row p of the Gram matrix less what the first k rows of R make of it. */
static void subtract(double *restrict row, const double *restrict gram, const double *restrict rows, int p, int k,
                     int width) {
    enum { COUNT = BLOCK / 2 };
    for (int j = 0; j < width; j += BLOCK) {
        doubles even[COUNT], odd[COUNT] = {0};
        memcpy(even, gram + (size_t)p * width + j, sizeof even);
        for (int l = 0; l < k; l += 2) { /* row k is still zero */
            const double *first = rows + (size_t)l * width, *second = first + width;
            for (int c = 0; c < COUNT; c++) {
                even[c] -= first[p] * ((const doubles *)(first + j))[c];
                odd[c] -= second[p] * ((const doubles *)(second + j))[c];
            }
        }
        for (int c = 0; c < COUNT; c++) ((doubles *)(row + j))[c] = even[c] + odd[c];
    }
}

/* Find R of A P = Q R from the Gram matrix, row by row, and write R^T to a lane of x. Columns stay in their places. */
static void triangle(const double *gram, double *rows, float *x, int n, int width, int size) {
    double square[LARGEST], waiting[LARGEST], row[LARGEST];
    for (int j = 0; j < n; j++) {
        square[j] = gram[(size_t)j * width + j] + TINY;
        waiting[j] = 1;
    }
    double least = 1e-15 * square[largest(square, n)] + 2 * TINY; /* what is left after this is rounding */
    memset(rows, 0, sizeof *rows * (n + 1) * width);
    for (int k = 0; k < n; k++) {
        int p = largest(square, n);
        double *restrict mine = rows + (size_t)k * width, factor = square[p] > least ? 1 / sqrt(square[p]) : 0;
        subtract(row, gram, rows, p, k, width);
        for (int j = 0; j < n; j++) {
            double value = factor * waiting[j] * row[j], left = square[j] - value * value;
            square[j] = waiting[j] * (left > TINY ? left : TINY);
            mine[j] = value;
        }
        if (factor == 0) mine[p] = LEAST;
        square[p] = waiting[p] = 0;
    }
    for (int k = 0; k < n; k++)
        for (int j = 0; j < n; j++) x[((size_t)k * size + j) * LANES] = (float)(UNIT * rows[(size_t)k * width + j]);
}

/* Write who meets whom in a round robin of blocks, round by round; couples come in full groups of PAIRS. */
static void schedule(room *r) {
    int blocks = r->size / 2, rounds = r->rounds = blocks - 1, games = r->games = blocks / 2;
    column *c = r->columns;
    vec one = 1.0f + (vec){0};
    c[LARGEST] = c[LARGEST + 1] = (column){one, one, one};
    for (int i = 0; i < COUPLES * COUPLES; i++) r->early[i] = r->late[i] = (couple){c + LARGEST, c + LARGEST + 1};
    for (int i = 0; i < COUPLES; i++) r->neighbours[i] = r->early[0];
    for (int i = 0; i < blocks; i++) r->neighbours[i] = (couple){c + 2 * i, c + 2 * i + 1};
    for (int round = 0; round < rounds; round++)
        for (int i = 0, game = 0; i < blocks; i++) {
            int partner = i == rounds ? round * games % rounds : (round + rounds - i) % rounds, p = 2 * i;
            if (partner == i) partner = rounds;
            if (i > partner) continue;
            int q = 2 * partner, at = round * up(2 * games, PAIRS) + 2 * game;
            r->meetings[round * games + game++] = (meeting){p, q};
            r->early[at] = (couple){c + p, c + q};
            r->early[at + 1] = (couple){c + p + 1, c + q + 1};
            r->late[at] = (couple){c + p, c + q + 1};
            r->late[at + 1] = (couple){c + p + 1, c + q};
        }
}

/* Find the rotations that make couples of columns orthogonal from their inner products, as stored, and say in which
   lanes some were far from it. The angle may be rough, but its cosine has to fit its tangent. Divisions and roots would
   wait for each other, so short polynomials and Newton steps take their place, for several couples at a time. */
static __attribute__((noinline)) mask settle(const couple *couples, const vec *products, rotation *turns, int count, mask active) {
    mask rough = {0};
    for (int first = 0; first < count; first += PAIRS) {
        const couple *both = couples + first;
        column a[PAIRS], b[PAIRS];
        vec inner[PAIRS], tangent[PAIRS], cosine[PAIRS], secant[PAIRS];
#pragma GCC unroll 4
        for (int i = 0; i < PAIRS; i++) {
            a[i] = *both[i].a;
            b[i] = *both[i].b;
        }
#pragma GCC unroll 4
        for (int i = 0; i < PAIRS; i++) {
            vec product = products[first + i] * (a[i].scale * b[i].scale);
            rough |= (mask)(product * product > ROUGH * (a[i].square * b[i].square));
            inner[i] = (vec)((mask)product & active);
            vec gap = b[i].square - a[i].square, twice = inner[i] + inner[i];
            vec r = inverse_root(gap * gap + twice * twice), z = magnitude(gap) * r;
            vec t = 0.9899f + z * (0.3232f * z - 0.8081f); /* 1 / (1 + z) */
            t *= 2.0f - (1.0f + z) * t;
            t *= (vec)((mask)(twice * r) ^ ((mask)gap & INT32_MIN));
            vec u = t * t, whole = 1.0f + u, half = 0.5f + 0.5f * u;
            vec c = 1.0f + u * (0.1584f * u - 0.4484f); /* 1 / sqrt(whole), exact at t = 0 */
            c += c * (0.5f - half * c * c);
            c += c * (0.5f - half * c * c);
            tangent[i] = t;
            cosine[i] = c;
            secant[i] = c * whole;
        }
#pragma GCC unroll 4
        for (int i = 0; i < PAIRS; i++) {
            vec t = tangent[i], c = cosine[i], change = t * inner[i];
            turns[first + i] = (rotation){t * (b[i].scale * a[i].inverse), t * (a[i].scale * b[i].inverse) * (c * c)};
            *both[i].a = (column){a[i].scale * c, a[i].inverse * secant[i], a[i].square - change};
            *both[i].b = (column){b[i].scale * secant[i], b[i].inverse * c, b[i].square + change};
        }
    }
    return rough;
}

/* Let neighbours 0 and 1, 2 and 3, ... meet, which the blocks never do otherwise. */
static mask turn_neighbours(room *r, mask active) {
    vec products[COUPLES] = {{0}};
    rotation turns[COUPLES];
    int size = r->size;
    for (int g = 0; g < size / 2; g++) {
        const vec *p = r->x + (size_t)2 * g * size, *q = p + size;
        vec even = {0}, odd = {0};
        for (int i = 0; i < size; i += 2) {
            even += p[i] * q[i];
            odd += p[i + 1] * q[i + 1];
        }
        products[g] = even + odd;
    }
    mask rough = settle(r->neighbours, products, turns, up(size / 2, PAIRS), active);
    for (int g = 0; g < size / 2; g++) {
        vec *restrict p = r->x + (size_t)2 * g * size, *restrict q = p + size;
        rotation turn = turns[g];
        for (int i = 0; i < size; i++) {
            p[i] -= turn.minus * q[i];
            q[i] += turn.plus * p[i];
        }
    }
    return rough;
}

/* Inner products of the columns of two blocks (p, s) and (q, t), but for those that come first. */
typedef struct {
    vec ps, qt, pt, sq;
} products;

static inline products multiply(const vec *restrict p, const vec *restrict q, int size, vec *first) {
    const vec *s = p + size, *t = q + size;
    products sum = {{0}, {0}, {0}, {0}};
    vec pq = {0}, st = {0};
    for (int i = 0; i < size; i++) {
        sum.ps += p[i] * s[i];
        sum.qt += q[i] * t[i];
        sum.pt += p[i] * t[i];
        sum.sq += s[i] * q[i];
        pq += p[i] * q[i];
        st += s[i] * t[i];
    }
    first[0] = pq;
    first[1] = st;
    return sum;
}

/* Turn the columns of two blocks: p with q and s with t, then p with t and s with q. */
static inline void rotate(vec *restrict p, vec *restrict q, int size, const rotation *early, const rotation *late) {
    vec *restrict s = p + size, *restrict t = q + size;
    rotation pq = early[0], st = early[1], pt = late[0], sq = late[1];
    for (int i = 0; i < size; i++) {
        vec a = p[i] - pq.minus * q[i], b = s[i] - st.minus * t[i];
        vec c = q[i] + pq.plus * a, d = t[i] + st.plus * b;
        a -= pt.minus * d;
        b -= sq.minus * c;
        p[i] = a;
        s[i] = b;
        t[i] = d + pt.plus * a;
        q[i] = c + sq.plus * b;
    }
}

/* Let blocks of two columns meet, a round of them at the same time. */
static mask turn_blocks(room *r, int round, mask active) {
    int games = r->games, size = r->size, count = up(2 * games, PAIRS);
    const meeting *meetings = r->meetings + round * games;
    vec inner[COUPLES] = {{0}};
    rotation early[COUPLES], late[COUPLES];
    products rest[COUPLES / 2];
    for (int g = 0; g < games; g++) {
        const vec *p = r->x + (size_t)meetings[g].p * size, *q = r->x + (size_t)meetings[g].q * size;
        rest[g] = multiply(p, q, size, inner + 2 * g);
    }
    mask rough = settle(r->early + round * count, inner, early, count, active);
    for (int g = 0; g < games; g++) { /* what the first two rotations have made of the other two inner products */
        rotation a = early[2 * g], b = early[2 * g + 1];
        vec pt = rest[g].pt - a.minus * rest[g].qt, sq = rest[g].sq - b.minus * rest[g].qt;
        vec both = rest[g].ps - a.minus * rest[g].sq - b.minus * pt;
        inner[2 * g] = pt + b.plus * both;
        inner[2 * g + 1] = sq + a.plus * both;
    }
    rough |= settle(r->late + round * count, inner, late, count, active);
    for (int g = 0; g < games; g++) {
        vec *p = r->x + (size_t)meetings[g].p * size, *q = r->x + (size_t)meetings[g].q * size;
        rotate(p, q, size, early + 2 * g, late + 2 * g);
    }
    return rough;
}

/* Rotate the columns of x until they are orthogonal, and give them the length one. */
static __attribute__((noinline)) void orthogonalise(room *r) {
    mask active = ~(mask){0};
    vec one = 1.0f + (vec){0};
    for (int sweep = 0;; sweep++) {
        for (int j = 0; j < r->size; j++) {
            vec *z = r->x + (size_t)j * r->size, even = {0}, odd = {0}, scale = sweep ? r->columns[j].scale : one;
            for (int i = 0; i < r->size; i += 2) {
                z[i] *= scale;
                z[i + 1] *= scale;
                even += z[i] * z[i];
                odd += z[i + 1] * z[i + 1];
            }
            r->columns[j] = (column){one, one, even + odd};
        }
        if (sweep == SWEEPS || !any(active)) break;
        mask rough = turn_neighbours(r, active);
        for (int round = 0; round < r->rounds; round++) rough |= turn_blocks(r, round, active);
        active &= rough;
    }
    for (int j = 0; j < r->n; j++) {
        vec square = r->columns[j].square, factor = inverse_root(square);
        for (int step = 0; step < 2; step++) factor *= 1.5f - 0.5f * (square * factor * factor);
        for (int i = 0; i < r->n; i++) r->x[(size_t)j * r->size + i] *= factor;
    }
}

/* Find X so that V (I + X) has orthogonal columns and A V (I + X) too, to first order, from s = (A V)^T A V and
   p = V^T V. Write I + X and say whether its square can be neglected. */
static int correct(float *restrict change, const float *restrict s, const float *restrict p, int n, int width) {
    float square[LARGEST], inverse[LARGEST], left[LARGEST], top = 0;
    int32_t bits, most = 0; /* sorts as the numbers do that have these bits */
    for (int j = 0; j < n; j++) {
        square[j] = s[(size_t)j * width + j] / p[(size_t)j * width + j];
        top = square[j] > top ? square[j] : top;
    }
    for (int j = 0; j < n; j++) inverse[j] = 1 / sqrtf(square[j] + RESOLVED * top + FLT_MIN);
    for (int i = 0; i < n; i++) {
        float *row = change + (size_t)i * width;
        for (int j = 0; j < n; j++) {
            size_t at = (size_t)i * width + j;
            float rest = s[at] - square[j] * p[at], gap = square[j] - square[i];
            float cosine = fabsf(rest) * (inverse[i] * inverse[j]);
            /* where values are close, any orthogonal directions will do if A V is as good as orthogonal already */
            int near = !(fabsf(rest) < SMALL * fabsf(gap));
            float value = near ? -0.5f * p[at] : rest / gap;
            row[j] = value;
            left[j] = fabsf(value) + (near ? cosine * (SMALL / ORTHOGONAL) : cosine);
        }
        left[i] = 0;
        row[i] += 1.5f;
        for (int j = 0; j < n; j++) {
            memcpy(&bits, left + j, sizeof bits);
            most = bits > most ? bits : most;
        }
    }
    memcpy(&top, &most, sizeof top);
    return top < SMALL;
}

/* Find the power of two that makes the largest element about one, and zero where an element is not finite. */
static double power_of_two(const float *q, int count) {
    uint32_t largest = 0;
    for (int i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, q + i, sizeof bits);
        bits &= INT32_MAX;
        largest = bits > largest ? bits : largest;
    }
    float value;
    memcpy(&value, &largest, sizeof value);
    if (largest >= 0x7f800000u) return 0;
    return largest ? ldexp(1, ilogbf(value)) : 1;
}

static double raised(double x, double exponent) { return exponent == -0.25 ? 1 / sqrt(sqrt(x)) : pow(x, exponent); }

static void transpose(float *restrict out, const float *restrict x, int n, int width) {
    for (int j = 0; j < n; j++)
        for (int k = 0; k < n; k++) out[(size_t)j * width + k] = x[(size_t)k * width + j];
}

/* Copy between rows of n and rows of `width`. */
static void widen(float *restrict wide, const float *restrict x, int rows, int n, int width) {
    for (int i = 0; i < rows; i++) memcpy(wide + (size_t)i * width, x + (size_t)i * n, sizeof *x * n);
}

static void narrow(float *restrict x, const float *restrict wide, int rows, int n, int width) {
    for (int i = 0; i < rows; i++) memcpy(x + (size_t)i * n, wide + (size_t)i * width, sizeof *x * n);
}

/* Round to single precision. */
static void shorten(float *restrict single, const double *restrict x, int count) {
    for (int i = 0; i < count; i++) single[i] = (float)x[i];
}

/* Turn columns i and j by an angle. */
static void turn(double *x, int i, int j, double cosine, double sine, int rows, int width) {
    for (int k = 0; k < rows; k++, x += width) {
        double a = x[i], b = x[j];
        x[i] = cosine * a - sine * b;
        x[j] = sine * a + cosine * b;
    }
}

/* Rotate columns of A V, and V with them, until they are orthogonal, in double precision: for matrices near to a lower
   rank, whose small values the Gram matrix has lost. */
static void rotate_slowly(room *r) {
    int width = r->width, turned = 1;
    for (int sweep = 0; sweep < SWEEPS && turned; sweep++) {
        turned = 0;
        for (int i = 0; i < r->n; i++)
            for (int j = i + 1; j < r->n; j++) {
                double ii = 0, jj = 0, ij = 0;
                for (const double *b = r->b; b < r->b + r->m * width; b += width) {
                    ii += b[i] * b[i];
                    jj += b[j] * b[j];
                    ij += b[i] * b[j];
                }
                if (ij * ij <= 1e-18 * ii * jj) continue;
                double gap = jj - ii, tangent = 2 * ij / (fabs(gap) + sqrt(gap * gap + 4 * ij * ij));
                double cosine = 1 / sqrt(1 + tangent * tangent), sine = gap < 0 ? -tangent * cosine : tangent * cosine;
                turn(r->b, i, j, cosine, sine, r->m, width);
                turn(r->v, i, j, cosine, sine, r->n, width);
                turned = 1;
            }
    }
}

/* V += V X, from I + X, and B = A V. */
static void improve(room *r) {
    for (int j = 0; j < r->n; j++) r->change[(size_t)j * r->width + j] -= 1;
    product_float(r->out, r->flat, r->width, 1, r->change, r->width, r->n, r->width);
    for (int i = 0; i < r->n * r->width; i++) r->v[i] += r->out[i];
    product_double(r->b, r->a, r->width, 1, r->v, r->deep, r->n, r->width);
}

/* Take the directions of one lane, correct them, and leave V^T in `right` and A V in `left`. */
static __attribute__((noinline)) void direct(room *r, int lane, const float *q, double scale) {
    int m = r->m, n = r->n, width = r->width;
    const float *x = (const float *)r->x + lane;
    load(r->a, q, 1 / scale, m, n, width);
    for (int k = 0; k < n; k++)
        for (int j = 0; j < n; j++) r->v[(size_t)k * width + j] = x[((size_t)j * r->size + k) * LANES];
    product_double(r->b, r->a, width, 1, r->v, r->deep, n, width);
    for (int pass = 0; pass < PASSES; pass++) {
        shorten(r->left, r->b, m * width);
        shorten(r->flat, r->v, n * width);
        product_float(r->s, r->left, 1, width, r->left, width, m, width);
        product_float(r->p, r->flat, 1, width, r->flat, width, n, width);
        if (correct(r->change, r->s, r->p, n, width) || pass + 1 == PASSES) break;
        improve(r);
        if (pass) rotate_slowly(r); /* for most matrices the correction alone is enough */
    }
    product_float(r->s, r->flat, width, 1, r->change, width, n, width);
    transpose(r->right, r->s, n, width);
    product_float(r->out, r->left, width, 1, r->change, r->deep, n, width);
    float *spare = r->left;
    r->left = r->out;
    r->out = spare;
}

/* From the directions of one lane to the result and to what the backward pass needs. */
static void finish(room *r, float *out, float *turned, float *axes, double *values, double scale, double exponent,
                   double resolution, double smallest) {
    int m = r->m, n = r->n, width = r->width;
    float factor[LARGEST] = {0}, square[LARGEST] = {0}, *left = r->left;
    narrow(turned, left, m, n, width);
    narrow(axes, r->right, n, n, width);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < width; j++) square[j] += left[(size_t)i * width + j] * left[(size_t)i * width + j];
    double fourth = 0;
    for (int j = 0; j < n; j++) fourth += (double)square[j] * square[j];
    double bend = resolution * fmax(sqrt(sqrt(fourth)), smallest / scale);
    double whole = raised(scale * scale, exponent) * scale;
    for (int j = 0; j < n; j++) {
        values[j] = square[j] + bend * bend;
        factor[j] = (float)(raised(values[j], exponent) * whole);
    }
    values[n] = scale;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < width; j++) left[(size_t)i * width + j] *= factor[j];
    product_float(r->out, left, width, 1, r->right, r->deep, n, width);
    narrow(out, r->out, m, n, width);
}

/* Divide one piece of zeros among the arrays. Returns it, to be freed, or NULL without memory. */
static void *furnish(room *r, int m, int n) {
    *r = (room){.m = m, .n = n, .width = up(n, BLOCK), .deep = up(m, BLOCK), .size = up(n, 4)};
    size_t area = (size_t)r->deep * r->width + 32; /* a margin keeps arrays from the same places of the cache */
    size_t group = sizeof(vec) * r->size * r->size;
    char *base = calloc(group + 3 * sizeof(double) * area + 7 * sizeof(float) * area + 64, 1);
    if (!base) return NULL;
    r->x = (vec *)(base + (64 - (uintptr_t)base % 64));
    double **doubled[] = {&r->a, &r->b, &r->v};
    float **single[] = {&r->s, &r->p, &r->flat, &r->left, &r->right, &r->change, &r->out};
    double *next = (double *)((char *)r->x + group);
    for (int i = 0; i < 3; i++, next += area) *doubled[i] = next;
    for (int i = 0; i < 7; i++) *single[i] = (float *)next + i * area;
    schedule(r);
    return base;
}

/* q, out and turned: count, m, n with m >= n; axes: count, n, n; values: count, n + 1. Returns 0, or 1 without memory. */
int svpn_forward(const float *q, float *out, float *turned, float *axes, double *values, int64_t count, int m, int n,
                 double exponent, double resolution, double smallest) {
    room r;
    void *base = furnish(&r, m, n);
    if (!base) return 1;
    for (int64_t first = 0; first < count; first += LANES) {
        double scale[LANES];
        for (int lane = 0; lane < LANES; lane++) {
            const float *mine = q + (size_t)(first + lane) * m * n;
            scale[lane] = first + lane < count ? power_of_two(mine, m * n) : 0;
            memset(r.b, 0, sizeof *r.b * r.width * r.width);
            if (scale[lane] > 0) {
                load(r.a, mine, 1 / scale[lane], m, n, r.width);
                product_double(r.b, r.a, 1, r.width, r.a, r.width, m, r.width);
            }
            triangle(r.b, r.v, (float *)r.x + lane, n, r.width, r.size);
        }
        orthogonalise(&r);
        for (int lane = 0; lane < LANES && first + lane < count; lane++) {
            size_t index = first + lane, square = (size_t)n * n, whole = (size_t)m * n;
            float *its_out = out + index * whole, *its_turned = turned + index * whole;
            float *its_axes = axes + index * square;
            double *its_values = values + index * (n + 1);
            if (scale[lane] > 0) {
                direct(&r, lane, q + index * whole, scale[lane]);
                finish(&r, its_out, its_turned, its_axes, its_values, scale[lane], exponent, resolution, smallest);
                continue;
            }
            for (size_t i = 0; i < whole; i++) its_out[i] = its_turned[i] = NAN;
            for (size_t i = 0; i < square; i++) its_axes[i] = NAN;
            for (int i = 0; i <= n; i++) its_values[i] = NAN;
        }
    }
    free(base);
    return 0;
}

/* Divided differences of x**exponent: (f(x_i) - f(x_j)) / (x_i - x_j), and the slope where two are almost equal. */
static void divide(const double *x, double exponent, float *restrict out, int n, int width) {
    if (exponent == -0.25) { /* alpha = 1/2: the difference divides out */
        float fourth[LARGEST];
        for (int i = 0; i < n; i++) fourth[i] = sqrtf(sqrtf((float)x[i]));
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                float a = fourth[i], b = fourth[j];
                out[(size_t)i * width + j] = -1.0f / ((a + b) * (a * a + b * b) * (a * b));
            }
        return;
    }
    double root[LARGEST], slope[LARGEST];
    for (int i = 0; i < n; i++) {
        root[i] = pow(x[i], exponent);
        slope[i] = pow(x[i], exponent / 2 - 0.5);
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++) {
            double gap = x[i] - x[j];
            double value = fabs(gap) < 1e-5 * x[i] ? exponent * slope[i] * slope[j] : (root[i] - root[j]) / gap;
            out[(size_t)i * width + j] = (float)value;
        }
}

/* grad and out: count, m, n; the rest as svpn_forward left it. Returns 0, or 1 without memory. */
int svpn_backward(const float *grad, const float *turned, const float *axes, const double *values, float *out,
                  int64_t count, int m, int n, double exponent) {
    int width = up(n, BLOCK), deep = up(m, BLOCK);
    size_t area = (size_t)deep * width + 32;
    char *base = calloc(sizeof(float) * 7 * area + 64, 1);
    if (!base) return 1;
    float *g = (float *)(base + (64 - (uintptr_t)base % 64)), *u = g + area, *v = u + area, *across = v + area;
    float *right = across + area, *inner = right + area, *both = inner + area;
    for (int64_t index = 0; index < count; index++) {
        size_t at = (size_t)index * m * n;
        const double *x = values + (size_t)index * (n + 1);
        widen(g, grad + at, m, n, width);
        widen(u, turned + at, m, n, width);
        widen(across, axes + (size_t)index * n * n, n, n, width);
        transpose(v, across, n, width);
        product_float(right, g, width, 1, v, deep, n, width);
        product_float(inner, u, 1, width, right, width, m, width);
        divide(x, exponent, v, n, width);
        for (int i = 0; i < n * width; i++) inner[i] *= v[i];
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                both[(size_t)i * width + j] = inner[(size_t)i * width + j] + inner[(size_t)j * width + i];
        product_float(g, u, width, 1, both, deep, n, width);
        float factor[LARGEST] = {0}, whole = (float)raised(x[n] * x[n], exponent);
        for (int j = 0; j < n; j++) factor[j] = (float)raised(x[j], exponent);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < width; j++) {
                size_t here = (size_t)i * width + j;
                g[here] = whole * (g[here] + factor[j] * right[here]);
            }
        product_float(right, g, width, 1, across, deep, n, width);
        narrow(out + at, right, m, n, width);
    }
    free(base);
    return 0;
}
