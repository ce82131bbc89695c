/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_ADMIN_CLIENT_H
#define CLIENT_CTL_ADMIN_CLIENT_H
/*
 * One question to the daemon's admin socket: a line goes out, a line comes back. Nothing here looks into the
 * lines.
 */
#include <stddef.h>
#include <stdint.h>

/* A reply's length at most. A session takes about 400 bytes of the stats, so this is room for more than
 * 100,000. A longer reply does not come from gpupoold. */
#define ADMIN_REPLY_MAX (UINT64_C(64) << 20)

/* Connects, sends one line (given without its newline) and returns the line that comes back, owned by the
 * caller, without its newline and NUL-terminated; ret_length counts neither. All of it is done by deadline_ns
 * (CLOCK_MONOTONIC; NS_FOREVER: whenever). Returns 0 or a negative errno: -ENAMETOOLONG where no socket can
 * have such a path, -ETIMEDOUT, -ECONNRESET where the daemon hung up before a whole line was there, -EMSGSIZE
 * beyond ADMIN_REPLY_MAX, -EBADMSG where more than one line came, -ENOMEM, or what connect(2) or the socket
 * said. */
int admin_ask(const char *path, uint64_t deadline_ns, const char *line, char **ret_reply, size_t *ret_length);

#endif
