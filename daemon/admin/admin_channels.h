/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_ADMIN_ADMIN_CHANNELS_H
#define DAEMON_ADMIN_ADMIN_CHANNELS_H
/* Channels (daemon/core/channel.h) as parts of administrative replies. */
#include <cjson/cJSON.h>
#include <sys/types.h>

struct admin_terms;
struct pool;

/* Adds "channels", no more than 64, the oldest first, and "total". Each is told to root, the daemon's own user and its
 * own user. */
void report_channels(cJSON *reply, const struct admin_terms *terms, uid_t uid);

/* Adds to the description of a pool how many channels have their memory there, how many bytes these have, and how
 * many consumer places hold slots for a process that is to come. */
void report_channels_of_pool(cJSON *object, const struct pool *pool);

#endif
