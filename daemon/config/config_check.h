/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_CONFIG_CHECK_H
#define DAEMON_CONFIG_CONFIG_CHECK_H
/*
 * Mistakes in a configuration on this machine, although its file can be read: sections for devices
 * that are not there, sizes that make no sense. The daemon starts all the same; the log and --check-config
 * tell of it.
 */
#include <stdint.h>

#include "daemon/config/config.h"

/* Notes that the machine has a device or node: sections for it are not in vain. uuid: NULL for nodes. */
void config_note_place(struct config *config, enum proto_pool_kind kind, const uint8_t *uuid, int number);

/* Warns of sizes of the named pool that make no sense. Returns the number of mistakes. */
unsigned config_check_sizes(const char *name, const struct config_pool_sizes *sizes);

/* Warns of sections for places that were not noted, after all were. Returns the number of mistakes. */
unsigned config_check_sections(const struct config *config);

#endif
