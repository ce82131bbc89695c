/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DAEMON_PEER_H
#define DAEMON_PEER_H
/* Who is at the other end of a Unix socket, as the kernel attests it. */
#include "daemon/pool/session.h"

/* Fills in pid, uid, gid and command. Returns 0 or a negative errno. */
int peer_identify(int fd, struct peer *ret_peer);

/* Fills in the groups that the peer was in when it connected, beside its gid; the caller's to drop. None
 * where the kernel does not tell (SO_PEERGROUPS, Linux 4.13). Returns 0 or a negative errno. */
int peer_read_groups(int fd, struct peer *peer);
void peer_drop_groups(struct peer *peer);

/* A pidfd of the peer: SO_PEERPIDFD (Linux 6.5), else pidfd_open() of its pid, which can name another process
 * only if the peer died and its pid was reused between connect and here. Returns 0, -ESRCH when the peer is
 * gone already, or a negative errno. */
int peer_open_pidfd(int fd, pid_t pid, int *ret_pidfd);

#endif
