/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_BINDING_H
#define CLIENT_API_BINDING_H
/*
 * The calls of the library that language bindings use beside its public headers.
 *
 * A hit is an acquire or a release that the calling thread's cache serves: no lock of another thread is
 * waited for, and no system call is made. A binding tries it before it gives up its interpreter's lock for a
 * call that may wait.
 *
 * The names are the static library's: it keeps internal names with this prefix for its own members.
 */
#include <stdbool.h>
#include <stdint.h>

struct gpupool_buffer;
struct gpupool_client;

/* As gpupool_acquire() without flags, if the thread's cache has a piece. False: nothing was done, and the
 * thread's error is as it was. */
bool gpupool_internal_acquire_hit(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes,
                                  void *stream, struct gpupool_buffer *ret_buffer);

/* As gpupool_release(), if the thread's cache takes the piece; zeroes the buffer. False: nothing was done. */
bool gpupool_internal_release_hit(struct gpupool_client *client, struct gpupool_buffer *buffer,
                                  const void *stream);

/* Whether a request that was begun and not ended is complete: then its end waits for nothing, and it needs no
 * descriptor. */
bool gpupool_internal_request_is_complete(struct gpupool_client *client, uint64_t request);

/* Whether the client's calls reach its daemon: the daemon lives, has not ended the session, and the client is
 * no parent's in a forked child. */
bool gpupool_internal_is_connected(const struct gpupool_client *client);

/* 0, or FORKED: the client is a parent's of this process, which does not have the memory of its buffers. */
int gpupool_internal_check_process(const struct gpupool_client *client);

/* 0, or FORKED: the address lies in memory of a pool that a parent of this process has. An access would end
 * the process. */
int gpupool_internal_check_address(const void *address);

/* At the end of the process, says farewell for all its open clients, whatever buffers are open. Waits for the
 * process's work on the devices, but no longer than a client's answer_timeout: where the GPU does not come to
 * an end, or the driver keeps memory mapped, the client says no farewell, and its memory waits for the end of
 * the process. Other threads may run, in any call. Where host memory of the pools was there is memory of this
 * process alone then, of zeros. Memory of a GPU is not mapped any more. Calls about the clients fail with
 * DISCONNECTED. In a forked child, nothing is done for its parents' clients.
 */
void gpupool_internal_say_farewell(void);

/* When an exchange that begins now is over: at the latest. */
uint64_t gpupool_internal_answer_end_ns(const struct gpupool_client *client);

/* From now on the calls of this thread end by then, and with CANCELLED when a signal comes while the daemon
 * does not answer. The call can be made again: what the daemon does late is undone, or found done. 0: no
 * more. Does nothing in a thread that is not the process's first one, which Python runs handlers in. */
void gpupool_internal_until_signal(uint64_t end_ns);

/* The path of the private daemon of this process and its children, whether it runs or not; NULL: there is no
 * place for one. Thread-safe. */
const char *gpupool_internal_private_path(void);

/* The device of a stream, which is not GPUPOOL_NO_STREAM; -1: this process has no GPU. *ret_device is untouched on
 * failure. 0; DRIVER: it is the stream of no device; CAPTURING. */
int gpupool_internal_stream_device(struct gpupool_client *client, void *stream, int *ret_device);

/* Whether the memory of a pool can be mapped for reading alone; false, too, if the daemon does not tell. */
bool gpupool_internal_can_map_read_only(struct gpupool_client *client, uint32_t pool);

/* How long gpupool_alloc() waits for room. */
uint64_t gpupool_internal_alloc_timeout_ns(const struct gpupool_client *client);

#endif
