/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_LENDING_H
#define CLIENT_PRELOAD_LENDING_H
/*
 * The process's client of gpupoold and what the interposed functions do with it: allocate and free as the
 * CUDA driver does, with its error numbers.
 *
 * The client is CLOSED until the first call that needs it, then OPEN until the process ends. It is OFF for
 * good when it cannot be opened or when the daemon is lost: from then on, allocations are the driver's own,
 * one line on stderr says so, and memory that was lent before stays usable. A forked child begins with
 * CLOSED.
 *
 * Functions that return int return a CUresult, or NOT_OURS: the real function is to be called. Thread-safe.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <gpupool/gpupool.h>

#define NOT_OURS (-1)

/* Where memory lies. */
enum lend_kind {
    LEND_DEVICE, /* on the calling thread's current device */
    LEND_HOST,   /* pinned, in the pool of the NUMA node where the thread runs */
};

/* The client, opened if need be; NULL: it is OFF. */
struct gpupool_client *lend_client(void);

/* The client, if it is OPEN; else NULL. */
struct gpupool_client *lend_client_if_open(void);

/* Memory of the device, or pinned memory, is used by this process. */
void lend_note_device(int device);

/* Allocates 1 byte or more. device: the thread's current one.
 *
 * It waits for room for ALLOC_TIMEOUT_NS, or GPUPOOL_ALLOC_TIMEOUT; without that variable also for as long
 * as the daemon's requests for idle memory go on bringing some, at most COMING_TIMEOUT_NS. The first attempt
 * of a caller that frees its own cache when it is refused, and then tries again (retries.h), waits for idle
 * memory only: its cache may be what another process waits for in the same way. A later attempt of the same
 * thread for no more is such a retry. */
int lend(int device, enum lend_kind kind, size_t size_bytes, void **ret_memory);

/* Allocates 1 byte or more of device memory in the order of a stream: work that the stream gets from now on
 * may use it. It waits as lend() does. */
int lend_in_order(int device, size_t size_bytes, void *stream, void **ret_memory);

/* Finds the memory at a pointer: 0 and the buffer; NOT_OURS; CUDA_INVALID_VALUE: it was freed before. */
int lend_find(void *memory, struct gpupool_buffer *ret_buffer);

/* Waits until the GPU is done with a buffer, as cuMemFree() does: for all work on its device; for host
 * memory, on all devices that this process uses. 0 or what the driver says; a capture that goes on is an
 * error there. */
int lend_wait(const struct gpupool_buffer *buffer);

/* As lend_wait(), but not for devices of the set, to which it adds those that it waited for. */
int lend_wait_once(const struct gpupool_buffer *buffer, uint64_t *devices);

/* Frees what lend_find() found. The GPU is done with it, or a stream (not GPUPOOL_NO_STREAM) orders its end.
 */
int lend_free(void *memory, void *stream);

/* Finds, waits and frees, from any context. NOT_OURS as lend_find(). */
int lend_release(void *memory);

/* The devices on which memory was lent, a bit each. */
uint64_t lend_devices(void);

/* For a thread of this library: its current device is one that the process uses. By default it is device 0,
 * where a wait could make a context. */
void lend_use_a_device(void);

/* Whether the calling thread is inside this library. Interposed functions that it calls then are the real
 * ones. */
bool lend_is_inside(void);

/* Marks the thread as inside until lend_leave(). Returns what it was before, for lend_leave(). */
bool lend_enter(void);
void lend_leave(bool before);

/* A line on stderr, if GPUPOOL_PRELOAD_VERBOSE is set to anything but 0. */
void lend_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
