/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_FENCE_H
#define GPUPOOL_FENCE_H
/**
 * Fences: points in the work of a stream that other streams and the CPU can wait for. A fence does for
 * streams what a CUDA event does (cudaEventRecord(), cudaStreamWaitEvent(), cudaEventQuery(),
 * cudaEventSynchronize()), and what PyTorch's Stream.wait_stream() does with one. It needs no CUDA runtime,
 * and works on a simulated GPU as well.
 *
 * A fence is a value: a place in memory that the stream writes, and the number that it writes there. Copy it
 * freely. There is nothing to create, and nothing to give back. It is good until its client closes, also when
 * its stream was destroyed meanwhile. A fence that is ready stays ready.
 *
 * A fence belongs to the client that recorded it: each call takes that client. A fence of another client, of
 * a client that has closed, or of another process is refused (INVALID), also between processes of the same
 * user: the memory that its stream writes is mapped by its own process and by the daemon alone. A process
 * that hands memory to another one waits by gpupool_fence_wait_host() before it sends the token.
 *
 * Every call is thread-safe. Threads may use copies of one fence at the same time; a fence object itself,
 * like any value, is not to be read while it is written.
 *
 * A stream that is being captured into a graph is refused (CAPTURING), and nothing of the library lands in
 * the graph: a fence has one number, which the graph would write again with each launch. Order a graph with
 * others by fences on the stream that it is launched on, before and behind the launch.
 */
#include <gpupool/gpupool.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A point in the work of a stream. The members are the library's. A fence that is all zero is ready. */
struct gpupool_fence {
    uint64_t client; /**< names the client: a random number */
    uint64_t value;
    uint32_t word;
    int32_t device;  /**< of the stream */
};
#define GPUPOOL_FENCE_INIT {0, 0, 0, 0}

/**
 * Records a fence on a stream. The fence is ready when all work is done that was enqueued on the stream
 * before. Takes about a microsecond. Does not wait for the GPU, except where there can be no fence (see
 * gpupool_release()): then the call waits for the stream, and the fence is ready on return.
 * @param device the stream's: ordinal in this process
 * @param ret_fence untouched on failure
 * @param stream not GPUPOOL_NO_STREAM. Of the per-thread default stream the calling thread's own is meant,
 * and any thread may wait for its fence
 * @return 0; INVALID, CAPTURING, NO_GPU, DRIVER, FORKED
 */
GPUPOOL_API int gpupool_fence_record(struct gpupool_client *client, int device,
                                     struct gpupool_fence *ret_fence, void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Makes a stream wait for a fence, on the GPU: what is enqueued on the stream after this call begins when the
 * fence is ready. The CPU does not wait. Nothing is enqueued for a fence that is ready.
 * @param device the waiting stream's: ordinal in this process. It may be another device than the fence's
 * @param stream not GPUPOOL_NO_STREAM
 * @return 0; INVALID (also: the fence is not this client's), CAPTURING, NO_GPU, DRIVER, FORKED
 */
GPUPOOL_API int gpupool_fence_wait(struct gpupool_client *client, int device,
                                   const struct gpupool_fence *fence, void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Whether a fence is ready. A load from memory: neither the driver nor the daemon is asked, and no capture is
 * disturbed. When it is ready, the CPU sees what the stream wrote to host memory before. The fence of a
 * device that failed never becomes ready: gpupool_fence_wait_host() tells.
 * @param ret_ready 1 or 0; untouched on failure
 * @return 0; INVALID, FORKED
 */
GPUPOOL_API int gpupool_fence_query(struct gpupool_client *client, const struct gpupool_fence *fence,
                                    int *ret_ready);

/**
 * Waits for a fence on the CPU. The thread sleeps in between, at most 1 ms at a time.
 * @param timeout_ns how long: GPUPOOL_NOW, a time, or GPUPOOL_FOREVER
 * @return 0: it is ready; TIMED_OUT: it is not ready yet; INVALID, FORKED; DRIVER: the device has failed,
 * which is asked for every 100 ms
 */
GPUPOOL_API int gpupool_fence_wait_host(struct gpupool_client *client, const struct gpupool_fence *fence,
                                        uint64_t timeout_ns);

#ifdef __cplusplus
}
#endif
#endif
