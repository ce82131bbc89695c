/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon that has no list of processes, and may not look into those of its clients: which of them hold a
 * dead client's memory. The test has a PID namespace of its own, so that no other process of the machine is
 * suspected. Takes root, and leave to make namespaces.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/integration/puppet.h"
#include "tests/raw_client.h"

#define POOL_MIB   32u
#define SIZE_BYTES (20 * MIB)
#define SERVICE    990u

static char config[TEST_CONFIG_SIZE];
static struct test_daemon daemon_;

static int start_daemon(void **state) {
    static const char *const environment[] = {"GPUPOOL_SIM_FAIL=processes:1+:801", NULL};
    (void)state;
    daemon_start(&daemon_, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB),
                                                    .gpu = "sim",
                                                    .environment = environment,
                                                    .for_all_users = true,
                                                    .uid = SERVICE});
    return 0;
}

static int stop_daemon(void **state) {
    (void)state;
    daemon_stop(&daemon_);
    return 0;
}

static bool nothing_is_held(void) {
    return daemon_sessions(&daemon_, "quarantined") == 0 && daemon_sum(&daemon_, "quarantined_bytes") == 0;
}

/* A process that starts short programs, one after the other, for as long as it lives. */
static pid_t start_loop(void) {
    pid_t loop = fork();
    if (loop == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;) {
            pid_t pid = fork();
            if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                execl("/bin/sleep", "sleep", "0.4", (char *)NULL);
                _exit(1);
            }
            waitpid(pid, NULL, 0);
        }
    }
    assert_true(loop > 0);
    return loop;
}

static void end(pid_t pid) {
    assert_int_equal(kill(pid, SIGKILL), 0);
    TEST_REAP(pid, NULL);
}

/* The unit in which /proc says when a process started. */
static uint64_t ticks_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_BOOTTIME, &time);
    return (uint64_t)((double)time.tv_sec * (double)sysconf(_SC_CLK_TCK) +
                      (double)time.tv_nsec * (double)sysconf(_SC_CLK_TCK) / NS_PER_S);
}

static void what_an_older_process_starts_holds_nothing(void **state) {
    struct puppet worker;
    (void)state;

    pid_t loop = start_loop();
    uint64_t started_ticks = ticks_now();
    WAIT_UNTIL(ticks_now() > started_ticks + 1); /* what started in the same tick may be younger */
    puppet_connect(&worker, &daemon_);
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_DEVICE, SIZE_BYTES, GPUPOOL_FOREVER, 0));
    puppet_kill(&worker);
    WAIT_UNTIL(nothing_is_held());
    assert_false(test_has_ended(loop));
    end(loop);
}

/* Asks for a slot on the board, says so and waits for its end. argument: the daemon's socket. */
static int run_board(int fd, const char *argument) {
    struct proto_message hello = {.hello = RAW_CLIENT_HELLO}, ask = {0};
    uint8_t packet[PROTO_PACKET_MAX];
    int board = -1;

    int socket = raw_client_connect(argument, SOCK_SEQPACKET, TEST_WAIT_NS);
    size_t size = raw_client_encode(&hello, PROTO_HELLO, 1, packet);
    if (socket < 0 || send(socket, packet, size, 0) < 0 || raw_client_receive(socket, packet, 0, &board) <= 0)
        return 1;
    size = raw_client_encode(&ask, PROTO_ASK_BOARD, 2, packet);
    if (send(socket, packet, size, 0) < 0 || raw_client_receive(socket, packet, 0, &board) <= 0 || board < 0)
        return 1;
    if (send(fd, &board, sizeof board, 0) != sizeof board)
        return 1;
    for (;;)
        pause();
}

/* The daemon stands still meanwhile, so it learns of the end of the socket and of the process in one round.
 */
static void a_process_with_a_slot_on_the_board_and_no_memory_is_over_when_it_ends(void **state) {
    struct puppet worker;
    int board;
    (void)state;

    puppet_start_role(&worker, &daemon_, "board", daemon_.socket);
    assert_int_equal(recv(worker.fd, &board, sizeof board, 0), sizeof board);
    assert_int_equal(kill(daemon_.pid, SIGSTOP), 0);
    puppet_kill(&worker);
    assert_int_equal(kill(daemon_.pid, SIGCONT), 0);
    WAIT_UNTIL(daemon_number(&daemon_, "sessions") == 0);
}

static bool is_unix_socket(int fd) {
    struct sockaddr_un address = {0};
    socklen_t size = sizeof address;
    return getsockname(fd, (struct sockaddr *)&address, &size) == 0 && address.sun_family == AF_UNIX;
}

/* Forks a chain whose middle ends, and then ends itself: the last of the chain stays, and has all that its
 * ancestors had. */
static int run_chain(int fd, const char *argument) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    uint32_t pool;
    pid_t last = 0;
    int ends[2];
    (void)argument;

    options.flags = GPUPOOL_OPEN_NO_CACHE;
    int r = gpupool_open(&options, &client);
    if (r == 0)
        r = gpupool_device_pool(client, 0, &pool);
    if (r == 0)
        r = gpupool_acquire(client, pool, SIZE_BYTES, NULL, GPUPOOL_FOREVER, 0, &buffer);
    if (r != 0 || pipe(ends) < 0)
        return 1;
    for (unsigned depth = 0; depth < 4; depth++) {
        pid_t pid = fork();
        if (pid > 0 && depth > 0)
            _exit(0); /* of the middle */
        if (pid > 0)
            break;
        last = getpid();
        if (depth == 3) {
            if (write(ends[1], &last, sizeof last) != sizeof last)
                _exit(1);
            for (int other = 3; other < 256; other++) /* the socket would hold the memory by itself */
                if (is_unix_socket(other))
                    close(other);
            for (;;)
                pause();
        }
    }
    if (read(ends[0], &last, sizeof last) != sizeof last || send(fd, &last, sizeof last, 0) != sizeof last)
        return 1;
    for (;;)
        pause();
}

static void the_end_of_a_chain_of_forks_whose_middle_is_over_holds_the_memory(void **state) {
    struct puppet worker;
    pid_t last = 0;
    (void)state;

    puppet_start_role(&worker, &daemon_, "chain", "");
    assert_int_equal(recv(worker.fd, &last, sizeof last, 0), sizeof last);
    puppet_kill(&worker);
    /* The daemon has looked at it more than once when it says so, and goes on to. */
    for (unsigned i = 0; i < 20; i++) {
        WAIT_UNTIL(daemon_sessions(&daemon_, "quarantined") == 1);
        test_pause();
    }
    assert_int_equal(daemon_sum(&daemon_, "quarantined_bytes"), SIZE_BYTES);
    assert_int_equal(kill(last, SIGKILL), 0);
    WAIT_UNTIL(nothing_is_held());
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {{"chain", run_chain}, {"board", run_board}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_an_older_process_starts_holds_nothing),
        cmocka_unit_test(a_process_with_a_slot_on_the_board_and_no_memory_is_over_when_it_ends),
        cmocka_unit_test(the_end_of_a_chain_of_forks_whose_middle_is_over_holds_the_memory),
    };
    int status = puppet_main(argc, argv, roles);
    if (status >= 0)
        return status;
    if (geteuid() != 0 || system("unshare --pid --fork --mount --mount-proc true 2>/dev/null") != 0) {
        print_message("needs root, and leave to make PID namespaces\n");
        return 77;
    }
    if (getpid() != 1) {
        execlp("unshare", "unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", argv[0],
               (char *)NULL);
        return 1;
    }
    return test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
