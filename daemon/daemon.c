/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/daemon.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "daemon/admin/scope_json.h"
#include "daemon/adoption_ask.h"
#include "daemon/config/user_policy.h"
#include "daemon/core/core.h"
#include "daemon/core/recorder.h"
#include "daemon/keeper/keeper.h"
#include "daemon/loop/closer.h"
#include "daemon/loop/descriptors.h"
#include "daemon/loop/log.h"
#include "daemon/loop/users.h"
#include "daemon/supply/supplier.h"

/* The interval at which silent connections are ended and refused calls are tried again. */
#define HOUSEKEEPING_MS 5000
/* Between two looks where there is no watchdog: a check of an idle device takes less than a
 * millisecond of its worker. */
#define LOOK_MS 5000u
/* A private daemon ends by itself when no client has come after this time. */
#define PRIVATE_GRACE_MS 30000
/* A private daemon that ends looks so often, and at this interval, whether its directory's lock is free: for
 * longer than a process needs to see that a daemon listens there. */
#define LOCK_LOOKS   200u
#define LOCK_LOOK_NS (5 * NS_PER_MS)

/* Whether the daemon was started by a keeper, and not by a service manager. */
static bool has_keeper(void) {
    return getenv(KEEPER_DEATHS) != NULL;
}

static int daemon_start_workers(struct daemon *daemon) {
    const struct machine *machine = &daemon->machine;
    int r = watcher_start(&daemon->watcher, machine->gpu, machine->gpu_kind == PROTO_GPU_SIM, &daemon->loop);

    if (r == 0)
        r = pools_start(daemon->core, &daemon->loop);
    if (r < 0)
        log_error("a worker thread cannot be started: %s", strerror(-r));
    return r;
}

/* --- sockets --- */

/* Takes a socket that the service manager passed under this name. Returns 0, also where there is none. */
static int daemon_adopt_socket(struct daemon *daemon, const char *name, struct listener *listener, int type) {
    int fd = store_take(&daemon->store, name);

    if (fd < 0 || listener_adopt(listener, fd, type) == 0)
        return 0;
    close_fd(fd);
    log_error("the socket that systemd passed as '%s' is not a listening %s Unix socket", name,
              type == SOCK_STREAM ? "stream" : "seqpacket");
    return -EINVAL;
}

static int daemon_open_sockets(struct daemon *daemon) {
    struct store *store = &daemon->store;

    int r = daemon_adopt_socket(daemon, "data", &daemon->data_listener, SOCK_SEQPACKET);
    if (r == 0 && daemon->data_listener.fd < 0) /* without a name */
        r = daemon_adopt_socket(daemon, "unknown", &daemon->data_listener, SOCK_SEQPACKET);
    if (r == 0)
        r = daemon_adopt_socket(daemon, "admin", &daemon->admin_listener, SOCK_STREAM);
    if (r < 0)
        return r;
    /* The private daemon's sockets lie in a directory that only its user can enter. */
    if (daemon->data_listener.fd < 0) {
        r = listener_open(&daemon->data_listener, store, daemon->config->socket, SOCK_SEQPACKET, 0660,
                          daemon->config->group);
        if (r < 0)
            return r;
    }
    if (daemon->admin_listener.fd < 0) {
        r = listener_open(&daemon->admin_listener, store, daemon->config->admin_socket, SOCK_STREAM, 0666,
                          "");
        if (r < 0)
            return r;
    }
    identity_note_admin_path(&daemon->identity, daemon->admin_listener.path);
    return 0;
}

static void daemon_wait_for_store(struct daemon *daemon) {
    int r = store_wait(&daemon->store, STORE_WAIT_NS);

    if (r < 0)
        log_warning("the service manager does not say that it stores the sockets (%s): programs that connect "
                    "while the daemon restarts can fail, and sessions end",
                    strerror(-r));
}

static void daemon_on_data(struct listener *listener, int fd) {
    clients_accept(listener->user, fd, SCOPE_ORDINARY);
}

static bool daemon_make_room(struct listener *listener) {
    return clients_make_room(listener->user);
}

static void daemon_on_admin(struct listener *listener, int fd) {
    admin_accept(listener->user, fd);
}

static void daemon_on_housekeeping(uv_timer_t *timer) {
    struct daemon *daemon = timer->data;

    clients_housekeep(&daemon->clients);
    record_file_set_clock(daemon->core);
    listener_retry(&daemon->data_listener);
    listener_retry(&daemon->admin_listener);
    scopes_housekeep(&daemon->scopes);
}

/* --- health --- */

/* Looks at the daemon's workers, and answers the service manager's watchdog while all of them get on. Every
 * idle device is asked whether it still works, so that a device which is lost or hangs while no client needs
 * it is found too. */
static void daemon_on_health(uv_timer_t *timer) {
    struct daemon *daemon = timer->data;
    bool alive = watcher_gets_on(&daemon->watcher);

    for (unsigned i = 0; i < daemon->core->n_pools; i++) {
        alive = supplier_is_alive(daemon->core->pools[i]->owner) && alive;
        supplier_check(daemon->core->pools[i]->owner);
    }
    if (alive && daemon->watchdog)
        notifier_tell(&daemon->notifier, "WATCHDOG=1");
}

/* --- signals, end --- */

void daemon_stop(struct daemon *daemon) {
    daemon->stopping = daemon->clients.stopping = true;
    uv_stop(&daemon->loop);
}

static void daemon_on_terminate(uv_signal_t *signal, int number) {
    struct daemon *daemon = signal->data;
    log_info("%s: stopping", number == SIGTERM ? "SIGTERM" : "SIGINT");
    /* systemd lets go of everything by itself where the unit is stopped. A keeper ends with its daemon. */
    daemon->ends_for_good = number == SIGINT || has_keeper();
    session_log_turn(&daemon->clients.log);
    session_log_loans(&daemon->clients.log, daemon->core);
    daemon_stop(daemon);
}

static void daemon_on_reload(uv_signal_t *signal, int number) {
    struct daemon *daemon = signal->data;
    (void)number;
    reload_ask(&daemon->reload, NULL);
}

static void daemon_on_private_timer(uv_timer_t *timer) {
    struct daemon *daemon = timer->data;
    if (!daemon->clients.served) {
        log_info("nobody came: stopping");
        daemon_stop(daemon);
    }
}

static void daemon_start_signal(struct daemon *daemon, uv_signal_t *handle, uv_signal_cb callback,
                                int number) {
    uv_signal_init(&daemon->loop, handle);
    handle->data = daemon;
    uv_signal_start(handle, callback, number);
}

static void daemon_start_timer(struct daemon *daemon, uv_timer_t *timer, uv_timer_cb callback,
                               uint64_t first_ms, uint64_t period_ms) {
    uv_timer_init(&daemon->loop, timer);
    timer->data = daemon;
    uv_timer_start(timer, callback, first_ms, period_ms);
}

static void daemon_start_timers(struct daemon *daemon) {
    uint64_t watchdog_us;

    daemon_start_timer(daemon, &daemon->housekeeping_timer, daemon_on_housekeeping, HOUSEKEEPING_MS,
                       HOUSEKEEPING_MS);
    if (daemon->options.private)
        daemon_start_timer(daemon, &daemon->private_timer, daemon_on_private_timer, PRIVATE_GRACE_MS, 0);
    daemon->watchdog = sd_watchdog_enabled(0, &watchdog_us) > 0;
    /* systemd's advice is half the time; a worker is found to hang at the second look */
    daemon_start_timer(daemon, &daemon->health_timer, daemon_on_health, 0,
                       daemon->watchdog ? watchdog_us / 1000 / 3 + 1 : LOOK_MS);
}

void daemon_hold_signals(bool hold) {
    sigset_t signals;

    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    pthread_sigmask(hold ? SIG_BLOCK : SIG_UNBLOCK, &signals, NULL);
}

static void daemon_start_signals(struct daemon *daemon) {
    daemon_start_signal(daemon, &daemon->on_terminate, daemon_on_terminate, SIGTERM);
    daemon_start_signal(daemon, &daemon->on_interrupt, daemon_on_terminate, SIGINT);
    daemon_start_signal(daemon, &daemon->on_reload, daemon_on_reload, SIGHUP);
    daemon_hold_signals(false);
}

static void daemon_close_handle(uv_handle_t *handle, void *user) {
    (void)user;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* Bounds sessions and segments by the descriptors that the daemon may have. sessions: as configured. Warns
 * where these are too many. */
static void daemon_share_descriptors(struct daemon *daemon, uint32_t sessions) {
    struct core *core = daemon->core;
    struct descriptor_shares shares;

    descriptors_share(daemon->n_descriptors, sessions, core->n_pools, &shares);
    if (shares.sessions < sessions)
        log_warning(
            "sessions_limit is %" PRIu32 ", and %" PRIu64 " descriptors (RLIMIT_NOFILE) allow %s: raise "
            "LimitNOFILE of the unit, or the hard limit (ulimit -Hn) of the shell, to 65536, or lower "
            "sessions_limit",
            sessions, daemon->n_descriptors, COUNT_TEXT(shares.sessions, "session"));
    core->sessions_limit = shares.sessions;
    core->segments_limit = shares.segments;
    core->channel_pages_limit = shares.channel_pages;
    if (!store_is_there(&daemon->store))
        return;
    uint32_t stored = descriptors_share_store(daemon->store.limit, shares.sessions);
    uint32_t pages = descriptors_share_stored_pages(stored);
    core->stored_segments_limit = stored - pages;
    if (pages < core->channel_pages_limit)
        core->channel_pages_limit = pages;
    store_bound_segments(&daemon->store, core->stored_segments_limit);
}

/* Puts a fresh configuration in force. */
static void daemon_apply(void *user, struct config *fresh) {
    struct daemon *daemon = user;
    struct config *config = daemon->config;

    pools_configure(daemon->core, fresh);
    daemon_share_descriptors(daemon, fresh->sessions_limit);
    daemon->core->session_leases_limit = fresh->session_leases_limit;
    log_set_level(fresh->log_level);
    config_note_places_of(fresh, config);
    config_check_sections(fresh);
    config_deinit(config);
    config_move(config, fresh);
    recorder_set_time(daemon->core, clock_now_ns());
    record(daemon->core, &(struct recorded){.kind = PROTO_RECORD_RELOAD});
    scopes_configure(&daemon->scopes);
    if (user_policy_apply(daemon->core, config) < 0)
        log_error("no memory: the quotas and the users of the pools stay as they were");
}

static void daemon_restart(void *user) {
    struct daemon *daemon = user;

    log_info("an operator restarts the daemon");
    daemon->restarts = true;
    daemon_stop(daemon);
}

static int daemon_begin_adoption(void *user, const char *notify, uint64_t pid, uint64_t limit,
                                 char why[ADMIN_WHY_SIZE]) {
    struct daemon *daemon = user;

    int r = adoption_begin(&daemon->adoption, notify, pid, limit, why);
    if (r == 0) /* the keeper's limit is another one */
        daemon_share_descriptors(daemon, daemon->config->sessions_limit);
    return r;
}

static size_t daemon_drop_estate(void *user) {
    struct daemon *daemon = user;
    return succession_drop(&daemon->succession, daemon->core);
}

/* Makes the objects and hands each what it works with. */
static void daemon_connect(struct daemon *daemon) {
    const struct clients_terms clients = {.loop = &daemon->loop,
                                          .scheduler = &daemon->scheduler,
                                          .closer = daemon->closer,
                                          .core = daemon->core,
                                          .watcher = &daemon->watcher,
                                          .listener = &daemon->data_listener,
                                          .lingering = &daemon->lingering,
                                          .desk = &daemon->succession.desk,
                                          .store = &daemon->store,
                                          .machine = &daemon->machine,
                                          .identity = &daemon->identity,
                                          .private = daemon->options.private};
    const struct scopes_terms scopes = {.loop = &daemon->loop,
                                        .scheduler = &daemon->scheduler,
                                        .closer = daemon->closer,
                                        .core = daemon->core,
                                        .clients = &daemon->clients,
                                        .store = &daemon->store};
    const struct admin_terms admin = {.loop = &daemon->loop,
                                      .scheduler = &daemon->scheduler,
                                      .closer = daemon->closer,
                                      .core = daemon->core,
                                      .config = daemon->config,
                                      .watcher = &daemon->watcher,
                                      .reload = &daemon->reload,
                                      .scopes = &daemon->scopes,
                                      .channels = &daemon->clients.channels,
                                      .lingering = &daemon->lingering,
                                      .machine = &daemon->machine,
                                      .data_listener = &daemon->data_listener,
                                      .admin_listener = &daemon->admin_listener,
                                      .identity = &daemon->identity,
                                      .notices = &daemon->notices,
                                      .desk = &daemon->succession.desk,
                                      .store = &daemon->store,
                                      .n_descriptors = daemon->n_descriptors,
                                      .restart = daemon_restart,
                                      .drop_estate = daemon_drop_estate,
                                      .adopt = daemon_begin_adoption,
                                      .daemon = daemon};
    const struct reload_terms reload = {.config = daemon->config,
                                        .path = daemon->options.config_path,
                                        .reread = daemon->options.reread,
                                        .reread_user = daemon->options.reread_user,
                                        .apply = daemon_apply,
                                        .apply_user = daemon,
                                        .loop = &daemon->loop,
                                        .notifier = &daemon->notifier};

    adoption_init(&daemon->adoption, daemon);
    scheduler_init(&daemon->scheduler);
    lingering_init(&daemon->lingering, daemon->core, daemon->closer);
    watcher_init(&daemon->watcher);
    clients_init(&daemon->clients, &clients);
    scopes_init(&daemon->scopes, &scopes);
    admin_init(&daemon->admin, &admin);
    reload_init(&daemon->reload, &reload);
}

int daemon_new(const struct daemon_options *options, struct daemon **ret_daemon) {
    struct daemon *daemon = calloc(1, sizeof *daemon);
    if (daemon == NULL)
        return -ENOMEM;
    daemon->options = *options;
    daemon->config = options->config;
    daemon->succession.file.fd = -1;
    daemon->data_listener.fd = daemon->data_listener.lock_fd = daemon->data_listener.spare_fd = -1;
    daemon->admin_listener = daemon->data_listener;
    int r = identity_make(&daemon->identity);
    if (r == 0)
        r = core_new(&daemon->core);
    if (r < 0) {
        free(daemon);
        return r;
    }
    r = closer_new(&daemon->closer);
    if (r < 0) {
        log_error("the thread that closes sockets cannot be made: %s", strerror(-r));
        core_free(daemon->core);
        free(daemon);
        return r;
    }
    r = uv_loop_init(&daemon->loop);
    if (r < 0) {
        log_error("the event loop cannot be made: %s", strerror(-r));
        closer_free(daemon->closer);
        core_free(daemon->core);
        free(daemon);
        return r;
    }
    daemon->n_descriptors = descriptors_raise();
    daemon->core->sessions_limit = daemon->config->sessions_limit;
    daemon->core->session_leases_limit = daemon->config->session_leases_limit;
    daemon_connect(daemon);
    *ret_daemon = daemon;
    return 0;
}

static int daemon_add_pools(struct daemon *daemon) {
    const struct pools_terms terms = {.core = daemon->core,
                                      .machine = &daemon->machine,
                                      .config = daemon->config,
                                      .store = &daemon->store,
                                      .places = daemon->succession.places,
                                      .n_places = daemon->succession.n_places};
    return pools_add(&terms, &daemon->n_warnings);
}

/* Makes the scopes of the daemon before again. */
static void daemon_restore_scopes(struct daemon *daemon) {
    bool is_simulated =
        daemon->machine.gpu_kind == PROTO_GPU_SIM && daemon_sim_path(daemon, daemon->sim_path) != NULL;

    if (daemon->options.private || daemon->admin_listener.fd < 0)
        return;
    scopes_start(&daemon->scopes, daemon->admin_listener.path, is_simulated ? daemon->sim_path : NULL);
    scope_json_restore(&daemon->scopes);
}

int daemon_start(struct daemon *daemon) {
    int r = daemon_add_pools(daemon);
    if (r == 0) {
        if (daemon->admin_listener.fd >= 0 &&
            !daemon->options.private) /* the program's own tools tell of that */
            record_file_open(&daemon->record_file, daemon->core, daemon->admin_listener.path,
                             daemon->config->records_bytes, daemon->config->history_hours,
                             daemon->succession.is_heir);
        daemon_share_descriptors(daemon, daemon->config->sessions_limit);
        log_info("%" PRIu64 " descriptors (RLIMIT_NOFILE): up to %s, and %s with a descriptor",
                 daemon->n_descriptors, COUNT_TEXT(daemon->core->sessions_limit, "session"),
                 COUNT_TEXT(daemon->core->segments_limit, "segment"));
        r = user_policy_look_up(daemon->config);
    }
    if (r == 0)
        r = user_policy_apply(daemon->core, daemon->config);
    if (r == 0)
        r = daemon_start_workers(daemon);
    if (r == 0) {
        daemon_restore_scopes(daemon);
        r = succession_begin(&daemon->succession, daemon->core, &daemon->clients);
        /* A beginning with an estate cannot be undone: the service manager starts a daemon anew. */
        if (r < 0)
            _exit(EXIT_FAILURE);
    }
    if (r == 0 && !daemon->options.private) /* $NOTIFY_SOCKET is the program's, not its private daemon's */
        r = notifier_start(&daemon->notifier, &daemon->loop);
    if (r == 0) {
        if (has_keeper())
            adoption_start(&daemon->adoption);
        decisions_start(daemon);
        daemon_start_timers(daemon);
        lingering_start(&daemon->lingering, &daemon->loop);
        admin_start(&daemon->admin);
    }
    return r;
}

const char *daemon_sim_path(const struct daemon *daemon, char path[DAEMON_SIM_PATH_SIZE]) {
    if (daemon->data_listener.fd < 0)
        return NULL;
    snprintf(path, DAEMON_SIM_PATH_SIZE, "%s" GPU_SIM_PATH_SUFFIX, daemon->config->socket);
    return path;
}

/* Locks the directory that a client has made for a private daemon. Clients that start a daemon there hold the
 * lock meanwhile. A client that keeps it for longer is stopped, or broken. Returns a descriptor, or -1. */
static int daemon_lock_directory(const char *directory) {
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    for (unsigned n = 0; fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0 && n < LOCK_LOOKS; n++)
        nanosleep(&(struct timespec){.tv_nsec = (long)LOCK_LOOK_NS}, NULL);
    return fd;
}

/* Clients that come now find no daemon, and may start another one. */
static void daemon_close_sockets(struct daemon *daemon) {
    char directory[CONFIG_PATH_SIZE] = "";
    _cleanup_(close_fdp) int lock_fd = -1;

    if (daemon->options.private) {
        snprintf(directory, sizeof directory, "%s", daemon->config->socket);
        *strrchr(directory, '/') = '\0';
    }
    if (daemon->options.private && daemon->ready_announced) /* else the client that starts it has the lock */
        lock_fd = daemon_lock_directory(directory);
    char path[DAEMON_SIM_PATH_SIZE];
    if (daemon->machine.gpu_kind == PROTO_GPU_SIM && daemon_sim_path(daemon, path) != NULL)
        unlink(path);
    listener_close(&daemon->data_listener);
    listener_close(&daemon->admin_listener);
    scopes_close(&daemon->scopes);
    if (daemon->options.private)
        rmdir(directory);
}

/* All is left to the next daemon, as if this one had died: sockets, sessions, memory. Without an estate the
 * sessions end. */
static void daemon_leave(struct daemon *daemon) {
    if (daemon->succession.desk.memory == NULL)
        return;
    log_info("everything is left to the next daemon");
    listener_leave(&daemon->data_listener);
    listener_leave(&daemon->admin_listener);
    scopes_leave(&daemon->scopes);
    succession_leave(&daemon->succession, daemon->core);
    clients_leave(&daemon->clients);
    recorder_close(daemon->core); /* the next one goes on */
}

void daemon_free(struct daemon *daemon) {
    daemon->stopping = true;
    recorder_set_time(daemon->core, clock_now_ns());
    record(daemon->core, &(struct recorded){.kind = PROTO_RECORD_STOP, .value = (uint64_t)getpid()});
    recorder_close(daemon->core); /* the sessions that are discarded now live on: these are no deaths */
    daemon_close_sockets(daemon);
    watcher_stop(&daemon->watcher);
    lingering_stop(&daemon->lingering);
    clients_discard(&daemon->clients);
    admin_drop_all(&daemon->admin);
    struct segment *segment;
    /* Decided while the sessions went, for a request that waited. Their processes live on, and have the memory mapped. */
    while (core_next_retirement(daemon->core, &segment))
        supplier_leave(segment->pool->owner, segment);
    pools_stop(daemon->core);
    reload_stop(&daemon->reload);
    adoption_stop(&daemon->adoption);
    worker_stop(&daemon->notifier.worker);
    store_close(&daemon->store);
    uv_run(&daemon->loop, UV_RUN_NOWAIT); /* closing handles finish before the rest is closed */
    uv_walk(&daemon->loop, daemon_close_handle, NULL);
    uv_run(&daemon->loop, UV_RUN_DEFAULT);
    pools_free_suppliers(daemon->core);
    core_free(daemon->core);
    succession_close(&daemon->succession);
    record_file_close(&daemon->record_file);
    int r = uv_loop_close(&daemon->loop);
    assert(r == 0);
    (void)r;
    closer_free(daemon->closer);
    free(daemon);
}

static int daemon_open_gpu(struct daemon *daemon) {
    char path[DAEMON_SIM_PATH_SIZE];
    return pools_open_gpu(&daemon->machine, daemon->config, daemon_sim_path(daemon, path), &daemon->notices);
}

int daemon_check(const struct daemon_options *options, unsigned *ret_n_warnings) {
    struct daemon *daemon;
    bool has_group = true;
    gid_t gid;

    int r = daemon_new(options, &daemon);
    if (r < 0)
        return r;
    const char *group = daemon->config->group;
    if (*group != '\0' && users_find_group(group, &gid) < 0) {
        log_error("group: there is no group '%s'", group);
        has_group = false;
    }
    r = daemon_open_gpu(daemon);
    if (r == 0)
        r = daemon_add_pools(daemon);
    if (r == 0)
        r = user_policy_look_up(daemon->config);
    if (r == 0 && !has_group)
        r = -ENOENT;
    if (r == 0)
        *ret_n_warnings = daemon->n_warnings + daemon->config->n_unknown_names;
    daemon_free(daemon);
    return r;
}

/* A keeper that did not start this process cannot wait for its status, so it is told. */
static void daemon_tell_end(struct daemon *daemon) {
    char text[64];

    snprintf(text, sizeof text, "STOPPING=1\n%s=%d", KEEPER_STATUS,
             daemon->restarts ? KEEPER_RESTART_STATUS : EXIT_SUCCESS);
    notifier_tell(&daemon->notifier, has_keeper() ? text : "STOPPING=1");
}

/* The first child of a keeper looks for a daemon that lost its own. */
static bool daemon_is_adopted(const struct daemon *daemon) {
    return has_keeper() && daemon->store.n_inherited == 0 && adoption_ask(daemon->config->admin_socket);
}

int daemon_run(const struct daemon_options *options) {
    struct daemon *daemon;
    int r = daemon_new(options, &daemon);
    if (r < 0) {
        log_error("the daemon cannot start: %s", strerror(-r));
        return r;
    }
    signal(SIGPIPE, SIG_IGN);

    r = store_open(&daemon->store, &daemon->notifier, options->private);
    if (r < 0)
        log_error("the descriptors that the service manager passed cannot be taken: %s", strerror(-r));
    if (r == 0 && daemon_is_adopted(daemon)) {
        daemon_free(daemon);
        return DAEMON_ADOPTED;
    }
    if (r == 0)
        r = daemon_open_sockets(daemon);
    if (r == 0)
        r = succession_open(&daemon->succession, &daemon->store, &daemon->identity);
    if (r == 0)
        daemon_wait_for_store(daemon);
    if (r == 0)
        r = daemon_open_gpu(daemon);
    if (r == 0)
        r = daemon_start(daemon);
    if (r == 0) {
        daemon_start_signals(daemon);
        r = listener_start(&daemon->data_listener, &daemon->loop, &daemon->scheduler, daemon->closer,
                           daemon_on_data, daemon_make_room, &daemon->clients);
    }
    if (r == 0)
        r = listener_start(&daemon->admin_listener, &daemon->loop, &daemon->scheduler, daemon->closer,
                           daemon_on_admin, NULL, &daemon->admin);
    if (r == 0) {
        store_settle(&daemon->store);
        uv_run(&daemon->loop, UV_RUN_DEFAULT);
        decisions_carry_out(daemon);
        daemon_tell_end(daemon);
        if (!daemon->ends_for_good)
            daemon_leave(daemon);
    } else { /* the next daemon may start: programs wait for it */
        if (daemon->succession.is_heir) {
            succession_leave(&daemon->succession, daemon->core);
            clients_leave(&daemon->clients);
        }
        if (daemon->data_listener.taken_over)
            listener_leave(&daemon->data_listener);
        if (daemon->admin_listener.taken_over)
            listener_leave(&daemon->admin_listener);
    }
    if (r == -ENOMEM) /* other failures have been logged */
        log_error("the daemon cannot start: it has no memory");
    bool restarts = daemon->restarts;
    daemon_free(daemon);
    return r == 0 && restarts ? DAEMON_RESTARTS : r;
}
