/* SPDX-License-Identifier: Apache-2.0 */
/* Every way in which a process can end or seem to, and by which rule its memory comes back: what is held, why
 * the daemon says that it is, and that it comes back when that is over and not before. The workers are parts
 * that this program plays itself; each has SIZE_BYTES of device and of host memory when it says that it is
 * ready. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/ghost.h"
#include "tests/integration/puppet.h"

#define POOL_MIB   32u
#define SIZE_BYTES (20 * MIB) /* no two of them fit the pool */

#include "tests/integration/daemon_fixture.h"

/* --- the workers --- */

/* The parts of an argument, as letters. */
enum part {
    PART_CHILD = 'c',        /* a forked child keeps all descriptors */
    PART_CHILD_SOCKET = 's', /* it keeps the socket to the daemon, and none of the driver's */
    PART_CHILD_DEVICE = 'd', /* it keeps the driver's, and not the socket */
    PART_CHILD_EXEC = 'e',   /* it became another program */
    PART_MPS = 'm',          /* listed as a client of MPS */
    PART_HOST_ONLY = 'h',
    PART_NO_GPU = 'n',  /* host memory only, and it says that it uses no GPU */
    PART_KERNEL = 'k',  /* a kernel in flight writes its memory for KERNEL_MS after its end, */
    PART_ENDLESS = 'l', /* the kernel ends with its ghost instead (tests/ghost.h) */
    PART_TWICE = 't',   /* a second connection, with memory of its own */
};

#define KERNEL_MS "300"

static bool asks(const char *argument, enum part part) {
    return strchr(argument, (int)part) != NULL;
}

static bool is_daemons_socket(int fd, const char *path) {
    struct sockaddr_un address = {0};
    socklen_t size = sizeof address;
    return getpeername(fd, (struct sockaddr *)&address, &size) == 0 && address.sun_family == AF_UNIX &&
           strcmp(address.sun_path, path) == 0;
}

static bool is_device_file(int fd) {
    char path[64], target[256];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0)
        return false;
    target[length] = '\0';
    return strstr(target, "gpupool-sim-gpu-") != NULL || strncmp(target, "/dev/nvidia", 11) == 0;
}

/* The child lives until it is killed. Its parent's links to the simulated driver it closes: they would keep
 * its pid in the list, which is not what a test with a child is about that has other things. */
static pid_t fork_child(const char *argument, const char *socket) {
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    if (asks(argument, PART_CHILD_EXEC)) {
        execl("/bin/sleep", "sleep", "1000", (char *)NULL);
        _exit(1);
    }
    for (int fd = 3; fd < 256; fd++) {
        bool keep = asks(argument, PART_CHILD) ||
                    (asks(argument, PART_CHILD_SOCKET) && is_daemons_socket(fd, socket)) ||
                    (asks(argument, PART_CHILD_DEVICE) && is_device_file(fd));
        if (!keep || fd == 3)
            close(fd);
    }
    for (;;)
        pause();
}

struct told {
    int32_t result;
    pid_t child;
};

static int open_and_take(const char *argument, struct gpupool_client **ret_client) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_buffer buffer;
    uint32_t pool;

    options.flags = GPUPOOL_OPEN_NO_CACHE | (asks(argument, PART_NO_GPU) ? GPUPOOL_OPEN_NO_CUDA : 0);
    int r = gpupool_open(&options, ret_client);
    if (r == 0 && !asks(argument, PART_HOST_ONLY) && !asks(argument, PART_NO_GPU)) {
        r = gpupool_device_pool(*ret_client, 0, &pool);
        if (r == 0)
            r = gpupool_acquire(*ret_client, pool, asks(argument, PART_TWICE) ? MIB : SIZE_BYTES, NULL,
                                GPUPOOL_FOREVER, 0, &buffer);
        if (r == 0)
            r = puppet_write_pattern(*ret_client, &buffer, 7, NULL);
    }
    if (r == 0)
        r = gpupool_host_pool(*ret_client, -1, &pool);
    if (r == 0)
        r = gpupool_acquire(*ret_client, pool, asks(argument, PART_TWICE) ? MIB : SIZE_BYTES, NULL,
                            GPUPOOL_FOREVER, 0, &buffer);
    return r;
}

static int run_worker(int fd, const char *argument) {
    static const char children[] = {PART_CHILD, PART_CHILD_SOCKET, PART_CHILD_DEVICE, PART_CHILD_EXEC, '\0'};
    struct gpupool_client *client, *second;
    struct told told = {0};
    char order;

    if (asks(argument, PART_KERNEL))
        setenv("GPUPOOL_SIM_LINGER_MS", KERNEL_MS, 1);
    if (asks(argument, PART_ENDLESS))
        setenv("GPUPOOL_SIM_LINGER_MS", GHOST_LINGERS, 1);
    if (asks(argument, PART_MPS))
        setenv("GPUPOOL_SIM_MPS", "1", 1);
    told.result = open_and_take(argument, &client);
    if (told.result == 0 && asks(argument, PART_TWICE))
        told.result = open_and_take(argument, &second);
    if (told.result == 0 && strpbrk(argument, children) != NULL)
        told.child = fork_child(argument, gpupool_socket_path(client));
    if (send(fd, &told, sizeof told, 0) != (ssize_t)sizeof told || recv(fd, &order, 1, 0) != 1)
        _exit(1);
    switch (order) {
    case 'x': /* without a farewell */
        _exit(0);
    case 'a': { /* with a core dump */
        struct rlimit limit;
        getrlimit(RLIMIT_CORE, &limit);
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_CORE, &limit);
        signal(SIGSEGV, SIG_DFL);
        if (chdir("/tmp") == 0)
            raise(SIGSEGV);
        break;
    }
    case 'e': /* becomes another program */
        execl("/bin/sleep", "sleep", "1000", (char *)NULL);
        break;
    case 'f': /* a farewell */
        gpupool_close(client);
        break;
    default:
        break;
    }
    _exit(2);
}

static struct told start_worker(struct puppet *worker, struct test_daemon *daemon, const char *argument) {
    struct told told = {.result = -1};
    puppet_start_role(worker, daemon, "worker", argument);
    if (recv(worker->fd, &told, sizeof told, 0) != (ssize_t)sizeof told || told.result != 0)
        fail_msg("the worker is not ready: %d", told.result);
    return told;
}

static void order(struct puppet *worker, char what) {
    assert_int_equal(send(worker->fd, &what, 1, 0), 1);
}

/* --- what the daemon says --- */

/* A text member of the first session of a pid that is in quarantine; "" where there is none. */
static const char *quarantine_text(struct test_daemon *daemon, pid_t pid, const char *member) {
    static char text[512];
    cJSON *reply = daemon_ask(daemon, "{\"command\":\"quarantine\"}"), *session;

    text[0] = '\0';
    cJSON_ArrayForEach(session, cJSON_GetObjectItemCaseSensitive(reply, "sessions")) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(session, member);
        if (cJSON_GetObjectItemCaseSensitive(session, "pid")->valueint == pid && cJSON_IsString(item) &&
            text[0] == '\0')
            snprintf(text, sizeof text, "%s", item->valuestring);
    }
    cJSON_Delete(reply);
    return text;
}

static bool says(struct test_daemon *daemon, pid_t pid, const char *reason) {
    return strstr(quarantine_text(daemon, pid, "quarantine_reason"), reason) != NULL;
}

static uint64_t quarantine_id(struct test_daemon *daemon, pid_t pid) {
    cJSON *reply = daemon_ask(daemon, "{\"command\":\"quarantine\"}"), *session;
    uint64_t id = 0;

    cJSON_ArrayForEach(
        session,
        cJSON_GetObjectItemCaseSensitive(
            reply, "sessions")) if (cJSON_GetObjectItemCaseSensitive(session, "pid")->valueint == pid) id =
        (uint64_t)cJSON_GetObjectItemCaseSensitive(session, "id")->valuedouble;
    cJSON_Delete(reply);
    return id;
}

static void nothing_is_left(struct test_daemon *daemon) {
    /* in this order: a session is active, then in quarantine */
    WAIT_UNTIL(daemon_sessions(daemon, "active") == 0 && daemon_sessions(daemon, "quarantined") == 0);
    assert_int_equal(daemon_sum(daemon, "quarantined_bytes"), 0);
    assert_int_equal(daemon_sum(daemon, "leased_bytes"), 0);
    assert_int_equal(daemon_sum(daemon, "leases"), 0);
}

/* Other clients are served from what is left, for as long as some round trips take. */
static void others_go_on(struct test_daemon *daemon) {
    struct puppet other;
    puppet_connect(&other, daemon);
    PUPPET_MUST(&other, puppet_call(&other, &(struct puppet_command){.verb = PUPPET_ROUNDS,
                                                                     .kind = GPUPOOL_POOL_HOST,
                                                                     .size = 64 * KIB,
                                                                     .seed = 5,
                                                                     .number = 100}));
    puppet_quit(&other);
}

static bool runs_program(pid_t pid, const char *name) {
    char path[64], text[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    return file != NULL && fgets(text, sizeof text, file) != NULL && strncmp(text, name, strlen(name)) == 0;
}

/* --- ends that bring the memory back at once, or as soon as the list says so --- */

static void every_end_of_a_process_brings_its_memory_back(void **state) {
    static const char ends[] = {'x', 'a', 'f', 'K'};
    static const char *const parts[] = {"", "k", "h", "n", "t"};
    (void)state;

    for (unsigned end = 0; end < sizeof ends; end++)
        for (unsigned part = 0; part < sizeof parts / sizeof *parts; part++) {
            struct puppet worker;
            if (!test_has_device() && parts[part][0] != 'h' && parts[part][0] != 'n')
                continue;
            start_worker(&worker, &daemon_, parts[part]);
            if (ends[end] == 'K') {
                puppet_kill(&worker);
            } else {
                order(&worker, ends[end]);
                test_wait(worker.pid);
                close(worker.fd);
            }
            nothing_is_left(&daemon_);
        }
}

static void a_kernel_in_flight_holds_device_and_host_memory(void **state) {
    struct puppet worker;
    (void)state;

    if (!test_is_simulated())
        skip();
    start_worker(&worker, &daemon_, "l");
    pid_t dead = worker.pid, ghost = 0;
    WAIT_UNTIL(daemon_has_session(&daemon_, dead, "active"));
    WAIT_UNTIL((ghost = find_ghost(dead)) > 0);
    puppet_kill(&worker);
    WAIT_UNTIL(says(&daemon_, dead, "is still listed by"));
    others_go_on(&daemon_);
    assert_int_equal(daemon_sum(&daemon_, "quarantined_bytes"), 2 * SIZE_BYTES);
    assert_int_equal(kill(ghost, SIGKILL), 0);
    nothing_is_left(&daemon_);
}

/* --- ends that only look like one --- */

static void a_stopped_process_keeps_its_memory(void **state) {
    struct puppet worker;
    (void)state;

    start_worker(&worker, &daemon_, test_has_device() ? "" : "h");
    kill(worker.pid, SIGSTOP);
    others_go_on(&daemon_);
    assert_true(daemon_has_session(&daemon_, worker.pid, "active"));
    assert_true(daemon_sum(&daemon_, "leased_bytes") >= SIZE_BYTES);
    puppet_kill(&worker);
    nothing_is_left(&daemon_);
}

static void a_process_that_became_another_program_has_not_ended(void **state) {
    struct puppet worker;
    (void)state;

    start_worker(&worker, &daemon_, test_has_device() ? "" : "h");
    order(&worker, 'e');
    WAIT_UNTIL(says(&daemon_, worker.pid, "has not ended"));
    others_go_on(&daemon_);
    assert_true(daemon_sum(&daemon_, "quarantined_bytes") >= SIZE_BYTES);
    puppet_kill(&worker);
    nothing_is_left(&daemon_);
}

static void a_second_connection_of_the_process_outlives_the_first(void **state) {
    struct puppet worker;
    (void)state;

    puppet_start(&worker, &daemon_);
    for (unsigned client = 0; client < 2; client++) {
        worker.client = client;
        PUPPET_MUST(&worker, puppet_open(&worker, daemon_.socket));
        PUPPET_MUST(&worker, puppet_acquire(&worker, client, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&worker, puppet_fill(&worker, client, 11 + client));
    }
    worker.client = 0;
    PUPPET_MUST(&worker, puppet_do(&worker, PUPPET_CUT, 0));
    WAIT_UNTIL(says(&daemon_, worker.pid, "has not ended"));
    worker.client = 1;
    others_go_on(&daemon_);
    PUPPET_MUST(&worker, puppet_check(&worker, 1, 12));
    assert_true(daemon_has_session(&daemon_, worker.pid, "active"));
    puppet_kill(&worker);
    nothing_is_left(&daemon_);
}

/* --- children --- */

/* Whether the daemon would go by a rule at the end of the only session. */
static bool has_rule(struct test_daemon *daemon, const char *wanted, bool under_mps) {
    cJSON *reply = daemon_ask(daemon, "{\"command\":\"sessions\"}");
    const cJSON *session = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(reply, "sessions"), 0);
    const char *rule = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(session, "end_rule"));
    bool has = rule != NULL && strcmp(rule, wanted) == 0 &&
               cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(session, "under_mps")) == under_mps;
    cJSON_Delete(reply);
    return has;
}

static void a_child_without_the_driver_holds_nothing_that_the_list_has_dropped(void **state) {
    struct puppet worker;
    (void)state;

    if (!test_is_simulated())
        skip();
    struct told told = start_worker(&worker, &daemon_, "s");
    WAIT_UNTIL(daemon_has_session(&daemon_, worker.pid, "active"));
    WAIT_UNTIL(has_rule(&daemon_, "listing", false));
    puppet_kill(&worker);
    nothing_is_left(&daemon_);
    assert_false(test_has_ended(told.child));
    kill(told.child, SIGKILL);
}

static void a_child_of_a_client_without_a_gpu_holds_nothing(void **state) {
    struct puppet worker;
    (void)state;

    struct told told = start_worker(&worker, &daemon_, "nc");
    puppet_kill(&worker);
    nothing_is_left(&daemon_);
    assert_false(test_has_ended(told.child));
    kill(told.child, SIGKILL);
}

/* --- clients of MPS, whose work another process does --- */

static void what_a_client_of_mps_leaves_waits_for_its_child_with_the_driver(void **state) {
    struct puppet worker;
    (void)state;

    if (!test_is_simulated())
        skip();
    struct told told = start_worker(&worker, &daemon_, "md");
    pid_t dead = worker.pid;
    WAIT_UNTIL(has_rule(&daemon_, "descriptors", true));
    puppet_kill(&worker);
    WAIT_UNTIL(says(&daemon_, dead, "holds /memfd:gpupool-sim-gpu")); /* though the list has dropped it */
    others_go_on(&daemon_);
    assert_int_equal(daemon_sum(&daemon_, "quarantined_bytes"), 2 * SIZE_BYTES);
    kill(told.child, SIGKILL);
    nothing_is_left(&daemon_);
}

static void a_client_of_mps_that_was_alone_leaves_nothing(void **state) {
    struct puppet worker;
    (void)state;

    if (!test_is_simulated())
        skip();
    start_worker(&worker, &daemon_, "m");
    WAIT_UNTIL(has_rule(&daemon_, "descriptors", true));
    puppet_kill(&worker);
    nothing_is_left(&daemon_);
}

/* --- where the list cannot tell --- */

static struct test_daemon blind;

static int start_blind_daemon(void **state) {
    static const char *const environment[] = {"GPUPOOL_SIM_FAIL=processes:1+:801", NULL};
    static char text[TEST_CONFIG_SIZE];
    (void)state;
    daemon_start(&blind, &(struct daemon_options){.config = test_config(text, POOL_MIB, POOL_MIB),
                                                  .gpu = "sim",
                                                  .environment = environment});
    return 0;
}

static int stop_blind_daemon(void **state) {
    (void)state;
    daemon_stop(&blind);
    return 0;
}

static void without_a_list_the_end_of_all_holders_is_the_end(void **state) {
    struct puppet worker;
    (void)state;

    start_worker(&worker, &blind, "");
    puppet_kill(&worker);
    nothing_is_left(&blind);
    start_worker(&worker, &blind, "h");
    order(&worker, 'x');
    puppet_kill(&worker);
    nothing_is_left(&blind);
}

static void without_a_list_a_child_with_the_socket_holds_the_memory(void **state) {
    struct puppet worker;
    (void)state;

    struct told told = start_worker(&worker, &blind, "s");
    pid_t dead = worker.pid;
    puppet_kill(&worker);
    WAIT_UNTIL(says(&blind, dead, "keeps its socket open"));
    assert_string_equal(quarantine_text(&blind, dead, "end_rule"), "descriptors");
    others_go_on(&blind);
    assert_int_equal(daemon_sum(&blind, "quarantined_bytes"), 2 * SIZE_BYTES);
    kill(told.child, SIGKILL);
    nothing_is_left(&blind);
}

static void without_a_list_a_child_with_the_driver_holds_the_memory(void **state) {
    struct puppet worker;
    char reason[128];
    (void)state;

    struct told told = start_worker(&worker, &blind, "d");
    pid_t dead = worker.pid;
    puppet_kill(&worker);
    snprintf(reason, sizeof reason,
             "pid %d (test_death), which may be a child of pid %d, holds /memfd:gpupool-sim-gpu",
             (int)told.child, (int)dead);
    WAIT_UNTIL(says(&blind, dead, reason));
    others_go_on(&blind);
    assert_int_equal(daemon_sum(&blind, "quarantined_bytes"), 2 * SIZE_BYTES);
    kill(told.child, SIGKILL);
    nothing_is_left(&blind);
}

static void without_a_list_a_child_that_became_another_program_holds_nothing(void **state) {
    struct puppet worker;
    (void)state;

    struct told told = start_worker(&worker, &blind, "e");
    WAIT_UNTIL(runs_program(told.child, "sleep"));
    puppet_kill(&worker);
    nothing_is_left(&blind);
    assert_false(test_has_ended(told.child));
    kill(told.child, SIGKILL);
}

static void living_clients_are_beyond_suspicion(void **state) {
    struct puppet worker, other;
    (void)state;

    start_worker(&worker, &blind, "h");
    puppet_connect(&other, &blind); /* younger, and it has the driver's files open */
    PUPPET_MUST(&other, puppet_acquire(&other, 0, GPUPOOL_POOL_DEVICE, MIB, GPUPOOL_FOREVER, 0));
    puppet_kill(&worker);
    WAIT_UNTIL(daemon_sessions(&blind, "quarantined") == 0 && daemon_sum(&blind, "quarantined_bytes") == 0);
    assert_int_equal(daemon_sessions(&blind, "active"), 1);
    PUPPET_MUST(&other, puppet_release(&other, 0));
    puppet_quit(&other);
    nothing_is_left(&blind);
}

static void root_may_have_it_back_by_force(void **state) {
    struct puppet worker, next;
    char request[96];
    (void)state;

    if (geteuid() != 0)
        skip();
    struct told told = start_worker(&worker, &blind, "d");
    pid_t dead = worker.pid;
    puppet_kill(&worker);
    WAIT_UNTIL(says(&blind, dead, "holds /memfd:"));
    puppet_connect(&next, &blind);
    puppet_send_acquire(&next, 0, GPUPOOL_POOL_DEVICE, SIZE_BYTES, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_pool(&blind, "device", 0, "waiters") == 1);
    snprintf(request, sizeof request, "{\"command\":\"quarantine-release\",\"session\":%llu}",
             (unsigned long long)quarantine_id(&blind, dead));
    cJSON *reply = daemon_ask(&blind, request);
    const cJSON *released = cJSON_GetObjectItemCaseSensitive(reply, "released_bytes");
    assert_non_null(released);
    assert_true(released->valuedouble == 2.0 * SIZE_BYTES);
    cJSON_Delete(reply);
    PUPPET_MUST(&next, puppet_receive(&next)); /* who waited has it */
    PUPPET_MUST(&next, puppet_release(&next, 0));
    puppet_quit(&next);
    nothing_is_left(&blind);
    assert_true(daemon_logged(&blind, "from quarantine by force"));
    kill(told.child, SIGKILL);
}

int main(int argc, char **argv) {
    test_needs_memfds();
    static const struct puppet_role roles[] = {{"worker", run_worker}, {NULL, NULL}};
    const struct CMUnitTest ends[] = {
        cmocka_unit_test(every_end_of_a_process_brings_its_memory_back),
        cmocka_unit_test(a_kernel_in_flight_holds_device_and_host_memory),
        cmocka_unit_test(a_stopped_process_keeps_its_memory),
        cmocka_unit_test(a_process_that_became_another_program_has_not_ended),
        cmocka_unit_test(a_second_connection_of_the_process_outlives_the_first),
        cmocka_unit_test(a_child_without_the_driver_holds_nothing_that_the_list_has_dropped),
        cmocka_unit_test(a_child_of_a_client_without_a_gpu_holds_nothing),
        cmocka_unit_test(what_a_client_of_mps_leaves_waits_for_its_child_with_the_driver),
        cmocka_unit_test(a_client_of_mps_that_was_alone_leaves_nothing),
    };
    const struct CMUnitTest without_list[] = {
        cmocka_unit_test(without_a_list_the_end_of_all_holders_is_the_end),
        cmocka_unit_test(without_a_list_a_child_with_the_socket_holds_the_memory),
        cmocka_unit_test(without_a_list_a_child_with_the_driver_holds_the_memory),
        cmocka_unit_test(without_a_list_a_child_that_became_another_program_holds_nothing),
        cmocka_unit_test(living_clients_are_beyond_suspicion),
        cmocka_unit_test(root_may_have_it_back_by_force),
    };
    int status = puppet_main(argc, argv, roles);
    if (status >= 0)
        return status;
    int failed = cmocka_run_group_tests(ends, start_daemon, stop_daemon);
    if (test_is_simulated())
        failed += cmocka_run_group_tests(without_list, start_blind_daemon, stop_blind_daemon);
    return test_finish(failed);
}
