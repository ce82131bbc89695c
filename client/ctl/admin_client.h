/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_ADMIN_CLIENT_H
#define CLIENT_CTL_ADMIN_CLIENT_H
/*
 * One connection to the daemon's admin socket: a line goes out, a line comes back, both within the deadline
 * that the connection was opened with. The caller closes it. This object does not look into the lines.
 */
#include <stddef.h>
#include <stdint.h>

/* A reply's length at most. A session takes about 400 bytes of the stats, so this is room for more than
 * 100,000. A longer reply does not come from gpupoold. */
#define ADMIN_REPLY_MAX (UINT64_C(64) << 20)

struct admin_client {
    int fd; /* -1: not connected */
    uint64_t deadline_ns;
};

/* Connects, at the latest by deadline_ns (CLOCK_MONOTONIC; NS_FOREVER: whenever). Returns 0 or a negative
 * errno: -ENAMETOOLONG where no socket can have such a path, -ETIMEDOUT, or what connect(2) said. *ret_client
 * is untouched on failure. */
int admin_client_open(struct admin_client *ret_client, const char *path, uint64_t deadline_ns);

/* Accepts a client that is not connected; leaves it so. */
void admin_client_close(struct admin_client *client);

/* Sends one line (given without its newline) and returns the line that comes back, owned by the caller,
 * without its newline and NUL-terminated; ret_length counts neither. Returns 0 or a negative errno:
 * -ETIMEDOUT, -ECONNRESET where the daemon hung up before a whole line was there, -EMSGSIZE beyond
 * ADMIN_REPLY_MAX, -EBADMSG where more than one line came, -ENOMEM, or what the socket said. After a failure
 * the connection is only good for closing. */
int admin_client_call(struct admin_client *client, const char *line, char **ret_reply, size_t *ret_length);

#endif
