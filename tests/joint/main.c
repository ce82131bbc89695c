/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays one seed's history after another, each in a child process, whose threads end with it. The parent
 * tells of a failure with seed and step, which it reads from a shared page.
 *
 * The program executes itself once more without random addresses, so that a seed replays exactly. It stays on
 * one processor: the baton goes from thread to thread, and these are never at work at once.
 */
#include <getopt.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/joint/wrapped.h"
#include "tests/joint/world.h"

#define STATUS_CLEAN   0
#define STATUS_FOUND   1
#define STATUS_USAGE   2
#define STATUS_CRASHED 3
#define STATUS_IDLE    4 /* nothing was found, but not everything happened that should */

#define EVENTS_OFTEN  1000u
#define TALLIED_STEPS UINT64_C(3000000) /* from so many steps on, everything has to have happened */
#define HANG_S        20 /* seconds of one history */

/* The children's report to their parent. */
struct progress {
    uint64_t step, histories;
    struct tally tally;
    char failure[768];
};

static struct progress *progress;

static struct options {
    uint64_t seed, steps, most_steps;
    double seconds;
    bool one;
    const char *expected;
} options = {.seed = 1};

_Noreturn void world_fail(const char *what, const char *condition, const char *file, int line) {
    snprintf(progress->failure, sizeof progress->failure,
             "step %" PRIu64 " (%s), after %" PRIu64 " ms: %s [%s:%d: %s]", world.step, world.what,
             world.now_ns / NS_PER_MS, what, strrchr(file, '/') + 1, line, condition);
    if (getenv("JOINT_ABORT") != NULL)
        abort();
    _exit(STATUS_FOUND);
}

static double now_s(void) {
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static const struct {
    const char *name;
    size_t offset;
} tallied[] = {
    {"calls of the library", offsetof(struct tally, calls)},
    {"hand-overs of the baton", offsetof(struct tally, switches)},
    {"jumps of the clock", offsetof(struct tally, clock_jumps)},
    {"clients opened", offsetof(struct tally, opens)},
    {"clients closed", offsetof(struct tally, closes)},
    {"... that held nothing before", offsetof(struct tally, conserved)},
    {"clients killed", offsetof(struct tally, kills)},
    {"ends of all connections", offsetof(struct tally, breaks)},
    {"sleeps of the daemon", offsetof(struct tally, sleeps)},
    {"sessions out of quarantine", offsetof(struct tally, reaped)},
    {"acquires", offsetof(struct tally, acquires)},
    {"... that waited for a millisecond", offsetof(struct tally, waited)},
    {"... that wait for nothing", offsetof(struct tally, zero_timeouts)},
    {"... refused", offsetof(struct tally, refused)},
    {"... refused after a wait", offsetof(struct tally, timed_out)},
    {"... by a request", offsetof(struct tally, begun)},
    {"... cancelled", offsetof(struct tally, cancelled)},
    {"... without a stream", offsetof(struct tally, no_stream)},
    {"releases on another stream", offsetof(struct tally, released_elsewhere)},
    {"streams recorded", offsetof(struct tally, recorded)},
    {"buffers shrunk", offsetof(struct tally, shrinks)},
    {"trims", offsetof(struct tally, trims)},
    {"calls of the program's callback", offsetof(struct tally, callbacks)},
    {"dispatches", offsetof(struct tally, dispatches)},
    {"captures", offsetof(struct tally, captures)},
    {"streams destroyed", offsetof(struct tally, streams_destroyed)},
    {"calls of the driver that failed", offsetof(struct tally, driver_errors)},
    {"work enqueued", offsetof(struct tally, works)},
    {"words to write", offsetof(struct tally, writes)},
    {"words to wait for", offsetof(struct tally, waits)},
    {"sockets that were full", offsetof(struct tally, full)},
    {"packets that were late", offsetof(struct tally, late)},
    {"growths", offsetof(struct tally, growths)},
    {"growths that failed", offsetof(struct tally, failed_growths)},
    {"segments retired", offsetof(struct tally, retirements)},
    {"questions for idle memory", offsetof(struct tally, questions)},
    {"mappings", offsetof(struct tally, segments_mapped)},
    {"mappings taken away", offsetof(struct tally, segments_unmapped)},
    {"rests", offsetof(struct tally, rests)},
    {"requests that waited at rest", offsetof(struct tally, waiters_at_rest)},
    {"... that needed the clock", offsetof(struct tally, clock_needed)},
};

/* Prints the events of acquires that were seen seldom, by the state that each met. */
static void summarise_events(void) {
#define NAME(name) #name,
    static const char *const states[] = {ACQUIRE_STATE_LIST(NAME)}, *const events[] = {
                                                                        ACQUIRE_EVENT_LIST(NAME)};
#undef NAME
    unsigned n_events = 0, n_often = 0;

    for (unsigned s = 0; s < ACQUIRE_STATES; s++)
        for (unsigned e = 0; e < ACQUIRE_EVENTS; e++) {
            uint64_t count = progress->tally.events[s][e];
            if (!acquire_may(s, e))
                continue;
            n_events++;
            n_often += count >= EVENTS_OFTEN;
            if (count < EVENTS_OFTEN)
                printf("%12" PRIu64 " acquires in %s that met %s\n", count, states[s], events[e]);
        }
    printf("%12u of %u events of acquires were seen %u times or more\n", n_often, n_events, EVENTS_OFTEN);
}

/* Prints how often things happened. Returns whether all of them did. */
static bool summarise(double seconds) {
    bool all = true;
    for (size_t i = 0; i < sizeof tallied / sizeof *tallied; i++) {
        uint64_t count =
            *(const uint64_t *)(const void *)((const char *)&progress->tally + tallied[i].offset);
        printf("%12" PRIu64 " %s\n", count, tallied[i].name);
        all = all && count > 0;
    }
    printf("%12" PRIu64 " passes of one request at most\n", progress->tally.largest_passes);
    summarise_events();
    printf("%" PRIu64 " steps in %" PRIu64 " histories (from seed %" PRIu64 " on), %.1f s, %.0f steps/s: ",
           progress->tally.steps, progress->histories, options.seed, seconds,
           (double)progress->tally.steps / seconds);
    return all;
}

/* Whether a failure is called one of the expected things. */
static bool is_expected(const char *failure) {
    char names[256], *rest = names, *name;

    snprintf(names, sizeof names, "%s", options.expected);
    while ((name = strsep(&rest, "|")) != NULL)
        if (strstr(failure, name) != NULL)
            return true;
    return false;
}

/* Plays one history in a child. Returns its wait status. */
static int play(uint64_t seed) {
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        alarm(HANG_S);
        history(seed, options.steps, &progress->tally, &progress->step);
        _exit(STATUS_CLEAN);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("joint: fork");
        exit(STATUS_USAGE);
    }
    progress->histories++;
    return status;
}

static int tell(uint64_t seed, int status) {
    if (progress->failure[0] == '\0')
        snprintf(progress->failure, sizeof progress->failure, "step %" PRIu64 ": broke off with %s %d",
                 progress->step, WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    printf("seed %" PRIu64 ", %s\n%" PRIu64 " steps before it; to repeat: ./dev joint --seed %" PRIu64 "%s\n",
           seed, progress->failure, progress->tally.steps, seed,
           options.steps > 0 ? " with the same --steps" : "");
    if (options.expected != NULL)
        return is_expected(progress->failure) ? STATUS_CLEAN : STATUS_FOUND;
    return WIFEXITED(status) && WEXITSTATUS(status) == STATUS_FOUND ? STATUS_FOUND : STATUS_CRASHED;
}

static int conclude(double seconds) {
    bool all = summarise(seconds);
    if (options.expected != NULL) {
        puts("nothing was found, and something should have been");
        return STATUS_IDLE;
    }
    if (!all && progress->tally.steps >= TALLIED_STEPS) {
        puts("nothing was found, but some of it never happened");
        return STATUS_IDLE;
    }
    puts("clean");
    return STATUS_CLEAN;
}

static void usage(FILE *out) {
    fputs("joint [OPTION...]: plays random histories of clients and the daemon's core\n"
          "  --seconds N      for so long, one seed after another\n"
          "  --total N        until so many steps were made\n"
          "  --seed N         from this seed on; alone: this one only\n"
          "  --steps N        programs begin to end after so many; without it the seed says\n"
          "  --expect TEXT    succeed only if something is found whose description contains this,\n"
          "                   or one of these, with | between them\n",
          out);
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {
        {"seconds", required_argument, NULL, 's'}, {"total", required_argument, NULL, 't'},
        {"seed", required_argument, NULL, 'S'},    {"steps", required_argument, NULL, 'n'},
        {"expect", required_argument, NULL, 'e'},  {"help", no_argument, NULL, 'h'},
        {0},
    };
    bool seed = false;
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        char *end = NULL;
        uint64_t number = optarg != NULL ? strtoull(optarg, &end, 10) : 0;
        if (c != 'e' && c != 'h' && c != '?' && (end == optarg || *end != '\0' || *optarg == '-')) {
            fprintf(stderr, "joint: '%s' is no number\n", optarg);
            exit(STATUS_USAGE);
        }
        switch (c) {
        case 's':
            options.seconds = (double)number;
            break;
        case 't':
            options.most_steps = number;
            break;
        case 'S':
            options.seed = number;
            seed = true;
            break;
        case 'n':
            options.steps = number;
            break;
        case 'e':
            options.expected = optarg;
            break;
        case 'h':
            usage(stdout);
            exit(STATUS_CLEAN);
        default:
            usage(stderr);
            exit(STATUS_USAGE);
        }
    }
    options.one = seed && options.seconds <= 0 && options.most_steps == 0;
    if (!options.one && options.seconds <= 0 && options.most_steps == 0)
        options.seconds = 10;
}

/* Executes the program anew without random addresses, unless it runs so. */
static void fix_addresses(char **argv) {
    int now = personality(0xffffffff);

    if (now < 0 || (now & ADDR_NO_RANDOMIZE) != 0 || personality((unsigned long)now | ADDR_NO_RANDOMIZE) < 0)
        return;
    execv("/proc/self/exe", argv);
}

static void stay_on_one_processor(void) {
    cpu_set_t set, one;
    unsigned n, place;

    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return;
    n = (unsigned)getpid() % (unsigned)CPU_COUNT(&set);
    for (place = 0; !CPU_ISSET(place, &set) || n-- > 0; place++) {
    }
    CPU_ZERO(&one);
    CPU_SET(place, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

int main(int argc, char **argv) {
    parse(argc, argv);
    fix_addresses(argv);
    stay_on_one_processor();
    progress = __real_mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED) {
        perror("joint: mmap");
        return STATUS_USAGE;
    }
    double began_s = now_s();
    for (uint64_t seed = options.seed;; seed++) {
        int status = play(seed);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != STATUS_CLEAN)
            return tell(seed, status);
        if (options.one || (options.most_steps > 0 && progress->tally.steps >= options.most_steps) ||
            (options.seconds > 0 && now_s() - began_s >= options.seconds))
            return conclude(now_s() - began_s);
    }
}
