/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "daemon/loop/log.h"
#include "daemon/loop/rights.h"
#include "daemon/loop/users.h"

#define LISTEN_BACKLOG                                                                                       \
    512 /* what a burst of starting workers may leave in line; the kernel caps it at somaxconn */
#define SERVICE_GROUP "gpupool"

static int unix_socket(int type, const char *path, struct sockaddr_un *ret_address) {
    *ret_address = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(ret_address->sun_path, sizeof ret_address->sun_path, "%s", path);
    int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd < 0 ? -errno : fd;
}

/* Whether a daemon answers at the path. */
static bool socket_is_served(const char *path, int type) {
    struct sockaddr_un address;
    _cleanup_(close_fdp) int fd = unix_socket(type, path, &address);
    if (fd < 0)
        return false;
    return connect(fd, (struct sockaddr *)&address, sizeof address) == 0 || errno == EAGAIN;
}

/* Logs the error with the path. Returns the error. */
static int fail_at(const char *path, int error) {
    log_error("%s: %s", path, strerror(-error));
    return error;
}

/* Removes a socket that no daemon serves. Other files are not touched. */
static int remove_stale(const char *path) {
    struct stat status;
    if (lstat(path, &status) < 0)
        return errno == ENOENT ? 0 : fail_at(path, -errno);
    if (!S_ISSOCK(status.st_mode)) {
        log_error("%s exists and is no socket: remove it, or choose another path", path);
        return -EEXIST;
    }
    return unlink(path) < 0 && errno != ENOENT ? fail_at(path, -errno) : 0;
}

/* Lets the members of the service's group in, where there is such a group and we may. */
static void give_to_group(const char *path) {
    struct group *group = geteuid() == 0 ? getgrnam(SERVICE_GROUP) : NULL;
    if (group != NULL && chown(path, (uid_t)-1, group->gr_gid) < 0)
        log_warning("%s: cannot be given to group %s: %s", path, SERVICE_GROUP, strerror(errno));
}

/* Lets the members of the group in that the configuration names, or fails: users that were to be let in would
 * otherwise be shut out, or others let in, without a word. */
static int give_to_configured_group(const char *path, const char *name) {
    gid_t gid;

    if (users_find_group(name, &gid) < 0) {
        log_error("group: there is no group '%s', to whose members %s is to be open", name, path);
        return -ENOENT;
    }
    if (chown(path, (uid_t)-1, gid) < 0) {
        int r = -errno;
        log_error("%s: cannot be given to group %s: %s; the daemon's user has to be in the group, or root",
                  path, name, strerror(-r));
        return r;
    }
    return 0;
}

/* Locks PATH.lock, which the holder removes when it ends: a lock on a file that is no longer there is worth
 * nothing, so the file has to be the same before and after. Returns a descriptor, -EWOULDBLOCK, or a negative
 * errno. */
static int lock_path(const char *path) {
    for (;;) {
        struct stat locked, there;
        _cleanup_(close_fdp) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &locked) < 0)
            return -errno;
        if (stat(path, &there) == 0 && there.st_ino == locked.st_ino && there.st_dev == locked.st_dev)
            return take_fd(&fd);
    }
}

/* The process that called listen(), as the kernel noted it. */
static bool listening_process(int fd, struct ucred *ret) {
    socklen_t size = sizeof *ret;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret, &size) == 0;
}

/* Whether a client that connects to the path reaches this socket. The kernel does not tell which file a socket
 * is bound to. So this connects, and compares the processes that listen. (The connection is one that a client
 * gave up.) A full backlog lets no connection in: it has clients, and they are not to be shut out. */
static bool path_leads_to(const char *path, int type, int listener_fd) {
    struct sockaddr_un address;
    struct ucred here, there;

    _cleanup_(close_fdp) int fd = unix_socket(type, path, &address);
    if (fd < 0)
        return false;
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        return errno == EAGAIN;
    return listening_process(listener_fd, &here) && listening_process(fd, &there) && here.pid == there.pid &&
           here.uid == there.uid && here.gid == there.gid;
}

/* Whether a new file beside this one gets the group: the directory gives its files its own, or the process
 * does. As root the socket then gets the service's. */
static bool is_group_of_new(const char *path, gid_t gid) {
    const struct group *service = geteuid() == 0 ? getgrnam(SERVICE_GROUP) : NULL;
    char directory[sizeof(((struct listener *)NULL)->path)] = ".";
    const char *slash = strrchr(path, '/');
    struct stat status;

    if (gid == getegid() || (service != NULL && gid == service->gr_gid))
        return true;
    if (slash != NULL)
        snprintf(directory, sizeof directory, "%.*s", (int)(slash - path) + 1, path);
    return stat(directory, &status) == 0 && (status.st_mode & S_ISGID) != 0 && status.st_gid == gid;
}

/* Whether the socket's file is open to those users to whom a new one would be. */
static bool file_is_as_made(const char *path, mode_t mode, const char *group) {
    struct stat status;
    gid_t gid;

    if (lstat(path, &status) < 0 || !S_ISSOCK(status.st_mode) || (status.st_mode & 07777) != mode ||
        status.st_uid != geteuid())
        return false;
    if (*group != '\0')
        return users_find_group(group, &gid) == 0 && status.st_gid == gid;
    return (mode & S_IWOTH) != 0 || is_group_of_new(path, status.st_gid);
}

/* Takes the socket that a daemon before has stored. Returns whether there is one; one that is of no use any
 * more is removed from the store. */
static bool take_stored(struct listener *listener, struct store *store, const char *path, int type,
                        mode_t mode, const char *group) {
    char name[STORE_NAME_SIZE];

    _cleanup_(close_fdp) int fd = store_take_listener(store, path, type, name);
    if (fd < 0)
        return false;
    if (!file_is_as_made(path, mode, group) || !path_leads_to(path, type, fd) ||
        listen(fd, LISTEN_BACKLOG) < 0) {
        log_info("%s is made anew: the one of the daemon before has another file or other users", path);
        store_remove(store, name);
        return false;
    }
    *listener = (struct listener){
        .fd = take_fd(&fd), .lock_fd = -1, .spare_fd = -1, .owned = true, .taken_over = true, .store = store};
    snprintf(listener->path, sizeof listener->path, "%s", path);
    memcpy(listener->stored, name, sizeof name);
    rights_refuse(listener->fd);
    return true;
}

static int make_anew(struct listener *listener, struct store *store, const char *path, int type, mode_t mode,
                     const char *group) {
    /* The file gets the mode of the socket with its making: another file could lie at the path afterwards. */
    bool is_for_all = *group == '\0' && (mode & S_IWOTH) != 0;
    struct sockaddr_un address;

    int r = remove_stale(path);
    if (r < 0)
        return r;
    _cleanup_(close_fdp) int fd = unix_socket(type, path, &address);
    if (fd < 0)
        return fail_at(path, fd);
    rights_refuse(fd);
    if (is_for_all && fchmod(fd, mode) < 0)
        return fail_at(path, -errno);
    mode_t mask = umask(is_for_all ? 0 : 0777); /* no client gets in before the mode is set */
    r = bind(fd, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
    umask(mask);
    if (r < 0)
        return fail_at(path, r);
    if (*group != '\0')
        r = give_to_configured_group(path, group);
    else if (!is_for_all)
        give_to_group(path);
    if (r == 0 && ((!is_for_all && chmod(path, mode) < 0) || listen(fd, LISTEN_BACKLOG) < 0))
        r = fail_at(path, -errno);
    if (r < 0) {
        unlink(path);
        return r;
    }
    *listener =
        (struct listener){.fd = take_fd(&fd), .lock_fd = -1, .spare_fd = -1, .owned = true, .store = store};
    snprintf(listener->path, sizeof listener->path, "%s", path);
    store_put(store, STORE_LISTENER, listener->fd, listener->stored);
    return 0;
}

int listener_make(struct listener *listener, struct store *store, const char *path, int type, mode_t mode,
                  const char *group) {
    return take_stored(listener, store, path, type, mode, group)
               ? 0
               : make_anew(listener, store, path, type, mode, group);
}

int listener_open(struct listener *listener, struct store *store, const char *path, int type, mode_t mode,
                  const char *group) {
    char lock[sizeof listener->path + sizeof ".lock"];

    snprintf(lock, sizeof lock, "%s.lock", path);
    _cleanup_(close_fdp) int lock_fd = lock_path(lock);
    if (lock_fd < 0 && lock_fd != -EWOULDBLOCK) {
        log_error("%s: %s; the directory has to exist and be writable for the daemon", lock,
                  strerror(-lock_fd));
        return lock_fd;
    }
    bool is_taken = lock_fd >= 0 && take_stored(listener, store, path, type, mode, group);
    if (lock_fd < 0 || (!is_taken && socket_is_served(path, type))) {
        log_error(
            "another daemon serves %s: stop it, or choose another path with --socket and --admin-socket",
            path);
        return -EADDRINUSE;
    }
    int r = is_taken ? 0 : make_anew(listener, store, path, type, mode, group);
    if (r == 0)
        listener->lock_fd = take_fd(&lock_fd);
    return r;
}

int listener_adopt(struct listener *listener, int fd, int type) {
    struct sockaddr_un address = {0};
    socklen_t length = sizeof address, size = sizeof(int);
    int actual_type = 0, listening = 0;

    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0 || address.sun_family != AF_UNIX ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &actual_type, &size) < 0 || actual_type != type ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) < 0 || !listening)
        return -EINVAL;
    rights_refuse(fd); /* systemd before 258 does not */
    *listener = (struct listener){.fd = fd, .lock_fd = -1, .spare_fd = -1};
    /* a path that fills the address has no NUL */
    snprintf(listener->path, sizeof listener->path, "%.*s", (int)sizeof address.sun_path, address.sun_path);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    return 0;
}

static int open_spare(void) {
    return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void listener_complain(struct listener *listener) {
    if (listener->complained)
        return;
    listener->complained = true; /* once in a while: a flood of connections must not flood the log */
    log_warning(
        "%s: no descriptors are left, clients are sent away; raise LimitNOFILE or lower sessions_limit",
        listener->path);
}

/* Accepts one connection: that costs about as much as a request. */
static void listener_serve(struct turn *turn) {
    struct listener *listener = container_of(turn, struct listener, turn);

    if (listener->make_room != NULL && listener->make_room(listener))
        return;                 /* level triggered: the connection is reported again */
    if (listener->spare_fd < 0) /* there was none at the start, or a thread was quicker when it came back */
        listener->spare_fd = open_spare();
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
        rights_accepted(fd);
        listener->on_accept(listener, fd);
        return;
    }
    if (errno == EINTR || errno == ECONNABORTED || errno == EAGAIN)
        return; /* level triggered: waiting connections are reported again */
    bool full = errno == EMFILE || errno == ENFILE;
    if (full)
        listener_complain(listener);
    if (full && listener->spare_fd >= 0) {
        /* The connection has to be closed, or the loop would report it forever. */
        listener->spare_fd = close_fd(listener->spare_fd);
        rights_close(listener->closer, accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC));
        listener->spare_fd = open_spare();
        return;
    }
    /* Not even that, or the kernel has no memory: listener_retry() goes on. */
    uv_poll_stop(&listener->poll);
    listener->resting = true;
}

static void listener_on_ready(uv_poll_t *poll, int status, int events) {
    struct listener *listener = poll->data;
    (void)events;
    if (status >= 0)
        turn_wait(&listener->turn);
}

void listener_retry(struct listener *listener) {
    listener->complained = false;
    if (!listener->resting)
        return;
    listener->resting = false;
    uv_poll_start(&listener->poll, UV_READABLE, listener_on_ready);
}

int listener_start(struct listener *listener, uv_loop_t *loop, struct scheduler *scheduler,
                   struct closer *closer, void (*on_accept)(struct listener *, int),
                   bool (*make_room)(struct listener *), void *user) {
    listener->closer = closer;
    listener->on_accept = on_accept;
    listener->make_room = make_room;
    listener->user = user;
    listener->spare_fd = open_spare();
    int r = turn_join(&listener->turn, scheduler, SCHEDULER_LISTENERS, listener->fd, listener_serve);
    if (r < 0)
        return r;
    r = uv_poll_init(loop, &listener->poll, listener->fd);
    if (r < 0)
        return fail_at(listener->path, r);
    listener->poll.data = listener;
    listener->polling = true;
    return uv_poll_start(&listener->poll, UV_READABLE, listener_on_ready);
}

static void listener_on_closed(uv_handle_t *handle) {
    struct listener *listener = handle->data;
    if (listener->on_closed != NULL)
        listener->on_closed(listener);
}

void listener_leave(struct listener *listener) {
    if (listener->stored[0] == '\0')
        return;
    listener->owned = false;
    listener->stored[0] = '\0';
}

void listener_close(struct listener *listener) {
    char lock[sizeof listener->path + sizeof ".lock"];
    bool was_polling = listener->polling;

    if (was_polling) {
        uv_poll_stop(&listener->poll);
        uv_close((uv_handle_t *)&listener->poll, listener_on_closed);
        listener->polling = false;
    }
    turn_leave(&listener->turn);
    if (listener->owned) {
        unlink(listener->path);
        snprintf(lock, sizeof lock, "%s.lock", listener->path);
        if (listener->lock_fd >= 0)
            unlink(lock);
        listener->owned = false;
    }
    if (listener->stored[0] != '\0') /* last: what is in the store and has no path is thrown away */
        store_remove(listener->store, listener->stored);
    listener->stored[0] = '\0';
    listener->fd = close_fd(listener->fd);
    listener->lock_fd = close_fd(listener->lock_fd);
    listener->spare_fd = close_fd(listener->spare_fd);
    if (!was_polling && listener->on_closed != NULL)
        listener->on_closed(listener);
}
