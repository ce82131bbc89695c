/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_HISTORY_H
#define CLIENT_CTL_HISTORY_H
/* "gpupoolctl history": what each hour was like, by pool, from the flight recorder's file. */
struct options;

/* Prints the days and the hours that the options choose. Returns the code to exit with. */
int history_run(const struct options *options);

#endif
