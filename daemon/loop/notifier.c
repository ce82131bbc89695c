/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/notifier.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

#include "base/cleanup.h"
#include "base/list.h"
#include "base/packet.h"

struct notice {
    struct worker_job job;
    struct worker *worker;
    char manager[NOTIFIER_PATH_SIZE]; /* as the notifier's when it was passed */
    int fd;                           /* owned; -1: none */
    char text[];
};

/* A socket that is connected to a path, or to a name of the abstract space ("@…"). */
static int connect_to(const char *path, int flags) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if ((path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof address.sun_path)
        return -EAFNOSUPPORT;
    memcpy(address.sun_path, path, strlen(path));
    if (path[0] == '@')
        address.sun_path[0] = '\0';
    _cleanup_(close_fdp) int manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | flags, 0);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (manager < 0 || connect(manager, (struct sockaddr *)&address, length) < 0)
        return -errno;
    return take_fd(&manager);
}

static int send_to(const char *path, int flags, const char *text, int fd) {
    _cleanup_(close_fdp) int manager = connect_to(path, flags);

    if (manager < 0)
        return manager;
    return send_with_fd(manager, text, strlen(text), fd, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static void notice_run(struct worker_job *job) {
    const struct notice *notice = container_of(job, struct notice, job);
    worker_enter_call(notice->worker, "sd_notify");
    if (notice->manager[0] != '\0')
        (void)send_to(notice->manager, 0, notice->text, notice->fd);
    else
        sd_pid_notify_with_fds(0, 0, notice->text, &notice->fd, notice->fd >= 0 ? 1 : 0);
    worker_leave_call(notice->worker);
}

static void notice_done(struct worker_job *job) {
    struct notice *notice = container_of(job, struct notice, job);
    close_fd(notice->fd);
    free(notice);
}

int notifier_start(struct notifier *notifier, uv_loop_t *loop) {
    if (getenv("NOTIFY_SOCKET") == NULL)
        return 0;
    return worker_start(&notifier->worker, loop, "notifier");
}

int notifier_pass(struct notifier *notifier, const char *text, int fd) {
    size_t size = strlen(text) + 1;

    _cleanup_(close_fdp) int copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0 && copy < 0)
        return -errno;
    struct notice *notice = malloc(sizeof *notice + size);
    if (notice == NULL)
        return -ENOMEM;
    notice->job = (struct worker_job){.run = notice_run, .done = notice_done};
    notice->worker = &notifier->worker;
    memcpy(notice->manager, notifier->manager, sizeof notice->manager);
    notice->fd = take_fd(&copy);
    memcpy(notice->text, text, size);
    worker_submit(&notifier->worker, &notice->job);
    return 0;
}

void notifier_tell(struct notifier *notifier, const char *text) {
    if (notifier->worker.started && notifier->worker.pending < NOTIFIER_WAITING_MAX)
        (void)notifier_pass(notifier, text, -1);
}

int notifier_connect(const char *path) {
    return connect_to(path, SOCK_NONBLOCK);
}

void notifier_move(struct notifier *notifier, const char *path) {
    snprintf(notifier->manager, sizeof notifier->manager, "%s", path);
}

int notifier_tell_at_once(struct notifier *notifier, const char *text, int fd) {
    const char *path = notifier->manager[0] != '\0' ? notifier->manager : getenv("NOTIFY_SOCKET");

    if (path != NULL && send_to(path, SOCK_NONBLOCK, text, fd) == 0)
        return 0;
    int r = notifier_pass(notifier, text, fd);
    return r < 0 ? r : 1;
}
