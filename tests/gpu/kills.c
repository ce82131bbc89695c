/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills: what dead processes leave on a GPU never reaches memory that others have by then, and none of it is
 * lost.
 *
 * Victims take buffers and start a kernel that writes them for longer than they live; then they are killed.
 * Some leave a forked child behind that holds the driver's descriptors for a while, which on a GPU keeps the
 * kernel alive; some are clients of MPS; some are killed at a random moment instead, whatever they are about.
 * Meanwhile checkers take memory of the same pool again and again, write to it and look whether it stays as
 * they wrote it. A buffer is a segment, so that what the simulation's dead write (the first word of what they
 * had mapped) is seen too.
 *
 *     kills [--gpu cuda|sim] [--kills N] [--children N] [--mps N] [--random N] [--at-a-time N] [--seed N]
 *
 * --children, --mps and --random: so many of the kills; --mps wants CUDA_MPS_PIPE_DIRECTORY to name a running
 * MPS in GPUPOOL_KILLS_MPS. Exit status 0: no foreign write, nothing lost; 3: foreign writes; 1: it failed,
 * or memory was lost. The daemon is $GPUPOOL_DAEMON.
 */
#include "tests/gpu/kills.h"

#include <errno.h>
#include <poll.h>
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

#define MIB              (UINT64_C(1) << 20)
#define NS_PER_MS        UINT64_C(1000000)
#define NS_PER_S         UINT64_C(1000000000)
#define BUFFER_BYTES     (2 * MIB) /* the least that a segment is */
#define VICTIM_BUFFERS   4u
#define CHECKERS         3u
#define LANES_MAX        32u
#define KERNEL_MS        2000u /* longer than any victim and its child live */
#define LINGER_MS        "40"  /* the same on the simulation, from the victim's death on */
#define CHILD_MS         400u
#define WATCH_ROUNDS     8u /* how often a checker looks before it gives a buffer back */
#define PATIENCE_NS      (60 * NS_PER_S)
#define FOREIGN          3
#define MPS_FAILURES_MAX 100u
#define MPS_RECOVERY_MS  200u

struct plan {
    const char *gpu;
    unsigned kills, children, mps, random, at_a_time;
    uint64_t seed;
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void rest_ns(uint64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / NS_PER_S), .tv_nsec = (long)(ns % NS_PER_S)}, NULL);
}

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void need(int result, const char *what) {
    if (result == 0)
        return;
    fprintf(stderr, "kills: %s: %s\n", what, gpupool_error_text());
    _exit(1);
}

/* --- victims --- */

static void victim_leave_child(void) {
    pid_t pid = fork();
    if (pid != 0)
        return;
    /* It keeps all descriptors, and with them the parent's work alive. */
    rest_ns(CHILD_MS * NS_PER_MS);
    _exit(0);
}

/* Takes and gives back until it is killed. */
static void victim_at_random(struct gpupool_client *client, const uint32_t pools[2], uint64_t seed) {
    struct gpupool_buffer held[8];
    struct gpupool_token token;
    unsigned n_held = 0;

    for (;;) {
        uint64_t random = next_random(&seed);
        if (n_held < 8 && random % 3 != 0) {
            int r = random % 7 == 0 && n_held > 0 && gpupool_share(client, &held[0], &token) == 0
                        ? gpupool_attach(client, &token, &held[n_held])
                        : gpupool_acquire(client, pools[random / 8 % 2], 1 + random % BUFFER_BYTES, NULL,
                                          NS_PER_MS, 0, &held[n_held]);
            n_held += r == 0;
        } else if (n_held > 0) {
            gpupool_release(client, &held[--n_held], NULL);
        }
    }
}

static int victim(const char *how, uint64_t seed) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct gpupool_buffer buffers[VICTIM_BUFFERS + 1];
    void *memory[VICTIM_BUFFERS];
    uint32_t pools[2];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    options.flags = strchr(how, 'r') != NULL && seed % 2 == 0 ? 0 : GPUPOOL_OPEN_NO_CACHE;
    need(gpupool_open(&options, &client), "a victim connects");
    need(gpupool_device_pool(client, 0, &pools[0]), "the device pool");
    need(gpupool_host_pool(client, -1, &pools[1]), "the host pool");
    if (strchr(how, 'r') != NULL)
        victim_at_random(client, pools, seed);
    for (unsigned i = 0; i < VICTIM_BUFFERS; i++) {
        need(gpupool_acquire(client, pools[0], BUFFER_BYTES, NULL, PATIENCE_NS, 0, &buffers[i]),
             "a victim's buffer");
        memory[i] = buffers[i].data;
    }
    need(gpupool_acquire(client, pools[1], BUFFER_BYTES, NULL, PATIENCE_NS, 0, &buffers[VICTIM_BUFFERS]),
         "a victim's host buffer");
    if (kills_start_kernel(memory, VICTIM_BUFFERS, BUFFER_BYTES, KERNEL_MS) != 0) {
        fputs("kills: the kernel does not start\n", stderr);
        return 1;
    }
    if (strchr(how, 'c') != NULL)
        victim_leave_child();
    if (write(STDOUT_FILENO, "r", 1) != 1)
        return 1;
    for (;;)
        pause();
}

/* --- checkers --- */

static volatile sig_atomic_t told_to_stop;

static void on_stop(int number) {
    (void)number;
    told_to_stop = 1;
}

/* Whether the whole buffer still is what was written. */
static bool is_mine(struct gpupool_client *client, const struct gpupool_buffer *buffer, const uint8_t *mine,
                    uint8_t *found) {
    need(gpupool_copy(client, buffer->device, found, buffer->data, BUFFER_BYTES, NULL), "a checker's copy");
    need(gpupool_stream_synchronize(client, buffer->device, NULL), "a checker's wait");
    return memcmp(mine, found, BUFFER_BYTES) == 0;
}

/* Prints how many buffers it looked at and how many were written by others. */
static int checker(uint64_t seed) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    unsigned long long rounds = 0, foreign = 0;
    uint8_t *mine = malloc(BUFFER_BYTES), *found = malloc(BUFFER_BYTES);
    uint32_t pool;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, on_stop);
    if (mine == NULL || found == NULL)
        return 1;
    options.flags = GPUPOOL_OPEN_NO_CACHE; /* so that every buffer comes from the daemon */
    need(gpupool_open(&options, &client), "a checker connects");
    need(gpupool_device_pool(client, 0, &pool), "the device pool");
    for (; !told_to_stop; rounds++) {
        struct gpupool_buffer buffer;
        bool all_mine = true;

        int r = gpupool_acquire(client, pool, BUFFER_BYTES, NULL, 100 * NS_PER_MS, 0, &buffer);
        if (r == GPUPOOL_E_EXHAUSTED)
            continue;
        need(r, "a checker's buffer");
        memset(mine, (int)(next_random(&seed) & 255), BUFFER_BYTES);
        need(gpupool_copy(client, buffer.device, buffer.data, mine, BUFFER_BYTES, NULL), "a checker's copy");
        for (unsigned look = 0; look < WATCH_ROUNDS && all_mine; look++) {
            all_mine = is_mine(client, &buffer, mine, found);
            rest_ns(NS_PER_MS / 2);
        }
        foreign += !all_mine;
        need(gpupool_release(client, &buffer, NULL), "a checker's release");
    }
    gpupool_close(client);
    free(mine);
    free(found);
    printf("%llu %llu\n", rounds, foreign);
    return fflush(stdout) == 0 ? 0 : 1;
}

/* --- the driver --- */

struct process {
    pid_t pid;  /* 0: none */
    int output; /* what it prints */
};

/* Starts this program in another part. */
static struct process start(const char *part, const char *how, uint64_t seed, const struct plan *plan) {
    struct process process;
    char text[24];
    int ends[2];

    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    if (pipe(ends) < 0 || (process.pid = fork()) < 0) {
        perror("kills");
        exit(1);
    }
    if (process.pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        for (int fd = 3; fd < 256; fd++) /* other victims' pipes, which are to end with them */
            close(fd);
        if (strcmp(part, "victim") == 0 && strcmp(plan->gpu, "sim") == 0 && strchr(how, 'r') == NULL)
            setenv("GPUPOOL_SIM_LINGER_MS", LINGER_MS, 1);
        if (strchr(how, 'm') != NULL)
            setenv("CUDA_MPS_PIPE_DIRECTORY", getenv("GPUPOOL_KILLS_MPS"), 1);
        else
            setenv("CUDA_MPS_PIPE_DIRECTORY", "/nonexistent/no-mps", 1);
        execl("/proc/self/exe", "kills", "--part", part, how, text, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    process.output = ends[0];
    return process;
}

/* How the n-th victim is to end, as letters: c a child, m MPS, r at random. The sorts are spread evenly. */
static const char *choose(const struct plan *plan, unsigned n) {
    static char how[4];
    unsigned length = 0;
    uint64_t before = n, after = n + 1;

    if (before * plan->random / plan->kills != after * plan->random / plan->kills) {
        how[length++] = 'r';
    } else {
        if (before * plan->children / plan->kills != after * plan->children / plan->kills)
            how[length++] = 'c';
        /* half a step away, or the same ones would have both */
        if ((2 * before + 1) * plan->mps / (2 * plan->kills) !=
            (2 * after + 1) * plan->mps / (2 * plan->kills))
            how[length++] = 'm';
    }
    how[length] = '\0';
    return length == 0 ? "-" : how;
}

struct lane {
    struct process victim;
    bool under_mps;
    uint64_t kill_ns; /* 0: when it is ready */
};

static void lane_start(struct lane *lane, const struct plan *plan, unsigned number, uint64_t *random) {
    const char *how = choose(plan, number);
    lane->under_mps = strchr(how, 'm') != NULL;
    lane->victim = start("victim", how, next_random(random), plan);
    lane->kill_ns = how[0] == 'r' ? now_ns() + next_random(random) % (60 * NS_PER_MS) + 1 : 0;
}

/* Kills a victim that is due. Returns whether it did. Fails where one ended by itself, unless it was under
 * MPS: when a client of that is killed with work in flight, those that come next fail until its server has
 * started anew (cudaErrorLaunchFailure at their first call). Then another is started. */
static bool lane_kill(struct lane *lane, const struct plan *plan, uint64_t *random) {
    static unsigned failed_under_mps;
    struct pollfd event = {.fd = lane->victim.output, .events = POLLIN};
    char ready = 0;
    int status;

    if (lane->kill_ns != 0 ? now_ns() < lane->kill_ns : poll(&event, 1, 0) <= 0)
        return false;
    if (lane->kill_ns == 0) {
        if (read(lane->victim.output, &ready, 1) != 1)
            ready = 0;
        rest_ns(next_random(random) % (3 * NS_PER_MS));
    }
    kill(lane->victim.pid, SIGKILL);
    if (waitpid(lane->victim.pid, &status, 0) != lane->victim.pid || !WIFSIGNALED(status)) {
        if (!lane->under_mps || ++failed_under_mps > MPS_FAILURES_MAX) {
            fputs("kills: a victim ended by itself\n", stderr);
            exit(1);
        }
        close(lane->victim.output);
        rest_ns(MPS_RECOVERY_MS * NS_PER_MS);
        lane->victim = start("victim", "m", next_random(random), plan);
        return false;
    }
    close(lane->victim.output);
    lane->victim.pid = 0;
    return true;
}

static void run_kills(const struct plan *plan) {
    struct lane lanes[LANES_MAX] = {0};
    unsigned started = 0, killed = 0;
    uint64_t random = plan->seed, last_ns = now_ns();

    while (killed < plan->kills) {
        for (unsigned i = 0; i < plan->at_a_time; i++) {
            if (lanes[i].victim.pid == 0 && started < plan->kills)
                lane_start(&lanes[i], plan, started++, &random);
            if (lanes[i].victim.pid != 0 && lane_kill(&lanes[i], plan, &random)) {
                killed++;
                last_ns = now_ns();
            }
        }
        if (now_ns() - last_ns > PATIENCE_NS) {
            fprintf(stderr, "kills: nothing moves any more after %u kills\n", killed);
            exit(1);
        }
        rest_ns(NS_PER_MS / 2);
    }
}

/* Waits until nobody has anything any more. Returns what stays, in bytes. */
static uint64_t wait_for_rest(struct gpupool_client *client) {
    uint64_t end_ns = now_ns() + PATIENCE_NS / 2, left;

    do {
        struct gpupool_pool pools[32];
        size_t count;
        need(gpupool_pools(client, pools, 32, &count), "asking for the pools");
        left = 0;
        for (size_t i = 0; i < count && i < 32; i++)
            left += pools[i].leased_bytes + pools[i].quarantined_bytes;
        rest_ns(5 * NS_PER_MS);
    } while (left > 0 && now_ns() < end_ns);
    return left;
}

static int drive(const struct plan *plan) {
    static const char text[] = "[device]\nlimit = 192MiB\nstep = 2MiB\nlow_water = 0\n"
                               "[host]\nlimit = 96MiB\nstep = 2MiB\nlow_water = 0\nhuge_pages = off\n";
    char config[] = "/tmp/gpupool-kills-XXXXXX";
    const char *const arguments[] = {"--gpu", plan->gpu, "--config", config, "--log-level", "error", NULL};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct process checkers[CHECKERS];
    unsigned long long rounds = 0, foreign = 0;
    int fd = mkstemp(config), status;

    if (fd < 0 || write(fd, text, sizeof text - 1) != (ssize_t)sizeof text - 1) {
        perror(config);
        return 1;
    }
    close(fd);
    options.socket = "private";
    options.daemon_arguments = arguments;
    options.flags = GPUPOOL_OPEN_NO_CUDA | GPUPOOL_OPEN_NO_CACHE;
    options.connect_timeout_ns = PATIENCE_NS;
    need(gpupool_open(&options, &client), "starting a daemon");
    unlink(config);
    setenv("GPUPOOL_SOCKET", gpupool_socket_path(client), 1);
    uint64_t start_ns = now_ns();
    for (unsigned i = 0; i < CHECKERS; i++)
        checkers[i] = start("checker", "-", plan->seed + i, plan);
    run_kills(plan);
    for (unsigned i = 0; i < CHECKERS; i++) {
        unsigned long long its_rounds = 0, its_foreign = 0;
        kill(checkers[i].pid, SIGTERM);
        FILE *output = fdopen(checkers[i].output, "r");
        if (output == NULL || fscanf(output, "%llu %llu", &its_rounds, &its_foreign) != 2 ||
            waitpid(checkers[i].pid, &status, 0) != checkers[i].pid || status != 0) {
            fputs("kills: a checker failed\n", stderr);
            return 1;
        }
        fclose(output);
        rounds += its_rounds;
        foreign += its_foreign;
    }
    uint64_t lost = wait_for_rest(client);
    printf("%u kills in %.1f s (%u with a child, %u under MPS, %u at random moments): %llu buffers checked, "
           "%llu with "
           "foreign writes, %llu bytes lost\n",
           plan->kills, (double)(now_ns() - start_ns) / 1e9, plan->children, plan->mps, plan->random, rounds,
           foreign, (unsigned long long)lost);
    gpupool_close(client);
    return foreign > 0 ? FOREIGN : lost > 0 || rounds == 0;
}

int main(int argc, char **argv) {
    struct plan plan = {.gpu = "cuda", .kills = 200, .children = 50, .at_a_time = 8, .seed = 20240611};

    if (argc == 5 && strcmp(argv[1], "--part") == 0)
        return strcmp(argv[2], "victim") == 0 ? victim(argv[3], strtoull(argv[4], NULL, 10))
                                              : checker(strtoull(argv[4], NULL, 10));
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        unsigned number = (unsigned)strtoul(value, NULL, 10);
        if (strcmp(name, "--gpu") == 0)
            plan.gpu = value;
        else if (strcmp(name, "--kills") == 0)
            plan.kills = number;
        else if (strcmp(name, "--children") == 0)
            plan.children = number;
        else if (strcmp(name, "--mps") == 0)
            plan.mps = number;
        else if (strcmp(name, "--random") == 0)
            plan.random = number;
        else if (strcmp(name, "--at-a-time") == 0)
            plan.at_a_time = number;
        else if (strcmp(name, "--seed") == 0)
            plan.seed = number;
        else
            return fprintf(stderr, "kills: no option %s\n", name), 1;
    }
    if (plan.kills == 0 || plan.at_a_time == 0 || plan.at_a_time > LANES_MAX ||
        (plan.mps > 0 && getenv("GPUPOOL_KILLS_MPS") == NULL))
        return fputs("kills: wrong usage\n", stderr), 1;
    return drive(&plan);
}
