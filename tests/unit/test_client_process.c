/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client library and processes: children that inherit a client, and private daemons that it starts.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/client_fixture.h"

/* --- children --- */

/* Whether a byte may be read here. In a forked child something inaccessible is mapped. */
static bool is_readable(const void *address) {
    char line[256], may_read;
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");

    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long low, high;
        if (sscanf(line, "%lx-%lx %c", &low, &high, &may_read) == 3 && (uintptr_t)address >= low &&
            (uintptr_t)address < high && may_read == 'r')
            found = true;
    }
    if (maps != NULL)
        fclose(maps);
    return found;
}

static int forked_child(struct gpupool_client *client, struct gpupool_buffer *buffer) {
    struct gpupool_buffer other = {0};
    struct gpupool_client *own = NULL;
    struct gpupool_options options = options_for(daemon_.path);
    size_t count;

    if (is_readable(buffer->data))
        return 1;
    if (gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, GPUPOOL_NOW, 0, &other) != GPUPOOL_E_FORKED ||
        gpupool_release(client, buffer, NULL) != GPUPOOL_E_FORKED ||
        gpupool_pools(client, NULL, 0, &count) != GPUPOOL_E_FORKED ||
        gpupool_stream_synchronize(client, 0, NULL) != GPUPOOL_E_FORKED)
        return 2;
    gpupool_close(client);
    options.flags |= GPUPOOL_OPEN_NO_CUDA;
    if (gpupool_open(&options, &own) != 0)
        return 3;
    if (gpupool_acquire(own, FALSE_POOL_HOST, 1, NULL, GPUPOOL_NOW, 0, &other) != 0)
        return 4;
    gpupool_close(own);
    return 0;
}

static void forked_children_are_refused(void **state) {
    (void)state;
    struct gpupool_client *client = start(NULL);
    struct gpupool_buffer buffer;

    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1000, NULL, GPUPOOL_NOW, 0, &buffer));
    for (int round = 0; round < 2; round++) {
        int status;
        if (round == 1) { /* a kernel without MADV_WIPEONFORK */
            assert_int_equal(client->session.guard.page[0], 1);
            fork_guard_deinit(&client->session.guard);
        }
        fflush(NULL);
        pid_t child = fork();
        if (child == 0)
            _exit(forked_child(client, &buffer));
        TEST_REAP(child, &status);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        memset(buffer.data, round, buffer.size_bytes); /* the child's close has not unmapped it here */
    }
    assert_ok(gpupool_release(client, &buffer, NULL));
    gpupool_close(client);
    false_daemon_await(&daemon_, &daemon_.byes, 3);
}

/* --- a private daemon: this program, started again --- */

static const char *argument_after(char **argv, const char *name) {
    for (; *argv != NULL; argv++)
        if (strcmp(*argv, name) == 0 && argv[1] != NULL)
            return argv[1];
    return NULL;
}

/* A private daemon in short: it serves until its last client has gone, and removes its files. */
static int private_daemon_main(char **argv) {
    const char *socket_path = argument_after(argv, "--socket"),
               *admin = argument_after(argv, "--admin-socket");
    const char *ready = argument_after(argv, "--ready-fd"), *mode = argument_after(argv, "--mode");
    sigset_t mask;

    if (socket_path == NULL || admin == NULL || ready == NULL || mode == NULL)
        return 2;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    struct sigaction action;
    sigaction(SIGUSR1, NULL, &action);
    /* Standard streams, the ready descriptor, and what reading the directory takes: two entries, one
     * descriptor. */
    if (sigismember(&mask, SIGUSR1) || action.sa_handler != SIG_DFL || open_fds() != 4 + 3 ||
        getpgrp() == getpid())
        return 3;
    if (strcmp(mode, "fail") == 0)
        return 1;
    if (strcmp(mode, "hang") == 0)
        for (;;)
            pause();
    if (strcmp(mode, "junk") == 0) {
        if (write(atoi(ready), "?", 1) != 1)
            return 4;
        pause();
    }
    false_daemon_init(&daemon_, NULL);
    unlink(daemon_.path);
    rmdir(daemon_.directory);
    close(daemon_.listener);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    daemon_.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (bind(daemon_.listener, (struct sockaddr *)&address, sizeof address) < 0 ||
        listen(daemon_.listener, 4) < 0)
        return 5;
    false_daemon_run(&daemon_);
    if (write(atoi(ready), "1", 1) != 1)
        return 6;
    close(atoi(ready));
    false_daemon_await(&daemon_, &daemon_.ended, 1);
    unlink(socket_path);
    char *slash = strrchr(address.sun_path, '/');
    *slash = '\0';
    rmdir(address.sun_path);
    return 0;
}

static char self[4096], runtime_directory[64];

static void await_no_file(const char *path) {
    uint64_t deadline_ns = clock_now_ns() + TEST_WAIT_NS;
    for (; access(path, F_OK) == 0; test_pause())
        if (clock_now_ns() > deadline_ns)
            fail_msg("%s is still there", path);
}

static void ignore_signal(int number) {
    (void)number;
}

static void private_daemon_serves_and_leaves_nothing(void **state) {
    (void)state;
    const char *arguments[] = {"--mode", "serve", NULL};
    struct gpupool_options options = options_for("private");
    struct gpupool_client *client = NULL;
    struct gpupool_buffer buffer;
    struct stat status;
    char path[108];
    sigset_t blocked, before, after;

    /* The daemon must not inherit these: a blocked signal, a handler and a descriptor. */
    signal(SIGUSR1, ignore_signal);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &blocked, &before);
    int stray = open("/dev/null", O_RDONLY);

    options.daemon_path = self;
    options.daemon_arguments = arguments;
    assert_ok(gpupool_open(&options, &client));
    pthread_sigmask(SIG_SETMASK, &before, &after);
    assert_int_equal(sigismember(&after, SIGUSR1), 1);
    assert_int_equal(sigismember(&after, SIGUSR2), 0);
    snprintf(path, sizeof path, "%s", gpupool_socket_path(client));
    assert_memory_equal(path, runtime_directory, strlen(runtime_directory));
    assert_int_equal(stat(path, &status), 0);
    *strrchr(path, '/') = '\0';
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0700);
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1000, NULL, GPUPOOL_NOW, 0, &buffer));
    gpupool_close(client);
    await_no_file(path);
    assert_int_equal(waitpid(-1, NULL, WNOHANG),
                     0); /* the exporter alone is a child: neither it nor a zombie */
    close(stray);
    signal(SIGUSR1, SIG_DFL);
}

static void private_daemon_that_fails_leaves_nothing(void **state) {
    (void)state;
    static const struct {
        const char *mode;
        int error;
        const char *word;
    } cases[] = {
        {"fail", GPUPOOL_E_CONNECT, "ended before it served"},
        {"hang", GPUPOOL_E_TIMED_OUT, "killed"},
        {"junk", GPUPOOL_E_CONNECT, "killed"},
    };
    struct gpupool_options options = options_for("private");
    struct gpupool_client *client = NULL;
    char text[100];

    setenv("GPUPOOL_DAEMON", self, 1);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "  --mode\t%s ", cases[i].mode);
        setenv("GPUPOOL_DAEMON_ARGS", text, 1);
        options.connect_timeout_ns = cases[i].error == GPUPOOL_E_TIMED_OUT ? 4 * IMPATIENT_NS : PATIENT_NS;
        assert_error(gpupool_open(&options, &client), cases[i].error);
        assert_text_has(cases[i].word);
        assert_null(client);
        assert_int_equal(rmdir(runtime_directory), 0); /* empty */
        assert_int_equal(mkdir(runtime_directory, 0700), 0);
    }
    options.daemon_path = "/nonexistent/gpupoold";
    assert_error(gpupool_open(&options, &client), GPUPOOL_E_CONNECT);
    assert_text_has("ENOENT");
    options.daemon_path = "gpupoold-of-no-path";
    assert_error(gpupool_open(&options, &client), GPUPOOL_E_CONNECT);
    assert_text_has("gpupoold-of-no-path");
    assert_int_equal(rmdir(runtime_directory), 0);
    assert_int_equal(mkdir(runtime_directory, 0700), 0);
    unsetenv("GPUPOOL_DAEMON");
    unsetenv("GPUPOOL_DAEMON_ARGS");
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--private") == 0)
        return private_daemon_main(argv);
    fixture_init();
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    snprintf(runtime_directory, sizeof runtime_directory, "/tmp/gpupool-run-XXXXXX");
    if (mkdtemp(runtime_directory) == NULL)
        return 1;
    setenv("XDG_RUNTIME_DIR", runtime_directory, 1);
    const struct CMUnitTest tests[] = {
        TEST(forked_children_are_refused),
        TEST(private_daemon_serves_and_leaves_nothing),
        TEST(private_daemon_that_fails_leaves_nothing),
    };
    int failed = cmocka_run_group_tests_name("client_process", tests, NULL, NULL);
    if (rmdir(runtime_directory) < 0) {
        fprintf(stderr, "%s is not empty\n", runtime_directory);
        failed++;
    }
    fixture_deinit();
    return failed;
}
