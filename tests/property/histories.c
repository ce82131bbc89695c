/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random histories of pairs and synchronised arrays, step by step beside a plain model (pairs.c, arrays.c):
 * sizes, devices, streams (null, per-thread, created) and threads, writes by host and device, adoption,
 * resizing, moving, pushing and pulling, pools that are full, driver calls that fail, streams that are
 * captured. After each step contents and states are those of the model and copies were made exactly where the
 * model needs one; at the end of each history the pools have everything back.
 *
 *     histories [--gpu sim|cuda] [--seed N] [--histories N | --seconds N]
 *               [--one HISTORY [--steps MASK]] [--verbose] [--as-is]
 *
 * Plays histories of a seed, in a child process. When one fails, the steps that it does not take are left out
 * (--as-is: they are not), and what is left is shown with the command that repeats it. Exit status: 0: all
 * agree; 3: something does not; 1: the test could not run.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "gpu/sim/sim.h"
#include "tests/property/arrays.h"
#include "tests/property/pairs.h"
#include "tests/property/world.h"

#define CLIENT_HISTORIES 50u /* that a client lives through */
#define STEPS_MIN        12u
#define ALL_STEPS        UINT64_MAX
#define SHRINK_TRIES     3u              /* a fault that takes luck to be seen is looked for so often */
#define ROOMY_NS         (20 * NS_PER_S) /* there is room: a call that waits so long found a fault */
#define TIGHT_NS         (2 * NS_PER_MS)
#define FAILED           1

static struct options {
    const char *gpu;
    uint64_t seed, histories, one, steps;
    double seconds;
    bool is_one, is_verbose, as_is;
} options = {.gpu = "sim", .seed = 1, .histories = 2000, .steps = ALL_STEPS};

static struct world_progress *progress;

/* --- in the child --- */

static void step_main(void *unused) {
    unsigned current = 0, after = 0;

    (void)unused;
    if (!world.is_cuda && gpu_sim_set_device((unsigned)world_random(world.n_devices)) != 0)
        world_break("setting the current device");
    if (world.driver->device_current(&current) != 0)
        world_break("the current device");
    if (world.is_tight && world_one_in(12))
        world_hog();
    else if (world.n_hogs > 0 && world_one_in(4))
        world_unhog();
    else if (world_random(WORLD_PAIR_CHANCES) < world.pair_chances)
        pairs_step();
    else
        arrays_step();
    if (world.driver->device_current(&after) != 0 || after != current)
        world_fail("the current device was %u and is %u", current, after);
}

static void play(uint64_t history, uint64_t mask) {
    uint64_t state = random_seed(options.seed * UINT64_C(1000003) + history);
    unsigned n_steps = STEPS_MIN + (unsigned)(random_next(&state) % (WORLD_STEPS_MAX - STEPS_MIN + 1));

    world.is_tight = random_next(&state) % 3 == 0;
    world.has_failures = random_next(&state) % 2 == 0;
    world.has_captures = !world.is_cuda && random_next(&state) % 2 == 0;
    /* Some histories have few objects, or objects of one kind, so that rare combinations occur in them. */
    static const unsigned chances[] = {0, 3, 6, WORLD_PAIR_CHANCES};
    world.pair_chances = chances[random_next(&state) % 4];
    world.n_objects = 1 + (unsigned)(random_next(&state) % WORLD_OBJECTS);
    world.bytes_max = world.is_tight ? WORLD_BYTES_MAX : WORLD_BYTES_ROOMY;
    world.delays = random_next(&state);
    world.client->alloc_timeout_ns = world.is_tight ? TIGHT_NS : ROOMY_NS;
    progress->history = history;
    for (unsigned step = 0; step < n_steps; step++) {
        /* Each step draws from a source of its own, so that the others stay what they are when one is left
         * out. */
        uint64_t seed = random_next(&state);
        if ((mask >> step & 1) == 0)
            continue;
        progress->step = step;
        progress->tally.steps++;
        world.random = random_seed(seed);
        world.thread = world_one_in(4) ? 1 : 0;
        world_run_on(world.thread, step_main, NULL);
    }
    progress->step = n_steps;
    world.thread = 0;
    world.has_failures = world.has_captures = false;
    pairs_end();
    arrays_end();
    world_history_ends();
    progress->tally.histories++;
}

static _Noreturn void child_main(uint64_t first, uint64_t mask, bool is_one, bool is_verbose) {
    uint64_t end_ns = clock_now_ns() + (uint64_t)(options.seconds * (double)NS_PER_S);

    world.is_verbose = is_verbose;
    world_open(options.gpu, progress);
    for (uint64_t history = first;; history++) {
        play(history, mask);
        if (is_one ||
            (options.seconds > 0 ? clock_now_ns() >= end_ns : history + 1 == first + options.histories))
            break;
        if ((history + 1) % CLIENT_HISTORIES == 0)
            world_reopen_client();
    }
    world_close();
    exit(0);
}

/* --- in the parent --- */

/* Plays in a child. Returns its exit status, FOUND also for one that a signal ended. */
static int run(uint64_t first, uint64_t mask, bool is_one, bool is_verbose) {
    int status;

    memset(progress, 0, sizeof *progress);
    fflush(stdout);
    pid_t pid = fork();
    if (pid < 0)
        return FAILED;
    if (pid == 0)
        child_main(first, mask, is_one, is_verbose);
    if (waitpid(pid, &status, 0) != pid)
        return FAILED;
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == FAILED))
        return WEXITSTATUS(status);
    if (progress->failure[0] == '\0')
        snprintf(progress->failure, sizeof progress->failure, "step %u: broke off with %s %d", progress->step,
                 WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return WORLD_STATUS_FOUND;
}

static bool fails(uint64_t history, uint64_t mask) {
    for (unsigned i = 0; i < SHRINK_TRIES; i++)
        if (run(history, mask, true, false) == WORLD_STATUS_FOUND)
            return true;
    return false;
}

/* Leaves steps out, halves first and then ever smaller parts, as long as it still fails. */
static uint64_t shrink(uint64_t history) {
    uint64_t mask = ALL_STEPS;

    for (unsigned width = WORLD_STEPS_MAX / 2; width > 0; width /= 2)
        for (unsigned from = 0; from < WORLD_STEPS_MAX; from += width) {
            uint64_t without = mask & ~(((UINT64_C(1) << width) - 1) << from);
            if (without != mask && fails(history, without))
                mask = without;
        }
    return mask;
}

static int tell(uint64_t history, uint64_t mask) {
    char failure[sizeof progress->failure];

    snprintf(failure, sizeof failure, "%s", progress->failure);
    printf("history %" PRIu64 " of seed %" PRIu64 ": %s\n", history, options.seed, failure);
    if (options.as_is)
        return WORLD_STATUS_FOUND;
    if (!options.is_one) {
        if (!fails(history, ALL_STEPS)) {
            puts("by itself it does not fail: what came before it matters, or who was faster");
            return WORLD_STATUS_FOUND;
        }
        mask = shrink(history);
    }
    printf("as few steps as it takes (again: histories --gpu %s --seed %" PRIu64 " --one %" PRIu64
           " --steps %#" PRIx64 " --verbose):\n",
           options.gpu, options.seed, history, mask);
    for (unsigned i = 0; i < SHRINK_TRIES && run(history, mask, true, true) != WORLD_STATUS_FOUND; i++)
        puts("(not this time)");
    puts(progress->failure);
    return WORLD_STATUS_FOUND;
}

static int summarise(double seconds) {
    const struct world_tally *tally = &progress->tally;
    const struct {
        const char *what;
        uint64_t count;
    } counts[] = {
        {"copies between host and device", tally->copies},
        {"copies between devices", tally->across_devices},
        {"sides zeroed", tally->zeroed},
        {"looks at contents", tally->checks},
        {"driver calls that failed", tally->planned_failures},
        {"times that a pool was full", tally->exhausted},
        {"accesses on another stream than before", tally->across_streams},
        {"pieces of memory adopted", tally->adopted},
        {"streams that stood still", tally->held},
        {"streams that were captured", tally->captures},
        {"captures that were in the way", tally->captures_met},
    };

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        printf("%10" PRIu64 " %s\n", counts[i].count, counts[i].what);
    printf("%" PRIu64 " histories of seed %" PRIu64 ", %" PRIu64 " steps, %.1f s: all agree with the model\n",
           tally->histories, options.seed, tally->steps, seconds);
    return 0;
}

static void usage(void) {
    fputs("usage: histories [--gpu sim|cuda] [--seed N] [--histories N | --seconds N] [--one HISTORY "
          "[--steps MASK]] "
          "[--verbose] [--as-is]\n",
          stderr);
    exit(2);
}

static void parse(int argc, char **argv) {
    enum {
        GPU = 'g',
        SEED = 's',
        HISTORIES = 'n',
        SECONDS = 't',
        ONE = '1',
        STEPS = 'm',
        VERBOSE = 'v',
        AS_IS = 'a'
    };
    static const struct option known[] = {
        {"gpu", required_argument, NULL, GPU},
        {"seed", required_argument, NULL, SEED},
        {"histories", required_argument, NULL, HISTORIES},
        {"seconds", required_argument, NULL, SECONDS},
        {"one", required_argument, NULL, ONE},
        {"steps", required_argument, NULL, STEPS},
        {"verbose", no_argument, NULL, VERBOSE},
        {"as-is", no_argument, NULL, AS_IS},
        {NULL, 0, NULL, 0},
    };

    for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;)
        switch (option) {
        case GPU:
            options.gpu = optarg;
            break;
        case SEED:
            options.seed = strtoull(optarg, NULL, 0);
            break;
        case HISTORIES:
            options.histories = strtoull(optarg, NULL, 0);
            break;
        case SECONDS:
            options.seconds = strtod(optarg, NULL);
            break;
        case ONE:
            options.is_one = true;
            options.one = strtoull(optarg, NULL, 0);
            break;
        case STEPS:
            options.steps = strtoull(optarg, NULL, 0);
            break;
        case VERBOSE:
            options.is_verbose = true;
            break;
        case AS_IS:
            options.as_is = true;
            break;
        default:
            usage();
        }
    if (optind != argc || options.histories == 0)
        usage();
}

int main(int argc, char **argv) {
    parse(argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED)
        return FAILED;
    uint64_t start_ns = clock_now_ns();
    int status = run(options.one, options.steps, options.is_one, options.is_verbose);
    if (status == WORLD_STATUS_FOUND)
        return tell(progress->history, options.steps);
    return status != 0 ? status : summarise((double)(clock_now_ns() - start_ns) / (double)NS_PER_S);
}
