/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_LIMITS_H
#define PROTO_LIMITS_H
/* The limits of the wire that both sides know. Each line says where its value comes from. */

#include <stdint.h>

#define PROTO_PACKET_MAX    16384u /* a packet's bytes: far above the largest message, far below the kernel's 208 KiB */
#define PROTO_POOLS_MAX     64u    /* pools on a machine: 16 GPUs and 8 NUMA nodes with room; fits one packet */
#define PROTO_NAME_SIZE     64u    /* a GPU's name with NUL: what NVML uses for its own is 64 or 96 */
#define PROTO_TEXT_MAX      1024u  /* an error's text without NUL */
#define PROTO_HANDLE_BYTES  64u    /* CUDA_IPC_HANDLE_SIZE */
#define PROTO_UUID_BYTES    16u    /* CUuuid */
#define PROTO_IDENTITY_BYTES 16u    /* 128 random bits: no two daemons have the same */
#define PROTO_PROCESS_NAME_SIZE 48u    /* with NUL: fits a column of a table */
#define PROTO_PATH_SIZE      112u   /* a socket's path with NUL: the kernel takes 108 bytes */
#define PROTO_TOKEN_BYTES   32u    /* 256 random bits: cannot be guessed, whatever the rate */
#define PROTO_SIZE_MAX      (UINT64_C(1) << 56) /* bytes of one request: sums of a few stay within 64 bits */
#define PROTO_PAGE_BYTES    65536u /* a session's page: words for its streams, counters for its threads */
#define PROTO_PAGE_FENCES   512u   /* words in it: more streams than a process uses, in one page of the kernel's */
#define PROTO_CLOSE_MAX     64u    /* segments that one SEGMENTS names: more than a growth takes the place of */
#define PROTO_ROW_PARTS_MAX 4096u  /* segments that a lease covers: 8 GiB of the smallest */
#define PROTO_PARTS_MAX     64u    /* parts that one PARTS names */
#define PROTO_LEASES_MAX    4096u  /* segments of one ACQUIRE_SEGMENTS: 64 GiB of the largest; a millisecond of the loop */
#define PROTO_LEASES_PER_MESSAGE 64u /* descriptors of one message: the kernel takes 253, and they count as the daemon's until they are read */
#define PROTO_BOARD_SLOTS 1024u      /* sessions of a user that can leave fences on its board */
#define PROTO_BOARD_WORDS 64u        /* streams of a session that have fences under way there */
#define PROTO_BOARD_BYTES (1u << 20)
#define PROTO_HOLDERS_MAX 64u      /* fences that one HOLDERS names */
#define PROTO_CHANNEL_SLOTS_MIN     2u    /* one is filled while one is read */
#define PROTO_CHANNEL_SLOTS_MAX     1024u /* with the most metadata, the producer's page has 1.2 MiB */
#define PROTO_CHANNEL_METADATA_MAX  1024u /* bytes of an element: shape, type and time of a frame; more fits into the slot */
#define PROTO_CHANNEL_CONSUMERS_MAX 16u   /* the producer looks at as many marks for each element */
#define PROTO_PARCEL_NS_MAX                                                                                  \
    (UINT64_C(86400) * 1000000000u) /* a day: a queue that nothing was read from for longer is abandoned */
#define PROTO_NAME_TEXT_SIZE 128u  /* of a name, with NUL: a path of a few parts */
#define PROTO_NAME_BUFFERS_MAX 64u /* that one name stands for: a few for each GPU of a machine; fits one packet */
#define PROTO_DIRECTORY_BYTES_MAX 65536u /* of a name: keys and places of some thousand tensors, packed */
#define PROTO_DIRECTORY_PART_MAX  15360u /* of these, that one message has: fits one packet */
#define PROTO_NAMES_PER_MESSAGE 64u /* that one NAMES tells: fits one packet */
#define PROTO_ONE_WAY_MAX                                                                                    \
    4096u /* leases merged one-way between two answers: a socket holds some hundred packets */

/* A session that asks for the holders of a block sees every release that another session sent before. A
 * client sends a RELEASE with a board_word one-way only while fewer than PROTO_UNHEARD_MAX of its one-way
 * messages are unheard (no answer to a later message has come). The daemon serves PROTO_ONE_WAY_PER_TURN of
 * them in a turn. A client asks PROTO_HOLDERS_ASKS times before it takes a block as held. Between two
 * questions each other process has a turn. A message that is answered ends its turn early: three turns are
 * left for those of other threads. docs/wire.md promises this under RELEASE. */
#define PROTO_ONE_WAY_PER_TURN 8u /* each costs the daemon a fraction of a request */
#define PROTO_UNHEARD_MAX                                                                                    \
    32u /* an answer costs a client some 10 us: a third of a microsecond for each release */
#define PROTO_HOLDERS_ASKS 8u /* only where another session has the block, or its release is under way */
_Static_assert(PROTO_UNHEARD_MAX <= (PROTO_HOLDERS_ASKS - 1 - 3) * PROTO_ONE_WAY_PER_TURN,
               "a client asks for holders until the daemon has read all releases that came before");

/* How large the segments are that clients ask for by ACQUIRE_SEGMENTS in a pool whose segments are PROTO_SEGMENT_VMM_FD,
 * by the pool's limit. All ask for the same size, so that a free segment suits any of them. Copies within an
 * H200 reached 4,103 GB/s from handles of 64 MiB, 4,045 of 16, 3,521 of 2, and 4,254 from one allocation;
 * smaller ones leave less memory unused (docs/architecture.md, "Arenas"), and one that is used for little is
 * to be a small part of the pool. */
#define PROTO_SLOT_BYTES_MAX (UINT64_C(16) << 20)
#define PROTO_SLOT_BYTES_MIN (UINT64_C(2) << 20)
#define PROTO_SLOT_SHARE     64u

static inline uint64_t proto_slot_bytes(uint64_t limit_bytes) {
    uint64_t bytes = PROTO_SLOT_BYTES_MAX;

    while (bytes > PROTO_SLOT_BYTES_MIN && bytes * PROTO_SLOT_SHARE > limit_bytes)
        bytes /= 2;
    return bytes;
}

/* How large the large segments are that a client asks for where one request lacks as much side by side, by
 * the pool's limit; beside them it asks for some of half the size. A process that attaches 8 GiB imports and
 * maps 16 of them, in place of 512 small ones. The sizes are few, so that a free one suits most requests.
 * Pools below PROTO_LARGE_SHARE times the smallest have none: one that is used for little is to be a small
 * part of the pool. 0: the pool has none. */
#define PROTO_LARGE_BYTES_MAX (UINT64_C(512) << 20)
#define PROTO_LARGE_BYTES_MIN (UINT64_C(256) << 20)
#define PROTO_LARGE_SHARE     16u

static inline uint64_t proto_large_bytes(uint64_t limit_bytes) {
    uint64_t bytes = PROTO_LARGE_BYTES_MAX;

    while (bytes >= PROTO_LARGE_BYTES_MIN && bytes * PROTO_LARGE_SHARE > limit_bytes)
        bytes /= 2;
    return bytes >= PROTO_LARGE_BYTES_MIN ? bytes : 0;
}

#endif
