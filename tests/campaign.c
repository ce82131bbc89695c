/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/campaign.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"

static void usage(const struct campaign *campaign, FILE *out) {
    fprintf(out,
            "%s [OPTION...]: %s\n"
            "  --seconds N      for so long, one seed after another\n"
            "  --total N        until so many steps were made\n"
            "  --seed N         from this seed on; alone: this one only\n"
            "  --steps N        %s; without it the seed says\n",
            campaign->name, campaign->about, campaign->steps_about);
    if (campaign->validate_every > 0)
        fprintf(out, "  --validate N     the core's own validators run every so many steps (%u)\n",
                campaign->validate_every);
    fputs("  --expect TEXT    succeed only if something is found whose description contains this,\n"
          "                   or one of these, with | between them\n",
          out);
}

static _Noreturn void refuse(const struct campaign *campaign) {
    usage(campaign, stderr);
    exit(CAMPAIGN_USAGE);
}

static uint64_t parse_number(const struct campaign *campaign, const char *text) {
    char *end;
    uint64_t number = strtoull(text, &end, 10);

    if (end == text || *end != '\0' || *text == '-') {
        fprintf(stderr, "%s: '%s' is no number\n", campaign->name, text);
        exit(CAMPAIGN_USAGE);
    }
    return number;
}

void campaign_parse(struct campaign *campaign, int argc, char **argv) {
    static const struct option known[] = {
        {"seconds", required_argument, NULL, 's'},  {"total", required_argument, NULL, 't'},
        {"seed", required_argument, NULL, 'S'},     {"steps", required_argument, NULL, 'n'},
        {"validate", required_argument, NULL, 'v'}, {"expect", required_argument, NULL, 'e'},
        {"help", no_argument, NULL, 'h'},           {0},
    };
    bool has_validators = campaign->validate_every > 0, has_seed = false;

    campaign->seed = 1;
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case 's':
            campaign->seconds = (double)parse_number(campaign, optarg);
            break;
        case 't':
            campaign->most_steps = parse_number(campaign, optarg);
            break;
        case 'S':
            campaign->seed = parse_number(campaign, optarg);
            has_seed = true;
            break;
        case 'n':
            campaign->steps = parse_number(campaign, optarg);
            break;
        case 'v':
            if (!has_validators)
                refuse(campaign);
            campaign->validate_every = (unsigned)parse_number(campaign, optarg);
            campaign->validate_every += campaign->validate_every == 0;
            break;
        case 'e':
            campaign->expected = optarg;
            break;
        case 'h':
            usage(campaign, stdout);
            exit(CAMPAIGN_CLEAN);
        default:
            refuse(campaign);
        }
    }
    bool has_end = campaign->seconds > 0 || campaign->most_steps > 0;
    campaign->is_one = has_seed && !has_end;
    if (!has_seed && !has_end)
        campaign->seconds = 10;
}

bool campaign_is_over(const struct campaign *campaign, uint64_t steps, double seconds) {
    return campaign->is_one || (campaign->most_steps > 0 && steps >= campaign->most_steps) ||
           (campaign->seconds > 0 && seconds >= campaign->seconds);
}

void campaign_describe(char text[static CAMPAIGN_FAILURE_SIZE], uint64_t step, const char *step_name,
                       uint64_t now_ns, const char *what, const char *condition, const char *file, int line) {
    snprintf(text, CAMPAIGN_FAILURE_SIZE, "step %" PRIu64 " (%s), after %" PRIu64 " ms: %s [%s:%d: %s]", step,
             step_name, now_ns / NS_PER_MS, what, strrchr(file, '/') + 1, line, condition);
}

/* Whether a failure is called one of the expected things: the order of draws, and so the first symptom of a
 * fault, differs from compiler to compiler. */
static bool is_expected(const struct campaign *campaign, const char *failure) {
    char names[256], *rest = names, *name;

    snprintf(names, sizeof names, "%s", campaign->expected);
    while ((name = strsep(&rest, "|")) != NULL)
        if (strstr(failure, name) != NULL)
            return true;
    return false;
}

int campaign_tell(const struct campaign *campaign, uint64_t seed, uint64_t step, uint64_t steps,
                  char failure[static CAMPAIGN_FAILURE_SIZE], int wait_status) {
    bool is_signal = WIFSIGNALED(wait_status);

    if (failure[0] == '\0')
        snprintf(failure, CAMPAIGN_FAILURE_SIZE, "step %" PRIu64 ": broke off with %s %d", step,
                 is_signal ? "signal" : "status",
                 is_signal ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status));
    printf("seed %" PRIu64 ", %s\n%" PRIu64 " steps before it; to repeat: ./dev %s --seed %" PRIu64 "%s\n",
           seed, failure, steps, campaign->name, seed, campaign->steps > 0 ? " with the same --steps" : "");
    if (campaign->expected != NULL)
        return is_expected(campaign, failure) ? CAMPAIGN_CLEAN : CAMPAIGN_FOUND;
    return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == CAMPAIGN_FOUND ? CAMPAIGN_FOUND
                                                                                : CAMPAIGN_CRASHED;
}

bool campaign_print_counts(const struct campaign_count *counts, size_t n_counts, const void *tally) {
    bool all = true;

    for (size_t i = 0; i < n_counts; i++) {
        uint64_t count = *(const uint64_t *)(const void *)((const char *)tally + counts[i].offset);
        printf("%12" PRIu64 " %s\n", count, counts[i].name);
        all = all && count > 0;
    }
    return all;
}

int campaign_conclude(const struct campaign *campaign, uint64_t steps, uint64_t histories, double seconds,
                      bool happened) {
    const char *verdict = campaign->expected != NULL ? "nothing was found, and something should have been"
                          : !happened                ? "nothing was found, but some of it never happened"
                                                     : "clean";

    printf("%" PRIu64 " steps in %" PRIu64 " histories (from seed %" PRIu64
           " on), %.1f s, %.0f steps/s: %s\n",
           steps, histories, campaign->seed, seconds, (double)steps / seconds, verdict);
    return campaign->expected != NULL || !happened ? CAMPAIGN_IDLE : CAMPAIGN_CLEAN;
}
