/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GPU_NAME_PROCESSES_H
#define TESTS_GPU_NAME_PROCESSES_H
/*
 * For programs with a private daemon and further processes that are the same program in a role of its own, each with a
 * CUDA context of its own. A process and its parent talk by a socket, which is descriptor ROLE_FD there.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "tests/device_export.h"

#define ROLE_FD 3
#define SKIPPED 77

struct role {
    pid_t pid;
    int fd;
};

static inline void need(int r, const char *what) {
    if (r == 0)
        return;
    fprintf(stderr, "%s: %s\n", what, gpupool_error_text());
    exit(r == GPUPOOL_E_NO_GPU ? SKIPPED : 1);
}

static inline void need_holds(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* A client of a daemon of its own, $GPUPOOL_DAEMON, with a configuration. It is the daemon of its roles, too. */
static inline struct gpupool_client *open_private(const char *gpu, const char *text) {
    char config[] = "/tmp/gpupool-names-XXXXXX";
    const char *arguments[] = {"--config", config, "--gpu", gpu, NULL};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;

    need_holds(device_export_write_config(config, text), "no configuration");
    options.socket = "private";
    options.daemon_arguments = arguments;
    options.alloc_timeout_ns = UINT64_C(60000000000);
    int r = gpupool_open(&options, &client);
    unlink(config);
    need(r, "open");
    need_holds(setenv("GPUPOOL_SOCKET", gpupool_socket_path(client), 1) == 0, "no environment");
    return client;
}

/* Starts this program with other arguments. */
static inline struct role role_start(const char *const *argv) {
    int ends[2];

    need_holds(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "no socket");
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (dup2(ends[1], ROLE_FD) == ROLE_FD)
            execv("/proc/self/exe", (char *const *)argv);
        _exit(1);
    }
    need_holds(pid > 0, "no process");
    close(ends[1]);
    return (struct role){.pid = pid, .fd = ends[0]};
}

static inline void tell(int fd, const void *message, size_t bytes) {
    need_holds(send(fd, message, bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "another process has ended");
}

/* False: the other process has ended. */
static inline bool hear(int fd, void *message, size_t bytes) {
    return recv(fd, message, bytes, 0) == (ssize_t)bytes;
}

/* How a process ended that was not killed: an exit status. */
static inline int role_wait(const struct role *role) {
    int status = 0;

    close(role->fd);
    need_holds(waitpid(role->pid, &status, 0) == role->pid, "no child");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

/* Hears an answer. Where the process has ended, so does this one. */
static inline void role_hear(const struct role *role, void *message, size_t bytes) {
    if (hear(role->fd, message, bytes))
        return;
    int status = role_wait(role);
    fprintf(stderr, "a process ended with %d\n", status);
    exit(status == SKIPPED ? SKIPPED : 1);
}

#endif
