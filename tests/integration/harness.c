/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/integration/harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "gpu/gpu.h"
#include "tests/device_export.h"
#include "tests/entries.h"
#include "tests/raw_client.h"

#define PLAN_TEXT_SIZE 1024u

#ifndef GPUPOOL_BUILT_DAEMON
#define GPUPOOL_BUILT_DAEMON "gpupoold"
#endif
#ifndef GPUPOOL_BUILT_TOOL
#define GPUPOOL_BUILT_TOOL "gpupoolctl"
#endif

#define ARGV_SIZE 64u
/* The descriptor that a spawned program is given. */
#define GIVEN_FD 3

/* Daemons that were started and have not been seen to end, and whether one ended badly. */
static unsigned daemons_running;
static bool daemon_ended_badly;

static const char *environment_or(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value != NULL && *value != '\0' ? value : otherwise;
}

const char *test_gpu(void) {
    return environment_or("GPUPOOL_TEST_GPU", "sim");
}

const char *test_daemon_path(void) {
    return environment_or("GPUPOOL_TEST_DAEMON", GPUPOOL_BUILT_DAEMON);
}

const char *test_tool_path(void) {
    return environment_or("GPUPOOL_TEST_TOOL", GPUPOOL_BUILT_TOOL);
}

bool test_is_simulated(void) {
    return strcmp(test_gpu(), "sim") == 0;
}

bool test_has_device(void) {
    return strcmp(test_gpu(), "none") != 0;
}

bool test_has_devices(unsigned count) {
    const struct gpu *gpu;
    unsigned there = 0;

    if (test_is_simulated())
        return true;
    return test_has_device() && gpu_cuda(&gpu) == 0 && gpu->device_count(&there) == 0 && there >= count;
}

bool test_is_full(void) {
    return getenv("GPUPOOL_TEST_FULL") != NULL;
}

unsigned test_stride(unsigned short_run) {
    return test_is_full() ? 1 : short_run;
}

bool test_is_sanitized(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
    return true;
#else
    return false;
#endif
#else
    return false;
#endif
}

unsigned test_number(const char *name, unsigned otherwise) {
    const char *text = getenv(name);
    return text != NULL && *text >= '0' && *text <= '9' ? (unsigned)strtoul(text, NULL, 10) : otherwise;
}

bool test_exports_vmm(void) {
    return device_export_is_vmm();
}

bool test_driver_has_descriptors(void) {
    return test_exports_vmm() && !test_is_simulated();
}

bool test_host_exports_vmm(void) {
    return test_has_device() && host_export_is_vmm();
}

void test_needs_memfds(void) {
    setenv("GPUPOOL_TEST_HOST_EXPORT", "memfd", 1);
}

/* A call of the driver for legacy handles, and its counterpart. */
static const char *const counterparts[][2] = {
    {"memory_allocate", "vmm_create"},
    {"memory_free", "vmm_release"},
    {"ipc_export", "vmm_export"},
    {"ipc_open", "vmm_import"},
    {"cudaMalloc", "cuMemCreate"},
    {"cudaFree", "cuMemRelease"},
    {"cudaIpcGetMemHandle", "cuMemExportToShareableHandle"},
};

const char *test_device_call(const char *call) {
    for (size_t i = 0; test_exports_vmm() && i < sizeof counterparts / sizeof *counterparts; i++)
        if (strcmp(call, counterparts[i][0]) == 0)
            return counterparts[i][1];
    return call;
}

/* Copies a plan of failing or hanging calls, with the calls that the segments of this run are made with. */
static void translate_plan(const char *plan, char text[static PLAN_TEXT_SIZE]) {
    size_t used = 0;

    while (*plan != '\0' && used + 64 < PLAN_TEXT_SIZE) {
        size_t length = strspn(plan, "abcdefghijklmnopqrstuvwxyz_64");
        char word[64];
        if (length == 0 || length >= sizeof word) {
            text[used++] = *plan++;
            continue;
        }
        snprintf(word, sizeof word, "%.*s", (int)length, plan);
        used += (size_t)snprintf(text + used, PLAN_TEXT_SIZE - used, "%s", test_device_call(word));
        plan += length;
    }
    text[used] = '\0';
}

const char *test_config(char text[TEST_CONFIG_SIZE], unsigned device_mib, unsigned host_mib) {
    snprintf(text, TEST_CONFIG_SIZE,
             "[device]\nlimit = %uMiB\nstep = 4MiB\n[host]\nlimit = %uMiB\nstep = 4MiB\n", device_mib,
             host_mib);
    return text;
}

const char *test_zero_lines(void) {
    return test_exports_vmm() ? "\n[device]\nzero = daemon\n" : "";
}

/* --- processes --- */

bool test_become(uid_t uid) {
    return uid == 0 ||
           (setgroups(0, NULL) == 0 && setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0);
}

void test_run_daemon_by(char *path, const char *command) {
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    dprintf(fd, "#!/bin/sh\nexec %s '%s' \"$@\"\n", command, test_daemon_path());
    assert_int_equal(fchmod(fd, 0755), 0);
    close(fd);
    setenv("GPUPOOL_TEST_DAEMON", path, 1);
}

/* Between fork and exec. */
static void child_exec(const char *const *argv, const char *const *environment, int fd, const char *log,
                       uid_t uid) __attribute__((noreturn));

static void child_exec(const char *const *argv, const char *const *environment, int fd, const char *log,
                       uid_t uid) {
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves no process behind */
    if (log != NULL) {
        int log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (log_fd < 0 || dup2(log_fd, STDOUT_FILENO) < 0 || dup2(log_fd, STDERR_FILENO) < 0)
            _exit(126);
    }
    if (fd == GIVEN_FD)
        fcntl(fd, F_SETFD, 0);
    else if (fd >= 0 && dup2(fd, GIVEN_FD) < 0)
        _exit(126);
    for (; environment != NULL && *environment != NULL; environment++) {
        char name[64];
        size_t length = strcspn(*environment, "=");
        snprintf(name, sizeof name, "%.*s", (int)length, *environment);
        if ((*environment)[length] != '=' || (*environment)[length + 1] == '\0') {
            unsetenv(name);
            continue;
        }
        const char *value = *environment + length + 1;
        char plan[PLAN_TEXT_SIZE];
        if (strcmp(name, "GPUPOOL_SIM_FAIL") == 0 || strcmp(name, "GPUPOOL_SIM_HANG") == 0) {
            translate_plan(value, plan);
            value = plan;
        }
        setenv(name, value, 1);
    }
    if (uid != 0) {
        if (!test_become(uid))
            _exit(126);
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* changing the user undid it */
    }
    execvp(argv[0], (char *const *)argv);
    fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

/* descriptors: the soft and the hard limit; 0: the test's own. */
static pid_t spawn_as(const char *const *argv, const char *const *environment, int fd, const char *log,
                      uid_t uid, unsigned descriptors) {
    const struct rlimit limit = {descriptors, descriptors};
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (descriptors > 0 && setrlimit(RLIMIT_NOFILE, &limit) < 0)
            _exit(1);
        child_exec(argv, environment, fd, log, uid);
    }
    assert_true(pid > 0);
    return pid;
}

pid_t test_spawn(const char *const *argv, const char *const *environment, int fd, const char *log) {
    return spawn_as(argv, environment, fd, log, 0, 0);
}

int test_wait(pid_t pid) {
    int status = 0;

    TEST_REAP(pid, &status);
    return status;
}

bool test_has_ended(pid_t pid) {
    char path[64], text[256] = "";

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    if (file == NULL || fgets(text, sizeof text, file) == NULL)
        return true;
    const char *state = strrchr(text, ')'); /* a name may have parentheses in it */
    return state != NULL && strlen(state) > 2 && (state[2] == 'Z' || state[2] == 'X');
}

/* --- life --- */

static const char *gpu_of(const struct test_daemon *daemon) {
    return daemon->options.gpu != NULL ? daemon->options.gpu : test_gpu();
}

/* With the exports that the environment asks for, where there is a GPU to make such memory: at the end, so
 * that the lines keep their numbers. */
void daemon_write_config(struct test_daemon *daemon, const char *text) {
    _cleanup_(fclosep) FILE *file = fopen(daemon->config, "we");

    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    if (strcmp(gpu_of(daemon), "none") != 0)
        assert_true(fputs(device_export_lines(text), file) >= 0);
}

void daemon_prepare(struct test_daemon *daemon, const struct daemon_options *options) {
    *daemon = (struct test_daemon){.options = *options, .admin_fd = -1};
    snprintf(daemon->directory, sizeof daemon->directory, "/tmp/gpupool-test-XXXXXX");
    assert_non_null(mkdtemp(daemon->directory));
    if (options->for_all_users)
        assert_int_equal(chmod(daemon->directory, 0755), 0);
    if (options->uid != 0)
        assert_int_equal(chown(daemon->directory, options->uid, (gid_t)-1), 0);
    snprintf(daemon->socket, sizeof daemon->socket, "%s/gpupool.sock", daemon->directory);
    snprintf(daemon->admin_socket, sizeof daemon->admin_socket, "%s/admin.sock", daemon->directory);
    snprintf(daemon->config, sizeof daemon->config, "%s/gpupoold.conf", daemon->directory);
    snprintf(daemon->log, sizeof daemon->log, "%s/log", daemon->directory);
    daemon_write_config(daemon, options->config != NULL ? options->config : "");
}

void daemon_command(const struct test_daemon *daemon, const char *argv[static ARGV_SIZE]) {
    static char sim_gpus[16];
    unsigned n = 0;

    argv[n++] = test_daemon_path();
    argv[n++] = "--config";
    argv[n++] = daemon->config;
    argv[n++] = "--socket";
    argv[n++] = daemon->socket;
    argv[n++] = "--admin-socket";
    argv[n++] = daemon->admin_socket;
    argv[n++] = "--gpu";
    argv[n++] = gpu_of(daemon);
    if (daemon->options.sim_gpus > 0) {
        snprintf(sim_gpus, sizeof sim_gpus, "%u", daemon->options.sim_gpus);
        argv[n++] = "--sim-gpus";
        argv[n++] = sim_gpus;
    }
    for (unsigned i = 0; daemon->options.arguments != NULL && daemon->options.arguments[i] != NULL; i++) {
        assert_true(n + 3 < ARGV_SIZE);
        argv[n++] = daemon->options.arguments[i];
    }
    argv[n] = NULL;
}

void daemon_restart(struct test_daemon *daemon) {
    /* Settings of ctest, a service manager or the user's shell must not reach the daemon by accident. */
    static const char *const own[] = {
        "GPUPOOL_SIM_LATENCY=0", "GPUPOOL_SIM_FAIL=", "GPUPOOL_SIM_HANG=", "NOTIFY_SOCKET=", "WATCHDOG_USEC=",
        "WATCHDOG_PID=",         "LISTEN_FDS=",       "LISTEN_PID=",       "LISTEN_FDNAMES="};
    const char *argv[ARGV_SIZE], *environment[ARGV_SIZE];
    unsigned n_argv = 0, n_environment = 0;
    int ready[2];
    char byte;

    daemon_command(daemon, argv);
    while (argv[n_argv] != NULL)
        n_argv++;
    assert_true(n_argv + 2 < ARGV_SIZE);
    argv[n_argv++] = "--ready-fd";
    argv[n_argv++] = "3";
    argv[n_argv] = NULL;
    for (; n_environment < sizeof own / sizeof *own; n_environment++)
        environment[n_environment] = own[n_environment];
    for (unsigned i = 0; daemon->options.environment != NULL && daemon->options.environment[i] != NULL; i++)
        environment[n_environment++] = daemon->options.environment[i];
    environment[n_environment] = NULL;

    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    daemons_running++;
    daemon->pid = spawn_as(argv, environment, ready[1], daemon->log, daemon->options.uid,
                           daemon->options.descriptors);
    close(ready[1]);
    if (!daemon->options.unready) {
        struct pollfd poll_fd = {.fd = ready[0], .events = POLLIN};
        int n = poll(&poll_fd, 1, (int)(TEST_WAIT_NS / NS_PER_MS));
        if (n <= 0 || read(ready[0], &byte, 1) != 1) {
            _cleanup_(freep) char *log = daemon_log(daemon);
            close(ready[0]);
            kill(daemon->pid, SIGKILL);
            waitpid(daemon->pid, NULL, 0);
            daemon->pid = 0;
            fail_msg("the daemon does not serve:\n%s", log);
        }
    }
    close(ready[0]);
    if (daemon->options.for_all_users) {
        assert_int_equal(chmod(daemon->socket, 0666), 0);
        assert_int_equal(chmod(daemon->admin_socket, 0666), 0);
    }
}

void daemon_start(struct test_daemon *daemon, const struct daemon_options *options) {
    daemon_prepare(daemon, options);
    daemon_restart(daemon);
}

void daemon_signal(struct test_daemon *daemon, int number) {
    assert_true(daemon->pid > 0);
    assert_int_equal(kill(daemon->pid, number), 0);
}

int daemon_wait(struct test_daemon *daemon) {
    pid_t pid = daemon->pid;
    daemon->pid = 0;
    daemon->admin_fd = close_fd(daemon->admin_fd);
    int status = test_wait(pid);
    daemons_running--;
    return status;
}

void daemon_crash(struct test_daemon *daemon) {
    daemon_signal(daemon, SIGKILL);
    int status = daemon_wait(daemon);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

void daemon_remove(struct test_daemon *daemon) {
    DIR *directory = opendir(daemon->directory);
    if (directory == NULL)
        return;
    for (struct dirent *entry = readdir(directory); entry != NULL; entry = readdir(directory))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(directory), entry->d_name, 0);
    closedir(directory);
    rmdir(daemon->directory);
}

void daemon_stop(struct test_daemon *daemon) {
    daemon_signal(daemon, SIGTERM);
    int status = daemon_wait(daemon);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        _cleanup_(freep) char *log = daemon_log(daemon);
        daemon_ended_badly = true;
        fail_msg("the daemon ended with status 0x%x:\n%s", (unsigned)status, log);
    }
    assert_int_not_equal(access(daemon->socket, F_OK), 0);
    assert_int_not_equal(access(daemon->admin_socket, F_OK), 0);
    daemon_remove(daemon);
}

char *daemon_log(const struct test_daemon *daemon) {
    _cleanup_(fclosep) FILE *file = fopen(daemon->log, "re");
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    if (file != NULL)
        text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
    return text;
}

bool daemon_logged(const struct test_daemon *daemon, const char *text) {
    _cleanup_(freep) char *log = daemon_log(daemon);
    return strstr(log, text) != NULL;
}

/* Async-signal-safe. */
static void on_limit(int number) {
    static const char text[] = "the test did not end in its time\n";
    (void)number;
    (void)!write(STDERR_FILENO, text, sizeof text - 1);
    _exit(EXIT_FAILURE);
}

int test_begin(void **state) {
    (void)state;
    signal(SIGALRM, on_limit);
    alarm(TEST_LIMIT_S);
    return 0;
}

int test_end(void **state) {
    (void)state;
    alarm(0);
    return 0;
}

int test_finish(int failed) {
    return failed != 0 || daemons_running > 0 || daemon_ended_badly;
}

/* --- what the kernel tells --- */

static unsigned count_of(pid_t pid, const char *what) {
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, what);
    return count_entries(path) - 2; /* less "." and ".." */
}

unsigned daemon_descriptors(const struct test_daemon *daemon) {
    return count_of(daemon->pid, "fd");
}

unsigned daemon_threads(const struct test_daemon *daemon) {
    return count_of(daemon->pid, "task");
}

uint64_t daemon_private_bytes(const struct test_daemon *daemon) {
    unsigned long size, resident, shared;
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/statm", (int)daemon->pid);
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu %lu", &size, &resident, &shared), 3);
    return (uint64_t)(resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* --- what it tells itself --- */

static int admin_connect(const struct test_daemon *daemon) {
    int fd = raw_client_connect(daemon->admin_socket, SOCK_STREAM, TEST_WAIT_NS);
    if (fd < 0)
        fail_msg("%s: %s", daemon->admin_socket, strerror(errno));
    return fd;
}

/* One line, without its end. The caller's to free. */
static char *admin_read_line(int fd) {
    size_t used = 0, capacity = 1 << 16;
    char *text = malloc(capacity);

    assert_non_null(text);
    do {
        if (used + 1 == capacity) {
            capacity *= 2;
            text = realloc(text, capacity);
            assert_non_null(text);
        }
        ssize_t n = recv(fd, text + used, capacity - used - 1, 0);
        if (n <= 0)
            fail_msg("the admin socket gives no answer");
        used += (size_t)n;
    } while (text[used - 1] != '\n');
    text[used - 1] = '\0';
    return text;
}

cJSON *daemon_ask(struct test_daemon *daemon, const char *request) {
    if (daemon->admin_fd < 0)
        daemon->admin_fd = admin_connect(daemon);
    assert_int_equal(send(daemon->admin_fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    assert_int_equal(send(daemon->admin_fd, "\n", 1, MSG_NOSIGNAL), 1);
    _cleanup_(freep) char *text = admin_read_line(daemon->admin_fd);
    cJSON *reply = cJSON_Parse(text);
    if (reply == NULL)
        fail_msg("the daemon's answer to %s is not JSON: %s", request, text);
    return reply;
}

unsigned daemon_descriptors_at_rest(struct test_daemon *daemon) {
    unsigned before = 0, now;

    cJSON_Delete(daemon_ask(daemon, "{\"command\":\"ping\"}")); /* the connection for it counts, too */
    WAIT_UNTIL(daemon_number(daemon, "lingering_sockets") == 0); /* clients read their last replies soon */
    while ((now = daemon_descriptors(daemon)) != before) {
        before = now;
        cJSON_Delete(daemon_ask(daemon, "{\"command\":\"ping\"}"));
    }
    return now;
}

/* Adds up a member of the pools of a kind (NULL: of all), or takes the nth alone (-1: all). */
static uint64_t add_up(struct test_daemon *daemon, const char *kind, int nth, const char *member) {
    uint64_t sum = 0;
    int seen = 0, taken = 0;
    cJSON *reply = daemon_ask(daemon, "{\"command\":\"stats\"}"), *pool;

    cJSON_ArrayForEach(pool, cJSON_GetObjectItemCaseSensitive(reply, "pools")) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(pool, member);
        if (kind != NULL &&
            strcmp(cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(pool, "kind")), kind) != 0)
            continue;
        if (nth >= 0 && seen++ != nth)
            continue;
        if (!cJSON_IsNumber(value))
            fail_msg("the stats have no number %s", member);
        sum += (uint64_t)value->valuedouble;
        taken++;
    }
    cJSON_Delete(reply);
    if (taken == 0)
        fail_msg("there is no %s pool %d", kind != NULL ? kind : "", nth);
    return sum;
}

uint64_t daemon_pool(struct test_daemon *daemon, const char *kind, unsigned nth, const char *member) {
    return add_up(daemon, kind, (int)nth, member);
}

uint64_t daemon_sum(struct test_daemon *daemon, const char *member) {
    return add_up(daemon, NULL, -1, member);
}

uint64_t daemon_number(struct test_daemon *daemon, const char *member) {
    cJSON *reply = daemon_ask(daemon, "{\"command\":\"stats\"}");
    const cJSON *value =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(reply, "daemon"), member);
    if (!cJSON_IsNumber(value))
        fail_msg("the stats have no number daemon.%s", member);
    uint64_t number = (uint64_t)value->valuedouble;
    cJSON_Delete(reply);
    return number;
}

static unsigned count_sessions(struct test_daemon *daemon, pid_t pid, const char *state) {
    unsigned count = 0;
    cJSON *reply = daemon_ask(daemon, "{\"command\":\"sessions\"}"), *session;

    cJSON_ArrayForEach(session, cJSON_GetObjectItemCaseSensitive(reply, "sessions")) {
        const char *is = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(session, "state"));
        const cJSON *its_pid = cJSON_GetObjectItemCaseSensitive(session, "pid");
        assert_non_null(is);
        count += strcmp(is, state) == 0 && (pid == 0 || (pid_t)its_pid->valuedouble == pid);
    }
    cJSON_Delete(reply);
    return count;
}

unsigned daemon_sessions(struct test_daemon *daemon, const char *state) {
    return count_sessions(daemon, 0, state);
}

bool daemon_has_session(struct test_daemon *daemon, pid_t pid, const char *state) {
    return count_sessions(daemon, pid, state) > 0;
}
