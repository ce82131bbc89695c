/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_VIEW_H
#define CLIENT_CTL_VIEW_H
/*
 * The daemon's replies for people: tables with units, rounded to what can be read at a glance. Programs take
 * --json, where every byte is exact. Each function prints one reply, which holds the parts that its command
 * asks for; whether standard output took it all is the caller's to check.
 */
#include "client/ctl/table.h"

void view_ping(struct output *output, const struct cJSON *reply);
void view_stats(struct output *output, const struct cJSON *reply);
void view_pools(struct output *output, const struct cJSON *reply);
void view_sessions(struct output *output, const struct cJSON *reply);
void view_quota(struct output *output, const struct cJSON *reply);
/* The sessions that are in quarantine, and why. */
void view_quarantine(struct output *output, const struct cJSON *reply);
/* The buffers that were sent and not taken yet. */
void view_parcels(struct output *output, const struct cJSON *reply);
/* The names, and one that stands for nothing any more. */
void view_names(struct output *output, const struct cJSON *reply);
void view_unpublished(struct output *output, const struct cJSON *reply);
/* The channels, and the processes in their places. */
void view_channels(struct output *output, const struct cJSON *reply);
/* The leases, and the shared blocks with their holders. */
void view_leases(struct output *output, const struct cJSON *reply);
void view_sharing(struct output *output, const struct cJSON *reply);
/* The scopes and their memory; one that was added, changed or dropped. */
void view_scopes(struct output *output, const struct cJSON *reply);
void view_scope_added(struct output *output, const struct cJSON *reply);
void view_scope_set(struct output *output, const struct cJSON *reply);
void view_scope_dropped(struct output *output, const struct cJSON *reply);

void view_session_end(struct output *output, const struct cJSON *reply);
void view_revoked(struct output *output, const struct cJSON *reply);
void view_released(struct output *output, const struct cJSON *reply);
/* The configuration, and the origin of each value. */
void view_config(struct output *output, const struct cJSON *reply);
/* The outcome of a reload. */
void view_reload(struct output *output, const struct cJSON *reply);
void view_trim(struct output *output, const struct cJSON *reply);
void view_drain(struct output *output, const struct cJSON *reply);
/* The things that a restart would keep; that it keeps nothing from now on. */
void view_estate(struct output *output, const struct cJSON *reply);
void view_estate_drop(struct output *output, const struct cJSON *reply);

#endif
