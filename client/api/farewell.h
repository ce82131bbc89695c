/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_FAREWELL_H
#define CLIENT_API_FAREWELL_H
/*
 * The open clients of the process, for a farewell at its end (gpupool_internal_say_farewell() in binding.h).
 *
 * Invariant: the list has the clients that gpupool_open() has returned and gpupool_close() has not begun
 * with; in a forked child its parents', too, and in none those that have left. The lock is a leaf.
 */
#include "client/api/client.h"

/* Enters a client that is open; takes it out again, and waits where it is saying farewell. Thread-safe. */
void farewell_enter(struct gpupool_client *client);
void farewell_remove(struct gpupool_client *client);

#endif
