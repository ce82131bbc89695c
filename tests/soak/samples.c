/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory and descriptors that a daemon uses, over time. Its memory is what the kernel calls anonymous:
 * heap and stacks. Pools are files in memory and not in it, although the kernel counts such pages as private,
 * too, while no other process has mapped them.
 *
 * Like is compared with like: the load swings, so single samples do, and the most of a quarter is compared
 * with the most of another, when the first half has brought malloc's and the tables' levels up.
 */
#include "tests/soak/soak.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/* The memory that malloc keeps differs by this from quarter to quarter when nothing leaks (seen: below 200
 * KiB); a session has some KiB, a lease 300 bytes, and there are thousands of sessions in minutes. */
#define DAEMON_SLACK_BYTES (768 * KIB)
#define CLIENT_SLACK_BYTES                                                                                   \
    (4 * MIB) /* of several processes, which take minutes to reach their level (some 7 MiB) */
/* AddressSanitizer keeps little of what was freed where it is told to, as the daemon is; otherwise what a
 * sanitizer takes is more than what it watches, and says nothing. */
#define DAEMON_SLACK_ADDRESS_BYTES (24 * MIB)
#define ANY_AMOUNT                 (UINT64_MAX / 2)
#define DESCRIPTORS_SLACK          40 /* of some more workers, or segments, that happen to be there */

static uint64_t anonymous_bytes(pid_t pid) {
    char path[64], line[256];
    unsigned long long kib;

    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    _cleanup_(fclosep) FILE *file = fopen(path, "re");
    if (file == NULL)
        fail_msg("%s: %s", path, strerror(errno));
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Anonymous: %llu kB", &kib) == 1)
            return kib * KIB;
    fail_msg("%s does not say how much memory is anonymous", path);
    return 0;
}

static uint64_t member(const cJSON *object, const char *name) {
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    if (!cJSON_IsNumber(value))
        fail_msg("the stats have no number %s", name);
    return (uint64_t)value->valuedouble;
}

/* Adds a pool to a sample, and looks whether its numbers can be. */
static void add_pool(struct sample *sample, const cJSON *pool) {
    uint64_t leased = member(pool, "leased_bytes"), fenced = member(pool, "fenced_bytes");
    uint64_t quarantined = member(pool, "quarantined_bytes"), reserved = member(pool, "reserved_bytes");
    uint64_t used = leased + fenced + quarantined;

    /* The rest is free, or on its way to the driver. */
    if (used > reserved || member(pool, "free_bytes") > reserved - used ||
        member(pool, "largest_free_bytes") > member(pool, "free_bytes") ||
        reserved > member(pool, "limit_bytes"))
        fail_msg("a pool's numbers make no sense: %s leased, %s fenced, %s in quarantine, %s free of %s",
                 BYTES_TEXT(leased), BYTES_TEXT(fenced), BYTES_TEXT(quarantined),
                 BYTES_TEXT(member(pool, "free_bytes")), BYTES_TEXT(reserved));
    sample->leased_bytes += leased;
    sample->fenced_bytes += fenced;
    sample->quarantined_bytes += quarantined;
    sample->leases += member(pool, "leases");
    sample->waiters += member(pool, "waiters");
    sample->acquires += member(pool, "acquires");
}

void samples_take(struct samples *samples, struct test_daemon *daemon, uint64_t start_ns, const pid_t *stay,
                  size_t n_stay) {
    struct sample sample = {.at_ns = clock_now_ns() - start_ns};
    cJSON *stats = daemon_ask(daemon, "{\"command\":\"stats\"}"), *pool;

    cJSON_ArrayForEach(pool, cJSON_GetObjectItemCaseSensitive(stats, "pools")) {
        add_pool(&sample, pool);
    }
    sample.sessions = (uint64_t)cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(stats, "sessions"));
    cJSON_Delete(stats);
    sample.daemon_bytes = anonymous_bytes(daemon->pid);
    sample.descriptors = daemon_descriptors(daemon);
    sample.threads = daemon_threads(daemon);
    for (size_t i = 0; i < n_stay; i++)
        sample.client_bytes += anonymous_bytes(stay[i]);
    if (samples->count == samples->room) {
        samples->room = 2 * samples->room + 64;
        samples->at = realloc(samples->at, samples->room * sizeof *samples->at);
        assert_non_null(samples->at);
    }
    samples->at[samples->count++] = sample;
}

void samples_print(const struct sample *sample) {
    print_message("%8s: daemon %9s, %3" PRIu64 " descriptors, %2" PRIu64 " threads; clients %9s; %2" PRIu64
                  " sessions, %4" PRIu64 " leases, %9s leased, %9s in quarantine, %2" PRIu64
                  " waiting, %" PRIu64 " acquires\n",
                  NS_TEXT(sample->at_ns / NS_PER_S * NS_PER_S), BYTES_TEXT(sample->daemon_bytes),
                  sample->descriptors, sample->threads, BYTES_TEXT(sample->client_bytes), sample->sessions,
                  sample->leases, BYTES_TEXT(sample->leased_bytes), BYTES_TEXT(sample->quarantined_bytes),
                  sample->waiters, sample->acquires);
}

int samples_write(const struct samples *samples, const char *path) {
    _cleanup_(fclosep) FILE *file = fopen(path, "we");
    if (file == NULL)
        return -errno;
    fputs("seconds,daemon_bytes,client_bytes,descriptors,threads,sessions,leases,leased_bytes,fenced_bytes,"
          "quarantined_bytes,waiters,acquires\n",
          file);
    for (size_t i = 0; i < samples->count; i++) {
        const struct sample *s = &samples->at[i];
        fprintf(file,
                "%.2f,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64
                ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n",
                (double)s->at_ns / 1e9, s->daemon_bytes, s->client_bytes, s->descriptors, s->threads,
                s->sessions, s->leases, s->leased_bytes, s->fenced_bytes, s->quarantined_bytes, s->waiters,
                s->acquires);
    }
    return ferror(file) ? -EIO : 0;
}

/* --- the judgement --- */

static uint64_t daemon_slack(void) {
#if defined(__SANITIZE_THREAD__)
    return ANY_AMOUNT;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
    return ANY_AMOUNT;
#endif
#endif
    return test_is_sanitized() ? DAEMON_SLACK_ADDRESS_BYTES : DAEMON_SLACK_BYTES;
}

static uint64_t figure(const struct sample *sample, size_t offset) {
    uint64_t value;
    memcpy(&value, (const char *)sample + offset, sizeof value);
    return value;
}

static uint64_t most(const struct samples *samples, size_t from, size_t to, size_t offset) {
    uint64_t most = 0;
    for (size_t i = from; i < to; i++)
        most = figure(&samples->at[i], offset) > most ? figure(&samples->at[i], offset) : most;
    return most;
}

unsigned samples_judge(const struct samples *samples) {
    const struct {
        const char *name;
        size_t offset;
        uint64_t slack;
        bool is_bytes;
    } figures[] = {
        {"the daemon's memory", offsetof(struct sample, daemon_bytes), daemon_slack(), true},
        {"the lasting clients' memory", offsetof(struct sample, client_bytes),
         test_is_sanitized() ? ANY_AMOUNT : CLIENT_SLACK_BYTES, true},
        {"the daemon's descriptors", offsetof(struct sample, descriptors), DESCRIPTORS_SLACK, false},
        {"the daemon's threads", offsetof(struct sample, threads), 8,
         false}, /* those that make host pages come and go */
    };
    size_t quarter = samples->count / 4;
    unsigned grown = 0;

    assert_true(quarter > 0);
    for (unsigned i = 0; i < sizeof figures / sizeof *figures; i++) {
        uint64_t before = most(samples, quarter, 2 * quarter, figures[i].offset);
        uint64_t after = most(samples, samples->count - quarter, samples->count, figures[i].offset);
        bool has_grown = after > before + figures[i].slack;
        char before_text[UNITS_TEXT_SIZE], after_text[UNITS_TEXT_SIZE];
        if (figures[i].is_bytes) {
            units_format_bytes(before, before_text, sizeof before_text);
            units_format_bytes(after, after_text, sizeof after_text);
        } else {
            snprintf(before_text, sizeof before_text, "%" PRIu64, before);
            snprintf(after_text, sizeof after_text, "%" PRIu64, after);
        }
        print_message("%s: at most %s in the second quarter, %s in the last%s\n", figures[i].name,
                      before_text, after_text, has_grown ? ": IT GREW" : "");
        grown += has_grown;
    }
    return grown;
}

void samples_deinit(struct samples *samples) {
    free(samples->at);
    *samples = (struct samples){0};
}
