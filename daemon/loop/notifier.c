/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/notifier.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "base/cleanup.h"
#include "base/list.h"

struct notice {
    struct worker_job job;
    struct worker *worker;
    int fd; /* owned; -1: none */
    char text[];
};

static void notice_run(struct worker_job *job) {
    const struct notice *notice = container_of(job, struct notice, job);
    worker_enter_call(notice->worker, "sd_notify");
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
    notice->fd = take_fd(&copy);
    memcpy(notice->text, text, size);
    worker_submit(&notifier->worker, &notice->job);
    return 0;
}

void notifier_tell(struct notifier *notifier, const char *text) {
    if (notifier->worker.started && notifier->worker.pending < NOTIFIER_WAITING_MAX)
        (void)notifier_pass(notifier, text, -1);
}
