/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_LEDGER_H
#define TESTS_FUZZ_LEDGER_H
/*
 * The ledger lists the memory that each client may be touching, by the messages that clients read and sent,
 * and by nothing that the daemon keeps. A block is in the ledger from the LEASE that a client read to the
 * message with which the client gives any of it up (RELEASE, SPLIT, MERGE, BYE), or to the end of its process
 * and of that process's GPU work. The end of its socket changes nothing. Two blocks that overlap are the same
 * shared block, and of one user. Two users never see one segment. A segment that the driver gets back has no
 * block in the ledger.
 *
 * The ledger accuses only of what it knows. It does not know leases whose LEASE was never read, the rest of a
 * lease that was divided, blocks with gaps, and fences.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define LEDGER_MAX      512u
#define LEDGER_SEGMENTS 64u

struct ledger_entry {
    bool used;
    unsigned process, connection; /* whose it is, and through which of its connections */
    uid_t uid;
    uint64_t lease, generation;
    uint64_t segment, offset_bytes, capacity_bytes;
    bool attached; /* somebody shared it: others may have the same block */
    bool whole;    /* no gaps, in which something else may lie */
    bool no_gpu;   /* its session does no GPU work: the process's end is its end */
};

struct ledger {
    struct ledger_entry entries[LEDGER_MAX];
    unsigned n_entries; /* used ones, and those between them */
    struct {
        uint64_t segment;
        const void *memory; /* the driver's name for it */
    } segments[LEDGER_SEGMENTS];
    unsigned n_segments;
};

/* A client was told that it has a block. Aborts when another client has it, or another user any block of its
 * segment. */
void ledger_enter(struct ledger *ledger, const struct ledger_entry *entry);

/* A segment is this allocation of the driver. */
void ledger_describe(struct ledger *ledger, uint64_t segment, const void *memory);
/* The driver gets the allocation back: aborts when a client has a block in it. */
void ledger_free(struct ledger *ledger, const void *memory);

/* The lease of that name that came by that connection; NULL when it is not known (any more). */
struct ledger_entry *ledger_find(struct ledger *ledger, unsigned connection, uint64_t lease,
                                 uint64_t generation);

/* A connection gave up all its leases; one that did no GPU work was given memory for it after all; a process
 * has ended, which is the end of those that do none; a process is over, and its GPU work. */
void ledger_leave_connection(struct ledger *ledger, unsigned connection);
void ledger_note_gpu_work(struct ledger *ledger, unsigned connection);
void ledger_end_process(struct ledger *ledger, unsigned process);
void ledger_leave_process(struct ledger *ledger, unsigned process);

#endif
