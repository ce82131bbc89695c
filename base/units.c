/* SPDX-License-Identifier: Apache-2.0 */
#include "base/units.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NUMBER_TEXT_SIZE 32u /* a 64-bit number, a point and three digits, with room */

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit byte_units[] = {
    {"B", 1},   {"K", KIB},   {"KiB", KIB}, {"M", MIB},   {"MiB", MIB},
    {"G", GIB}, {"GiB", GIB}, {"T", TIB},   {"TiB", TIB}, {NULL, 0},
};

static const struct unit time_units[] = {
    {"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}, {"min", 60000000000}, {"h", 3600000000000},
    {NULL, 0},
};

/* A fraction's digits beyond these change no value by as much as a unit (the largest factor is below 10^13).
 */
#define FRACTION_DIGITS_MAX 18

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

/* Digits, "." digits, blanks, a unit. By hand, since strtod and its like know exponents, hexadecimal, "inf",
 * and another decimal point in another locale, which the library's host may have set. */
static int parse(const char *text, const struct unit *units, uint64_t bare_factor, uint64_t *ret_value) {
    uint64_t whole = 0, numerator = 0, denominator = 1, factor = bare_factor;
    bool too_large = false;

    while (is_blank(*text))
        text++;
    if (!is_digit(*text))
        return -EINVAL;
    for (; is_digit(*text); text++)
        too_large |= __builtin_mul_overflow(whole, 10, &whole) ||
                     __builtin_add_overflow(whole, (uint64_t)(*text - '0'), &whole);
    if (*text == '.') {
        text++;
        if (!is_digit(*text))
            return -EINVAL;
        for (unsigned digits = 0; is_digit(*text); text++, digits++)
            if (digits < FRACTION_DIGITS_MAX) {
                numerator = numerator * 10 + (uint64_t)(*text - '0');
                denominator *= 10;
            }
    }
    while (is_blank(*text))
        text++;
    if (*text != '\0') {
        const struct unit *unit = units;
        while (unit->name != NULL && strcasecmp(unit->name, text) != 0)
            unit++;
        if (unit->name == NULL)
            return -EINVAL;
        factor = unit->factor;
    }
    if (factor == 0)
        return -EINVAL;

    uint64_t value;
    uint64_t fraction = (uint64_t)(((unsigned __int128)numerator * factor + denominator / 2) / denominator);
    if (too_large || __builtin_mul_overflow(whole, factor, &value) ||
        __builtin_add_overflow(value, fraction, &value))
        return -ERANGE;
    *ret_value = value;
    return 0;
}

int units_parse_bytes(const char *text, uint64_t *ret_bytes) {
    return parse(text, byte_units, 1, ret_bytes);
}

int units_parse_ns(const char *text, uint64_t *ret_ns) {
    return parse(text, time_units, 0, ret_ns);
}

/* value / factor in at most four significant digits, without a fraction that says nothing: "1.5", "12.25",
 * "340". The point is a point in every locale. Returns the number's whole part as written, so that the caller
 * sees when rounding has made a full unit of it. */
static uint64_t format_number(uint64_t value, uint64_t factor, char text[NUMBER_TEXT_SIZE]) {
    uint64_t whole = value / factor;
    unsigned decimals = whole < 10 ? 3 : whole < 100 ? 2 : whole < 1000 ? 1 : 0;
    uint64_t scale = decimals == 3 ? 1000 : decimals == 2 ? 100 : decimals == 1 ? 10 : 1;
    uint64_t fraction = (uint64_t)(((unsigned __int128)(value % factor) * scale + factor / 2) / factor);

    if (fraction == scale) {
        whole++;
        fraction = 0;
    }
    while (decimals > 0 && fraction % 10 == 0) {
        fraction /= 10;
        decimals--;
    }
    if (fraction == 0)
        snprintf(text, NUMBER_TEXT_SIZE, "%" PRIu64, whole);
    else
        snprintf(text, NUMBER_TEXT_SIZE, "%" PRIu64 ".%0*" PRIu64, whole, (int)decimals, fraction);
    return whole;
}

/* In the first unit in which the number, as written, is below the step to the next. */
static char *format_in_units(uint64_t value, uint64_t step, const char *const *names, unsigned count,
                             char *text, size_t size) {
    char number[NUMBER_TEXT_SIZE];
    uint64_t factor = 1;
    unsigned unit = 0;

    while (format_number(value, factor, number) >= step && unit + 1 < count) {
        factor *= step;
        unit++;
    }
    snprintf(text, size, "%s %s", number, names[unit]);
    return text;
}

char *units_format_bytes(uint64_t bytes, char *text, size_t size) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    return format_in_units(bytes, 1024, names, sizeof names / sizeof *names, text, size);
}

char *units_format_ns(uint64_t ns, char *text, size_t size) {
    static const char *const names[] = {"ns", "us", "ms", "s"};
    uint64_t s = ns / 1000000000;

    if (s >= 86400)
        snprintf(text, size, "%" PRIu64 " d %" PRIu64 " h", s / 86400, s % 86400 / 3600);
    else if (s >= 3600)
        snprintf(text, size, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s % 3600 / 60);
    else if (s >= 60)
        snprintf(text, size, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else
        format_in_units(ns, 1000, names, sizeof names / sizeof *names, text, size);
    return text;
}

char *units_format_count(uint64_t count, const char *noun, char *text, size_t size) {
    size_t length = strlen(noun);
    bool hisses = length > 0 && (noun[length - 1] == 's' || noun[length - 1] == 'x');

    snprintf(text, size, "%" PRIu64 " %s%s", count, noun, count == 1 ? "" : hisses ? "es" : "s");
    return text;
}

int units_parse_number(const char *text, uint64_t maximum, uint64_t *ret_number) {
    char *end;

    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || number > maximum)
        return -EINVAL;
    *ret_number = number;
    return 0;
}
