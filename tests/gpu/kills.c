/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kills: what dead processes leave on a GPU never reaches memory that others have by then, and none of it is
 * lost.
 *
 * Victims take buffers and start a kernel that writes them for longer than they live; then they are killed.
 * Some leave a forked child behind that holds the driver's descriptors for a while, which on a GPU keeps the
 * kernel alive; some are clients of MPS; some are killed at a random moment instead, whatever they are about.
 * Meanwhile checkers, none of them under MPS, take memory of the same pool again and again, write to it and
 * look whether it stays as they wrote it. A buffer is a segment, so that what the simulation's dead write
 * (the first word of what they had mapped) is seen too.
 *
 * Victims under MPS come one after the other, beside the others: one that is killed with work in flight takes
 * the MPS server and all its other clients with it, and who comes next fails until the server has started
 * anew (seen on an H200: cudaErrorLaunchFailure, cudaErrorDevicesUnavailable, cudaErrorMpsServerNotReady).
 * Such a one is started again, after a time that doubles.
 *
 *     kills [--gpu cuda|sim] [--kills N] [--children N] [--mps N] [--random N] [--at-a-time N] [--seconds N]
 * [--seed N]
 *
 * --children, --mps and --random: so many of the kills; --mps wants GPUPOOL_KILLS_MPS to name the pipe
 * directory of a running MPS. --seconds: what takes longer has failed. Exit status 0: no foreign write,
 * nothing lost; 3: foreign writes; 1: it failed, or memory was lost. The daemon is $GPUPOOL_DAEMON; the kind
 * of its device memory is $GPUPOOL_TEST_EXPORT.
 */
#include "tests/gpu/kills.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <gpupool/gpupool.h>

#include "tests/device_export.h"

#define CHECKERS 3u
/* On the simulation a buffer has to be a segment. A victim with a cache asks for 20 MiB at a time, and the
 * pool grows by more than a request needs while that is a quarter of its room at most: so the room stays
 * below. */
#define LIMIT_MIB_SIM  72u
#define LIMIT_MIB_CUDA 192u
#define LANES_MAX      32u
#define LINGER_MS      "40" /* what a kernel in flight is on the simulation, from the victim's death on */
#define FOREIGN        3
#define CHILD_OF_MPS   4u /* one in so many victims under MPS has a child */

/* Victims under MPS that do not come to their kernel. */
#define MPS_START_NS     (15 * KILLS_NS_PER_S)   /* then it is taken to hang */
#define MPS_FAILURES_MAX 12u                     /* in a row */
#define MPS_DELAY_MIN_NS (250 * KILLS_NS_PER_MS) /* a server is gone some 200 ms after the kill */
#define MPS_DELAY_MAX_NS (2 * KILLS_NS_PER_S)

struct plan {
    const char *gpu;
    unsigned kills, children, mps, random, at_a_time, seconds;
    uint64_t seed;
};

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

/* A sort of victims, and how many of them are to come. */
enum sort {
    SORT_PLAIN,
    SORT_CHILD,
    SORT_RANDOM,
    SORT_MPS,
    SORTS,
};
static const char *const sort_names[SORTS] = {"plain", "with a child", "at a random moment", "under MPS"};

enum lane_state {
    LANE_FREE,     /* not before next_ns */
    LANE_STARTING, /* until its victim says that the kernel is under way; at random: until next_ns */
    LANE_READY,    /* killed at next_ns */
    LANE_KILLED,   /* the driver takes tens of milliseconds to take it apart */
};

/* Where one victim follows another. The last one is for those under MPS. */
struct lane {
    enum lane_state state;
    enum sort sort;
    struct process victim;
    uint64_t since_ns, next_ns;
    unsigned failures; /* in a row */
};

struct drive {
    const struct plan *plan;
    struct lane lanes[LANES_MAX + 1];
    unsigned left[SORTS], killed[SORTS], under_way, restarts;
    uint64_t random, start_ns;
    struct process checkers[CHECKERS];
};

static const char *lane_letters(const struct drive *drive, const struct lane *lane) {
    switch (lane->sort) {
    case SORT_CHILD:
        return "c";
    case SORT_RANDOM:
        return "r";
    case SORT_MPS:
        return drive->killed[SORT_MPS] % CHILD_OF_MPS == CHILD_OF_MPS - 1 ? "mc" : "m";
    case SORT_PLAIN:
    case SORTS:
        break;
    }
    return "-";
}

/* Prints the known facts when something is wrong. */
static void print_state(const struct drive *drive) {
    static const char *const states[] = {"free", "starting", "ready", "killed"};
    double seconds = (double)(kills_now_ns() - drive->start_ns) / 1e9;

    fprintf(stderr, "kills: after %.1f s, %u restarts under MPS\n", seconds, drive->restarts);
    for (unsigned sort = 0; sort < SORTS; sort++)
        fprintf(stderr, "kills:   %s: %u killed, %u to come\n", sort_names[sort], drive->killed[sort],
                drive->left[sort]);
    for (unsigned i = 0; i <= drive->plan->at_a_time; i++) {
        const struct lane *lane = &drive->lanes[i];
        if (lane->state != LANE_FREE)
            fprintf(stderr, "kills:   victim %d, %s: %s for %.1f s\n", (int)lane->victim.pid,
                    sort_names[lane->sort], states[lane->state],
                    (double)(kills_now_ns() - lane->since_ns) / 1e9);
    }
}

static void lane_enter(struct lane *lane, enum lane_state state, uint64_t next_ns) {
    lane->state = state;
    lane->since_ns = kills_now_ns();
    lane->next_ns = next_ns;
}

/* Which sort comes next, so that all are spread over the whole; SORTS: none is left. */
static enum sort choose(const struct drive *drive) {
    enum sort best = SORTS;
    uint64_t best_left = 0;
    const unsigned all[SORTS] = {
        [SORT_PLAIN] = drive->plan->kills - drive->plan->children - drive->plan->random - drive->plan->mps,
        [SORT_CHILD] = drive->plan->children,
        [SORT_RANDOM] = drive->plan->random,
    };

    for (unsigned sort = 0; sort < SORT_MPS; sort++) {
        uint64_t left = all[sort] == 0 ? 0 : UINT64_C(1000) * drive->left[sort] / all[sort];
        if (drive->left[sort] > 0 && (best == SORTS || left > best_left)) {
            best = (enum sort)sort;
            best_left = left;
        }
    }
    return best;
}

static void lane_start(struct drive *drive, struct lane *lane, bool is_mps) {
    lane->sort = is_mps ? (drive->left[SORT_MPS] > 0 ? SORT_MPS : SORTS) : choose(drive);
    if (lane->sort == SORTS)
        return;
    drive->left[lane->sort]--;
    drive->under_way++;
    lane->victim = start("victim", lane_letters(drive, lane), kills_next_random(&drive->random), drive->plan);
    uint64_t now_ns = kills_now_ns();
    lane_enter(lane, LANE_STARTING,
               lane->sort == SORT_RANDOM
                   ? now_ns + kills_next_random(&drive->random) % (60 * KILLS_NS_PER_MS) + 1
               : lane->sort == SORT_MPS ? now_ns + MPS_START_NS
                                        : now_ns + KILLS_PATIENCE_NS);
}

/* The victim has ended, or was ended, before it was to. Fails, but under MPS, where that is to be expected.
 */
static void lane_fail(struct drive *drive, struct lane *lane, const char *what, int status) {
    unsigned n = lane->failures++;

    fprintf(stderr, "kills: victim %d, %s, %s after %.1f s (status 0x%x)\n", (int)lane->victim.pid,
            sort_names[lane->sort], what, (double)(kills_now_ns() - lane->since_ns) / 1e9, (unsigned)status);
    close(lane->victim.output);
    lane->victim.pid = 0;
    drive->left[lane->sort]++;
    drive->under_way--;
    drive->restarts++;
    if (lane->sort != SORT_MPS || lane->failures > MPS_FAILURES_MAX) {
        print_state(drive);
        exit(1);
    }
    uint64_t delay_ns = MPS_DELAY_MIN_NS << (n < 4 ? n : 4);
    lane_enter(lane, LANE_FREE, kills_now_ns() + (delay_ns < MPS_DELAY_MAX_NS ? delay_ns : MPS_DELAY_MAX_NS));
}

static void lane_kill(struct lane *lane) {
    kill(lane->victim.pid, SIGKILL);
    lane_enter(lane, LANE_KILLED, kills_now_ns() + KILLS_PATIENCE_NS);
}

static void lane_step(struct drive *drive, struct lane *lane, bool is_mps) {
    struct pollfd event = {.fd = lane->victim.output, .events = POLLIN};
    uint64_t now_ns = kills_now_ns();
    char ready = 0;
    int status;

    switch (lane->state) {
    case LANE_FREE:
        if (now_ns >= lane->next_ns)
            lane_start(drive, lane, is_mps);
        break;
    case LANE_STARTING:
        if (waitpid(lane->victim.pid, &status, WNOHANG) == lane->victim.pid) {
            lane_fail(drive, lane, "ended by itself", status);
        } else if (lane->sort == SORT_RANDOM) {
            if (now_ns >= lane->next_ns)
                lane_kill(lane);
        } else if (poll(&event, 1, 0) > 0 && read(lane->victim.output, &ready, 1) == 1) {
            lane_enter(lane, LANE_READY, now_ns + kills_next_random(&drive->random) % (3 * KILLS_NS_PER_MS));
        } else if (now_ns >= lane->next_ns) {
            kill(lane->victim.pid, SIGKILL);
            waitpid(lane->victim.pid, &status, 0);
            lane_fail(drive, lane, "did not come to its kernel", status);
        }
        break;
    case LANE_READY:
        if (now_ns >= lane->next_ns)
            lane_kill(lane);
        break;
    case LANE_KILLED:
        if (waitpid(lane->victim.pid, &status, WNOHANG) == lane->victim.pid) {
            if (!WIFSIGNALED(status)) { /* just before it was killed */
                lane_fail(drive, lane, "ended by itself", status);
                break;
            }
            close(lane->victim.output);
            lane->victim.pid = 0;
            lane->failures = 0;
            drive->killed[lane->sort]++;
            drive->under_way--;
            lane_enter(lane, LANE_FREE, is_mps ? now_ns + MPS_DELAY_MIN_NS : 0);
        } else if (now_ns >= lane->next_ns) {
            fputs("kills: a killed process does not end\n", stderr);
            print_state(drive);
            exit(1);
        }
        break;
    }
}

static bool checkers_live(const struct drive *drive) {
    for (unsigned i = 0; i < CHECKERS; i++) {
        int status;
        if (waitpid(drive->checkers[i].pid, &status, WNOHANG) == 0)
            continue;
        fprintf(stderr, "kills: checker %d ended with status 0x%x\n", (int)drive->checkers[i].pid,
                (unsigned)status);
        return false;
    }
    return true;
}

static void run_kills(struct drive *drive) {
    const struct plan *plan = drive->plan;
    bool left = true;

    while (left) {
        for (unsigned i = 0; i <= plan->at_a_time; i++)
            lane_step(drive, &drive->lanes[i], i == plan->at_a_time);
        left = drive->under_way > 0;
        for (unsigned sort = 0; sort < SORTS; sort++)
            left |= drive->left[sort] > 0;
        bool is_late = kills_now_ns() - drive->start_ns > plan->seconds * KILLS_NS_PER_S;
        if (is_late)
            fprintf(stderr, "kills: not done in %u s\n", plan->seconds);
        if (is_late || !checkers_live(drive)) {
            print_state(drive);
            exit(1);
        }
        kills_rest_ns(KILLS_NS_PER_MS / 2);
    }
}

/* Waits until no process has memory any more. Returns the bytes that stay. */
static uint64_t wait_for_rest(struct gpupool_client *client) {
    uint64_t end_ns = kills_now_ns() + KILLS_PATIENCE_NS / 2, left;

    do {
        struct gpupool_pool pools[32];
        size_t count;
        kills_need(gpupool_pools(client, pools, 32, &count), "asking for the pools");
        left = 0;
        for (size_t i = 0; i < count && i < 32; i++)
            left += pools[i].leased_bytes + pools[i].quarantined_bytes;
        kills_rest_ns(5 * KILLS_NS_PER_MS);
    } while (left > 0 && kills_now_ns() < end_ns);
    return left;
}

static int run(const struct plan *plan) {
    const unsigned limit_mib = strcmp(plan->gpu, "sim") == 0 ? LIMIT_MIB_SIM : LIMIT_MIB_CUDA;
    char config[] = "/tmp/gpupool-kills-XXXXXX";
    const char *const arguments[] = {"--gpu", plan->gpu, "--config", config, "--log-level", "error", NULL};
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    struct drive drive = {.plan = plan, .random = plan->seed};
    unsigned long long rounds = 0, foreign = 0;
    char text[256];
    int status;

    snprintf(text, sizeof text,
             "[device]\nlimit = %uMiB\nstep = 2MiB\nlow_water = 0\n"
             "[host]\nlimit = 96MiB\nstep = 2MiB\nlow_water = 0\nhuge_pages = off\n",
             limit_mib);
    if (!device_export_write_config(config, text)) {
        perror(config);
        return 1;
    }
    options.socket = "private";
    options.daemon_arguments = arguments;
    options.flags = GPUPOOL_OPEN_NO_CUDA | GPUPOOL_OPEN_NO_CACHE;
    options.connect_timeout_ns = KILLS_PATIENCE_NS;
    kills_need(gpupool_open(&options, &client), "starting a daemon");
    unlink(config);
    setenv("GPUPOOL_SOCKET", gpupool_socket_path(client), 1);
    drive.start_ns = kills_now_ns();
    drive.left[SORT_CHILD] = plan->children;
    drive.left[SORT_RANDOM] = plan->random;
    drive.left[SORT_MPS] = plan->mps;
    drive.left[SORT_PLAIN] = plan->kills - plan->children - plan->random - plan->mps;
    for (unsigned i = 0; i < CHECKERS; i++)
        drive.checkers[i] = start("checker", "-", plan->seed + i, plan);
    run_kills(&drive);
    for (unsigned i = 0; i < CHECKERS; i++) {
        unsigned long long its_rounds = 0, its_foreign = 0;
        kill(drive.checkers[i].pid, SIGTERM);
        FILE *output = fdopen(drive.checkers[i].output, "r");
        if (output == NULL || fscanf(output, "%llu %llu", &its_rounds, &its_foreign) != 2 ||
            waitpid(drive.checkers[i].pid, &status, 0) != drive.checkers[i].pid || status != 0) {
            fputs("kills: a checker failed\n", stderr);
            return 1;
        }
        fclose(output);
        rounds += its_rounds;
        foreign += its_foreign;
    }
    uint64_t lost = wait_for_rest(client);
    printf("%u kills in %.1f s (%u with a child, %u under MPS with %u starts that failed, %u at random "
           "moments): "
           "%llu buffers checked, %llu with foreign writes, %llu bytes lost\n",
           plan->kills, (double)(kills_now_ns() - drive.start_ns) / 1e9, plan->children, plan->mps,
           drive.restarts, plan->random, rounds, foreign, (unsigned long long)lost);
    gpupool_close(client);
    return foreign > 0 ? FOREIGN : lost > 0 || rounds == 0;
}

int main(int argc, char **argv) {
    struct plan plan = {
        .gpu = "cuda", .kills = 200, .children = 50, .at_a_time = 8, .seconds = 240, .seed = 20240611};

    if (argc == 5 && strcmp(argv[1], "--part") == 0)
        return strcmp(argv[2], "victim") == 0 ? kills_victim(argv[3], strtoull(argv[4], NULL, 10))
                                              : kills_checker(strtoull(argv[4], NULL, 10));
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
        else if (strcmp(name, "--seconds") == 0)
            plan.seconds = number;
        else if (strcmp(name, "--seed") == 0)
            plan.seed = number;
        else
            return fprintf(stderr, "kills: no option %s\n", name), 1;
    }
    if (plan.kills == 0 || plan.at_a_time == 0 || plan.at_a_time > LANES_MAX ||
        plan.kills < plan.children + plan.random + plan.mps ||
        (plan.mps > 0 && getenv("GPUPOOL_KILLS_MPS") == NULL))
        return fputs("kills: wrong usage\n", stderr), 1;
    return run(&plan);
}
