/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_VIEW_H
#define CLIENT_CTL_VIEW_H
/*
 * The daemon's replies for people: tables with units, rounded to what can be read at a glance. Programs take
 * --json, where every byte is exact. Each function prints one reply, which holds the parts that its command
 * asks for, and returns 0 or -ENOMEM; whether the file took it all is the caller's to check.
 */
#include <stdbool.h>
#include <stdio.h>

#include "client/ctl/json.h"

int view_ping(const struct cJSON *reply, FILE *file, bool color);
int view_stats(const struct cJSON *reply, FILE *file, bool color);
int view_pools(const struct cJSON *reply, FILE *file, bool color);
int view_sessions(const struct cJSON *reply, FILE *file, bool color);
int view_quota(const struct cJSON *reply, FILE *file, bool color);
/* The sessions that are in quarantine, and why. */
int view_quarantine(const struct cJSON *reply, FILE *file, bool color);
int view_released(const struct cJSON *reply, FILE *file, bool color);
int view_trim(const struct cJSON *reply, FILE *file, bool color);

#endif
