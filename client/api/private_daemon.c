/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/private_daemon.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/high_fd.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"
#include "client/session/socket.h"
#include "gpu/gpu.h"

/* Where the daemon finds the pipe that it reports on: the first number after standard error. */
#define READY_FD      3
#define READY_FD_TEXT "3"

/* How long a killed daemon may take to be gone before its files are removed all the same. */
#define KILL_TIMEOUT_NS (5 * NS_PER_S)

/* The messages in the pipe before the daemon's "1": from the forked process, its pid; and, when the
 * program could not be executed, why. */
struct birth {
    int32_t pid;
};
#define STILLBIRTH_MARK 'E' /* and an int32_t, errno */
#define READY_MARK      '1'

struct launch {
    char directory[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
    char socket_path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
    char admin_path[sizeof(((struct sockaddr_un *)NULL)->sun_path)];
    char program[4096];
    char **argv;
    char **own_arguments; /* in argv: those that are not the library's */
    char *split; /* $GPUPOOL_DAEMON_ARGS, cut at its blanks; argv points into it */
};

static void launch_deinit(struct launch *launch) {
    free(launch->argv);
    free(launch->split);
}

static void launch_remove_files(const struct launch *launch) {
    if (launch->directory[0] == '\0')
        return;
    char sim_path[sizeof launch->socket_path + sizeof GPU_SIM_PATH_SUFFIX];
    snprintf(sim_path, sizeof sim_path, "%s" GPU_SIM_PATH_SUFFIX, launch->socket_path);
    unlink(sim_path);
    const char *paths[] = {launch->socket_path, launch->admin_path};
    for (unsigned i = 0; i < sizeof paths / sizeof *paths; i++) {
        char lock[sizeof launch->socket_path + sizeof ".lock"]; /* the daemon's, beside its socket */
        snprintf(lock, sizeof lock, "%s.lock", paths[i]);
        unlink(paths[i]);
        unlink(lock);
    }
    rmdir(launch->directory);
}

/* The name leaves room for the sockets' names. */
static void set_directory(struct launch *launch, const char *path, size_t length) {
    memcpy(launch->directory, path, length);
    launch->directory[length] = '\0';
    snprintf(launch->socket_path, sizeof launch->socket_path, "%.*s/gpupool.sock", (int)length, path);
    snprintf(launch->admin_path, sizeof launch->admin_path, "%.*s/admin.sock", (int)length, path);
}

/* A directory whose name leaves room for the sockets' names in it. */
static int make_directory(struct launch *launch) {
    const char *bases[] = {getenv("XDG_RUNTIME_DIR"), "/tmp"};
    int error = ENOENT;

    for (unsigned i = 0; i < sizeof bases / sizeof *bases; i++) {
        char path[sizeof launch->directory];
        if (bases[i] == NULL || bases[i][0] != '/')
            continue;
        int length = snprintf(path, sizeof path, "%s/gpupool-XXXXXX", bases[i]);
        if (length < 0 || (size_t)length + sizeof "/gpupool.sock" > sizeof path)
            continue;
        if (mkdtemp(path) == NULL) {
            error = errno;
            continue;
        }
        set_directory(launch, path, (size_t)length);
        return 0;
    }
    return error_set(GPUPOOL_E_CONNECT,
                     "making a directory for the private daemon in $XDG_RUNTIME_DIR or /tmp: %s (%s)",
                     strerrorname_np(error), strerrordesc_np(error));
}

/* Looks a name without a slash up in PATH, as execvp does. Done here, because execvp may allocate after a
 * fork. */
static bool find_in_path(const char *name, char *ret_program, size_t size) {
    const char *path = getenv("PATH");

    if (strchr(name, '/') != NULL)
        return snprintf(ret_program, size, "%s", name) < (int)size;
    while (path != NULL && *path != '\0') {
        size_t length = strcspn(path, ":");
        int n = snprintf(ret_program, size, "%.*s/%s", (int)length, path, name);
        if (length > 0 && n > 0 && (size_t)n < size && access(ret_program, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

/* Lies in the library, for dladdr(). */
static const char library_itself[] = "libgpupool-client";

/* The daemon of the installation that this library is of, wherever that was moved. Returns path, or NULL
 * where there is none. */
static const char *find_beside_library(char path[static PATH_MAX]) {
    Dl_info library;

    if (dladdr(library_itself, &library) == 0 || library.dli_fname == NULL)
        return NULL;
    const char *name = strrchr(library.dli_fname, '/');
    int n = name == NULL ? -1
                         : snprintf(path, PATH_MAX, "%.*s/" GPUPOOL_DAEMON_FROM_LIBRARY,
                                    (int)(name - library.dli_fname), library.dli_fname);
    return n > 0 && n < PATH_MAX && access(path, X_OK) == 0 ? path : NULL;
}

static int find_program(struct launch *launch, const char *program) {
    char beside[PATH_MAX];

    if (program == NULL)
        program = getenv("GPUPOOL_DAEMON");
    if (program == NULL || *program == '\0')
        program = find_beside_library(beside);
    if (program == NULL)
        program = access(GPUPOOL_DAEMON_PATH, X_OK) == 0 ? GPUPOOL_DAEMON_PATH : "gpupoold";
    if (!find_in_path(program, launch->program, sizeof launch->program))
        return error_set(GPUPOOL_E_CONNECT,
                         "starting a private daemon: no program %s (looked in $GPUPOOL_DAEMON, %s and PATH)",
                         program, GPUPOOL_DAEMON_PATH);
    return 0;
}

static int make_argv(struct launch *launch, const char *const *arguments) {
    const char *fixed[] = {launch->program,  "--private",        "--socket",   launch->socket_path,
                           "--admin-socket", launch->admin_path, "--ready-fd", READY_FD_TEXT};
    size_t fixed_count = sizeof fixed / sizeof *fixed, count = 0;
    const char *text = arguments == NULL ? getenv("GPUPOOL_DAEMON_ARGS") : NULL;

    if (text != NULL) {
        launch->split = strdup(text);
        if (launch->split == NULL)
            goto no_memory;
        count = strlen(text) / 2 + 1; /* at most: one letter and one blank each */
    }
    for (size_t i = 0; arguments != NULL && arguments[i] != NULL; i++)
        count++;
    launch->argv = calloc(fixed_count + count + 1, sizeof *launch->argv);
    if (launch->argv == NULL)
        goto no_memory;
    size_t n = 0;
    for (; n < fixed_count; n++)
        launch->argv[n] = (char *)fixed[n];
    launch->own_arguments = launch->argv + n;
    for (size_t i = 0; arguments != NULL && arguments[i] != NULL; i++)
        launch->argv[n++] = (char *)arguments[i];
    char *rest = NULL;
    if (launch->split != NULL)
        for (char *word = strtok_r(launch->split, " \t\n", &rest); word != NULL;
             word = strtok_r(NULL, " \t\n", &rest))
            launch->argv[n++] = word;
    return 0;

no_memory:
    return error_set(GPUPOOL_E_NO_MEMORY, "no memory for the private daemon's arguments");
}

/* Only what is safe between fork and exec in a process with threads from here on. */

static void child_close_from(int first) {
    if (syscall(SYS_close_range, (unsigned)first, ~0u, 0) == 0)
        return;
    /* Before Linux 5.9. The limit may be a billion; descriptors above this many are not worth minutes. */
    long limit = sysconf(_SC_OPEN_MAX);
    if (limit < 0 || limit > 65536)
        limit = 65536;
    for (int fd = first; fd < limit; fd++)
        close(fd);
}

static void child_write(const void *bytes, size_t size) {
    ssize_t n;
    do
        n = write(READY_FD, bytes, size);
    while (n < 0 && errno == EINTR);
}

static _Noreturn void child_fail(void) {
    int32_t error = errno;
    char stillbirth[1 + sizeof error] = {STILLBIRTH_MARK};
    memcpy(stillbirth + 1, &error, sizeof error);
    child_write(stillbirth, sizeof stillbirth);
    _exit(127);
}

static _Noreturn void child_run(struct launch *launch, int ready_fd) {
    struct birth birth = {.pid = getpid()};
    int null_fd;

    if (ready_fd != READY_FD) {
        if (dup2(ready_fd, READY_FD) < 0)
            _exit(127);
    } else if (fcntl(ready_fd, F_SETFD, 0) < 0)
        _exit(127);
    child_write(&birth, sizeof birth);
    null_fd = open("/dev/null", O_RDWR);
    if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 || dup2(null_fd, STDOUT_FILENO) < 0)
        child_fail();
    if (fcntl(STDERR_FILENO, F_GETFD) < 0 && dup2(null_fd, STDERR_FILENO) < 0)
        child_fail();
    child_close_from(READY_FD + 1);

    /* Handlers are the program's, and ignored signals would stay ignored beyond exec. The mask comes last:
     * nothing may run the program's handlers here. */
    struct sigaction standard = {.sa_handler = SIG_DFL};
    sigset_t none;
    for (int number = 1; number < NSIG; number++)
        sigaction(number, &standard, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execv(launch->program, launch->argv);
    child_fail();
}

/* Forks twice, so that the daemon is no child of this program: its waitpid() loops never see it. */
static int launch_fork(struct launch *launch, int ready_fd) {
    sigset_t all, saved;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &saved);
    pid_t middle = fork();
    int error = errno;
    if (middle == 0) {
        setsid();
        pid_t daemon = fork();
        if (daemon == 0)
            child_run(launch, ready_fd);
        _exit(daemon < 0 ? 1 : 0);
    }
    pthread_sigmask(SIG_SETMASK, &saved, NULL);
    if (middle < 0)
        return error_set(GPUPOOL_E_CONNECT, "starting a private daemon: fork: %s (%s)",
                         strerrorname_np(error), strerrordesc_np(error));
    /* The program may ignore SIGCHLD or collect any child that ends: then it is gone already (ECHILD). */
    while (waitpid(middle, NULL, 0) < 0 && errno == EINTR)
        ;
    return 0;
}

/* Reads size bytes. Returns 0, -ENODATA (end of file), -ETIMEDOUT or another negative errno. */
static int read_whole(int fd, void *bytes, size_t size, uint64_t deadline_ns) {
    for (size_t done = 0; done < size;) {
        int r = socket_wait(fd, POLLIN, deadline_ns);
        if (r < 0)
            return r;
        ssize_t n = read(fd, (char *)bytes + done, size - done);
        if (n == 0)
            return -ENODATA;
        if (n < 0 && errno != EINTR)
            return -errno;
        if (n > 0)
            done += (size_t)n;
    }
    return 0;
}

/* The daemon holds the pipe's other end until it serves; it is still the process of this pid for as long. */
static void launch_kill(int ready_fd, pid_t pid) {
    char byte;
    kill(pid, SIGKILL);
    uint64_t deadline_ns = clock_deadline_ns(clock_now_ns(), KILL_TIMEOUT_NS);
    while (read_whole(ready_fd, &byte, 1, deadline_ns) == 0)
        ;
}

/* Writes the arguments that the daemon was started with, each behind a blank, as a shell takes them. Words
 * that do not fit are left out. */
static void write_arguments(const struct launch *launch, char *text, size_t size) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,%+";
    size_t used = 0;

    text[0] = '\0';
    for (char **argument = launch->own_arguments; *argument != NULL; argument++) {
        bool is_plain = **argument != '\0' && (*argument)[strspn(*argument, plain)] == '\0';
        int n = snprintf(text + used, size - used, is_plain ? " %s" : " '%s'", *argument);
        if (n < 0 || (size_t)n >= size - used) {
            text[used] = '\0';
            return;
        }
        used += (size_t)n;
    }
}

static int launch_wait(struct launch *launch, int ready_fd, uint64_t deadline_ns) {
    char arguments[ERROR_TEXT_SIZE / 2];
    struct birth birth;
    int32_t error;
    char mark;

    int r = read_whole(ready_fd, &birth, sizeof birth, NS_FOREVER); /* comes at once: from before the exec */
    if (r < 0)
        return error_set(GPUPOOL_E_CONNECT, "starting a private daemon: fork failed");
    r = read_whole(ready_fd, &mark, 1, deadline_ns);
    if (r == 0 && mark == READY_MARK)
        return 0;
    if (r == 0 && mark == STILLBIRTH_MARK && read_whole(ready_fd, &error, sizeof error, deadline_ns) == 0)
        return error_set(GPUPOOL_E_CONNECT, "starting a private daemon: %s: %s (%s)", launch->program,
                         strerrorname_np(error), strerrordesc_np(error));
    if (r == -ENODATA) {
        write_arguments(launch, arguments, sizeof arguments);
        return error_set(
            GPUPOOL_E_CONNECT,
            "the private daemon ended before it served; its standard error says why, or run: %s --private "
            "--socket /tmp/gpupool-test.sock --admin-socket /tmp/gpupool-test-admin.sock%s",
            launch->program, arguments);
    }
    launch_kill(ready_fd, birth.pid);
    if (r == -ETIMEDOUT)
        return error_set(GPUPOOL_E_TIMED_OUT, "the private daemon (%s) did not serve in time and was killed",
                         launch->program);
    return error_set(GPUPOOL_E_CONNECT,
                     "the private daemon (%s) said something else than that it serves, and was killed",
                     launch->program);
}

static int launch_run(struct launch *launch, const char *program, const char *const *arguments,
                      uint64_t deadline_ns) {
    int ends[2];

    int r = find_program(launch, program);
    if (r < 0)
        return r;
    if (launch->directory[0] == '\0')
        r = make_directory(launch);
    if (r < 0)
        return r;
    r = make_argv(launch, arguments);
    if (r < 0)
        return r;
    if (pipe2(ends, O_CLOEXEC) < 0 || high_fds(ends) < 0)
        return error_set(GPUPOOL_E_CONNECT, "starting a private daemon: pipe: %s (%s)",
                         strerrorname_np(errno), strerrordesc_np(errno));
    _cleanup_(close_fdp) int read_end = ends[0];
    _cleanup_(close_fdp) int write_end = ends[1];
    r = launch_fork(launch, write_end);
    if (r < 0)
        return r;
    write_end = close_fd(write_end); /* so that the pipe ends with the daemon */
    return launch_wait(launch, read_end, deadline_ns);
}

int private_daemon_start(const char *program, const char *const *arguments, uint64_t deadline_ns,
                         char **ret_socket_path) {
    _cleanup_(launch_deinit) struct launch launch = {0};

    _cleanup_(freep) char *path =
        malloc(sizeof launch.socket_path); /* now: later there is a daemon to get rid of */
    if (path == NULL)
        return error_set(GPUPOOL_E_NO_MEMORY, "no memory for the private daemon's path");
    int r = launch_run(&launch, program, arguments, deadline_ns);
    if (r < 0) {
        launch_remove_files(&launch);
        return r;
    }
    memcpy(path, launch.socket_path, sizeof launch.socket_path);
    *ret_socket_path = take_ptr(&path);
    return 0;
}

int private_daemon_start_at(const char *socket_path, uint64_t deadline_ns) {
    _cleanup_(launch_deinit) struct launch launch = {0};

    set_directory(&launch, socket_path, (size_t)(strrchr(socket_path, '/') - socket_path));
    int r = launch_run(&launch, NULL, NULL, deadline_ns);
    if (r < 0)
        launch_remove_files(&launch);
    return r;
}
