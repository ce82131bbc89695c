/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_CONFIG_KEYS_H
#define DAEMON_CONFIG_CONFIG_KEYS_H
/*
 * All keys of the configuration, as tables: one for each kind of section. Reading, printing and comparing
 * configurations come from these. A test compares gpupoold.conf(5) with them.
 */
#include "daemon/config/config_value.h"

#define CONFIG_KEYS_MAX 16u /* of a section */

/* The origin of a value: a line of the file, from 1 on, or one of these. */
#define CONFIG_UNSET        0
#define CONFIG_COMMAND_LINE (-1)
#define CONFIG_KEPT         (-2) /* of an earlier reading: the file's value needs a restart */

struct config_table {
    const char *name; /* "daemon", "device", "host", "quota" */
    const struct config_key *keys;
    unsigned count;
};

extern const struct config_table config_daemon_keys, config_device_keys, config_host_keys, config_quota_keys;

/* The key with a name, or NULL. */
const struct config_key *config_find_key(const struct config_table *table, const char *name);

/* Complains of a key that the table does not have, and says which was meant. Returns -EINVAL. */
int config_complain_of_key(const struct config_table *table, const struct config_setting *setting);

#endif
