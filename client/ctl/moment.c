/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/moment.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/units.h"

#define HOURS_PER_DAY 24u
#define AGO_MAX       100000u /* of days or minutes */

uint64_t moment_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static struct tm local_time(uint64_t moment_ns) {
    time_t seconds = (time_t)(moment_ns / NS_PER_S);
    struct tm local = {0};
    localtime_r(&seconds, &local);
    return local;
}

const char *moment_text(uint64_t moment_ns, enum moment_form form, char text[MOMENT_TEXT_SIZE]) {
    struct tm local = local_time(moment_ns);
    size_t length = 0;

    switch (form) {
    case MOMENT_DAY:
        length = strftime(text, MOMENT_TEXT_SIZE, "%Y-%m-%d", &local);
        break;
    case MOMENT_DAY_MINUTE:
        length = strftime(text, MOMENT_TEXT_SIZE, "%Y-%m-%d %H:%M", &local);
        break;
    case MOMENT_DAY_SECOND:
    case MOMENT_MILLISECOND:
        length = strftime(text, MOMENT_TEXT_SIZE, "%Y-%m-%d %H:%M:%S", &local);
        break;
    case MOMENT_MINUTE:
        length = strftime(text, MOMENT_TEXT_SIZE, "%H:%M", &local);
        break;
    }
    text[length] = '\0';
    if (form == MOMENT_MILLISECOND)
        snprintf(text + length, MOMENT_TEXT_SIZE - length, ".%03u",
                 (unsigned)(moment_ns % NS_PER_S / NS_PER_MS));
    return text;
}

/* The beginning of the day that lies so many days before now. */
static uint64_t day_begin_ns(uint64_t now_ns, int days_before) {
    struct tm day = local_time(now_ns);
    day.tm_mday -= days_before;
    day.tm_hour = day.tm_min = day.tm_sec = 0;
    day.tm_isdst = -1;
    return (uint64_t)mktime(&day) * NS_PER_S;
}

/* A time before now. */
static bool parse_ago(const char *text, uint64_t now_ns, uint64_t *ret_moment_ns) {
    size_t length = strlen(text);
    char number[16];
    uint64_t ago_ns, count;

    if (units_parse_ns(text, &ago_ns) == 0) {
        *ret_moment_ns = ago_ns < now_ns ? now_ns - ago_ns : 0;
        return true;
    }
    if (length < 2 || length > sizeof number || (text[length - 1] != 'd' && text[length - 1] != 'm'))
        return false;
    snprintf(number, sizeof number, "%.*s", (int)length - 1, text);
    if (units_parse_number(number, AGO_MAX, &count) < 0)
        return false;
    ago_ns = count * (text[length - 1] == 'd' ? HOURS_PER_DAY * NS_PER_HOUR : 60 * NS_PER_S);
    *ret_moment_ns = ago_ns < now_ns ? now_ns - ago_ns : 0;
    return true;
}

int moment_parse(const char *text, uint64_t now_ns, uint64_t *ret_moment_ns) {
    static const char *const formats[] = {
        "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d",
        "%H:%M:%S",          "%H:%M"};

    if (strcmp(text, "today") == 0 || strcmp(text, "yesterday") == 0) {
        *ret_moment_ns = day_begin_ns(now_ns, text[0] == 'y' ? 1 : 0);
        return 0;
    }
    if (parse_ago(text, now_ns, ret_moment_ns))
        return 0;
    for (size_t i = 0; i < ARRAY_LENGTH(formats); i++) {
        struct tm local = local_time(now_ns);
        local.tm_hour = local.tm_min = local.tm_sec = 0;
        local.tm_isdst = -1;
        const char *end = strptime(text, formats[i], &local);
        if (end == NULL || *end != '\0')
            continue;
        time_t seconds = mktime(&local);
        if (seconds < 0 || (uint64_t)seconds > UINT64_MAX / NS_PER_S)
            return -EINVAL;
        *ret_moment_ns = (uint64_t)seconds * NS_PER_S;
        if (text[2] == ':' && *ret_moment_ns > now_ns) /* a time of day that is yet to come: yesterday's */
            *ret_moment_ns -= HOURS_PER_DAY * NS_PER_HOUR;
        return 0;
    }
    return -EINVAL;
}
