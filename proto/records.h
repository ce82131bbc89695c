/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PROTO_RECORDS_H
#define PROTO_RECORDS_H
/*
 * The file of the flight recorder: what happened to the daemon's memory. The daemon alone writes it,
 * through a shared mapping; gpupoolctl reads it, whether the daemon lives or not. Its parts, in order:
 *
 *   struct proto_records        the header, on a page of its own
 *   struct proto_hour[]         hours_count rows of pools_count: what each hour was like, by pool
 *   struct proto_record[]       records_count: a ring of what happened
 *
 * Record n (from 1) lies at index (n - 1) % records_count. The hour that began h hours after 1970 lies in
 * row h % hours_count. A reader takes a record only where its number is the same before and after it was
 * copied: the writer clears the number first and sets it last.
 *
 * Integers have the machine's order of bytes: the file does not leave the machine. Times are nanoseconds on
 * CLOCK_REALTIME, sizes are bytes.
 */
#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/limits.h"

#define PROTO_RECORDS_MAGIC       "gpupool records\2" /* the last byte is the version of the format */
#define PROTO_RECORDS_MAGIC_BYTES 16u
#define PROTO_RECORDS_PAGE        16384u /* of the header; a multiple of the page size */
#define PROTO_RECORD_NAME_SIZE    24u    /* of a process, NUL included */
#define PROTO_HOUR_NAME_SIZE      22u    /* likewise, in the row of an hour */
#define PROTO_RECORD_POOL_SIZE    64u    /* of a pool's name, NUL included */

/* "/run/gpupool-admin/admin.sock" has its file at "/run/gpupool-admin/admin.records". */
#define PROTO_RECORDS_SUFFIX ".records"

enum proto_record_kind {
#define RECORD(name, number, word) PROTO_RECORD_##name = (number),
#include "proto/records.def"
#undef RECORD
    PROTO_RECORD_KINDS_END = 255
};

/* Bits of proto_record.flags. */
enum proto_record_flag {
    PROTO_RECORD_WAITED = 1,   /* REFUSE: the request had waited */
    PROTO_RECORD_DEADLINE = 2, /* REFUSE: until its deadline */
    PROTO_RECORD_PROBE = 4,    /* REFUSE: the client's user does not learn of it: a retry follows */
    PROTO_RECORD_SPLIT = 8,    /* RELEASE, FENCE: a part of the lease; the rest stays */
    PROTO_RECORD_CUT = 16,     /* NAMED: the name goes on */
};

struct proto_record {
    _Atomic uint64_t number; /* 0: nothing is here, or it is being written */
    uint64_t time_ns;
    union {
        struct {
            uint64_t bytes;
            uint64_t leased_bytes; /* of the pool: with a lease that was taken, or that is being given back */
            uint64_t value;
        };
        char name[PROTO_RECORD_NAME_SIZE]; /* of OPEN, NAME, SCOPE and NAMED; a longer one is cut */
    };
    uint64_t session;  /* 0: of none */
    uint32_t pid, uid; /* of the session */
    uint8_t kind;      /* enum proto_record_kind */
    uint8_t pool;      /* its id; 0: of none */
    uint8_t reason;    /* of REFUSE: enum proto_error */
    uint8_t detail;    /* of REFUSE for a quota: 1 and the quota's item, at most PROTO_RECORD_QUOTA_POOL */
    uint8_t flags;
    uint8_t zero;
    uint16_t scope; /* of the session; 0: the ordinary one */
};
static_assert(sizeof(struct proto_record) == 64, "a record is a cache line");

/* Values of proto_record.detail. */
enum proto_record_detail {
    PROTO_RECORD_QUOTA_NONE,
    PROTO_RECORD_QUOTA_SESSIONS,
    PROTO_RECORD_QUOTA_LEASES,
    PROTO_RECORD_QUOTA_RANGES,
    PROTO_RECORD_QUOTA_SEGMENTS,
    PROTO_RECORD_QUOTA_WAITING,
    PROTO_RECORD_QUOTA_REPLIES,
    PROTO_RECORD_QUOTA_POOL, /* bytes of the pool */
};

/* An hour of one pool. The peak's holders are as of when the peak was last seen to have grown by a 64th. */
struct proto_hour {
    uint64_t hour; /* since 1970; 0: nothing is here */
    uint64_t leased_peak_bytes, leased_peak_ns;
    uint64_t reserved_peak_bytes, quarantined_peak_bytes;
    uint64_t user_bytes, process_bytes; /* of the users' and of that user's processes' largest, at the peak */
    uint64_t wait_longest_ns, wait_sum_ns;
    uint32_t user, process_pid;
    char process_name[PROTO_HOUR_NAME_SIZE];
    uint16_t scope;        /* of the user */
    uint32_t n_waits;      /* requests whose wait ended */
    uint32_t n_refused;    /* refusals that were errors for the caller */
    uint32_t n_timeouts;   /* of these: after a wait until the deadline */
    uint32_t n_quota;      /* of these: for a quota */
    uint32_t n_grow_fails; /* growths that the driver or the kernel refused */
    uint32_t n_deaths;     /* sessions that had memory of the pool and ended without a farewell */
};
static_assert(sizeof(struct proto_hour) == 128, "two cache lines");

struct proto_records {
    char magic[PROTO_RECORDS_MAGIC_BYTES];
    uint64_t records_offset, records_count, hours_offset, hours_count;
    uint64_t file_bytes;
    _Atomic uint64_t next; /* number of the next record */
    uint32_t daemon_pid;   /* that wrote last */
    uint32_t pools_count;
    struct {
        uint8_t uuid[16]; /* zeros: it is of host memory */
        int32_t numa_node;
        uint32_t zero;
        char name[PROTO_RECORD_POOL_SIZE];
    } pools[PROTO_POOLS_MAX]; /* by id - 1 */
};
static_assert(sizeof(struct proto_records) <= PROTO_RECORDS_PAGE, "the header has room");

/* Writes the path of the file that belongs to an admin socket: one that ends in .sock has another end.
 * Returns path. */
const char *proto_records_path(const char *admin_path, char *path, size_t size);

/* Fills in a header for a file of about so many bytes of records and so many hours, 1 or more of each, of
 * so many pools. The pools are zeros. */
void proto_records_lay_out(struct proto_records *records, uint64_t records_bytes, uint64_t hours,
                           uint32_t pools);

/* Whether a header and the size of its file fit together: a reader that checks it reads nothing behind the
 * end. */
bool proto_records_are_sane(const struct proto_records *records, uint64_t file_bytes);

/* The parts of a mapped file. */
static inline struct proto_hour *proto_records_hour(struct proto_records *records, uint64_t hour,
                                                    uint32_t pool) {
    struct proto_hour *hours = (struct proto_hour *)((char *)records + records->hours_offset);
    return &hours[hour % records->hours_count * records->pools_count + pool - 1];
}

static inline struct proto_record *proto_records_record(struct proto_records *records, uint64_t number) {
    struct proto_record *ring = (struct proto_record *)((char *)records + records->records_offset);
    return &ring[(number - 1) % records->records_count];
}

/* Copies record n out of a file that is being written. Returns false where it is not there (any more). */
bool proto_records_read(struct proto_records *records, uint64_t number, struct proto_record *ret_record);

/* "refuse"; "?" for a number that is none. */
const char *proto_record_word(unsigned kind);

#endif
