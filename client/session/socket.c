/* SPDX-License-Identifier: Apache-2.0 */
#include "client/session/socket.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/high_fd.h"

/* A receive that may wait long does so in the call itself, which saves the poll before it (about a tenth of a
 * round trip); it looks at the clock this often. */
#define RECEIVE_SLICE_NS NS_PER_S

int socket_connect(const char *path, int type, uint64_t deadline_ns, int *ret_fd) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);

    if (length == 0)
        return -ENOENT;
    if (length >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, length);

    _cleanup_(close_fdp) int fd = high_fd(socket(AF_UNIX, type | SOCK_CLOEXEC, 0));
    if (fd < 0)
        return -errno;
    for (;;) {
        /* connect() of a Unix socket waits while the listener's backlog is full, as long as SO_SNDTIMEO says;
         * a non-blocking one fails with EAGAIN and gives nothing to poll for. */
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= deadline_ns)
            return -ETIMEDOUT;
        uint64_t left_us = deadline_ns == NS_FOREVER ? 0 : (deadline_ns - now_ns + NS_PER_US - 1) / NS_PER_US;
        struct timeval timeout = {.tv_sec = (time_t)(left_us / 1000000),
                                  .tv_usec = (suseconds_t)(left_us % 1000000)};
        if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) < 0)
            return -errno;
        if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
            break;
        if (errno == EAGAIN)
            return -ETIMEDOUT;
        if (errno != EINTR)
            return -errno;
    }
    struct timeval slice = {.tv_sec = (time_t)(RECEIVE_SLICE_NS / NS_PER_S)};
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice) < 0)
        return -errno;
    *ret_fd = take_fd(&fd);
    return 0;
}

bool socket_is_other_file(const char *path) {
    struct stat status;

    return stat(path, &status) == 0 && !S_ISSOCK(status.st_mode);
}

int socket_wait(int fd, short events, uint64_t deadline_ns) {
    struct pollfd poll_fd = {.fd = fd, .events = events};

    for (;;) {
        struct timespec left;
        if (deadline_ns != NS_FOREVER) {
            uint64_t now_ns = clock_now_ns();
            uint64_t left_ns = now_ns < deadline_ns ? deadline_ns - now_ns : 0;
            left = (struct timespec){.tv_sec = (time_t)(left_ns / NS_PER_S),
                                     .tv_nsec = (long)(left_ns % NS_PER_S)};
        }
        int n = ppoll(&poll_fd, 1, deadline_ns == NS_FOREVER ? NULL : &left, NULL);
        if (n > 0)
            return 0; /* an error or a hang-up too: the call that follows will say which */
        if (n == 0)
            return -ETIMEDOUT;
        if (errno != EINTR)
            return -errno;
    }
}

int socket_try_send(int fd, const struct iovec *pieces, size_t count) {
    const struct msghdr message = {.msg_iov = (struct iovec *)pieces, .msg_iovlen = count};
    size_t size = 0;

    for (size_t i = 0; i < count; i++)
        size += pieces[i].iov_len;
    for (;;) {
        ssize_t n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n >= 0)
            return (size_t)n == size ? 0 : -EIO; /* a packet goes whole or not at all */
        if (errno == EINTR)
            continue;
        if (errno == ECONNRESET || errno == ENOTCONN)
            return -EPIPE;
        return errno == EWOULDBLOCK ? -EAGAIN : -errno;
    }
}

int socket_send(int fd, const void *packet, size_t size, uint64_t deadline_ns) {
    const struct iovec piece = {.iov_base = (void *)packet, .iov_len = size};
    int r;

    while ((r = socket_try_send(fd, &piece, 1)) == -EAGAIN) {
        r = socket_wait(fd, POLLOUT, deadline_ns);
        if (r < 0)
            break;
    }
    return r;
}

/* Moves the descriptors out of the control data. More than there is room for cannot come: the buffer is that
 * small. One that cannot be moved above the standard streams counts as one that the kernel had no number for.
 */
static unsigned collect_fds(struct msghdr *message, int fds[static SOCKET_FDS_MAX]) {
    unsigned count = 0;
    bool has_lost = false;

    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS)
            continue;
        size_t bytes = part->cmsg_len - CMSG_LEN(0);
        for (size_t i = 0; i < bytes / sizeof(int); i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(part) + i * sizeof fd, sizeof fd);
            fd = high_fd(fd);
            if (fd < 0) {
                message->msg_flags |= MSG_CTRUNC;
                has_lost = true; /* and so are those behind it: each stands for what its place says */
            } else if (count < SOCKET_FDS_MAX && !has_lost)
                fds[count++] = fd;
            else
                close_fd(fd);
        }
    }
    return count;
}

int socket_receive(int fd, void *packet, size_t capacity, uint64_t deadline_ns, size_t *ret_size,
                   int ret_fds[static SOCKET_FDS_MAX], unsigned *ret_count, bool *ret_has_lost,
                   bool until_signal) {
    struct iovec piece = {.iov_base = packet, .iov_len = capacity};
    union {
        char bytes[CMSG_SPACE(SOCKET_FDS_MAX * sizeof(int))];
        struct cmsghdr alignment;
    } control;
    bool reset = false;

    for (;;) {
        struct msghdr message = {
            .msg_iov = &piece,
            .msg_iovlen = 1,
            .msg_control = control.bytes,
            .msg_controllen = sizeof control.bytes,
        };
        int flags = MSG_CMSG_CLOEXEC;
        if (deadline_ns != NS_FOREVER && deadline_ns < clock_now_ns() + RECEIVE_SLICE_NS) {
            int r = socket_wait(fd, POLLIN, deadline_ns);
            if (r < 0)
                return r;
            flags |= MSG_DONTWAIT;
        }
        ssize_t n = recvmsg(fd, &message, flags);
        if (n < 0) {
            if (errno == EINTR && until_signal)
                return -EINTR;
            if (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)
                continue;
            /* Said once when the other end closed with something of ours unread; its earlier packets can
             * still be read. */
            if (errno == ECONNRESET && !reset) {
                reset = true;
                continue;
            }
            return -errno;
        }
        int fds[SOCKET_FDS_MAX];
        unsigned count = collect_fds(&message, fds);
        /* Where the room was not used up, the kernel found no free number for the next descriptor. */
        *ret_has_lost = (message.msg_flags & MSG_CTRUNC) != 0 && count < SOCKET_FDS_MAX;
        if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 &&
            ((message.msg_flags & MSG_TRUNC) != 0 || !*ret_has_lost)) {
            for (unsigned i = 0; i < count; i++)
                close_fd(fds[i]);
            return -EMSGSIZE;
        }
        memcpy(ret_fds, fds, count * sizeof *fds);
        *ret_size = (size_t)n;
        *ret_count = count;
        return 0;
    }
}
