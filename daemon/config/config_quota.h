/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_CONFIG_QUOTA_H
#define DAEMON_CONFIG_CONFIG_QUOTA_H
/*
 * The part of the configuration that is about users: the sections [quota], [quota user:NAME] and
 * [quota group:NAME], and lists of users and groups ("user:alice, group:research"). Names stay names here,
 * and shares stay shares: access.c looks them up when the configuration takes effect.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "daemon/config/config_parse.h"

#define CONFIG_NAME_SIZE 64u /* of a user or group, NUL included; the C library's tools allow 32 */

/* A tenant's limits. Shares are of the pool's limit. */
struct config_limits {
    struct config_size sessions, leases, waiting, replies, device, host;
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
