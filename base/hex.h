/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_HEX_H
#define BASE_HEX_H
/* Bytes as hexadecimal digits, for names that people and JSON see. */
#include <stddef.h>
#include <stdint.h>

/* The digits of so many bytes, with their NUL. */
#define HEX_SIZE(bytes) (2 * (bytes) + 1)

static inline void hex_write(const uint8_t *bytes, size_t size, char *text) {
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < size; i++) {
        *text++ = digits[bytes[i] >> 4];
        *text++ = digits[bytes[i] & 15];
    }
    *text = '\0';
}

#endif
