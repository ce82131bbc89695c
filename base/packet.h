/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_PACKET_H
#define BASE_PACKET_H
/* Packets over a Unix socket, with descriptors. */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/high_fd.h"

/* Descriptors that the kernel takes with one packet (SCM_MAX_FD). */
#define PACKET_FDS_MAX 253u

/* Sends a packet, and n_fds descriptors with it (borrowed; PACKET_FDS_MAX at most). Returns as sendmsg()
 * does, but never fails with EINTR. */
static inline ssize_t send_with_fds(int socket, const void *packet, size_t size, const int *fds,
                                    unsigned n_fds, int flags) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(PACKET_FDS_MAX * sizeof(int))];
    } control;
    struct iovec part = {.iov_base = (void *)packet, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;

    assert(n_fds <= PACKET_FDS_MAX);
    if (n_fds > 0) {
        memset(&control, 0, CMSG_SPACE(n_fds * sizeof(int)));
        control.header = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(n_fds * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), fds, n_fds * sizeof(int));
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
    }
    do
        sent = sendmsg(socket, &message, flags);
    while (sent < 0 && errno == EINTR);
    return sent;
}

/* As send_with_fds(), with one descriptor, or none where fd is -1. */
static inline ssize_t send_with_fd(int socket, const void *packet, size_t size, int fd, int flags) {
    return send_with_fds(socket, packet, size, &fd, fd >= 0, flags);
}

/* Receives a packet of exactly size bytes, and the descriptor that came with it; *ret_fd is -1 when none did.
 * 0, or what recvmsg() says, never EINTR; -EPROTO: another size, or more than one descriptor; -EMFILE. */
static inline int receive_with_fd(int socket, void *packet, size_t size, int *ret_fd, int flags) {
    _cleanup_(close_fdp) int fd = -1, other = -1;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))]; /* for one int, aligned: it takes two */
    } control = {0};
    struct iovec part = {.iov_base = packet, .iov_len = size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t length;

    do
        length = recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    if (length < 0)
        return -errno;
    if (control.header.cmsg_type == SCM_RIGHTS && control.header.cmsg_len >= CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    if (fd >= 0 && control.header.cmsg_len >= CMSG_LEN(2 * sizeof fd))
        memcpy(&other, CMSG_DATA(&control.header) + sizeof fd, sizeof other);
    if (fd >= 0 && (fd = high_fd(fd)) < 0)
        return -errno;
    if ((size_t)length != size || other >= 0 || (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0)
        return -EPROTO;
    *ret_fd = take_fd(&fd);
    return 0;
}

#endif
