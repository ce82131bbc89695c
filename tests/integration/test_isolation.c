/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tenant rule, from outside: with the daemon under a user of its own and two clients under two others,
 * the one takes most of a pool, fills it, and says farewell without closing its mapping, which the protocol
 * cannot know. The other takes until it is given memory that has to be of the same bytes of the pool, and has
 * to find zeros in memory of another make (another memfd, another IPC handle), in which the first one's
 * further writes do not appear, nor the second one's in the first one's.
 *
 * With GPUPOOL_TEST_MPS, the pipe directory of a running MPS, the daemon's environment leads there; the
 * clients stay out.
 *
 * Exit status 3 says that one user saw another's memory: with a daemon that is built to hand memory on
 * without making it anew, or without zeroing it, that is what has to be found. 77: this cannot be tested here
 * (it takes root to be three users, and a place from where another user may run the daemon).
 */
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "gpu/gpu.h"
#include "tests/integration/puppet.h"
#include "tests/integration/wire_peer.h"

#define POOL_MIB   16u
#define MOST       (12 * MIB) /* two of these are more than the pool */
#define ALICE      65534u
#define BOB        65533u
#define SERVICE    65532u
#define EXIT_LEAK  3
#define EXIT_SKIP  77
#define ALICES     UINT64_C(0xa11ce)
#define ALICES_TOO UINT64_C(0xa11ce2)
#define BOBS       UINT64_C(0xb0b)

static char config[TEST_CONFIG_SIZE];
static struct test_daemon daemon_;
static bool leak_seen;

/* --- a client that keeps what it should not --- */

enum verb {
    VERB_TAKE = 1, /* at once, or not at all; maps it */
    VERB_WRITE,    /* a seed's pattern into all of it */
    VERB_CHECK,    /* whether the pattern is there; seed 0: zeros */
    VERB_LEAVE,    /* releases and says farewell; the mapping stays */
};

struct order {
    uint32_t verb;
    uint64_t seed;
};

struct report {
    uint32_t error;       /* TAKE: the daemon's answer, PROTO_E_… */
    uint32_t is_there;    /* CHECK */
    uint64_t segment;     /* TAKE */
    uint8_t identity[64]; /* TAKE: of the driver's allocation or of the memfd */
};

struct keeper {
    struct peer peer;
    const struct gpu *gpu; /* NULL: for host memory */
    struct proto_lease lease;
    char *memory; /* the lease's; mapped for ever */
};

static uint64_t word_of(uint64_t seed, uint64_t index) {
    return seed == 0 ? 0 : (seed + index) * UINT64_C(0x9e3779b97f4a7c15);
}

static void keeper_open(struct keeper *keeper, const char *socket_path, bool device) {
    struct test_daemon daemon;
    struct proto_message message = {0};

    memset(&daemon, 0, sizeof daemon);
    snprintf(daemon.socket, sizeof daemon.socket, "%s", socket_path);
    peer_open(&daemon, &keeper->peer, 0);
    if (!device)
        return;
    int r =
        test_is_simulated() ? gpu_sim(&(struct gpu_sim_options){0}, &keeper->gpu) : gpu_cuda(&keeper->gpu);
    assert_int_equal(r, 0);
    peer_ask(&keeper->peer, PROTO_LIST_POOLS, &message, PROTO_POOLS);
    keeper->peer.pool = 0;
    for (uint32_t i = 0; i < message.pools.count && keeper->peer.pool == 0; i++)
        if (message.pools.pools[i].kind == PROTO_POOL_DEVICE && message.pools.pools[i].device == 0)
            keeper->peer.pool = message.pools.pools[i].id;
    assert_int_not_equal(keeper->peer.pool, 0);
}

static void keeper_take(struct keeper *keeper, struct report *report) {
    struct proto_message message;
    _cleanup_(close_fdp) int fd = -1;
    void *segment = NULL;

    peer_send_acquire(&keeper->peer, MOST, 0);
    peer_receive(&keeper->peer, &message, &fd);
    if (message.header.operation == PROTO_ERROR) {
        report->error = message.failure.error;
        return;
    }
    assert_int_equal(message.header.operation, PROTO_LEASE);
    keeper->lease = message.lease;
    report->segment = message.lease.segment;
    if (keeper->gpu == NULL) {
        struct stat status;
        assert_int_equal(fstat(fd, &status), 0);
        memcpy(report->identity, &status.st_dev, sizeof status.st_dev);
        memcpy(report->identity + 8, &status.st_ino, sizeof status.st_ino);
        segment = mmap(NULL, message.lease.description.size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_true(segment != MAP_FAILED);
        struct proto_message opened = {.opened.segment = message.lease.segment};
        peer_send(&keeper->peer, PROTO_OPENED, &opened);
    } else if (fd >= 0) {
        uint64_t handle, size_bytes = message.lease.description.size_bytes;
        struct stat status;
        assert_int_equal(fstat(fd, &status), 0);
        memcpy(report->identity, &status.st_ino, sizeof status.st_ino);
        if (!test_is_simulated()) { /* all of a driver's descriptors are of one file */
            pid_t own = getpid();
            memcpy(report->identity + sizeof status.st_ino, &own, sizeof own);
        }
        assert_int_equal(keeper->gpu->vmm_import(0, fd, &handle), 0);
        assert_int_equal(keeper->gpu->address_reserve(0, size_bytes, &segment), 0);
        assert_int_equal(keeper->gpu->vmm_map(0, segment, size_bytes, handle), 0);
        assert_int_equal(keeper->gpu->vmm_set_access(0, segment, size_bytes, GPU_ACCESS_READ_WRITE), 0);
        struct proto_message opened = {.opened.segment = message.lease.segment};
        peer_send(&keeper->peer, PROTO_OPENED, &opened);
    } else {
        struct gpu_ipc_handle handle;
        memcpy(handle.bytes, message.lease.description.handle, sizeof handle.bytes);
        memcpy(report->identity, handle.bytes, sizeof report->identity);
        assert_int_equal(keeper->gpu->ipc_open(0, &handle, &segment), 0);
    }
    keeper->memory = (char *)segment + message.lease.offset_bytes;
}

static void keeper_write(struct keeper *keeper, uint64_t seed) {
    _cleanup_(freep) uint64_t *words = malloc(MOST);
    assert_non_null(words);
    for (uint64_t i = 0; i < MOST / sizeof *words; i++)
        words[i] = word_of(seed, i);
    if (keeper->gpu == NULL) {
        memcpy(keeper->memory, words, MOST);
        return;
    }
    assert_int_equal(keeper->gpu->memory_copy(0, keeper->memory, words, MOST, NULL), 0);
    assert_int_equal(keeper->gpu->stream_synchronize(0, NULL), 0);
}

static bool keeper_check(struct keeper *keeper, uint64_t seed) {
    _cleanup_(freep) uint64_t *words = malloc(MOST);
    assert_non_null(words);
    if (keeper->gpu == NULL) {
        memcpy(words, keeper->memory, MOST);
    } else {
        assert_int_equal(keeper->gpu->memory_copy(0, words, keeper->memory, MOST, NULL), 0);
        assert_int_equal(keeper->gpu->stream_synchronize(0, NULL), 0);
    }
    for (uint64_t i = 0; i < MOST / sizeof *words; i++)
        if (words[i] != word_of(seed, i))
            return false;
    return true;
}

/* argument: "UID KIND SOCKET". */
static int play_keeper(int fd, const char *argument) {
    static struct keeper keeper;
    char kind[16], path[TEST_PATH_SIZE];
    struct order order;
    unsigned uid;

    if (sscanf(argument, "%u %15s %107s", &uid, kind, path) != 3)
        return 90;
    if (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0)
        return 91;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* changing the user undid it */
    keeper_open(&keeper, path, strcmp(kind, "device") == 0);
    while (recv(fd, &order, sizeof order, 0) == (ssize_t)sizeof order) {
        struct report report = {0};
        switch ((enum verb)order.verb) {
        case VERB_TAKE:
            keeper_take(&keeper, &report);
            break;
        case VERB_WRITE:
            keeper_write(&keeper, order.seed);
            break;
        case VERB_CHECK:
            report.is_there = keeper_check(&keeper, order.seed);
            break;
        case VERB_LEAVE:
            assert_int_equal(peer_release(&keeper.peer, &keeper.lease), 0);
            peer_close(&keeper.peer);
            break;
        }
        if (send(fd, &report, sizeof report, MSG_NOSIGNAL) != (ssize_t)sizeof report)
            return 92;
    }
    return 0;
}

/* --- the test's side --- */

static void keeper_start(struct puppet *process, uid_t uid, const char *kind, const char *socket_path) {
    static char argument[TEST_PATH_SIZE + 32];
    snprintf(argument, sizeof argument, "%u %s %s", (unsigned)uid, kind, socket_path);
    puppet_start_role(process, &daemon_, "keeper", argument);
}

static struct report tell(struct puppet *process, enum verb verb, uint64_t seed) {
    const struct order order = {.verb = verb, .seed = seed};
    struct timeval timeout = {.tv_sec = (time_t)(TEST_WAIT_NS / NS_PER_S)};
    struct report report = {0};

    setsockopt(process->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    if (send(process->fd, &order, sizeof order, MSG_NOSIGNAL) != (ssize_t)sizeof order ||
        recv(process->fd, &report, sizeof report, 0) != (ssize_t)sizeof report)
        fail_msg("client %d is gone, or does not answer", (int)process->pid);
    return report;
}

static void keeper_stop(struct puppet *process) {
    process->fd = close_fd(process->fd);
    assert_int_equal(test_wait(process->pid), 0);
}

/* A breach of isolation is remembered, so that the exit status tells it from other failures. */
static void must_not_leak(bool holds, const char *what) {
    if (holds)
        return;
    leak_seen = true;
    fail_msg("%s", what);
}

static struct report take_in_the_end(struct puppet *process) {
    struct report report;
    WAIT_UNTIL((report = tell(process, VERB_TAKE, 0)).error == 0);
    return report;
}

/* The two differ in their uid, or in their socket. */
static void anothers_memory_is_never_seen(const char *kind, uid_t uid_of_bob, const char *socket_of_bob) {
    struct puppet alice, bob;

    keeper_start(&alice, ALICE, kind, daemon_.socket);
    keeper_start(&bob, uid_of_bob, kind, socket_of_bob);
    struct report alices = take_in_the_end(&alice);
    tell(&alice, VERB_WRITE, ALICES);
    assert_int_equal(tell(&bob, VERB_TAKE, 0).error, PROTO_E_EXHAUSTED); /* there are not two of these */
    tell(&alice, VERB_LEAVE, 0);
    struct report bobs = take_in_the_end(&bob);
    assert_true(daemon_pool(&daemon_, kind, 0, "limit_bytes") < 2 * MOST);

    must_not_leak(tell(&bob, VERB_CHECK, 0).is_there, "what another user was given is not zero");
    must_not_leak(bobs.segment != alices.segment, "two users were given one segment");
    must_not_leak(memcmp(bobs.identity, alices.identity, sizeof bobs.identity) != 0,
                  "two users were given one allocation");
    tell(&alice, VERB_WRITE, ALICES_TOO); /* into what she kept */
    must_not_leak(tell(&bob, VERB_CHECK, 0).is_there, "a user can write into another's memory");
    tell(&bob, VERB_WRITE, BOBS);
    must_not_leak(tell(&alice, VERB_CHECK, ALICES_TOO).is_there, "a user can read another's memory");
    tell(&bob, VERB_LEAVE, 0);
    keeper_stop(&alice);
    keeper_stop(&bob);
    WAIT_UNTIL(daemon_sum(&daemon_, "leases") == 0);
}

static void host_memory_of_another_user_is_never_seen(void **state) {
    (void)state;
    for (unsigned round = 0; round < 3; round++) /* and what was the other's in the last round */
        anothers_memory_is_never_seen("host", BOB, daemon_.socket);
}

static void device_memory_of_another_user_is_never_seen(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    for (unsigned round = 0; round < 3; round++)
        anothers_memory_is_never_seen("device", BOB, daemon_.socket);
}

/* Adds a scope, to which Alice's uid alone has access. Returns its socket's path, which lives in path. */
static const char *add_scope(const char *name, char path[TEST_PATH_SIZE]) {
    char request[160];

    snprintf(request, sizeof request, "{\"command\":\"scope-add\",\"scope\":\"%s\",\"uids\":[%u]}", name,
             ALICE);
    cJSON *scope = daemon_ask(&daemon_, request);
    snprintf(path, TEST_PATH_SIZE, "%s",
             cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(scope, "socket")));
    cJSON_Delete(scope);
    return path;
}

static int count_scopes(void) {
    cJSON *reply = daemon_ask(&daemon_, "{\"command\":\"scopes\"}");
    int count = cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(reply, "scopes"));
    cJSON_Delete(reply);
    return count;
}

/* Drops the only scope, and waits until its last replies are read. */
static void drop_scope(const char *name) {
    char request[96];

    snprintf(request, sizeof request, "{\"command\":\"scope-drop\",\"scope\":\"%s\"}", name);
    cJSON_Delete(daemon_ask(&daemon_, request));
    WAIT_UNTIL(count_scopes() == 0);
}

/* One uid through two sockets is two tenants. */
static void memory_of_another_scope_is_never_seen(void **state) {
    char path[TEST_PATH_SIZE];
    (void)state;

    if (leak_seen)
        skip();
    add_scope("bob", path);
    for (unsigned round = 0; round < 3; round++) {
        anothers_memory_is_never_seen("host", ALICE, path);
        if (test_has_device())
            anothers_memory_is_never_seen("device", ALICE, path);
    }
    drop_scope("bob");
}

/* A scope that was dropped leaves no memory behind, and one of the same name gets none of it. */
static void memory_of_a_dropped_scope_is_never_seen(void **state) {
    struct puppet first, second;
    char path[TEST_PATH_SIZE];
    (void)state;

    if (leak_seen)
        skip();
    keeper_start(&first, ALICE, "host", add_scope("again", path));
    struct report firsts = take_in_the_end(&first);
    tell(&first, VERB_WRITE, ALICES);
    tell(&first, VERB_LEAVE, 0);
    WAIT_UNTIL(daemon_sum(&daemon_, "leases") == 0 && daemon_sessions(&daemon_, "active") == 0);
    drop_scope("again");
    keeper_start(&second, ALICE, "host", add_scope("again", path));
    struct report seconds = take_in_the_end(&second);
    must_not_leak(tell(&second, VERB_CHECK, 0).is_there, "a new scope was given what is not zero");
    must_not_leak(memcmp(firsts.identity, seconds.identity, sizeof firsts.identity) != 0,
                  "a new scope was given the allocation of one before");
    tell(&second, VERB_LEAVE, 0);
    keeper_stop(&first);
    keeper_stop(&second);
    drop_scope("again");
}

static void the_daemon_runs_under_its_own_user(void **state) {
    struct stat status;
    char path[64];
    (void)state;

    snprintf(path, sizeof path, "/proc/%d", (int)daemon_.pid);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_uid, SERVICE);
}

static int start_daemon(void **state) {
    static char mps[TEST_PATH_SIZE + 32];
    static const char *const environment[] = {mps, NULL};
    const char *pipes = getenv("GPUPOOL_TEST_MPS");
    (void)state;

    if (pipes != NULL)
        snprintf(mps, sizeof mps, "CUDA_MPS_PIPE_DIRECTORY=%s", pipes);
    daemon_start(&daemon_, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB),
                                                    .for_all_users = true,
                                                    .uid = SERVICE,
                                                    .environment = pipes != NULL ? environment : NULL});
    return 0;
}

static int stop_daemon(void **state) {
    (void)state;
    daemon_stop(&daemon_);
    return 0;
}

/* Whether the service's user can run the daemon at all: it may lie where only root can go. */
static bool daemon_can_be_run(void) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        if (setgroups(0, NULL) < 0 || setgid(SERVICE) < 0 || setuid(SERVICE) < 0)
            _exit(1);
        execl(test_daemon_path(), test_daemon_path(), "--version", (char *)NULL);
        _exit(1);
    }
    return pid > 0 && test_reap(pid, &status) == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {{"keeper", play_keeper}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_daemon_runs_under_its_own_user),
        cmocka_unit_test(host_memory_of_another_user_is_never_seen),
        cmocka_unit_test(device_memory_of_another_user_is_never_seen),
        cmocka_unit_test(memory_of_another_scope_is_never_seen),
        cmocka_unit_test(memory_of_a_dropped_scope_is_never_seen),
    };
    int status = puppet_main(argc, argv, roles);
    if (status >= 0)
        return status;
    if (geteuid() != 0 || !daemon_can_be_run()) {
        fprintf(stderr, "skipped: this takes root, and a daemon that user %u may run\n", SERVICE);
        return EXIT_SKIP;
    }
    status = test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
    return leak_seen ? EXIT_LEAK : status;
}
