/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays one seed's history after another, each in a child process, whose threads end with it. The parent
 * tells of a failure with seed and step, which it reads from a shared page.
 *
 * The program executes itself once more without random addresses, so that a seed replays exactly. It stays on
 * one processor: the baton goes from thread to thread, and these are never at work at once.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "tests/campaign.h"
#include "tests/joint/world.h"
#include "tests/joint/wrapped.h"

#define EVENTS_OFTEN  1000u
#define TALLIED_STEPS UINT64_C(3000000) /* from so many steps on, everything has to have happened */
#define HANG_S        20 /* seconds of one history */

/* The children's report to their parent. */
struct progress {
    uint64_t step, histories;
    struct tally tally;
    char failure[CAMPAIGN_FAILURE_SIZE];
};

static struct progress *progress;

static struct campaign campaign = {.name = "joint",
                                   .about = "plays random histories of clients and the daemon's core",
                                   .steps_about = "programs begin to end after so many"};

_Noreturn void world_fail(const char *what, const char *condition, const char *file, int line) {
    campaign_describe(progress->failure, world.step, world.what, world.now_ns, what, condition, file, line);
    if (getenv("JOINT_ABORT") != NULL)
        abort();
    _exit(CAMPAIGN_FOUND);
}

static double now_s(void) {
    struct timespec now;
    __real_clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static const struct campaign_count counts[] = {
    {"calls of the library", offsetof(struct tally, calls)},
    {"hand-overs of the baton", offsetof(struct tally, switches)},
    {"jumps of the clock", offsetof(struct tally, clock_jumps)},
    {"clients opened", offsetof(struct tally, opens)},
    {"... without a cache", offsetof(struct tally, raw_opens)},
    {"clients closed", offsetof(struct tally, closes)},
    {"... that held nothing before", offsetof(struct tally, conserved)},
    {"clients killed", offsetof(struct tally, kills)},
    {"ends of all connections", offsetof(struct tally, breaks)},
    {"sleeps of the daemon", offsetof(struct tally, sleeps)},
    {"deaths of the daemon", offsetof(struct tally, deaths)},
    {"... of one that had not served yet", offsetof(struct tally, deaths_in_a_row)},
    {"packets dealt with by a second daemon", offsetof(struct tally, packets_again)},
    {"messages sent by a second daemon, perhaps", offsetof(struct tally, messages_again)},
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
    {"buffers shared", offsetof(struct tally, shares)},
    {"... sent", offsetof(struct tally, sends)},
    {"... sent, and revoked", offsetof(struct tally, revokes)},
    {"... attached", offsetof(struct tally, attaches)},
    {"... whose token was good no more", offsetof(struct tally, no_token)},
    {"... whose token was another user's", offsetof(struct tally, foreign_tokens)},
    {"... written again", offsetof(struct tally, reuses)},
    {"... that others had still", offsetof(struct tally, held_by_others)},
    {"buffers asked for", offsetof(struct tally, queries)},
    {"operations that a killed client left", offsetof(struct tally, drops)},
    {"trims", offsetof(struct tally, trims)},
    {"calls of the program's callback", offsetof(struct tally, callbacks)},
    {"dispatches", offsetof(struct tally, dispatches)},
    {"captures", offsetof(struct tally, captures)},
    {"streams destroyed", offsetof(struct tally, streams_destroyed)},
    {"calls of the driver that failed", offsetof(struct tally, driver_errors)},
    {"allocations that failed", offsetof(struct tally, failed_allocations)},
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

/* Plays one history in a child. Returns its wait status. */
static int play(uint64_t seed) {
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        alarm(HANG_S);
        history(seed, campaign.steps, &progress->tally, &progress->step);
        _exit(CAMPAIGN_CLEAN);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        perror("joint: fork");
        exit(CAMPAIGN_USAGE);
    }
    progress->histories++;
    return status;
}

static int conclude(double seconds) {
    uint64_t steps = progress->tally.steps;
    bool all = campaign_print_counts(counts, ARRAY_LENGTH(counts), &progress->tally);

    printf("%12" PRIu64 " calls that told of lost work\n", progress->tally.lost);
    printf("%12" PRIu64 " passes of one request at most\n", progress->tally.largest_passes);
    summarise_events();
    return campaign_conclude(&campaign, steps, progress->histories, seconds, all || steps < TALLIED_STEPS);
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
    campaign_parse(&campaign, argc, argv);
    fix_addresses(argv);
    stay_on_one_processor();
    progress = __real_mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED) {
        perror("joint: mmap");
        return CAMPAIGN_USAGE;
    }
    double began_s = now_s();
    for (uint64_t seed = campaign.seed;; seed++) {
        int status = play(seed);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != CAMPAIGN_CLEAN)
            return campaign_tell(&campaign, seed, progress->step, progress->tally.steps, progress->failure,
                                 status);
        if (campaign_is_over(&campaign, progress->tally.steps, now_s() - began_s))
            return conclude(now_s() - began_s);
    }
}
