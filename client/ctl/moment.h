/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_MOMENT_H
#define CLIENT_CTL_MOMENT_H
/* Moments as people write and read them: nanoseconds on CLOCK_REALTIME, in the local time zone. */
#include <stdint.h>

enum moment_form {
    MOMENT_DAY,         /* "2026-11-26" */
    MOMENT_DAY_MINUTE,  /* "2026-11-26 14:05" */
    MOMENT_DAY_SECOND,  /* "2026-11-26 14:05:11" */
    MOMENT_MILLISECOND, /* "2026-11-26 14:05:11.123" */
    MOMENT_MINUTE,      /* "14:05" */
};

/* Returns text. */
#define MOMENT_TEXT_SIZE 40u
const char *moment_text(uint64_t moment_ns, enum moment_form form, char text[MOMENT_TEXT_SIZE]);
#define MOMENT_TEXT(moment_ns, form) moment_text((moment_ns), (form), (char[MOMENT_TEXT_SIZE]){0})

/* Reads a time before now ("90s", "1h"; "2d" is 48 hours), a time of today ("14:05", "14:05:30"), a date, a
 * date and a time ("2026-11-26 14:05"), or "today" and "yesterday", which are these days' beginnings.
 * Returns 0 or -EINVAL. */
int moment_parse(const char *text, uint64_t now_ns, uint64_t *ret_moment_ns);

/* Now. */
uint64_t moment_now_ns(void);

#endif
