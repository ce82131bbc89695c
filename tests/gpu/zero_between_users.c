/* SPDX-License-Identifier: Apache-2.0 */
/*
 * New memory of a driver is zero, between users, at size, under load. One daemon lends nearly all of its pool
 * to one user after the other. Each one looks whether a word of it is not zero, fills it with a pattern,
 * looks whether each word has the pattern, and ends: by giving it back, or by being killed with it. The
 * daemon gives the memory back to the driver and makes it anew for the next user. Meanwhile another user
 * takes, fills and gives back memory of the same pool all the time.
 *
 *     zero_between_users [--gpu cuda|sim] [--of device|host] [--mib N] [--rounds N] [--zero driver|daemon]
 *
 * Device memory, or host memory that the driver makes.
 *
 * Exit status 0: no word was seen; 3: words of another user were; 77: this takes root, to be several
 * users; 1: it failed. The daemon is $GPUPOOL_TEST_DAEMON.
 */
#include <grp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "base/clock.h"
#include "base/units.h"
#include "tests/gpu/zero.h"

#define LOAD_USER   60000u
#define FIRST_USER  60001u /* each round has a user of its own: the daemon keeps what is idle for its user */
#define SEEN        3
#define SKIPPED     77
#define PATIENCE_NS (60 * NS_PER_S)
#define BUFFERS_MAX 8192u
#define LOAD_PARTS  8u /* of the pool, the load has one at most */

static bool is_host; /* of this process */

struct plan {
    const char *gpu, *zero;
    uint64_t mib;
    unsigned rounds;
};

static void need(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "zero_between_users: %s: %s\n", what, gpupool_error_text());
    _exit(1);
}

/* --- the users --- */

static void become(unsigned uid) {
    if (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0) {
        perror("zero_between_users: another user");
        _exit(1);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static struct gpupool_client *open_client(uint32_t flags, uint32_t *ret_pool) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;

    options.flags = flags;
    need(gpupool_open(&options, &client) == 0, "open");
    need((is_host ? gpupool_host_pool(client, 0, ret_pool) : gpupool_device_pool(client, 0, ret_pool)) == 0,
         "the pool");
    return client;
}

/* The sizes differ, so that segments of all kinds come. */
static uint64_t next_size(uint64_t left_bytes, unsigned number) {
    static const unsigned mib[] = {512, 16, 128, 32, 256, 64, 48, 1024};
    uint64_t size_bytes = mib[number % (sizeof mib / sizeof *mib)] * MIB;

    while (size_bytes > left_bytes || size_bytes > BUFFERS_MAX * 16 * MIB)
        size_bytes /= 2;
    return size_bytes < MIB ? left_bytes : size_bytes;
}

static uint64_t pattern_of(unsigned round, unsigned number) {
    return UINT64_C(0xdead000000000001) + ((uint64_t)round << 32) + number;
}

/* Takes memory, looks at it and fills it. Returns the words that were not zero. */
static uint64_t look_and_fill(struct gpupool_client *client, uint32_t pool, uint64_t mib, unsigned round,
                              struct gpupool_buffer *buffers, unsigned *ret_count) {
    uint64_t left_bytes = mib * MIB, seen = 0, others;
    unsigned count = 0;

    while (left_bytes > 0) {
        struct gpupool_buffer *buffer = &buffers[count];
        need(count < BUFFERS_MAX, "too many buffers");
        need(gpupool_acquire(client, pool, next_size(left_bytes, count + round), NULL, PATIENCE_NS, 0,
                             buffer) == 0,
             "acquire");
        left_bytes -= buffer->size_bytes < left_bytes ? buffer->size_bytes : left_bytes;
        need(zero_count_others(buffer->data, buffer->size_bytes, 0, &others) == 0, "looking for words");
        seen += others;
        need(zero_fill(buffer->data, buffer->size_bytes, pattern_of(round, count)) == 0, "filling");
        count++;
    }
    /* The memory is there, and each buffer has its own: what is not seen cannot be missed. */
    for (unsigned i = 0; i < count; i++) {
        need(zero_count_others(buffers[i].data, buffers[i].size_bytes, pattern_of(round, i), &others) == 0 &&
                 others == 0,
             "the pattern is not there");
        need(zero_count_others(buffers[i].data, buffers[i].size_bytes, 0, &others) == 0 &&
                 others == buffers[i].size_bytes / sizeof(uint64_t),
             "a word that is not zero is not counted");
    }
    *ret_count = count;
    return seen;
}

static int play_user(unsigned uid, uint64_t mib, unsigned round) {
    static struct gpupool_buffer buffers[BUFFERS_MAX];
    struct gpupool_client *client;
    unsigned count;
    uint32_t pool;

    become(uid);
    client = open_client(GPUPOOL_OPEN_NO_CACHE, &pool);
    uint64_t start_ns = clock_now_ns();
    uint64_t seen = look_and_fill(client, pool, mib, round, buffers, &count);
    printf("round %u, user %u: %llu MiB in %u buffers, %llu words of another user, %.1f s\n", round, uid,
           (unsigned long long)mib, count, (unsigned long long)seen,
           (double)(clock_now_ns() - start_ns) / 1e9);
    fflush(stdout);
    if (seen == 0 && round % 2 == 1) /* users end in both ways */
        raise(SIGKILL);
    for (unsigned i = 0; i < count; i++)
        need(gpupool_release(client, &buffers[i], NULL) == 0, "release");
    gpupool_close(client);
    return seen == 0 ? 0 : SEEN;
}

/* Takes, fills and gives back until it is killed. */
__attribute__((noreturn)) static void play_load(uint64_t mib) {
    struct gpupool_buffer buffer;
    struct gpupool_client *client;
    uint32_t pool;

    become(LOAD_USER);
    client = open_client(0, &pool); /* with a cache: the daemon can ask for what is idle */
    for (unsigned number = 0;; number++) {
        uint64_t size_bytes = next_size(mib * MIB / LOAD_PARTS, number);
        int r = gpupool_acquire(client, pool, size_bytes, NULL, PATIENCE_NS, 0, &buffer);
        need(r == 0 && zero_fill(buffer.data, buffer.size_bytes, ~UINT64_C(0)) == 0, "the load");
        need(gpupool_release(client, &buffer, NULL) == 0, "the load's release");
        if (number % 4 == 3)
            need(gpupool_trim(client, NULL) == 0, "the load's trim");
    }
}

/* --- the daemon, and the rounds --- */

static pid_t start(const char *const *argv) {
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execv(argv[0], (char *const *)argv);
        perror(argv[0]);
        _exit(1);
    }
    if (pid < 0) {
        perror("fork");
        exit(1);
    }
    return pid;
}

static pid_t start_daemon(const struct plan *plan, const char *directory) {
    static char config[128], socket[128], admin[128], ready[16];
    const char *program = getenv("GPUPOOL_TEST_DAEMON");
    const char *const arguments[] = {
        program,          "--gpu", plan->gpu,     "--config", config,       "--socket", socket,
        "--admin-socket", admin,   "--log-level", "warning",  "--ready-fd", ready,      NULL};
    int ends[2];
    char byte;

    snprintf(config, sizeof config, "%s/conf", directory);
    snprintf(socket, sizeof socket, "%s/socket", directory);
    snprintf(admin, sizeof admin, "%s/admin", directory);
    FILE *file = fopen(config, "we");
    if (program == NULL || file == NULL) {
        fprintf(stderr, "zero_between_users: GPUPOOL_TEST_DAEMON is not set, or %s cannot be written\n",
                config);
        exit(1);
    }
    fprintf(file, "[%s]\nexport = vmm\nzero = %s\nlimit = %lluMiB\n[%s]\nlimit = 64MiB\n",
            is_host ? "host" : "device", plan->zero,
            (unsigned long long)(plan->mib + plan->mib / LOAD_PARTS + 64), is_host ? "device" : "host");
    fclose(file);
    setenv("GPUPOOL_SOCKET", socket, 1);
    if (pipe(ends) < 0) {
        perror("pipe");
        exit(1);
    }
    snprintf(ready, sizeof ready, "%d", ends[1]);
    pid_t pid = start(arguments);
    close(ends[1]);
    if (read(ends[0], &byte, 1) != 1 || chmod(socket, 0666) < 0) {
        fputs("zero_between_users: the daemon does not start\n", stderr);
        exit(1);
    }
    close(ends[0]);
    return pid;
}

static pid_t start_part(const char *part, unsigned uid, uint64_t mib, unsigned round) {
    char texts[3][24];
    const char *const arguments[] = {
        "/proc/self/exe", "--part", part, texts[0], texts[1], texts[2], is_host ? "host" : "device", NULL};

    snprintf(texts[0], sizeof texts[0], "%u", uid);
    snprintf(texts[1], sizeof texts[1], "%llu", (unsigned long long)mib);
    snprintf(texts[2], sizeof texts[2], "%u", round);
    return start(arguments);
}

static int play_rounds(const struct plan *plan) {
    unsigned seen = 0;

    for (unsigned round = 0; round < plan->rounds; round++) {
        int status;
        pid_t pid = start_part("user", FIRST_USER + round, plan->mib, round);
        if (waitpid(pid, &status, 0) != pid)
            return 1;
        if (WIFEXITED(status) && WEXITSTATUS(status) == SEEN)
            seen++;
        else if (!(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) && status != 0)
            return 1;
    }
    printf("%u rounds of %llu MiB: %s\n", plan->rounds, (unsigned long long)plan->mib,
           seen == 0 ? "no word of another user" : "WORDS OF ANOTHER USER WERE SEEN");
    return seen == 0 ? 0 : SEEN;
}

static int run(const struct plan *plan) {
    char directory[] = "/tmp/gpupool-zero-XXXXXX", path[128];
    int status;

    if (geteuid() != 0) {
        puts("this takes root, to be several users");
        return SKIPPED;
    }
    if (mkdtemp(directory) == NULL || chmod(directory, 0755) < 0) {
        perror(directory);
        return 1;
    }
    pid_t daemon = start_daemon(plan, directory), load = start_part("load", LOAD_USER, plan->mib, 0);
    int r = play_rounds(plan);
    bool load_lives = waitpid(load, &status, WNOHANG) == 0;
    kill(load, SIGKILL);
    kill(daemon, SIGTERM);
    if (load_lives)
        waitpid(load, &status, 0);
    waitpid(daemon, &status, 0);
    for (unsigned i = 0; i < 4; i++) {
        static const char *const names[] = {"conf", "socket", "admin", "socket.sim"};
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        unlink(path);
    }
    rmdir(directory);
    if (!load_lives)
        fputs("zero_between_users: the load ended\n", stderr);
    return r != 0 ? r : load_lives ? 0 : 1;
}

int main(int argc, char **argv) {
    struct plan plan = {.gpu = "cuda", .zero = "driver", .mib = 40960, .rounds = 3};

    if (argc == 7 && strcmp(argv[1], "--part") == 0) {
        is_host = strcmp(argv[6], "host") == 0;
        uint64_t mib = strtoull(argv[4], NULL, 10);
        if (strcmp(argv[2], "load") == 0)
            play_load(mib);
        return play_user((unsigned)strtoul(argv[3], NULL, 10), mib, (unsigned)strtoul(argv[5], NULL, 10));
    }
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--gpu") == 0)
            plan.gpu = argv[i + 1];
        else if (strcmp(argv[i], "--of") == 0)
            is_host = strcmp(argv[i + 1], "host") == 0;
        else if (strcmp(argv[i], "--zero") == 0)
            plan.zero = argv[i + 1];
        else if (strcmp(argv[i], "--mib") == 0)
            plan.mib = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--rounds") == 0)
            plan.rounds = (unsigned)strtoul(argv[i + 1], NULL, 10);
        else
            return fprintf(stderr, "zero_between_users: no option %s\n", argv[i]), 1;
    }
    return run(&plan);
}
