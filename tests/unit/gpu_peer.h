/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_PEER_H
#define TESTS_GPU_PEER_H
/*
 * The test's end of a second process (gpu_peer.c): starts it, asks it to make one driver call at a time, and
 * ends it. A peer shares one memfd with the test, its descriptor 3. Every question is answered within a
 * bound, or the test program ends.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/packet.h"
#include "gpu/gpu.h"
#include "tests/bounded.h"

#define PEER_LINE_MAX     512
#define PEER_SHARED_FD    3
#define PEER_SHARED_BYTES (UINT64_C(2) << 20)
#define PEER_ANSWER_MS    60000 /* far beyond what a context takes; under valgrind, too */

struct peer {
    pid_t pid;
    int fd;
    char text[PEER_LINE_MAX]; /* the last answer's text, after its error */
};

static inline void peer_fail(const char *what) {
    fprintf(stderr, "gpu_peer: %s\n", what);
    abort();
}

/* Starts a peer on the named table. shared_fd: the memfd to share, or -1. variables: "NAME=value" to set in
 * its environment, NULL-terminated; may be NULL. */
static inline struct peer peer_start(const char *path, const char *table, int shared_fd,
                                     char *const *variables) {
    struct peer peer;
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        peer_fail("socketpair");
    peer.pid = fork();
    if (peer.pid < 0)
        peer_fail("fork");
    if (peer.pid == 0) {
        int shared = shared_fd >= 0 ? fcntl(shared_fd, F_DUPFD, 16) : -1;
        int own = fcntl(pair[1], F_DUPFD, 16);

        for (; variables != NULL && *variables != NULL; variables++)
            putenv(*variables);
        if (dup2(own, 0) < 0 || (shared >= 0 && dup2(shared, PEER_SHARED_FD) < 0))
            _exit(126);
        close_range(PEER_SHARED_FD + (shared >= 0), ~0u, 0);
        execl(path, path, table, (char *)NULL);
        _exit(127);
    }
    close(pair[1]);
    peer.fd = pair[0];
    return peer;
}

/* Asks with a descriptor (-1: none). */
static inline int peer_ask_line(struct peer *peer, const char *question, int fd) {
    struct pollfd event = {.fd = peer->fd, .events = POLLIN};
    char line[PEER_LINE_MAX];
    ssize_t length;
    int error, at = 0;

    if (send_with_fd(peer->fd, question, strlen(question), fd, MSG_NOSIGNAL) < 0)
        peer_fail("is gone");
    if (poll(&event, 1, PEER_ANSWER_MS) != 1)
        peer_fail("does not answer");
    length = recv(peer->fd, line, sizeof(line) - 1, 0);
    if (length <= 0)
        peer_fail("died over a question");
    line[length] = '\0';
    if (sscanf(line, "%d %n", &error, &at) < 1)
        peer_fail("answers nonsense");
    snprintf(peer->text, sizeof(peer->text), "%s", line + at);
    return error;
}

/* Makes the peer do something (see gpu_peer.c). Returns the driver's error; the text is in peer->text. */
__attribute__((format(printf, 2, 3))) static inline int peer_ask(struct peer *peer, const char *format, ...) {
    char line[PEER_LINE_MAX];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    return peer_ask_line(peer, line, -1);
}

/* The last answer's text as a number. */
static inline uint64_t peer_value(const struct peer *peer) {
    return strtoull(peer->text, NULL, 0);
}

/* A handle as the word that the peer reads and writes. */
static inline const char *peer_handle_text(const struct gpu_ipc_handle *handle, char text[PEER_LINE_MAX]) {
    for (unsigned i = 0; i < GPU_IPC_HANDLE_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", handle->bytes[i]);
    return text;
}

static inline int peer_handle_parse(const char *text, struct gpu_ipc_handle *ret_handle) {
    for (unsigned i = 0; i < GPU_IPC_HANDLE_BYTES; i++) {
        unsigned byte;

        if (sscanf(text + 2 * i, "%2x", &byte) != 1)
            return -EINVAL;
        ret_handle->bytes[i] = (uint8_t)byte;
    }
    return 0;
}

/* Opens a handle in the peer. Returns the error; the slot is the peer's value. */
static inline int peer_open(struct peer *peer, const struct gpu_ipc_handle *handle) {
    char text[PEER_LINE_MAX];

    return peer_ask(peer, "open %s", peer_handle_text(handle, text));
}

/* Imports memory by a descriptor in the peer, and maps it with an access. Returns the error; the slot is the
 * peer's value. */
static inline int peer_map(struct peer *peer, int fd, uint64_t size_bytes, enum gpu_access access) {
    int r = peer_ask_line(peer, "import", fd);

    return r != 0 ? r
                  : peer_ask(peer, "map %s %llu %u", peer->text, (unsigned long long)size_bytes,
                             (unsigned)access);
}

/* Kills the peer with a signal (0: asks it to exit, without closing anything) and waits until it is gone. */
static inline void peer_end(struct peer *peer, int signal) {
    if (signal != 0)
        kill(peer->pid, signal);
    else
        send(peer->fd, "exit", 4, MSG_NOSIGNAL);
    if (test_reap(peer->pid, NULL) != 0)
        peer_fail("does not end");
    peer->fd = close_fd(peer->fd);
}

#endif
