/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_CORE_RECORDER_H
#define DAEMON_CORE_RECORDER_H
/*
 * The flight recorder: writes what happens to memory into a ring of fixed records, and for each hour and
 * pool how it was (proto/records.h). The memory of both is the shell's: a file that can be read while the
 * daemon runs and after its end. Nothing reads it here, and nothing depends on it. Without a file nothing
 * is recorded.
 *
 * A record's time is that of the entry point that is at work: each one that takes the time says it with
 * recorder_set_time().
 */
#include "daemon/core/types.h"

static inline void note_peak(uint64_t *peak, uint64_t value) {
    if (value > *peak)
        *peak = value;
}

/* Members that are left out are 0 or NULL. */
struct recorded {
    enum proto_record_kind kind;
    uint8_t flags; /* enum proto_record_flag */
    enum proto_error reason;
    int quota_item; /* plus 1: enum quota_item */
    const struct pool *pool;
    const struct session *session;
    const struct scope *scope; /* of SCOPE, SCOPE_END and UNPUBLISH; of others it is the session's */
    const char *text;          /* of NAMED */
    const struct edition *edition; /* of UNPUBLISH: the record is of its publisher, which may be gone */
    uint64_t bytes, value;
};

/* Begins to record in a file that proto_records_lay_out() and earlier daemons have written. It is borrowed
 * until core_free(). All pools have been added. */
void recorder_open(struct core *core, struct proto_records *file);

/* Records no more: what follows is the daemon's own end. */
void recorder_close(struct core *core);

/* Tells how far CLOCK_REALTIME is ahead of CLOCK_MONOTONIC now, and begins the hour that it is. To be called
 * every few seconds. */
void recorder_set_clock(struct core *core, uint64_t now_ns, uint64_t realtime_ns);

static inline void recorder_set_time(struct core *core, uint64_t now_ns) {
    core->recorder.now_ns = now_ns;
}

/* Writes a record. Constant time: some nanoseconds. */
void record(struct core *core, const struct recorded *recorded);

/* The row of the hour that it is, of one pool. NULL: nothing is recorded. */
struct proto_hour *recorder_hour(struct pool *pool);

/* The pool's sums have grown. Looks for the holders of a peak each time it has grown by a 64th: linear in the
 * pool's tenants and in one tenant's sessions. */
void recorder_note_peaks(struct pool *pool);

/* A request's wait is over. */
void recorder_note_wait(struct pool *pool, uint64_t waited_ns);

#endif
