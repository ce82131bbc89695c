/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_RECORDS_H
#define CLIENT_CTL_RECORDS_H
/*
 * The flight recorder's file (proto/records.h), as it is read: mapped, so that the daemon is asked nothing
 * and need not live. A filter chooses records by time, pool, user and process.
 */
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/records.h"

struct options;
struct record_names;

struct records {
    struct proto_records *file; /* read-only */
    uint64_t file_bytes;
    ino_t inode;
    const char *path;
};

/* Which records are shown. 0: all, or no end. */
struct records_filter {
    uint64_t since_ns, until_ns;
    uint64_t pool, pid;
    uint64_t uid; /* USER_NONE: all */
    const char *scope; /* its name; NULL: all */
};

/* Maps the file of the daemon that the options name: --records, else that beside the admin socket of
 * --admin-socket or $GPUPOOL_ADMIN_SOCKET, else that of the daemon at $GPUPOOL_SOCKET, or beside that; without
 * these, or where that is the service's socket, the service's. Returns 0, or code, after the reason was written to standard error. */
int records_open(struct records *records, const struct options *options, int code);

/* As records_open(), without a word where that fails. */
bool records_try(struct records *records, const struct options *options);
void records_close(struct records *records);

/* Number of the oldest record that may be there. */
uint64_t records_first(const struct records *records);

/* Whether the path leads to another file by now: a daemon has begun a new one. */
bool records_are_replaced(const struct records *records);

bool records_pass(const struct records_filter *filter, const struct record_names *names,
                  const struct proto_record *record);

/* By how many bytes a record changes what its session has, and what of that is behind fences. Returns false
 * where it changes neither, or is a session's end, which does not tell how much it had. */
bool record_change(const struct proto_record *record, int64_t *ret_held, int64_t *ret_fenced);

#endif
