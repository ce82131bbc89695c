/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Short-lived workers: a process holds weights, and worker after worker attaches them, three at a time. Each
 * is killed at a random moment before, in or after a call, exits without a farewell, or closes its client.
 * Then nothing of them is left: in the daemon no session, lease, parcel, fence, segment, descriptor or
 * memory, and in the process that holds the weights no descriptor, mapping or memory.
 *
 * The workers attach in each way that there is: by a token that stays the same, by a token of a parcel that
 * is theirs alone (a pickled tensor of the Python package is one), and by a token that another worker made of
 * what it had attached. A handle of cudaIpcGetMemHandle() under `gpupoolctl run` is a token of the first
 * kind.
 *
 *     GPUPOOL_SHORT_LIVED=1000 GPUPOOL_SHORT_LIVED_MIB=8192 test_short_lived
 *
 * has so many workers and weights of that size, instead of a few. Exit status 3: something is left behind.
 */
#include <dirent.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/must.h"
#include "tests/integration/puppet.h"

#define AT_A_TIME    3u
#define WORKERS      60u
#define WORKERS_FULL 1000u
#define WARM_UP      24u /* workers after which each table has the size that this load needs */
#define WEIGHTS_MIB  24u
#define ROOM_MIB     64u /* beside the weights */
#define HOST_MIB     64u
#define HOST_SIZE    (3 * MIB)
#define OWN_SIZE     (2 * MIB) /* of each worker */
#define DELAY_MAX_NS (2 * NS_PER_MS)
#define LIFETIME_NS  (3600 * NS_PER_S)
#define SEED         20251125u
/* malloc's own level differs by this between two looks. A session has some KiB. */
#define DAEMON_SLACK_BYTES (512 * KIB)
#define CLIENT_SLACK_BYTES (512 * KIB)
#define FAILED             70 /* exit status of a worker for which a call failed */
#define EXIT_LEFT          3

/* The next call of a worker when its end is set off. */
enum moment {
    BEFORE_OPENING,
    BEFORE_ATTACHING,
    BEFORE_WORKING,
    BEFORE_SHARING,
    BEFORE_RELEASING,
    BEFORE_CLOSING,
    LATER, /* never: it closes, or exits without that */
    MOMENTS,
};

/* From a worker to the test. */
struct result {
    struct gpupool_token handed; /* of the weights, by the worker */
    struct gpupool_token own;    /* of what it made of them */
};

/* From the test to a worker. */
struct order {
    uint32_t moment, exits;                          /* exits: without closing */
    uint64_t delay_ns;                               /* after the moment, to its end by SIGKILL */
    struct gpupool_token shared, sent, host, handed; /* handed: zeros where there is none */
};

/* The result of a call that tells, once for each process, that the work of a dead one was lost. */
#define AFTER_LOSSES(result, call)                                                                           \
    do {                                                                                                     \
        (result) = (call);                                                                                   \
    } while ((result) == GPUPOOL_E_LOST)

/* --- a worker --- */

static void *end_soon(void *argument) {
    const struct order *order = argument;
    nanosleep(&(struct timespec){.tv_nsec = (long)order->delay_ns}, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

static void at_moment(const struct order *order, enum moment moment) {
    pthread_t thread;

    if (order->moment == moment && pthread_create(&thread, NULL, end_soon, (void *)order) != 0)
        _exit(FAILED);
}

static void need(int result, const char *what) {
    if (result >= 0)
        return;
    fprintf(stderr, "a worker: %s: %s: %s\n", what, gpupool_error_name(result), gpupool_error_text());
    _exit(FAILED);
}

/* The maker of the token may have ended, and with it the token. */
static bool attach(struct gpupool_client *client, const struct gpupool_token *token, void *stream,
                   bool may_be_gone, struct gpupool_buffer *ret_buffer) {
    int r = gpupool_attach(client, token, stream, 0, ret_buffer);
    if (may_be_gone && (r == GPUPOOL_E_NO_TOKEN || r == GPUPOOL_E_LOST))
        return false;
    need(r, "attaching");
    return true;
}

static int work(int fd, const char *argument) {
    struct gpupool_buffer shared, sent, host, handed, own;
    const struct gpupool_token none = {0};
    struct gpupool_client *client;
    struct result result;
    struct order order;
    uint32_t pool;
    void *stream;
    int r;

    (void)argument;
    if (recv(fd, &order, sizeof order, 0) != (ssize_t)sizeof order)
        return FAILED;
    at_moment(&order, BEFORE_OPENING);
    need(gpupool_open(NULL, &client), "opening");
    need(gpupool_stream_create(client, 0, &stream), "a stream");
    at_moment(&order, BEFORE_ATTACHING);
    attach(client, &order.shared, stream, false, &shared);
    attach(client, &order.sent, stream, false, &sent);
    attach(client, &order.host, GPUPOOL_NO_STREAM, false, &host);
    bool has_handed = memcmp(&order.handed, &none, sizeof none) != 0 &&
                      attach(client, &order.handed, stream, true, &handed);
    at_moment(&order, BEFORE_WORKING);
    need(gpupool_device_pool(client, 0, &pool), "the pool");
    need(gpupool_acquire(client, pool, OWN_SIZE, stream, GPUPOOL_FOREVER, 0, &own), "acquiring");
    need(gpupool_copy(client, 0, own.data, shared.data, OWN_SIZE, stream), "copying");
    at_moment(&order, BEFORE_SHARING);
    AFTER_LOSSES(r, gpupool_share(client, &shared, stream, &result.handed));
    need(r, "sharing");
    AFTER_LOSSES(r, gpupool_share(client, &own, stream, &result.own));
    need(r, "sharing");
    if (send(fd, &result, sizeof result, MSG_NOSIGNAL) != (ssize_t)sizeof result)
        return FAILED;
    if (order.exits && order.moment == LATER)
        _exit(0);
    at_moment(&order, BEFORE_RELEASING);
    if (has_handed)
        need(gpupool_release(client, &handed, stream), "releasing");
    need(gpupool_release(client, &shared, stream), "releasing");
    need(gpupool_release(client, &host, GPUPOOL_NO_STREAM), "releasing");
    need(gpupool_release(client, &own, stream), "releasing");
    at_moment(&order, BEFORE_CLOSING);
    gpupool_close(client); /* one buffer is still held */
    return 0;
}

/* --- the process that holds the weights --- */

#define MUST_AFTER_LOSSES(call)                                                                              \
    do {                                                                                                     \
        int told_;                                                                                           \
        AFTER_LOSSES(told_, call);                                                                           \
        MUST_BE(told_, 0);                                                                                   \
    } while (0)

struct holder {
    struct test_daemon daemon;
    struct gpupool_client *client;
    struct gpupool_buffer weights, host;
    struct gpupool_token shared, host_shared;
    struct gpupool_token handed; /* the last that a worker made */
    void *stream;
    uint64_t random;
    bool takes; /* what the workers make */
};

struct lane {
    struct puppet worker;
    struct order order;
};

/* The weights are written anew from time to time, when no worker has them. */
static void write_weights(struct holder *holder) {
    int r;

    AFTER_LOSSES(r, gpupool_reuse(holder->client, &holder->weights, holder->stream));
    if (r != GPUPOOL_E_SHARED) {
        MUST_BE(r, 0);
        MUST(gpupool_set(holder->client, 0, holder->weights.data, 7, OWN_SIZE, holder->stream));
    }
    MUST_AFTER_LOSSES(gpupool_share(holder->client, &holder->weights, holder->stream, &holder->shared));
}

static void lane_start(struct holder *holder, struct lane *lane) {
    uint64_t random = test_random(&holder->random);

    write_weights(holder);
    lane->order = (struct order){.moment = (uint32_t)(random % MOMENTS),
                                 .exits = random >> 8 & 1,
                                 .delay_ns = (random >> 16) % DELAY_MAX_NS,
                                 .shared = holder->shared,
                                 .host = holder->host_shared,
                                 .handed = holder->handed};
    MUST_AFTER_LOSSES(
        gpupool_send(holder->client, &holder->weights, holder->stream, 1, LIFETIME_NS, &lane->order.sent));
    puppet_start_role(&lane->worker, &holder->daemon, "work", "");
    assert_int_equal(send(lane->worker.fd, &lane->order, sizeof lane->order, MSG_NOSIGNAL),
                     sizeof lane->order);
}

/* The worker may be dead by now, and its buffer gone. */
static void take(struct holder *holder, const struct result *result) {
    struct gpupool_buffer buffer;
    int r;

    AFTER_LOSSES(r, gpupool_attach(holder->client, &result->own, holder->stream, 0, &buffer));
    if (r == GPUPOOL_E_NO_TOKEN)
        return;
    MUST_BE(r, 0);
    MUST(gpupool_set(holder->client, 0, buffer.data, 9, OWN_SIZE, holder->stream));
    MUST(gpupool_release(holder->client, &buffer, holder->stream));
}

/* Takes in its result. Returns whether it has ended, in a way that it was told. */
static bool lane_step(struct holder *holder, struct lane *lane) {
    struct result result;
    ssize_t n = recv(lane->worker.fd, &result, sizeof result, MSG_DONTWAIT);

    if (n == (ssize_t)sizeof result) {
        holder->handed = result.handed;
        if (holder->takes)
            take(holder, &result);
    }
    if (n > 0 || (n < 0 && errno == EAGAIN))
        return false;
    int status = test_wait(lane->worker.pid);
    lane->worker.fd = close_fd(lane->worker.fd);
    bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (status != 0 && !(was_killed && lane->order.moment != LATER))
        fail_msg("a worker ended with status 0x%x", (unsigned)status);
    /* As the Python package does with a message whose receiver has ended. */
    int r = gpupool_revoke(holder->client, &lane->order.sent);
    if (r != GPUPOOL_E_NO_TOKEN)
        MUST_BE(r, 0);
    return true;
}

static void run_workers(struct holder *holder, unsigned count) {
    struct lane lanes[AT_A_TIME];
    struct pollfd fds[AT_A_TIME];
    unsigned started = 0, running = 0;

    while (started < count || running > 0) {
        while (running < AT_A_TIME && started < count) {
            lane_start(holder, &lanes[running++]);
            started++;
        }
        for (unsigned i = 0; i < running; i++)
            fds[i] = (struct pollfd){.fd = lanes[i].worker.fd, .events = POLLIN};
        if (poll(fds, running, (int)(TEST_WAIT_NS / NS_PER_MS)) <= 0)
            fail_msg("no worker does anything");
        for (unsigned i = running; i-- > 0;)
            if (fds[i].revents != 0 && lane_step(holder, &lanes[i]))
                lanes[i] = lanes[--running];
    }
}

/* --- what is left --- */

struct state {
    uint64_t sessions, leases, leased_bytes, fenced_bytes, quarantined_bytes, parcels, segments, waiters;
    uint64_t descriptors, threads;          /* of the daemon */
    uint64_t own_descriptors, own_mappings; /* of this process; mappings of files and devices */
    uint64_t daemon_bytes, own_bytes;       /* anonymous memory */
};

static const struct {
    const char *name;
    size_t offset;
    unsigned of_segment; /* that each mapped segment adds */
} figures[] = {
#define FIGURE(name, of_segment)                                                                             \
    { #name, offsetof(struct state, name), of_segment }
    FIGURE(sessions, 0),          FIGURE(leases, 0),      FIGURE(leased_bytes, 0),    FIGURE(fenced_bytes, 0),
    FIGURE(quarantined_bytes, 0), FIGURE(parcels, 0),     FIGURE(waiters, 0),         FIGURE(threads, 0),
    FIGURE(segments, 1),          FIGURE(descriptors, 2), FIGURE(own_descriptors, 1), FIGURE(own_mappings, 1),
};

static uint64_t anonymous_bytes(pid_t pid) {
    char path[64], line[256];
    unsigned long long kib;

    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Anonymous: %llu kB", &kib) == 1)
            return kib * KIB;
    fail_msg("%s does not say how much memory is anonymous", path);
    return 0;
}

static unsigned own_descriptors(void) {
    unsigned count = 0;
    DIR *directory = opendir("/proc/self/fd");

    assert_non_null(directory);
    while (readdir(directory) != NULL)
        count++;
    closedir(directory);
    return count;
}

/* Those of anonymous memory are malloc's own matter. */
static unsigned own_mappings(void) {
    unsigned count = 0;
    char line[512];
    _cleanup_(fclosep) FILE *file = fopen("/proc/self/maps", "re");

    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL)
        count += strchr(line, '/') != NULL;
    return count;
}

/* Waits until the sessions of all workers are over, gives free memory back, and looks. */
static struct state look(struct holder *holder) {
    struct test_daemon *daemon = &holder->daemon;

    WAIT_UNTIL(daemon_sessions(daemon, "active") == 1 && daemon_sessions(daemon, "quarantined") == 0);
    MUST_AFTER_LOSSES(gpupool_stream_synchronize(holder->client, 0, holder->stream));
    MUST(gpupool_trim(holder->client, NULL));
    cJSON_Delete(daemon_ask(daemon, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(daemon_sum(daemon, "free_bytes") + daemon_sum(daemon, "leased_bytes") ==
               daemon_sum(daemon, "reserved_bytes"));
    return (struct state){
        .sessions = daemon_sessions(daemon, "active"),
        .leases = daemon_sum(daemon, "leases"),
        .leased_bytes = daemon_sum(daemon, "leased_bytes"),
        .fenced_bytes = daemon_sum(daemon, "fenced_bytes"),
        .quarantined_bytes = daemon_sum(daemon, "quarantined_bytes"),
        .parcels = daemon_sum(daemon, "parcels"),
        .segments = daemon_sum(daemon, "segments"),
        .waiters = daemon_sum(daemon, "waiters"),
        .descriptors = daemon_descriptors_at_rest(daemon),
        .threads = daemon_threads(daemon),
        .own_descriptors = own_descriptors(),
        .own_mappings = own_mappings(),
        .daemon_bytes = anonymous_bytes(daemon->pid),
        .own_bytes = anonymous_bytes(getpid()),
    };
}

static uint64_t figure(const struct state *state, size_t offset) {
    uint64_t value;
    memcpy(&value, (const char *)state + offset, sizeof value);
    return value;
}

/* Returns how many figures are more than before. kept: segments that may be mapped here since. */
static unsigned compare(const struct state *before, const struct state *after, uint64_t kept) {
    unsigned more = 0;

    for (unsigned i = 0; i < sizeof figures / sizeof *figures; i++) {
        uint64_t was = figure(before, figures[i].offset), is = figure(after, figures[i].offset);
        if (is <= was + kept * figures[i].of_segment)
            continue;
        print_message("%s: %" PRIu64 " after the workers, %" PRIu64 " before\n", figures[i].name, is, was);
        more++;
    }
    print_message("daemon %s, before %s; the process with the weights %s, before %s\n",
                  BYTES_TEXT(after->daemon_bytes), BYTES_TEXT(before->daemon_bytes),
                  BYTES_TEXT(after->own_bytes), BYTES_TEXT(before->own_bytes));
    if (test_is_sanitized()) /* it keeps what was freed */
        return more;
    return more + (after->daemon_bytes > before->daemon_bytes + DAEMON_SLACK_BYTES) +
           (after->own_bytes > before->own_bytes + CLIENT_SLACK_BYTES);
}

/* --- the test --- */

static bool left_behind;

static struct gpupool_buffer acquire(struct holder *holder, uint32_t pool, uint64_t size_bytes) {
    struct gpupool_buffer buffer;
    MUST(gpupool_acquire(holder->client, pool, size_bytes, holder->stream, GPUPOOL_FOREVER, 0, &buffer));
    return buffer;
}

static void begin(struct holder *holder, unsigned weights_mib) {
    static char config[TEST_CONFIG_SIZE];
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    uint32_t pool;

    daemon_start(&holder->daemon,
                 &(struct daemon_options){.config = test_config(config, weights_mib + ROOM_MIB, HOST_MIB)});
    options.socket = holder->daemon.socket;
    options.decay_ns = GPUPOOL_FOREVER; /* nothing happens by itself between two looks */
    MUST(gpupool_open(&options, &holder->client));
    MUST(gpupool_stream_create(holder->client, 0, &holder->stream));
    MUST(gpupool_device_pool(holder->client, 0, &pool));
    holder->weights = acquire(holder, pool, weights_mib * MIB);
    MUST(gpupool_host_pool(holder->client, -1, &pool));
    holder->host = acquire(holder, pool, HOST_SIZE);
    MUST(gpupool_share(holder->client, &holder->host, GPUPOOL_NO_STREAM, &holder->host_shared));
}

static void end(struct holder *holder) {
    MUST(gpupool_release(holder->client, &holder->host, holder->stream));
    MUST(gpupool_release(holder->client, &holder->weights, holder->stream));
    gpupool_close(holder->client);
    assert_int_equal(daemon_sum(&holder->daemon, "leased_bytes"), 0);
    assert_int_equal(daemon_sum(&holder->daemon, "leases"), 0);
    daemon_stop(&holder->daemon);
}

static void compare_around(unsigned warm_up, unsigned count, bool takes) {
    unsigned weights_mib = test_number("GPUPOOL_SHORT_LIVED_MIB", WEIGHTS_MIB);
    struct holder holder = {.random = test_number("GPUPOOL_SEED", SEED), .takes = takes};

    if (!test_has_device())
        skip();
    begin(&holder, weights_mib);
    run_workers(&holder, warm_up);
    const struct state before = look(&holder);
    run_workers(&holder, count);
    const struct state after = look(&holder);
    unsigned more = compare(&before, &after, takes ? ROOM_MIB * MIB / OWN_SIZE : 0);
    left_behind |= more > 0;
    assert_int_equal(more, 0);
    end(&holder);
}

static unsigned workers(void) {
    return test_number("GPUPOOL_SHORT_LIVED", test_is_full() ? WORKERS_FULL : WORKERS);
}

static void short_lived_workers_leave_nothing_behind(void **state) {
    (void)state;
    compare_around(WARM_UP, workers(), false);
}

/* The process that stays attaches what each worker made. It keeps its mappings, of no more segments than the
 * pool has. */
static void their_results_leave_no_more_than_the_pool_has(void **state) {
    (void)state;
    compare_around(WARM_UP / 4, workers(), true);
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {{"work", work}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_lived_workers_leave_nothing_behind),
        cmocka_unit_test(their_results_leave_no_more_than_the_pool_has),
    };
    int status = puppet_main(argc, argv, roles);
    if (status < 0)
        status = test_finish(cmocka_run_group_tests(tests, NULL, NULL));
    return left_behind ? EXIT_LEFT : status;
}
