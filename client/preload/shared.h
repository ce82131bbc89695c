/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_SHARED_H
#define CLIENT_PRELOAD_SHARED_H
/*
 * CUDA IPC handles of lent memory. Memory that the driver opened by a handle cannot be exported again, so a
 * handle carries gpupool's token instead: a magic text, the token, the size. The process that opens it takes
 * a lease of its own. Opening a handle again gives the same pointer, as in CUDA, and counts; the last close
 * gives the lease back.
 *
 * The table of what is open is the process's; a forked child begins with an empty one. Functions return as
 * those of lending.h. Thread-safe.
 */
#include "client/preload/libcuda.h"

/* Makes the handle of memory that begins at a pointer. NOT_OURS for a pointer into the middle of an
 * allocation. */
int shared_export(void *memory, struct cuda_ipc_handle *ret_handle);

/* In the primary context of the device. */
int shared_open(int device, const struct cuda_ipc_handle *handle, void **ret_memory);

/* Waits for the device and closes. An error of the device leaves the memory open. */
int shared_close(const void *memory);

void shared_after_fork(void);

#endif
