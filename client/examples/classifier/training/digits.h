/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLASSIFIER_DIGITS_H
#define CLASSIFIER_DIGITS_H
/*
 * Pictures of digits, drawn from a seed: strokes as a hand makes them (several ways to write a digit,
 * wavering points, slant, rotation, thickness), on paper that is unevenly lit, with noise, dark on light or
 * light on dark, of any size. They contain no personal data, so the pictures in this folder are under the
 * project's own licence.
 */
#include <stdint.h>

#define DIGIT_SIDE_MIN 24u
#define DIGIT_SIDE_MAX 128u

struct digit_picture {
    unsigned digit, width, height;
    uint8_t pixels[DIGIT_SIDE_MAX * DIGIT_SIDE_MAX]; /* 8-bit grey, a row after the other without gaps */
};

/* A generator of numbers that are the same everywhere (xorshift64*). */
struct digit_random {
    uint64_t state;
};
void digit_random_seed(struct digit_random *random, uint64_t seed);
double digit_random_between(struct digit_random *random, double low, double high);
unsigned digit_random_below(struct digit_random *random, unsigned limit);

/* Draws a digit (0…9) of a size of its own choice. */
void digit_draw(struct digit_random *random, unsigned digit, struct digit_picture *ret_picture);

#endif
