/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/reload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/config/changes.h"
#include "daemon/config/user_policy.h"
#include "daemon/loop/log.h"
#include "daemon/loop/notifier.h"

struct reload_job {
    struct worker_job job;
    struct reload *reload;
    struct config fresh; /* with result 0 */
    struct config_mistakes mistakes;
    struct config_changes changes;
    struct log_copy warnings; /* of the reading and of taking it over */
    int result;
};

static void reload_begin(struct reload *reload);

static void reload_run(struct worker_job *worker_job) {
    struct reload_job *job = container_of(worker_job, struct reload_job, job);
    const struct reload_terms *terms = &job->reload->terms;

    worker_enter_call(&job->reload->worker, "reading the configuration");
    log_copy_to(&job->warnings);
    job->result = terms->reread(terms->reread_user, &job->fresh, &job->mistakes);
    if (job->result == 0) {
        job->result = user_policy_look_up(&job->fresh);
        if (job->result == 0) /* no one else changes the configuration in force, or reads the fresh one */
            job->result = config_compare(&job->fresh, terms->config, &job->changes);
        if (job->result < 0)
            config_deinit(&job->fresh);
    }
    log_copy_to(NULL);
    worker_leave_call(&job->reload->worker);
}

static void tell_changes(const struct config_changes *changes, const char *path) {
    config_changes_log(changes, path);
    if (changes->count == 0)
        log_info("configuration read again: nothing changed");
    else
        log_info("configuration read again: %u changed, of which %u %s a restart", changes->count,
                 changes->n_restarts, changes->n_restarts == 1 ? "needs" : "need");
}

/* Tells all that wait for the reading that is over. */
static void tell(struct reload *reload, const struct reload_outcome *outcome) {
    while (!list_is_empty(&reload->waiting)) {
        struct reload_waiter *waiter = list_first(&reload->waiting, struct reload_waiter, link);
        list_remove(&waiter->link);
        waiter->done(waiter, outcome);
    }
}

static void reload_end(struct reload *reload) {
    notifier_tell(reload->terms.notifier, "READY=1");
    reload->reading = false;
    if (reload->again && !reload->stopping)
        reload_begin(reload);
}

static void reload_done(struct worker_job *worker_job) {
    struct reload_job *job = container_of(worker_job, struct reload_job, job);
    struct reload *reload = job->reload;
    struct reload_outcome outcome = {job->result, &job->mistakes, &job->changes, &job->warnings};

    config_mistakes_log(&job->mistakes);
    if (job->result < 0) {
        log_error("the configuration stays as it was");
    } else if (reload->stopping) {
        config_deinit(&job->fresh);
        outcome.result = -ECANCELED;
    } else {
        log_copy_to(&job->warnings);
        reload->terms.apply(reload->terms.apply_user, &job->fresh);
        log_copy_to(NULL);
        tell_changes(&job->changes, reload->terms.path);
    }
    tell(reload, &outcome);
    if (outcome.result == 0) {
        config_changes_deinit(&reload->changes);
        reload->changes = job->changes;
    } else {
        config_changes_deinit(&job->changes);
    }
    free(job);
    reload_end(reload);
}

static void reload_begin(struct reload *reload) {
    char reloading[64];

    reload->reading = true;
    reload->again = false;
    while (!list_is_empty(&reload->next)) {
        struct list *first = reload->next.next;
        list_remove(first);
        list_append(&reload->waiting, first);
    }
    snprintf(reloading, sizeof reloading, "RELOADING=1\nMONOTONIC_USEC=%llu",
             (unsigned long long)(clock_now_ns() / 1000));
    notifier_tell(reload->terms.notifier, reloading);
    int r = reload->worker.started ? 0 : worker_start(&reload->worker, reload->terms.loop, "reload");
    struct reload_job *job = r == 0 ? calloc(1, sizeof *job) : NULL;
    if (job == NULL) {
        log_error("the configuration stays as it was: %s", r < 0 ? strerror(-r) : "no memory");
        tell(reload, &(struct reload_outcome){.result = r < 0 ? r : -ENOMEM});
        reload_end(reload);
        return;
    }
    job->job.run = reload_run;
    job->job.done = reload_done;
    job->reload = reload;
    worker_submit(&reload->worker, &job->job);
}

void reload_stop(struct reload *reload) {
    reload->stopping = true;
    worker_stop(&reload->worker);
    config_changes_deinit(&reload->changes);
}

const struct config_change *reload_pending(const struct reload *reload, const char *section,
                                           const struct config_key *key) {
    for (unsigned i = 0; i < config_changes_told(&reload->changes); i++) {
        const struct config_change *change = &reload->changes.first[i];
        if (key->needs_restart && change->key == key && strcmp(change->section, section) == 0)
            return change;
    }
    return NULL;
}

void reload_init(struct reload *reload, const struct reload_terms *terms) {
    reload->terms = *terms;
    list_init(&reload->waiting);
    list_init(&reload->next);
}

void reload_ask(struct reload *reload, struct reload_waiter *waiter) {
    if (waiter != NULL)
        list_append(&reload->next, &waiter->link);
    reload->again = true;
    if (reload->reading)
        return;
    reload_begin(reload);
}
