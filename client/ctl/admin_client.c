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

int admin_client_open(struct admin_client *ret_client, const char *path, uint64_t deadline_ns) {
    int fd, r = socket_connect(path, SOCK_STREAM, deadline_ns, &fd);
    if (r < 0)
        return r;
    *ret_client = (struct admin_client){.fd = fd, .deadline_ns = deadline_ns};
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
            int r = socket_wait(client->fd, POLLOUT, client->deadline_ns);
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
            r = socket_wait(client->fd, POLLIN, client->deadline_ns);
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
