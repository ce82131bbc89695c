/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_DATA_SHARED_MEMORY_H
#define DAEMON_DATA_SHARED_MEMORY_H
/* Memory that the daemon's loop and its clients both read and write: a session's page, a user's board. */
#include <stddef.h>

/* Makes a sealed memfd of zeros, and maps it. name: what /proc shows. Returns the descriptor, or a negative
 * errno; then nothing is left. The caller unmaps and closes. */
int shared_memory_make(const char *name, size_t size_bytes, void **ret_memory);

/* Maps one that a daemon before has made. fd: stays the caller's. Returns 0, or a negative errno; -EBADMSG: it is
 * none of this size. */
int shared_memory_take(int fd, size_t size_bytes, void **ret_memory);

#endif
