/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BASE_SEND_H
#define BASE_SEND_H
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

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

#endif
