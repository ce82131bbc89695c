/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/notifier.h"

#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "base/list.h"

struct notice {
    struct worker_job job;
    struct worker *worker;
    char text[];
};

static void notice_run(struct worker_job *job) {
    const struct notice *notice = container_of(job, struct notice, job);
    worker_enter_call(notice->worker, "sd_notify");
    sd_notify(0, notice->text);
    worker_leave_call(notice->worker);
}

static void notice_done(struct worker_job *job) {
    free(container_of(job, struct notice, job));
}

int notifier_start(struct notifier *notifier, uv_loop_t *loop) {
    if (getenv("NOTIFY_SOCKET") == NULL)
        return 0;
    return worker_start(&notifier->worker, loop, "notifier");
}

void notifier_tell(struct notifier *notifier, const char *text) {
    size_t size = strlen(text) + 1;

    if (!notifier->worker.started || notifier->worker.pending >= NOTIFIER_WAITING_MAX)
        return;
    struct notice *notice = malloc(sizeof *notice + size);
    if (notice == NULL)
        return;
    notice->job = (struct worker_job){.run = notice_run, .done = notice_done};
    notice->worker = &notifier->worker;
    memcpy(notice->text, text, size);
    worker_submit(&notifier->worker, &notice->job);
}
