/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client holds for programs that allocate as real ones do: the traces under tests/traces, recorded
 * with PyTorch. Over what the program has live at most, a client has to hold less at most than PyTorch's
 * caching allocator did, and little more than is live on average. GPUPOOL_TEST_TRACES says where the traces
 * are.
 */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>

#include "cache_fixture.h"
#include "tests/bench/replay_trace.h"

#define AVERAGE_MAX 1.10

/* What the lanes say that they hold: cheaper than asking the daemon 90,000 times. */
static uint64_t held_bytes(struct gpupool_client *client) {
    uint64_t bytes = 0;

    pthread_mutex_lock(&client->cache.lanes_lock);
    list_for_each(position, &client->cache.lanes) {
        struct lane *lane = container_of(position, struct lane, link);
        pthread_mutex_lock(&lane->lock);
        bytes += lane_held_bytes_locked(lane);
        pthread_mutex_unlock(&lane->lock);
    }
    pthread_mutex_unlock(&client->cache.lanes_lock);
    return bytes;
}

static double replay_ratio(const struct test_daemon *daemon, const struct trace *trace) {
    uint64_t most_bytes = 0;
    struct replay replay;

    replay_open(&replay, trace, daemon->socket);
    for (size_t i = 0; i < trace->count; i++) {
        replay_event(&replay, &trace->events[i]);
        uint64_t bytes = held_bytes(replay.client);
        if (bytes > most_bytes) { /* and the daemon says the same */
            assert_int_equal(replay_pool(&replay).leased_bytes, bytes);
            most_bytes = bytes;
        }
    }
    assert_true(lanes_are_valid(replay.client));
    replay_close(&replay);
    return (double)most_bytes / (double)trace->peak_live_bytes;
}

/* Finds the traces and starts a daemon with room for them. */
static void begin(struct test_daemon *daemon, glob_t *found) {
    static const char *const arguments[] = {"--sim-memory", "40GiB", NULL};
    const char *directory = getenv("GPUPOOL_TEST_TRACES");
    char pattern[4096];

    snprintf(pattern, sizeof pattern, "%s/*.trace.gz", directory != NULL ? directory : "tests/traces");
    assert_int_equal(glob(pattern, 0, NULL, found), 0);
    daemon_start(daemon, &(struct daemon_options){.config = "[device]\nstep = 1GiB\nlimit = 32GiB\n",
                                                  .arguments = test_is_simulated() ? arguments : NULL});
}

/* What goes back and comes again costs messages: a program whose sizes never settle is not held to the least
 * that it needs for ever. */
static void who_was_held_tight_too_often_keeps_what_it_has(void **state) {
    struct test_daemon daemon = {0};
    glob_t found;

    (void)state;
    if (!test_has_device())
        skip();
    begin(&daemon, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct trace trace;
        struct replay replay;
        uint64_t most_bytes = 0;

        trace_read(&trace, found.gl_pathv[i]);
        replay_open(&replay, &trace, daemon.socket);
        replay.client->cache.tight_ns[0] = replay.client->cache.tight_ns[1] = NS_FOREVER;
        for (size_t j = 0; j < trace.count; j++) {
            replay_event(&replay, &trace.events[j]);
            uint64_t bytes = held_bytes(replay.client);
            assert_true(bytes >= most_bytes);
            most_bytes = bytes;
        }
        replay_close(&replay);
        trace_free(&trace);
    }
    globfree(&found);
    daemon_stop(&daemon);
}

static void a_client_holds_less_than_pytorch_and_little_more_than_is_live(void **state) {
    struct test_daemon daemon = {0};
    double sum = 0;
    glob_t found;

    (void)state;
    if (!test_has_device())
        skip();
    begin(&daemon, &found);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        struct trace trace;
        trace_read(&trace, found.gl_pathv[i]);
        double ratio = replay_ratio(&daemon, &trace);
        double torch = (double)trace.torch_peak_reserved_bytes / (double)trace.peak_live_bytes;
        print_message("%s: %.4f, PyTorch %.4f\n", trace.name, ratio, torch);
        assert_true(ratio <= torch);
        sum += ratio;
        trace_free(&trace);
    }
    assert_true(sum / (double)found.gl_pathc <= AVERAGE_MAX);
    globfree(&found);
    daemon_stop(&daemon);
}

int main(void) {
    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_client_holds_less_than_pytorch_and_little_more_than_is_live),
        cmocka_unit_test(who_was_held_tight_too_often_keeps_what_it_has),
    };
    return test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
