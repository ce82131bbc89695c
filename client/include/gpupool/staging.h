/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_STAGING_H
#define GPUPOOL_STAGING_H
/**
 * Staging: copies between ordinary (pageable) host memory, or a file, and device memory through pinned blocks
 * of the host pool, cut into chunks that several threads copy at once while others are on their way. Some
 * times as fast as the driver's own copy from pageable memory, which is made by one thread, where there is
 * much to copy; up to a few MiB about as fast, or a little slower (the project's docs/benchmarks.md has
 * figures).
 *
 *     ordinary memory ──threads──▶ pinned blocks ──copy engine──▶ device memory      (and back)
 *
 * For memory that is pinned already (a host buffer of the pool, cudaMallocHost, cudaHostRegister)
 * gpupool_copy() is the quicker way; it is copied rightly here as well, as managed memory is. A device
 * pointer is no host pointer: given as one, the program crashes (but on a simulated GPU), as it would with
 * memcpy().
 *
 * Threads: the calling one and, for more than about 1 MiB, the client's copy workers, which the first such
 * copy starts, which sleep between copies, call no CUDA, and end with gpupool_close(). All callers share
 * them. They block all signals but those of faults (SIGSEGV, SIGBUS and their like), which come where the
 * memory is touched: a program that handles them for its memory finds them on these threads too.
 * $GPUPOOL_STAGING_THREADS is how many copy, the calling one included (1 to 32; otherwise half of the
 * processors that the process may use, 8 at most). A client that was opened with GPUPOOL_OPEN_NO_THREAD uses
 * the calling thread alone. $GPUPOOL_STAGING_CHUNK is the size of a large copy's chunks (64KiB to 64MiB;
 * otherwise 2MiB). Both are read by gpupool_open(), which says INVALID to anything else.
 *
 * Memory: a copy uses as many blocks as its threads can keep busy, at most 2 a thread and 4 (40 MiB with 8
 * threads). It waits for the first of them as gpupool_alloc() does (alloc_timeout_ns), for at most a second
 * for one of full size; a pool that has little room is made do with, by fewer and smaller blocks. They stay
 * with the client as all that it releases does, for the next copy.
 *
 * Calls are thread-safe, and return 0 or a negative GPUPOOL_E_…: INVALID, NO_GPU, NO_POOL (no host pool),
 * EXHAUSTED and what else gpupool_acquire() says of the first block, CAPTURING (the stream is being captured
 * into a graph: nothing was done), DRIVER. After an error nothing of the call touches ordinary memory or a
 * file any more, but copies that it enqueued may still be under way on the stream, and write (upload) or read
 * (download) the device memory. The contents of the destination are undefined, and no block stays leased.
 */
#include <gpupool/gpupool.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Copies ordinary memory to a device. On return all of `from` was read, so that it may be changed or freed at
 * once; the device memory is written in the stream's order. A copy that does not fit into its blocks waits
 * for the work that was enqueued on the stream before: do not make that wait for what the calling thread does
 * later.
 * @param device ordinal in this process; it need not be the current one, which stays what it is
 * @param to device memory, of any kind
 * @param from memory that the processor can read; where it cannot, that is a crash of the program
 * @param size_bytes 0: nothing is done
 * @param stream of that device; cudaStreamPerThread is the calling thread's. GPUPOOL_NO_STREAM is refused
 * (INVALID)
 */
GPUPOOL_API int gpupool_upload(struct gpupool_client *client, int device, void *to, const void *from,
                               uint64_t size_bytes, void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Copies device memory to ordinary memory, behind what was enqueued on the stream. On return all bytes are
 * there. Waits for as long as the stream's work takes.
 * @param to memory that the processor can write
 * @param from device memory
 */
GPUPOOL_API int gpupool_download(struct gpupool_client *client, int device, void *to, const void *from,
                                 uint64_t size_bytes, void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Copies a part of a file to a device, read straight into pinned blocks. Otherwise as gpupool_upload(): on
 * return all of it was read.
 * @param fd open for reading. The threads read it by offset (pread) and leave its position alone. A file that
 * cannot be read so (a pipe, a socket, a terminal) is read in order by the calling thread, which waits for
 * input, non-blocking or not. With O_DIRECT, offset and size have to be such as the file system wants them;
 * the addresses are
 * @param offset_bytes where to begin; 0 for a pipe and its like (else INVALID), which begins where it stands
 * @param size_bytes a file that ends earlier is an error
 * @return also INVALID: the file ends before, and DRIVER: it cannot be read (the text has errno's name), both
 * with the offset in the text. The part before that may have been written to the device
 */
GPUPOOL_API int gpupool_upload_file(struct gpupool_client *client, int device, void *to, int fd,
                                    uint64_t offset_bytes, uint64_t size_bytes,
                                    void *stream GPUPOOL_STREAM_OPTIONAL);

#ifdef __cplusplus
}
#endif
#endif
