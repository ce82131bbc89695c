/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_CHANGES_H
#define DAEMON_CONFIG_CHANGES_H
/*
 * The difference of two readings of the configuration, key by key: all changes are counted, and the first
 * ones are kept. Owns its texts.
 */
#include "daemon/config/config.h"

#define CONFIG_CHANGES_MAX 100u

struct config_change {
    char section[CONFIG_SECTION_NAME_SIZE];
    const struct config_key *key;
    char *before, *after; /* as config_text() gives them; NULL: the daemon computes the value */
    int line;             /* the origin of the new value */
};

/* Zeroed: nothing changed. */
struct config_changes {
    unsigned count, n_restarts; /* of all; those whose key needs a restart */
    struct config_change first[CONFIG_CHANGES_MAX];
};

/* Compares a fresh configuration with the one in force. In the fresh one, the values of keys that need a
 * restart become those in force (CONFIG_KEPT), so that it can take effect. Returns 0 or -ENOMEM: then the
 * fresh configuration is to be thrown away. */
int config_compare(struct config *fresh, const struct config *in_force, struct config_changes *changes);

void config_changes_deinit(struct config_changes *changes);

/* How many are kept. */
unsigned config_changes_told(const struct config_changes *changes);

/* Logs each. path: of the file; NULL: none. */
void config_changes_log(const struct config_changes *changes, const char *path);

#endif
