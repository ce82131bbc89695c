/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UUID as text, which both tables share. Pure.
 */
#include "gpu/gpu.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Where nvidia-smi puts the hyphens: in front of these bytes. */
static bool hyphen_before(unsigned byte) {
    return byte == 0 || byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

void gpu_uuid_format(const struct gpu_uuid *uuid, char text[GPU_UUID_TEXT_SIZE]) {
    char *end = text + sprintf(text, "GPU");

    for (unsigned i = 0; i < GPU_UUID_BYTES; i++)
        end += sprintf(end, "%s%02x", hyphen_before(i) ? "-" : "", (unsigned)uuid->bytes[i]);
}

int gpu_uuid_parse(const char *text, struct gpu_uuid *ret_uuid) {
    struct gpu_uuid uuid;

    if (strlen(text) != GPU_UUID_TEXT_SIZE - 1 || strncmp(text, "GPU", 3) != 0)
        return -EINVAL;
    text += 3;
    for (unsigned i = 0; i < GPU_UUID_BYTES; i++) {
        if (hyphen_before(i) && *text++ != '-')
            return -EINVAL;
        if (!isxdigit((unsigned char)text[0]) || !isxdigit((unsigned char)text[1]) ||
            sscanf(text, "%2hhx", &uuid.bytes[i]) != 1)
            return -EINVAL;
        text += 2;
    }
    *ret_uuid = uuid;
    return 0;
}

bool gpu_uuid_equal(const struct gpu_uuid *a, const struct gpu_uuid *b) {
    return memcmp(a->bytes, b->bytes, sizeof(a->bytes)) == 0;
}
