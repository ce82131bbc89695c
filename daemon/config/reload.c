/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/reload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/config/access.h"
#include "daemon/daemon.h"
#include "daemon/loop/log.h"
#include "daemon/core/core.h"
#include "daemon/supply/pools.h"

struct reload_job {
    struct worker_job job;
    struct reload *reload;
    struct config fresh; /* with result 0 */
    struct config_mistakes mistakes;
    int result;
};

static void reload_begin(struct reload *reload);

static void reload_run(struct worker_job *worker_job) {
    struct reload_job *job = container_of(worker_job, struct reload_job, job);
    const struct daemon_options *options = &job->reload->daemon->options;

    worker_enter_call(&job->reload->worker, "reading the configuration");
    job->result = options->reread(options->reread_user, &job->fresh, &job->mistakes);
    if (job->result == 0) {
        job->result = access_look_up(&job->fresh);
        if (job->result < 0)
            config_deinit(&job->fresh);
    }
    worker_leave_call(&job->reload->worker);
}

static void warn_of_restart(const struct config *config, const struct config *fresh) {
    if (strcmp(fresh->socket, config->socket) != 0 ||
        strcmp(fresh->admin_socket, config->admin_socket) != 0 || fresh->gpu != config->gpu ||
        strcmp(fresh->group, config->group) != 0 || fresh->sim_gpus != config->sim_gpus ||
        fresh->sim_memory_bytes != config->sim_memory_bytes)
        log_warning("sockets and gpu settings changed: they need a restart");
}

static void configure_pool(struct pool *pool, const struct config *fresh) {
    struct supplier *supplier = pool->owner;
    struct config_pool_sizes sizes;
    bool is_host = pool->kind == PROTO_POOL_HOST;

    config_resolve(fresh, pool->kind, is_host ? NULL : pool->uuid, is_host ? pool->numa_node : pool->device,
                   supplier->total.bytes, &sizes);
    config_cut_limit(pool->name, supplier->total.bytes, supplier->total.of, &sizes);
    config_check_sizes(pool->name, &sizes);
    if (!sizes.enabled)
        log_warning("%s is disabled now: that needs a restart", pool->name);
    supplier->huge_pages = sizes.huge_pages;
    supplier->zero = sizes.zero;
    if (supplier->segment_kind != pools_segment_kind(pool->kind, &sizes))
        log_warning("%s has another export now: that needs a restart", pool->name);
    const struct pool_sizes pool_sizes = pools_sizes(&sizes);
    core_pool_configure(pool, &pool_sizes, clock_now_ns());
}

/* Takes the configuration over. */
static void reload_apply(struct daemon *daemon, struct config *fresh) {
    struct config *config = daemon->config;

    warn_of_restart(config, fresh);
    for (unsigned i = 0; i < daemon->core->n_pools; i++)
        configure_pool(daemon->core->pools[i], fresh);
    daemon_share_descriptors(daemon, fresh->sessions_limit);
    daemon->core->session_leases_limit = fresh->session_leases_limit;
    log_set_level(fresh->log_level);
    /* Sockets and GPUs stay as they are, so that the next reload compares with what is in force. */
    memcpy(fresh->socket, config->socket, sizeof fresh->socket);
    memcpy(fresh->admin_socket, config->admin_socket, sizeof fresh->admin_socket);
    memcpy(fresh->group, config->group, sizeof fresh->group);
    fresh->gpu = config->gpu;
    fresh->sim_gpus = config->sim_gpus;
    fresh->sim_memory_bytes = config->sim_memory_bytes;
    config_deinit(config);
    config_move(config, fresh);
    if (access_apply(daemon) < 0)
        log_error("no memory: quotas and who may use which pool stay as they were");
    log_info("configuration read again");
}

static void reload_end(struct reload *reload) {
    notifier_tell(&reload->daemon->notifier, "READY=1");
    reload->reading = false;
    if (reload->again && !reload->daemon->stopping)
        reload_begin(reload);
}

static void reload_done(struct worker_job *worker_job) {
    struct reload_job *job = container_of(worker_job, struct reload_job, job);
    struct reload *reload = job->reload;

    config_mistakes_log(&job->mistakes);
    if (job->result < 0)
        log_error("the configuration stays as it was");
    else if (reload->daemon->stopping)
        config_deinit(&job->fresh);
    else
        reload_apply(reload->daemon, &job->fresh);
    free(job);
    reload_end(reload);
}

static void reload_begin(struct reload *reload) {
    struct daemon *daemon = reload->daemon;
    char reloading[64];

    reload->reading = true;
    reload->again = false;
    snprintf(reloading, sizeof reloading, "RELOADING=1\nMONOTONIC_USEC=%llu",
             (unsigned long long)(clock_now_ns() / 1000));
    notifier_tell(&daemon->notifier, reloading);
    int r = reload->worker.started ? 0 : worker_start(&reload->worker, &daemon->loop, "reload");
    struct reload_job *job = r == 0 ? calloc(1, sizeof *job) : NULL;
    if (job == NULL) {
        log_error("the configuration stays as it was: %s", r < 0 ? strerror(-r) : "no memory");
        reload_end(reload);
        return;
    }
    job->job.run = reload_run;
    job->job.done = reload_done;
    job->reload = reload;
    worker_submit(&reload->worker, &job->job);
}

void reload_ask(struct reload *reload, struct daemon *daemon) {
    reload->again = true;
    if (reload->reading)
        return; /* the thread reads what is set below */
    reload->daemon = daemon;
    reload_begin(reload);
}
