/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_LOOP_IDENTITY_H
#define DAEMON_LOOP_IDENTITY_H
/*
 * A daemon's identity: random, so that no other daemon and no later one has it, and what clients are told
 * beside it.
 */
#include <stdint.h>

#include "base/hex.h"
#include "proto/limits.h"

struct identity {
    uint8_t bytes[PROTO_IDENTITY_BYTES];
    char text[HEX_SIZE(PROTO_IDENTITY_BYTES)];
    char admin_path[PROTO_PATH_SIZE]; /* absolute; "": none that a client can be told. NULs fill it up */
    uint64_t started_ns;
};

/* Returns 0, or -EIO where the kernel gives no random bytes. */
int identity_make(struct identity *identity);

/* Notes the path of the admin socket, relative to the working directory or absolute. A path that no client
 * could use is not told. */
void identity_note_admin_path(struct identity *identity, const char *path);

#endif
