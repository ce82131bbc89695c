/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make_digits DIRECTORY COUNT [SEED]
 *
 * Writes COUNT drawn digits as PNG files, named DIGIT-SEED.png, in turns as grey, coloured and transparent
 * images and with a palette: a decoder meets them all. Seeds below 1,000,000,000 are used in no training.
 */
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digits.h"

#define SEEDS_END 1000000000ull
#define GREYS     16u /* of a palette */

/* The picture's pixels as the format has them. */
static void convert(struct digit_random *random, const struct digit_picture *picture, png_uint_32 format,
                    uint8_t *out) {
    double tint[3];
    for (unsigned i = 0; i < 3; i++)
        tint[i] = digit_random_between(random, 0.8, 1);
    for (size_t i = 0; i < (size_t)picture->width * picture->height; i++) {
        uint8_t grey = picture->pixels[i];
        switch (format) {
        case PNG_FORMAT_RGB:
            for (unsigned k = 0; k < 3; k++)
                *out++ = (uint8_t)(tint[k] * grey);
            break;
        case PNG_FORMAT_GA: /* black ink on nothing: it gets its grey from what it lies on */
            *out++ = 0;
            *out++ = (uint8_t)(255 - grey);
            break;
        case PNG_FORMAT_RGB_COLORMAP:
            *out++ = (uint8_t)(grey * GREYS / 256);
            break;
        default:
            *out++ = grey;
        }
    }
}

static int write_digit(const char *directory, unsigned long long seed) {
    static const png_uint_32 formats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_RGB, PNG_FORMAT_GA,
                                          PNG_FORMAT_RGB_COLORMAP};
    static struct digit_picture picture;
    static uint8_t pixels[3 * sizeof picture.pixels], palette[GREYS][3];
    struct digit_random random;
    char path[4096];

    digit_random_seed(&random, seed);
    digit_draw(&random, (unsigned)(seed % 10), &picture);
    png_image image = {.version = PNG_IMAGE_VERSION,
                       .width = picture.width,
                       .height = picture.height,
                       .format = formats[(seed / 10 + seed) % (sizeof formats / sizeof *formats)],
                       .colormap_entries = GREYS};
    for (unsigned i = 0; i < GREYS; i++)
        memset(palette[i], (int)(i * 255 / (GREYS - 1)), sizeof palette[i]);
    convert(&random, &picture, image.format, pixels);
    snprintf(path, sizeof path, "%s/%u-%06llu.png", directory, picture.digit, seed);
    if (!png_image_write_to_file(&image, path, 0, pixels, 0, palette)) {
        fprintf(stderr, "make_digits: %s: %s\n", path, image.message);
        return -1;
    }
    return 0;
}

int main(int argc, char **argv) {
    unsigned long long count = argc > 2 ? strtoull(argv[2], NULL, 10) : 0,
                       seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;

    if (argc < 3 || argc > 4 || count == 0 || seed >= SEEDS_END || count > SEEDS_END - seed) {
        fprintf(stderr, "usage: make_digits DIRECTORY COUNT [SEED]\n");
        return 2;
    }
    for (unsigned long long i = 0; i < count; i++)
        if (write_digit(argv[1], seed + i) < 0)
            return 1;
    return 0;
}
