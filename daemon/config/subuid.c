/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/subuid.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/units.h"
#include "daemon/loop/log.h"

/* Cuts a line at its colons. Returns whether it has three fields. */
static bool cut_fields(char *line, char *fields[3]) {
    line[strcspn(line, "\n")] = '\0';
    for (unsigned i = 0; i < 3; i++) {
        fields[i] = line;
        char *colon = strchr(line, ':');
        if ((colon == NULL) != (i == 2))
            return false;
        if (colon != NULL) {
            *colon = '\0';
            line = colon + 1;
        }
    }
    return true;
}

static bool find_user(const char *name, uint32_t *ret_uid) {
    uint64_t number;

    if (units_parse_number(name, UINT32_MAX - 1, &number) == 0) {
        *ret_uid = (uint32_t)number;
        return true;
    }
    const struct passwd *user = getpwnam(name);
    if (user != NULL)
        *ret_uid = user->pw_uid;
    return user != NULL;
}

/* Returns why the line has no range; NULL: it has one. */
static const char *parse_line(char *line, struct policy_range *ret_range) {
    uint64_t first, count;
    char *fields[3];

    if (!cut_fields(line, fields) || units_parse_number(fields[1], UINT32_MAX - 1, &first) < 0 ||
        units_parse_number(fields[2], UINT32_MAX - 1, &count) < 0)
        return "it is not OWNER:FIRST:COUNT";
    if (first == 0 || count == 0 || count > UINT32_MAX - first)
        return "it has the uid 0, no uid, or one that there is not";
    if (!find_user(fields[0], &ret_range->owner))
        return "there is no such user";
    ret_range->first = (uint32_t)first;
    ret_range->count = (uint32_t)count;
    return NULL;
}

int subuid_read(const char *path, struct policy_range **ret_ranges, unsigned *ret_n_ranges) {
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    _cleanup_(freep) struct policy_range *ranges = NULL;
    _cleanup_(freep) char *line = NULL;
    unsigned n_ranges = 0, number = 0;
    size_t size = 0;

    if (file == NULL && errno != ENOENT)
        log_warning("%s cannot be read (%s): subordinate uids have quotas of their own", path,
                    strerror(errno));
    while (file != NULL && getline(&line, &size, file) >= 0) {
        struct policy_range range;
        number++;
        if (line[strspn(line, " \t\n")] == '\0' || line[0] == '#')
            continue;
        const char *reason = parse_line(line, &range);
        if (reason != NULL) {
            log_warning("%s, line %u is left out: %s", path, number, reason);
            continue;
        }
        struct policy_range *more = realloc(ranges, (n_ranges + 1) * sizeof *more);
        if (more == NULL)
            return -ENOMEM;
        ranges = more;
        ranges[n_ranges++] = range;
    }
    *ret_ranges = take_ptr(&ranges);
    *ret_n_ranges = n_ranges;
    return 0;
}
