/* svPN on the CPU: U diag(s**alpha) V^T of many small matrices, by one-sided Jacobi with a matrix in each vector lane.

   A P = Q R by Householder reflections with pivoting; columns of R^T are then rotated in pairs until they are orthogonal:
   R^T W = V diag(s), so P V are the right singular vectors of A, and neither Q nor W is needed. Everything up to here is
   in double precision, since small singular values are about to be enlarged. All lanes do the same steps and a lane
   that has converged is turned no further, so a result depends on its own matrix alone. */

#define _POSIX_C_SOURCE 200112L
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* matrices at a time: as many as a vector register takes */
#if defined(__AVX512F__)
enum { LANES = 8 };
#elif defined(__AVX__)
enum { LANES = 4 };
#else
enum { LANES = 2 };
#endif

enum { ROWS = 4, BLOCK = 8, SWEEPS = 30 };

/* Columns are orthogonal below the fine bound on their squared cosine. A sweep leaves about the largest cosine times the
   largest tangent behind, so if both were below these bounds in a sweep, it was the last. */
static const double FINE = 1e-26, ROUGH = 1e-12, WIDE = 1e-5;

typedef double vec __attribute__((vector_size(8 * LANES)));
typedef int64_t mask __attribute__((vector_size(8 * LANES)));
typedef float floats __attribute__((vector_size(16)));
typedef double doubles __attribute__((vector_size(16)));

static int up(int size, int step) { return (size + step - 1) / step * step; }

static vec choose(mask yes, vec a, vec b) { return (vec)((yes & (mask)a) | (~yes & (mask)b)); }

static vec magnitude(vec a) { return (vec)((mask)a & INT64_MAX); }

static vec root(vec a) {
    for (int lane = 0; lane < LANES; lane++) a[lane] = sqrt(a[lane]);
    return a;
}

static int64_t any(mask yes) {
    int64_t found = 0;
    for (int lane = 0; lane < LANES; lane++) found |= yes[lane];
    return found;
}

/* Inner product of two columns; `rows` is a multiple of four. */
static inline vec dot(const vec *a, const vec *b, int rows) {
    vec s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (int i = 0; i < rows; i += 4) {
        s0 += a[i] * b[i];
        s1 += a[i + 1] * b[i + 1];
        s2 += a[i + 2] * b[i + 2];
        s3 += a[i + 3] * b[i + 3];
    }
    return (s0 + s1) + (s2 + s3);
}

/* Bring the longest column of those from k on to place k, in each lane its own. */
static void pivot(vec *x, vec *square, int64_t *order, int k, int m, int n, int rows) {
    for (int lane = 0; lane < LANES; lane++) {
        int best = k;
        for (int j = k + 1; j < n; j++)
            if (square[j][lane] > square[best][lane]) best = j;
        if (best == k) continue;
        double kept = square[k][lane];
        square[k][lane] = square[best][lane];
        square[best][lane] = kept;
        int64_t place = order[k * LANES + lane];
        order[k * LANES + lane] = order[best * LANES + lane];
        order[best * LANES + lane] = place;
        double *a = (double *)(x + (size_t)k * rows) + lane, *b = (double *)(x + (size_t)best * rows) + lane;
        for (int i = 0; i < m; i++) {
            double value = a[i * LANES];
            a[i * LANES] = b[i * LANES];
            b[i * LANES] = value;
        }
    }
}

/* Reduce x, columns of `rows` vectors, to R of A P = Q R and write R^T to `lower`, columns of `size` vectors. */
static void triangle(vec *x, vec *lower, vec *work, int64_t *order, int m, int n, int rows, int size, double least) {
    vec *square = work, *v = work + n;
    for (int j = 0; j < n; j++) {
        square[j] = dot(x + (size_t)j * rows, x + (size_t)j * rows, rows);
        for (int lane = 0; lane < LANES; lane++) order[j * LANES + lane] = j;
    }
    for (int k = 0; k < n; k++) {
        pivot(x, square, order, k, m, n, rows);
        vec *column = x + (size_t)k * rows;
        int start = k / 4 * 4;
        for (int i = start; i < rows; i++) v[i] = i < k ? (vec){0} : column[i];
        vec total = dot(v + start, v + start, rows - start), length = root(total);
        vec diagonal = choose(v[k] > 0.0, -length, length);
        vec factor = total + magnitude(v[k]) * length;
        factor = choose(factor > 0.0, 1.0 / factor, (vec){0});
        v[k] -= diagonal;
        for (int j = k + 1; j < n; j++) {
            vec *other = x + (size_t)j * rows;
            vec share = factor * dot(v + start, other + start, rows - start);
            for (int i = start; i < rows; i++) other[i] -= share * v[i];
            square[j] -= other[k] * other[k];
        }
        /* a full set of directions V needs columns that are not zero */
        column[k] = choose(magnitude(diagonal) < least, least + (vec){0}, diagonal);
    }
    memset(lower, 0, sizeof(vec) * up(n, 2) * size);
    for (int j = 0; j < n; j++)
        for (int k = 0; k <= j; k++) lower[(size_t)k * size + j] = x[(size_t)j * rows + k];
}

/* Write the pairs (p < q) of a round robin, round by round: everyone meets everyone once. */
static void schedule(int *pairs, int n) {
    int players = n + n % 2, rounds = players - 1;
    for (int turn = 0; turn < rounds; turn++)
        for (int i = 0; i < players; i++) {
            int partner = i == players - 1 ? turn * (players / 2) % rounds : (turn + rounds - i) % rounds;
            if (partner == i) partner = players - 1;
            if (i < partner && partner < n) {
                *pairs++ = i;
                *pairs++ = partner;
            }
        }
}

/* Find the tangents of the angles that make pairs of columns orthogonal, from the differences of their squared lengths
   and from their inner products, and the cosines. The angle may be rough, but a cosine has to fit its tangent. */
static void angles(const double *restrict gap, const double *restrict inner, float *restrict rough,
                   double *restrict tangent, double *restrict cosine, int count) {
    for (int i = 0; i < count; i++) {
        /* lengths are between 1e-10 and 100 or so; this factor keeps the squares of their squares in range */
        float width = (float)(gap[i] * 0x1p33), height = (float)(inner[i] * 0x1p34), size = fabsf(width);
        float t = height / (size + sqrtf(size * size + height * height));
        t = height != 0.0f ? copysignf(1.0f, width) * t : 0.0f;
        rough[i] = 1.0f / sqrtf(1.0f + t * t);
        tangent[i] = t;
    }
    for (int i = 0; i < count; i++) {
        double c = rough[i];
        cosine[i] = c * (1.5 - 0.5 * (1.0 + tangent[i] * tangent[i]) * (c * c));
    }
}

/* What belongs to a column: its elements are `scale` times those stored. */
typedef struct {
    vec scale, inverse, square;
} column;

/* A rotation of columns a and b, stored as a -= minus * b, then b += plus * a: scales take the rest of it. */
typedef struct {
    vec minus, plus;
} rotation;

/* Columns p, p + 1 meet q, q + 1: first p with q and p + 1 with q + 1, then crosswise. */
typedef struct {
    int p, q;
    vec pp, qq, pq[4];
    rotation turns[4];
} meeting;

typedef struct {
    column *columns;
    meeting *meetings;
    vec *inner, *gap, *tangent, *cosine;
    float *rough;
} round_room;

/* Put a pair where `angles` finds it, with no inner product in lanes that need no rotation; say in which lanes it is
   further from orthogonal than the rough bound. */
static inline mask prepare(const round_room *r, int index, int p, int q, vec product, mask active) {
    const column *a = r->columns + p, *b = r->columns + q;
    vec inner = product * (a->scale * b->scale), part = inner * inner, both = a->square * b->square;
    r->gap[index] = b->square - a->square;
    r->inner[index] = (vec)((mask)inner & active & (mask)(part > FINE * both));
    return (mask)(part > ROUGH * both);
}

/* Say in which lanes two columns are not orthogonal. */
static inline mask oblique(const column *a, const column *b, vec product) {
    vec inner = product * (a->scale * b->scale);
    return (mask)(inner * inner > FINE * (a->square * b->square));
}

static inline rotation settle(const round_room *r, int index, int p, int q, mask *rough) {
    column *a = r->columns + p, *b = r->columns + q;
    vec t = r->tangent[index], c = r->cosine[index], secant = c + c * (t * t), change = t * r->inner[index];
    *rough |= (mask)(magnitude(t) > WIDE);
    rotation turn = {t * (b->scale * a->inverse), t * (a->scale * b->inverse) * (c * c)};
    *a = (column){a->scale * c, a->inverse * secant, a->square - change};
    *b = (column){b->scale * secant, b->inverse * c, b->square + change};
    return turn;
}

static inline void find_angles(const round_room *r, int count) {
    angles((double *)r->gap, (double *)r->inner, r->rough, (double *)r->tangent, (double *)r->cosine, count * LANES);
}

/* Take the inner products of the four columns of a meeting; `rows` is even. */
static inline void multiply(meeting *now, const vec *x, int rows) {
    const vec *p = x + (size_t)now->p * rows, *s = p + rows, *q = x + (size_t)now->q * rows, *t = q + rows;
    vec ps = {0}, qt = {0}, pq = {0}, st = {0}, pt = {0}, sq = {0};
    for (int i = 0; i < rows; i++) {
        ps += p[i] * s[i];
        qt += q[i] * t[i];
        pq += p[i] * q[i];
        st += s[i] * t[i];
        pt += p[i] * t[i];
        sq += s[i] * q[i];
    }
    now->pp = ps;
    now->qq = qt;
    now->pq[0] = pq;
    now->pq[1] = st;
    now->pq[2] = pt;
    now->pq[3] = sq;
}

/* Turn the four columns of a meeting, all four rotations at once. */
static inline void rotate(const meeting *now, vec *x, int rows) {
    vec *restrict p = x + (size_t)now->p * rows, *restrict s = p + rows;
    vec *restrict q = x + (size_t)now->q * rows, *restrict t = q + rows;
    rotation r0 = now->turns[0], r1 = now->turns[1], r2 = now->turns[2], r3 = now->turns[3];
    for (int i = 0; i < rows; i++) {
        vec a = p[i] - r0.minus * q[i], b = s[i] - r1.minus * t[i];
        vec c = q[i] + r0.plus * a, d = t[i] + r1.plus * b;
        a -= r2.minus * d;
        b -= r3.minus * c;
        p[i] = a;
        s[i] = b;
        t[i] = d + r2.plus * a;
        q[i] = c + r3.plus * b;
    }
}

/* Let neighbours 0 and 1, 2 and 3, ... meet, which the blocks never do otherwise. */
static mask turn_neighbours(vec *x, const round_room *r, int columns, int size, mask active) {
    mask rough = {0};
    for (int j = 0; j < columns; j += 2) {
        vec product = dot(x + (size_t)j * size, x + (size_t)(j + 1) * size, size);
        rough |= prepare(r, j / 2, j, j + 1, product, active);
    }
    find_angles(r, columns / 2);
    for (int j = 0; j < columns; j += 2) {
        rotation turn = settle(r, j / 2, j, j + 1, &rough);
        vec *restrict p = x + (size_t)j * size, *restrict q = p + size;
        for (int i = 0; i < size; i++) {
            p[i] -= turn.minus * q[i];
            q[i] += turn.plus * p[i];
        }
    }
    return rough;
}

/* Let blocks of two columns meet, a round of pairs of blocks at the same time. */
static mask turn_blocks(vec *x, const round_room *r, const int *pairs, int games, int size, mask active) {
    mask rough = {0};
    int count = 0;
    for (int g = 0; g < games; g++) {
        meeting *now = r->meetings + count;
        now->p = 2 * pairs[2 * g];
        now->q = 2 * pairs[2 * g + 1];
        multiply(now, x, size);
        rough |= prepare(r, 2 * count, now->p, now->q, now->pq[0], active);
        rough |= prepare(r, 2 * count + 1, now->p + 1, now->q + 1, now->pq[1], active);
        const column *p = r->columns + now->p, *q = r->columns + now->q;
        mask turn = (mask)(r->inner[2 * count] != 0.0) | (mask)(r->inner[2 * count + 1] != 0.0);
        turn |= active & (oblique(p, q + 1, now->pq[2]) | oblique(p + 1, q, now->pq[3]));
        if (any(turn)) count++;
    }
    find_angles(r, 2 * count);
    for (int g = 0; g < count; g++) {
        meeting *now = r->meetings + g;
        rotation a = now->turns[0] = settle(r, 2 * g, now->p, now->q, &rough);
        rotation b = now->turns[1] = settle(r, 2 * g + 1, now->p + 1, now->q + 1, &rough);
        /* what the first two rotations have made of the inner products of the other two */
        vec first = now->pq[2] - a.minus * now->qq, second = now->pq[3] - b.minus * now->qq;
        vec both = now->pp - a.minus * now->pq[3] - b.minus * first;
        now->pq[2] = first + b.plus * both;
        now->pq[3] = second + a.plus * both;
    }
    for (int g = 0; g < count; g++) {
        const meeting *now = r->meetings + g;
        rough |= prepare(r, 2 * g, now->p, now->q + 1, now->pq[2], active);
        rough |= prepare(r, 2 * g + 1, now->p + 1, now->q, now->pq[3], active);
    }
    find_angles(r, 2 * count);
    for (int g = 0; g < count; g++) {
        meeting *now = r->meetings + g;
        now->turns[2] = settle(r, 2 * g, now->p, now->q + 1, &rough);
        now->turns[3] = settle(r, 2 * g + 1, now->p + 1, now->q, &rough);
    }
    for (int g = 0; g < count; g++) rotate(r->meetings + g, x, size);
    return rough;
}

/* Rotate the columns of x, an even number of them, until they are orthogonal. */
static void orthogonalise(vec *x, const round_room *r, const int *pairs, int columns, int size) {
    int blocks = columns / 2, games = blocks / 2, rounds = games ? blocks - 1 + blocks % 2 : 0;
    mask active = ~(mask){0};
    vec one = 1.0 + (vec){0};
    for (int sweep = 0; sweep < SWEEPS && any(active); sweep++) {
        for (int j = 0; j < columns; j++) {
            vec *z = x + (size_t)j * size;
            if (sweep)
                for (int i = 0; i < size; i++) z[i] *= r->columns[j].scale;
            r->columns[j] = (column){one, one, dot(z, z, size)};
        }
        mask rough = turn_neighbours(x, r, columns, size, active);
        for (int round = 0; round < rounds; round++)
            rough |= turn_blocks(x, r, pairs + 2 * games * round, games, size, active);
        active &= rough;
    }
}

/* C = A B with B and C in rows of `width`, a multiple of BLOCK; element (i, k) of A is a[i * down + k * across]. */
#define PRODUCT(name, type, vector)                                                                                    \
    static void name(type *restrict c, const type *restrict a, int down, int across, const type *restrict b, int rows,   \
                     int inner, int width) {                                                                           \
        enum { PER = 16 / sizeof(type), COUNT = BLOCK / PER };                                                         \
        for (int i = 0; i < rows; i += ROWS)                                                                           \
            for (int j = 0; j < width; j += BLOCK) {                                                                   \
                vector sum[ROWS][COUNT] = {0};                                                                         \
                for (int k = 0; k < inner; k++) {                                                                      \
                    const vector *right = (const vector *)(b + (size_t)k * width + j);                                 \
                    for (int r = 0; r < ROWS; r++)                                                                     \
                        for (int p = 0; p < COUNT; p++)                                                                \
                            sum[r][p] += a[(size_t)(i + r) * down + (size_t)k * across] * right[p];                    \
                }                                                                                                      \
                for (int r = 0; r < ROWS; r++) memcpy(c + (size_t)(i + r) * width + j, sum[r], sizeof sum[r]);         \
            }                                                                                                          \
    }

PRODUCT(product_float, float, floats)
PRODUCT(product_double, double, doubles)

/* One piece of memory, handed out in parts that are aligned to a cache line. */
typedef struct {
    char *base;
    size_t used;
} arena;

static void *part(arena *memory, size_t bytes) {
    void *start = memory->base ? memory->base + memory->used : NULL;
    memory->used += (bytes + 63) / 64 * 64;
    return start;
}

typedef struct {
    int m, n, even, rows, size, width, deep;
    vec *x, *lower, *work;
    int64_t *order;
    int *pairs;
    round_room round;
    double *a, *v, *turned;
    float *left, *right, *out;
} room;

static void lay_out(room *r, arena *memory) {
    r->even = up(r->n, 2);
    r->rows = up(r->m, 4);
    r->size = up(r->n, 4);
    r->width = up(r->n, BLOCK);
    r->deep = up(r->m, ROWS);
    r->x = part(memory, sizeof(vec) * r->n * r->rows);
    r->lower = part(memory, sizeof(vec) * r->even * r->size);
    r->work = part(memory, sizeof(vec) * (r->n + r->rows));
    r->order = part(memory, sizeof(int64_t) * r->n * LANES);
    r->pairs = part(memory, sizeof(int) * (r->n + 1) * (r->n + 1));
    r->round.columns = part(memory, sizeof(column) * r->even);
    r->round.meetings = part(memory, sizeof(meeting) * r->even);
    r->round.inner = part(memory, sizeof(vec) * r->even);
    r->round.gap = part(memory, sizeof(vec) * r->even);
    r->round.tangent = part(memory, sizeof(vec) * r->even);
    r->round.cosine = part(memory, sizeof(vec) * r->even);
    r->round.rough = part(memory, sizeof(float) * LANES * r->even);
    r->a = part(memory, sizeof(double) * r->deep * r->width);
    r->v = part(memory, sizeof(double) * r->width * r->width);
    r->turned = part(memory, sizeof(double) * r->deep * r->width);
    r->left = part(memory, sizeof(float) * r->deep * r->width);
    r->right = part(memory, sizeof(float) * r->width * r->width);
    r->out = part(memory, sizeof(float) * r->deep * r->width);
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

/* From the directions of one lane to the result and to what the backward pass needs. */
static void finish(const room *r, int lane, const float *q, double scale, float *out, float *turned, float *axes,
                   double *values, double exponent, double resolution, double smallest) {
    int m = r->m, n = r->n, width = r->width;
    double inverse = 1 / scale;
    for (int j = 0; j < n; j++) {
        const double *column = (const double *)(r->lower + (size_t)j * r->size) + lane;
        double square = 0;
        for (int k = 0; k < n; k++) square += column[k * LANES] * column[k * LANES];
        double factor = 1 / sqrt(square);
        for (int k = 0; k < n; k++) {
            double value = factor * column[k * LANES];
            int64_t place = r->order[k * LANES + lane];
            r->v[place * width + j] = value;
            r->right[(size_t)j * width + place] = axes[j * n + place] = (float)value;
        }
    }
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) r->a[(size_t)i * width + j] = q[i * n + j] * inverse;
    product_double(r->turned, r->a, width, 1, r->v, r->deep, n, width);
    double fourth = 0;
    for (int j = 0; j < n; j++) values[j] = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) values[j] += r->turned[(size_t)i * width + j] * r->turned[(size_t)i * width + j];
    for (int j = 0; j < n; j++) fourth += values[j] * values[j];
    double bend = resolution * fmax(sqrt(sqrt(fourth)), smallest / scale);
    double factor[n], whole = raised(scale * scale, exponent) * scale;
    for (int j = 0; j < n; j++) {
        values[j] += bend * bend;
        factor[j] = raised(values[j], exponent) * whole;
    }
    values[n] = scale;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float value = turned[i * n + j] = (float)r->turned[(size_t)i * width + j];
            r->left[(size_t)i * width + j] = value * (float)factor[j];
        }
    product_float(r->out, r->left, width, 1, r->right, r->deep, n, width);
    for (int i = 0; i < m; i++) memcpy(out + (size_t)i * n, r->out + (size_t)i * width, sizeof(float) * n);
}

/* q, out and turned: count, m, n with m >= n; axes: count, n, n; values: count, n + 1. Returns 0, or 1 without memory. */
int svpn_forward(const float *q, float *out, float *turned, float *axes, double *values, int64_t count, int m, int n,
                 double exponent, double resolution, double smallest) {
    room r = {.m = m, .n = n};
    arena memory = {NULL, 0};
    lay_out(&r, &memory);
    char *base = calloc(memory.used + 64, 1);
    if (!base) return 1;
    memory = (arena){base + (64 - (uintptr_t)base % 64), 0};
    lay_out(&r, &memory);
    schedule(r.pairs, r.even / 2);
    for (int64_t first = 0; first < count; first += LANES) {
        double scale[LANES];
        memset(r.x, 0, sizeof(vec) * n * r.rows);
        for (int lane = 0; lane < LANES; lane++) {
            const float *mine = q + (size_t)(first + lane) * m * n;
            scale[lane] = first + lane < count ? power_of_two(mine, m * n) : 0;
            if (scale[lane] == 0) continue;
            double inverse = 1 / scale[lane];
            for (int i = 0; i < m; i++)
                for (int j = 0; j < n; j++)
                    ((double *)(r.x + (size_t)j * r.rows + i))[lane] = mine[i * n + j] * inverse;
        }
        triangle(r.x, r.lower, r.work, r.order, m, n, r.rows, r.size, 1e-10);
        orthogonalise(r.lower, &r.round, r.pairs, r.even, r.size);
        for (int lane = 0; lane < LANES && first + lane < count; lane++) {
            size_t index = first + lane, square = (size_t)n * n, whole = (size_t)m * n;
            float *its_out = out + index * whole, *its_turned = turned + index * whole, *its_axes = axes + index * square;
            double *its_values = values + index * (n + 1);
            if (scale[lane] > 0) {
                finish(&r, lane, q + index * whole, scale[lane], its_out, its_turned, its_axes, its_values, exponent,
                       resolution, smallest);
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
static void divide(const double *x, double exponent, float *out, int n, int width, double *root) {
    if (exponent == -0.25) { /* alpha = 1/2: the difference divides out */
        float fourth[n];
        for (int i = 0; i < n; i++) fourth[i] = (float)sqrt(sqrt(x[i]));
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                float a = fourth[i], b = fourth[j];
                out[(size_t)i * width + j] = -1.0f / ((a + b) * (a * a + b * b) * (a * b));
            }
        return;
    }
    double *slope = root + n;
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
    int width = up(n, BLOCK), deep = up(m, ROWS), tall = up(n, ROWS);
    size_t wide = (size_t)deep * width, square = (size_t)width * width;
    float *base = NULL;
    size_t bytes = sizeof(float) * (4 * wide + 5 * square) + sizeof(double) * 2 * n;
    if (posix_memalign((void **)&base, 64, bytes)) return 1;
    memset(base, 0, bytes);
    float *g = base, *u = g + wide, *right = u + wide, *total = right + wide;
    float *v = total + wide, *across = v + square, *quotient = across + square, *inner = quotient + square;
    float *both = inner + square;
    double *powers = (double *)(both + square);
    for (int64_t index = 0; index < count; index++) {
        const float *its_grad = grad + (size_t)index * m * n, *its_turned = turned + (size_t)index * m * n;
        const float *its_axes = axes + (size_t)index * n * n;
        const double *x = values + (size_t)index * (n + 1);
        float *its_out = out + (size_t)index * m * n;
        for (int i = 0; i < m; i++) {
            memcpy(g + (size_t)i * width, its_grad + i * n, sizeof(float) * n);
            memcpy(u + (size_t)i * width, its_turned + i * n, sizeof(float) * n);
        }
        for (int j = 0; j < n; j++) {
            memcpy(across + (size_t)j * width, its_axes + j * n, sizeof(float) * n);
            for (int k = 0; k < n; k++) v[(size_t)k * width + j] = its_axes[j * n + k];
        }
        product_float(right, g, width, 1, v, deep, n, width);
        product_float(inner, u, 1, width, right, tall, m, width);
        divide(x, exponent, quotient, n, width, powers);
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) inner[(size_t)i * width + j] *= quotient[(size_t)i * width + j];
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                both[(size_t)i * width + j] = inner[(size_t)i * width + j] + inner[(size_t)j * width + i];
        product_float(total, u, width, 1, both, deep, n, width);
        float factor[n];
        double whole = raised(x[n] * x[n], exponent);
        for (int j = 0; j < n; j++) factor[j] = (float)raised(x[j], exponent);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++)
                total[(size_t)i * width + j] += factor[j] * right[(size_t)i * width + j];
        product_float(right, total, width, 1, across, deep, n, width);
        for (int i = 0; i < m; i++)
            for (int j = 0; j < n; j++) its_out[i * n + j] = (float)whole * right[(size_t)i * width + j];
    }
    free(base);
    return 0;
}
