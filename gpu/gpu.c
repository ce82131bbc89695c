/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UUID as text, which both tables share. Pure.
 */
#include "gpu/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Where nvidia-smi puts the hyphens: in front of these bytes. */
static bool hyphen_before(unsigned byte) {
    return byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

static int hex_value(char character) {
    if (character >= '0' && character <= '9')
        return character - '0';
    if (character >= 'a' && character <= 'f')
        return character - 'a' + 10;
    if (character >= 'A' && character <= 'F')
        return character - 'A' + 10;
    return -1;
}

void gpu_uuid_format(const struct gpu_uuid *uuid, char text[GPU_UUID_TEXT_SIZE]) {
    static const char digits[] = "0123456789abcdef";
    char *end = text;

    memcpy(end, "GPU-", 4);
    end += 4;
    for (unsigned i = 0; i < GPU_UUID_BYTES; i++) {
        if (hyphen_before(i))
            *end++ = '-';
        *end++ = digits[uuid->bytes[i] >> 4];
        *end++ = digits[uuid->bytes[i] & 15];
    }
    *end = '\0';
}

int gpu_uuid_parse(const char *text, struct gpu_uuid *ret_uuid) {
    struct gpu_uuid uuid;

    if (strlen(text) != GPU_UUID_TEXT_SIZE - 1 || strncmp(text, "GPU-", 4) != 0)
        return -EINVAL;
    text += 4;
    for (unsigned i = 0; i < GPU_UUID_BYTES; i++) {
        int high, low;

        if (hyphen_before(i) && *text++ != '-')
            return -EINVAL;
        high = hex_value(*text++);
        low = hex_value(*text++);
        if (high < 0 || low < 0)
            return -EINVAL;
        uuid.bytes[i] = (uint8_t)(high << 4 | low);
    }
    *ret_uuid = uuid;
    return 0;
}

bool gpu_uuid_equal(const struct gpu_uuid *a, const struct gpu_uuid *b) {
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}
