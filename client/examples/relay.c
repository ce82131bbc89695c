/* SPDX-License-Identifier: Apache-2.0 */
/*
 * relay [--gpu cuda|sim] [FILE…]
 *
 * Sends files from process to process through the memory of a GPU, and shows what happens to a worker's
 * memory when the worker is killed. It starts a daemon of its own, which ends with it.
 *
 * First a loader reads the files into pinned host buffers, copies them to device buffers and hands these to a
 * writer, which copies them back and writes them out; the copies are compared with the files, byte by byte.
 * Then a holder acquires buffers and is killed, and its memory is seen to come back. Last, acquire and
 * release are timed, beside plain allocation. Each part says in a line what it does, and then what came out.
 *
 * Without files it chooses some. Without a GPU it has the daemon simulate one, and its first line says so. It
 * exits with 0 when all of this held.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "relay.h"

#define POOLS_MAX      64
#define WORKERS_MAX    8
#define RETURN_NS      (30 * NS_PER_S) /* how long a killed worker's memory may stay away */
#define RETURN_POLL_MS 5               /* how often it is looked for */
#define NO_PROGRAM     127             /* the exit status of a child that could not execute this program */

const char *relay_role = "relay";

/* Whom the signal handler ends; 0: a free place. */
static volatile sig_atomic_t workers[WORKERS_MAX];
static volatile sig_atomic_t interrupted;

int fail(const char *format, ...) {
    va_list arguments;
    fflush(stdout);
    fprintf(stderr, "%s: ", relay_role);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return -1;
}

int fail_gpupool(const char *what) {
    return fail("%s: %s", what, gpupool_error_text());
}

int fail_system(const char *format, ...) {
    int error = errno;
    char what[4352];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    return fail("%s: %s", what, strerror(error));
}

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

int write_whole(int fd, const void *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = write(fd, (const char *)bytes + done, size - done);
        if (n < 0 && errno != EINTR)
            return -1;
        if (n > 0)
            done += (size_t)n;
    }
    return 0;
}

int read_whole(int fd, void *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = read(fd, (char *)bytes + done, size - done);
        if (n < 0 && errno != EINTR)
            return -1;
        if (n == 0) {
            errno = ENODATA;
            return done == 0 ? 0 : -1;
        }
        if (n > 0)
            done += (size_t)n;
    }
    return 1;
}

/* --- workers --- */

/* Workers that are killed make the program fail in its ordinary way, and it cleans up behind itself. */
static void on_signal(int number) {
    interrupted = number;
    for (int i = 0; i < WORKERS_MAX; i++)
        if (workers[i] != 0)
            kill(workers[i], SIGKILL);
}

int spawn_worker(const char *role, const int *descriptors, char *const *arguments) {
    size_t count = 0;
    int place = 0;

    while (arguments[count] != NULL)
        count++;
    while (place < WORKERS_MAX - 1 && workers[place] != 0)
        place++;
    char **argv = calloc(count + 4, sizeof *argv);
    if (argv == NULL)
        return fail_system("starting the %s", role);
    argv[0] = (char *)"relay";
    argv[1] = (char *)"--worker";
    argv[2] = (char *)role;
    memcpy(argv + 3, arguments, count * sizeof *argv);

    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        for (; *descriptors >= 0; descriptors++) /* everything else closes by itself */
            if (fcntl(*descriptors, F_SETFD, 0) < 0)
                _exit(NO_PROGRAM);
        execv("/proc/self/exe", argv);
        _exit(NO_PROGRAM);
    }
    free(argv);
    if (pid < 0)
        return fail_system("starting the %s", role);
    workers[place] = pid;
    if (interrupted) /* between the fork and the line above */
        kill(pid, SIGKILL);
    return pid;
}

/* Returns the worker's wait status. */
static int collect_worker(int pid) {
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    for (int i = 0; i < WORKERS_MAX; i++)
        if (workers[i] == pid)
            workers[i] = 0;
    return status;
}

int wait_for_worker(int pid, const char *role) {
    int status = collect_worker(pid);
    if (WIFSIGNALED(status))
        return fail("the %s was ended by signal %d", role, WTERMSIG(status));
    return WEXITSTATUS(status) != 0 ? fail("the %s failed", role) : 0;
}

/* --- the pools --- */

static int list_pools(struct gpupool_client *client, struct gpupool_pool *pools, size_t *ret_count) {
    if (gpupool_pools(client, pools, POOLS_MAX, ret_count) < 0)
        return fail_gpupool("listing the pools");
    if (*ret_count > POOLS_MAX)
        *ret_count = POOLS_MAX;
    return 0;
}

static int sum_taken(struct gpupool_client *client, uint64_t *ret_bytes) {
    struct gpupool_pool pools[POOLS_MAX];
    size_t count;
    uint64_t bytes = 0;

    if (list_pools(client, pools, &count) < 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        bytes += pools[i].leased_bytes + pools[i].quarantined_bytes;
    *ret_bytes = bytes;
    return 0;
}

/* --- the first part: the relay --- */

struct pipes {
    int parcels[2], acknowledgements[2], loaded[2], written[2];
};

static int pipes_open(struct pipes *pipes) {
    int(*const all[])[2] = {&pipes->parcels, &pipes->acknowledgements, &pipes->loaded, &pipes->written};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (pipe2(*all[i], O_CLOEXEC) < 0)
            return fail_system("making a pipe");
    return 0;
}

static int spawn_loader(const struct pipes *pipes, const struct file_list *files) {
    char numbers[3][16];
    const int descriptors[] = {pipes->parcels[1], pipes->acknowledgements[0], pipes->loaded[1], -1};
    char **arguments = calloc(files->count + 4, sizeof *arguments);

    if (arguments == NULL)
        return fail_system("starting the loader");
    for (int i = 0; i < 3; i++) {
        snprintf(numbers[i], sizeof numbers[i], "%d", descriptors[i]);
        arguments[i] = numbers[i];
    }
    memcpy(arguments + 3, files->paths, files->count * sizeof *arguments);
    int pid = spawn_worker("loader", descriptors, arguments);
    free(arguments);
    return pid;
}

static int spawn_writer(const struct pipes *pipes, const struct file_list *files, const char *directory) {
    char numbers[3][16], count[24];
    const int descriptors[] = {pipes->parcels[0], pipes->acknowledgements[1], pipes->written[1], -1};

    for (int i = 0; i < 3; i++)
        snprintf(numbers[i], sizeof numbers[i], "%d", descriptors[i]);
    snprintf(count, sizeof count, "%zu", files->count);
    return spawn_worker("writer", descriptors,
                        (char *[]){numbers[0], numbers[1], numbers[2], (char *)directory, count, NULL});
}

static int relay_files(const struct file_list *files, const char *directory) {
    struct work_report loaded, written;
    struct pipes pipes;

    if (pipes_open(&pipes) < 0)
        return -1;
    int loader = spawn_loader(&pipes, files);
    int writer = loader < 0 ? -1 : spawn_writer(&pipes, files, directory);
    /* Here only the reports are read; and a worker sees the end of a pipe when the other worker is gone. */
    close(pipes.parcels[0]), close(pipes.parcels[1]);
    close(pipes.acknowledgements[0]), close(pipes.acknowledgements[1]);
    close(pipes.loaded[1]), close(pipes.written[1]);
    bool reported = writer >= 0 && read_whole(pipes.loaded[0], &loaded, sizeof loaded) == 1 &&
                    read_whole(pipes.written[0], &written, sizeof written) == 1;
    close(pipes.loaded[0]), close(pipes.written[0]);
    int r = loader < 0 ? -1 : wait_for_worker(loader, "loader");
    if (writer < 0 || wait_for_worker(writer, "writer") < 0)
        r = -1;
    if (r < 0)
        return r;
    if (!reported || loaded.parcels != written.parcels || loaded.size_bytes != written.size_bytes)
        return fail("loader and writer do not agree on what was relayed");
    double seconds = (double)(written.end_ns - loaded.begin_ns) / (double)NS_PER_S;
    printf(
        "   %zu file%s, %.1f MiB in %llu parcel%s: %.2f GB/s, first maps and growth of the pools included\n",
        files->count, files->count == 1 ? "" : "s", (double)written.size_bytes / (double)MIB,
        (unsigned long long)written.parcels, written.parcels == 1 ? "" : "s",
        (double)written.size_bytes / 1e9 / (seconds > 0 ? seconds : 1));
    return 0;
}

/* The copies and their directory. */
static void remove_copies(const char *directory, size_t count) {
    char path[COPY_PATH_SIZE];
    for (size_t i = 0; i < count; i++) {
        if (unlink(copy_path(directory, (uint32_t)i, path)) < 0 && errno != ENOENT)
            fail_system("removing %s", path);
    }
    if (rmdir(directory) < 0)
        fail_system("removing %s", directory);
}

static int relay_and_compare(const struct file_list *files) {
    char directory[DIRECTORY_SIZE];
    const char *base = getenv("TMPDIR");

    snprintf(directory, sizeof directory, "%s/gpupool-relay-XXXXXX",
             base != NULL && *base == '/' ? base : "/tmp");
    if (mkdtemp(directory) == NULL)
        return fail_system("making %s", directory);
    printf("\n1. Files go from process to process through GPU memory, which both processes map.\n"
           "   A loader copies them to the GPU. A writer takes the same memory by its tokens, and writes the "
           "files.\n");
    int r = relay_files(files, directory);
    if (r == 0)
        r = files_compare(files, directory);
    remove_copies(directory, files->count);
    return r;
}

/* --- the second part: a worker is killed --- */

/* Waits until nothing more is taken than before. *ret_ns: since the kill. */
static int wait_until_returned(struct gpupool_client *client, uint64_t taken_before, uint64_t killed_ns,
                               uint64_t *ret_ns) {
    uint64_t taken;

    do {
        if (sum_taken(client, &taken) < 0)
            return -1;
        *ret_ns = now_ns() - killed_ns;
        if (taken == taken_before)
            return 0;
        poll(NULL, 0, RETURN_POLL_MS);
    } while (now_ns() - killed_ns < RETURN_NS && !interrupted);
    return fail("%.1f MiB of the killed holder did not come back",
                (double)(taken - taken_before) / (double)MIB);
}

/* Starts the holder, and waits until it has its memory. */
static int start_holder(struct holdings *ret_held, int *ret_pid) {
    char number[16];
    int report[2];

    if (pipe2(report, O_CLOEXEC) < 0)
        return fail_system("making a pipe");
    snprintf(number, sizeof number, "%d", report[1]);
    *ret_pid = spawn_worker("holder", (const int[]){report[1], -1}, (char *[]){number, NULL});
    close(report[1]);
    int r = *ret_pid < 0 ? -1 : 0;
    if (r == 0 && read_whole(report[0], ret_held, sizeof *ret_held) != 1)
        r = wait_for_worker(*ret_pid, "holder") < 0 ? -1 : fail("the holder did not report");
    close(report[0]);
    return r;
}

static int kill_holder(struct gpupool_client *client) {
    struct holdings held;
    uint64_t before, during, returned_ns;
    int pid = -1;

    printf("\n2. A process is killed while it holds memory, and the memory comes back to the pools.\n");
    if (sum_taken(client, &before) < 0 || start_holder(&held, &pid) < 0)
        return -1;
    int r = sum_taken(client, &during);
    if (r == 0 && during - before != held.device_bytes + held.host_bytes)
        r = fail("the pools do not show what the holder holds");
    if (r == 0)
        r = measure_first_maps(client, &held);
    uint64_t killed_ns = now_ns();
    kill(pid, SIGKILL);
    int status = collect_worker(pid);
    if (r == 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
        r = fail("the holder ended before it was killed");
    if (r == 0)
        r = wait_until_returned(client, before, killed_ns, &returned_ns);
    if (r == 0)
        printf("   process %d held %.0f MiB of the GPU and %.0f MiB of host memory: all back %.1f ms after "
               "the kill\n",
               pid, (double)held.device_bytes / (double)MIB, (double)held.host_bytes / (double)MIB,
               (double)returned_ns / 1e6);
    return r;
}

/* --- the whole --- */

static int open_daemon(const char *gpu, struct gpupool_client **ret_client) {
    const char *automatic[] = {"--log-level", "error", NULL};
    const char *wanted[] = {"--log-level", "error", "--gpu", gpu, NULL};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    options.socket = "private";
    options.daemon_arguments = gpu != NULL ? wanted : automatic;
    if (gpupool_open(&options, ret_client) < 0)
        return fail_gpupool("opening a client with a daemon of its own");
    return 0;
}

/* Starts the daemon, with a simulated GPU where there is none, and says which it is. */
static int start(const char *gpu, struct gpupool_client **ret_client) {
    struct gpupool_pool pools[POOLS_MAX];
    const struct gpupool_pool *device = NULL;
    size_t count;
    const char *why = "as asked for";

    if (open_daemon(gpu, ret_client) < 0)
        return -1;
    if (gpupool_gpu_kind(*ret_client) == GPUPOOL_GPU_NONE && gpu == NULL) {
        gpupool_close(*ret_client);
        *ret_client = NULL;
        why = "the daemon found no GPU";
        if (open_daemon("sim", ret_client) < 0)
            return -1;
    }
    if (list_pools(*ret_client, pools, &count) < 0)
        return -1;
    for (size_t i = 0; i < count && device == NULL; i++)
        if (pools[i].kind == GPUPOOL_POOL_DEVICE && pools[i].device == 0)
            device = &pools[i];
    if (device == NULL)
        return fail("the daemon has no device pool, or its GPU is not visible here (CUDA_VISIBLE_DEVICES?)");
    if (gpupool_gpu_kind(*ret_client) == GPUPOOL_GPU_SIM)
        printf("relay: on a SIMULATED GPU (%s): device memory is ordinary memory of this machine\n", why);
    else
        printf("relay: on a real GPU: %s, %s\n", device->name, device->uuid);
    return 0;
}

static int run(const char *gpu, const struct file_list *files) {
    struct gpupool_client *client = NULL;

    int r = start(gpu, &client);
    if (r == 0 &&
        setenv("GPUPOOL_SOCKET", gpupool_socket_path(client), 1) < 0) /* where the workers connect */
        r = fail_system("setting GPUPOOL_SOCKET");
    if (r == 0)
        r = relay_and_compare(files);
    if (r == 0)
        r = kill_holder(client);
    if (r == 0)
        r = measure_and_print(client);
    gpupool_close(client);
    return r;
}

static int usage(FILE *file, int status) {
    fprintf(file,
            "usage: relay [--gpu cuda|sim] [FILE...]\n"
            "Relays files through GPU memory, from process to process, and measures it. Without files it\n"
            "chooses some tens of MiB of this machine's. $GPUPOOL_DAEMON names the daemon's program.\n");
    return status;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"gpu", required_argument, NULL, 'g'}, {"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    struct file_list files = {0};
    const char *gpu = NULL;
    int option, r = 0;

    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && strcmp(argv[1], "--worker") == 0)
        return worker_main(argc - 2, argv + 2);
    while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
        if (option == 'h')
            return usage(stdout, EXIT_SUCCESS);
        if (option != 'g')
            return usage(stderr, EXIT_FAILURE);
        gpu = optarg;
    }
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);

    for (int i = optind; i < argc && r == 0; i++)
        r = files_add(&files, argv[i]);
    if (r == 0 && files.count == 0)
        r = files_choose(&files);
    if (r == 0)
        r = run(gpu, &files);
    files_deinit(&files);
    if (r == 0 && interrupted)
        r = fail("interrupted");
    if (r == 0 && (fflush(stdout) != 0 || ferror(stdout)))
        r = fail_system("writing the output");
    return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
