/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_REPORT_HOLDERS_H
#define CLIENT_CTL_REPORT_HOLDERS_H
/*
 * Which session had how much of a pool for how long, by the records. A session that is older than the oldest
 * record may have had memory before: as much as it gave back more than it took, and as its end says. No
 * record tells of memory that it keeps beside that. Pure.
 */
#include "client/ctl/report_series.h"
#include "proto/records.h"

struct record_names;

struct report_process {
    uint64_t session; /* 0: of none */
    uint32_t pid, uid;
    uint16_t scope_id;
    char name[PROTO_RECORD_NAME_SIZE], scope[PROTO_RECORD_NAME_SIZE]; /* "": not known; the ordinary one */
};

struct report_holder {
    struct report_process process;
    uint8_t pool;
    bool is_over, is_dead; /* dead: its memory is in quarantine */
    int64_t held, fenced;  /* held: also what is fenced */
    int64_t least, most;   /* of what it held; most: within the span */
    uint64_t last_ns;
    double byte_ns; /* within the span: bytes times nanoseconds */
};

struct report_holders {
    struct report_span span;
    uint64_t first_ns;    /* of the oldest record */
    uint64_t older_below; /* a session below may be older than that; UINT64_MAX at first */
    struct report_holder *entries;
    size_t count, capacity;
    size_t n_over;    /* the first ones, which are of earlier daemons */
    uint32_t *places; /* of those behind, 1 and their index, by session and pool; 0: free */
    size_t n_places;
    bool is_short; /* memory was: some are missing */
};

/* Fills in who a record is of. */
void report_process_read(struct report_process *process, const struct proto_record *record,
                         const struct record_names *names);

/* Takes each record, in order. Returns how much of what it says left the
 * session was leased, not fenced, where it is the session's end. */
uint64_t report_holders_take(struct report_holders *holders, const struct proto_record *record,
                             const struct record_names *names);

/* No session that is there lives on: the daemon has ended, or the records end. */
void report_holders_end(struct report_holders *holders, const struct record_names *names, uint64_t moment_ns);

/* Sorts those that had memory within the span by pool, the largest bytes times time first, and drops the
 * others. */
void report_holders_sort(struct report_holders *holders);

void report_holders_deinit(struct report_holders *holders);

#endif
