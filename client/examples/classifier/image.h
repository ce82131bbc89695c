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

/* What model_resample() can add up. Also a small file may claim to be huge. */
#define IMAGE_PIXELS_MAX (UINT32_C(1) << 24)

struct image {
    const char *path; /* borrowed */
    FILE *file;
    png_image png;
    uint32_t width, height;
};

/* Opens the file and reads its header. The path is borrowed until image_close(). What *image holds is open
 * only when this returns 0; it stays where it is, for libpng keeps its address. */
int image_open(struct image *image, const char *path);
/* Decodes into width × height bytes, a row after the other without gaps. Once. */
int image_decode(struct image *image, uint8_t *pixels);
/* What image_open() made, whether decoded or not. */
void image_close(struct image *image);

#endif
