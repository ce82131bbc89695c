/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ghost: how a dead client's GPU work looks from outside. On a real GPU a kernel in flight outlives its
 * process by milliseconds, and by seconds where a forked child holds the device's descriptors; so long the
 * driver lists the dead pid. Here a child process, forked with the first import where GPUPOOL_SIM_LINGER_MS
 * asks for it, holds copies of the links (so that exporters list the pid) and mappings of the imported memory
 * (so that it can write).
 *
 * The process tells the ghost over a socket pair what it links and maps and what it gives up; the end of that
 * socket, or the process's pidfd, is its death. Then the ghost writes a counter to the first word of each
 * mapping that is left, for the time asked, and exits. It is a fork of a process with threads: it makes
 * system calls and touches its own static state, nothing else. All calls are under the import lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/high_fd.h"
#include "base/packet.h"
#include "gpu/sim/internal.h"

/* A ghost keeps so many links and mappings; further ones end with their process. */
#define GHOST_KEPT_MAX 1280
#define GHOST_WRITE_NS (100 * NS_PER_US) /* between writes: often enough to be seen at once */
#define GHOST_LOW_FD   2                 /* first descriptor that the ghost needs none of */

/* The process has made a link or a mapping (the descriptor comes along), or gives it up. */
struct ghost_message {
    uint64_t key;
    uint64_t size_bytes; /* of a mapping; 0: a link */
};

struct ghost_kept {
    uint64_t key; /* 0: free */
    int fd;       /* a link's; else -1 */
    uint64_t *words;
    uint64_t size_bytes;
};

/* The process's end: -1 before the first import and where no ghost could be made. */
static int ghost_socket = -1;
static bool ghost_tried;

/* In the ghost only. */
static struct ghost_kept ghost_kept[GHOST_KEPT_MAX];

/* --- in the ghost --- */

/* The entry with the key; with the key 0 a free one. NULL: none. */
static struct ghost_kept *ghost_find(uint64_t key) {
    for (unsigned i = 0; i < GHOST_KEPT_MAX; i++)
        if (ghost_kept[i].key == key)
            return &ghost_kept[i];
    return NULL;
}

static void ghost_keep(const struct ghost_message *message, int fd) {
    struct ghost_kept *kept = ghost_find(0);

    if (kept != NULL && message->size_bytes == 0) {
        *kept = (struct ghost_kept){.key = message->key, .fd = fd};
        return;
    }
    void *words = kept == NULL ? MAP_FAILED
                               : mmap(NULL, message->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (words != MAP_FAILED)
        *kept = (struct ghost_kept){message->key, -1, words, message->size_bytes};
    close_fd(fd);
}

static void ghost_drop(uint64_t key) {
    struct ghost_kept *kept = ghost_find(key);

    if (kept == NULL)
        return;
    close_fd(kept->fd);
    if (kept->words != NULL)
        munmap(kept->words, kept->size_bytes);
    *kept = (struct ghost_kept){0};
}

/* Takes one message from the process. Returns 1, 0 when there is none, negative when there will be none. */
static int ghost_receive(int socket) {
    struct ghost_message message;
    int fd = -1;
    int r = receive_with_fd(socket, &message, sizeof(message), &fd, MSG_DONTWAIT);

    if (r < 0)
        return r == -EAGAIN ? 0 : r;
    if (fd >= 0)
        ghost_keep(&message, fd);
    else
        ghost_drop(message.key);
    return 1;
}

static void ghost_write(uint64_t duration_ns) {
    uint64_t end_ns = clock_now_ns() + duration_ns;

    for (uint64_t counter = 1; clock_now_ns() < end_ns; counter++) {
        for (unsigned i = 0; i < GHOST_KEPT_MAX; i++)
            if (ghost_kept[i].words != NULL)
                __atomic_store_n(ghost_kept[i].words, counter, __ATOMIC_RELEASE);
        nanosleep(&(struct timespec){.tv_nsec = (long)GHOST_WRITE_NS}, NULL);
    }
}

static bool ghost_has_mappings(void) {
    for (unsigned i = 0; i < GHOST_KEPT_MAX; i++)
        if (ghost_kept[i].words != NULL)
            return true;
    return false;
}

static void close_from(int low) {
    if (close_range((unsigned)low, ~0u, 0) == 0)
        return;
    for (int fd = low; fd < 65536; fd++) /* Linux before 5.9 */
        close(fd);
}

/* The ghost's life. socket and pidfd are the descriptors that it needs. */
static void ghost_live(int socket, int pidfd) {
    struct pollfd events[2];
    bool alive = true;

    prctl(PR_SET_NAME, "gpupool-ghost");
    setsid(); /* what is sent to the process's group, a terminal's interrupt say, is not for work on a GPU */
    if (!sim_settings.linger_keeps_fds) {
        /* By way of high numbers, since either may be where the other goes. */
        int high_socket = fcntl(socket, F_DUPFD, 16), high_pidfd = fcntl(pidfd, F_DUPFD, 16);

        socket = dup2(high_socket, 0);
        pidfd = dup2(high_pidfd, 1);
        close_from(GHOST_LOW_FD);
    }
    if (socket < 0 || pidfd < 0)
        _exit(1);
    events[0] = (struct pollfd){.fd = socket, .events = POLLIN};
    events[1] = (struct pollfd){.fd = pidfd, .events = POLLIN};
    while (alive) {
        int received;

        if (poll(events, 2, -1) < 0 && errno != EINTR)
            break;
        alive = (events[1].revents & (POLLIN | POLLHUP | POLLERR)) == 0;
        do
            received = ghost_receive(socket);
        while (received > 0);
        if (received < 0)
            alive = false;
    }
    if (ghost_has_mappings())
        ghost_write(sim_settings.linger_ns);
    _exit(0);
}

/* --- in the process --- */

void sim_ghost_start(void) {
    _cleanup_(close_fdp) int pidfd = -1;
    int pair[2];
    sigset_t all, before;
    pid_t pid;

    if (ghost_tried || sim_settings.linger_ns == 0)
        return;
    ghost_tried = true;
    pidfd = high_fd((int)syscall(SYS_pidfd_open, getpid(), 0));
    if (pidfd < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0 || high_fds(pair) < 0)
        return;
    /* No handler of the process may run in the ghost. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid = fork();
    if (pid == 0) {
        close(pair[0]);
        ghost_live(pair[1], pidfd);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close_fd(pair[1]);
    if (pid < 0)
        close_fd(pair[0]);
    else
        ghost_socket = pair[0];
}

/* Best effort: a ghost that is gone takes nothing in, and the process goes on without. */
static void ghost_tell(const struct ghost_message *message, int fd) {
    if (ghost_socket >= 0 && send_with_fd(ghost_socket, message, sizeof(*message), fd, MSG_NOSIGNAL) < 0)
        ghost_socket = close_fd(ghost_socket);
}

void sim_ghost_keep(uint64_t key, int fd, uint64_t size_bytes) {
    ghost_tell(&(struct ghost_message){.key = key, .size_bytes = size_bytes}, fd);
}

void sim_ghost_drop(uint64_t key) {
    ghost_tell(&(struct ghost_message){.key = key}, -1);
}
