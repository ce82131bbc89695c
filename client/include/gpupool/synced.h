/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_SYNCED_H
#define GPUPOOL_SYNCED_H
/**
 * A synchronised array: one logical array of bytes with a copy in pinned host memory and one in device
 * memory, which knows which of the two is the newer and copies exactly when that is needed. Memory comes from
 * the pools, the first time that a side is asked for, and only grows.
 *
 *                         host access              device access
 *     UNINITIALIZED ──▶ HOST_NEWER                DEVICE_NEWER        (READ, WRITE: zeroed first. OVERWRITE: not)
 *     HOST_NEWER    ──▶ stays                     READ: IN_STEP       WRITE, OVERWRITE: DEVICE_NEWER
 *     DEVICE_NEWER  ──▶ READ: IN_STEP             stays               WRITE, OVERWRITE: HOST_NEWER
 *     IN_STEP       ──▶ READ: stays               READ: stays         else the side that is written is the newer
 *
 * Code by element type: GPUPOOL_SYNCED_READ_HOST(array, float, stream) and its like return a pointer, to
 * constant elements where contents are only read.
 *
 * Stream order. An access for the device names the stream on which the memory will be used, and makes it
 * wait, on the GPU, for what that use has to come behind: a read for the copy or the write that made the
 * contents, a write for all streams that use them. Nothing else: readers on several streams do not wait for
 * each other, and the CPU does not wait at all. On the stream that used the array last nothing is enqueued.
 * An access for the host makes the CPU wait for just the copy that it needs, not for what was enqueued after
 * it.
 *
 * How long an access lasts: work on its stream may read the memory until the next access that writes (a WRITE
 * or an OVERWRITE, of either side; or a resize to more, adopt, move or destroy), and write it, if that was
 * asked for, until the next call of any kind for the host or for another stream. Work that is enqueued until
 * then is waited for; later work is not. The CPU uses a host pointer within the same bounds, and writes it
 * until the next call for the device.
 *
 * The per-thread default stream is another one in each thread. Another thread's has no name: an access that
 * has to come behind work on it waits on the CPU for all of the device, which CUDA does not allow while a
 * stream there is captured: then the access says CAPTURING, and the capture comes to nothing. Created streams
 * avoid all that; they are also better where many threads come and go, because an array remembers each stream
 * that read it until it is written or settled.
 *
 * A stream that is captured into a graph: an access that would have to copy, zero, or make streams wait says
 * CAPTURING and does nothing; one that has to do nothing succeeds, and counts as made then, whatever becomes
 * of the graph. Make the array ready on the stream before the capture begins. A graph uses its arrays
 * whenever it is launched: before each launch, access the array on the stream that it is launched on.
 *
 * Streams that end: gpupool_synced_settle(), before a stream is destroyed that has used the array. The memory
 * is of no stream, and stays.
 *
 * An array of 0 bytes is one like any other: it has states, and no memory. Its accesses succeed and give what
 * is there from a larger size, or NULL; they copy, zero and order nothing.
 *
 * Without a GPU (the daemon serves none, or this process has no driver, no visible device or
 * GPUPOOL_OPEN_NO_CUDA) an array has its host copy only. Calls for the host work as elsewhere, with any
 * stream, GPUPOOL_NO_STREAM too. Calls that need the device say NO_GPU: the accesses for it, a push that has
 * to copy, adopting device memory, and moving.
 *
 * One thread at a time uses an array. Errors are those of gpupool_acquire() and CAPTURING, DRIVER, FORKED,
 * INVALID, NO_MEMORY; the array is then in the state that it was in, and the call may be tried again.
 */
#include <gpupool/gpupool.h>
#include <gpupool/pair.h>

#ifdef __cplusplus
extern "C" {
#endif

struct gpupool_synced;

/** Which of the two copies is good. */
enum gpupool_synced_state {
    GPUPOOL_SYNCED_UNINITIALIZED = 0, /**< neither: the array has no contents yet */
    GPUPOOL_SYNCED_HOST_NEWER = 1,    /**< the host's */
    GPUPOOL_SYNCED_DEVICE_NEWER = 2,  /**< the device's */
    GPUPOOL_SYNCED_IN_STEP = 3,       /**< both */
};

/** The purpose of an access. */
enum gpupool_access {
    GPUPOOL_READ = 1,      /**< contents are read: the other side stays good */
    GPUPOOL_WRITE = 2,     /**< contents are read and written, or written in part: the other side becomes old */
    GPUPOOL_OVERWRITE = 3, /**< all of it will be written: nothing is copied before; the other side gets old */
};

/** As a device of gpupool_synced_create(): the array has none until the first call that needs one (an access
 * for the device, a push that has to copy, adopting device memory), and then the current device of the thread
 * that makes that call. Until then host memory comes from the pool near the calling thread, and calls for the
 * host take any stream, GPUPOOL_NO_STREAM too. gpupool_synced_move() gives the array a device as well. */
#define GPUPOOL_DEVICE_OF_FIRST_ACCESS (-2)

struct gpupool_synced_info {
    uint64_t size_bytes;
    uint64_t host_capacity_bytes, device_capacity_bytes; /**< what each side has; 0: no memory yet */
    /** Copies that the array made since it was created. One that failed does not count. */
    uint64_t copies_to_device, copies_to_host, copies_between_devices;
    uint64_t zeroed;       /**< how often a side was zeroed */
    uint32_t state;        /**< enum gpupool_synced_state */
    uint32_t host_owner;   /**< enum gpupool_owner */
    uint32_t device_owner; /**< enum gpupool_owner */
    int32_t device;        /**< ordinal in this process; -1: none yet */
    uint64_t reserved[2];  /**< 0 */
};

/**
 * Makes an array, UNINITIALIZED and without memory.
 * @param client borrowed: outlives the array. Its option alloc_timeout_ns says how long an access may wait
 * for room
 * @param device ordinal in this process; -1: the calling thread's current one, of now;
 * GPUPOOL_DEVICE_OF_FIRST_ACCESS. Later calls work whatever is current. Without a GPU any of these
 * @param size_bytes 0 or more
 * @param ret_array owned by the caller, gpupool_synced_destroy() gives it back; untouched on failure
 * @return 0; INVALID, NO_POOL, NO_MEMORY, FORKED, …
 */
GPUPOOL_API int gpupool_synced_create(struct gpupool_client *client, int device, uint64_t size_bytes,
                                      struct gpupool_synced **ret_array);

/**
 * Ends an array. Its memory goes back on the stream, which waits, on the GPU, for all streams that used it;
 * adopted memory is the caller's again behind what is enqueued on the stream so far. Accepts NULL. In a
 * forked child it only frees memory. Where the daemon is gone, what was on loan from it goes back when the
 * process ends.
 * @param stream of the array's device. GPUPOOL_NO_STREAM: the CPU waits instead, and adopted memory is free
 * on return
 * @return 0; CAPTURING, DRIVER, …: the array is still there, to be destroyed, and may have lost its contents
 */
GPUPOOL_API int gpupool_synced_destroy(struct gpupool_synced *array, void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Changes the array's size. While the memory that the array has is enough, this costs nanoseconds. A smaller
 * or equal size keeps the first bytes and the state. A larger size makes the array UNINITIALIZED, and its
 * contents are gone. The next access replaces memory that is too small.
 * @param size_bytes 0 or more
 * @return 0; INVALID
 */
GPUPOOL_API int gpupool_synced_resize(struct gpupool_synced *array, uint64_t size_bytes);

/**
 * Access on the CPU. Waits for the copy to host memory that it needs; a WRITE or an OVERWRITE also until
 * copies from there are through.
 * @param ret_memory at least size_bytes; NULL only for 0 bytes; untouched on failure
 * @param stream of the array's device: where a copy is made, if one is needed, behind the last write of the
 * device copy. Nothing else is enqueued there
 */
GPUPOOL_API int gpupool_synced_host(struct gpupool_synced *array, enum gpupool_access access,
                                    void **ret_memory, void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Access on the GPU, by work that is enqueued on the stream after this call. Never waits for the GPU, but as
 * said above of per-thread streams, and of streams for which there can be no fence in gpupool_release(); with
 * pageable host memory (see gpupool_synced_adopt_host()) the driver may.
 * @param ret_memory device memory of at least size_bytes; NULL only for 0 bytes; untouched on failure
 * @param stream of the array's device; not GPUPOOL_NO_STREAM
 */
GPUPOOL_API int gpupool_synced_device(struct gpupool_synced *array, enum gpupool_access access,
                                      void **ret_memory, void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * @name Access by type What gpupool_synced_host() and gpupool_synced_device() give, as a pointer to a type.
 * To read gives constant elements. In C:
 *
 *     const float *input = GPUPOOL_SYNCED_READ_DEVICE(array, float, stream);
 *     float *output = GPUPOOL_SYNCED_OVERWRITE_HOST(array, float, stream);
 *
 * In C++ also gpupool_synced_read_device<float>(array, stream) and its like, where the stream may be left
 * out. NULL: the access failed, and gpupool_error_number() and gpupool_error_text() tell why; or the array
 * has 0 bytes, and then that number is 0.
 * @{
 */
static inline void *gpupool_synced_host_memory(struct gpupool_synced *array, enum gpupool_access access,
                                               void *stream GPUPOOL_STREAM_OPTIONAL) {
    void *memory = NULL;
    return gpupool_synced_host(array, access, &memory, stream) == 0 ? memory : NULL;
}

static inline void *gpupool_synced_device_memory(struct gpupool_synced *array, enum gpupool_access access,
                                                 void *stream GPUPOOL_STREAM_OPTIONAL) {
    void *memory = NULL;
    return gpupool_synced_device(array, access, &memory, stream) == 0 ? memory : NULL;
}

#ifdef __cplusplus
#define GPUPOOL_SYNCED_CAST(type, memory) (static_cast<type *>(memory))
#else
#define GPUPOOL_SYNCED_CAST(type, memory) ((type *)(memory))
#endif
#define GPUPOOL_SYNCED_READ_HOST(array, type, stream) \
    GPUPOOL_SYNCED_CAST(const type, gpupool_synced_host_memory((array), GPUPOOL_READ, (stream)))
#define GPUPOOL_SYNCED_WRITE_HOST(array, type, stream) \
    GPUPOOL_SYNCED_CAST(type, gpupool_synced_host_memory((array), GPUPOOL_WRITE, (stream)))
#define GPUPOOL_SYNCED_OVERWRITE_HOST(array, type, stream) \
    GPUPOOL_SYNCED_CAST(type, gpupool_synced_host_memory((array), GPUPOOL_OVERWRITE, (stream)))
#define GPUPOOL_SYNCED_READ_DEVICE(array, type, stream) \
    GPUPOOL_SYNCED_CAST(const type, gpupool_synced_device_memory((array), GPUPOOL_READ, (stream)))
#define GPUPOOL_SYNCED_WRITE_DEVICE(array, type, stream) \
    GPUPOOL_SYNCED_CAST(type, gpupool_synced_device_memory((array), GPUPOOL_WRITE, (stream)))
#define GPUPOOL_SYNCED_OVERWRITE_DEVICE(array, type, stream) \
    GPUPOOL_SYNCED_CAST(type, gpupool_synced_device_memory((array), GPUPOOL_OVERWRITE, (stream)))
/** @} */

/**
 * Starts the copy to the device, if one is needed, and returns: HOST_NEWER becomes IN_STEP, another state
 * stays. So an access on another stream finds the copy under way, and waits for that only. The host's copy
 * may be read at once; a WRITE access for the host waits until it was read.
 * @param stream of the array's device, not GPUPOOL_NO_STREAM; the copy waits for what uses the device's
 * memory
 */
GPUPOOL_API int gpupool_synced_push(struct gpupool_synced *array, void *stream GPUPOOL_STREAM_OPTIONAL);

/** Starts the copy to the host, if one is needed, and returns: DEVICE_NEWER becomes IN_STEP, another state
 * stays. Otherwise as gpupool_synced_push(); the access for the host waits for it. */
GPUPOOL_API int gpupool_synced_pull(struct gpupool_synced *array, void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Makes memory of the caller's the array's host memory, with contents that count: the array is HOST_NEWER.
 * The memory is never freed here; once the array is resized to more, memory from the pool takes its place.
 * The memory that was there before goes back, on the stream, which waits for its users.
 * @param memory size_bytes (the array's) of host memory; NULL only for 0 bytes; where it is not pinned
 * (cudaHostRegister and its like), the driver copies through a buffer of its own, and calls that copy may
 * wait for it. INVALID: some of it is on loan from the pool here
 * @param stream of the array's device; not GPUPOOL_NO_STREAM
 */
GPUPOOL_API int gpupool_synced_adopt_host(struct gpupool_synced *array, void *memory,
                                          void *stream GPUPOOL_STREAM_OPTIONAL);

/** Makes device memory of the caller's, on the array's device, the array's device memory, by the rules of the
 * call for host memory above: the array is DEVICE_NEWER. The contents count behind what is enqueued on the
 * stream so far. */
GPUPOOL_API int gpupool_synced_adopt_device(struct gpupool_synced *array, void *memory,
                                            void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Moves the array to another device. Where only the device's copy is good, it is copied to memory of the new
 * device, from device to device, in stream order. Otherwise the old memory is given back, and the next access
 * for the device copies from the host.
 * @param device ordinal in this process; -1: the calling thread's current one. The one that the array is on:
 * nothing is done
 * @param stream of the new device, not GPUPOOL_NO_STREAM; it waits for all streams that used the old memory
 * @return 0; INVALID: there is no such device; NO_POOL: the daemon does not serve it; …: the array is where
 * it was
 */
GPUPOOL_API int gpupool_synced_move(struct gpupool_synced *array, int device,
                                    void *stream GPUPOOL_STREAM_OPTIONAL);

/** Waits on the CPU until no stream uses the array any more, and forgets the streams that did: to be called
 * before one of them is destroyed. DRIVER, CAPTURING. */
GPUPOOL_API int gpupool_synced_settle(struct gpupool_synced *array);

/** Describes the array. No message is sent. INVALID. */
GPUPOOL_API int gpupool_synced_query(const struct gpupool_synced *array,
                                     struct gpupool_synced_info *ret_info);

#ifdef __cplusplus
} /* extern "C" */

/* Also for a program that includes this header within an extern "C" of its own, where there can be no
 * templates. */
extern "C++" {
/* Access by type. GPUPOOL_READ gives constant elements. */
template <typename Element>
inline const Element *gpupool_synced_read_host(struct gpupool_synced *array,
                                               void *stream GPUPOOL_STREAM_OPTIONAL) {
    return GPUPOOL_SYNCED_READ_HOST(array, Element, stream);
}

template <typename Element>
inline Element *gpupool_synced_write_host(struct gpupool_synced *array,
                                          void *stream GPUPOOL_STREAM_OPTIONAL) {
    return GPUPOOL_SYNCED_WRITE_HOST(array, Element, stream);
}

template <typename Element>
inline Element *gpupool_synced_overwrite_host(struct gpupool_synced *array,
                                              void *stream GPUPOOL_STREAM_OPTIONAL) {
    return GPUPOOL_SYNCED_OVERWRITE_HOST(array, Element, stream);
}

template <typename Element>
inline const Element *gpupool_synced_read_device(struct gpupool_synced *array,
                                                 void *stream GPUPOOL_STREAM_OPTIONAL) {
    return GPUPOOL_SYNCED_READ_DEVICE(array, Element, stream);
}

template <typename Element>
inline Element *gpupool_synced_write_device(struct gpupool_synced *array,
                                            void *stream GPUPOOL_STREAM_OPTIONAL) {
    return GPUPOOL_SYNCED_WRITE_DEVICE(array, Element, stream);
}

template <typename Element>
inline Element *gpupool_synced_overwrite_device(struct gpupool_synced *array,
                                                void *stream GPUPOOL_STREAM_OPTIONAL) {
    return GPUPOOL_SYNCED_OVERWRITE_DEVICE(array, Element, stream);
}
} /* extern "C++" */
#endif
#endif
