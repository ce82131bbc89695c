/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_PAIR_H
#define GPUPOOL_PAIR_H
/**
 * Pairs: pinned host memory and device memory of one object, as the input or the output of a worker has them.
 *
 * Each side only grows. A caller that asks for as much as there is, or less, gets the memory that is there: a
 * comparison and a store, no call, a few nanoseconds. A caller that asks for more gets a larger block from
 * the pool, whose contents are new, and the old block goes back in stream order. So a pair that is asked
 * again and again for sizes up to a bound allocates no more once it has seen the bound. Nothing is copied
 * from one side to the other but by gpupool_pair_copy_to_device() and gpupool_pair_copy_to_host(). (For
 * memory that knows which side is the newer see <gpupool/synced.h>.)
 *
 *     struct gpupool_pair input;
 *     gpupool_pair_init(&input, client, 0, 0);
 *     for (;;) {
 *         float *host = GPUPOOL_PAIR_HOST(&input, float, count, stream);
 *         if (host == NULL) ...                             // gpupool_error_number(), gpupool_error_text()
 *         float *device = GPUPOOL_PAIR_DEVICE(&input, float, count, stream);
 *         ...                                                                 // fill host
 *         gpupool_pair_copy_to_device(&input, count * sizeof(float), stream);
 *         kernel<<<..., stream>>>(device, ...);
 *         cudaStreamSynchronize(stream);                                      // before host is filled again
 *     }
 *     gpupool_pair_clear(&input, stream);
 *
 * A pair is the caller's, by value: gpupool_pair_init() makes it, gpupool_pair_clear() gives its memory back.
 * Do not copy one that holds memory. It is used by one thread at a time, and by any. All its calls work on
 * its own device, whatever the calling thread's current one is, and leave that alone. The members of both
 * structs may be read at any time: who owns which memory, how large it is and where; only the calls here
 * write them (and the caller timeout_ns).
 *
 * Streams: each access names the stream of the pair's device on which the memory is going to be used, and
 * which is behind all work that used it before: then the old block of a side that grows is lent to others
 * only when that work is done, and the new one may be written on the stream at once, by the CPU too. No call
 * waits for that. A program that uses a pair on several streams orders them among each other. NULL is the
 * legacy default stream, GPUPOOL_PER_THREAD the per-thread one. GPUPOOL_NO_STREAM says that no work on the
 * GPU uses the memory any more. A stream that is being captured into a graph is refused (GPUPOOL_E_CAPTURING)
 * by what would have to change the pair's memory, and taken by accesses to what is there and by copies, which
 * become a part of the graph.
 *
 * A C++ program may leave the stream out. For copies that means the per-thread default stream. For all other
 * calls it means GPUPOOL_PAIR_ALL_STREAMS: any stream of the device may use the memory. Before a block goes
 * back, the call then waits on the CPU for all work of this process on the device, as cudaFree() does. A
 * named stream is the faster way.
 *
 * Without a GPU: where the daemon serves no GPU, or this process has none (no driver, no visible device,
 * GPUPOOL_OPEN_NO_CUDA), a pair has its host side only. That works as it does elsewhere, from the pool near
 * the calling thread, and streams mean nothing. Calls that need the device side say GPUPOOL_E_NO_GPU.
 *
 * Streams that end: device memory belongs to the stream that the side grew on, as what gpupool_acquire()
 * gives does. Clear the pair before that stream is destroyed; see gpupool_trim().
 */
#include <gpupool/gpupool.h>

#ifdef __cplusplus
extern "C" {
#endif

/** As a stream of a pair's calls, except copies: any stream of the pair's device may use the memory. A call
 * that gives a block back waits on the CPU for all work of this process on the device first, and says
 * CAPTURING while a stream there is captured; that capture comes to nothing. Other calls do not wait. */
#define GPUPOOL_PAIR_ALL_STREAMS GPUPOOL_STREAM_NUMBER(-2)

/** Marks a last parameter that a C++ program may leave out: that means GPUPOOL_PAIR_ALL_STREAMS. */
#ifdef __cplusplus
#define GPUPOOL_PAIR_STREAM_OPTIONAL = GPUPOOL_PAIR_ALL_STREAMS
#else
#define GPUPOOL_PAIR_STREAM_OPTIONAL
#endif

/** gpupool_pair_init() flags */
/** A side that grew is zero, all of its capacity: the device's in stream order, the host's on return. */
#define GPUPOOL_PAIR_ZERO 1u

/** Whose the memory of a side is. */
enum gpupool_owner {
    GPUPOOL_OWNER_NONE = 0, /**< there is none yet */
    GPUPOOL_OWNER_POOL = 1, /**< on loan from a pool; goes back by itself */
    GPUPOOL_OWNER_USER = 2, /**< adopted: the caller's, and never freed here */
};

/** One side of a pair, to be read. */
struct gpupool_pair_side {
    void *data;                   /**< NULL: no memory yet */
    uint64_t size_bytes;          /**< as asked for last; a request for 0 bytes leaves it. Adopted: all */
    uint64_t capacity_bytes;      /**< what can be had without growing: size_bytes or more */
    uint32_t owner;               /**< enum gpupool_owner */
    uint32_t reserved;
    struct gpupool_buffer buffer; /**< the loan, where the owner is the pool; else zero */
};

struct gpupool_pair {
    struct gpupool_client *client; /**< borrowed: it outlives the pair */
    int32_t device;                /**< whose memory the device side is. -1 only without a GPU */
    uint32_t flags;                /**< GPUPOOL_PAIR_… */
    /** How long growth waits for room. Set to the client's option alloc_timeout_ns; may be changed at any
     * time. */
    uint64_t timeout_ns;
    uint64_t reserved[2];
    struct gpupool_pair_side host, on_device;
};

/**
 * Makes a pair. It has no memory yet.
 * @param pair the caller's; untouched on failure. It must not hold memory: see gpupool_pair_clear()
 * @param client borrowed: to be closed after the pair was cleared
 * @param device ordinal in this process; -1: the calling thread's current one, of now. Without a GPU it is
 * noted, -1 too
 * @param flags 0 or GPUPOOL_PAIR_ZERO
 * @return 0; INVALID; NO_POOL: there is no such device, or the daemon does not serve it; FORKED; DRIVER, …
 */
GPUPOOL_API int gpupool_pair_init(struct gpupool_pair *pair, struct gpupool_client *client, int device,
                                  uint32_t flags);

/**
 * Gives back what the pair has on loan, and lets go of what it adopted. It is as gpupool_pair_init() left it,
 * and can be used again or forgotten. Accepts NULL, and a pair that is all zero.
 * @param stream behind all work that uses the memory
 * @return 0; CAPTURING, DRIVER, DISCONNECTED, … as gpupool_release(): what could not be given back is still
 * the pair's
 */
GPUPOOL_API int gpupool_pair_clear(struct gpupool_pair *pair, void *stream GPUPOOL_PAIR_STREAM_OPTIONAL);

/**
 * Clears one side of a pair. The other side stays as it is. Accepts a side without memory.
 * @param stream behind all work that uses the side's memory
 * @return as gpupool_pair_clear(); INVALID without a pair
 */
GPUPOOL_API int gpupool_pair_clear_host(struct gpupool_pair *pair, void *stream GPUPOOL_PAIR_STREAM_OPTIONAL);
GPUPOOL_API int gpupool_pair_clear_device(struct gpupool_pair *pair,
                                          void *stream GPUPOOL_PAIR_STREAM_OPTIONAL);

/**
 * @name Growth What the accesses below call when a side has less than is asked for. They can be called in
 * advance as well; a size within the capacity is granted as it is. The host side comes from the pool of the
 * device's NUMA node where that is known, else of the calling thread's.
 *
 * On failure the pair has what it had, with its contents, and nothing else is left on loan. There is one
 * exception: where the pool has no room for the old block and the new one beside each other, because its
 * limit is below both together or because it was still full after timeout_ns, the old block is given back
 * first, and the call waits until the stream is through with it, up to timeout_ns. If growth fails even then
 * (others have taken the room; or, for host memory, the pool's segments are each too small, because the
 * daemon does not exchange those for larger ones while they are mapped), the side has no memory, a capacity
 * of 0, and the text says so. With a timeout of GPUPOOL_NOW only a limit below both counts, and
 * GPUPOOL_FOREVER waits for 10 s first where it is a quota of this user that is below both. Memory that was
 * adopted is not let go of in that way, and none is while the daemon is gone.
 * @{
 */
/**
 * @param size_bytes 0: nothing changes
 * @return 0; INVALID, TOO_LARGE, EXHAUSTED, LIMIT, CAPTURING, DRIVER, DISCONNECTED, TIMED_OUT, FORKED, …; of
 * the device side NO_GPU
 */
GPUPOOL_API int gpupool_pair_grow_host(struct gpupool_pair *pair, uint64_t size_bytes,
                                       void *stream GPUPOOL_PAIR_STREAM_OPTIONAL);
GPUPOOL_API int gpupool_pair_grow_device(struct gpupool_pair *pair, uint64_t size_bytes,
                                         void *stream GPUPOOL_PAIR_STREAM_OPTIONAL);
/** @} */

/**
 * @name Access The way that is meant to be taken again and again. Nothing is checked where the side has
 * enough: the pair must be one.
 * @{
 */
/**
 * Host memory of at least so many bytes, aligned to 512 where it is the pool's.
 * @param size_bytes 0: what is there, which may be nothing (NULL); the side and its size_bytes stay as they
 * are
 * @param ret_memory good until the side grows, adopts other memory, or is cleared; untouched on failure
 * @return 0, or as gpupool_pair_grow_host()
 */
static inline int gpupool_pair_host(struct gpupool_pair *pair, uint64_t size_bytes, void **ret_memory,
                                    void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) {
    if (size_bytes - 1 >= pair->host.capacity_bytes) { /* more than there is, or 0 */
        int r = gpupool_pair_grow_host(pair, size_bytes, stream);
        if (r < 0)
            return r;
    } else {
        pair->host.size_bytes = size_bytes;
    }
    *ret_memory = pair->host.data;
    return 0;
}

/** Gives device memory of the pair's device, by the rules of the call for host memory above. */
static inline int gpupool_pair_device(struct gpupool_pair *pair, uint64_t size_bytes, void **ret_memory,
                                      void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) {
    if (size_bytes - 1 >= pair->on_device.capacity_bytes) { /* more than there is, or 0 */
        int r = gpupool_pair_grow_device(pair, size_bytes, stream);
        if (r < 0)
            return r;
    } else {
        pair->on_device.size_bytes = size_bytes;
    }
    *ret_memory = pair->on_device.data;
    return 0;
}

/** Says, for gpupool_error_text(), that there cannot be so many elements of a size: INVALID. Returns NULL. */
GPUPOOL_API void *gpupool_pair_overflow(uint64_t element_bytes, uint64_t count);

/** By element count: what GPUPOOL_PAIR_HOST() and its like are made of. NULL: it failed, as
 * gpupool_error_number() and gpupool_error_text() tell; or 0 elements were asked of a side without memory,
 * and then that number is 0. A product that does not fit into 64 bits is a failure, never a small block. */
static inline void *gpupool_pair_host_elements(struct gpupool_pair *pair, uint64_t element_bytes,
                                               uint64_t count, void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) {
    void *memory = NULL;
    if (element_bytes != 0 && count > UINT64_MAX / element_bytes)
        return gpupool_pair_overflow(element_bytes, count);
    return gpupool_pair_host(pair, element_bytes * count, &memory, stream) == 0 ? memory : NULL;
}

static inline void *gpupool_pair_device_elements(struct gpupool_pair *pair, uint64_t element_bytes,
                                                 uint64_t count, void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) {
    void *memory = NULL;
    if (element_bytes != 0 && count > UINT64_MAX / element_bytes)
        return gpupool_pair_overflow(element_bytes, count);
    return gpupool_pair_device(pair, element_bytes * count, &memory, stream) == 0 ? memory : NULL;
}

/** Host or device memory for count elements of a type, as a pointer to it; NULL: gpupool_error_number() says
 * why. */
#ifdef __cplusplus
#define GPUPOOL_PAIR_HOST(pair, type, count, stream) \
    (static_cast<type *>(gpupool_pair_host_elements((pair), sizeof(type), (count), (stream))))
#define GPUPOOL_PAIR_DEVICE(pair, type, count, stream) \
    (static_cast<type *>(gpupool_pair_device_elements((pair), sizeof(type), (count), (stream))))
#else
#define GPUPOOL_PAIR_HOST(pair, type, count, stream) \
    ((type *)gpupool_pair_host_elements((pair), sizeof(type), (count), (stream)))
#define GPUPOOL_PAIR_DEVICE(pair, type, count, stream) \
    ((type *)gpupool_pair_device_elements((pair), sizeof(type), (count), (stream)))
#endif
/** @} */

/**
 * Makes memory of the caller's own a side of the pair. It is never freed here, and has to stay while the pair
 * has it. The memory that was there before goes back. Asked for more than it holds, the pair takes a block
 * from the pool in its place, and the caller's memory is its own again. NULL or 0 bytes empty the side, as
 * gpupool_pair_clear_host() does.
 * @param memory host memory, pinned (copies overlap then, and are faster) or not; or NULL
 * @param size_bytes all that may be used of it; or 0
 * @param stream behind all work that uses what was there before
 * @return 0; INVALID, also of memory that either side has on loan; CAPTURING, DRIVER, …: nothing changed
 */
GPUPOOL_API int gpupool_pair_adopt_host(struct gpupool_pair *pair, void *memory, uint64_t size_bytes,
                                        void *stream GPUPOOL_PAIR_STREAM_OPTIONAL);
/** Makes memory on the pair's device the device side: as gpupool_pair_adopt_host(), with memory of any
 * allocator. NO_GPU. */
GPUPOOL_API int gpupool_pair_adopt_device(struct gpupool_pair *pair, void *memory, uint64_t size_bytes,
                                          void *stream GPUPOOL_PAIR_STREAM_OPTIONAL);

/**
 * Copies the first bytes of one side to the other, in stream order. On return the copy is enqueued, and done
 * where the host memory is not pinned (adopted) or the stream is GPUPOOL_NO_STREAM: then the legacy default
 * stream makes it.
 * @param stream not GPUPOOL_PAIR_ALL_STREAMS: INVALID
 * @param size_bytes no more than either side has: INVALID. It grows nothing. 0: nothing is done
 * @return 0; INVALID, DRIVER, FORKED, NO_GPU; CAPTURING with GPUPOOL_NO_STREAM, while a capture forbids the
 * default stream
 */
GPUPOOL_API int gpupool_pair_copy_to_device(struct gpupool_pair *pair, uint64_t size_bytes,
                                            void *stream GPUPOOL_STREAM_OPTIONAL);
GPUPOOL_API int gpupool_pair_copy_to_host(struct gpupool_pair *pair, uint64_t size_bytes,
                                          void *stream GPUPOOL_STREAM_OPTIONAL);

#ifdef __cplusplus
} /* extern "C" */

/* Also for who includes this header within an extern "C" of its own, where there can be no templates. */
extern "C++" {
/** In C++ by the type: float *input = gpupool_pair_host<float>(&pair, count); nullptr as for
 * GPUPOOL_PAIR_HOST(). */
template <typename Element>
inline Element *gpupool_pair_host(struct gpupool_pair *pair, uint64_t count,
                                  void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) {
    return static_cast<Element *>(gpupool_pair_host_elements(pair, sizeof(Element), count, stream));
}

template <typename Element>
inline Element *gpupool_pair_device(struct gpupool_pair *pair, uint64_t count,
                                    void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) {
    return static_cast<Element *>(gpupool_pair_device_elements(pair, sizeof(Element), count, stream));
}

#if __cplusplus >= 201103L
namespace gpupool {
/**
 * A pair that gives its memory back when it goes. It holds a struct gpupool_pair, under the same rules; its
 * calls are those of the C interface and throw nothing. It can be moved, not copied. It is to be destroyed
 * before its client is closed.
 *
 * The destructor, and a move into a pair that has memory, wait for the device as GPUPOOL_PAIR_ALL_STREAMS
 * says. They have no result: call clear() before them where one is wanted, or where the stream is known.
 * Memory that cannot be given back then stays on loan until the client is closed.
 */
class pair {
  public:
    pair() noexcept : pair_() {}
    pair(const pair &) = delete;
    pair &operator=(const pair &) = delete;
    pair(pair &&other) noexcept : pair_(other.pair_) { other.pair_ = gpupool_pair(); }
    pair &operator=(pair &&other) noexcept {
        if (this != &other) {
            (void)clear();
            pair_ = other.pair_;
            other.pair_ = gpupool_pair();
        }
        return *this;
    }
    ~pair() { (void)clear(); }

    /** gpupool_pair_init(), once what there was is cleared. */
    int init(gpupool_client *client, int device = -1, uint32_t flags = 0) noexcept {
        int r = clear();
        return r < 0 ? r : gpupool_pair_init(&pair_, client, device, flags);
    }

    /** Memory for count elements, as gpupool_pair_host<Element>() and gpupool_pair_device<Element>(). */
    template <typename Element>
    Element *host(uint64_t count, void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) noexcept {
        return gpupool_pair_host<Element>(&pair_, count, stream);
    }
    template <typename Element>
    Element *device(uint64_t count, void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) noexcept {
        return gpupool_pair_device<Element>(&pair_, count, stream);
    }

    /** The memory that is there, or nullptr. No call, and no failure. */
    template <typename Element> Element *host() noexcept { return static_cast<Element *>(pair_.host.data); }
    template <typename Element> Element *device() noexcept {
        return static_cast<Element *>(pair_.on_device.data);
    }
    template <typename Element> const Element *host() const noexcept {
        return static_cast<const Element *>(pair_.host.data);
    }
    template <typename Element> const Element *device() const noexcept {
        return static_cast<const Element *>(pair_.on_device.data);
    }

    int adopt_host(void *memory, uint64_t size_bytes, void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) noexcept {
        return gpupool_pair_adopt_host(&pair_, memory, size_bytes, stream);
    }
    int adopt_device(void *memory, uint64_t size_bytes, void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) noexcept {
        return gpupool_pair_adopt_device(&pair_, memory, size_bytes, stream);
    }
    int copy_to_device(uint64_t size_bytes, void *stream GPUPOOL_STREAM_OPTIONAL) noexcept {
        return gpupool_pair_copy_to_device(&pair_, size_bytes, stream);
    }
    int copy_to_host(uint64_t size_bytes, void *stream GPUPOOL_STREAM_OPTIONAL) noexcept {
        return gpupool_pair_copy_to_host(&pair_, size_bytes, stream);
    }
    int clear_host(void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) noexcept {
        return gpupool_pair_clear_host(&pair_, stream);
    }
    int clear_device(void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) noexcept {
        return gpupool_pair_clear_device(&pair_, stream);
    }
    int clear(void *stream GPUPOOL_PAIR_STREAM_OPTIONAL) noexcept {
        return gpupool_pair_clear(&pair_, stream);
    }

    /** The pair itself: its sizes, owners and timeout_ns, and for calls of the C interface. Lives as long as
     * this object. */
    gpupool_pair *get() noexcept { return &pair_; }
    const gpupool_pair *get() const noexcept { return &pair_; }

  private:
    gpupool_pair pair_;
};
} /* namespace gpupool */
#endif
} /* extern "C++" */
#endif
#endif
