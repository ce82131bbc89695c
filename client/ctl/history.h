/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_HISTORY_H
#define CLIENT_CTL_HISTORY_H
/* "gpupoolctl history": what each hour was like, by pool, from the flight recorder's file. */
#include <stdbool.h>
#include <stdint.h>

struct options;
struct proto_hour;
struct records;

/* Prints the days and the hours that the options choose. Returns the code to exit with. */
int history_run(const struct options *options);

/* The hours of one pool from a moment on and before the hour "end", in order; *hour is 0 at first. Returns
 * false behind the last one. */
bool history_next_hour(const struct records *records, uint64_t since_ns, unsigned pool, uint64_t *hour,
                       uint64_t end, struct proto_hour *ret_hour);

/* Adds an hour to a day, or to another sum of hours of one pool. A sum begins with zeros. */
void history_add(struct proto_hour *sum, const struct proto_hour *hour);

#endif
