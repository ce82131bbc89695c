/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/peer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/utf8.h"
#include "proto/text.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* Not the process's command line, which would tell more: the kernel reads that from
 * the process's memory, under a lock that the process can hold for as long as it likes. The name may hold any
 * bytes: those that are not UTF-8 are replaced. A reader that shows it escapes control characters. */
void peer_read_command(struct peer *peer) {
    char path[64], *command = peer->command;

    if (peer->pid <= 0)
        return;
    snprintf(path, sizeof path, "/proc/%d/comm", (int)peer->pid);
    _cleanup_(close_fdp) int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, command, COMMAND_SIZE - 1);
    if (n <= 1) { /* a newline at least */
        snprintf(command, COMMAND_SIZE, "?");
        return;
    }
    command[n - 1] = '\0';
    command[text_whole_characters(command, strlen(command))] = '\0'; /* the kernel may have cut one */
    utf8_make_valid(command);
}

int peer_identify(int fd, struct peer *ret_peer) {
    struct ucred credentials;
    socklen_t size = sizeof credentials;

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0)
        return -errno;
    *ret_peer =
        (struct peer){.pid = credentials.pid, .uid = credentials.uid, .gid = credentials.gid, .command = "?"};
    return 0;
}

/* Reads numbers from a file of /proc. Returns how many there were. */
static unsigned read_numbers(const char *path, unsigned long numbers[3]) {
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    int n = file == NULL ? 0 : fscanf(file, "%lu %lu %lu", &numbers[0], &numbers[1], &numbers[2]);
    return n < 0 ? 0 : (unsigned)n;
}

bool peer_is_unmapped(const struct peer *peer) {
    static uid_t overflow_uid; /* 0: not asked yet. The loop's alone */
    static bool all_are_mapped;
    unsigned long numbers[3];

    if (overflow_uid == 0) {
        /* "first here, first outside, count": one line with all of them, but for the number that is none. */
        all_are_mapped =
            read_numbers("/proc/self/uid_map", numbers) == 3 && numbers[0] == 0 && numbers[2] >= UINT32_MAX;
        overflow_uid = read_numbers("/proc/sys/kernel/overflowuid", numbers) > 0 ? (uid_t)numbers[0] : 65534;
    }
    return !all_are_mapped && peer->uid == overflow_uid;
}

int peer_read_groups(int fd, struct peer *peer) {
    _cleanup_(freep) gid_t *groups = NULL;
    socklen_t size = 0;

    /* Twice at most: what it was in when it connected does not change. */
    int r = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &size);
    if (r < 0 && errno == ERANGE) {
        groups = malloc(size);
        if (groups == NULL)
            return -ENOMEM;
        r = getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size);
    }
    if (r < 0)
        return errno == ENOPROTOOPT ? 0 : -errno;
    peer->n_groups = groups == NULL ? 0 : (unsigned)(size / sizeof *groups);
    peer->groups = take_ptr(&groups);
    return 0;
}

void peer_drop_groups(struct peer *peer) {
    free((void *)peer->groups);
    peer->groups = NULL;
    peer->n_groups = 0;
}

bool peer_is_remembered(int fd) {
    static int known = -1; /* the kernel stays the same; the loop's alone */
    socklen_t size = sizeof(int);
    int pidfd = -1;

    if (known >= 0)
        return known;
    bool has = getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0;
    if (has)
        close_fd(pidfd);
    if (has || errno == ENOPROTOOPT)
        known = has;
    return has || errno != ENOPROTOOPT;
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
