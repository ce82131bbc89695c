/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "digits.h"

#define POINTS_MAX   14u /* of a stroke */
#define STROKES_MAX  3u
#define STEPS        6u /* straight pieces between two points of a curve */
#define SEGMENTS_MAX (STROKES_MAX * POINTS_MAX * STEPS)

struct point {
    double x, y;
};

/* A line through its points: a smooth curve, or straight from each to the next. */
struct stroke {
    unsigned n_points;
    int straight;
    struct point points[POINTS_MAX];
};

/* One way to write a digit, in a box of 1 × 1, y downwards. */
struct glyph {
    unsigned digit, n_strokes;
    struct stroke strokes[STROKES_MAX];
};

/* clang-format off */
static const struct glyph glyphs[] = {
    {0, 1, {{9, 0, {{.5, .04}, {.24, .2}, {.15, .5}, {.24, .8}, {.5, .96}, {.76, .8}, {.85, .5},
                     {.76, .2}, {.5, .04}}}}},
    {0, 1, {{9, 0, {{.62, .06}, {.3, .15}, {.16, .5}, {.26, .84}, {.5, .95}, {.76, .8}, {.84, .5},
                     {.74, .2}, {.52, .1}}}}},
    {1, 1, {{2, 1, {{.52, .04}, {.5, .96}}}}},
    {1, 1, {{3, 1, {{.26, .3}, {.56, .04}, {.54, .96}}}}},
    {1, 2, {{3, 1, {{.28, .26}, {.54, .04}, {.54, .95}}}, {2, 1, {{.28, .95}, {.8, .95}}}}},
    {2, 2, {{7, 0, {{.2, .26}, {.34, .08}, {.6, .06}, {.78, .25}, {.66, .5}, {.4, .72}, {.17, .94}}},
            {2, 1, {{.17, .94}, {.84, .93}}}}},
    {2, 1, {{11, 0, {{.2, .24}, {.36, .07}, {.64, .08}, {.76, .28}, {.6, .56}, {.3, .86}, {.2, .9},
                     {.22, .8}, {.36, .82}, {.6, .94}, {.84, .88}}}}},
    {3, 2, {{5, 0, {{.2, .15}, {.48, .04}, {.74, .2}, {.64, .41}, {.4, .47}}},
            {5, 0, {{.4, .47}, {.72, .55}, {.8, .75}, {.54, .96}, {.17, .84}}}}},
    {3, 2, {{3, 1, {{.2, .06}, {.78, .06}, {.44, .42}}},
            {5, 0, {{.44, .42}, {.74, .52}, {.8, .76}, {.52, .96}, {.18, .86}}}}},
    {4, 2, {{3, 1, {{.62, .04}, {.14, .64}, {.86, .64}}}, {2, 1, {{.62, .04}, {.62, .96}}}}},
    {4, 2, {{3, 1, {{.24, .06}, {.2, .52}, {.84, .5}}}, {2, 1, {{.7, .06}, {.66, .96}}}}},
    {4, 2, {{3, 1, {{.56, .04}, {.14, .62}, {.86, .6}}}, {2, 1, {{.64, .36}, {.62, .96}}}}},
    {5, 2, {{3, 1, {{.76, .06}, {.28, .06}, {.25, .45}}},
            {6, 0, {{.25, .45}, {.5, .38}, {.78, .54}, {.76, .8}, {.5, .96}, {.18, .87}}}}},
    {5, 1, {{9, 0, {{.78, .07}, {.5, .06}, {.3, .1}, {.24, .44}, {.5, .38}, {.78, .55}, {.74, .82},
                     {.48, .96}, {.2, .88}}}}},
    {6, 1, {{9, 0, {{.7, .06}, {.4, .24}, {.22, .6}, {.34, .9}, {.6, .94}, {.78, .73}, {.6, .52},
                     {.36, .57}, {.24, .74}}}}},
    {6, 1, {{9, 0, {{.5, .04}, {.28, .3}, {.2, .68}, {.4, .94}, {.68, .9}, {.76, .68}, {.56, .54},
                     {.32, .62}, {.22, .74}}}}},
    {7, 1, {{3, 1, {{.16, .07}, {.84, .07}, {.4, .96}}}}},
    {7, 2, {{3, 1, {{.16, .08}, {.84, .07}, {.42, .96}}}, {2, 1, {{.36, .5}, {.8, .48}}}}},
    {8, 1, {{13, 0, {{.5, .48}, {.25, .32}, {.3, .1}, {.5, .04}, {.7, .1}, {.75, .32}, {.5, .48},
                     {.22, .68}, {.28, .91}, {.5, .96}, {.72, .91}, {.78, .68}, {.5, .48}}}}},
    {8, 2, {{7, 0, {{.5, .05}, {.28, .14}, {.3, .4}, {.5, .48}, {.7, .4}, {.72, .14}, {.5, .05}}},
            {7, 0, {{.5, .48}, {.2, .6}, {.24, .9}, {.5, .96}, {.76, .9}, {.8, .6}, {.5, .48}}}}},
    {9, 2, {{7, 0, {{.75, .28}, {.6, .07}, {.36, .09}, {.24, .3}, {.38, .49}, {.62, .45}, {.75, .28}}},
            {3, 0, {{.76, .2}, {.74, .6}, {.56, .96}}}}},
    {9, 1, {{10, 0, {{.74, .24}, {.56, .06}, {.3, .14}, {.26, .38}, {.46, .5}, {.68, .4}, {.76, .16},
                      {.76, .5}, {.64, .86}, {.36, .95}}}}},
};
/* clang-format on */
#define GLYPHS (sizeof glyphs / sizeof *glyphs)

void digit_random_seed(struct digit_random *random, uint64_t seed) {
    /* splitmix64's mixing, so that seeds next to each other begin far apart; 0 is the one state that must not
     * be */
    seed += UINT64_C(0x9e3779b97f4a7c15);
    seed = (seed ^ (seed >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    seed = (seed ^ (seed >> 27)) * UINT64_C(0x94d049bb133111eb);
    seed ^= seed >> 31;
    random->state = seed != 0 ? seed : 1;
}

static uint64_t draw(struct digit_random *random) {
    random->state ^= random->state >> 12;
    random->state ^= random->state << 25;
    random->state ^= random->state >> 27;
    return random->state * UINT64_C(0x2545f4914f6cdd1d);
}

double digit_random_between(struct digit_random *random, double low, double high) {
    return low + (high - low) * (double)(draw(random) >> 11) / (double)(UINT64_C(1) << 53);
}

unsigned digit_random_below(struct digit_random *random, unsigned limit) {
    return (unsigned)((draw(random) >> 32) * limit >> 32);
}

/* Of about the normal distribution, with deviation 1. */
static double noise(struct digit_random *random) {
    double sum = 0;
    for (unsigned i = 0; i < 4; i++)
        sum += digit_random_between(random, -1, 1);
    return sum * 0.866; /* the sum's variance is 4/3 */
}

/* Catmull and Rom's curve between b and c. */
static struct point curve(struct point a, struct point b, struct point c, struct point d, double t) {
    double wa = -t * (1 - t) * (1 - t) / 2, wb = (2 - 5 * t * t + 3 * t * t * t) / 2;
    double wc = (t + 4 * t * t - 3 * t * t * t) / 2, wd = -t * t * (1 - t) / 2;
    return (struct point){wa * a.x + wb * b.x + wc * c.x + wd * d.x,
                          wa * a.y + wb * b.y + wc * c.y + wd * d.y};
}

/* The pieces that a stroke consists of. Returns the end of what was written. */
static struct point (*add_stroke(const struct stroke *stroke, struct point (*segment)[2]))[2] {
    const struct point *points = stroke->points;
    unsigned last = stroke->n_points - 1;

    for (unsigned i = 0; i < last; i++) {
        unsigned steps = stroke->straight ? 1 : STEPS;
        struct point from = points[i];
        for (unsigned k = 1; k <= steps; k++) {
            struct point to = points[i + 1];
            if (k < steps)
                to = curve(points[i > 0 ? i - 1 : 0], points[i], to, points[i + 2 <= last ? i + 2 : last],
                           (double)k / steps);
            (*segment)[0] = from;
            (*segment)[1] = to;
            segment++;
            from = to;
        }
    }
    return segment;
}

static double distance_squared(struct point p, const struct point segment[2]) {
    double dx = segment[1].x - segment[0].x, dy = segment[1].y - segment[0].y;
    double px = p.x - segment[0].x, py = p.y - segment[0].y;
    double length = dx * dx + dy * dy, t = length > 0 ? (px * dx + py * dy) / length : 0;
    t = t < 0 ? 0 : t > 1 ? 1 : t;
    px -= t * dx;
    py -= t * dy;
    return px * px + py * py;
}

/* Chooses one of the ways to write it and lets the points waver. */
static struct glyph choose_glyph(struct digit_random *random, unsigned digit) {
    unsigned begin = 0, count = 0;
    while (glyphs[begin].digit != digit)
        begin++;
    while (begin + count < GLYPHS && glyphs[begin + count].digit == digit)
        count++;
    struct glyph glyph = glyphs[begin + digit_random_below(random, count)];
    for (unsigned i = 0; i < glyph.n_strokes; i++)
        for (unsigned k = 0; k < glyph.strokes[i].n_points; k++) {
            glyph.strokes[i].points[k].x += 0.028 * noise(random);
            glyph.strokes[i].points[k].y += 0.028 * noise(random);
        }
    return glyph;
}

/* From the box of 1 × 1 to pixels: slant, rotation, size and place. */
static void place_glyph(struct digit_random *random, struct glyph *glyph, unsigned width, unsigned height) {
    double angle = digit_random_between(random, -0.26, 0.26),
           slant = digit_random_between(random, -0.25, 0.3);
    double tall = height * digit_random_between(random, 0.55, 0.82),
           wide = tall * digit_random_between(random, 0.55, 0.95);
    double center_x = width * digit_random_between(random, 0.44, 0.56),
           center_y = height * digit_random_between(random, 0.45, 0.55);

    if (wide > 0.8 * width)
        wide = 0.8 * width;
    for (unsigned i = 0; i < glyph->n_strokes; i++)
        for (unsigned k = 0; k < glyph->strokes[i].n_points; k++) {
            struct point *p = &glyph->strokes[i].points[k];
            double x = (p->x - 0.5 - slant * (p->y - 0.5)) * wide, y = (p->y - 0.5) * tall;
            p->x = center_x + x * cos(angle) - y * sin(angle);
            p->y = center_y + x * sin(angle) + y * cos(angle);
        }
}

void digit_draw(struct digit_random *random, unsigned digit, struct digit_picture *ret_picture) {
    struct point segments[SEGMENTS_MAX][2], (*end)[2] = segments;
    struct glyph glyph = choose_glyph(random, digit);
    double mean_side = digit_random_between(random, 28, 110);
    unsigned width = (unsigned)(mean_side * digit_random_between(random, 0.88, 1.12));
    unsigned height = (unsigned)(mean_side * digit_random_between(random, 0.88, 1.12));

    place_glyph(random, &glyph, width, height);
    for (unsigned i = 0; i < glyph.n_strokes; i++)
        end = add_stroke(&glyph.strokes[i], end);

    double radius = height * digit_random_between(random, 0.022, 0.06);
    double soft = digit_random_between(random, 0.5,
                                       0.5 + height * 0.015); /* how far ink and paper run into each other */
    double paper = digit_random_between(random, 150, 250),
           ink = paper - digit_random_between(random, 80, 145);
    double light_x = digit_random_between(random, -25, 25) / width,
           light_y = digit_random_between(random, -25, 25) / height;
    double grain = digit_random_between(random, 0, 14);
    int inverted = digit_random_below(random, 3) == 0;

    ret_picture->digit = digit;
    ret_picture->width = width;
    ret_picture->height = height;
    for (unsigned y = 0; y < height; y++)
        for (unsigned x = 0; x < width; x++) {
            struct point p = {x + 0.5, y + 0.5};
            double nearest = HUGE_VAL;
            for (struct point(*segment)[2] = segments; segment < end; segment++)
                nearest = fmin(nearest, distance_squared(p, *segment));
            double cover = (radius + soft - sqrt(nearest)) / (2 * soft);
            cover = cover < 0 ? 0 : cover > 1 ? 1 : cover;
            double value = paper + (ink - paper) * cover + light_x * (x - width / 2.0) +
                           light_y * (y - height / 2.0) + grain * noise(random);
            if (inverted)
                value = 255 - value;
            value = value < 0 ? 0 : value > 255 ? 255 : value;
            ret_picture->pixels[(size_t)y * width + x] = (uint8_t)(value + 0.5);
        }
}
