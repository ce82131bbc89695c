/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/daemon.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "daemon/config/access.h"
#include "daemon/admin/admin.h"
#include "daemon/loop/closer.h"
#include "daemon/config/config_check.h"
#include "daemon/data/client.h"
#include "daemon/data/serve.h"
#include "daemon/loop/log.h"
#include "daemon/supply/numa.h"
#include "daemon/core/core.h"

/* How long a connection may take to say HELLO. */
#define HANDSHAKE_NS (10 * NS_PER_S)
/* How often they are looked through, and what the kernel refused for a while is tried again. */
#define HOUSEKEEPING_MS 5000
/* A private daemon that nobody comes to ends by itself. */
#define PRIVATE_GRACE_MS 30000

struct supplier *daemon_supplier(struct daemon *daemon, const struct pool *pool) {
    return daemon->suppliers[pool->id - 1];
}

void daemon_add_notice(struct daemon *daemon, const char *notice) {
    for (unsigned i = 0; i < daemon->n_notices; i++)
        if (strcmp(daemon->notices[i], notice) == 0)
            return;
    if (daemon->n_notices < DAEMON_NOTICES_MAX)
        daemon->notices[daemon->n_notices++] = notice;
}

/* --- carrying out what the core decides --- */

static void daemon_on_tick(uv_timer_t *timer) {
    struct daemon *daemon = timer->data;
    daemon->tick_ns = NS_FOREVER;
    core_tick(daemon->core, clock_now_ns());
}

static void daemon_arm_tick(struct daemon *daemon) {
    uint64_t next_ns = core_next_tick_ns(daemon->core);
    if (next_ns == daemon->tick_ns || daemon->stopping)
        return;
    daemon->tick_ns = next_ns;
    if (next_ns == NS_FOREVER) {
        uv_timer_stop(&daemon->tick_timer);
        return;
    }
    uint64_t now_ns = clock_now_ns();
    uv_update_time(&daemon->loop);
    /* rounded up: a timer that fires early would fire again and again until the deadline */
    uv_timer_start(&daemon->tick_timer, daemon_on_tick,
                   next_ns <= now_ns ? 0 : (next_ns - now_ns) / NS_PER_MS + 1, 0);
}

/* Says once that clients are served: when every pool knows whether its device works and has its reserve. */
static void daemon_announce_ready(struct daemon *daemon) {
    if (daemon->ready_announced ||
        daemon->stopping) /* a worker that is stopped may still make a pool ready */
        return;
    for (unsigned i = 0; i < daemon->core->n_pools; i++) {
        const struct pool *pool = daemon->core->pools[i];
        bool filling = pool->reserved_bytes < pool->reserve_bytes && pool->last_error[0] == '\0' &&
                       pool->reserve_bytes <= pool->limit_bytes;
        if (pool->state == POOL_STARTING || (pool->state == POOL_READY && filling))
            return;
    }
    daemon->ready_announced = true;
    notifier_tell(&daemon->notifier, "READY=1");
    log_info("serving %u pool%s on %s", daemon->core->n_pools, daemon->core->n_pools == 1 ? "" : "s",
             daemon->data_listener.path);
    if (daemon->options.ready_fd >= 0) {
        if (write(daemon->options.ready_fd, "1", 1) != 1)
            log_warning("nobody reads --ready-fd");
        daemon->options.ready_fd = close_fd(daemon->options.ready_fd);
    }
}

/* Sends the core's answers, starts its growths and retirements, and asks sessions for idle memory. Sending an
 * answer can end a session, and a growth can fail at once: both lead to further decisions. */
static void daemon_carry_out(struct daemon *daemon) {
    struct answer answer;
    struct pool *pool;
    struct segment *segment;
    struct session *session;
    uint64_t size_bytes;
    bool more = true;

    while (more) {
        more = false;
        while (core_next_answer(daemon->core, &answer)) {
            journal_answer(daemon, &answer);
            serve_answer(answer.session->owner, &answer);
            core_answer_sent(&answer, clock_now_ns());
            more = true;
        }
        while (!daemon->stopping && core_next_growth(daemon->core, &pool, &size_bytes)) {
            supplier_grow(daemon_supplier(daemon, pool), size_bytes);
            more = true;
        }
        while (!daemon->stopping && core_next_retirement(daemon->core, &segment)) {
            supplier_retire(daemon_supplier(daemon, segment->pool), segment);
            more = true;
        }
        while (core_next_reclaim(daemon->core, &session))
            client_ask_reclaim(session->owner);
    }
}

/* --- pools --- */

struct pool_sizes daemon_pool_sizes(const struct config_pool_sizes *sizes) {
    return (struct pool_sizes){.limit_bytes = sizes->limit_bytes,
                               .step_bytes = sizes->step_bytes,
                               .reserve_bytes = sizes->reserve_bytes,
                               .low_water_bytes = sizes->low_water_bytes};
}

static int daemon_add_pool(struct daemon *daemon, struct pool_config *pool_config, const struct gpu *gpu,
                           uint64_t total_bytes) {
    struct config_pool_sizes sizes;
    struct pool *pool;
    bool is_host = pool_config->kind == PROTO_POOL_HOST;

    int number = is_host ? pool_config->numa_node : pool_config->device;
    config_note_place(daemon->config, pool_config->kind, is_host ? NULL : pool_config->uuid, number);
    config_resolve(daemon->config, pool_config->kind, is_host ? NULL : pool_config->uuid, number, total_bytes,
                   &sizes);
    if (!sizes.enabled)
        return 0;
    pool_config->sizes = daemon_pool_sizes(&sizes);
    daemon->n_mistakes += config_check_sizes(pool_config->name, &sizes);
    struct supplier *supplier = calloc(1, sizeof *supplier);
    if (supplier == NULL)
        return -ENOMEM;
    int r = core_add_pool(daemon->core, pool_config, &pool);
    if (r < 0) {
        free(supplier);
        return r;
    }
    supplier->daemon = daemon;
    supplier->pool = pool;
    supplier->gpu = gpu;
    supplier->total_bytes = total_bytes;
    supplier->huge_pages = sizes.huge_pages;
    pool->owner = supplier;
    daemon->suppliers[pool->id - 1] = supplier;
    return 0;
}

static int daemon_add_device_pools(struct daemon *daemon) {
    unsigned count;

    int r = daemon->gpu->device_count(&count);
    if (r != 0) {
        log_error("counting the GPUs failed with %s", daemon->gpu->error_name(r));
        return -EIO;
    }
    for (unsigned device = 0; device < count; device++) {
        struct gpu_device description;
        struct pool_config pool = {.kind = PROTO_POOL_DEVICE, .device = (int)device};
        r = daemon->gpu->device_describe(device, &description);
        if (r != 0) {
            log_error("device %u cannot be described (%s) and gets no pool", device,
                      daemon->gpu->error_name(r));
            continue;
        }
        memcpy(pool.uuid, description.uuid.bytes, sizeof pool.uuid);
        pool.numa_node = description.numa_node;
        pool.name = description.name;
        r = daemon_add_pool(daemon, &pool, daemon->gpu, description.total_bytes);
        if (r < 0)
            return r;
    }
    return 0;
}

static int daemon_add_host_pools(struct daemon *daemon) {
    int nodes[NUMA_NODES_MAX];
    unsigned count = numa_nodes(nodes);

    for (unsigned i = 0; i < count; i++) {
        uint64_t total, available;
        char name[POOL_NAME_SIZE];
        struct pool_config pool = {
            .kind = PROTO_POOL_HOST, .device = -1, .numa_node = nodes[i], .name = name};
        int r = numa_memory(nodes[i], &total, &available);
        if (r < 0) {
            log_error("the memory of NUMA node %d is not known (%s); it gets no pool", nodes[i],
                      strerror(-r));
            continue;
        }
        snprintf(name, sizeof name, "host memory, node %d", nodes[i]);
        r = daemon_add_pool(daemon, &pool, NULL, total);
        if (r < 0)
            return r;
    }
    return 0;
}

static int daemon_start_gpu(struct daemon *daemon) {
    enum config_gpu wanted = daemon->config->gpu;
    int r;

    if (wanted == CONFIG_GPU_NONE)
        return 0;
    if (wanted == CONFIG_GPU_SIM) {
        struct gpu_sim_options options = {daemon->config->sim_gpus, daemon->config->sim_memory_bytes};
        r = gpu_sim(&options, &daemon->gpu);
        if (r != 0) {
            if (gpu_sim_missing() != NULL)
                log_error("the simulated GPU is a library of its own, which cannot be loaded: %s",
                          gpu_sim_missing());
            else
                log_error("the simulated GPU cannot be started (error %d)", r);
            return -EIO;
        }
        daemon->gpu_kind = PROTO_GPU_SIM;
        daemon_add_notice(daemon,
                          "The GPUs are simulated: device memory is ordinary memory of this machine.");
        log_warning("the GPUs are simulated (gpu = sim): device memory is ordinary memory of this machine");
        return 0;
    }
    /* An MPS client would die with the first worker that is killed under MPS (measured on H200: a killed
     * worker left cudaErrorIllegalAddress in the daemon's context). No MPS server listens in a directory that
     * does not exist. */
    setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/gpupoold-stays-out-of-mps", 1);
    r = gpu_cuda(&daemon->gpu);
    if (r == 0) {
        daemon->gpu_kind = PROTO_GPU_CUDA;
        return 0;
    }
    daemon->gpu = NULL;
    if (wanted == CONFIG_GPU_CUDA) {
        log_error("gpu = cuda, but %s: install the NVIDIA driver, or use --gpu none or --gpu sim",
                  !gpu_cuda_built()          ? "this build was made without a CUDA toolkit"
                  : r == GPU_ERROR_NO_DEVICE ? "the driver sees no GPU"
                  : r == GPU_ERROR_INSUFFICIENT_DRIVER
                      ? "there is no driver, or it is older than the CUDA runtime"
                      : "the driver cannot be used");
        return -ENODEV;
    }
    if (r != GPU_ERROR_INSUFFICIENT_DRIVER && r != GPU_ERROR_NO_DEVICE)
        log_warning("the CUDA driver is there but cannot be used (error %d): serving host memory only", r);
    daemon_add_notice(daemon, gpu_cuda_built() ? "No GPU was found: host memory only."
                                               : "Built without a CUDA toolkit: host memory only.");
    log_info("%s", daemon->notices[daemon->n_notices - 1]);
    return 0;
}

static int daemon_add_pools(struct daemon *daemon) {
    int r = 0;
    if (daemon->gpu != NULL)
        r = daemon_add_device_pools(daemon);
    if (r == 0)
        r = daemon_add_host_pools(daemon);
    if (r < 0)
        return r;
    daemon->n_mistakes += config_check_sections(daemon->config);
    if (daemon->core->n_pools == 0) {
        log_error("no pool is enabled: there is nothing to serve");
        return -ENODEV;
    }
    return 0;
}

static int daemon_start_workers(struct daemon *daemon) {
    int r = watcher_start(&daemon->watcher, daemon);

    for (unsigned i = 0; r == 0 && i < daemon->core->n_pools; i++)
        r = supplier_start(daemon->suppliers[i]);
    if (r < 0)
        log_error("a worker thread cannot be started: %s", strerror(-r));
    return r;
}

/* --- sockets --- */

static int daemon_open_sockets(struct daemon *daemon) {
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names);

    for (int i = 0; i < n; i++) {
        bool is_admin = strcmp(names[i], "admin") == 0;
        int fd = SD_LISTEN_FDS_START + i;
        if (!is_admin && strcmp(names[i], "data") != 0 && strcmp(names[i], "unknown") != 0) {
            log_warning("systemd passed a socket named '%s', which is neither data nor admin; it is not used",
                        names[i]);
            close_fd(fd);
        } else if (listener_adopt(is_admin ? &daemon->admin_listener : &daemon->data_listener, fd,
                                  is_admin ? SOCK_STREAM : SOCK_SEQPACKET) < 0) {
            log_error("the socket that systemd passed as '%s' is not a listening %s Unix socket", names[i],
                      is_admin ? "stream" : "seqpacket");
            n = -EINVAL;
        }
    }
    if (names != NULL)
        for (char **name = names; *name != NULL; name++)
            free(*name);
    free(names);
    if (n < 0)
        return n;
    /* The private daemon's sockets lie in a directory that only its user can enter. */
    if (daemon->data_listener.fd < 0) {
        int r = listener_open(&daemon->data_listener, daemon->config->socket, SOCK_SEQPACKET, 0660,
                              daemon->config->group);
        if (r < 0)
            return r;
    }
    if (daemon->admin_listener.fd < 0) {
        int r = listener_open(&daemon->admin_listener, daemon->config->admin_socket, SOCK_STREAM, 0666, "");
        if (r < 0)
            return r;
    }
    return 0;
}

static void daemon_on_data(struct listener *listener, int fd) {
    serve_accept(listener->user, fd);
}

static bool daemon_make_room(struct listener *listener) {
    return client_make_room(listener->user);
}

static void daemon_on_admin(struct listener *listener, int fd) {
    admin_accept(listener->user, fd);
}

static void daemon_on_housekeeping(uv_timer_t *timer) {
    struct daemon *daemon = timer->data;
    uint64_t now_ns = clock_now_ns();

    unsigned n_stalled = 0;

    while (!list_is_empty(&daemon->greeting)) {
        struct client *oldest = list_first(&daemon->greeting, struct client, greeting_link);
        if (now_ns - oldest->accepted_ns <= HANDSHAKE_NS)
            break;
        client_drop_unready(oldest);
    }
    list_for_each_safe(position, &daemon->clients) {
        struct client *client = container_of(position, struct client, link);
        if (client->connection.outbox.stalled) {
            n_stalled++;
            client_retry(client);
        }
    }
    if (n_stalled > 0 && !daemon->stall_reported)
        log_warning(
            "%u clients wait for replies that the kernel does not take: too many of the descriptors sent "
            "to clients are unread; raise LimitNOFILE, or end processes that keep sockets of clients "
            "that ended",
            n_stalled);
    daemon->stall_reported = n_stalled > 0;
    daemon->n_complaints = 0;
    journal_turn(daemon);
    listener_retry(&daemon->data_listener);
    listener_retry(&daemon->admin_listener);
}

/* --- signals, end --- */

static void daemon_stop(struct daemon *daemon) {
    daemon->stopping = true;
    uv_stop(&daemon->loop);
}

static void daemon_on_terminate(uv_signal_t *signal, int number) {
    struct daemon *daemon = signal->data;
    log_info("%s: stopping", number == SIGTERM ? "SIGTERM" : "SIGINT");
    journal_turn(daemon);
    journal_loans(daemon);
    daemon_stop(daemon);
}

static void daemon_on_reload(uv_signal_t *signal, int number) {
    struct daemon *daemon = signal->data;
    (void)number;
    reload_ask(&daemon->reload, daemon);
}

static void daemon_on_private_timer(uv_timer_t *timer) {
    struct daemon *daemon = timer->data;
    if (!daemon->served) {
        log_info("nobody came: stopping");
        daemon_stop(daemon);
    }
}

/* A private daemon ends after its last client. Memory in quarantine does not keep it: the driver keeps memory
 * that a dying process has mapped. */
static void daemon_stop_if_unused(struct daemon *daemon) {
    if (!daemon->options.private || !daemon->served || daemon->stopping)
        return;
    list_for_each(position, &daemon->clients) {
        enum client_state state = container_of(position, struct client, link)->state;
        if (state == CLIENT_OPEN || state == CLIENT_GREETING)
            return;
    }
    daemon_stop(daemon);
}

static void daemon_start_signal(struct daemon *daemon, uv_signal_t *handle, uv_signal_cb callback,
                                int number) {
    uv_signal_init(&daemon->loop, handle);
    handle->data = daemon;
    uv_signal_start(handle, callback, number);
}

/* --- turns --- */

static void daemon_on_hurry(uv_idle_t *idle) {
    (void)idle;
}

/* The one place where the core's decisions are fetched: every callback of the loop may have changed the core.
 * While a client waits for its turn, the loop polls without sleeping. */
static void daemon_before_poll(uv_prepare_t *prepare) {
    struct daemon *daemon = prepare->data;

    daemon_carry_out(daemon);
    daemon_arm_tick(daemon);
    daemon_announce_ready(daemon);
    daemon_stop_if_unused(daemon);
    if (scheduler_is_idle(&daemon->scheduler))
        uv_idle_stop(&daemon->in_a_hurry);
    else
        uv_idle_start(&daemon->in_a_hurry, daemon_on_hurry);
}

static void daemon_after_poll(uv_check_t *check) {
    struct daemon *daemon = check->data;
    struct turn *turn = scheduler_next(&daemon->scheduler);
    if (turn != NULL)
        turn->serve(turn);
}

static void daemon_start_turns(struct daemon *daemon) {
    uv_prepare_init(&daemon->loop, &daemon->before_poll);
    uv_check_init(&daemon->loop, &daemon->after_poll);
    uv_idle_init(&daemon->loop, &daemon->in_a_hurry);
    daemon->before_poll.data = daemon->after_poll.data = daemon->in_a_hurry.data = daemon;
    uv_prepare_start(&daemon->before_poll, daemon_before_poll);
    uv_check_start(&daemon->after_poll, daemon_after_poll);
}

static void daemon_start_timers(struct daemon *daemon) {
    uv_timer_init(&daemon->loop, &daemon->tick_timer);
    daemon->tick_timer.data = daemon;
    daemon->tick_ns = NS_FOREVER;
    uv_timer_init(&daemon->loop, &daemon->housekeeping_timer);
    daemon->housekeeping_timer.data = daemon;
    uv_timer_start(&daemon->housekeeping_timer, daemon_on_housekeeping, HOUSEKEEPING_MS, HOUSEKEEPING_MS);
    uv_timer_init(&daemon->loop, &daemon->private_timer);
    daemon->private_timer.data = daemon;
    if (daemon->options.private)
        uv_timer_start(&daemon->private_timer, daemon_on_private_timer, PRIVATE_GRACE_MS, 0);
    health_start(&daemon->health, daemon);
}

static void daemon_start_signals(struct daemon *daemon) {
    daemon_start_signal(daemon, &daemon->on_terminate, daemon_on_terminate, SIGTERM);
    daemon_start_signal(daemon, &daemon->on_interrupt, daemon_on_terminate, SIGINT);
    daemon_start_signal(daemon, &daemon->on_reload, daemon_on_reload, SIGHUP);
}

static void daemon_close_handle(uv_handle_t *handle, void *user) {
    (void)user;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

int daemon_new(const struct daemon_options *options, struct daemon **ret_daemon) {
    struct daemon *daemon = calloc(1, sizeof *daemon);
    if (daemon == NULL)
        return -ENOMEM;
    daemon->options = *options;
    daemon->config = options->config;
    daemon->started_ns = clock_now_ns();
    daemon->data_listener.fd = daemon->data_listener.lock_fd = daemon->data_listener.spare_fd = -1;
    daemon->admin_listener = daemon->data_listener;
    scheduler_init(&daemon->scheduler);
    list_init(&daemon->clients);
    list_init(&daemon->greeting);
    list_init(&daemon->admin_clients);
    list_init(&daemon->admin_resting);
    int r = core_new(&daemon->core);
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
    daemon->core->sessions_limit = daemon->config->sessions_limit;
    daemon->core->session_leases_limit = daemon->config->session_leases_limit;
    lingering_init(&daemon->lingering, daemon->core, daemon->closer);
    *ret_daemon = daemon;
    return 0;
}

int daemon_start(struct daemon *daemon) {
    int r = daemon_add_pools(daemon);
    if (r == 0)
        r = access_look_up(daemon->config);
    if (r == 0)
        r = access_apply(daemon);
    if (r == 0)
        r = daemon_start_workers(daemon);
    if (r == 0 && !daemon->options.private) /* what a program inherited is not its daemon's to tell */
        r = notifier_start(&daemon->notifier, &daemon->loop);
    if (r == 0) {
        daemon_start_turns(daemon);
        daemon_start_timers(daemon);
        lingering_start(&daemon->lingering, &daemon->loop);
        admin_start(daemon);
    }
    return r;
}

void daemon_free(struct daemon *daemon) {
    daemon->stopping = true;
    listener_close(&daemon->data_listener);
    listener_close(&daemon->admin_listener);
    if (daemon->options.private) { /* made for it by the client that started it, named by its socket */
        char directory[CONFIG_PATH_SIZE];
        snprintf(directory, sizeof directory, "%s", daemon->config->socket);
        *strrchr(directory, '/') = '\0';
        rmdir(directory);
    }
    watcher_stop(&daemon->watcher);
    lingering_stop(&daemon->lingering);
    while (!list_is_empty(&daemon->clients))
        client_discard(list_first(&daemon->clients, struct client, link));
    while (!list_is_empty(&daemon->admin_clients))
        admin_drop(list_first(&daemon->admin_clients, struct admin_client, link));
    struct segment *segment;
    while (core_next_retirement(daemon->core, &segment)) /* decided while the sessions went */
        supplier_retire(daemon_supplier(daemon, segment->pool), segment);
    for (unsigned i = 0; i < daemon->core->n_pools; i++)
        supplier_stop(daemon->suppliers[i]);
    reload_stop(&daemon->reload);
    notifier_stop(&daemon->notifier);
    uv_run(&daemon->loop,
           UV_RUN_NOWAIT); /* lets what is closing finish, before the rest is closed by force */
    uv_walk(&daemon->loop, daemon_close_handle, NULL);
    uv_run(&daemon->loop, UV_RUN_DEFAULT);
    for (unsigned i = 0; i < daemon->core->n_pools; i++)
        free(daemon->suppliers[i]);
    core_free(daemon->core);
    int r = uv_loop_close(&daemon->loop);
    assert(r == 0);
    (void)r;
    closer_free(daemon->closer);
    free(daemon);
}

int daemon_check(const struct daemon_options *options) {
    struct daemon *daemon;
    gid_t gid;

    int r = daemon_new(options, &daemon);
    if (r < 0)
        return r;
    const char *group = daemon->config->group;
    if (*group != '\0' && access_find_group(group, &gid) < 0) {
        log_error("group: there is no group '%s'", group);
        daemon->n_mistakes++;
    }
    r = daemon_start_gpu(daemon);
    if (r == 0)
        r = daemon_add_pools(daemon);
    if (r == 0)
        r = access_look_up(daemon->config);
    if (r == 0 && daemon->n_mistakes + daemon->config->n_unknown_names > 0)
        r = -EINVAL;
    daemon_free(daemon);
    return r;
}

int daemon_run(const struct daemon_options *options) {
    struct daemon *daemon;
    int r = daemon_new(options, &daemon);
    if (r < 0) {
        log_error("the daemon cannot start: %s", strerror(-r));
        return r;
    }
    signal(SIGPIPE, SIG_IGN);

    r = daemon_open_sockets(daemon);
    if (r == 0)
        r = daemon_start_gpu(daemon);
    if (r == 0)
        r = daemon_start(daemon);
    if (r == 0) {
        daemon_start_signals(daemon);
        r = listener_start(&daemon->data_listener, &daemon->loop, &daemon->scheduler, daemon->closer,
                           daemon_on_data, daemon_make_room, daemon);
    }
    if (r == 0)
        r = listener_start(&daemon->admin_listener, &daemon->loop, &daemon->scheduler, daemon->closer,
                           daemon_on_admin, NULL, daemon);
    if (r == 0) {
        uv_run(&daemon->loop, UV_RUN_DEFAULT);
        notifier_tell(&daemon->notifier, "STOPPING=1");
    }
    if (r == -ENOMEM) /* what failed otherwise has said so */
        log_error("the daemon cannot start: it has no memory");
    daemon_free(daemon);
    return r;
}
