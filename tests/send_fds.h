/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_SEND_FDS_H
#define TESTS_SEND_FDS_H
/* A packet with descriptors, for those who play a client or a daemon that keeps no rules. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define SEND_FDS_MAX 253u /* SCM_MAX_FD: what the kernel takes in one message */

/* As send(), with so many descriptors attached (borrowed). */
static inline ssize_t send_with_fds(int fd, const void *packet, size_t size, const int *fds, unsigned n_fds,
                                    int flags) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(SEND_FDS_MAX * sizeof(int))];
    } control = {0};
    struct iovec piece = {(void *)packet, size};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};

    if (n_fds > SEND_FDS_MAX)
        abort();
    if (n_fds > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
        memcpy(CMSG_DATA(header), fds, n_fds * sizeof(int));
    }
    return sendmsg(fd, &message, flags);
}

#endif
