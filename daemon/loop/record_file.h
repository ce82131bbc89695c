/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_RECORD_FILE_H
#define DAEMON_LOOP_RECORD_FILE_H
/*
 * The file of the flight recorder (proto/records.h): made beside the admin socket, or gone on with where the
 * daemon before left one of the same shape. It is mapped whole, and all of it is there from the beginning, so
 * that a record is a few stores. In /run, which is in memory, the kernel writes none of it to a disk.
 */
#include <stdbool.h>
#include <stdint.h>

struct core;
struct proto_records;

struct record_file {
    struct proto_records *records; /* NULL: nothing is recorded */
    int fd;                        /* locked: no other daemon writes to the file */
};

/* admin_path: of the admin socket. records_bytes, hours: how much is kept. A file of another shape is renamed
 * to PATH.old. Where it cannot be made, the log warns, and nothing is recorded. goes_on: with the sessions of the
 * daemon before. Begins to record in the core,
 * to which all pools have been added. */
void record_file_open(struct record_file *file, struct core *core, const char *admin_path,
                      uint64_t records_bytes, uint64_t hours, bool goes_on);

/* Tells the recorder what time it is. To be called every few seconds. */
void record_file_set_clock(struct core *core);

/* Unmaps the file, which stays. The core must not record any more. */
void record_file_close(struct record_file *file);

#endif
