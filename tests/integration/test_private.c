/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon of one's own: GPUPOOL_SOCKET=private starts it, others join it, and it ends with its last client.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/puppet.h"
#include "tests/integration/sanitized.h"

/* A private daemon as the test sees it: it is no child of the test, so it is known by pid and socket alone.
 */
struct private_daemon {
    struct test_daemon seen; /* for daemon_ask() and its like */
    char directory[TEST_PATH_SIZE];
};

static char daemon_variable[4200], arguments_variable[64];
/* No process waits for a private daemon: the report of a sanitizer comes as a file in this directory. */
static char reports[] = "/tmp/gpupool-reports-XXXXXX";
static char address_variable[96], undefined_variable[96];
/* The messages that the founder's service manager would get. */
static char manager_variable[sizeof reports + 32];
static int manager_fd;
static const char *const private_environment[] = {"GPUPOOL_SOCKET=private",
                                                  daemon_variable,
                                                  arguments_variable,
                                                  address_variable,
                                                  undefined_variable,
                                                  manager_variable,
                                                  NULL};

static int set_variables(void **state) {
    (void)state;
    snprintf(daemon_variable, sizeof daemon_variable, "GPUPOOL_DAEMON=%s", test_daemon_path());
    snprintf(arguments_variable, sizeof arguments_variable, "GPUPOOL_DAEMON_ARGS=--gpu %s", test_gpu());
    assert_non_null(mkdtemp(reports));
    snprintf(address_variable, sizeof address_variable, "ASAN_OPTIONS=log_path=%s/address", reports);
    snprintf(undefined_variable, sizeof undefined_variable, "UBSAN_OPTIONS=log_path=%s/undefined", reports);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/manager", reports);
    snprintf(manager_variable, sizeof manager_variable, "NOTIFY_SOCKET=%s/manager", reports);
    manager_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(manager_fd >= 0);
    assert_int_equal(bind(manager_fd, (struct sockaddr *)&address, sizeof address), 0);
    return 0;
}

static void start_private(struct puppet *founder, struct private_daemon *daemon) {
    puppet_connect_as(founder, NULL, private_environment, 0);
    PUPPET_MUST(founder, puppet_do(founder, PUPPET_SOCKET_PATH, 0));
    *daemon = (struct private_daemon){.seen.admin_fd = -1};
    assert_true(strlen(founder->answer.text) < sizeof daemon->seen.socket);
    strcpy(daemon->seen.socket, founder->answer.text);
    strcpy(daemon->directory, founder->answer.text);
    *strrchr(daemon->directory, '/') = '\0';
    int n = snprintf(daemon->seen.admin_socket, sizeof daemon->seen.admin_socket, "%.90s/admin.sock",
                     daemon->directory);
    assert_true(n > 0 && (size_t)n < sizeof daemon->seen.admin_socket);
    daemon->seen.pid = (pid_t)daemon_number(&daemon->seen, "pid");
    assert_int_not_equal(daemon->seen.pid, founder->pid);
}

/* Without a trace: no process, no socket, no directory. */
static void is_gone(struct private_daemon *daemon) {
    daemon->seen.admin_fd = close_fd(daemon->seen.admin_fd);
    WAIT_UNTIL(test_has_ended(daemon->seen.pid));
    WAIT_UNTIL(access(daemon->directory, F_OK) != 0);
}

static void use(struct puppet *puppet) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    for (unsigned i = 0; i < count; i++) {
        PUPPET_MUST(puppet, puppet_acquire(puppet, i, kinds[i], MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(puppet, puppet_fill(puppet, i, 15));
        PUPPET_MUST(puppet, puppet_check(puppet, i, 15));
    }
}

static void it_serves_its_founder_and_ends_with_it(void **state) {
    struct private_daemon daemon;
    struct puppet founder;

    (void)state;
    start_private(&founder, &daemon);
    use(&founder);
    assert_int_equal(daemon_number(&daemon.seen, "sessions"), 1);
    puppet_quit(&founder);
    is_gone(&daemon);
}

static void it_ends_when_its_founder_is_killed(void **state) {
    struct private_daemon daemon;
    struct puppet founder;

    (void)state;
    start_private(&founder, &daemon);
    use(&founder);
    puppet_kill(&founder);
    is_gone(&daemon);
}

static void others_join_and_the_last_one_ends_it(void **state) {
    struct gpupool_token token;
    struct private_daemon daemon;
    struct puppet founder, guest;

    (void)state;
    start_private(&founder, &daemon);
    puppet_connect(&guest, &daemon.seen);
    assert_int_equal(daemon_number(&daemon.seen, "sessions"), 2);
    use(&founder);
    PUPPET_MUST(&founder, puppet_share(&founder, 0, &token));
    PUPPET_MUST(&guest, puppet_attach(&guest, 0, &token));
    PUPPET_MUST(&guest, puppet_check(&guest, 0, 15));
    puppet_quit(&founder);
    /* it is there for the guest */
    WAIT_UNTIL(daemon_number(&daemon.seen, "sessions") == 1);
    use(&guest);
    puppet_quit(&guest);
    is_gone(&daemon);
}

static void a_killed_founder_does_not_take_it_from_the_others(void **state) {
    struct private_daemon daemon;
    struct puppet founder, guest;

    (void)state;
    start_private(&founder, &daemon);
    puppet_connect(&guest, &daemon.seen);
    use(&founder);
    puppet_kill(&founder);
    WAIT_UNTIL(daemon_number(&daemon.seen, "sessions") == 1);
    use(&guest);
    puppet_kill(&guest);
    is_gone(&daemon);
}

static void each_founder_has_its_own(void **state) {
    struct private_daemon daemons[2];
    struct puppet founders[2];

    (void)state;
    for (unsigned i = 0; i < 2; i++)
        start_private(&founders[i], &daemons[i]);
    assert_int_not_equal(daemons[0].seen.pid, daemons[1].seen.pid);
    assert_string_not_equal(daemons[0].directory, daemons[1].directory);
    puppet_quit(&founders[0]);
    is_gone(&daemons[0]);
    use(&founders[1]);
    puppet_quit(&founders[1]);
    is_gone(&daemons[1]);
}

/* --- processes that have one daemon by $GPUPOOL_PRIVATE_SOCKET, or because one is forked from the other */

/* Its processes are forked, and have threads. A sanitizer's allocator has locks that fork() does not take (of
 * AddressSanitizer before gcc 13), so that a child may wait for one for ever. */
static void begin_family(void) {
    if (TEST_IS_THREAD_SANITIZED || TEST_IS_ADDRESS_SANITIZED)
        skip();
}

static void set_environment(const char *private_socket) {
    for (const char *const *variable = private_environment; *variable != NULL; variable++)
        assert_int_equal(putenv((char *)*variable), 0);
    if (private_socket != NULL)
        assert_int_equal(setenv("GPUPOOL_PRIVATE_SOCKET", private_socket, 1), 0);
}

/* Runs a function in a forked child, which ends with what it returns. */
static pid_t fork_to(int (*run)(void *argument), void *argument) {
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(run(argument));
    return pid;
}

static void ended_well(pid_t pid) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static int is_of_the_same_daemon(void *argument) {
    const struct gpupool_client *parents = argument;
    struct gpupool_client *client;

    if (gpupool_open(NULL, &client) < 0)
        return 1;
    bool is_same = strcmp(gpupool_daemon_identity(client), gpupool_daemon_identity(parents)) == 0 &&
                   strcmp(gpupool_admin_path(client), gpupool_admin_path(parents)) == 0;
    gpupool_close(client);
    return is_same && strlen(gpupool_daemon_identity(parents)) == 32 ? 0 : 2;
}

static int a_family(void *argument) {
    struct gpupool_options own = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client, *second, *apart;

    set_environment(argument);
    if (gpupool_open(NULL, &client) < 0 || gpupool_open(NULL, &second) < 0)
        return 1;
    ended_well(fork_to(is_of_the_same_daemon, client));
    own.socket = "private"; /* asked for by the program: one for this client */
    if (gpupool_open(&own, &apart) < 0)
        return 1;
    bool is_right = strcmp(gpupool_daemon_identity(client), gpupool_daemon_identity(second)) == 0 &&
                    strcmp(gpupool_daemon_identity(client), gpupool_daemon_identity(apart)) != 0;
    gpupool_close(apart);
    gpupool_close(second);
    gpupool_close(client);
    return is_right ? 0 : 2;
}

static void a_process_and_its_forked_children_have_one(void **state) {
    (void)state;
    begin_family();
    ended_well(fork_to(a_family, NULL));
}

#define COMERS     4u
#define COMINGS    12u
#define FAMILY_DIR "/tmp/gpupool-family-XXXXXX"

static int come_and_go(void *argument) {
    struct gpupool_client *client;

    set_environment(argument);
    for (unsigned i = 0; i < COMINGS; i++) {
        if (gpupool_open(NULL, &client) < 0) {
            fprintf(stderr, "coming %u: %s\n", i, gpupool_error_text());
            return 1;
        }
        gpupool_close(client);
    }
    return 0;
}

/* The daemon ends and is started anew many times meanwhile, as the last process goes and the next one comes.
 */
static void each_process_that_comes_finds_it_or_starts_it(void **state) {
    char directory[] = FAMILY_DIR, path[sizeof directory + sizeof "/gpupool.sock"];
    pid_t pids[COMERS];

    (void)state;
    begin_family();
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/gpupool.sock", directory);
    for (unsigned i = 0; i < COMERS; i++)
        pids[i] = fork_to(come_and_go, path);
    for (unsigned i = 0; i < COMERS; i++)
        ended_well(pids[i]);
    WAIT_UNTIL(access(directory, F_OK) != 0);
}

/* Opens a client with so few descriptors left. */
static int open_with(rlim_t n_left, struct gpupool_client **ret_client) {
    struct rlimit limit, low;
    int probe = dup(STDIN_FILENO);

    close(probe);
    if (probe < 0 || getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return -1;
    low = (struct rlimit){(rlim_t)probe + n_left, limit.rlim_max};
    if (setrlimit(RLIMIT_NOFILE, &low) != 0)
        return -1;
    int r = gpupool_open(NULL, ret_client);
    return setrlimit(RLIMIT_NOFILE, &limit) != 0 ? -1 : r < 0 ? 0 : 1;
}

static int a_needy_relative(void *argument) {
    struct gpupool_client *client, *second = NULL;
    int opened = 0;

    set_environment(argument);
    if (gpupool_open(NULL, &client) < 0)
        return 1;
    for (rlim_t n_left = 0; n_left < 16 && opened == 0; n_left++) {
        opened = open_with(n_left, &second);
        if (opened < 0 || access(gpupool_socket_path(client), F_OK) != 0)
            return 2;
    }
    if (opened != 1 || strcmp(gpupool_daemon_identity(client), gpupool_daemon_identity(second)) != 0)
        return 3;
    gpupool_close(second);
    gpupool_close(client);
    return 0;
}

static void a_process_that_cannot_connect_leaves_the_daemon_its_sockets(void **state) {
    (void)state;
    begin_family();
    ended_well(fork_to(a_needy_relative, NULL));
}

#define SLOW_DIR "/tmp/gpupool-slow-XXXXXX"

/* A daemon that starts when the test says so. */
struct slow {
    char directory[sizeof SLOW_DIR], program[sizeof SLOW_DIR + 8], gate[sizeof SLOW_DIR + 8],
        socket[sizeof SLOW_DIR + 24];
};

static int write_slow(const struct slow *slow) {
    FILE *file = fopen(slow->program, "w");
    if (file == NULL)
        return -1;
    fprintf(file, "#!/bin/sh\nread go <%s\nexec %s \"$@\"\n", slow->gate, test_daemon_path());
    return fclose(file) != 0 || chmod(slow->program, 0700) != 0 || mkfifo(slow->gate, 0600) != 0 ? -1 : 0;
}

static bool is_locked(const char *directory) {
    _cleanup_(close_fdp) int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
}

static void *open_private(void *unused) {
    struct gpupool_client *client = NULL;
    (void)unused;
    return gpupool_open(NULL, &client) == 0 ? client : NULL;
}

/* Forks while another thread has the lock on the daemon's directory. */
static int a_child_beside_a_start(void *argument) {
    const struct slow *slow = argument;
    char private_directory[sizeof slow->socket];
    void *client;
    pthread_t thread;

    set_environment(slow->socket);
    snprintf(private_directory, sizeof private_directory, "%s/own", slow->directory);
    if (setenv("GPUPOOL_DAEMON", slow->program, 1) != 0 || write_slow(slow) != 0 ||
        pthread_create(&thread, NULL, open_private, NULL) != 0)
        return 1;
    WAIT_UNTIL(is_locked(private_directory));
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(0);
    }
    FILE *gate = fopen(slow->gate, "w");
    if (child < 0 || gate == NULL || fputs("go\n", gate) < 0 || fclose(gate) != 0)
        return 2;
    pthread_join(thread, &client);
    bool is_kept = is_locked(private_directory);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    if (client == NULL)
        return 3;
    gpupool_close(client);
    return is_kept ? 4 : 0;
}

static void a_forked_child_does_not_keep_the_lock_of_the_start(void **state) {
    struct slow slow = {.directory = SLOW_DIR};

    (void)state;
    begin_family();
    assert_non_null(mkdtemp(slow.directory));
    snprintf(slow.program, sizeof slow.program, "%s/program", slow.directory);
    snprintf(slow.gate, sizeof slow.gate, "%s/gate", slow.directory);
    snprintf(slow.socket, sizeof slow.socket, "%s/own/gpupool.sock", slow.directory);
    ended_well(fork_to(a_child_beside_a_start, &slow));
    unlink(slow.program);
    unlink(slow.gate);
    WAIT_UNTIL(rmdir(slow.directory) == 0); /* the daemon has removed its own */
}

struct sending {
    const char *path; /* of the daemon's socket */
    uint64_t lifetime_ns;
    int pipe[2]; /* for the token, from the writer to the reader */
};

static int write_and_send(void *argument) {
    const struct sending *sending = argument;
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    struct gpupool_token token;
    uint32_t pool;

    set_environment(sending->path);
    if (gpupool_open(NULL, &client) < 0 || gpupool_host_pool(client, -1, &pool) < 0 ||
        gpupool_acquire(client, pool, MIB, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0, &buffer) < 0)
        return 1;
    memset(buffer.data, 15, MIB);
    if (gpupool_send(client, &buffer, GPUPOOL_NO_STREAM, 1, sending->lifetime_ns, &token) < 0 ||
        gpupool_release(client, &buffer, GPUPOOL_NO_STREAM) < 0)
        return 2;
    gpupool_close(client);
    return write(sending->pipe[1], &token, sizeof token) == (ssize_t)sizeof token ? 0 : 3;
}

static int take_and_read(void *argument) {
    const struct sending *sending = argument;
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    struct gpupool_token token;

    set_environment(sending->path);
    if (read(sending->pipe[0], &token, sizeof token) != (ssize_t)sizeof token ||
        gpupool_open(NULL, &client) < 0)
        return 1;
    if (gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &buffer) < 0) {
        fprintf(stderr, "taking the parcel: %s\n", gpupool_error_text());
        return 2;
    }
    const unsigned char *bytes = buffer.data;
    bool is_whole = bytes[0] == 15 && bytes[MIB - 1] == 15;
    gpupool_close(client);
    return is_whole ? 0 : 3;
}

/* The writer's client is gone before the reader's is there. Then the daemon waits for the reader, and ends
 * with it; or it ends when the parcel's time is up. */
static void it_waits_for_parcels_on_their_way(void **state) {
    char directory[] = FAMILY_DIR, path[sizeof directory + sizeof "/gpupool.sock"];
    struct sending sending = {.path = path, .lifetime_ns = 600 * NS_PER_S};

    (void)state;
    begin_family();
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/gpupool.sock", directory);
    assert_int_equal(pipe(sending.pipe), 0);
    ended_well(fork_to(write_and_send, &sending));
    ended_well(fork_to(take_and_read, &sending));
    WAIT_UNTIL(access(directory, F_OK) != 0);

    assert_int_equal(mkdir(directory, 0700), 0);
    sending.lifetime_ns = NS_PER_MS;
    ended_well(fork_to(write_and_send, &sending));
    WAIT_UNTIL(access(directory, F_OK) != 0);
    close_fd(sending.pipe[0]);
    close_fd(sending.pipe[1]);
}

static void fails_with(const char *daemon_path, const char *arguments, const char *word) {
    char path[300], given[300];
    const char *environment[] = {"GPUPOOL_SOCKET=private", path, given, NULL};
    struct puppet founder;

    snprintf(path, sizeof path, "GPUPOOL_DAEMON=%s", daemon_path);
    snprintf(given, sizeof given, "GPUPOOL_DAEMON_ARGS=%s", arguments);
    puppet_start_as(&founder, NULL, environment, 0);
    PUPPET_MUST_BE(&founder, puppet_open(&founder, ""), GPUPOOL_E_CONNECT);
    PUPPET_SAID(&founder, word);
    puppet_quit(&founder);
}

static void one_that_cannot_start_is_a_clear_error(void **state) {
    (void)state;
    fails_with("/nonexistent/gpupoold", "", "ENOENT");
    fails_with("/nonexistent/gpupoold", "", "/nonexistent/gpupoold");
    fails_with("gpupoold-that-is-not-in-path", "", "gpupoold-that-is-not-in-path");
    fails_with("/dev/null", "", "EACCES");
    fails_with("/bin/false", "", "ended before it served");
    fails_with(test_daemon_path(), "--gpu toaster", "ended before it served");
    fails_with(test_daemon_path(), "--gpu toaster", "gpupool-test-admin.sock --gpu toaster");
    fails_with(test_daemon_path(), "--gpu to*ster", "gpupool-test-admin.sock --gpu 'to*ster'");
}

/* It is for the founder to tell its service manager how it is. */
static void no_daemon_spoke_to_the_founders_service_manager(void **state) {
    char path[sizeof reports + 32], text[64];
    (void)state;

    assert_int_equal(recv(manager_fd, text, sizeof text, 0), -1);
    assert_int_equal(errno, EAGAIN);
    close(manager_fd);
    snprintf(path, sizeof path, "%s/manager", reports);
    assert_int_equal(unlink(path), 0);
}

static void no_sanitizer_had_anything_to_say(void **state) {
    (void)state;
    if (rmdir(reports) != 0)
        fail_msg("%s is not empty", reports);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_serves_its_founder_and_ends_with_it),
        cmocka_unit_test(it_ends_when_its_founder_is_killed),
        cmocka_unit_test(others_join_and_the_last_one_ends_it),
        cmocka_unit_test(a_killed_founder_does_not_take_it_from_the_others),
        cmocka_unit_test(each_founder_has_its_own),
        cmocka_unit_test(a_process_and_its_forked_children_have_one),
        cmocka_unit_test(each_process_that_comes_finds_it_or_starts_it),
        cmocka_unit_test(a_process_that_cannot_connect_leaves_the_daemon_its_sockets),
        cmocka_unit_test(a_forked_child_does_not_keep_the_lock_of_the_start),
        cmocka_unit_test(it_waits_for_parcels_on_their_way),
        cmocka_unit_test(one_that_cannot_start_is_a_clear_error),
        cmocka_unit_test(no_daemon_spoke_to_the_founders_service_manager),
        cmocka_unit_test(no_sanitizer_had_anything_to_say),
    };
    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, set_variables, NULL));
}
