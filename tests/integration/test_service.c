/* SPDX-License-Identifier: Apache-2.0 */
/* The daemon's life: crashes and restarts, stops with clients connected, reloads, and what it tells a service
 * manager. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/hang.h"
#include "tests/integration/puppet.h"

#define POOL_MIB 32u

static char config[TEST_CONFIG_SIZE];

static void start_plain(struct test_daemon *daemon) {
    daemon_start(daemon, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB)});
}

/* One has a buffer of each kind, filled, and another waits for room that only that one could make. */
static void have_and_wait(const struct test_daemon *daemon, struct puppet *holder, struct puppet *waiting,
                          unsigned kind) {
    unsigned kinds[2], count = puppet_kinds(kinds);

    puppet_connect(holder, daemon);
    puppet_connect(waiting, daemon);
    for (unsigned i = 0; i < count; i++) {
        PUPPET_MUST(holder, puppet_acquire(holder, i, kinds[i], 20 * MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(holder, puppet_fill(holder, i, 50 + i));
    }
    puppet_send_acquire(waiting, 0, kind, 20 * MIB, GPUPOOL_FOREVER);
}

static void buffers_outlive_a_crashed_daemon_and_the_next_one_serves(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    struct gpupool_token token;
    struct puppet worker, waiting, later;
    struct test_daemon daemon;

    (void)state;
    start_plain(&daemon);
    have_and_wait(&daemon, &worker, &waiting, kinds[count - 1]);
    WAIT_UNTIL(daemon_sum(&daemon, "waiters") == 1);
    daemon_crash(&daemon);
    PUPPET_MUST_BE(&waiting, puppet_receive(&waiting), GPUPOOL_E_DISCONNECTED);
    puppet_quit(&waiting);
    for (unsigned i = 0; i < count; i++) {
        PUPPET_MUST(&worker, puppet_check(&worker, i, 50 + i));
        PUPPET_MUST(&worker, puppet_fill(&worker, i, 60 + i));
        PUPPET_MUST(&worker, puppet_check(&worker, i, 60 + i));
        PUPPET_MUST_BE(&worker, puppet_share(&worker, i, &token), GPUPOOL_E_DISCONNECTED);
        PUPPET_MUST(&worker, puppet_release(&worker, i));
        PUPPET_MUST_BE(&worker, puppet_acquire(&worker, 9, kinds[i], 1, GPUPOOL_NOW, 0),
                       GPUPOOL_E_DISCONNECTED);
    }

    /* the socket that it left behind is replaced */
    assert_int_equal(access(daemon.socket, F_OK), 0);
    daemon_restart(&daemon);
    puppet_connect(&later, &daemon);
    for (unsigned i = 0; i < count; i++) {
        PUPPET_MUST(&later, puppet_acquire(&later, i, kinds[i], MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&later, puppet_fill(&later, i, 70));
        PUPPET_MUST(&worker, puppet_check(&worker, i, 60 + i)); /* the old one's memory is still its own */
    }
    /* a process may leave the dead daemon and join the new one */
    PUPPET_MUST(&worker, puppet_do(&worker, PUPPET_CLOSE, 0));
    PUPPET_MUST(&worker, puppet_open(&worker, ""));
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, kinds[count - 1], MIB, GPUPOOL_FOREVER, 0));
    puppet_quit(&worker);
    puppet_quit(&later);
    daemon_stop(&daemon);
}

static void a_second_daemon_is_refused_and_says_why(void **state) {
    const char *argv[64];
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    start_plain(&daemon);
    daemon_command(&daemon, argv);
    int status = test_wait(test_spawn(argv, NULL, -1, daemon.log));
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    assert_true(daemon_logged(&daemon, "another daemon serves"));
    assert_true(daemon_logged(&daemon, daemon.socket));
    puppet_connect(&worker, &daemon); /* and the first is none the worse for it */
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

static void clients_of_a_daemon_that_stops_are_told(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    struct puppet holder, waiting;
    struct test_daemon daemon;

    (void)state;
    start_plain(&daemon);
    have_and_wait(&daemon, &holder, &waiting, GPUPOOL_POOL_HOST);
    WAIT_UNTIL(daemon_sum(&daemon, "waiters") == 1);
    daemon_stop(&daemon); /* with exit status 0 */
    PUPPET_MUST_BE(&waiting, puppet_receive(&waiting), GPUPOOL_E_DISCONNECTED);
    for (unsigned i = 0; i < count; i++) {
        PUPPET_MUST(&holder, puppet_check(&holder, i, 50 + i));
        PUPPET_MUST(&holder, puppet_release(&holder, i));
    }
    puppet_quit(&holder);
    puppet_quit(&waiting);
}

static void no_daemon_is_a_clear_error(void **state) {
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    start_plain(&daemon);
    daemon_stop(&daemon);
    puppet_start(&worker, &daemon);
    PUPPET_MUST_BE(&worker, puppet_open(&worker, ""), GPUPOOL_E_CONNECT);
    PUPPET_SAID(&worker, daemon.socket);
    puppet_quit(&worker);
}

static void a_reload_raises_and_lowers_limits(void **state) {
    struct test_daemon daemon;
    struct puppet holder, waiting;
    char text[TEST_CONFIG_SIZE];

    (void)state;
    start_plain(&daemon);
    puppet_connect(&holder, &daemon);
    puppet_connect(&waiting, &daemon);
    PUPPET_MUST(&holder, puppet_acquire(&holder, 0, GPUPOOL_POOL_HOST, 20 * MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST_BE(&waiting, puppet_acquire(&waiting, 0, GPUPOOL_POOL_HOST, 40 * MIB, GPUPOOL_FOREVER, 0),
                   GPUPOOL_E_TOO_LARGE);
    puppet_send_acquire(&waiting, 0, GPUPOOL_POOL_HOST, 20 * MIB, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_sum(&daemon, "waiters") == 1);
    daemon_write_config(&daemon, test_config(text, POOL_MIB, 2 * POOL_MIB));
    daemon_signal(&daemon, SIGHUP);
    PUPPET_MUST(&waiting, puppet_receive(&waiting)); /* who waited has room now */
    assert_int_equal(daemon_pool(&daemon, "host", 0, "limit_bytes"), 2 * POOL_MIB * MIB);

    /* lowered below what is lent: nothing is taken away, and nothing is made any more */
    daemon_write_config(&daemon, test_config(text, POOL_MIB, 8));
    daemon_signal(&daemon, SIGHUP);
    WAIT_UNTIL(daemon_pool(&daemon, "host", 0, "limit_bytes") == 8 * MIB);
    PUPPET_MUST(&holder, puppet_fill(&holder, 0, 5));
    PUPPET_MUST(&holder, puppet_check(&holder, 0, 5));
    uint64_t grows = daemon_pool(&daemon, "host", 0, "grows");
    PUPPET_MUST_BE(&holder, puppet_acquire(&holder, 1, GPUPOOL_POOL_HOST, 8 * MIB, GPUPOOL_NOW, 0),
                   GPUPOOL_E_EXHAUSTED);
    PUPPET_MUST_BE(&holder, puppet_acquire(&holder, 1, GPUPOOL_POOL_HOST, 9 * MIB, GPUPOOL_FOREVER, 0),
                   GPUPOOL_E_TOO_LARGE);
    assert_int_equal(daemon_pool(&daemon, "host", 0, "grows"), grows);

    daemon_write_config(&daemon, "[host]\nlimit = lots\n");
    daemon_signal(&daemon, SIGHUP);
    WAIT_UNTIL(daemon_logged(&daemon, "gpupoold.conf:2"));
    assert_int_equal(daemon_pool(&daemon, "host", 0, "limit_bytes"), 8 * MIB);
    PUPPET_MUST(&holder, puppet_release(&holder, 0));
    puppet_quit(&holder);
    puppet_quit(&waiting);
    daemon_stop(&daemon);
}

/* A configuration on a file server that does not answer: reading it waits until the test writes it. */
static void a_configuration_that_takes_long_to_read_holds_nobody_up(void **state) {
    struct test_daemon daemon;
    struct puppet worker;
    char text[TEST_CONFIG_SIZE];

    (void)state;
    start_plain(&daemon);
    assert_int_equal(unlink(daemon.config), 0);
    assert_int_equal(mkfifo(daemon.config, 0600), 0);
    daemon_signal(&daemon, SIGHUP);
    _cleanup_(fclosep) FILE *file = fopen(daemon.config, "we"); /* returns when the daemon reads */
    assert_non_null(file);
    puppet_connect(&worker, &daemon);
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&worker, puppet_release(&worker, 0));
    assert_int_equal(daemon_pool(&daemon, "host", 0, "limit_bytes"), POOL_MIB * MIB);
    fputs(test_config(text, POOL_MIB, 2 * POOL_MIB), file);
    assert_int_equal(fflush(file), 0);
    /* Asked meanwhile: once more, afterwards. */
    daemon_signal(&daemon, SIGHUP);
    cJSON_Delete(daemon_ask(&daemon, "{\"command\":\"ping\"}"));
    assert_int_equal(unlink(daemon.config), 0);
    daemon_write_config(&daemon, test_config(text, POOL_MIB, 3 * POOL_MIB));
    fclosep(&file);
    file = NULL; /* the daemon has the first one */
    WAIT_UNTIL(daemon_pool(&daemon, "host", 0, "limit_bytes") == 3 * POOL_MIB * MIB);
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

/* --- a service manager --- */

struct manager {
    char directory[32], path[64];
    char variable[96]; /* NOTIFY_SOCKET=…, for the daemon */
    int fd;
};

static void manager_open(struct manager *manager) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    snprintf(manager->directory, sizeof manager->directory, "/tmp/gpupool-manager-XXXXXX");
    assert_non_null(mkdtemp(manager->directory));
    snprintf(manager->path, sizeof manager->path, "%s/notify", manager->directory);
    snprintf(manager->variable, sizeof manager->variable, "NOTIFY_SOCKET=%s", manager->path);
    snprintf(address.sun_path, sizeof address.sun_path, "%s", manager->path);
    manager->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(manager->fd >= 0);
    assert_int_equal(bind(manager->fd, (struct sockaddr *)&address, sizeof address), 0);
}

/* From now on the daemon, if it runs, talks to no peer. */
static void manager_remove(struct manager *manager) {
    close(manager->fd);
    unlink(manager->path);
    rmdir(manager->directory);
}

/* Takes the next message, if one is there or comes in time. */
static bool manager_hears(int fd, int timeout_ms, char *text, size_t size) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    if (poll(&poll_fd, 1, timeout_ms) <= 0)
        return false;
    ssize_t n = recv(fd, text, size - 1, 0);
    assert_true(n >= 0);
    text[n] = '\0';
    return true;
}

/* Waits for a message with a word in it; others are passed over. */
static void manager_waits_for(int fd, const char *word) {
    char text[1024];
    do
        if (!manager_hears(fd, (int)(TEST_WAIT_NS / NS_PER_MS), text, sizeof text))
            fail_msg("the daemon did not say %s", word);
    while (strstr(text, word) == NULL);
}

static void the_service_manager_is_told(void **state) {
    struct manager manager;
    const char *environment[] = {manager.variable, "WATCHDOG_USEC=300000", NULL};
    struct test_daemon daemon;

    (void)state;
    manager_open(&manager);
    daemon_start(&daemon, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB),
                                                   .environment = environment});
    manager_waits_for(manager.fd, "READY=1");
    for (unsigned i = 0; i < 3; i++)
        manager_waits_for(manager.fd, "WATCHDOG=1");
    daemon_signal(&daemon, SIGHUP);
    manager_waits_for(manager.fd, "RELOADING=1");
    manager_waits_for(manager.fd, "READY=1");
    daemon_signal(&daemon, SIGTERM);
    manager_waits_for(manager.fd, "STOPPING=1");
    int status = daemon_wait(&daemon);
    assert_int_equal(status, 0);
    daemon_remove(&daemon);
    manager_remove(&manager);
}

static bool manager_has_read(int fd) {
    char text[1024];
    bool heard = false;
    while (manager_hears(fd, 0, text, sizeof text))
        heard = true;
    return heard;
}

static void a_hanging_driver_starves_the_watchdog_and_nobody_else(void **state) {
    struct manager manager;
    struct puppet stuck, other;
    struct test_daemon daemon;
    struct hang hang;

    (void)state;
    if (!test_is_simulated())
        skip();
    hang_plan(&hang, "memory_allocate:1");
    const char *environment[] = {manager.variable, "WATCHDOG_USEC=900000", hang.variable, NULL};
    manager_open(&manager);
    daemon_start(&daemon, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB),
                                                   .environment = environment});
    puppet_connect(&stuck, &daemon);
    puppet_connect(&other, &daemon);
    puppet_send_acquire(&stuck, 0, GPUPOOL_POOL_DEVICE, MIB, GPUPOOL_FOREVER);
    WAIT_UNTIL(daemon_logged(&daemon, TEST_HANGS));
    (void)manager_has_read(manager.fd);
    /* From the complaint to the call's return it says nothing to the manager; the loop serves meanwhile. */
    PUPPET_MUST(&other, puppet_acquire(&other, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&other, puppet_fill(&other, 0, 8));
    PUPPET_MUST(&other, puppet_release(&other, 0));
    assert_true(daemon_number(&daemon, "uptime_ns") > 0);
    assert_false(manager_has_read(manager.fd));
    assert_false(puppet_has_answered(&stuck));
    hang_end(&hang);
    PUPPET_MUST(&stuck, puppet_receive(&stuck));
    manager_waits_for(manager.fd, "WATCHDOG=1"); /* it has come back */
    manager_remove(&manager);
    puppet_quit(&stuck);
    puppet_quit(&other);
    daemon_stop(&daemon);
}

/* Its queue is full after 10 messages (net.unix.max_dgram_qlen), and the daemon has more to say. */
static void a_manager_that_does_not_read_holds_nobody_up(void **state) {
    struct manager manager;
    const char *environment[] = {manager.variable, "WATCHDOG_USEC=30000", NULL};
    struct test_daemon daemon;

    (void)state;
    manager_open(&manager);
    daemon_start(&daemon, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB),
                                                   .environment = environment});
    WAIT_UNTIL(daemon_number(&daemon, "uptime_ns") > 3 * (double)NS_PER_S); /* a hundred times */
    struct puppet puppet;
    puppet_connect(&puppet, &daemon);
    PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
    puppet_quit(&puppet);
    (void)manager_has_read(manager.fd);
    manager_waits_for(manager.fd, "WATCHDOG=1");
    manager_remove(&manager);
    daemon_stop(&daemon);
}

static void one_that_is_stopped_before_it_serves_does_not_say_that_it_serves(void **state) {
    struct test_daemon daemon;
    struct hang hang;

    (void)state;
    if (!test_is_simulated())
        skip();
    hang_plan(&hang, test_exports_vmm() ? "vmm_granule:1" : "device_check:1");
    const char *const environment[] = {hang.variable, NULL};
    daemon_start(&daemon, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB),
                                                   .environment = environment,
                                                   .unready = true});
    WAIT_UNTIL(daemon_logged(&daemon, "the GPUs are simulated")); /* its sockets are there */
    assert_true(daemon_number(&daemon, "uptime_ns") > 0);         /* and its loop turns */
    daemon_signal(&daemon, SIGTERM);
    WAIT_UNTIL(daemon_logged(&daemon, "SIGTERM: stopping"));
    hang_end(&hang);
    assert_int_equal(daemon_wait(&daemon), 0);
    assert_false(daemon_logged(&daemon, "serving"));
    daemon_remove(&daemon);
}

/* systemd-socket-activate takes one type for all its sockets: the data socket is handed over, the other is
 * made. */
static void a_socket_of_systemd_starts_it_and_stays(void **state) {
    const char *daemon_argv[64], *argv[80] = {"systemd-socket-activate", "--seqpacket", "--fdname=data"};
    char listen[TEST_PATH_SIZE + 16];
    struct test_daemon daemon;
    struct puppet worker;
    unsigned n = 3;

    (void)state;
    if (system("command -v systemd-socket-activate >/dev/null 2>&1") != 0)
        skip();
    daemon_prepare(&daemon, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB)});
    snprintf(listen, sizeof listen, "--listen=%s", daemon.socket);
    argv[n++] = listen;
    argv[n++] = "--setenv=GPUPOOL_SIM_LATENCY=0";
    argv[n++] = "--setenv=LD_LIBRARY_PATH";
    daemon_command(&daemon, daemon_argv);
    for (unsigned i = 0; daemon_argv[i] != NULL; i++)
        argv[n++] = daemon_argv[i];
    argv[n] = NULL;
    pid_t pid = test_spawn(argv, NULL, -1, daemon.log);
    WAIT_UNTIL(access(daemon.socket, F_OK) == 0 || test_has_ended(pid));
    assert_int_not_equal(access(daemon.admin_socket, F_OK), 0); /* there is no daemon yet */
    WAIT_UNTIL(daemon_logged(&daemon, "Listening on"));
    puppet_connect(&worker, &daemon); /* the first client starts it */
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    assert_int_equal(daemon_number(&daemon, "pid"), pid);
    puppet_quit(&worker);
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(test_wait(pid), 0);
    assert_int_equal(access(daemon.socket, F_OK), 0); /* the manager's, not the daemon's to remove */
    assert_int_not_equal(access(daemon.admin_socket, F_OK), 0);
    close_fd(daemon.admin_fd);
    daemon_remove(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buffers_outlive_a_crashed_daemon_and_the_next_one_serves),
        cmocka_unit_test(a_second_daemon_is_refused_and_says_why),
        cmocka_unit_test(clients_of_a_daemon_that_stops_are_told),
        cmocka_unit_test(no_daemon_is_a_clear_error),
        cmocka_unit_test(a_reload_raises_and_lowers_limits),
        cmocka_unit_test(a_configuration_that_takes_long_to_read_holds_nobody_up),
        cmocka_unit_test(the_service_manager_is_told),
        cmocka_unit_test(a_hanging_driver_starves_the_watchdog_and_nobody_else),
        cmocka_unit_test(a_manager_that_does_not_read_holds_nobody_up),
        cmocka_unit_test(one_that_is_stopped_before_it_serves_does_not_say_that_it_serves),
        cmocka_unit_test(a_socket_of_systemd_starts_it_and_stays),
    };
    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
