/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost for a real GPU of a daemon whose device pool is of descriptors. It has no context: it takes next
 * to nothing of the GPU's memory, before clients and after them, and answers its first client in the time of
 * cuInit.
 *
 *     vmm_daemon [--rounds N]     exit status 0: it holds; 1: not so; 77: no GPU, or programs use it
 *
 * The memory is what nvidia-smi says of the whole GPU, so no other program may use it meanwhile. The time is
 * from the start of the program to the answer of HELLO, beside that of a program which calls cuInit() alone,
 * by turns. The daemon is $GPUPOOL_TEST_DAEMON.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"

#define USED_MIB_MAX   16.0 /* of the GPU */
#define START_MAX      1.3  /* to cuInit() alone */
#define ROUNDS_MAX     50u
#define PATIENCE_NS    (60 * NS_PER_S)
#define SETTLE_NS      (5 * NS_PER_S) /* the driver takes a process apart after its end */
#define LEASED_MIB     1024u
#define SKIPPED        77
#define CLIENT_MIB_MIN 100.0 /* a client with a context is seen, so what is not seen is not there */

static char directory[] = "/tmp/gpupool-vmm-daemon-XXXXXX", config[128], socket_path[128], admin_path[128];
static bool failed;

static void check(bool holds, const char *what) {
    printf("%s: %s\n", holds ? "ok" : "FAILED", what);
    failed |= !holds;
}

static void need(bool holds, const char *what) {
    if (holds)
        return;
    printf("FAILED: %s: %s\n", what, gpupool_error_text());
    exit(1);
}

/* The memory of the GPU that is in use, in MiB; below 0 where nvidia-smi does not tell. */
static double used_mib(void) {
    double mib = -1;
    FILE *pipe =
        popen("nvidia-smi --id=0 --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null", "r");

    if (pipe == NULL || fscanf(pipe, "%lf", &mib) != 1)
        mib = -1;
    if (pipe != NULL)
        pclose(pipe);
    return mib;
}

/* As used_mib(), once it is at a level or below, or stays above it. */
static double used_mib_settled(double level) {
    uint64_t end_ns = clock_now_ns() + SETTLE_NS;
    double mib = used_mib();

    while (mib > level && clock_now_ns() < end_ns)
        mib = used_mib();
    return mib;
}

static pid_t start(const char *const *argv) {
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execv(argv[0], (char *const *)argv);
        perror(argv[0]);
        _exit(1);
    }
    need(pid > 0, "fork");
    return pid;
}

static pid_t start_daemon(void) {
    const char *const arguments[] = {getenv("GPUPOOL_TEST_DAEMON"),
                                     "--gpu",
                                     "cuda",
                                     "--config",
                                     config,
                                     "--socket",
                                     socket_path,
                                     "--admin-socket",
                                     admin_path,
                                     "--log-level",
                                     "warning",
                                     NULL};
    return start(arguments);
}

static void stop_daemon(pid_t pid) {
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
}

/* A client that uses no CUDA, once the daemon answers it. */
static struct gpupool_client *open_plain(void) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;

    options.socket = socket_path;
    options.flags = GPUPOOL_OPEN_NO_CUDA | GPUPOOL_OPEN_NO_CACHE | GPUPOOL_OPEN_NO_THREAD;
    while (gpupool_open(&options, &client) != 0) {
        need(clock_now_ns() < end_ns, "the daemon does not answer");
        nanosleep(&(struct timespec){.tv_nsec = 200 * NS_PER_US}, NULL);
    }
    return client;
}

static double ms_since(uint64_t start_ns) {
    return (double)(clock_now_ns() - start_ns) / 1e6;
}

/* --- processes of their own --- */

static int play_init(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = NULL;

    if (library != NULL)
        *(void **)&init = dlsym(library, "cuInit");
    if (init == NULL || init(0) != 0)
        return 1;
    return write(STDOUT_FILENO, "1", 1) == 1 ? 0 : 1;
}

/* Takes device memory, says so, and waits for its end. */
static int play_client(void) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct gpupool_buffer buffer;
    uint32_t pool;

    options.socket = socket_path;
    need(gpupool_open(&options, &client) == 0 && gpupool_device_pool(client, 0, &pool) == 0 &&
             gpupool_acquire(client, pool, LEASED_MIB * MIB, NULL, PATIENCE_NS, GPUPOOL_ZERO, &buffer) == 0,
         "a client");
    need(write(STDOUT_FILENO, "1", 1) == 1, "a byte");
    pause();
    return 1;
}

/* Starts this program in a part, and waits for the byte that it says when it has got so far. */
static pid_t start_part(const char *part) {
    const char *const arguments[] = {"/proc/self/exe", "--part", part, socket_path, NULL};
    int ends[2];
    char byte;

    need(pipe(ends) == 0, "a pipe");
    fflush(stdout);
    int out = dup(STDOUT_FILENO);
    dup2(ends[1], STDOUT_FILENO);
    pid_t pid = start(arguments);
    dup2(out, STDOUT_FILENO);
    close(out);
    close(ends[1]);
    need(read(ends[0], &byte, 1) == 1, part);
    close(ends[0]);
    return pid;
}

static double time_init(void) {
    uint64_t start_ns = clock_now_ns();
    pid_t pid = start_part("init");
    double ms = ms_since(start_ns);

    waitpid(pid, NULL, 0);
    return ms;
}

static double time_daemon(void) {
    uint64_t start_ns = clock_now_ns();
    pid_t pid = start_daemon();
    struct gpupool_client *client = open_plain();
    double ms = ms_since(start_ns);

    gpupool_close(client);
    stop_daemon(pid);
    return ms;
}

/* --- what is checked --- */

static void check_memory(double at_rest_mib) {
    pid_t pid = start_daemon();
    struct gpupool_client *client = open_plain();
    double daemon_mib = used_mib() - at_rest_mib;

    printf("the daemon alone takes %.0f MiB of the GPU\n", daemon_mib);
    check(daemon_mib <= USED_MIB_MAX, "a daemon without clients takes at most 16 MiB");
    pid_t user = start_part("client");
    printf("with a client that has %u MiB: %.0f MiB\n", LEASED_MIB, used_mib() - at_rest_mib);
    check(used_mib() - at_rest_mib >= LEASED_MIB + CLIENT_MIB_MIN, "a client's context and memory are seen");
    kill(user, SIGKILL);
    waitpid(user, NULL, 0);
    uint64_t end_ns = clock_now_ns() + SETTLE_NS;
    struct gpupool_pool pools[32];
    size_t count;
    do { /* until the memory of the dead client has come back */
        need(gpupool_pools(client, pools, 32, &count) == 0 && count > 0, "asking for the pools");
    } while (pools[0].leased_bytes + pools[0].quarantined_bytes > 0 && clock_now_ns() < end_ns);
    daemon_mib = used_mib_settled(at_rest_mib + LEASED_MIB + USED_MIB_MAX) - at_rest_mib -
                 (double)pools[0].reserved_bytes / (double)MIB;
    printf("after the client, beside what the pool keeps: %.0f MiB\n", daemon_mib);
    check(daemon_mib <= USED_MIB_MAX, "the daemon takes no more after clients");
    gpupool_close(client);
    stop_daemon(pid);
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check_start(unsigned rounds) {
    double inits[ROUNDS_MAX] = {0}, daemons[ROUNDS_MAX] = {0};

    for (unsigned i = 0; i < rounds; i++) {
        inits[i] = time_init();
        daemons[i] = time_daemon();
    }
    qsort(inits, rounds, sizeof *inits, compare);
    qsort(daemons, rounds, sizeof *daemons, compare);
    double init = inits[rounds / 2], daemon = daemons[rounds / 2];
    printf("median of %u: cuInit alone %.1f ms (%.1f to %.1f), the daemon's first answer %.1f ms (%.1f to "
           "%.1f): %.2f\n",
           rounds, init, inits[0], inits[rounds - 1], daemon, daemons[0], daemons[rounds - 1], daemon / init);
    check(daemon <= START_MAX * init, "the daemon's first answer comes within 1.3 times cuInit alone");
}

int main(int argc, char **argv) {
    unsigned rounds = 7;

    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 4 && strcmp(argv[1], "--part") == 0) {
        snprintf(socket_path, sizeof socket_path, "%s", argv[3]);
        return strcmp(argv[2], "init") == 0 ? play_init() : play_client();
    }
    if (argc == 3 && strcmp(argv[1], "--rounds") == 0)
        rounds = (unsigned)strtoul(argv[2], NULL, 10);
    need(rounds > 0 && rounds <= ROUNDS_MAX && getenv("GPUPOOL_TEST_DAEMON") != NULL &&
             mkdtemp(directory) != NULL,
         "usage: GPUPOOL_TEST_DAEMON=… vmm_daemon [--rounds N]");
    snprintf(config, sizeof config, "%s/conf", directory);
    snprintf(socket_path, sizeof socket_path, "%s/socket", directory);
    snprintf(admin_path, sizeof admin_path, "%s/admin", directory);
    FILE *file = fopen(config, "we");
    need(file != NULL && fputs("[device]\nexport = vmm\n[host]\nlimit = 256MiB\n", file) >= 0 &&
             fclose(file) == 0,
         "a configuration");
    double at_rest_mib = used_mib();
    if (at_rest_mib < 0) {
        puts("nvidia-smi tells of no GPU");
        return SKIPPED;
    }
    check_memory(at_rest_mib);
    check_start(rounds);
    unlink(config);
    rmdir(directory);
    return failed;
}
