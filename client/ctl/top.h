/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_TOP_H
#define CLIENT_CTL_TOP_H
/*
 * "gpupoolctl top": the pools, the requests that wait, the quarantine and the processes, again and again.
 * This is its loop: it asks the daemon (top_sample.h), has a screen drawn (top_screen.h), and reads keys,
 * where there is a terminal.
 */
#include "base/clock.h"

struct options;

/* Of the option interval_ns. */
#define TOP_INTERVAL_MIN_NS (100 * NS_PER_MS)
#define TOP_INTERVAL_MAX_NS (60 * NS_PER_S)

/* Returns the code to exit with. The daemon's address is known. */
int top_run(const struct options *options);

#endif
