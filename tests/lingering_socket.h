/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_LINGERING_SOCKET_H
#define TESTS_LINGERING_SOCKET_H
/* A TCP socket whose last close waits: for tests of what becomes of a descriptor that a client attaches. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/units.h"

/* Connects a socket to this process and fills it with data that no program reads. Its last close takes
 * linger_s, or until the peer is closed. Returns the socket; -1: it cannot be had. */
static inline int lingering_socket(int linger_s, int *ret_peer) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct linger linger = {.l_onoff = 1, .l_linger = linger_s};
    socklen_t size = sizeof address;
    static char bytes[64 * KIB];

    _cleanup_(close_fdp) int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    _cleanup_(close_fdp) int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener < 0 || fd < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) < 0 || listen(listener, 1) < 0 ||
        connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        return -1;
    *ret_peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (*ret_peer < 0 || setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) < 0)
        return -1;
    while (send(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {
    }
    return take_fd(&fd);
}

#endif
