/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays one seed's history after another, in a child process: what breaks off there (an assertion of the
 * core, a sanitizer's report) is told with seed and step by the parent, which reads them from a shared page.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/world.h"

#define STATUS_CLEAN   0
#define STATUS_FOUND   1
#define STATUS_USAGE   2
#define STATUS_CRASHED 3
#define STATUS_IDLE    4 /* nothing was found, but not everything happened that should */

#define TALLIED_STEPS UINT64_C(1000000) /* from so many steps on, everything has to have happened */

/* The child's report to its parent. */
struct progress {
    uint64_t seed, step, histories;
    struct tally tally;
    char failure[512];
};

static struct progress *progress;

static struct options {
    uint64_t seed, steps, most_steps;
    double seconds;
    unsigned validate_every;
    bool one;
    const char *expected;
} options = {.seed = 1, .validate_every = 8};

_Noreturn void world_fail(const struct world *world, const char *what, const char *condition,
                          const char *file, int line) {
    snprintf(progress->failure, sizeof progress->failure,
             "step %" PRIu64 " (%s), after %" PRIu64 " ms: %s [%s:%d: %s]", world->step, world->step_name,
             world->now_ns / NS_PER_MS, what, strrchr(file, '/') + 1, line, condition);
    _exit(STATUS_FOUND);
}

static double now_s(void) {
    return (double)clock_now_ns() / (double)NS_PER_S;
}

static void play(void) {
    double end_s = now_s() + options.seconds;
    for (uint64_t seed = options.seed;; seed++) {
        progress->seed = seed;
        history(seed, options.steps, options.validate_every, &progress->tally, &progress->step);
        progress->histories++;
        if (options.one || (options.most_steps > 0 && progress->tally.steps >= options.most_steps) ||
            (options.seconds > 0 && now_s() >= end_s))
            return;
    }
}

static const struct {
    const char *name;
    size_t offset;
} tallied[] = {
    {"sessions", offsetof(struct tally, sessions)},
    {"leases granted", offsetof(struct tally, grants)},
    {"... several segments at once", offsetof(struct tally, segments)},
    {"requests that waited", offsetof(struct tally, waited)},
    {"refusals", offsetof(struct tally, refusals)},
    {"deadlines that passed", offsetof(struct tally, deadlines)},
    {"requests that waited for long", offsetof(struct tally, long_waits)},
    {"requests given up that no other process can serve", offsetof(struct tally, alone)},
    {"requests cancelled", offsetof(struct tally, cancels)},
    {"parts released", offsetof(struct tally, parts)},
    {"splits", offsetof(struct tally, splits)},
    {"rows", offsetof(struct tally, rows)},
    {"parts described", offsetof(struct tally, described)},
    {"merges", offsetof(struct tally, merges)},
    {"blocks shared", offsetof(struct tally, shares)},
    {"attachments", offsetof(struct tally, attaches)},
    {"blocks sent", offsetof(struct tally, sends)},
    {"... and taken", offsetof(struct tally, taken)},
    {"... and revoked by a session", offsetof(struct tally, revoked)},
    {"... whose time was up", offsetof(struct tally, too_late)},
    {"releases behind fences", offsetof(struct tally, fences)},
    {"parts that joined others behind their fence", offsetof(struct tally, joined)},
    {"parts that stayed with their lease", offsetof(struct tally, withheld)},
    {"fences that arrived", offsetof(struct tally, arrivals)},
    {"growths", offsetof(struct tally, growths)},
    {"growths ahead of demand", offsetof(struct tally, aheads)},
    {"growths that failed", offsetof(struct tally, failures)},
    {"segments retired", offsetof(struct tally, retirements)},
    {"segments to be closed", offsetof(struct tally, closings)},
    {"... because it was offered", offsetof(struct tally, offered)},
    {"requests that ended with the answers of all", offsetof(struct tally, answered_early)},
    {"segments closed", offsetof(struct tally, closed)},
    {"passes by later requests", offsetof(struct tally, passes)},
    {"requests that were passed too often", offsetof(struct tally, overdue)},
    {"turns between tenants", offsetof(struct tally, turns)},
    {"scopes dropped", offsetof(struct tally, scopes)},
    {"devices lost", offsetof(struct tally, devices_lost)},
    {"policies set", offsetof(struct tally, policies)},
    {"refusals for a quota", offsetof(struct tally, quota_refusals)},
    {"deadlines while over a quota", offsetof(struct tally, held)},
    {"allocations that failed", offsetof(struct tally, out_of_memory)},
    {"sessions asked for idle memory", offsetof(struct tally, reclaims)},
    {"farewells", offsetof(struct tally, byes)},
    {"broken connections", offsetof(struct tally, breaks)},
    {"kills", offsetof(struct tally, kills)},
    {"forks", offsetof(struct tally, forks)},
    {"returns from quarantine", offsetof(struct tally, reaped)},
    {"... of a process with a forked child", offsetof(struct tally, behind_child)},
    {"... because nobody holds descriptors", offsetof(struct tally, by_holders)},
    {"... forced by an operator", offsetof(struct tally, forced)},
};

/* Prints how often things happened. Returns whether all of them did. */
static bool summarise(double seconds) {
    bool all = true;
    for (size_t i = 0; i < sizeof tallied / sizeof *tallied; i++) {
        uint64_t count =
            *(const uint64_t *)(const void *)((const char *)&progress->tally + tallied[i].offset);
        printf("%12" PRIu64 " %s\n", count, tallied[i].name);
        all = all && count > 0;
    }
    printf("%" PRIu64 " steps in %" PRIu64 " histories (seeds %" PRIu64 " to %" PRIu64
           "), %.1f s, %.0f steps/s: ",
           progress->tally.steps, progress->histories, options.seed, progress->seed, seconds,
           (double)progress->tally.steps / seconds);
    return all;
}

/* Whether a failure is called one of the expected things: the order of draws, and so the first symptom of a
 * fault, differs from compiler to compiler. */
static bool is_expected(const char *failure) {
    char names[256], *rest = names, *name;

    snprintf(names, sizeof names, "%s", options.expected);
    while ((name = strsep(&rest, "|")) != NULL)
        if (strstr(failure, name) != NULL)
            return true;
    return false;
}

static int judge(int status, double seconds) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == STATUS_CLEAN) {
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
    if (progress->failure[0] == '\0')
        snprintf(progress->failure, sizeof progress->failure, "step %" PRIu64 ": broke off with %s %d",
                 progress->step, WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    printf("seed %" PRIu64 ", %s\n%" PRIu64 " steps before it; to repeat: ./dev sim --seed %" PRIu64 "%s\n",
           progress->seed, progress->failure, progress->tally.steps, progress->seed,
           options.steps > 0 ? " with the same --steps" : "");
    if (options.expected != NULL)
        return is_expected(progress->failure) ? STATUS_CLEAN : STATUS_FOUND;
    return WIFEXITED(status) && WEXITSTATUS(status) == STATUS_FOUND ? STATUS_FOUND : STATUS_CRASHED;
}

static void usage(FILE *out) {
    fputs("sim [OPTION...]: plays random histories of the daemon's core\n"
          "  --seconds N      for so long, one seed after another\n"
          "  --total N        until so many steps were made\n"
          "  --seed N         from this seed on; alone: this one only\n"
          "  --steps N        a history has so many; without it the seed says\n"
          "  --validate N     the core's own validators run every so many steps (8)\n"
          "  --expect TEXT    succeed only if something is found whose description contains this,\n"
          "                   or one of these, with | between them\n",
          out);
}

static void parse(int argc, char **argv) {
    static const struct option known[] = {
        {"seconds", required_argument, NULL, 's'},  {"total", required_argument, NULL, 't'},
        {"seed", required_argument, NULL, 'S'},     {"steps", required_argument, NULL, 'n'},
        {"validate", required_argument, NULL, 'v'}, {"expect", required_argument, NULL, 'e'},
        {"help", no_argument, NULL, 'h'},           {0},
    };
    bool seed = false;
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        char *end = NULL;
        uint64_t number = optarg != NULL ? strtoull(optarg, &end, 10) : 0;
        if (c != 'e' && c != 'h' && c != '?' && (end == optarg || *end != '\0' || *optarg == '-')) {
            fprintf(stderr, "sim: '%s' is no number\n", optarg);
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
        case 'v':
            options.validate_every = number > 0 ? (unsigned)number : 1;
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

int main(int argc, char **argv) {
    int status = 0;

    parse(argc, argv);
    progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED) {
        perror("sim: mmap");
        return STATUS_USAGE;
    }
    double began_s = now_s();
    pid_t child = fork();
    if (child == 0) {
        play();
        exit(STATUS_CLEAN);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("sim: fork");
        return STATUS_USAGE;
    }
    return judge(status, now_s() - began_s);
}
