/* SPDX-License-Identifier: Apache-2.0 */
#include "base/units.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

struct unit {
    const char *name;
    uint64_t factor;
};

static const struct unit byte_units[] = {
    {"B", 1},      {"K", KIB},    {"KiB", KIB}, {"M", MIB},   {"MiB", MIB},
    {"G", GIB},    {"GiB", GIB},  {"T", TIB},   {"TiB", TIB}, {NULL, 0},
};

static const struct unit time_units[] = {
    {"ns", 1}, {"us", 1000}, {"ms", 1000000}, {"s", 1000000000}, {"min", 60000000000}, {"h", 3600000000000}, {NULL, 0},
};

static int parse(const char *text, const struct unit *units, uint64_t bare_factor, uint64_t *ret_value) {
    char *end;
    uint64_t factor = bare_factor;

    while (isspace((unsigned char)*text))
        text++;
    if (!isdigit((unsigned char)*text)) /* no sign, no hexadecimal, no "inf" */
        return -EINVAL;
    if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        return -EINVAL;
    errno = 0;
    unsigned long long whole = strtoull(text, &end, 10);
    if (errno == ERANGE)
        return -ERANGE;
    bool fractional = *end == '.';
    double real = 0;
    if (fractional) {
        if (!isdigit((unsigned char)end[1]))
            return -EINVAL;
        real = strtod(text, &end);
    }
    while (isspace((unsigned char)*end))
        end++;
    if (*end != '\0') {
        const struct unit *unit = units;
        while (unit->name != NULL && strcasecmp(unit->name, end) != 0)
            unit++;
        if (unit->name == NULL)
            return -EINVAL;
        factor = unit->factor;
    }
    if (factor == 0)
        return -EINVAL;
    if (fractional) {
        double value = real * (double)factor;
        if (!(value < 9e18))
            return -ERANGE;
        *ret_value = (uint64_t)llround(value);
        return 0;
    }
    if (whole > UINT64_MAX / factor)
        return -ERANGE;
    *ret_value = whole * factor;
    return 0;
}

int units_parse_bytes(const char *text, uint64_t *ret_bytes) {
    return parse(text, byte_units, 1, ret_bytes);
}

int units_parse_ns(const char *text, uint64_t *ret_ns) {
    return parse(text, time_units, 0, ret_ns);
}

/* Four significant digits, without a fraction that says nothing: "1.5", "12.25", "340". */
static void format_number(double number, char text[16]) {
    snprintf(text, 16, "%.*f", number < 10 ? 2 : number < 1000 ? 1 : 0, number);
    char *dot = NULL;
    for (char *c = text; *c != '\0'; c++)
        if (*c == '.')
            dot = c;
    if (dot == NULL)
        return;
    char *end = dot;
    while (*end != '\0')
        end++;
    while (end[-1] == '0')
        *--end = '\0';
    if (end[-1] == '.')
        end[-1] = '\0';
}

char *units_format_bytes(uint64_t bytes, char *text, size_t size) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    unsigned unit = 0;
    double number = (double)bytes;
    char digits[16];

    while (number >= 1024 && unit + 1 < sizeof names / sizeof *names) {
        number /= 1024;
        unit++;
    }
    format_number(number, digits);
    snprintf(text, size, "%s %s", digits, names[unit]);
    return text;
}

char *units_format_ns(uint64_t ns, char *text, size_t size) {
    uint64_t s = ns / 1000000000;
    char digits[16];

    if (s >= 86400)
        snprintf(text, size, "%llu d %llu h", (unsigned long long)(s / 86400), (unsigned long long)(s % 86400 / 3600));
    else if (s >= 3600)
        snprintf(text, size, "%llu h %llu min", (unsigned long long)(s / 3600), (unsigned long long)(s % 3600 / 60));
    else if (s >= 60)
        snprintf(text, size, "%llu min %llu s", (unsigned long long)(s / 60), (unsigned long long)(s % 60));
    else if (ns >= 1000000000) {
        format_number((double)ns / 1e9, digits);
        snprintf(text, size, "%s s", digits);
    } else if (ns >= 1000000) {
        format_number((double)ns / 1e6, digits);
        snprintf(text, size, "%s ms", digits);
    } else if (ns >= 1000) {
        format_number((double)ns / 1e3, digits);
        snprintf(text, size, "%s us", digits);
    } else
        snprintf(text, size, "%llu ns", (unsigned long long)ns);
    return text;
}
