/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLASSIFIER_IMAGE_H
#define CLASSIFIER_IMAGE_H
/*
 * An image file on its way into memory: PNG of any kind (palettes, 16 bits, colours, transparency), decoded
 * by libpng to 8-bit grey, straight into memory that the caller names once the size is known. Transparent
 * parts lie on white.
 *
 * Functions return 0, or -1 after a message on standard error that names the file.
 */
#include <png.h>
#include <stdint.h>
#include <stdio.h>

/* The most pixels that model_resample() can add up. Even a small file may claim to be larger. */
#define IMAGE_PIXELS_MAX (UINT32_C(1) << 24)

struct image {
    const char *path; /* borrowed */
    FILE *file;
    png_image png;
    uint32_t width, height;
};

/* Opens the file and reads its header. The path is borrowed until image_close(). *image is open only when
 * this returns 0. It must not be moved then, because libpng keeps its address. */
int image_open(struct image *image, const char *path);
/* Decodes into width × height bytes, a row after the other without gaps. Once. */
int image_decode(struct image *image, uint8_t *pixels);
/* Closes an open image, decoded or not. */
void image_close(struct image *image);

#endif
