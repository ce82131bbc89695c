/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ctl/admin_client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/clock.h"

/* The reply's buffer starts with this size, which fits most replies. It doubles from there. */
#define REPLY_FIRST_SIZE (size_t)16384

/* Waits until the socket is ready for events. Returns 0, -ETIMEDOUT or poll's error. */
static int client_wait(const struct admin_client *client, short events) {
    for (;;) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= client->deadline_ns)
            return -ETIMEDOUT;
        struct timespec left, *timeout = NULL;
        if (client->deadline_ns != NS_FOREVER) {
            uint64_t left_ns = client->deadline_ns - now_ns;
            left = (struct timespec){.tv_sec = (time_t)(left_ns / NS_PER_S),
                                     .tv_nsec = (long)(left_ns % NS_PER_S)};
            timeout = &left;
        }
        struct pollfd poll_fd = {.fd = client->fd, .events = events};
        int ready = ppoll(&poll_fd, 1, timeout, NULL);
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return -errno;
    }
}

int admin_client_open(struct admin_client *ret_client, const char *path, uint64_t deadline_ns) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);

    if (length == 0)
        return -ENOENT;
    if (length >= sizeof address.sun_path)
        return -ENAMETOOLONG;
    memcpy(address.sun_path, path, length);

    _cleanup_(close_fdp) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    /* A Unix socket that is connected without blocking fails at once when the listener's queue is full, and
     * nothing can be polled for room in it. So connect() blocks, and the send timeout bounds it. A timeout of
     * zero would mean "for ever", hence the one microsecond. */
    if (deadline_ns != NS_FOREVER) {
        uint64_t now_ns = clock_now_ns();
        uint64_t left_us = deadline_ns > now_ns ? (deadline_ns - now_ns) / NS_PER_US : 0;
        if (left_us == 0)
            left_us = 1;
        struct timeval left = {.tv_sec = (time_t)(left_us / 1000000),
                               .tv_usec = (suseconds_t)(left_us % 1000000)};
        if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof left) < 0)
            return -errno;
    }
    int r;
    do
        r = connect(fd, (struct sockaddr *)&address, sizeof address);
    while (r < 0 && errno == EINTR);
    if (r < 0)
        return errno == EAGAIN ? -ETIMEDOUT : -errno;

    *ret_client = (struct admin_client){.fd = take_fd(&fd), .deadline_ns = deadline_ns};
    return 0;
}

void admin_client_close(struct admin_client *client) {
    client->fd = close_fd(client->fd);
}

/* Sends it all; counts a hang-up as sent, because the daemon's last words may still lie in our buffer. */
static int client_send(struct admin_client *client, const char *line) {
    struct iovec parts[2] = {{(void *)line, strlen(line)}, {(void *)"\n", 1}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};

    while (parts[0].iov_len + parts[1].iov_len > 0) {
        ssize_t sent = sendmsg(client->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EPIPE || errno == ECONNRESET)
                return 0;
            if (errno != EAGAIN && errno != EINTR)
                return -errno;
            int r = client_wait(client, POLLOUT);
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

int admin_client_call(struct admin_client *client, const char *line, char **ret_reply, size_t *ret_length) {
    _cleanup_(freep) char *reply = NULL;
    size_t size = 0, length = 0;

    int r = client_send(client, line);
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
        ssize_t received = recv(client->fd, reply + length, size - length, MSG_DONTWAIT);
        if (received < 0) {
            if (errno != EAGAIN && errno != EINTR)
                return -errno;
            r = client_wait(client, POLLIN);
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
