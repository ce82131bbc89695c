/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/admin_client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/cleanup.h"
#include "client/session/socket.h"

/* The reply's buffer starts with this size, which fits most replies. It doubles from there. */
#define REPLY_FIRST_SIZE (size_t)16384

/* Sends it all; counts a hang-up as sent, because the daemon's last words may still lie in our buffer. */
static int send_line(int fd, const char *line, uint64_t deadline_ns) {
    struct iovec parts[2] = {{(void *)line, strlen(line)}, {(void *)"\n", 1}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    while (parts[0].iov_len + parts[1].iov_len > 0) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EPIPE || errno == ECONNRESET)
                return 0;
            if (errno != EAGAIN && errno != EINTR)
                return -errno;
            int r = socket_wait(fd, POLLOUT, deadline_ns);
            if (r < 0)
                return r;
            continue;
        }
        for (size_t i = 0; i < 2; i++) {
            size_t part = (size_t)sent < parts[i].iov_len ? (size_t)sent : parts[i].iov_len;
            parts[i].iov_base = (char *)parts[i].iov_base + part;
            parts[i].iov_len -= part;
            sent -= (ssize_t)part;
        }
    }
    return 0;
}

int admin_ask(const char *path, uint64_t deadline_ns, const char *line, char **ret_reply,
              size_t *ret_length) {
    _cleanup_(close_fdp) int fd = -1;
    _cleanup_(freep) char *reply = NULL;
    size_t size = 0, length = 0;

    int r = socket_connect(path, SOCK_STREAM, deadline_ns, &fd);
    if (r == 0)
        r = send_line(fd, line, deadline_ns);
    if (r < 0)
        return r;
    for (;;) {
        if (length == size) {
            size_t larger = size == 0 ? REPLY_FIRST_SIZE : size * 2;
            char *grown = realloc(reply, larger);
            if (grown == NULL)
                return -ENOMEM;
            reply = grown;
            size = larger;
        }
        ssize_t received = recv(fd, reply + length, size - length, MSG_DONTWAIT);
        if (received < 0) {
            if (errno != EAGAIN && errno != EINTR)
                return -errno;
            r = socket_wait(fd, POLLIN, deadline_ns);
            if (r < 0)
                return r;
            continue;
        }
        if (received == 0)
            return -ECONNRESET;
        char *newline = memchr(reply + length, '\n', (size_t)received);
        length += (size_t)received;
        if (newline != NULL) {
            if (newline != reply + length - 1)
                return -EBADMSG;
            *newline = '\0';
            *ret_length = length - 1;
            *ret_reply = take_ptr(&reply);
            return 0;
        }
        if (length > ADMIN_REPLY_MAX)
            return -EMSGSIZE;
    }
}
