/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_EVENTS_H
#define CLIENT_CTL_EVENTS_H
/* "gpupoolctl events": the flight recorder's records, a line each. */
struct options;
struct records;

#define EVENT_LINE_SIZE 256u

/* Writes the last records as lines, "" where there are fewer. Names of processes are left out. */
void events_last(struct records *records, unsigned count, char lines[][EVENT_LINE_SIZE]);

/* Prints the records that the options choose, and with --follow those that come, until it is interrupted.
 * Returns the code to exit with. */
int events_run(const struct options *options);

#endif
