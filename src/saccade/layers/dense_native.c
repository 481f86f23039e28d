/* A dense block, and 3x3 convolutions, on maps that lie channels last, image by image.

   Convolutions go by Winograd's F(2x2, 3x3): 16 products for 4 positions in place of 36. Sums stay within a few units
   in the last place of the direct ones. */

#include "native_product.h"

enum { TILES = 16, POINTS = 16, CHUNK = 64 }; /* tiles of 2x2 positions, numbers of each; positions of a product */
enum { GROUPS = 16 };                         /* parts of a map that are summed apart, however many threads there are */

typedef struct {
    const float *x, *points; /* what is read, rows of `far` numbers; transformed kernels, POINTS, in, out up to COLS */
    const float *matrix;     /* of a product, in, out up to COLS */
    const float *gate;       /* rows of `gate_far` numbers: what is written is zero where they are not positive */
    float *out, *positive;   /* rows of `out_far` numbers; the same without negative ones, if asked for */
    float *sums;             /* of GROUPS parts of the map, `size` numbers each */
    int height, width, in, out_width, far, out_far, gate_far, positive_far, failed;
    size_t size;
    int64_t next, pieces;
} task;

/* What a ReLU lets through; what is no number does not vanish. */
static inline vec where_positive(vec gate, vec value) { return choose(gate <= 0, (vec){0}, value); }

static void add_by_columns(float *c, int cw, const float *a, int aw, const float *b, int bw, int rows, int inner,
                           int cols) {
    product(c, cw, a, aw, b, bw, rows, inner, cols, 1, 1);
}

/* U = G g G^T of kernels out, in, 3, 3. */
static void transform_kernels(float *points, const float *kernels, int in, int out, int wide) {
    memset(points, 0, sizeof(float) * POINTS * in * wide);
    for (int o = 0; o < out; o++)
        for (int i = 0; i < in; i++) {
            const float *g = kernels + ((size_t)o * in + i) * 9;
            float half[4][3];
            for (int c = 0; c < 3; c++) {
                float even = 0.5f * (g[c] + g[6 + c]), odd = 0.5f * g[3 + c];
                half[0][c] = g[c], half[1][c] = even + odd, half[2][c] = even - odd, half[3][c] = g[6 + c];
            }
            for (int r = 0; r < 4; r++) {
                float even = 0.5f * (half[r][0] + half[r][2]), odd = 0.5f * half[r][1];
                float u[4] = {half[r][0], even + odd, even - odd, half[r][2]};
                for (int c = 0; c < 4; c++) points[((size_t)(4 * r + c) * in + i) * wide + o] = u[c];
            }
        }
}

/* Points of tiles side by side, POINTS, TILES, in: B^T d B. Beyond the map there are zeros. */
static void transform_tiles(float *points, const task *t, const float *zeros, int y, int x, int tiles) {
    for (int tile = 0; tile < tiles; tile++) {
        const float *at[4][4];
        for (int r = 0; r < 4; r++)
            for (int c = 0; c < 4; c++) {
                int row = y + r - 1, column = x + 2 * tile + c - 1;
                int inside = row >= 0 && row < t->height && column >= 0 && column < t->width;
                at[r][c] = inside ? t->x + ((size_t)row * t->width + column) * t->far : zeros;
            }
        for (int i = 0; i < t->in; i += LANES) {
            vec b[4][4];
            _Pragma("GCC unroll 4") for (int c = 0; c < 4; c++) {
                vec d0 = load(at[0][c] + i), d1 = load(at[1][c] + i), d2 = load(at[2][c] + i), d3 = load(at[3][c] + i);
                b[0][c] = d0 - d2, b[1][c] = d1 + d2, b[2][c] = d2 - d1, b[3][c] = d1 - d3;
            }
            float *to = points + (size_t)tile * t->in + i;
            size_t step = (size_t)TILES * t->in;
            _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++) {
                store(to + (4 * r) * step, b[r][0] - b[r][2]);
                store(to + (4 * r + 1) * step, b[r][1] + b[r][2]);
                store(to + (4 * r + 2) * step, b[r][2] - b[r][1]);
                store(to + (4 * r + 3) * step, b[r][1] - b[r][3]);
            }
        }
    }
}

/* Positions of tiles from their points, POINTS, TILES, wide: A^T m A. */
static void write_tiles(const task *t, const float *points, int wide, int y, int x, int tiles) {
    size_t step = (size_t)TILES * wide;
    for (int tile = 0; tile < tiles; tile++)
        for (int o = 0; o < t->out_width; o += LANES) {
            const float *from = points + (size_t)tile * wide + o;
            vec m[2][4];
            _Pragma("GCC unroll 4") for (int c = 0; c < 4; c++) {
                vec m0 = load(from + c * step), m1 = load(from + (4 + c) * step);
                vec m2 = load(from + (8 + c) * step), m3 = load(from + (12 + c) * step);
                m[0][c] = m0 + m1 + m2, m[1][c] = m1 - m2 - m3;
            }
            for (int r = 0; r < 2 && y + r < t->height; r++) {
                vec both[2] = {m[r][0] + m[r][1] + m[r][2], m[r][1] - m[r][2] - m[r][3]};
                for (int c = 0; c < 2 && x + 2 * tile + c < t->width; c++) {
                    size_t place = (size_t)(y + r) * t->width + x + 2 * tile + c;
                    if (t->gate) both[c] = where_positive(load(t->gate + place * t->gate_far + o), both[c]);
                    store(t->out + place * t->out_far + o, both[c]);
                    if (t->positive)
                        store(t->positive + place * t->positive_far + o, where_positive(both[c], both[c]));
                }
            }
        }
}

static void convolve(void *given) {
    task *t = given;
    int wide = up(t->out_width, COLS), across = (t->width + 1) / 2, strips = (across + TILES - 1) / TILES;
    float *points = malloc(sizeof(float) * (POINTS * TILES * (t->in + wide) + t->in));
    if (!points) {
        __atomic_store_n(&t->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    float *products = points + POINTS * TILES * t->in, *zeros = products + POINTS * TILES * wide;
    memset(points, 0, sizeof(float) * (POINTS * TILES * (t->in + wide) + t->in));
    for (;;) {
        int64_t piece = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        if (piece >= t->pieces) break;
        int y = 2 * (int)(piece / strips), first = TILES * (int)(piece % strips);
        int tiles = across - first < TILES ? across - first : TILES;
        transform_tiles(points, t, zeros, y, 2 * first, tiles);
        for (int p = 0; p < POINTS; p++)
            by_rows(products + (size_t)p * TILES * wide, wide, points + (size_t)p * TILES * t->in, t->in,
                    t->points + (size_t)p * t->in * wide, wide, up(tiles, ROWS), t->in, wide);
        write_tiles(t, products, wide, y, 2 * first, tiles);
    }
    free(points);
}

/* Rows of a product without negative numbers, some at a time; a row that is not there is never read again. */
static void multiply(void *given) {
    task *t = given;
    for (;;) {
        int64_t start = CHUNK * __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        if (start >= CHUNK * t->pieces) return;
        float *out = t->out + start * t->out_far;
        by_rows(out, t->out_far, t->x + start * t->far, t->far, t->matrix, t->out_far, CHUNK, t->in, t->out_far);
        for (int i = 0; i < CHUNK * t->out_far; i += LANES) {
            vec sum = load(out + i);
            store(out + i, where_positive(sum, sum));
        }
    }
}

/* Copy rows to their place in the output, if asked to, and without negative numbers. */
static void begin(void *given) {
    task *t = given;
    for (;;) {
        int64_t start = CHUNK * __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED), stop = start + CHUNK;
        if (start >= CHUNK * t->pieces) return;
        for (int64_t all = (int64_t)t->height * t->width; start < stop && start < all; start++)
            for (int c = 0; c < t->in; c += LANES) {
                vec value = load(t->x + start * t->far + c);
                if (t->out) store(t->out + start * t->out_far + c, value);
                store(t->positive + start * t->positive_far + c, where_positive(value, value));
            }
    }
}

static void run(parallel start, int threads, void (*work)(void *), task *t) {
    t->next = 0;
    spread(start, t->pieces > 1 ? threads : 1, work, t);
}

static int64_t pieces_of(int height, int width) {
    return (int64_t)((height + 1) / 2) * (((width + 1) / 2 + TILES - 1) / TILES);
}

/* Average cells of 2x2 positions. */
static void average(void *given) {
    task *t = given;
    int across = t->width / 2;
    for (;;) {
        int64_t y = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        if (y >= t->pieces) return;
        for (int x = 0; x < across; x++) {
            const float *at = t->x + ((size_t)2 * y * t->width + 2 * x) * t->far, *below = at + (size_t)t->width * t->far;
            float *to = t->out + ((size_t)y * across + x) * t->far;
            for (int c = 0; c < t->far; c += LANES)
                store(to + c, 0.25f * ((load(at + c) + load(at + t->far + c)) + (load(below + c) + load(below + t->far + c))));
        }
    }
}

static size_t up_to_chunks(size_t places) { return (places + CHUNK - 1) / CHUNK * CHUNK; }

/* Numbers of room that `dense_block` needs. */
int64_t block_room(int height, int width, int given, int hidden, int growth, int layers, int halve) {
    int total = given + layers * growth, most = total - growth, wide = up(hidden, COLS);
    size_t places = (size_t)height * width, points = (size_t)POINTS * hidden * up(growth, COLS);
    return up_to_chunks(places) * (most + wide) + layers * (points + (size_t)most * wide) + (halve ? places * total : 0);
}

/* Write maps B, H, W, given and what the layers of a dense block make of them to `out`, B, H, W, given + layers * growth,
   or to half the side, averaged.

   A layer reads all that is there without its negative numbers, multiplies it by its matrix of `first`, hidden, width,
   and convolves that, again without negative numbers, by its kernels of `second`, growth, hidden, 3, 3. Returns 0, or 1
   if there was no memory. */
int dense_block(parallel start, int threads, const float *x, const float *first, const float *second, float *out,
                float *room, int batch, int height, int width, int given, int hidden, int growth, int layers, int halve) {
    int total = given + layers * growth, most = total - growth, wide = up(hidden, COLS), failed = 0;
    size_t places = (size_t)height * width, padded = up_to_chunks(places);
    size_t points = (size_t)POINTS * hidden * up(growth, COLS);
    float *positive = room, *inner = positive + padded * most, *kernels = inner + padded * wide;
    float *matrices = kernels + layers * points;
    float *result = out;
    if (halve) out = matrices + layers * (size_t)most * wide;
    for (int l = 0; l < layers; l++) {
        int read = given + l * growth;
        float *matrix = matrices + (size_t)l * most * wide;
        memset(matrix, 0, sizeof(float) * most * wide);
        for (int h = 0; h < hidden; h++)
            for (int c = 0; c < read; c++) matrix[(size_t)c * wide + h] = first[(size_t)h * read + c];
        first += (size_t)hidden * read;
        transform_kernels(kernels + l * points, second + (size_t)l * growth * hidden * 9, hidden, growth, up(growth, COLS));
    }
    for (int image = 0; image < batch && !failed; image++, x += places * given) {
        task t = {.x = x, .out = out, .positive = positive, .height = height, .width = width, .in = given};
        t.far = given, t.out_far = total, t.positive_far = most, t.pieces = (places + CHUNK - 1) / CHUNK;
        run(start, threads, begin, &t);
        memset(positive + places * most, 0, sizeof(float) * (padded - places) * most);
        for (int l = 0; l < layers; l++) {
            int read = given + l * growth;
            task t = {.x = positive, .matrix = matrices + (size_t)l * most * wide, .out = inner, .in = read, .far = most};
            t.out_far = wide, t.pieces = padded / CHUNK;
            run(start, threads, multiply, &t);
            task u = {.x = inner, .points = kernels + l * points, .out = out + read, .height = height, .width = width};
            u.in = hidden, u.far = wide, u.out_width = growth, u.out_far = total, u.pieces = pieces_of(height, width);
            if (l + 1 < layers) u.positive = positive + read, u.positive_far = most;
            run(start, threads, convolve, &u);
            failed |= u.failed;
        }
        if (halve) {
            task u = {.x = out, .out = result, .width = width, .far = total, .pieces = height / 2};
            run(start, threads, average, &u);
            result += (size_t)(height / 2) * (width / 2) * total;
        } else
            out += places * total;
    }
    return failed;
}

/* Points of the gradient of tiles side by side, POINTS, TILES, wide: A d A^T, the way of `write_tiles` back. */
static void transform_gradients(float *points, const task *t, const float *zeros, int wide, int y, int x, int tiles) {
    for (int tile = 0; tile < tiles; tile++) {
        const float *at[2][2];
        for (int r = 0; r < 2; r++)
            for (int c = 0; c < 2; c++) {
                int row = y + r, column = x + 2 * tile + c, inside = row < t->height && column < t->width;
                at[r][c] = inside ? t->gate + ((size_t)row * t->width + column) * t->gate_far : zeros;
            }
        for (int o = 0; o < t->out_width; o += LANES) {
            vec a[4][2];
            _Pragma("GCC unroll 2") for (int c = 0; c < 2; c++) {
                vec d0 = load(at[0][c] + o), d1 = load(at[1][c] + o);
                a[0][c] = d0, a[1][c] = d0 + d1, a[2][c] = d0 - d1, a[3][c] = -d1;
            }
            float *to = points + (size_t)tile * wide + o;
            size_t step = (size_t)TILES * wide;
            _Pragma("GCC unroll 4") for (int r = 0; r < 4; r++) {
                store(to + (4 * r) * step, a[r][0]);
                store(to + (4 * r + 1) * step, a[r][0] + a[r][1]);
                store(to + (4 * r + 2) * step, a[r][0] - a[r][1]);
                store(to + (4 * r + 3) * step, -a[r][1]);
            }
        }
    }
}

/* Add up gradients of transformed kernels, POINTS, in, out up to COLS, from what was convolved and from the gradient of
   what came of it, which is the gate here. */
static void sum_points(void *given) {
    task *t = given;
    int wide = up(t->out_width, COLS), across = (t->width + 1) / 2, down = (t->height + 1) / 2;
    size_t room = (size_t)POINTS * TILES * (t->in + wide) + t->in + t->out_width;
    float *points = calloc(room, sizeof(float));
    if (!points) {
        __atomic_store_n(&t->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    float *grads = points + (size_t)POINTS * TILES * t->in, *zeros = grads + (size_t)POINTS * TILES * wide;
    for (;;) {
        int64_t group = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        if (group >= GROUPS) break;
        float *sums = t->sums + group * t->size;
        memset(sums, 0, sizeof(float) * t->size);
        for (int row = (int)(down * group / GROUPS); row < down * (group + 1) / GROUPS; row++)
            for (int first = 0; first < across; first += TILES) {
                int tiles = across - first < TILES ? across - first : TILES;
                transform_tiles(points, t, zeros, 2 * row, 2 * first, tiles);
                transform_gradients(grads, t, zeros, wide, 2 * row, 2 * first, tiles);
                for (int p = 0; p < POINTS; p++)
                    add_by_columns(sums + (size_t)p * t->in * wide, wide, points + (size_t)p * TILES * t->in, t->in,
                                   grads + (size_t)p * TILES * wide, wide, t->in, tiles, wide);
            }
    }
    free(points);
}

/* Go back through a product: add up the gradient of its matrix, in, out up to COLS, and add that of what it read to
   `out`, where the gate, what it read, is positive. */
static void multiply_back(void *given) {
    task *t = given;
    int wide = up(t->in, COLS);
    int64_t places = (int64_t)t->height * t->width, chunks = (places + CHUNK - 1) / CHUNK;
    float *found = malloc(sizeof(float) * CHUNK * wide);
    if (!found) {
        __atomic_store_n(&t->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    for (;;) {
        int64_t group = __atomic_fetch_add(&t->next, 1, __ATOMIC_RELAXED);
        if (group >= GROUPS) break;
        float *sums = t->sums + group * t->size;
        memset(sums, 0, sizeof(float) * t->size);
        for (int64_t chunk = chunks * group / GROUPS; chunk < chunks * (group + 1) / GROUPS; chunk++) {
            int64_t start = CHUNK * chunk;
            int some = (int)(places - start < CHUNK ? places - start : CHUNK);
            const float *grad = t->x + start * t->far, *gate = t->gate + start * t->gate_far;
            add_by_columns(sums, t->far, gate, t->gate_far, grad, t->far, t->in, some, t->far);
            by_rows(found, wide, grad, t->far, t->matrix, wide, CHUNK, t->far, wide);
            for (int i = 0; i < some; i++)
                for (int c = 0; c < t->in; c += LANES) {
                    float *to = t->out + (start + i) * t->out_far + c;
                    store(to, load(to) + where_positive(load(gate + i * t->gate_far + c), load(found + i * wide + c)));
                }
        }
    }
    free(found);
}

/* Add the sums of all groups to those of the first. */
static void gather(float *sums, size_t size) {
    for (int g = 1; g < GROUPS; g++)
        for (size_t i = 0; i < size; i++) sums[i] += sums[g * size + i];
}

/* Add the gradient of kernels out, in, 3, 3 from that of their points: G^T u G. */
static void add_kernels(float *kernels, const float *sums, int in, int out, int wide) {
    for (int o = 0; o < out; o++)
        for (int i = 0; i < in; i++) {
            float u[4][4], half[3][4];
            for (int p = 0; p < POINTS; p++) u[p / 4][p % 4] = sums[((size_t)p * in + i) * wide + o];
            for (int c = 0; c < 4; c++) {
                float even = 0.5f * (u[1][c] + u[2][c]), odd = 0.5f * (u[1][c] - u[2][c]);
                half[0][c] = u[0][c] + even, half[1][c] = odd, half[2][c] = u[3][c] + even;
            }
            for (int r = 0; r < 3; r++) {
                float *to = kernels + ((size_t)o * in + i) * 9 + 3 * r;
                float even = 0.5f * (half[r][1] + half[r][2]), odd = 0.5f * (half[r][1] - half[r][2]);
                to[0] += half[r][0] + even, to[1] += odd, to[2] += half[r][3] + even;
            }
        }
}

/* Numbers of room that `dense_block_back` needs. */
int64_t back_room(int height, int width, int given, int hidden, int growth, int layers) {
    int most = given + (layers - 1) * growth, wide = up(hidden, COLS);
    size_t weights = (size_t)POINTS * growth * wide + (size_t)growth * hidden * 9;
    size_t matrices = (size_t)most * wide + (size_t)wide * up(most, COLS);
    size_t of_kernels = (size_t)POINTS * hidden * up(growth, COLS), of_matrix = (size_t)most * wide;
    size_t sums = GROUPS * (of_kernels > of_matrix ? of_kernels : of_matrix);
    return up_to_chunks((size_t)height * width) * (most + 2 * wide) + weights + matrices + sums;
}

/* Go back through a dense block.

   `whole` is its output, `grad` the gradient of that, which is written over: its first channels are that of what the
   block was given in the end. The gradients of `first` and `second` are added to `of_first` and `of_second`. Returns 0,
   or 1 if there was no memory. */
int dense_block_back(parallel start, int threads, const float *whole, float *grad, const float *first,
                     const float *second, float *of_first, float *of_second, float *room, int batch, int height,
                     int width, int given, int hidden, int growth, int layers) {
    int total = given + layers * growth, most = total - growth, wide = up(hidden, COLS), failed = 0;
    int narrow = up(growth, COLS), broad = up(most, COLS);
    size_t places = (size_t)height * width, padded = up_to_chunks(places);
    size_t points = (size_t)POINTS * growth * wide, turned = (size_t)growth * hidden * 9;
    float *positive = room, *inner = positive + padded * most, *of_inner = inner + padded * wide;
    float *kernels = of_inner + padded * wide, *swapped = kernels + points, *matrix = swapped + turned;
    float *across = matrix + (size_t)most * wide, *sums = across + (size_t)wide * broad;
    for (int image = 0; image < batch && !failed; image++, whole += places * total, grad += places * total) {
        task t = {.x = whole, .far = total, .positive = positive, .height = height, .width = width, .in = most};
        t.positive_far = most, t.pieces = (places + CHUNK - 1) / CHUNK;
        run(start, threads, begin, &t);
        const float *layer = first;
        float *of_layer = of_first;
        for (int l = 0; l < layers - 1; l++) {
            layer += (size_t)hidden * (given + l * growth);
            of_layer += (size_t)hidden * (given + l * growth);
        }
        for (int l = layers - 1; l >= 0; l--) {
            int read = given + l * growth;
            memset(matrix, 0, sizeof(float) * most * wide);
            memset(across, 0, sizeof(float) * wide * broad);
            for (int h = 0; h < hidden; h++)
                for (int c = 0; c < read; c++) {
                    matrix[(size_t)c * wide + h] = layer[(size_t)h * read + c];
                    across[(size_t)h * up(read, COLS) + c] = layer[(size_t)h * read + c];
                }
            for (int o = 0; o < growth; o++)
                for (int h = 0; h < hidden; h++)
                    for (int k = 0; k < 9; k++)
                        swapped[((size_t)h * growth + o) * 9 + k] =
                            second[(((size_t)l * growth + o) * hidden + h) * 9 + 8 - k];
            transform_kernels(kernels, swapped, growth, hidden, wide);
            task again = {.x = positive, .matrix = matrix, .out = inner, .in = read, .far = most, .out_far = wide};
            again.pieces = padded / CHUNK;
            run(start, threads, multiply, &again);
            task back = {.x = grad + read, .points = kernels, .out = of_inner, .height = height, .width = width};
            back.in = growth, back.far = total, back.out_width = hidden, back.out_far = wide;
            back.gate = inner, back.gate_far = wide, back.pieces = pieces_of(height, width);
            run(start, threads, convolve, &back);
            task sum = {.x = inner, .gate = grad + read, .sums = sums, .height = height, .width = width, .in = hidden};
            sum.far = wide, sum.gate_far = total, sum.out_width = growth, sum.pieces = GROUPS;
            sum.size = (size_t)POINTS * hidden * narrow;
            run(start, threads, sum_points, &sum);
            gather(sums, sum.size);
            add_kernels(of_second + (size_t)l * growth * hidden * 9, sums, hidden, growth, narrow);
            task product = {.x = of_inner, .matrix = across, .gate = positive, .out = grad, .sums = sums};
            product.height = height, product.width = width, product.in = read, product.far = wide;
            product.gate_far = most, product.out_far = total, product.pieces = GROUPS, product.size = (size_t)read * wide;
            run(start, threads, multiply_back, &product);
            gather(sums, product.size);
            for (int h = 0; h < hidden; h++)
                for (int c = 0; c < read; c++) of_layer[(size_t)h * read + c] += sums[(size_t)c * wide + h];
            failed |= back.failed | sum.failed | product.failed;
            if (l) {
                layer -= (size_t)hidden * (read - growth);
                of_layer -= (size_t)hidden * (read - growth);
            }
        }
    }
    return failed;
}
