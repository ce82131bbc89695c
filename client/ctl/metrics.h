/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_METRICS_H
#define CLIENT_CTL_METRICS_H
/*
 * The daemon's state as metrics for Prometheus, in its text format: of the daemon, of each pool, and of each
 * user. There are no metrics of processes, so the number of time series is bounded by pools and users: some
 * 90 for a pool, and 4 for a user with 2 for each pool.
 */
#include <stdio.h>

struct cJSON;

/* Prints the replies to stats and quota. */
void metrics_print(FILE *stream, const struct cJSON *stats, const struct cJSON *quotas);

#endif
