/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_PACKET_H
#define BASE_PACKET_H
/* Packets over a Unix socket, each with at most one descriptor. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"

/* Sends a packet, and a descriptor with it unless fd is -1. Returns as sendmsg() does, but never fails with
 * EINTR. */
static inline ssize_t send_with_fd(int socket, const void *packet, size_t size, int fd, int flags) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = (void *)packet, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    ssize_t sent;

    if (fd >= 0) {
        control.header = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
    }
    do
        sent = sendmsg(socket, &message, flags);
    while (sent < 0 && errno == EINTR);
    return sent;
}

/* Receives a packet of exactly size bytes, and the descriptor that came with it; *ret_fd is -1 when none did.
 * 0, or what recvmsg() says, never EINTR; -EPROTO: another size, or more than one descriptor. */
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
    if ((size_t)length != size || other >= 0 || (message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0)
        return -EPROTO;
    *ret_fd = take_fd(&fd);
    return 0;
}

#endif
