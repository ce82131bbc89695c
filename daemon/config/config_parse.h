/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_CONFIG_PARSE_H
#define DAEMON_CONFIG_CONFIG_PARSE_H
/*
 * Values of the configuration that several of its sections share: sizes and shares, settings, and complaints.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A size, a percentage of something, or no limit. */
struct config_size {
    bool set;
    bool is_percent, is_unlimited;
    uint64_t value; /* bytes (or a number), or percent */
};

/* Reads a size such as 8GiB, or a percentage such as 50%. Returns 0 or -EINVAL. */
int config_parse_size(const char *text, struct config_size *ret_size);

/* A key of a section, what it is set to, and where a complaint about that goes. */
struct config_setting {
    const char *key, *value;
    char *error;
    size_t error_size;
};

/* Writes a complaint and returns -EINVAL. */
int config_complain(const struct config_setting *setting, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
