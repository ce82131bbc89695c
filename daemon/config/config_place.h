/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CONFIG_CONFIG_PLACE_H
#define DAEMON_CONFIG_CONFIG_PLACE_H
/*
 * The configuration file that the daemon reads unless --config names another: that of its own installation.
 * The prefix is the folder above the one that the program lies in, so an installation may be moved. A program
 * that lies elsewhere, such as in a build folder, takes the prefix that the build was configured for.
 * Stateless.
 */
#include <limits.h>

/* Writes the path. Returns path. The file need not exist. */
const char *config_place(char path[static PATH_MAX]);

/* Writes the path for a program that lies at another path. sbin and etc are the names of the folders below
 * the prefix, or full names. configured is the answer where the program is not in sbin. Returns path. */
const char *config_place_of(const char *program, const char *sbin, const char *etc, const char *configured,
                            char path[static PATH_MAX]);

#endif
