/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_CONFIG_VALUE_H
#define DAEMON_CONFIG_CONFIG_VALUE_H
/*
 * The values of the configuration: their types, from text and to text. A key says which type its value has,
 * and at which offset of its section's struct it is kept; config_keys.h has the keys.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/config/mistakes.h"

#define CONFIG_PATH_SIZE 108u /* sockaddr_un.sun_path */
#define CONFIG_NAME_SIZE 64u  /* of a user or group, NUL included; the C library's tools allow 32 */

/* A size, a percentage of something, or no limit. */
struct config_size {
    bool set;
    bool is_percent, is_unlimited;
    uint64_t value; /* bytes (or a number), or percent */
};

/* Reads a size such as 8GiB, or a percentage such as 50%. Returns 0, -EINVAL, or -ERANGE: it is larger than
 * PROTO_SIZE_MAX. */
int config_parse_size(const char *text, struct config_size *ret_size);

enum config_type {
    CONFIG_NUMBER,      /* uint32_t, from 1 to the key's bound */
    CONFIG_BYTES,       /* uint64_t, from the key's bound on */
    CONFIG_SIZE,        /* struct config_size: bytes or a share */
    CONFIG_QUOTA_COUNT, /* struct config_size: a number or unlimited */
    CONFIG_QUOTA_BYTES, /* struct config_size: bytes or unlimited */
    CONFIG_QUOTA_SIZE,  /* struct config_size: bytes, a share or unlimited */
    CONFIG_CHOICE,      /* int, an index of the key's words */
    CONFIG_PATH,        /* char[CONFIG_PATH_SIZE]: an absolute path */
    CONFIG_PATH_OR_NO,  /* char[CONFIG_PATH_SIZE]: "" is no */
    CONFIG_GROUP,       /* char[CONFIG_NAME_SIZE]: "" is unset */
    CONFIG_USERS,       /* char *: a list of users and groups that adds up; owned */
};

/* A key of a section. */
struct config_key {
    const char *name;
    enum config_type type;
    bool needs_restart;
    size_t offset;            /* of the value, in the section's struct */
    const char *const *words; /* of a choice; ends with NULL */
    uint64_t bound;
    const char *fallback; /* of a section for pools or quotas: the value of a key that is not set, as text;
                             NULL: the daemon computes it */
};

/* A key's value as it was given. Borrows everything. */
struct config_setting {
    const char *key, *value;
    const struct config_place *place;
};

/* Writes a complaint about a setting. Returns -EINVAL. */
#define config_complain(setting, ...) config_mistake((setting)->place, __VA_ARGS__)

/* Sets a value of the section's struct. Returns 0, or -EINVAL with a complaint. */
int config_value_set(const struct config_key *key, void *values, const struct config_setting *setting);

/* A value that is set, as the file would have it; exact. Owned by the caller; NULL: no memory. */
char *config_value_text(const struct config_key *key, const void *values);

/* Copies a value; not of lists of users, which are owned. */
void config_value_copy(const struct config_key *key, void *to, const void *from);

/* A size in the largest unit that divides it. Owned by the caller; NULL: no memory. */
char *config_bytes_text(uint64_t bytes);

/* Adds a list of users to the one in *list, which is owned by the caller; "all" is every user. Returns 0, or
 * -EINVAL with a complaint. */
int config_add_users(char **list, const struct config_setting *setting);

/* A user or a group, by name or number. */
struct config_who {
    bool is_group;
    bool is_known; /* user_policy_look_up() has found it */
    uint32_t id;   /* where it is known */
    char name[CONFIG_NAME_SIZE];
};

/* Takes the next of a list such as "user:alice, group:research" apart; *list is behind it afterwards, NULL at
 * the end. Returns 1, 0 at the end, or -EINVAL: there is something else. */
int config_next_who(const char **list, struct config_who *ret_who);

#endif
