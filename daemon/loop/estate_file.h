/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_ESTATE_FILE_H
#define DAEMON_LOOP_ESTATE_FILE_H
/*
 * The memory of the daemon's estate and of its desk: a memfd that lies in the store. Its pages are there from the
 * beginning (fallocate()): a store into it cannot fail. One daemon at a time has it, by a lock that goes with
 * its process.
 */
#include <stddef.h>

#include "daemon/loop/store.h"

struct estate_file {
    int fd;       /* -1: there is none */
    char *memory; /* the desk, and behind it the estate */
    size_t size_bytes;
    char stored[STORE_NAME_SIZE];
};

/* Makes one of zeros, and stores it. Returns 0 or a negative errno; then there is none. */
int estate_file_make(struct estate_file *file, struct store *store);

/* Takes the one that a daemon before has stored. Returns 0, -ENOENT, -EBUSY: another daemon is alive and has it;
 * or another negative errno. */
int estate_file_take(struct estate_file *file, struct store *store);

/* struct estate_owner.grow; argument: the file. size_bytes: of the estate. */
int estate_file_grow(void *argument, size_t size_bytes);

/* The estate's part. */
void *estate_file_estate(const struct estate_file *file);
size_t estate_file_estate_bytes(const struct estate_file *file);

/* Unmaps and closes it; it stays in the store. */
void estate_file_close(struct estate_file *file);

#endif
