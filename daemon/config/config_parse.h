/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_CONFIG_PARSE_H
#define DAEMON_CONFIG_CONFIG_PARSE_H
/*
 * Values of the configuration that several of its sections share: sizes and shares, and complaints.
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

/* Writes a complaint and returns -EINVAL. */
int config_complain(char *error, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
