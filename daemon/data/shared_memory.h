/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_SHARED_MEMORY_H
#define DAEMON_DATA_SHARED_MEMORY_H
/* Memory that the daemon's loop and its clients both read and write: a session's page, a user's board. */
#include <stddef.h>

/* Makes a sealed memfd of zeros, and maps it. name: what /proc shows. Returns the descriptor, or a negative
 * errno; then nothing is left. The caller unmaps and closes. */
int shared_memory_make(const char *name, size_t size_bytes, void **ret_memory);

#endif
