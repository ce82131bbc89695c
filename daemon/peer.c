/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* The process's name: of its program, as it was started. What is no plain text is replaced. */
static void read_command(pid_t pid, char command[COMMAND_SIZE]) {
    char path[64], text[512];

    snprintf(command, COMMAND_SIZE, "?");
    if (pid <= 0)
        return;
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n <= 0)
        return;
    text[n] = '\0';
    /* "python3 train.py" tells more than "python3": the program's name and its first argument, without
     * directories */
    const char *program = strrchr(text, '/') != NULL ? strrchr(text, '/') + 1 : text;
    size_t program_length = strlen(text);
    const char *argument = program_length + 1 < (size_t)n ? text + program_length + 1 : "";
    const char *argument_name = strrchr(argument, '/') != NULL ? strrchr(argument, '/') + 1 : argument;
    /* cut in halves, so that a long program's name leaves room for its argument */
    snprintf(command, COMMAND_SIZE, "%.*s%s%.*s", (int)COMMAND_SIZE / 2 - 1, program,
             *argument != '\0' ? " " : "", (int)COMMAND_SIZE / 2 - 2, argument_name);
    for (char *c = command; *c != '\0'; c++)
        if (*c < ' ' || *c > '~')
            *c = '?';
    if (*command == '\0')
        snprintf(command, COMMAND_SIZE, "?");
}

int peer_identify(int fd, struct peer *ret_peer) {
    struct ucred credentials;
    socklen_t size = sizeof credentials;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0)
        return -errno;
    *ret_peer = (struct peer){.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid};
    read_command(credentials.pid, ret_peer->command);
    return 0;
}

int peer_open_pidfd(int fd, pid_t pid, int *ret_pidfd) {
    int pidfd = -1;
    socklen_t size = sizeof pidfd;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0) {
        *ret_pidfd = pidfd;
        return 0;
    }
    if (errno != ENOPROTOOPT)
        return errno == EINVAL ? -ESRCH : -errno; /* before Linux 6.18 a reaped peer is EINVAL */
    if (pid <= 0)
        return -ENOSYS;
    pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (pidfd < 0)
        return -errno;
    *ret_pidfd = pidfd;
    return 0;
}
