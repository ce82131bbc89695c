/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays one seed's history after another, in a child process: what breaks off there (an assertion of the
 * core, a sanitizer's report) is told with seed and step by the parent, which reads them from a shared page.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "tests/campaign.h"
#include "tests/sim/world.h"

#define TALLIED_STEPS UINT64_C(1000000) /* from so many steps on, everything has to have happened */

/* The child's report to its parent. */
struct progress {
    uint64_t seed, step, histories;
    struct tally tally;
    char failure[CAMPAIGN_FAILURE_SIZE];
};

static struct progress *progress;

static struct campaign campaign = {.name = "sim",
                                   .about = "plays random histories of the daemon's core",
                                   .steps_about = "a history has so many",
                                   .validate_every = 8};

_Noreturn void world_fail(const struct world *world, const char *what, const char *condition,
                          const char *file, int line) {
    campaign_describe(progress->failure, world->step, world->step_name, world->now_ns, what, condition, file,
                      line);
    _exit(CAMPAIGN_FOUND);
}

static double now_s(void) {
    return (double)clock_now_ns() / (double)NS_PER_S;
}

static void play(void) {
    double began_s = now_s();
    for (uint64_t seed = campaign.seed;; seed++) {
        progress->seed = seed;
        history(seed, campaign.steps, campaign.validate_every, &progress->tally, &progress->step);
        progress->histories++;
        if (campaign_is_over(&campaign, progress->tally.steps, now_s() - began_s))
            return;
    }
}

static const struct campaign_count counts[] = {
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
    {"editions published", offsetof(struct tally, names_published)},
    {"... in the place of others", offsetof(struct tally, names_replaced)},
    {"... withdrawn", offsetof(struct tally, names_withdrawn)},
    {"... that outlived their publisher", offsetof(struct tally, names_outlived)},
    {"... whose contents never came", offsetof(struct tally, names_spoiled)},
    {"names opened", offsetof(struct tally, names_opened)},
    {"... to be built", offsetof(struct tally, names_built)},
    {"... and given up by the builder", offsetof(struct tally, names_given_up)},
    {"... of which nothing was left", offsetof(struct tally, names_gone)},
    {"... too late", offsetof(struct tally, names_late)},
    {"... whose answer was not true any more", offsetof(struct tally, names_again)},
    {"directories read", offsetof(struct tally, names_read)},
    {"attachments by names", offsetof(struct tally, names_attached)},
    {"channels made", offsetof(struct tally, channels_made)},
    {"... places taken", offsetof(struct tally, channels_joined)},
    {"... places left", offsetof(struct tally, channels_left)},
    {"... places lost", offsetof(struct tally, channels_lost)},
    {"... places vacated by the dead", offsetof(struct tally, channels_vacated)},
    {"... ended with sessions in them", offsetof(struct tally, channels_ended)},
    {"... ended for want of pages", offsetof(struct tally, channels_without_pages)},
    {"... gone", offsetof(struct tally, channels_gone)},
    {"changes of places told to the shell", offsetof(struct tally, channels_told)},
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
    {"successors that inherited", offsetof(struct tally, heirs)},
    {"successors that the world went on with", offsetof(struct tally, successors)},
    {"... without the step in which the daemon died", offsetof(struct tally, steps_lost)},
    {"... after one that died while it read", offsetof(struct tally, reads_died)},
    {"... after one that got no memory", offsetof(struct tally, reads_failed)},
    {"deaths while the estate grew", offsetof(struct tally, growths_died)},
    {"deaths while the estate was made", offsetof(struct tally, makers_died)},
    {"pools that drained", offsetof(struct tally, drains)},
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

static int judge(int status, double seconds) {
    uint64_t steps = progress->tally.steps;

    if (!WIFEXITED(status) || WEXITSTATUS(status) != CAMPAIGN_CLEAN)
        return campaign_tell(&campaign, progress->seed, progress->step, steps, progress->failure, status);
    bool all = campaign_print_counts(counts, ARRAY_LENGTH(counts), &progress->tally);
    return campaign_conclude(&campaign, steps, progress->histories, seconds, all || steps < TALLIED_STEPS);
}

int main(int argc, char **argv) {
    int status = 0;

    campaign_parse(&campaign, argc, argv);
    progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED) {
        perror("sim: mmap");
        return CAMPAIGN_USAGE;
    }
    double began_s = now_s();
    pid_t child = fork();
    if (child == 0) {
        play();
        exit(CAMPAIGN_CLEAN);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("sim: fork");
        return CAMPAIGN_USAGE;
    }
    return judge(status, now_s() - began_s);
}
