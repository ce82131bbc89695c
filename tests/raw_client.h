/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_RAW_CLIENT_H
#define TESTS_RAW_CLIENT_H
/* A client without the client library, for those who measure or break the daemon from its socket on. Without
 * cmocka: also for processes of their own and for measurements. */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "proto/proto.h"

#define RAW_CLIENT_HELLO                                                                                     \
    { .magic = PROTO_MAGIC, .version_min = PROTO_VERSION_MIN, .version_max = PROTO_VERSION_MAX }

/* Returns a socket of the type, connected to the path, whose calls take no longer than timeout_ns (0: without
 * a bound). Returns -1 with errno when no listener accepts the connection. */
static inline int raw_client_connect(const char *path, int type, uint64_t timeout_ns) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval timeout = {.tv_sec = (time_t)(timeout_ns / NS_PER_S)};
    _cleanup_(close_fdp) int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return -1;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    return connect(fd, (struct sockaddr *)&address, sizeof address) < 0 ? -1 : take_fd(&fd);
}

/* Fills in a message's header and encodes it. Returns its size. */
static inline size_t raw_client_encode(struct proto_message *message, unsigned operation, uint64_t request,
                                       uint8_t *packet) {
    message->header = (struct proto_header){.operation = (uint16_t)operation, .request = request};
    return proto_encode(message, packet);
}

/* Receives one packet of at most PROTO_PACKET_MAX bytes. ret_fds: the descriptors that came along, the
 * caller's. Returns the packet's size; 0 at the end of the file; -1 with errno, which is EPROTO where the
 * packet was cut short, or came with more descriptors than the protocol has. */
static inline ssize_t raw_client_receive_fds(int fd, uint8_t *packet, int flags,
                                             int ret_fds[static PROTO_LEASES_PER_MESSAGE],
                                             unsigned *ret_count) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(PROTO_LEASES_PER_MESSAGE * sizeof(int))];
    } control;
    struct iovec piece = {packet, PROTO_PACKET_MAX};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

    *ret_count = 0;
    ssize_t n = recvmsg(fd, &message, flags | MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return n;
    const struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    bool is_right = rights == NULL || (rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
                                       rights->cmsg_len <= CMSG_LEN(PROTO_LEASES_PER_MESSAGE * sizeof(int)));
    if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || !is_right) {
        errno = EPROTO;
        return -1;
    }
    if (rights != NULL) {
        *ret_count = (unsigned)((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(ret_fds, CMSG_DATA(rights), *ret_count * sizeof(int));
    }
    return n;
}

/* As raw_client_receive_fds(), for a packet with one descriptor at most. *ret_fd: -1: none. */
static inline ssize_t raw_client_receive(int fd, uint8_t *packet, int flags, int *ret_fd) {
    int fds[PROTO_LEASES_PER_MESSAGE];
    unsigned count;

    *ret_fd = -1;
    ssize_t n = raw_client_receive_fds(fd, packet, flags, fds, &count);
    if (n > 0 && count > 1) {
        while (count > 0)
            close_fd(fds[--count]);
        errno = EPROTO;
        return -1;
    }
    if (n > 0 && count == 1)
        *ret_fd = fds[0];
    return n;
}

/* Says HELLO. Returns whether the daemon took us. */
static inline bool raw_client_greet(int fd) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message hello = {.hello = RAW_CLIENT_HELLO};
    size_t size = raw_client_encode(&hello, PROTO_HELLO, 1, packet);
    if (send(fd, packet, size, MSG_NOSIGNAL) != (ssize_t)size)
        return false;
    ssize_t n = recv(fd, packet, sizeof packet, 0);
    return n > 0 && proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &hello, NULL) == 0 &&
           hello.header.operation == PROTO_HELLO_REPLY;
}

/* Whether the daemon takes a client that comes to the path now. */
static inline bool raw_client_is_let_in(const char *path, uint64_t timeout_ns) {
    _cleanup_(close_fdp) int fd = raw_client_connect(path, SOCK_SEQPACKET, timeout_ns);
    return raw_client_greet(fd);
}

#endif
