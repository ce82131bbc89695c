/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_BUFFER_H
#define CLIENT_API_BUFFER_H
/*
 * Calls on buffers for the library's own objects, beyond the public calls.
 */
#include "client/session/fence.h"
#include "proto/proto.h"

struct gpu;
struct gpupool_buffer;
struct gpupool_client;
struct grant;
struct miss;
struct piece;
struct pool;
struct shared_fence;

/* Finds a pool, and checks what can be checked before the daemon is asked for memory: the pool's device is
 * visible in this process, and a stream that is to zero the memory (flag GPUPOOL_ZERO) is not being captured.
 * 0, NO_POOL, NO_GPU, CAPTURING, or what the connection says. */
int buffer_find_pool(struct gpupool_client *client, uint32_t id, void *stream, uint32_t flags,
                     struct pool *ret_pool);

/* gpupool_acquire() without flags, for an object of the library. probe: PROTO_ACQUIRE_PROBE_…, the refusals
 * after which the object asks again or does without. The daemon does not count these as failures. */
int buffer_acquire(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                   uint64_t timeout_ns, uint32_t probe, struct gpupool_buffer *ret_buffer);

/* gpupool_release(), behind a stream of the device that is named. By the public call, host memory belongs to
 * no device, and a default stream is taken for the current device's: wrong for an object that knows its
 * device. The device has to be one of this process (devices_need_device()). */
int buffer_release_on(struct gpupool_client *client, struct gpupool_buffer *buffer, unsigned device,
                      void *stream);

/* Gives back a buffer that could not be used. Only earlier work of its stream may use it. Does not fail:
 * where the daemon is gone, the memory needs no release. */
void buffer_give_back(struct gpupool_client *client, const struct gpupool_buffer *buffer);

/* gpupool_release(), behind a fence that was left already: by a stream of another device than the buffer's,
 * or by one that is behind all its uses. */
int buffer_release_behind(struct gpupool_client *client, struct gpupool_buffer *buffer, struct fence fence);

/* --- for the parts of the public calls --- */

/* Checks what is wrong whatever the client and the pool are: INVALID. */
int buffer_check_acquire(const char *call, uint64_t size_bytes, const void *stream, uint32_t flags);

/* Begins an acquire: checks the pool and the stream (buffer_find_pool()), and then as miss_begin(). stream: not
 * GPUPOOL_OWN_STREAM. flags: GPUPOOL_ZERO is not done here. probe: as in buffer_acquire(). */
int buffer_begin_acquire(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                         uint64_t timeout_ns, uint32_t flags, uint32_t probe, struct miss *miss);

/* The buffer of an acquire that is done. Once for each. */
struct gpupool_buffer buffer_of_miss(struct gpupool_client *client, const struct miss *miss);

/* Zeroes a buffer that was acquired, if the flags say so. Where that fails, the buffer is given back. */
int buffer_finish(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                  uint32_t flags);

/* Says what was to be acquired, before an error's text. Returns the error. */
int buffer_fail_acquire(int error, uint64_t size_bytes, uint32_t pool);

/* Begins a call on a buffer: FORKED, INVALID, STALE. ret_piece gets the buffer's piece, NULL if it is a lease
 * of its own; where it is NULL itself, the piece is looked for later. */
int buffer_enter(struct gpupool_client *client, const struct gpupool_buffer *buffer, const char *call,
                 struct piece **ret_piece);

/* The lease that a buffer lies in, by its piece. */
struct proto_lease_name buffer_lease(const struct gpupool_buffer *buffer, const struct piece *piece);

/* A buffer that is a lease of its own. */
struct gpupool_buffer buffer_of_grant(struct gpupool_client *client, const struct grant *grant);

/* gpupool_acquire() with GPUPOOL_CAN_SLEEP. The other arguments are checked. */
int buffer_acquire_own(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                       uint64_t timeout_ns, uint32_t flags, struct gpupool_buffer *ret_buffer);

/* INVALID, with its text: the buffer sleeps. 0: it does not. */
int buffer_check_awake(struct gpupool_client *client, const struct gpupool_buffer *buffer);

/* INVALID, with its text: what to do, as memory of this pool cannot sleep. */
int buffer_refuse_pool(const struct pool *pool);

/* Zeroes a buffer, in stream order; with GPUPOOL_NO_STREAM it is zero on return. 0, CAPTURING, DRIVER. */
int buffer_zero(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream);

/* Waits on the CPU for the work on a buffer, until a time: that of the stream, and of all that were recorded, which
 * are forgotten then. 0, TIMED_OUT, CAPTURING, DRIVER, NO_MEMORY. */
int buffer_wait(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                uint64_t deadline_ns);

/* Gives such a buffer back, which nothing used. Does not fail, as buffer_give_back(). */
void buffer_end_lease(struct gpupool_client *client, const struct gpupool_buffer *buffer);

/* gpupool_share(), for what goes by the lease in place of a token: *ret_lease is the buffer's own by then, and
 * *ret_fence the one that readers wait for (session 0: none). call: the public function. */
int buffer_share(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                 const char *call, struct proto_lease_name *ret_lease, struct shared_fence *ret_fence);

/* gpupool_attach(), by the daemon's name of a block and the fence of its writer. */
int buffer_attach(struct gpupool_client *client, const struct proto_token *name,
                  const struct shared_fence *fence, void *stream, uint32_t flags,
                  struct gpupool_buffer *ret_buffer);

/* Has the reader of a buffer wait for the work before its writer's fence, on its stream or, with GPUPOOL_NO_STREAM, on
 * the CPU. 0, NO_TOKEN, LOST, TIMED_OUT, CAPTURING, DRIVER, NO_MEMORY. */
int buffer_wait_for_writer(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                           const struct shared_fence *fence);

/* INVALID, with its text: a call does not take GPUPOOL_OWN_STREAM. */
int buffer_refuse_own_stream(const char *call);

/* INVALID, with its text: a call does not take GPUPOOL_CAN_SLEEP. */
int buffer_refuse_sleep(const char *call);

/* Where a stream is that goes with a buffer. *ret_gpu: NULL: no GPU work can touch the buffer. INVALID,
 * CAPTURING, and as devices_need_device(). */
int buffer_find_stream(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                       const struct gpu **ret_gpu, unsigned *ret_device);

/* Says what was being done with which buffer, before an error's text. Returns the error. */
int buffer_fail(int error, const char *doing, const struct gpupool_buffer *buffer);

#endif
