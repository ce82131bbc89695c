/* SPDX-License-Identifier: Apache-2.0 */
/* The private daemon of a process and its children. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hex.h"
#include "base/high_fd.h"
#include "client/api/private_daemon.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/socket.h"

#define PATH_SIZE sizeof(((struct sockaddr_un *)NULL)->sun_path)
#define NAME      "/gpupool.sock" /* of the socket in the daemon's directory */

/* How often a process looks whether the lock on the directory is free. The holder starts a daemon, which
 * takes some 10 ms, and 0.3 s and more with CUDA. */
#define LOCK_LOOK_NS (5 * NS_PER_MS)

/* The path that this process has chosen. It stays as it is, also in forked children. */
static _Atomic(char *) chosen;

/* A path in a directory that does not exist yet and that no other process chooses. NULL: neither
 * $XDG_RUNTIME_DIR nor /tmp takes it. */
static char *choose(void) {
    const char *bases[] = {getenv("XDG_RUNTIME_DIR"), "/tmp"};
    char path[PATH_SIZE], digits[HEX_SIZE(8)];
    uint8_t number[8];

    if (getrandom(number, sizeof number, 0) != (ssize_t)sizeof number)
        return NULL;
    hex_write(number, sizeof number, digits);
    for (unsigned i = 0; i < sizeof bases / sizeof *bases; i++) {
        if (bases[i] == NULL || bases[i][0] != '/' || access(bases[i], W_OK | X_OK) != 0)
            continue;
        int length = snprintf(path, sizeof path, "%s/gpupool-%s" NAME, bases[i], digits);
        if (length > 0 && (size_t)length < sizeof path)
            return strdup(path);
    }
    return NULL;
}

static const char *own_path(void) {
    char *path = atomic_load(&chosen), *expected = NULL;

    if (path != NULL)
        return path;
    path = choose();
    if (path == NULL || atomic_compare_exchange_strong(&chosen, &expected, path))
        return path;
    free(path); /* another thread was faster */
    return expected;
}

static void directory_of(const char *path, char ret_directory[static PATH_SIZE]) {
    snprintf(ret_directory, PATH_SIZE, "%s", path);
    *strrchr(ret_directory, '/') = '\0';
}

/* Whether a status is that of a directory into which this user alone can put a socket. */
static bool is_own_directory(const struct stat *status) {
    return S_ISDIR(status->st_mode) && status->st_uid == geteuid() && (status->st_mode & 077) == 0;
}

/* Whether this process can have a daemon at the path that another one has chosen: it may be another user, or
 * have other mounts. */
static bool is_usable(const char *path) {
    char directory[PATH_SIZE];
    struct stat status;

    if (path[0] != '/' || strlen(path) >= PATH_SIZE || strcmp(strrchr(path, '/'), NAME) != 0)
        return false;
    directory_of(path, directory);
    if (lstat(directory, &status) == 0)
        return is_own_directory(&status);
    char *slash = strrchr(directory, '/');
    if (errno != ENOENT || slash == NULL || slash == directory)
        return false;
    *slash = '\0';
    return access(directory, W_OK | X_OK) == 0;
}

const char *private_daemon_path(void) {
    const char *handed = getenv("GPUPOOL_PRIVATE_SOCKET");
    return handed != NULL && is_usable(handed) ? handed : own_path();
}

/* Whether the directory that is open is the one at the path. The daemon that ends removes its own. */
static bool is_there(const char *directory, int fd) {
    struct stat opened, there;

    return fstat(fd, &opened) == 0 && lstat(directory, &there) == 0 && opened.st_ino == there.st_ino &&
           opened.st_dev == there.st_dev;
}

/* Waits for the lock on an open directory. 0, -ETIMEDOUT or a negative errno. */
static int wait_for_lock(int fd, uint64_t deadline_ns) {
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return -errno;
        if (clock_now_ns() >= deadline_ns)
            return -ETIMEDOUT;
        nanosleep(&(struct timespec){.tv_nsec = (long)LOCK_LOOK_NS}, NULL);
    }
    return 0;
}

/* Makes the directory where it is missing, and locks it. Returns 0 and a descriptor that has the lock;
 * -EPERM: it is not this user's alone; -ETIMEDOUT or another negative errno. */
static int lock_directory(const char *directory, uint64_t deadline_ns, int *ret_fd) {
    for (;;) {
        struct stat status;

        if (mkdir(directory, 0700) < 0 && errno != EEXIST)
            return -errno;
        _cleanup_(close_fdp) int fd =
            high_fd(open(directory, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (fd < 0 && errno == ENOENT)
            continue; /* a daemon that ended has removed it meanwhile */
        if (fd < 0 || fstat(fd, &status) < 0)
            return -errno;
        if (!is_own_directory(&status))
            return -EPERM; /* others could put a socket of theirs there */
        int r = wait_for_lock(fd, deadline_ns);
        if (r < 0)
            return r;
        if (is_there(directory, fd)) {
            *ret_fd = take_fd(&fd);
            return 0;
        }
    }
}

/* Releases the lock and closes the descriptor. A child that another thread forked meanwhile has the
 * descriptor as well, and would keep the lock. */
static void unlock_fdp(int *fd) {
    if (*fd >= 0)
        (void)flock(*fd, LOCK_UN);
    close_fdp(fd);
}

/* Looks whether a daemon listens there. One that is about to end may do so until it has the lock. Fails where
 * that cannot be told: the files there may be those of a daemon that serves. */
static int look_for_daemon(const char *path, uint64_t deadline_ns, bool *ret_listens) {
    _cleanup_(close_fdp) int fd = -1;
    int r = socket_connect(path, SOCK_SEQPACKET, deadline_ns, &fd);

    *ret_listens = r == 0;
    if (r == 0 || r == -ENOENT || r == -ECONNREFUSED)
        return 0;
    return error_set(r == -ETIMEDOUT ? GPUPOOL_E_TIMED_OUT : GPUPOOL_E_CONNECT,
                     "connecting to the private daemon at %s: %s (%s)%s", path, strerrorname_np(-r),
                     strerrordesc_np(-r), error_advice(-r));
}

static int join_at(const char *path, uint64_t deadline_ns) {
    _cleanup_(unlock_fdp) int lock_fd = -1;
    char directory[PATH_SIZE];
    bool listens = false;

    directory_of(path, directory);
    int r = lock_directory(directory, deadline_ns, &lock_fd);
    if (r == -ETIMEDOUT)
        return error_set(GPUPOOL_E_TIMED_OUT, "another process has been starting the private daemon at %s",
                         path);
    if (r < 0)
        return error_set(GPUPOOL_E_CONNECT, "the private daemon's directory %s: %s (%s)%s", directory,
                         strerrorname_np(-r), strerrordesc_np(-r),
                         r == -EPERM ? "; it has to belong to this user alone (mode 0700)" : "");
    r = look_for_daemon(path, deadline_ns, &listens);
    return r < 0 || listens ? r : private_daemon_start_at(path, deadline_ns);
}

int private_daemon_join(uint64_t deadline_ns, char **ret_socket_path) {
    const char *path = private_daemon_path();
    if (path == NULL)
        return error_set(GPUPOOL_E_CONNECT,
                         "there is no directory for a private daemon: neither $XDG_RUNTIME_DIR nor /tmp can "
                         "be written to");
    _cleanup_(freep) char *copy = strdup(path);
    if (copy == NULL)
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory for the private daemon's path");
    int r = join_at(copy, deadline_ns);
    if (r == 0)
        *ret_socket_path = take_ptr(&copy);
    return r;
}
