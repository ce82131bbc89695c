/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>

#include "image.h"

static int complain(const struct image *image, const char *what) {
    fprintf(stderr, "classifier: %s: %s\n", image->path, what);
    return -1;
}

int image_open(struct image *image, const char *path) {
    *image = (struct image){.path = path, .png = {.version = PNG_IMAGE_VERSION}};
    image->file = fopen(path, "rbe");
    if (image->file == NULL)
        return complain(image, strerror(errno));
    if (!png_image_begin_read_from_stdio(&image->png, image->file)) {
        complain(image, image->png.message);
        image_close(image);
        return -1;
    }
    image->width = image->png.width;
    image->height = image->png.height;
    if ((uint64_t)image->width * image->height > IMAGE_PIXELS_MAX) {
        complain(image, "has more pixels than this program takes");
        image_close(image);
        return -1;
    }
    return 0;
}

int image_decode(struct image *image, uint8_t *pixels) {
    static const png_color white = {255, 255, 255};

    image->png.format = PNG_FORMAT_GRAY;
    image->png.flags |=
        PNG_IMAGE_FLAG_16BIT_sRGB; /* 16 bits say nothing of the brightness that they stand for */
    if (!png_image_finish_read(&image->png, &white, pixels, (png_int_32)image->width, NULL))
        return complain(image, image->png.message);
    return 0;
}

void image_close(struct image *image) {
    png_image_free(&image->png);
    fclose(image->file);
    image->file = NULL;
}
