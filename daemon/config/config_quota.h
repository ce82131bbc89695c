/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_CONFIG_QUOTA_H
#define DAEMON_CONFIG_CONFIG_QUOTA_H
/*
 * Values of the configuration that several of its sections share: sizes and shares, settings, and complaints.
 * And the part of it that is about users: the sections [quota], [quota user:NAME] and
 * [quota group:NAME], and lists of users and groups ("user:alice, group:research"). Names stay names here,
 * and shares stay shares: access.c looks them up when the configuration takes effect.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"

/* A size, a percentage of something, or no limit. */
struct config_size {
    bool set;
    bool is_percent, is_unlimited;
    uint64_t value; /* bytes (or a number), or percent */
};

/* Reads a size such as 8GiB, or a percentage such as 50%. Returns 0 or -EINVAL. */
int config_parse_size(const char *text, struct config_size *ret_size);

/* A key of a section, its value, and the destination of a complaint about it. */
struct config_setting {
    const char *key, *value;
    char *error;
    size_t error_size;
};

/* Writes a complaint and returns -EINVAL. */
int config_complain(const struct config_setting *setting, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#define CONFIG_NAME_SIZE 64u /* of a user or group, NUL included; the C library's tools allow 32 */

/* A tenant's limits. Shares are of the pool's limit. */
struct config_limits {
    struct config_size sessions, leases, ranges, segments, waiting, replies, device, host;
};

/* A user or a group, by name or number. */
struct config_who {
    bool is_group;
    char name[CONFIG_NAME_SIZE];
};

/* A section for one user or group. */
struct config_rule {
    struct config_who who;
    struct config_limits limits;
    struct list link;
};

/* Sets a key of the section [quota] (with an empty name in who), in everybody, or of [quota WHO], in rules
 * (struct config_rule.link). Returns 0, or -EINVAL with the complaint in setting->error. */
int config_set_quota(struct config_limits *everybody, struct list *rules, const char *who,
                     const struct config_setting *setting);

/* Takes the next of a list apart; *list is behind it afterwards, NULL at the end. Returns 1, 0 at the end, or
 * -EINVAL: there is something else. */
int config_next_who(const char **list, struct config_who *ret_who);

/* Adds to a list of users that may use a pool; "all" is every user. *list is owned by the caller. Returns 0,
 * or -EINVAL with the complaint in setting->error. */
int config_add_allowed(char **list, const struct config_setting *setting);

#endif
