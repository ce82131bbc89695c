/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers between processes: contents, sharing, giving back in whole and in parts, and nothing that grows. */
#include <string.h>

#include "tests/integration/puppet.h"

#define POOL_MIB   64u
#define SIZE_BYTES (3 * MIB + 4096 + 8) /* no multiple of anything that blocks are rounded to */
#define ROUNDS     1000u

#include "tests/integration/daemon_fixture.h"

static void write_and_read(unsigned kind) {
    struct gpupool_token token;
    struct puppet writer, reader;

    puppet_connect(&writer, &daemon_);
    puppet_connect(&reader, &daemon_);
    PUPPET_MUST(&writer, puppet_acquire(&writer, 0, kind, SIZE_BYTES, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&writer, puppet_fill(&writer, 0, 0x1234));
    PUPPET_MUST(&writer, puppet_share(&writer, 0, &token));
    PUPPET_MUST(&reader, puppet_attach(&reader, 0, &token));
    assert_int_equal(reader.answer.buffer.kind, kind);
    PUPPET_MUST(&reader, puppet_query(&reader, 0));
    assert_int_equal(reader.answer.info.holders, 2);
    assert_int_equal(reader.answer.info.shared, 1);
    assert_int_equal(reader.answer.info.buffer.size_bytes, SIZE_BYTES);
    PUPPET_MUST(&reader, puppet_check(&reader, 0, 0x1234));
    /* and back: it is the same memory, not a copy */
    PUPPET_MUST(&reader, puppet_fill(&reader, 0, 0x5678));
    PUPPET_MUST(&writer, puppet_check(&writer, 0, 0x5678));
    /* who attached keeps it when the other goes */
    PUPPET_MUST(&writer, puppet_release(&writer, 0));
    puppet_quit(&writer);
    PUPPET_MUST(&reader, puppet_check(&reader, 0, 0x5678));
    PUPPET_MUST(&reader, puppet_release(&reader, 0));
    PUPPET_MUST_BE(&reader, puppet_attach(&reader, 1, &token), GPUPOOL_E_NO_TOKEN);
    puppet_quit(&reader);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
}

static void what_one_process_writes_another_reads_by_token(void **state) {
    (void)state;
    for_each_kind(write_and_read);
}

static void rounds_without_growth(unsigned kind) {
    const char *name = puppet_kind_name(kind);
    struct puppet_command rounds = {
        .verb = PUPPET_ROUNDS, .kind = kind, .size = 256 * KIB, .seed = 1, .number = 1};
    struct puppet worker;

    puppet_connect(&worker, &daemon_);
    PUPPET_MUST(&worker, puppet_call(&worker, &rounds));
    WAIT_UNTIL(daemon_pool(&daemon_, name, 0, "growing_bytes") == 0); /* ahead of demand */
    uint64_t reserved = daemon_pool(&daemon_, name, 0, "reserved_bytes");
    uint64_t acquires = daemon_pool(&daemon_, name, 0, "acquires");
    unsigned descriptors = daemon_descriptors_at_rest(&daemon_), threads = daemon_threads(&daemon_);
    rounds.number = ROUNDS;
    PUPPET_MUST(&worker, puppet_call(&worker, &rounds));
    assert_int_equal(worker.answer.number, ROUNDS);
    assert_int_equal(daemon_pool(&daemon_, name, 0, "acquires"), acquires + ROUNDS);
    assert_int_equal(daemon_pool(&daemon_, name, 0, "reserved_bytes"), reserved);
    assert_int_equal(daemon_pool(&daemon_, name, 0, "leases"), 0);
    assert_int_equal(daemon_pool(&daemon_, name, 0, "leased_bytes"), 0);
    WAIT_UNTIL(daemon_descriptors(&daemon_) <= descriptors); /* more for a moment: who looks into /proc */
    WAIT_UNTIL(daemon_threads(&daemon_) <= threads);
    puppet_quit(&worker);
}

static void a_thousand_rounds_leave_no_growth(void **state) {
    (void)state;
    for_each_kind(rounds_without_growth);
}

static void shrink(unsigned kind) {
    const char *name = puppet_kind_name(kind);
    struct puppet_command to_one_mib = {.verb = PUPPET_SHRINK, .size = MIB};
    struct puppet giver, taker;

    puppet_connect(&giver, &daemon_);
    puppet_connect(&taker, &daemon_);
    /* all of the pool, in one block or in several */
    uint64_t limit = daemon_pool(&daemon_, name, 0, "limit_bytes");
    /* the other tests' segments are given back first, so that a block can be as large as the pool */
    cJSON_Delete(daemon_ask(&daemon_, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(daemon_pool(&daemon_, name, 0, "reserved_bytes") == 0);
    PUPPET_MUST(&giver, puppet_acquire(&giver, 0, kind, limit, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&giver, puppet_fill(&giver, 0, 77));
    PUPPET_MUST_BE(&taker, puppet_acquire(&taker, 0, kind, limit - MIB, GPUPOOL_NOW, 0), GPUPOOL_E_EXHAUSTED);
    PUPPET_MUST(&giver, puppet_call(&giver, &to_one_mib));
    assert_int_equal(daemon_pool(&daemon_, name, 0, "leased_bytes"), MIB);
    PUPPET_MUST(&taker, puppet_acquire(&taker, 0, kind, limit - MIB, GPUPOOL_NOW, 0));
    PUPPET_MUST(&taker, puppet_fill(&taker, 0, 88));
    PUPPET_MUST(&giver, puppet_check(&giver, 0, 77)); /* of the smaller size: the head stayed */
    PUPPET_MUST(&giver, puppet_query(&giver, 0));
    assert_int_equal(giver.answer.info.buffer.size_bytes, MIB);
    PUPPET_MUST(&giver, puppet_release(&giver, 0));
    PUPPET_MUST(&taker, puppet_release(&taker, 0));
    puppet_quit(&giver);
    puppet_quit(&taker);
}

static void shrinking_gives_the_tail_to_another(void **state) {
    (void)state;
    for_each_kind(shrink);
}

static void shrink_shared(unsigned kind) {
    struct puppet_command smaller = {.verb = PUPPET_SHRINK, .size = 4096};
    struct gpupool_token token;
    struct puppet worker;

    puppet_connect(&worker, &daemon_);
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, kind, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&worker, puppet_share(&worker, 0, &token));
    PUPPET_MUST_BE(&worker, puppet_call(&worker, &smaller), GPUPOOL_E_SHARED);
    PUPPET_MUST(&worker, puppet_release(&worker, 0));
    puppet_quit(&worker);
}

static void a_shared_buffer_is_not_divided(void **state) {
    (void)state;
    for_each_kind(shrink_shared);
}

static void zero(unsigned kind) {
    struct puppet worker;

    puppet_connect(&worker, &daemon_);
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, kind, SIZE_BYTES, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&worker, puppet_query(&worker, 0));
    uint64_t segment = worker.answer.info.segment, offset = worker.answer.info.offset_bytes;
    PUPPET_MUST(&worker, puppet_fill(&worker, 0, 99));
    PUPPET_MUST(&worker, puppet_release(&worker, 0));
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, kind, SIZE_BYTES, GPUPOOL_FOREVER, GPUPOOL_ZERO));
    PUPPET_MUST(&worker, puppet_query(&worker, 0));
    /* the very memory that was written: else the test would show nothing */
    assert_int_equal(worker.answer.info.segment, segment);
    assert_int_equal(worker.answer.info.offset_bytes, offset);
    PUPPET_MUST(&worker, puppet_check(&worker, 0, 0));
    PUPPET_MUST(&worker, puppet_release(&worker, 0));
    puppet_quit(&worker);
}

static void zero_is_zero_after_reuse(void **state) {
    (void)state;
    for_each_kind(zero);
}

static void stale(unsigned kind) {
    struct puppet_command copy = {.verb = PUPPET_COPY, .slot = 0, .other = 1};
    struct puppet worker;

    puppet_connect(&worker, &daemon_);
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, kind, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&worker, puppet_call(&worker, &copy));
    PUPPET_MUST(&worker, puppet_release(&worker, 0));
    PUPPET_MUST_BE(&worker, puppet_release(&worker, 0), GPUPOOL_E_STALE);
    PUPPET_MUST_BE(&worker, puppet_release(&worker, 1), GPUPOOL_E_STALE);
    /* the slot of the lease is taken again, with another generation */
    PUPPET_MUST(&worker, puppet_acquire(&worker, 2, kind, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST_BE(&worker, puppet_release(&worker, 1), GPUPOOL_E_STALE);
    PUPPET_MUST_BE(&worker, puppet_query(&worker, 1), GPUPOOL_E_STALE);
    PUPPET_MUST(&worker, puppet_query(&worker, 2));
    PUPPET_MUST(&worker, puppet_release(&worker, 2));
    puppet_quit(&worker);
}

static void releasing_a_copy_is_stale(void **state) {
    (void)state;
    for_each_kind(stale);
}

static void a_farewell_returns_what_was_still_held(void **state) {
    unsigned kinds[2], count = puppet_kinds(kinds);
    struct puppet worker;

    (void)state;
    puppet_connect(&worker, &daemon_);
    for (unsigned i = 0; i < count; i++)
        PUPPET_MUST(&worker, puppet_acquire(&worker, i, kinds[i], MIB, GPUPOOL_FOREVER, 0));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), count * MIB);
    PUPPET_MUST(&worker, puppet_do(&worker, PUPPET_CLOSE, 0));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    assert_int_equal(daemon_sum(&daemon_, "quarantined_bytes"), 0);
    assert_int_equal(daemon_sessions(&daemon_, "active"), 0);
    puppet_quit(&worker);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_process_writes_another_reads_by_token),
        cmocka_unit_test(a_thousand_rounds_leave_no_growth),
        cmocka_unit_test(shrinking_gives_the_tail_to_another),
        cmocka_unit_test(a_shared_buffer_is_not_divided),
        cmocka_unit_test(zero_is_zero_after_reuse),
        cmocka_unit_test(releasing_a_copy_is_stale),
        cmocka_unit_test(a_farewell_returns_what_was_still_held),
    };
    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
