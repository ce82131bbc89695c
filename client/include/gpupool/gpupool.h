/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GPUPOOL_GPUPOOL_H
#define GPUPOOL_GPUPOOL_H
/**
 * libgpupool-client: GPU memory and pinned host memory from the pools of gpupoold.
 *
 * A client is one connection of this process to the daemon. From its pools a program acquires buffers, uses
 * them like memory of its own (device pointers in kernels and copies, host pointers anywhere), hands them to
 * other processes of the same user by token, and releases them. Memory belongs to the daemon: it outlives the
 * program, and comes back by itself when the program ends.
 *
 * Every call is thread-safe, except that one buffer object is used by one thread at a time. Calls return 0 or
 * a negative GPUPOOL_E_… ; gpupool_error_text() then has the full story. The library never prints, never
 * exits, never changes the caller's current device, context or pending CUDA error, and refuses to work in a
 * forked child (a child that executes a program, or opens a client of its own, is fine).
 *
 * Streams are cudaStream_t, passed as void *: NULL is the legacy default stream, also in a program that is
 * compiled with --default-stream per-thread, which passes cudaStreamPerThread (GPUPOOL_PER_THREAD); with a
 * simulated GPU or for plain host use, those of gpupool_stream_create(). Sizes are bytes, times nanoseconds.
 *
 * Arguments come in one order: the client or object, the device or pool, the element type, what is asked
 * (sizes, counts, accesses), results, and last a stream that a C++ program may leave out. gpupool_acquire(),
 * whose stream cannot be left out, has it behind the size.
 */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUPOOL_VERSION_MAJOR 0
#define GPUPOOL_VERSION_MINOR 2
#define GPUPOOL_VERSION_PATCH 0

#if defined(__GNUC__)
#define GPUPOOL_API __attribute__((visibility("default")))
#else
#define GPUPOOL_API
#endif

/** Errors. The numbers down to -14 are also the wire's. */
enum gpupool_error {
    GPUPOOL_OK = 0,
    GPUPOOL_E_INVALID = -1,       /**< an argument is out of its range */
    GPUPOOL_E_VERSION = -2,       /**< library and daemon have no protocol version in common */
    GPUPOOL_E_NO_POOL = -3,       /**< no such pool, or its device is not visible in this process */
    GPUPOOL_E_TOO_LARGE = -4,     /**< larger than the pool may ever be */
    GPUPOOL_E_EXHAUSTED = -5,     /**< no room, and the deadline passed; the text says who holds what */
    GPUPOOL_E_STALE = -6,         /**< this buffer was released before, or never was this client's */
    GPUPOOL_E_NO_TOKEN = -7,      /**< nothing is shared under this token, or not with this user */
    GPUPOOL_E_SHARED = -8,        /**< others hold the buffer too: it can only be released whole */
    GPUPOOL_E_LIMIT = -9,         /**< as many sessions, leases or waiting requests as allowed, or more bytes
                                   * than the user may ever have */
    GPUPOOL_E_DRIVER = -10,       /**< CUDA or the kernel refused; the text has its error's name */
    GPUPOOL_E_SHUTDOWN = -11,     /**< the daemon is stopping */
    GPUPOOL_E_NO_MEMORY = -12,    /**< no memory for bookkeeping, here or in the daemon */
    GPUPOOL_E_CANCELLED = -13,    /**< the request was cancelled, see gpupool_request_cancel() */
    GPUPOOL_E_NO_NAME = -14,      /**< nothing is published under this name: <gpupool/names.h> */
    GPUPOOL_E_CONNECT = -32,      /**< no daemon answers at the socket */
    GPUPOOL_E_DISCONNECTED = -33, /**< the daemon is gone. Buffers stay usable; the client has what is idle
                                   * beside them. Close it, and open another: gpupool_is_connected() */
    GPUPOOL_E_TIMED_OUT = -34,    /**< the daemon did not answer in time */
    GPUPOOL_E_PROTOCOL = -35,     /**< the daemon broke the protocol; the connection is closed */
    GPUPOOL_E_FORKED = -36,       /**< the client belongs to the parent of this process */
    GPUPOOL_E_CAPTURING = -37,    /**< the stream is being captured into a graph: nothing was done */
    GPUPOOL_E_NO_GPU = -38,       /**< the call needs a GPU, and this process or the daemon has none */
    GPUPOOL_E_LOST = -39, /**< a process that shared a buffer ended before its GPU work on it was done; see
                             gpupool_attach() */
    GPUPOOL_E_ENDED = -40,  /**< the producer of a channel has left it, and all that it sent was received */
    GPUPOOL_E_VACANT = -41, /**< no process is on the other side of a channel: it died. Another one may come */
};

/** Timeouts. */
#define GPUPOOL_NOW     UINT64_C(0) /**< only what needs no waiting */
#define GPUPOOL_FOREVER UINT64_MAX

/** A stream by a number instead of a handle, in C and in C++. */
#ifdef __cplusplus
#define GPUPOOL_STREAM_NUMBER(number) (reinterpret_cast<void *>(static_cast<intptr_t>(number)))
#else
#define GPUPOOL_STREAM_NUMBER(number) ((void *)(intptr_t)(number))
#endif

/** As a stream: none. The GPU is done with the buffer, or never touched it. */
#define GPUPOOL_NO_STREAM GPUPOOL_STREAM_NUMBER(-1)

/** As a stream: the per-thread default stream (cudaStreamPerThread), which is another one in each thread. */
#define GPUPOOL_PER_THREAD GPUPOOL_STREAM_NUMBER(2)

/**
 * As the stream of gpupool_release(), gpupool_shrink() and gpupool_free(): the one that the memory was
 * acquired on, for hooks that give memory back and are told of no stream. Work on other streams has to be
 * ordered before, or noted (gpupool_record_stream()). Of the per-thread default stream the calling thread's
 * own is meant. Host memory has no stream of its own: as GPUPOOL_NO_STREAM. INVALID for buffers that were
 * attached, and in a client without a cache.
 */
#define GPUPOOL_OWN_STREAM GPUPOOL_STREAM_NUMBER(-2)

/** Marks a last parameter, a stream, that a C++ program may leave out: that means the per-thread default
 * stream. C has no such thing: say GPUPOOL_PER_THREAD. */
#ifdef __cplusplus
#define GPUPOOL_STREAM_OPTIONAL = GPUPOOL_PER_THREAD
#else
#define GPUPOOL_STREAM_OPTIONAL
#endif

struct gpupool_client;

/** The kind of the daemon's device memory. */
enum gpupool_gpu {
    GPUPOOL_GPU_NONE = 0, /**< no GPU: host pools only */
    GPUPOOL_GPU_CUDA = 1,
    GPUPOOL_GPU_SIM = 2,  /**< simulated: "device" memory is ordinary memory of this machine */
};

/** Whether a daemon serves a client: gpupool_connection_state(). */
enum gpupool_connection_state {
    GPUPOOL_CONNECTION_THERE = 0,
    /** The daemon has ended, and the next one has not taken its place yet. Calls that need it wait. */
    GPUPOOL_CONNECTION_AWAY = 1,
    GPUPOOL_CONNECTION_LOST = 2, /**< for ever, as gpupool_is_connected() says it */
};

/* gpupool_options.flags */

/** Never touch CUDA in this process: host pools only, mapped but not registered. GPUPOOL_NO_CUDA=1 in the
 * environment sets it for all clients. A CUDA context, which pinning needs, costs a process some 0.3 s and
 * 150 MB of the host's memory. */
#define GPUPOOL_OPEN_NO_CUDA 1u
/** Each buffer is a lease of its own, taken and given back by a message; see gpupool_trim(). */
#define GPUPOOL_OPEN_NO_CACHE 2u
/** The application's loop calls gpupool_dispatch(), instead of a thread of the library. */
#define GPUPOOL_OPEN_NO_THREAD 4u

/** Options of gpupool_open(). Start from GPUPOOL_OPTIONS_INIT; members left 0 take the defaults. */
struct gpupool_options {
    size_t struct_size;           /**< sizeof(struct gpupool_options), set by the initialiser */
    /** Socket's path. NULL: $GPUPOOL_SOCKET, else /run/gpupool/gpupool.sock. "private": start a daemon for
     * this client, which ends with its last client; gpupool_socket_path() tells where others can join it.
     * NULL, and $GPUPOOL_SOCKET is "private": the daemon of this process and its children, started if need
     * be. */
    const char *socket;
    /** For "private": the daemon's program. NULL: $GPUPOOL_DAEMON, else the installed one, else gpupoold in
     * PATH. */
    const char *daemon_path;
    /** For "private": further arguments, NULL-terminated, such as {"--gpu", "sim", NULL}. May be NULL, then
     * $GPUPOOL_DAEMON_ARGS is split at blanks. */
    const char *const *daemon_arguments;
    uint64_t connect_timeout_ns;  /**< to be connected, or to have the private daemon ready. 0: 10 s */
    uint64_t answer_timeout_ns;   /**< for an answer; a call's own timeout ends it a second later. 0: 30 s */
    uint32_t flags;               /**< GPUPOOL_OPEN_… */
    uint32_t reserved;
    /** Of the cache: after so long without use, memory goes back to the daemon. 0: 10 s. GPUPOOL_FOREVER: it
     * stays until the daemon asks for it. */
    uint64_t decay_ns;
    /** How long gpupool_alloc() waits for room. 0: $GPUPOOL_ALLOC_TIMEOUT ("500ms", "1min", "forever"), else
     * 10 s */
    uint64_t alloc_timeout_ns;
    /** Called when the daemon asks for idle memory because a request waits for it, before the client gives
     * back what it keeps idle. A program that keeps memory of its own idle releases it here, or asks another
     * of its threads to do so. Then it says what became of it: gpupool_reclaimed(), here or later. The
     * library's thread calls it, or gpupool_dispatch(). It may release, trim and answer; it must not close
     * the client. The daemon may ask many times. NULL: nothing is called. */
    void (*reclaim)(void *argument);
    void *reclaim_argument; /**< passed to it */
    /** gpupool_open() prepares so many bytes of host memory, as gpupool_prepare() does: of the pool near the
     * calling thread's current device, or, without a GPU, near the calling thread. 0: none. */
    uint64_t prepare_host_bytes;
    /** The process's name in the daemon's tables, texts and records, of which 47 bytes count. NULL:
     * $GPUPOOL_CLIENT_NAME, else the program's own name (PR_SET_NAME), or the script or module of an
     * interpreter, or the program's file. */
    const char *client_name;
    /** Called when the connection's state has changed (gpupool_connection_state()): with AWAY when the daemon has
     * ended, with THERE when the next one serves the client, with LOST at the end. No pause is left out, however
     * short. The library's thread calls it, or gpupool_dispatch(), for which gpupool_fd() becomes readable.
     * It may make any call but gpupool_close(). It is not called in a
     * client without a cache. NULL: nothing is called. */
    void (*connection_changed)(void *argument, enum gpupool_connection_state state);
    void *connection_changed_argument; /**< passed to it */
};
#define GPUPOOL_OPTIONS_INIT                                                                                 \
    { sizeof(struct gpupool_options), NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, NULL, NULL, NULL }

enum gpupool_pool_kind {
    GPUPOOL_POOL_DEVICE = 1,
    GPUPOOL_POOL_HOST = 2,
};

/** A pool, as it was when asked. */
struct gpupool_pool {
    uint32_t id;
    uint32_t kind;         /**< enum gpupool_pool_kind */
    int32_t device;        /**< ordinal in this process (after CUDA_VISIBLE_DEVICES); -1: host pool, not visible */
    int32_t numa_node;     /**< -1: unknown */
    char uuid[48];         /**< "GPU-…" as nvidia-smi shows it; empty for host pools */
    char name[64];
    uint64_t limit_bytes;  /**< what the pool may grow to */
    uint64_t reserved_bytes, leased_bytes, free_bytes, quarantined_bytes, largest_free_bytes;
};

/** A buffer: memory on loan. The caller's, by value; copying it does not copy the loan: releasing one copy
 * makes the others stale. */
struct gpupool_buffer {
    void *data;              /**< device pointer or host pointer, aligned to 512 bytes */
    uint64_t size_bytes;     /**< as asked */
    uint64_t capacity_bytes; /**< what may be used */
    uint32_t pool;
    uint32_t kind;           /**< enum gpupool_pool_kind */
    int32_t device;          /**< as in struct gpupool_pool */
    uint32_t reserved0;
    uint64_t lease, generation; /**< the loan's name in the daemon */
    uint64_t reserved[2];
};

/** Names a shared buffer to other processes of the same user, and the work that they wait for. Plain bytes,
 * to be sent by any means. Any process of the user that knows it may attach: treat it as a secret. */
struct gpupool_token {
    uint8_t bytes[64]; /**< where nothing is waited for, those from GPUPOOL_TOKEN_NAME_BYTES on are 0 */
};
#define GPUPOOL_TOKEN_NAME_BYTES 32u

/** gpupool_acquire() flags */
#define GPUPOOL_ZERO 1u /**< zero the buffer, in stream order. Without it the contents are undefined */
/** Wait for memory that is idle or on its way, and not for memory in use: EXHAUSTED as soon as every process
 * that has memory of the pool was asked since the request began to wait, and has answered that it has nothing
 * more, while nothing comes back behind a fence, from a process that ended, or by growth. An answer that does
 * not come is waited for up to 2 s. timeout_ns ends the wait in any case. For an allocator with a cache of
 * its own, which it empties when a request is refused: two such programs would else wait for each other's
 * caches. */
#define GPUPOOL_IDLE_ONLY 2u
/** The buffer can sleep: see gpupool_sleep(). It has addresses of its own, and whole segments of its pool, where
 * nothing else lies: capacity_bytes is a multiple of a segment's size (2 to 16 MiB, a 64th of the pool's limit). So it
 * is for large memory that stays. Each such acquire is a request to the daemon, maps its segments and unmaps them at
 * its end. Device pools with export = vmm (else INVALID). Not for gpupool_acquire_begin() and gpupool_alloc_within().
 * A flag of gpupool_attach() as well. */
#define GPUPOOL_CAN_SLEEP 4u

struct gpupool_buffer_info {
    struct gpupool_buffer buffer;
    uint64_t segment;      /**< the driver allocation in which the buffer begins */
    uint64_t offset_bytes; /**< and where */
    uint32_t holders;      /**< leases on this memory, this one included */
    uint32_t shared;       /**< 1: a token was made for it */
};

/** The library's version, "0.2.0". Never NULL. */
GPUPOOL_API const char *gpupool_version(void);

/**
 * Connects to the daemon. Touches no GPU yet, unless the option prepare_host_bytes is set.
 * @param options borrowed for the call; NULL for the defaults
 * @param ret_client owned by the caller, gpupool_close() gives it back; untouched on failure
 * @return 0; INVALID, CONNECT, TIMED_OUT, VERSION, LIMIT, NO_MEMORY, PROTOCOL; with prepare_host_bytes also
 * what gpupool_prepare() says, and then no client is open
 */
GPUPOOL_API int gpupool_open(const struct gpupool_options *options, struct gpupool_client **ret_client);

/**
 * Waits for the GPU work on devices that the client has memory of, closes all mappings and says farewell:
 * whatever is still leased returns. No other call may be under way. Accepts NULL. In a forked child it only
 * frees memory.
 */
GPUPOOL_API void gpupool_close(struct gpupool_client *client);

/** Where the daemon listens; for a private daemon, what other processes set GPUPOOL_SOCKET to. Lives with the
 * client. */
GPUPOOL_API const char *gpupool_socket_path(const struct gpupool_client *client);

/**
 * Tells whether the client's daemon still serves it. True after gpupool_open(). False for ever once the
 * daemon has ended, has ended the session, or sent something that does not check out: then this call says so,
 * also where no other call has failed before. A daemon that is stopped (SIGSTOP) and answers nothing counts
 * as connected.
 *
 * Where the answer is no, gpupool_error_number() and gpupool_error_text() tell why: DISCONNECTED, SHUTDOWN,
 * PROTOCOL. The client's buffers stay usable, and are copied and released as before; the client has no more
 * memory than it keeps. The program copies away what it needs, calls gpupool_close(), and gpupool_open()
 * connects to the daemon that runs then.
 *
 * Sends no message and waits for nothing. One system call while the client is connected, none once an end was
 * met. Thread-safe, also beside calls that are under way.
 * @return 1: connected; 0: not connected. 0 in a forked child (FORKED), whose parent's client may well be
 * connected; 0 for NULL (INVALID)
 */
GPUPOOL_API int gpupool_is_connected(struct gpupool_client *client);

/**
 * Tells whether a daemon serves the client at this moment. A daemon that is started again goes on with its clients
 * (gpupoold(8)): they are AWAY for the pause, and THERE again afterwards, with all that they had. In the pause calls that
 * need the daemon wait for it, up to their own timeouts, if they have any: the time for an answer
 * (gpupool_options.answer_timeout_ns) begins anew when the daemon is back. A daemon that nothing starts again can look
 * AWAY for a moment, and is LOST then. With a daemon of release 0.1 the state is THERE until it is LOST.
 *
 * Waits for nothing, and makes a few system calls. Thread-safe, also beside calls that are under way. The option
 * connection_changed tells of changes.
 * @return 0; INVALID, FORKED
 */
GPUPOOL_API int gpupool_connection_state(struct gpupool_client *client,
                                         enum gpupool_connection_state *ret_state);

/**
 * Names the daemon, by 32 hexadecimal digits that it made at random when it started: no other daemon, and no
 * later one at the same path, has them. A program that sends tokens by a path sends this along; the receiver
 * compares it with that of its own client. "": the daemon does not tell. Lives with the client.
 */
GPUPOOL_API const char *gpupool_daemon_identity(const struct gpupool_client *client);

/**
 * The path of the daemon's admin socket, as the daemon sees it: in a container the socket may lie elsewhere,
 * usually beside the data socket. "": the daemon did not tell it. Lives with the client.
 */
GPUPOOL_API const char *gpupool_admin_path(const struct gpupool_client *client);

/** Says which kind of GPU the daemon serves. A program that must not run on a simulation checks this. */
GPUPOOL_API enum gpupool_gpu gpupool_gpu_kind(const struct gpupool_client *client);

/**
 * Lists the pools. One round trip.
 * @param pools room for capacity pools; may be NULL when capacity is 0
 * @param ret_count how many there are, which may be more than capacity
 */
GPUPOOL_API int gpupool_pools(struct gpupool_client *client, struct gpupool_pool *pools, size_t capacity,
                              size_t *ret_count);

/** The pool of a device, by its ordinal in this process; -1: the calling thread's current device. NO_POOL,
 * NO_GPU. */
GPUPOOL_API int gpupool_device_pool(struct gpupool_client *client, int device, uint32_t *ret_pool);

/** The host pool of a NUMA node; -1: that of the node where the calling thread runs, else the first.
 * NO_POOL. */
GPUPOOL_API int gpupool_host_pool(struct gpupool_client *client, int numa_node, uint32_t *ret_pool);

/**
 * Acquires a buffer: from what the client keeps, else by a message to the daemon, whose pool grows if need
 * be. Where the pool cannot grow, all that this client keeps idle of it goes back first; then the acquire
 * waits for memory of others. As the last resort the daemon has idle segments closed: that waits for the work
 * of the closing process on the device, and its other threads launch nothing meanwhile. A client with
 * GPUPOOL_OPEN_NO_THREAD closes its own in this call, before it waits; so does an acquire that has less than
 * 3 ms left. The first buffer in a segment also maps it (device about 0.1 ms; host memory is registered with
 * CUDA, 17 ms a GiB with huge pages, 75 ms without).
 * @param pool from gpupool_pools() and its like
 * @param size_bytes 1 or more
 * @param stream the stream that will use it first: the memory may be written by work that is enqueued on it
 * from now on; on another stream, when that is ordered behind this one. GPUPOOL_NO_STREAM,
 * cudaStreamPerThread (which is another stream in each thread) and host memory: no work on the GPU uses the
 * memory any more. Any stream, thread or process may use it at once
 * @param timeout_ns how long to wait for room: GPUPOOL_NOW, a time, or GPUPOOL_FOREVER. With GPUPOOL_NOW a
 * pool that has to grow says EXHAUSTED, and grows all the same. Idle memory of this client goes back first.
 * If any did, the call waits up to 3 ms; if segments were closed for it, up to 20 ms after that.
 * GPUPOOL_FOREVER ends with EXHAUSTED as well, when no other process can give back what it needs, and this
 * process gave nothing of the pool back for 10 s
 * @param flags 0, or GPUPOOL_ZERO, GPUPOOL_IDLE_ONLY and GPUPOOL_CAN_SLEEP
 * @return 0; INVALID, NO_POOL, TOO_LARGE, EXHAUSTED, LIMIT, DRIVER, DISCONNECTED, TIMED_OUT, FORKED,
 * CAPTURING (with GPUPOOL_ZERO, see gpupool_trim()), …
 */
GPUPOOL_API int gpupool_acquire(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes,
                                void *stream, uint64_t timeout_ns, uint32_t flags,
                                struct gpupool_buffer *ret_buffer);

/**
 * @name Acquires that complete on an eventfd, and that any thread can cancel
 * A request is an acquire that no thread waits for. It is begun, completes by itself, and is ended:
 *
 *     gpupool_acquire_begin(client, pool, bytes, stream, GPUPOOL_FOREVER, 0, &request);
 *     ... poll() gpupool_request_fd(client, request), or call gpupool_acquire_end() at once, which waits ...
 *     gpupool_acquire_end(client, request, &buffer);
 *
 * An acquire that another thread may cancel is begun and ended in one thread, and cancelled in the other. All
 * of them name a request by its number, which is never used again in this client: a thread may cancel a
 * request that another one is just ending, or has ended.
 *
 * Requests go the way of gpupool_acquire(). Where that would wait for the daemon, a thread of the library
 * goes on when the answer has come. It starts with the first request that has to ask the daemon, and
 * completes the requests of the client one after the other; to map a segment takes it as long as
 * gpupool_acquire(). In a client with GPUPOOL_OPEN_NO_THREAD requests complete in gpupool_dispatch(), for
 * which gpupool_fd() becomes readable, and in gpupool_acquire_end(); no other call completes them.
 *
 * gpupool_close() cancels and frees the requests that are open, and their descriptors.
 * @{
 */
/**
 * Begins an acquire. Waits for no room and for no growth. It may exchange messages with the daemon, and give
 * idle memory of this client back. Where the client has the memory at hand, the request is complete when this
 * call returns.
 * @param pool, size_bytes, stream, timeout_ns, flags as in gpupool_acquire(). With GPUPOOL_ZERO,
 * gpupool_acquire_end() zeroes the memory
 * @param ret_request the request's number, never 0, to be given to gpupool_acquire_end(); untouched on
 * failure
 * @return 0, or what is known at once: INVALID (also: a client with GPUPOOL_OPEN_NO_THREAD and without a
 * cache), NO_POOL, TOO_LARGE, CAPTURING, DISCONNECTED, FORKED, NO_MEMORY, …; then there is no request
 */
GPUPOOL_API int gpupool_acquire_begin(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes,
                                      void *stream, uint64_t timeout_ns, uint32_t flags,
                                      uint64_t *ret_request);

/**
 * An eventfd that becomes readable when the request is complete, and stays so: it has its memory, has failed
 * or is cancelled. To be watched (poll, epoll), never read or written. Close-on-exec. It is the request's:
 * gpupool_acquire_end() closes it. The first call for a request makes it; a request that is only ended has no
 * descriptor. Any thread may call.
 * @return 0 or more: the descriptor; STALE: the request was ended, or never begun; INVALID, FORKED;
 * NO_MEMORY: no descriptor is free
 */
GPUPOOL_API int gpupool_request_fd(struct gpupool_client *client, uint64_t request);

/**
 * Waits until a request is complete, gives its buffer or its error, and ends it. Any thread may, one for each
 * request.
 * @param ret_buffer untouched on failure
 * @return as gpupool_acquire(), and also CANCELLED. STALE: the request was ended before or is just being
 * ended by another thread, or was never begun. INVALID and FORKED end no request
 */
GPUPOOL_API int gpupool_acquire_end(struct gpupool_client *client, uint64_t request,
                                    struct gpupool_buffer *ret_buffer);

/**
 * Cancels a request. If it is complete, that changes nothing. Else it ends with CANCELLED or, where that is
 * known first, another error, and with no buffer: memory that the daemon grants in the same moment goes back.
 * It leaves the daemon's wait queue at once, and completes soon; it is still ended by gpupool_acquire_end().
 * Sends one message, and waits for no answer. Any thread may call this, several times, also while another one
 * is in gpupool_acquire_end(). (In a session with a daemon that speaks version 1 of the protocol alone, the
 * request keeps its place until the daemon answers it.)
 * @return 0; STALE: the request was ended, or never begun; INVALID, FORKED
 */
GPUPOOL_API int gpupool_request_cancel(struct gpupool_client *client, uint64_t request);
/** @} */

/**
 * Gives a buffer back. The memory is used by others when the work enqueued on the stream so far is done; work
 * on other streams must be done, ordered before it, or noted by gpupool_record_stream(). The call does not
 * wait for the work. On the stream that acquired it the memory serves the next acquire at once; otherwise a
 * fence is left on the stream: a word that the GPU writes when it is through, in about a microsecond. Where
 * there can be none, the call waits for the stream: the device or the daemon has no words, or 512 streams of
 * this process are busy with theirs. At the daemon's limit of what may wait for fences (leases of a session)
 * a buffer that is a lease of its own waits as well, at most answer_timeout_ns.
 *
 * When a pool has no room left, an acquire on a device stream may get memory that was released on another
 * stream: then the acquiring stream is made to wait for the other one, on the GPU, up to that release.
 * @param buffer zeroed on success. A buffer released before, or a copy of one, also of a client that has
 * closed, is refused with STALE
 * @param stream the stream that used it last; GPUPOOL_NO_STREAM when the GPU is done with it or never used
 * it, which is cheaper: best for host buffers
 * @return 0, also where the daemon has the message and does not answer, or is gone; STALE, INVALID, CAPTURING
 * (see gpupool_trim()), DRIVER, TIMED_OUT, DISCONNECTED, NO_MEMORY: the buffer is still the caller's
 */
GPUPOOL_API int gpupool_release(struct gpupool_client *client, struct gpupool_buffer *buffer,
                                void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Says that a further stream uses a buffer, besides the one that it will be released on. The release then
 * leaves a fence on that stream as well, and the memory is used by others when the work of all these streams
 * is done, as far as it was enqueued before the release. The release waits for none of them, and makes none
 * of the program's streams wait: where several are busy, a stream of the library's own waits for them on the
 * GPU, one of up to 4 for each device. While all 4 are waiting, memory may come back later than its own
 * streams allow.
 *
 * The note holds until the release, also for what gpupool_shrink() cuts off; each stream is noted once.
 * gpupool_lookup() gives the buffer of a pointer from gpupool_alloc(). This is torch.Tensor.record_stream()
 * for buffers.
 * @param buffer stays the caller's. A copy will do: the loan is noted, not the object
 * @param stream one of the buffer's device, or a created one of another device; it has to exist until the
 * release. Of the per-thread default stream the calling thread's own is meant. A release by another thread
 * waits on the CPU for that stream's device. Not GPUPOOL_NO_STREAM
 * @return 0; STALE, INVALID, CAPTURING, DRIVER, NO_MEMORY, FORKED: nothing was noted. Without a GPU nothing
 * is to be noted, and 0 is returned. If gpupool_release() cannot leave a fence on one of the streams, it
 * fails, and the buffer is still the caller's, with its streams
 */
GPUPOOL_API int gpupool_record_stream(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                                      void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Gives the tail of a buffer back and keeps its first new_size_bytes (1 or more; rounded up to 512). As
 * gpupool_release() otherwise. SHARED when a token was made for the buffer.
 */
GPUPOOL_API int gpupool_shrink(struct gpupool_client *client, struct gpupool_buffer *buffer,
                               uint64_t new_size_bytes, void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Maps memory of a pool ahead of need. The first buffer in a segment maps the segment. For host memory this
 * registers the segment with CUDA, and no thread of the process launches anything meanwhile: for 9 to 13 ms a
 * 256 MiB (H200, driver 580.159.04, CUDA 13.0). This call has that happen at a time of the caller's choice,
 * such as before the first launch. The pool grows if need be.
 *
 * Host pools, in a client with a cache: afterwards at least so many bytes of the pool are idle in this
 * process. Memory that is idle here already counts; buffers in use do not. Buffers that find room in this
 * memory map nothing and send no message (sizes of up to 1 MiB count as rounded up, by an eighth at most).
 * The missing part is leased as one range. If the pool has no such range and cannot grow by one, it is leased
 * as several, and a buffer that is larger than the largest of them maps more. The memory goes back to the
 * daemon as other idle memory does: after decay_ns without use, when the daemon asks for it, by
 * gpupool_trim(). Its segments stay mapped. The next acquire then sends a message, and maps nothing while the
 * daemon lends memory in these segments; other processes of the same user may have taken it. With decay_ns
 * GPUPOOL_FOREVER the memory stays until the daemon asks for it.
 *
 * Device pools, and clients with GPUPOOL_OPEN_NO_CACHE: so many bytes are leased, mapped, and given back to
 * the daemon in the same call. Buffers of any stream are lent there later, as said above. A client with a
 * cache leases device memory for each stream, and may lease more than a buffer needs (up to 20 MiB for a
 * small one): prepare that much more. Opening a segment of a device pool takes about 0.3 ms.
 *
 * More memory than was prepared is mapped in small steps: a segment of a host pool has 64 MiB, unless the
 * pool's step or the request is larger. Any thread may call this. Of two calls at the same time each may
 * lease what is missing.
 * @param pool from gpupool_host_pool() and its like
 * @param bytes 1 or more
 * @return 0; INVALID, NO_POOL, TOO_LARGE, LIMIT, NO_GPU, DRIVER, NO_MEMORY, DISCONNECTED, TIMED_OUT, FORKED,
 * …; EXHAUSTED: the pool has not so much free, and did not grow by it within alloc_timeout_ns. The call does
 * not ask other processes for idle memory. On failure the memory that the call has leased goes back, and
 * the segments that it has mapped stay mapped
 */
GPUPOOL_API int gpupool_prepare(struct gpupool_client *client, uint32_t pool, uint64_t bytes);

/**
 * Gives memory that this client keeps idle back to the daemon, behind fences of the streams that used it: it
 * does not wait for them. A client keeps what is released, and answers most calls from that: a released
 * buffer stays in the process, for the next acquire on the same stream, which needs no waiting because the
 * stream orders the work. Memory goes back by this call, after a time without use, when the daemon asks for
 * it, and with gpupool_close(). The library runs a thread for that, unless the application's own loop does
 * it: GPUPOOL_OPEN_NO_THREAD. A client that was opened with GPUPOOL_OPEN_NO_CACHE keeps nothing. The stats
 * count what a client keeps as leased. Memory that goes back stays mapped here. But of device pools with
 * export = vmm this call unmaps the segments whose last memory it gave back, so that the daemon can give them
 * to the driver (gpupoolctl trim). A segment that a fence keeps is unmapped after a time without use.
 * Unmapping stops no work there. While a pool is short of memory for requests that wait, a client keeps
 * nothing of it: each release goes to the daemon.
 *
 * Streams that end: before a stream is destroyed its work must be done, what was acquired on it released, and
 * then gpupool_trim() called. Else the client names the stream to the driver when it gives idle memory back:
 * the driver crashes (libcuda 580.159 did each time), or has given the handle to another stream; where it
 * refuses the handle, what is kept for the stream stays here until the client closes (DRIVER).
 * gpupool_stream_destroy() calls what is needed, once all is released.
 *
 * Streams that are captured into a graph: nothing of this library lands in the graph. gpupool_acquire() gives
 * memory for a captured stream as for any, but does not zero it (CAPTURING). Buffers that captured work uses
 * belong to the graph: hold them for as long as the graph may be launched, release them on a stream that is
 * behind the last launch, and launch the graph on the stream that was captured, or behind what was enqueued
 * there before. So do not release such a buffer on the stream while it is captured: the library asks no
 * driver when it keeps a buffer of the same stream, and would lend it again. A release that needs a fence is
 * refused (CAPTURING). Memory that is kept for a captured stream stays until the capture is over; giving it
 * back then reports CAPTURING.
 *
 * @param ret_bytes how much went back; may be NULL
 * @return 0; CAPTURING, DRIVER, LIMIT, DISCONNECTED, …: of some of it, which stays for the next time
 */
GPUPOOL_API int gpupool_trim(struct gpupool_client *client, uint64_t *ret_bytes);

/** The outcome of a question of the daemon for the memory that a program keeps idle by itself. */
enum gpupool_reclaim_outcome {
    GPUPOOL_RECLAIM_DONE = 1,      /**< what was idle is released */
    GPUPOOL_RECLAIM_NOTHING = 2,   /**< nothing was idle */
    GPUPOOL_RECLAIM_CAPTURING = 3, /**< a stream is being captured: what is idle can go later */
    GPUPOOL_RECLAIM_BUSY = 4,      /**< a lock is held that is needed to release it: later */
    /** The program waits for memory itself, and holds what it would take to release the rest: it releases
     * that when its request is refused (GPUPOOL_IDLE_ONLY). */
    GPUPOOL_RECLAIM_WAITS = 5,
};

/**
 * The program's answer to the daemon's question for idle memory: what became of the memory that the program
 * keeps idle, in a client that was opened with the option reclaim. To be called once for each call of that,
 * in it or later, by any thread; several questions that one answer follows are answered by it. After DONE
 * this call gives what the program has released back to the daemon, and closes the segments that the daemon
 * names, as gpupool_dispatch() does. An answer may be followed by another, such as DONE after CAPTURING.
 *
 * The daemon waits for answers before it refuses a request with GPUPOOL_IDLE_ONLY, and shows them in its
 * stats. A program that never answers is asked all the same; after 2 s the stats say that it does not answer.
 * @param pool of which the program speaks; 0: of all that the daemon asked for
 * @param kept_bytes what the program keeps idle of the pool after that, as far as it knows. It counts as in
 * use; the stats and refusals of others tell it apart. 0 where pool is 0
 * @return 0, also where the daemon never asked; INVALID, NO_POOL, DISCONNECTED, TIMED_OUT, FORKED, NO_MEMORY
 */
GPUPOOL_API int gpupool_reclaimed(struct gpupool_client *client, uint32_t pool,
                                  enum gpupool_reclaim_outcome outcome, uint64_t kept_bytes);

/**
 * @name In an application's own loop
 * A client that was opened with GPUPOOL_OPEN_NO_THREAD has no thread that gives idle memory back. The
 * application does it: it watches a descriptor, and calls when that is readable. While it does not, others
 * wait for memory that lies idle here. An acquire gives up what is idle in its own process before it waits,
 * and closes the segments that the daemon names. While it waits, in gpupool_acquire() or
 * gpupool_acquire_end(), it gives back what the library keeps when the daemon asks. options.reclaim is called
 * in gpupool_dispatch() alone, for which the descriptor is readable then.
 * @{
 */
/**
 * The descriptor to watch for reading (poll, epoll; never read from it). It is readable when
 * gpupool_dispatch() is due: when the daemon wants idle memory back, and after each decay_ns. It is the
 * client's and lives as long.
 * @return 0 or more: the descriptor; INVALID: the client was opened without the flag, or without a cache;
 * FORKED
 */
GPUPOOL_API int gpupool_fd(struct gpupool_client *client);

/**
 * Does what is due, if anything is: gives idle memory back as gpupool_trim() does, all of it when the daemon
 * asked, else what was not used for decay_ns. It exchanges messages with the daemon, and waits for no room.
 * When the daemon asked, it also closes the idle segments that the daemon names, which waits for the work of
 * this process on the device: the daemon names some only where nothing else serves a request, and to a
 * process without GPU work first. Any thread may call it.
 * @return 0; INVALID and FORKED as gpupool_fd(); the errors of gpupool_trim(), and then the memory goes with
 * a later call
 */
GPUPOOL_API int gpupool_dispatch(struct gpupool_client *client);
/** @} */

/**
 * Names a buffer to other processes of the same user. The token is good while any process holds the buffer:
 * keep yours until the other side has attached. Sharing a buffer again sends no message.
 * @param stream the stream that writes the contents: a process that attaches waits, on the GPU, for what was
 * enqueued on it before this call, and nothing here waits for it. Work on other streams has to be ordered
 * before it. GPUPOOL_NO_STREAM: the contents are there already. For each token that is made behind other
 * work, share once more
 * @return 0; INVALID, STALE, CAPTURING, DRIVER, DISCONNECTED, TIMED_OUT, FORKED, NO_MEMORY; LOST, see
 * gpupool_attach(); LIMIT: the buffer lies in more than 4,096 segments, or the session has as many leases as
 * it may. Where no fence can be left (1,024 processes of the user leave some, or 64 streams of this one are
 * busy with theirs), the call waits for the stream
 */
GPUPOOL_API int gpupool_share(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                              void *stream, struct gpupool_token *ret_token);

/**
 * Shares a buffer, and has its token hold it: the token is good until it was taken, whatever becomes of this
 * buffer. So the token can go into a message queue, and the buffer be released at once, as if it had been
 * given away. This process may end before the other side attaches. The stats show the token as a parcel. It
 * counts as a lease of this process's user.
 * @param stream as gpupool_share()'s
 * @param takers the token serves so many calls of gpupool_attach(), 1 or more. A call counts when the daemon
 * has given the buffer, also if that call fails afterwards (it cannot map the memory, for example)
 * @param lifetime_ns after that time the daemon takes back what is left of the token: up to a day
 * @return as gpupool_share(); LIMIT also when 65,536 buffers of the user are on their way
 */
GPUPOOL_API int gpupool_send(struct gpupool_client *client, const struct gpupool_buffer *buffer, void *stream,
                             uint32_t takers, uint64_t lifetime_ns, struct gpupool_token *ret_token);

/**
 * As gpupool_send(), but the lifetime counts from the end of this client's session: for a program that
 * revokes the tokens whose receivers have ended, and may take any time to send.
 */
GPUPOOL_API int gpupool_send_held(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                                  void *stream, uint32_t takers, uint64_t lifetime_ns,
                                  struct gpupool_token *ret_token);

/**
 * Takes back a token that gpupool_send() made: no process can attach by it any more. The buffers that were
 * attached by it stay. Any process of the user may revoke it.
 * @return 0; NO_TOKEN: it was taken, its time was up, it was revoked before, or it is one of gpupool_share();
 * INVALID, DISCONNECTED, TIMED_OUT, FORKED, NO_MEMORY
 */
GPUPOOL_API int gpupool_revoke(struct gpupool_client *client, const struct gpupool_token *token);

/** gpupool_attach() flags */
#define GPUPOOL_READ_ONLY                                                                                    \
    1u /**< map it for reading: a copy to it is refused, and a kernel that writes to it ends its process's   \
        * CUDA context. Its contents stay. A guard against mistakes, not against this process, which         \
        * can map the memory for writing. Device pools with export = vmm (else INVALID) */

/**
 * Takes a shared buffer, as a lease of this client's own. The first buffer in a segment maps the segment; a
 * buffer that lies in several segments has them mapped side by side. It can be at other addresses than in the
 * process that shared it. Otherwise the call is one exchange with the daemon.
 *
 * If the process that shared it dies before its work on the buffer is done, the stream goes on once that work
 * is known to be over, and reads what is there. Then one of this client's next calls of gpupool_share(),
 * gpupool_attach(), gpupool_reuse(), gpupool_query() or gpupool_stream_synchronize() returns LOST, once for
 * each such process, and has done nothing (gpupool_stream_synchronize() has waited). The text names that
 * process's session. (CUDA reports a kernel's failure like that.)
 * @param stream the stream that reads it: it waits, on the GPU, for the work that the token names.
 * GPUPOOL_NO_STREAM: this call waits for it, at most as long as the option alloc_timeout_ns says (else
 * TIMED_OUT)
 * @param flags 0, or GPUPOOL_READ_ONLY and GPUPOOL_CAN_SLEEP: with the latter the buffer has a mapping of its own, so
 * that it can sleep with GPUPOOL_KEEP_ON_GPU
 * @return 0; INVALID; NO_TOKEN when the token is not known, gone or another user's; NO_GPU, NO_POOL (its
 * device is not visible in this process), DRIVER, NO_MEMORY, LIMIT, CAPTURING; LOST, also if the work is lost
 * by now: no lease was taken, but one taker of a token of gpupool_send() was
 */
GPUPOOL_API int gpupool_attach(struct gpupool_client *client, const struct gpupool_token *token, void *stream,
                               uint32_t flags, struct gpupool_buffer *ret_buffer);

/**
 * Says that this process writes to a buffer again that it shared, or attached: the stream waits, on the GPU,
 * for the work of the processes that have released it meanwhile. One exchange with the daemon; none for a
 * buffer that was never shared. Where a process left no fence that others see (it released the buffer with
 * several streams recorded), the call waits until the daemon sees its work done, as long as alloc_timeout_ns
 * says.
 * @param stream the one that writes next; GPUPOOL_NO_STREAM: the call waits
 * @return 0; SHARED: others have it still, those included that died and whose GPU work is not known to be
 * over; INVALID, STALE, CAPTURING, DRIVER, TIMED_OUT, DISCONNECTED, LOST
 */
GPUPOOL_API int gpupool_reuse(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                              void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * @name Sleep
 * A buffer that was acquired with GPUPOOL_CAN_SLEEP lets its memory go, and has memory again later at the same
 * addresses: pointers stay good, and so do captured CUDA graphs that use them.
 *
 *     gpupool_acquire(client, pool, bytes, stream, GPUPOOL_FOREVER, GPUPOOL_CAN_SLEEP, &buffer);
 *     ...
 *     gpupool_sleep(client, &buffer, GPUPOOL_KEEP_IN_HOST, stream);
 *     ...
 *     gpupool_wake(client, &buffer, stream, GPUPOOL_FOREVER, 0);
 *
 * While the buffer sleeps, its addresses stay reserved, and no access to them is allowed: one by a kernel or a copy ends
 * the process's CUDA context. gpupool_release() ends a sleeping buffer as it ends others. gpupool_share(),
 * gpupool_send(), gpupool_reuse(), gpupool_record_stream() and gpupool_query() say INVALID of it.
 * @{
 */
/** How the contents of a buffer that sleeps are kept. */
enum gpupool_keep {
    /** They are dropped, and the memory goes back to the pool. */
    GPUPOOL_KEEP_NOTHING = 0,
    /** They stay: this process only has no access to them. The memory is leased still. The only choice for a buffer
     * that was shared or attached. */
    GPUPOOL_KEEP_ON_GPU = 1,
    /** They are copied to pinned memory of the host pool near the device, capacity_bytes of them, and the device's
     * memory goes back to its pool. The copy is memory of this client as its other buffers are. */
    GPUPOOL_KEEP_IN_HOST = 2,
};

/**
 * Puts a buffer to sleep. Waits for the GPU work on it, the copy included, at most as long as the option
 * alloc_timeout_ns says, which is also how long it waits for host memory. When it returns 0, the buffer's memory is
 * unmapped. Memory that went back to the pool is there for others, also of other users.
 * @param buffer acquired or attached with GPUPOOL_CAN_SLEEP. Of a buffer that sleeps already, with the same keep, the
 * call changes nothing
 * @param keep how its contents are kept
 * @param stream the one with the last work on the buffer; further ones were noted by gpupool_record_stream(), or are
 * ordered before. GPUPOOL_NO_STREAM: the GPU is done with it
 * @return 0; INVALID (the text says what to do: a buffer without GPUPOOL_CAN_SLEEP, host memory, a pool with
 * export = ipc); SHARED: another keep than GPUPOOL_KEEP_ON_GPU for a buffer that was shared or attached; TIMED_OUT: the
 * work is not done; EXHAUSTED, LIMIT, NO_POOL: no host memory for the contents; STALE, CAPTURING, DRIVER, DISCONNECTED,
 * NO_MEMORY, FORKED. After a failure the buffer is awake and as it was; its stream may
 * copy from it still, which a release waits for as it does for a stream that was noted. There is one exception, after DRIVER or
 * DISCONNECTED: where the driver does not map the memory any more, the buffer sleeps with GPUPOOL_KEEP_ON_GPU, and the
 * text says so
 */
GPUPOOL_API int gpupool_sleep(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                              enum gpupool_keep keep, void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Wakes a buffer: maps memory at its addresses, and brings the contents in stream order. Memory that went back to the
 * pool is acquired anew. The call does nothing for a buffer that is awake.
 * @param buffer gets the name of its new lease, where it has one: lease and generation change, also where the call
 * fails after that. Copies of the struct are stale then. data and the sizes stay
 * @param stream the one that uses the buffer next: contents kept in host memory, and zeroes, are there behind what the
 * call enqueues on it. GPUPOOL_NO_STREAM: the call waits for them
 * @param timeout_ns how long to wait for room, as in gpupool_acquire(). With GPUPOOL_KEEP_ON_GPU no room is needed
 * @param flags 0 or GPUPOOL_ZERO: zeroes a buffer whose contents were dropped, which are undefined otherwise
 * @return 0; EXHAUSTED, LIMIT and whatever gpupool_acquire() says: the buffer sleeps still, with what it kept; INVALID
 * (as gpupool_sleep()), STALE, CAPTURING, DRIVER. After DRIVER the buffer sleeps, too, and keeps what it kept; if the
 * memory was there already, the next call only brings the contents
 */
GPUPOOL_API int gpupool_wake(struct gpupool_client *client, struct gpupool_buffer *buffer, void *stream,
                             uint64_t timeout_ns, uint32_t flags);
/** @} */

/** Asks the daemon about a buffer. STALE when it is not this client's any more. */
GPUPOOL_API int gpupool_query(struct gpupool_client *client, const struct gpupool_buffer *buffer,
                              struct gpupool_buffer_info *ret_info);

/**
 * @name Memory by pointers For allocator plug-ins, which know a pointer and nothing else: over a client with
 * a cache, and as fast as that. One kind of wrong pointer cannot be told: a pointer that was freed, and since
 * then handed out by gpupool_alloc() again, frees what it now stands for; and two threads must not free the
 * same pointer at the same time.
 * @{
 */
/**
 * The process's default client, with a cache and otherwise what the environment says: GPUPOOL_SOCKET,
 * GPUPOOL_ALLOC_TIMEOUT. Opened by the first call that needs it; a call after one that failed tries again. It
 * stays open until the process ends, or until gpupool_close(), after which the next call opens another. A
 * forked child opens one of its own; CUDA, if it was used before the fork, does not work there.
 * @param ret_client borrowed
 * @return as gpupool_open()
 */
GPUPOOL_API int gpupool_default(struct gpupool_client **ret_client);

/**
 * Allocates memory: gpupool_acquire() by another name, which waits as long as the option alloc_timeout_ns
 * says (10 s unless told otherwise), because a pool that has to grow, and others who have to give up what
 * they keep idle, take a moment.
 * @param client one with a cache; NULL: the default client
 * @param pool from gpupool_device_pool() and its like
 * @param stream the stream that will use the memory first
 * @return memory aligned to 512 bytes, to be given back by gpupool_free(); NULL: gpupool_error_number() and
 * gpupool_error_text() say why not
 */
GPUPOOL_API void *gpupool_alloc(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes,
                                void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Allocates memory as gpupool_alloc() does, with a wait and flags of its own.
 * @param timeout_ns as in gpupool_acquire()
 * @param flags as in gpupool_acquire()
 */
GPUPOOL_API void *gpupool_alloc_within(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes,
                                       void *stream, uint64_t timeout_ns, uint32_t flags);

/**
 * Gives back what gpupool_alloc() returned, as gpupool_release() does. Any thread may. NULL is nothing to
 * give back.
 * @param stream the stream that used the memory last
 * @return 0; INVALID: not from gpupool_alloc(), inside an allocation, of a client that is closed; STALE:
 * freed before; FORKED, … Whatever is refused is left as it was
 */
GPUPOOL_API int gpupool_free(void *memory, void *stream GPUPOOL_STREAM_OPTIONAL);

/**
 * Gives the buffer that an address lies in, of memory from gpupool_alloc(): its size and place, and its name
 * for gpupool_share() and gpupool_query(). No message is sent.
 * @param memory a pointer from gpupool_alloc(), or any address inside: its distance from ret_buffer->data is
 * the offset. To find the buffer of an address inside takes about a microsecond for each megabyte before it
 * @param ret_client the buffer's client; may be NULL
 * @param ret_buffer size_bytes is all that may be used. Released as a buffer, the pointer is freed
 * @return 0; INVALID: not in memory from gpupool_alloc(), or of a client that is closed; STALE: freed before;
 * FORKED
 */
GPUPOOL_API int gpupool_lookup(const void *memory, struct gpupool_client **ret_client,
                               struct gpupool_buffer *ret_buffer);
/** @} */

/**
 * @name Streams and copies without the CUDA runtime For programs that run on a simulated GPU as well, or that
 * do not link CUDA otherwise. On CUDA they are cudaStreamCreateWithFlags(non-blocking), cudaMemcpyAsync and
 * so on. device: ordinal in this process. Streams are made and bytes moved only on devices that the daemon
 * serves (else INVALID).
 * @{
 */
/** @return 0, DRIVER, FORKED, NO_GPU, or INVALID: there is no such device, or the daemon does not serve it */
GPUPOOL_API int gpupool_stream_create(struct gpupool_client *client, int device, void **ret_stream);
/** Also for a stream that CUDA made. Memory that was acquired on it is released before, see
 * gpupool_trim().
 * @return 0, DRIVER, FORKED, NO_GPU, INVALID; NO_MEMORY: what is idle for the stream could not go back, and the
 * stream was not destroyed */
GPUPOOL_API int gpupool_stream_destroy(struct gpupool_client *client, int device, void *stream);
GPUPOOL_API int gpupool_stream_synchronize(struct gpupool_client *client, int device,
                                           void *stream GPUPOOL_STREAM_OPTIONAL);
/**
 * Waits for all work of this process on a device: of each stream, whichever library made it. For hooks that
 * give memory back and are told of no stream.
 * @return 0; CAPTURING: a stream there is being captured into a graph; INVALID, NO_GPU, DRIVER, FORKED
 */
GPUPOOL_API int gpupool_device_synchronize(struct gpupool_client *client, int device);
/**
 * Tells whether a stream is being captured into a graph: then it cannot be waited for, and no fence be left.
 * @param ret_is_captured 1: it is; 0: it is not
 * @return 0, INVALID, NO_GPU, DRIVER, FORKED
 */
GPUPOOL_API int gpupool_stream_is_captured(struct gpupool_client *client, int device, void *stream,
                                           int *ret_is_captured);
/** Copies between device memory and host memory in any direction, in stream order. */
GPUPOOL_API int gpupool_copy(struct gpupool_client *client, int device, void *to, const void *from,
                             uint64_t size_bytes, void *stream GPUPOOL_STREAM_OPTIONAL);
/** Sets bytes of device or registered host memory, in stream order. */
GPUPOOL_API int gpupool_set(struct gpupool_client *client, int device, void *memory, int byte,
                            uint64_t size_bytes, void *stream GPUPOOL_STREAM_OPTIONAL);
/** @} */

/** "GPUPOOL_E_EXHAUSTED" for an error number, in constant memory. Never NULL. */
GPUPOOL_API const char *gpupool_error_name(int error);

/**
 * The number of the calling thread's last error, for calls that return a pointer: why it is NULL. Each call
 * that returns an int or memory sets it, to 0 where the call did not fail. So a NULL with the number 0 is no
 * failure (0 elements of a side without memory, for example). A program looks at number and text before its
 * next call; gpupool_close() keeps them. The quickest calls are an exception. Where they do not fail, they
 * leave both as they are, and return no NULL: gpupool_acquire(), gpupool_release(), gpupool_alloc() and
 * gpupool_free() that the thread's cache serves, an access to a pair or to a synchronised array that returns
 * memory which is in place, and gpupool_synced_resize(). Thread-safe; cannot fail.
 * @return 0 or a GPUPOOL_E_…
 */
GPUPOOL_API int gpupool_error_number(void);

/**
 * The full text of the error that gpupool_error_number() names: what failed, the CUDA or system error's name,
 * the device, the size asked and what the pool holds. Lives until the thread's next call that sets the
 * number. Never NULL; "" while the number is 0.
 */
GPUPOOL_API const char *gpupool_error_text(void);

#ifdef __cplusplus
}
#endif
#endif
