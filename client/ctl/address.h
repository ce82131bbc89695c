/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_ADDRESS_H
#define CLIENT_CTL_ADDRESS_H
/*
 * Which daemon is asked, and at which admin sockets it may be found.
 *
 * An admin socket that is named, by an option or by $GPUPOOL_ADMIN_SOCKET, is asked, whichever daemon serves
 * it. Else the daemon is the one that programs use: that of the data socket. It tells its identity and the
 * path of its admin socket. In a container this path may lead nowhere, or to another daemon. So the socket is
 * also looked for beside the data socket, and each request names the daemon by its identity: another daemon
 * refuses it. Where the environment names no data socket either, the service's admin socket is asked.
 */
#include <stddef.h>
#include <stdint.h>

#include "base/hex.h"
#include "proto/proto.h"

#define ADMIN_SOCKET_DEFAULT "/run/gpupool-admin/admin.sock"
#define ADDRESS_PATHS_MAX    2u

/* Paths of other sockets may be longer than those that the kernel takes: connecting says so. */
#define ADDRESS_PATH_SIZE 4096u

struct address {
    const char *data_path; /* of the daemon that is meant; NULL: an admin socket was named */
    char identity[HEX_SIZE(PROTO_IDENTITY_BYTES)];    /* "": any */
    char paths[ADDRESS_PATHS_MAX][ADDRESS_PATH_SIZE]; /* of the admin socket, the likeliest first */
    unsigned n_paths;                                 /* 1 or more */
};

/* Finds out whom to ask. named: the admin socket of the command line, or NULL. Returns 0; or code, after the
 * reason was written to standard error. */
int address_find(struct address *address, const char *named, uint64_t timeout_ns, int code);

#endif
