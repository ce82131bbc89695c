/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/stage.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "daemon/admin/admin.h"
#include "daemon/core/core.h"
#include "daemon/data/client.h"
#include "daemon/data/clients.h"
#include "tests/fuzz/fuzz.h"

#define TURNS_MAX  64u
#define TIMERS_MAX 16u
#define START_NS   (1000 * NS_PER_S)
#define FIRST_PID  5000

/* A timer of the daemon's by the stage's clock. In libuv it is active for ever and never goes off. */
struct timer {
    uv_timer_t *handle; /* NULL: free entry */
    uv_timer_cb callback;
    uint64_t due_ns, repeat_ns;
};

static struct stage the_stage;
static struct timer timers[TIMERS_MAX];
static bool playing; /* the clock and the timers are the stage's */

/* --- the clock and the timers --- */

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __real_uv_timer_start(uv_timer_t *handle, uv_timer_cb callback, uint64_t timeout_ms, uint64_t repeat_ms);
int __wrap_uv_timer_start(uv_timer_t *handle, uv_timer_cb callback, uint64_t timeout_ms, uint64_t repeat_ms);
int __real_uv_timer_stop(uv_timer_t *handle);
int __wrap_uv_timer_stop(uv_timer_t *handle);
void __real_uv_close(uv_handle_t *handle, uv_close_cb callback);
void __wrap_uv_close(uv_handle_t *handle, uv_close_cb callback);

int __wrap_clock_gettime(clockid_t clock, struct timespec *time) {
    if (!playing || clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, time);
    *time = (struct timespec){(time_t)(the_stage.now_ns / NS_PER_S), (long)(the_stage.now_ns % NS_PER_S)};
    return 0;
}

static void forget_timer(const uv_timer_t *handle) {
    for (unsigned i = 0; i < TIMERS_MAX; i++)
        if (timers[i].handle == handle)
            timers[i].handle = NULL;
}

static void never(uv_timer_t *handle) {
    (void)handle;
    MUST(!"a timer went off by another clock than the stage's");
}

int __wrap_uv_timer_start(uv_timer_t *handle, uv_timer_cb callback, uint64_t timeout_ms, uint64_t repeat_ms) {
    unsigned i = 0;

    forget_timer(handle);
    while (i < TIMERS_MAX && timers[i].handle != NULL)
        i++;
    MUST(i < TIMERS_MAX);
    timers[i] = (struct timer){.handle = handle,
                               .callback = callback,
                               .due_ns = clock_deadline_ns(the_stage.now_ns, timeout_ms * NS_PER_MS),
                               .repeat_ns = repeat_ms * NS_PER_MS};
    return __real_uv_timer_start(handle, never, UINT32_MAX, 0);
}

int __wrap_uv_timer_stop(uv_timer_t *handle) {
    forget_timer(handle);
    return __real_uv_timer_stop(handle);
}

void __wrap_uv_close(uv_handle_t *handle, uv_close_cb callback) {
    if (handle->type == UV_TIMER)
        forget_timer((uv_timer_t *)handle);
    __real_uv_close(handle, callback);
}

/* The timer that is due first, not after end_ns; NULL: none. */
static struct timer *next_timer(uint64_t end_ns) {
    struct timer *first = NULL;
    for (unsigned i = 0; i < TIMERS_MAX; i++)
        if (timers[i].handle != NULL && timers[i].due_ns <= end_ns &&
            (first == NULL || timers[i].due_ns < first->due_ns))
            first = &timers[i];
    return first;
}

/* A timer that is started again and again without time passing would never let go of us. */
#define FIRINGS_MAX 10000u

void stage_pass(struct stage *stage, uint64_t ns) {
    uint64_t end_ns = stage->now_ns + ns;
    unsigned fired = 0;

    for (struct timer *timer = next_timer(end_ns); timer != NULL && fired < FIRINGS_MAX;
         timer = next_timer(end_ns), fired++) {
        uv_timer_t *handle = timer->handle;
        uv_timer_cb callback = timer->callback;
        if (timer->due_ns > stage->now_ns)
            stage->now_ns = timer->due_ns;
        if (timer->repeat_ns > 0)
            timer->due_ns = stage->now_ns + timer->repeat_ns;
        else
            __wrap_uv_timer_stop(handle);
        callback(handle);
        stage_turn(stage);
    }
    if (stage->now_ns < end_ns)
        stage->now_ns = end_ns;
}

/* --- the stage --- */

static void set(struct config *config, const char *setting) {
    char text[128];
    struct config_mistakes mistakes = {0};
    const struct config_place place = {.mistakes = &mistakes};

    snprintf(text, sizeof text, "%s", setting);
    char *dot = strchr(text, '.'), *equals = strchr(text, '=');
    MUST(dot != NULL && equals > dot);
    *dot = *equals = '\0';
    if (config_set(config, text, dot + 1, equals + 1, &place) < 0) {
        fprintf(stderr, "%s: %s\n", setting, mistakes.first[0].text);
        abort();
    }
}

struct stage *stage_new(const char *const *settings) {
    /* Small, so that everything is at its limit soon; and the second user's quotas are smaller. */
    static const char *const own[] = {"daemon.sessions_limit=12",
                                      "daemon.session_leases_limit=24",
                                      "device.limit=16MiB",
                                      "device.step=4MiB",
                                      "device.low_water=0",
                                      "host.limit=8MiB",
                                      "host.step=2MiB",
                                      "host.low_water=2MiB",
                                      "host.huge_pages=off",
                                      "host.allow=user:1000, group:2000",
                                      "quota.waiting=3",
                                      "quota.replies=64KiB",
                                      "quota user:1001.device=6MiB",
                                      "quota user:1001.leases=6",
                                      "quota group:2000.sessions=3",
                                      NULL};
    struct stage *stage = &the_stage;

    MUST(!playing);
    signal(SIGPIPE, SIG_IGN); /* as daemon_run() has it */
    *stage = (struct stage){.now_ns = START_NS, .next_pid = FIRST_PID, .next_address = UINT64_C(1) << 40};
    memset(timers, 0, sizeof timers);
    stage_world_reset(stage);
    playing = true;
    config_init(&stage->config);
    for (const char *const *setting = own; *setting != NULL; setting++)
        set(&stage->config, *setting);
    for (const char *const *setting = settings; setting != NULL && *setting != NULL; setting++)
        set(&stage->config, *setting);
    struct daemon_options options = {.config = &stage->config, .ready_fd = -1};
    MUST(daemon_new(&options, &stage->daemon) == 0);
    stage->daemon->machine.gpu = &stage_gpu;
    stage->daemon->machine.gpu_kind = PROTO_GPU_SIM;
    MUST(daemon_start(stage->daemon) == 0);
    return stage;
}

void stage_free(struct stage *stage) {
    daemon_free(stage->daemon);
    for (unsigned i = 0; i < TIMERS_MAX; i++)
        MUST(timers[i].handle == NULL);
    for (unsigned i = 0; i < STAGE_PROCESSES; i++)
        if (stage->processes[i].pid != 0)
            close_fd(stage->processes[i].death_fd);
    config_deinit(&stage->config);
    playing = false;
}

struct stage_process *stage_begin_process(struct stage *stage, unsigned number, uid_t uid) {
    struct stage_process *process = &stage->processes[number];

    if (process->pid != 0)
        close_fd(process->death_fd);
    *process = (struct stage_process){.pid = stage->next_pid++, .uid = uid, .listed = true};
    process->death_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    MUST(process->death_fd >= 0);
    return process;
}

const struct stage_process *stage_connecting; /* whose connection is being accepted */

/* One end goes to the daemon, about which peer.c's functions are asked; returns the other. */
static int connect_by(struct stage *stage, const struct stage_process *process, int type,
                      void (*accept_one)(struct daemon *daemon, int fd)) {
    int ends[2];

    MUST(socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    stage_connecting = process;
    accept_one(stage->daemon, ends[1]);
    stage_connecting = NULL;
    return ends[0];
}

/* As the listener does, but at once. */
static void let_in(struct daemon *daemon, int fd) {
    (void)clients_make_room(&daemon->clients);
    clients_accept(&daemon->clients, fd, SCOPE_ORDINARY);
}

static void let_admin_in(struct daemon *daemon, int fd) {
    admin_accept(&daemon->admin, fd);
}

int stage_connect(struct stage *stage, const struct stage_process *process) {
    return connect_by(stage, process, SOCK_SEQPACKET, let_in);
}

int stage_connect_admin(struct stage *stage, const struct stage_process *process) {
    return connect_by(stage, process, SOCK_STREAM, let_admin_in);
}

void stage_kill(struct stage_process *process) {
    uint64_t one = 1;
    if (process->pid == 0 || process->dead)
        return;
    process->dead = true;
    MUST(write(process->death_fd, &one, sizeof one) == (ssize_t)sizeof one);
}

void stage_unlist(struct stage_process *process) {
    process->listed = false;
}

void stage_turn(struct stage *stage) {
    const struct scheduler *scheduler = &stage->daemon->scheduler;
    uint64_t last = scheduler->last;

    /* Libuv closes, polls and runs idle handles once a turn of the loop, and each client that has sent
     * something is served in a turn of its own. The daemon carries out decisions in the turn after that. */
    for (unsigned i = 0;
         i < 3 || (i < TURNS_MAX && (last != scheduler->last || !scheduler_is_idle(scheduler))); i++) {
        last = scheduler->last;
        uv_run(&stage->daemon->loop, UV_RUN_NOWAIT);
    }
}

void stage_check(const struct stage *stage) {
    const struct daemon *daemon = stage->daemon;
    unsigned clients = 0, greeting = 0, sessions = 0;

    MUST(core_is_valid(daemon->core));
    list_for_each_entry(const struct client, client, &daemon->clients.all, link) {
        clients++;
        greeting += client->state == CLIENT_GREETING;
        sessions += client->session != NULL;
        MUST(client->connection.outbox.n_replies <= OUTBOX_MAX);
        MUST((client->session != NULL) == (client->state == CLIENT_OPEN || client->state == CLIENT_LOST));
        MUST(client->session == NULL || client->session->owner == client);
    }
    MUST(clients == daemon->clients.n_clients && greeting == daemon->clients.n_greeting);
    MUST(sessions == daemon->core->n_sessions);
}
