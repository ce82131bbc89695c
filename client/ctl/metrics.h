/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_METRICS_H
#define CLIENT_CTL_METRICS_H
/*
 * The daemon's state as metrics for Prometheus, in its text format: of the daemon, of each pool, of each user
 * of the ordinary socket, and of each scope. There are none of processes, nor of the users of a scope. So the
 * number of time series is bounded: some 90 for a pool, 4 for a user and 5 for a scope, with 2 for each pool.
 */
#include <stdio.h>

struct cJSON;

/* Prints the replies to stats, quota and scopes (NULL: none). */
void metrics_print(FILE *stream, const struct cJSON *stats, const struct cJSON *quotas,
                   const struct cJSON *scopes);

#endif
