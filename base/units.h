/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_UNITS_H
#define BASE_UNITS_H
/* Sizes and times as people write and read them. Pure. */
#include <stddef.h>
#include <stdint.h>

#define KIB (UINT64_C(1) << 10)
#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)

/* A decimal number of at most that much, digits alone. Returns 0 or -EINVAL. */
int units_parse_number(const char *text, uint64_t maximum, uint64_t *ret_number);
/* "64MiB", "1.5 GiB", "512" (bytes), "2G" (binary, as people mean it). Returns 0, -EINVAL or -ERANGE. */
int units_parse_bytes(const char *text, uint64_t *ret_bytes);
/* "250ms", "10s", "5min", "80us". A bare number is refused: its unit would be a guess. 0, -EINVAL or
 * -ERANGE. */
int units_parse_ns(const char *text, uint64_t *ret_ns);
/* "1.5 GiB", "512 B": at most 4 significant digits. Returns text. */
char *units_format_bytes(uint64_t bytes, char *text, size_t size);
/* "3 d 4 h", "2 min 5 s", "1.25 ms", "80 ns". Returns text. */
char *units_format_ns(uint64_t ns, char *text, size_t size);

/* "1 session", "12 sessions". The noun is in the singular. Its plural has an "s", or after an "s" or an "x"
 * an "es". Returns text. */
char *units_format_count(uint64_t count, const char *noun, char *text, size_t size);

#define UNITS_TEXT_SIZE  32u
#define UNITS_COUNT_SIZE 64u
/* Formats into a buffer that lives to the end of the enclosing block: for arguments of a message. */
#define BYTES_TEXT(bytes) units_format_bytes((bytes), (char[UNITS_TEXT_SIZE]){0}, UNITS_TEXT_SIZE)
#define NS_TEXT(ns)       units_format_ns((ns), (char[UNITS_TEXT_SIZE]){0}, UNITS_TEXT_SIZE)
#define COUNT_TEXT(count, noun)                                                                              \
    units_format_count((count), (noun), (char[UNITS_COUNT_SIZE]){0}, UNITS_COUNT_SIZE)

#endif
