/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays one seed's history after another, many in one child process. The parent tells of a failure with seed
 * and step, which it reads from a shared page.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "tests/campaign.h"
#include "tests/channel/world.h"

#define TALLIED_STEPS UINT64_C(1000000) /* from so many steps on, everything has to have happened */
#define BATCH         64u               /* histories of one child */
#define HANG_S        60u               /* seconds of a child */

/* The children's report to their parent. */
struct progress {
    uint64_t seed, step, histories;
    struct tally tally;
    char failure[CAMPAIGN_FAILURE_SIZE];
};

static struct progress *progress;

static struct campaign campaign = {.name = "channel",
                                   .about = "plays random histories of a channel and its processes",
                                   .steps_about = "processes begin to come to rest after so many"};

_Noreturn void world_fail(const char *what, const char *condition, const char *file, int line) {
    campaign_describe(progress->failure, world.step, world.what != NULL ? world.what : "set up", 0, what,
                      condition, file, line);
    if (getenv("CHANNEL_ABORT") != NULL)
        abort();
    _exit(CAMPAIGN_FOUND);
}

#define COUNT(text, member)                                                                                  \
    { text, offsetof(struct tally, member) }
static const struct campaign_count counts[] = {
    COUNT("accesses", accesses),
    COUNT("turns lost", switches),
    COUNT("... for a while", stalls),
    COUNT("stores that left a buffer", flushes),
    COUNT("processes that took a place", joins),
    COUNT("... after another left it", admissions),
    COUNT("... after a consumer died", consumer_successors),
    COUNT("... after a producer died", producer_successors),
    COUNT("processes that left", leaves),
    COUNT("places given up", operator_leaves),
    COUNT("deaths of consumers", consumer_deaths),
    COUNT("... before their admission", deaths_before_admission),
    COUNT("deaths of producers", producer_deaths),
    COUNT("... that had begun to send", unsent),
    COUNT("loans", loans),
    COUNT("... given back", given_back),
    COUNT("... that dropped elements", drops),
    COUNT("searches in vain", full),
    COUNT("... that failed at once", failed),
    COUNT("elements sent", sends),
    COUNT("elements received", receives),
    COUNT("... once more", again),
    COUNT("elements missed", missed),
    COUNT("claims given up beside a sleeper", given_up),
    COUNT("releases", releases),
    COUNT("... out of order", out_of_order),
    COUNT("ends seen", ended),
    COUNT("sleeps of producers", producer_sleeps),
    COUNT("sleeps of consumers", consumer_sleeps),
    COUNT("sleepers woken", wakes),
    COUNT("sleeps that did not begin", wakes_in_time),
    COUNT("broken processes", liars),
    COUNT("... that were found out", lies_found),
    COUNT("histories that came to rest", ends),
};

/* Plays histories in a child. Returns its wait status. */
static int play(uint64_t seed, unsigned n_seeds) {
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        alarm(HANG_S);
        for (; n_seeds > 0; n_seeds--, seed++) {
            progress->seed = seed;
            history(seed, campaign.steps, &progress->tally, &progress->step);
            progress->histories++;
        }
        _exit(CAMPAIGN_CLEAN);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("channel: fork");
        exit(CAMPAIGN_USAGE);
    }
    return status;
}

int main(int argc, char **argv) {
    campaign_parse(&campaign, argc, argv);
    progress = mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED) {
        perror("channel: mmap");
        return CAMPAIGN_USAGE;
    }
    uint64_t began_ns = clock_now_ns();
    for (uint64_t seed = campaign.seed;; seed += BATCH) {
        int status = play(seed, campaign.is_one ? 1 : BATCH);
        double seconds = (double)(clock_now_ns() - began_ns) / (double)NS_PER_S;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != CAMPAIGN_CLEAN)
            return campaign_tell(&campaign, progress->seed, progress->step, progress->tally.steps,
                                 progress->failure, status);
        if (!campaign_is_over(&campaign, progress->tally.steps, seconds))
            continue;
        bool all = campaign_print_counts(counts, ARRAY_LENGTH(counts), &progress->tally);
        return campaign_conclude(&campaign, progress->tally.steps, progress->histories, seconds,
                                 all || progress->tally.steps < TALLIED_STEPS);
    }
}
