/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_PROTO_H
#define PROTO_PROTO_H
/*
 * The wire format: what travels between a client and the daemon over a SOCK_SEQPACKET Unix socket. One
 * message is one packet: a header, then the fixed little-endian struct of its operation (ERROR's text and
 * POOLS' array end where the packet ends). This object is pure: it does no I/O and allocates nothing.
 *
 * A decoded message is safe to use: its length is right for its operation, its operation is one that the
 * named sender may send, every enum is in range, every count fits the packet, sizes and ends of ranges do not
 * overflow, reserved fields are zero. The receiver checks the meaning of ids.
 *
 * docs/wire.md describes the messages and their order, requests and one-way messages, broken packets,
 * descriptors, reclaim, and the page and its fences. Beyond that page:
 *
 * Growth: of a pool of which little is available, an ACQUIRE with a least_bytes is granted the range that
 * fits least_bytes best, up to size_bytes of it. The request keeps its place in the wait queue while the pool
 * grows. With the flag NO_RECLAIM it also waits until growth is tried again, where the driver refused and no
 * session has memory. A client asks so before it has looked through its own caches.
 *
 * Closing: a segment stays mapped in a client when the client has given all of it back. Closing a mapping
 * stops the work of the whole process (measured on H200), so a client closes one only when the daemon names
 * it, and the daemon names one only when nothing else serves a request: the pool is at its limit, or the
 * driver refuses. It asks the sessions first whose IDLE does not say BUSY. A segment that other sessions have
 * mapped as well is named only where all of these can be told, too.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

#define PROTO_MAGIC       UINT32_C(0x4c505047) /* "GPPL" in memory */
#define PROTO_VERSION_MIN 1u
#define PROTO_VERSION_MAX 3u
/* The first one that knows of daemons that go on with the sessions of the daemon before: PROTO_AGAIN, ASK_ALIVE. */
#define PROTO_VERSION_RESTARTS 2u
/* The first one that knows of names. */
#define PROTO_VERSION_NAMES 3u

#define PROTO_MESSAGE(name, number, sender, request, reply, descriptors, member, type)                       \
    PROTO_##name = (number),
enum proto_operation {
    PROTO_NONE = 0,
#include "proto/messages.def"
};

/* Why a request failed. The client library's GPUPOOL_E_… are these numbers, negated. */
enum proto_error {
    PROTO_E_INVALID = 1,    /* an argument is out of its range */
    PROTO_E_VERSION = 2,    /* no common version */
    PROTO_E_NO_POOL = 3,    /* no pool with this id */
    PROTO_E_TOO_LARGE = 4,  /* larger than the pool may ever be */
    PROTO_E_EXHAUSTED = 5,  /* not free now, and the deadline passed */
    PROTO_E_STALE = 6,      /* no such lease in this session, or its generation has passed */
    PROTO_E_NO_TOKEN = 7,   /* nothing shared under this token, or not with this user */
    PROTO_E_SHARED = 8,     /* a block that others hold too cannot be given back in parts, split or merged */
    PROTO_E_LIMIT = 9,      /* the session or the tenant has as many as it may */
    PROTO_E_DRIVER = 10,    /* the driver or the kernel refused; the text has its error */
    PROTO_E_SHUTDOWN = 11,  /* the daemon is stopping */
    PROTO_E_NO_MEMORY = 12, /* the daemon itself is out of memory for bookkeeping */
    PROTO_E_CANCELLED = 13, /* the session cancelled the request while it waited */
    PROTO_E_NO_NAME = 14,   /* nothing is published under this name */
    PROTO_E_MAX = 14,
};

enum proto_pool_kind {
    PROTO_POOL_DEVICE = 1,
    PROTO_POOL_HOST = 2,
};

/* The kind of a segment's handle. The receiver never infers it. */
enum proto_segment_kind {
    PROTO_SEGMENT_LEGACY_IPC = 1, /* handle[] is a cudaIpcMemHandle_t */
    PROTO_SEGMENT_MEMFD = 2,      /* the message carries a sealed memfd; handle[] is zero */
    /* The message carries a descriptor for cuMemImportFromShareableHandle(); handle[] is zero. */
    PROTO_SEGMENT_VMM_FD = 3,      /* of device memory */
    PROTO_SEGMENT_HOST_VMM_FD = 4, /* of host memory */
};

enum proto_gpu_kind {
    PROTO_GPU_NONE = 0,
    PROTO_GPU_CUDA = 1,
    PROTO_GPU_SIM = 2,
};

struct proto_header {
    uint16_t operation; /* enum proto_operation */
    uint16_t flags;     /* of the daemon's messages: PROTO_AGAIN; of the client's: 0 */
    uint32_t length;    /* of the whole packet, this header included */
    uint64_t request;   /* id */
};

/* This message may have been sent before, by a daemon that ended then. */
#define PROTO_AGAIN UINT16_C(1)

struct proto_hello {
    uint32_t magic;
    uint16_t version_min, version_max;
    uint32_t flags;    /* PROTO_HELLO_… */
    uint32_t reserved; /* 0 */
};

#define PROTO_HELLO_RECLAIM UINT32_C(1) /* tell this session when others need what it keeps idle */
#define PROTO_HELLO_NO_GPU                                                                                   \
    UINT32_C(2) /* this process does no GPU work on what it is given: its end is its end */
#define PROTO_HELLO_QUESTION      UINT32_C(4) /* alone: which daemon is it? No session begins */
#define PROTO_HELLO_FLAGS         (PROTO_HELLO_RECLAIM | PROTO_HELLO_NO_GPU | PROTO_HELLO_QUESTION)
#define PROTO_HELLO_REPLY_EVENTFD UINT32_C(1) /* the packet carries the descriptor that tells it */
#define PROTO_HELLO_REPLY_FLAGS   PROTO_HELLO_REPLY_EVENTFD

struct proto_hello_reply {
    uint32_t magic;
    uint16_t version;
    uint16_t gpu;        /* enum proto_gpu_kind */
    uint64_t session;    /* id in the daemon's stats; 0: the answer to QUESTION */
    uint32_t daemon_pid; /* in the daemon's PID namespace */
    uint32_t flags;      /* PROTO_HELLO_REPLY_…; a flag that was asked for may be missing where the daemon
                            has no descriptor left */
    uint8_t identity[PROTO_IDENTITY_BYTES]; /* random, made when the daemon started; zeros: not known */
    char admin_path[PROTO_PATH_SIZE]; /* of the admin socket, absolute, as the daemon sees it, filled up with
                                         NULs; "": it cannot be told */
};

#define PROTO_POOL_VMM   UINT16_C(1) /* its segments are PROTO_SEGMENT_VMM_FD */
#define PROTO_POOL_FLAGS PROTO_POOL_VMM

struct proto_pool {
    uint32_t id;                    /* never 0 */
    uint16_t kind;                  /* enum proto_pool_kind */
    uint16_t flags;                 /* PROTO_POOL_… */
    int32_t device;                 /* the daemon's ordinal; -1 for host pools */
    int32_t numa_node;              /* -1 unknown */
    uint8_t uuid[PROTO_UUID_BYTES]; /* zero for host pools */
    uint64_t limit_bytes, reserved_bytes, leased_bytes, free_bytes, quarantined_bytes, largest_free_bytes;
    char name[PROTO_NAME_SIZE]; /* NUL-terminated, printable: "NVIDIA H200", "host memory, node 0" */
};

struct proto_pools {
    uint32_t count; /* ≤ PROTO_POOLS_MAX; exactly so many follow */
    uint32_t reserved;
    struct proto_pool pools[PROTO_POOLS_MAX];
};

#define PROTO_ACQUIRE_NO_RECLAIM                                                                             \
    UINT32_C(1) /* waits for growth only: rather refused than that sessions are asked for memory */
#define PROTO_ACQUIRE_GAVE_BACK                                                                              \
    UINT32_C(2) /* the session has nothing idle that would serve the request, and releases what would as     \
                   soon as it has it: while only such requests of one session wait, it is not asked */
#define PROTO_ACQUIRE_PROBE_ROOM                                                                             \
    UINT32_C(4) /* EXHAUSTED is no error for the client's user: the client asks again, or does without */
#define PROTO_ACQUIRE_PROBE_LIMIT UINT32_C(8) /* nor is LIMIT */
#define PROTO_ACQUIRE_PROBES      (PROTO_ACQUIRE_PROBE_ROOM | PROTO_ACQUIRE_PROBE_LIMIT)
#define PROTO_ACQUIRE_IDLE_ONLY                                                                              \
    UINT32_C(16) /* waits for what is idle or on its way: EXHAUSTED as soon as all sessions were asked since \
                    then, and have answered that there is no more */
#define PROTO_ACQUIRE_FLAGS                                                                                  \
    (PROTO_ACQUIRE_NO_RECLAIM | PROTO_ACQUIRE_GAVE_BACK | PROTO_ACQUIRE_PROBES | PROTO_ACQUIRE_IDLE_ONLY)

struct proto_acquire {
    uint32_t pool;
    uint32_t flags;       /* PROTO_ACQUIRE_… */
    uint64_t size_bytes;  /* 1…PROTO_SIZE_MAX */
    uint64_t least_bytes; /* that serves, too; 1…size_bytes, or 0: only size_bytes does */
    uint64_t timeout_ns;  /* 0: only what is free now; UINT64_MAX: for ever */
};

/* Each of the segments becomes a lease of its own. For pools whose segments are PROTO_SEGMENT_VMM_FD. */
struct proto_acquire_segments {
    uint32_t pool;
    uint32_t flags;         /* PROTO_ACQUIRE_… */
    uint64_t segment_bytes; /* of each, a multiple of 2 MiB */
    uint32_t count;         /* 1…PROTO_LEASES_MAX */
    uint32_t reserved;      /* 0 */
    uint64_t timeout_ns;    /* as in ACQUIRE */
};

struct proto_release {
    uint64_t lease, generation;
    /* The part of the block, relative to its start; size 0 (and offset 0): the whole lease, or what is left
     * of it. A part that is no number of granules of 512 bytes is refused with INVALID. */
    uint64_t offset_bytes, size_bytes;
    /* Behind which fence: the word's number in the page plus 1, and the value that it has to reach; 0 and 0:
     * none. */
    uint32_t fence;
    /* For a whole lease: the fence that others of its block see, in this session's slot on the board. The
     * word's number plus 1, and the value that it has to reach; 0 and 0: none. */
    uint32_t board_word;
    uint64_t fence_value, board_value;
};

/* SPLIT's body is RELEASE's, with a size above 0 and without fences. The part leaves the old lease as a
 * release in part does, but never returns to the pool: it is the block of the new lease, whose size and
 * capacity are the part's. */

/* MERGE: two leases in one segment, of which the other one's block begins above the lease's. The lease's
 * block then holds both, with a gap where something else lies between them, and reaches as far as they did;
 * offsets stay what they were.
 *
 * Or two leases in different segments, whose kind is PROTO_SEGMENT_VMM_FD: the lease's block reaches the end
 * of its segment, and the other one's begins at the start of its own. The block is a row then, and the other
 * one's memory is its last part. */
struct proto_merge {
    uint64_t lease, generation;
    uint64_t other_lease, other_generation;
};

/* DESCRIBE: with the description and the descriptor, also if the session was told of the segment before: that
 * descriptor did not arrive. */
#define PROTO_DESCRIBE_AGAIN 1u

/* ASK_PARTS: which row, and from which part on; flags is 0. DESCRIBE: which part of which row; with
 * PROTO_DESCRIBE_AGAIN also part 0 of a lease that is no row. */
struct proto_part_name {
    uint64_t lease, generation;
    uint32_t part;
    uint32_t flags;
};

/* QUERY: which lease. */
struct proto_lease_name {
    uint64_t lease, generation;
};

/* SHARE. A part of the lease becomes a lease of its own first, as by SPLIT, or nothing happens at all. */
struct proto_share {
    uint64_t lease, generation;
    uint64_t offset_bytes,
        part_bytes; /* the part, relative to the block's start; 0 and 0: all of the lease */
    /* The size that sessions which attach are told: up to the part's, or the block's capacity; 0: as it is.
     */
    uint64_t size_bytes;
};

struct proto_token {
    uint8_t bytes[PROTO_TOKEN_BYTES];
};

#define PROTO_SEND_HELD 1u /* the lifetime counts from the end of the sender's session */

struct proto_send {
    struct proto_share share;
    uint64_t lifetime_ns; /* 1 to PROTO_PARCEL_NS_MAX */
    uint32_t takers;      /* ATTACHes that end it: 1 or more */
    uint32_t flags;       /* PROTO_SEND_… */
};

/* TOKEN: the lease is the one that the request named, or the one that its part became. */
struct proto_token_reply {
    struct proto_token token;
    uint64_t lease, generation;
};

struct proto_opened {
    uint64_t segment;
};

/* CANCEL: the id of an ACQUIRE or ACQUIRE_SEGMENTS of this session. Where no request with this id waits, the
 * message changes nothing: it can cross the answer. */
struct proto_cancel {
    uint64_t request;
};

/* The outcome of a question for idle memory. */
enum proto_reclaim {
    PROTO_RECLAIM_DONE = 1,      /* what was idle went back, before this message */
    PROTO_RECLAIM_NOTHING = 2,   /* nothing was idle */
    PROTO_RECLAIM_CAPTURING = 3, /* a stream is being captured: some is idle, and can go later */
    PROTO_RECLAIM_BUSY = 4,      /* a lock is held that is needed to let it go: later */
    PROTO_RECLAIM_WAITS = 5,     /* what is idle goes back when a request of the session is refused */
    PROTO_RECLAIM_PENDING = 6,   /* what the library had went back. The program was asked, and will answer */
};

/* RECLAIMED, behind all releases that belong to it. */
struct proto_reclaimed {
    uint32_t pool;
    uint32_t outcome;    /* enum proto_reclaim */
    uint64_t asked;      /* the number of the question, from the page (proto/page.h); 0: of the newest one */
    uint64_t kept_bytes; /* up to PROTO_SIZE_MAX: what the program keeps idle, which counts as in use */
};

/* NAME: the process's name for people, in place of the kernel's. It may come again. */
struct proto_name {
    char name[PROTO_PROCESS_NAME_SIZE]; /* printable UTF-8, not empty, filled up with NULs */
};

#define PROTO_IDLE_BUSY                                                                                      \
    UINT32_C(1) /* the session's process has work on the GPU: closing a segment would stop it */
#define PROTO_IDLE_FLAGS PROTO_IDLE_BUSY

struct proto_idle {
    uint32_t pool;
    uint32_t flags; /* PROTO_IDLE_… */
    uint64_t
        size_bytes; /* of the session's own request, up to PROTO_SIZE_MAX; 0: it is for requests that wait */
};

struct proto_segments {
    uint32_t count;    /* ≤ PROTO_CLOSE_MAX; the other ids are 0 */
    uint32_t reserved; /* 0 */
    uint64_t ids[PROTO_CLOSE_MAX];
};

/* OFFER: segments of a pool whose segments are PROTO_SEGMENT_VMM_FD, of which the session gave back all some
 * time ago. SEGMENTS names those of which nothing is leased and which no other session has mapped. They stay
 * the user's, and are described anew with the next lease. */
struct proto_offer {
    uint32_t pool;
    uint32_t count; /* 1…PROTO_CLOSE_MAX; the other ids are 0 */
    uint64_t ids[PROTO_CLOSE_MAX];
};

/* A part of a row, whose next part begins where this one ends if the segments are mapped side by side. */
struct proto_part {
    uint64_t segment, segment_bytes; /* id and size of the segment */
    uint64_t offset_bytes;           /* of the part in the segment; 0, but for the first one of a row */
    uint64_t size_bytes;
};

struct proto_parts {
    uint32_t count; /* 1…PROTO_PARTS_MAX, of those from the one on that was asked for; the others are 0 */
    uint32_t total; /* parts of the row */
    struct proto_part parts[PROTO_PARTS_MAX];
};

struct proto_closed {
    uint64_t segment;
    uint64_t time_ns; /* that closing it took the driver */
};

struct proto_segment {
    uint64_t id;         /* never 0; unique in the daemon's life */
    uint64_t size_bytes; /* multiple of 2 MiB */
    uint32_t pool;
    uint32_t kind; /* enum proto_segment_kind; 0 with everything else 0: not described here, seen before */
    uint8_t handle[PROTO_HANDLE_BYTES];
};

struct proto_lease {
    uint64_t lease, generation;
    uint64_t segment;        /* id: described in this message or an earlier one */
    uint64_t offset_bytes;   /* of the block in the segment */
    uint64_t size_bytes;     /* as asked, or as the sharer asked */
    uint64_t capacity_bytes; /* the block's: size rounded up to the granule */
    uint32_t pool;
    uint32_t parts; /* of a row, 2…PROTO_ROW_PARTS_MAX: segment and offset are the first one's; else 0 */
    struct proto_segment description;
};

/* A lease on a whole segment. */
struct proto_segment_lease {
    uint64_t lease, generation;
    uint64_t segment; /* its id */
};

/* An answer to ACQUIRE_SEGMENTS, or a part of it: its messages follow each other in order. The first
 * n_described segments are new to the session: their kind is PROTO_LEASES_KIND, and the packet carries a
 * descriptor for each, in order. The session gets nothing more until it says OPENED for the first of them. */
#define PROTO_LEASES_KIND PROTO_SEGMENT_VMM_FD
struct proto_leases {
    uint32_t pool;
    uint32_t count;       /* 1…PROTO_LEASES_PER_MESSAGE; the other leases are 0 */
    uint32_t n_described; /* of these */
    uint32_t n_left;      /* leases that further messages bring */
    uint64_t segment_bytes;
    struct proto_segment_lease leases[PROTO_LEASES_PER_MESSAGE];
};

struct proto_info {
    uint64_t segment, offset_bytes, size_bytes, capacity_bytes;
    uint32_t pool;
    uint32_t holders; /* leases on the block, this one included */
    uint32_t shared;  /* 1: a token names the block */
    uint32_t parts;   /* as in LEASE */
};

/* A fence on the board. */
struct proto_board_fence {
    uint32_t slot, word;
    uint64_t value;
};

struct proto_holders {
    uint32_t n_holding; /* other leases on the block, but for those that were released behind a fence */
    uint32_t count;     /* of the fences, which are not ready yet; the others are 0 */
    uint32_t n_left;    /* further ones for which there is no room, or that are not on the board */
    uint32_t reserved;  /* 0 */
    struct proto_board_fence fences[PROTO_HOLDERS_MAX];
};

struct proto_board_reply {
    uint32_t size_bytes; /* of the memfd: PROTO_BOARD_BYTES */
    uint32_t slot;       /* this session's, below PROTO_BOARD_SLOTS */
};

struct proto_page_reply {
    uint32_t size_bytes; /* of the memfd: PROTO_PAGE_BYTES */
    uint32_t reserved;   /* 0 */
};

/* DIRECTORY, and WRITE_DIRECTORY: from 0 on, each part behind the one before; a part from 0 begins anew. */
struct proto_directory_part {
    uint32_t offset_bytes; /* of the part in the directory; both together up to PROTO_DIRECTORY_BYTES_MAX */
    uint32_t n_bytes;      /* that follow: 1…PROTO_DIRECTORY_PART_MAX */
    uint8_t bytes[PROTO_DIRECTORY_PART_MAX];
};

#define PROTO_PUBLISH_KEEP UINT32_C(1) /* it stays when its publisher's session ends */
/* The publisher goes on writing: its readers know. Without it the contents are final. */
#define PROTO_PUBLISH_LIVE UINT32_C(2)
/* Only in the place of one with the same layout. */
#define PROTO_PUBLISH_SAME_LAYOUT UINT32_C(4)
/* Those that a name has, and that NAMED and NAMES tell. */
#define PROTO_NAMED_FLAGS   (PROTO_PUBLISH_KEEP | PROTO_PUBLISH_LIVE)
#define PROTO_PUBLISH_FLAGS (PROTO_NAMED_FLAGS | PROTO_PUBLISH_SAME_LAYOUT)

struct proto_publish_buffer {
    uint64_t lease, generation; /* a whole lease of this session */
    uint64_t size_bytes;        /* that readers are told, up to the block's capacity */
    struct proto_board_fence
        fence;          /* in this session's slot on the board: behind it the contents are there */
    uint32_t has_fence; /* 1: readers wait for it; 0: the fence is 0 */
    uint32_t reserved;  /* 0 */
};

struct proto_publish {
    char name[PROTO_NAME_TEXT_SIZE]; /* printable UTF-8, not empty, filled up with NULs */
    uint32_t flags;                  /* PROTO_PUBLISH_… */
    uint32_t count;                  /* 1…PROTO_NAME_BUFFERS_MAX; the other buffers are 0 */
    uint32_t directory_bytes;        /* that were written by WRITE_DIRECTORY; 0: it has none */
    uint32_t reserved;               /* 0 */
    uint64_t layout;                 /* a number that the publisher makes of sizes and directory */
    struct proto_publish_buffer buffers[PROTO_NAME_BUFFERS_MAX];
};

struct proto_published {
    uint64_t generation; /* of what is published: never 0, and above all that were before */
};

/* The session gives up building the name. The publication stays. */
#define PROTO_UNPUBLISH_BUILD UINT32_C(1)

struct proto_unpublish {
    char name[PROTO_NAME_TEXT_SIZE];
    uint64_t generation; /* only this one; 0: whichever it is */
    uint32_t flags;      /* PROTO_UNPUBLISH_… */
    uint32_t reserved;   /* 0 */
};

#define PROTO_OPEN_NAME_BUILD                                                                                \
    UINT32_C(1) /* where nothing is published and no session builds, this one does */
#define PROTO_OPEN_NAME_CHANGE UINT32_C(2) /* waits until the generation is another one than named */
#define PROTO_OPEN_NAME_FLAGS  (PROTO_OPEN_NAME_BUILD | PROTO_OPEN_NAME_CHANGE)

struct proto_open_name {
    char name[PROTO_NAME_TEXT_SIZE];
    uint64_t generation; /* at least this one; with CHANGE: another one, where 0 is that there is none */
    uint64_t timeout_ns; /* as in ACQUIRE */
    uint32_t flags;      /* PROTO_OPEN_NAME_… */
    uint32_t reserved;   /* 0 */
};

enum proto_name_state {
    PROTO_NAME_THERE = 1,
    PROTO_NAME_BUILD = 2, /* the session builds it: it publishes, or says UNPUBLISH; the rest is 0 */
    PROTO_NAME_GONE = 3,  /* to CHANGE: nothing is published; the rest is 0 */
};

struct proto_named_buffer {
    struct proto_token token; /* for ATTACH, while the generation is there */
    uint64_t size_bytes;
    struct proto_board_fence fence; /* on the board */
    uint32_t pool;
    uint32_t has_fence; /* 1: the reader waits for it; 0: the fence is 0 */
};

struct proto_named {
    uint32_t state; /* enum proto_name_state */
    uint32_t flags; /* of PROTO_NAMED_FLAGS */
    uint64_t generation;
    uint64_t layout;
    uint64_t session; /* that published it */
    uint32_t count;   /* of the buffers; the others are 0 */
    uint32_t directory_bytes;
    struct proto_named_buffer buffers[PROTO_NAME_BUFFERS_MAX];
};

struct proto_read_directory {
    char name[PROTO_NAME_TEXT_SIZE];
    uint64_t generation;
    uint32_t offset_bytes; /* below the directory's size */
    uint32_t reserved;     /* 0 */
};

struct proto_make_channel {
    char name[PROTO_NAME_TEXT_SIZE];
    uint64_t lease, generation; /* of the slots' memory: a whole lease of this session, which it may release then */
    uint64_t slot_bytes, n_slots, metadata_bytes, n_consumers, policy; /* proto/channel.h */
    uint32_t flags;                                                    /* PROTO_MAKE_CHANNEL_… */
    uint32_t reserved;                                                 /* 0 */
};

#define PROTO_MAKE_CHANNEL_KEEP UINT32_C(1) /* it stays when no process has a place and its maker is gone */

#define PROTO_CHANNEL_ANY_CONSUMER UINT32_MAX

struct proto_join_channel {
    char name[PROTO_NAME_TEXT_SIZE];
    uint64_t timeout_ns; /* as in ACQUIRE: until the channel is there, and the place is free */
    uint32_t place;      /* proto/channel.h; or PROTO_CHANNEL_ANY_CONSUMER */
    uint32_t reserved;   /* 0 */
};

/* The page of a place in the channel with this id; page 0 is the roll, others are 1 and the place's number. LEAVE_CHANNEL:
 * the place that is left. */
struct proto_channel_page_name {
    uint64_t channel;
    uint32_t page;
    uint32_t reserved; /* 0 */
};

struct proto_channel_reply {
    uint64_t channel;         /* its id */
    struct proto_token token; /* of the slots' memory, for ATTACH while the session has a place */
    uint64_t slot_bytes, n_slots, metadata_bytes, n_consumers, policy;
    uint32_t place; /* that the session has taken */
    uint32_t pool;  /* of the slots' memory */
};

struct proto_channel_page_reply {
    uint64_t channel, size_bytes;
    uint32_t page;
    uint32_t is_own; /* 1: of a place that the session has taken, and can be mapped for writing */
};

struct proto_list_names {
    uint64_t after; /* the id of a name: those that came later; 0: all */
};

struct proto_listed_name {
    uint64_t id;         /* names are listed by it */
    uint64_t generation; /* 0: nothing is published */
    uint64_t bytes;      /* of all its buffers */
    uint64_t layout;
    uint64_t session; /* that published it, or builds it; 0: none */
    uint32_t flags;   /* as NAMED, or PROTO_NAME_CHANNEL */
    uint32_t count;   /* of its buffers */
    char name[PROTO_NAME_TEXT_SIZE];
};

#define PROTO_NAME_CHANNEL UINT32_C(16) /* in LIST_NAMES: it is a channel, with its id as generation */

struct proto_names {
    uint32_t count;  /* the others are 0 */
    uint32_t n_left; /* that come behind these */
    struct proto_listed_name names[PROTO_NAMES_PER_MESSAGE];
};

struct proto_failure {
    uint32_t error;                /* enum proto_error */
    uint32_t text_length;          /* bytes that follow; printable UTF-8, no NUL */
    char text[PROTO_TEXT_MAX + 1]; /* decoded: NUL-terminated */
};

/* Of a message without a body. */
struct proto_nothing {};

#define PROTO_MESSAGE(name, number, sender, request, reply, descriptors, member, type) struct type member;
/* A decoded message, or one to encode. */
struct proto_message {
    struct proto_header header; /* encode fills in length */
    union {
#include "proto/messages.def"
    };
};

enum proto_sender {
    PROTO_FROM_CLIENT,
    PROTO_FROM_DAEMON,
};

/* Decodes one packet of size bytes. Returns 0 and the checked message, or -EBADMSG with *ret_reason naming
 * the field and what is wrong with it, for the sender and for a log: "ACQUIRE.size_bytes: 0, or above 2^56"
 * (a constant string; ret_reason may be NULL). ret_message is undefined on failure. */
int proto_decode(enum proto_sender sender, const void *packet, size_t size, struct proto_message *ret_message,
                 const char **ret_reason);

/* The request id in the header of a packet of size bytes, for the ERROR that answers a packet which
 * proto_decode() refuses. 0: the packet is too short to have one. */
uint64_t proto_packet_request(const void *packet, size_t size);

/* Encodes a message into packet (PROTO_PACKET_MAX bytes). Returns the packet's length. The message must be
 * one that proto_decode would accept: asserted. */
size_t proto_encode(const struct proto_message *message, void *packet);

/* The reply to a client's request, if it is no ERROR. PROTO_NONE: it has none, or it is no request. */
enum proto_operation proto_reply_to(unsigned operation);

/* Whether a client's message is answered: it is not one-way, of its kind or by its id 0. */
bool proto_is_answered(const struct proto_header *header);

/* How many descriptors accompany the message, up to PROTO_LEASES_PER_MESSAGE. */
unsigned proto_message_fds(const struct proto_message *message);

/* For messages to people: "ACQUIRE", "the pool has no room…". Never NULL, whatever the number. */
const char *proto_operation_name(unsigned operation);
const char *proto_error_text(unsigned error);

/* Makes a failure's text from a printf format; cuts it at PROTO_TEXT_MAX on a character boundary. */
void proto_failure_set(struct proto_failure *failure, enum proto_error error, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
