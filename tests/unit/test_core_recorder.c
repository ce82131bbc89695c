/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the flight recorder: what happens is in the ring in order, a ring that is full forgets the
 * oldest, and each hour knows its peak and who had it. */
#include "core_fixture.h"
#include "daemon/core/recorder.h"
#include "publish_lease.h"

/* The core's file; it has room for so many records, and for two hours. */
static struct proto_records *begin(struct core *core, unsigned n_records) {
    static union {
        struct proto_records header;
        char bytes[1 << 20];
    } file;
    struct proto_records header;

    proto_records_lay_out(&header, n_records * sizeof(struct proto_record), 2, core->n_pools);
    assert_true(header.file_bytes <= sizeof file);
    memset(&file, 0, sizeof file);
    file.header = header;
    assert_true(proto_records_are_sane(&file.header, sizeof file));
    recorder_open(core, &file.header);
    recorder_set_clock(core, 0, 10 * NS_PER_HOUR);
    return &file.header;
}

/* Expects the record of a number to be of a kind, and returns it. */
static struct proto_record expect(struct proto_records *file, uint64_t number, enum proto_record_kind kind) {
    struct proto_record record;
    assert_true(proto_records_read(file, number, &record));
    assert_string_equal(proto_record_word(record.kind), proto_record_word(kind));
    return record;
}

static void what_happens_is_recorded_in_order(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct proto_records *file = begin(core, 64);

    struct session *session = open_session(core, 7, UID_A);
    core_session_set_page(session, &page);
    snprintf(session->peer.command, sizeof session->peer.command, "later");
    struct lease *lease = take_growing(session, pool, 2 * MIB, 5);
    describe(lease, NULL);
    assert_int_equal(release_part(session, name_of(lease), 0, MIB, 9), 0);
    assert_int_equal(release_behind(session, name_of(lease), 0, 1), 0);
    arrive(0, 1);
    core_poll_fences(core);
    close_session(session, 20);

    struct proto_record record = expect(file, 1, PROTO_RECORD_OPEN);
    assert_int_equal(record.pid, 7);
    assert_int_equal(record.uid, UID_A);
    expect(file, 2, PROTO_RECORD_WAIT);
    expect(file, 3, PROTO_RECORD_GROW);
    record = expect(file, 4, PROTO_RECORD_LEASE);
    assert_int_equal(record.bytes, 2 * MIB);
    assert_int_equal(record.leased_bytes, 2 * MIB);
    assert_int_equal(record.time_ns, 10 * NS_PER_HOUR + 5);
    expect(file, 5, PROTO_RECORD_SERVE);
    record = expect(file, 6, PROTO_RECORD_RELEASE);
    assert_int_equal(record.bytes, MIB);
    assert_int_equal(record.flags, PROTO_RECORD_SPLIT);
    assert_int_equal(expect(file, 7, PROTO_RECORD_FENCE).bytes, MIB);
    assert_int_equal(expect(file, 8, PROTO_RECORD_PASS).bytes, MIB);
    record = expect(file, 9, PROTO_RECORD_FAREWELL);
    assert_int_equal(record.bytes, 0);
    assert_int_equal(record.time_ns, 10 * NS_PER_HOUR + 20);
    assert_int_equal(atomic_load(&file->next), 10);
}

static void a_refusal_says_why_and_after_which_wait(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct proto_records *file = begin(core, 64);
    struct session *session = open_session(core, 1, UID_A);

    describe(take_growing(session, pool, 8 * MIB, 0), NULL);
    uint64_t next = atomic_load(&file->next);
    ask(session, pool, 1, MIB, 50, 0);
    tick(core, 50);
    expect_refused(core, session, 1, PROTO_E_EXHAUSTED);
    expect(file, next, PROTO_RECORD_WAIT);
    struct proto_record record = expect(file, next + 1, PROTO_RECORD_REFUSE);
    assert_int_equal(record.reason, PROTO_E_EXHAUSTED);
    assert_int_equal(record.detail, PROTO_RECORD_QUOTA_NONE);
    assert_int_equal(record.flags, PROTO_RECORD_WAITED | PROTO_RECORD_DEADLINE);
    assert_int_equal(record.leased_bytes, 8 * MIB);
    limit_all(core, QUOTA_POOLS, 4 * MIB, 60);
    ask(session, pool, 2, 5 * MIB, 0, 60);
    expect_refused(core, session, 2, PROTO_E_LIMIT);
    record = expect(file, next + 2, PROTO_RECORD_REFUSE);
    assert_int_equal(record.reason, PROTO_E_LIMIT);
    assert_int_equal(record.detail, PROTO_RECORD_QUOTA_POOL);
    assert_int_equal(record.flags, 0);
    const struct proto_hour *hour = recorder_hour(pool);
    assert_int_equal(hour->n_refused, 2);
    assert_int_equal(hour->n_timeouts, 1);
    assert_int_equal(hour->n_quota, 1);
}

/* A generation is told of twice: when it is published, with the first bytes of its name, and when it is not
 * published any more, by whichever way. */
static void each_generation_has_a_beginning_and_an_end(void **state) {
    static const char text[] = "weights/twenty-three-bytes-and-more";
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 8 * MIB, 0);
    struct proto_records *file = begin(core, 64);
    struct session *session = open_session(core, 7, UID_A);
    struct lease *lease = take_growing(session, pool, 2 * MIB, 0);
    uint64_t next = atomic_load(&file->next), generations[3];

    describe(lease, NULL);
    generations[0] = publish_lease(session, lease, text, 0, 0);
    struct proto_record record = expect(file, next, PROTO_RECORD_PUBLISH);
    assert_int_equal(record.bytes, 2 * MIB);
    assert_int_equal(record.value, generations[0]);
    assert_int_equal(record.session, session->id);
    assert_int_equal(record.pid, 7);
    record = expect(file, next + 1, PROTO_RECORD_NAMED);
    assert_int_equal(record.session, session->id);
    assert_int_equal(record.flags, PROTO_RECORD_CUT);
    assert_int_equal(strlen(record.name), PROTO_RECORD_NAME_SIZE - 1);
    assert_memory_equal(record.name, text, PROTO_RECORD_NAME_SIZE - 1);
    next = atomic_load(&file->next);
    generations[1] = publish_lease(session, lease, text, 0, 0); /* in the place of the first */
    assert_int_equal(expect(file, next, PROTO_RECORD_UNPUBLISH).value, generations[0]);
    assert_int_equal(expect(file, next + 1, PROTO_RECORD_PUBLISH).value, generations[1]);
    next = atomic_load(&file->next);
    assert_int_equal(core_unpublish_of(core, (struct tenant_id){.uid = UID_A}, text, 0), 0);
    record = expect(file, next, PROTO_RECORD_UNPUBLISH);
    assert_int_equal(record.value, generations[1]);
    assert_int_equal(record.bytes, 2 * MIB);
    assert_int_equal(record.session, session->id);
    assert_int_equal(record.pid, 7);
    assert_int_equal(record.uid, UID_A);
    generations[2] = publish_lease(session, lease, "short", 0, 0); /* it goes with its publisher */
    record = expect(file, next + 2, PROTO_RECORD_NAMED);
    assert_string_equal(record.name, "short");
    assert_int_equal(record.flags, 0);
    next = atomic_load(&file->next);
    close_session(session, 20);
    bool has_end = false;
    for (; next < atomic_load(&file->next); next++)
        if (proto_records_read(file, next, &record) && record.kind == PROTO_RECORD_UNPUBLISH)
            has_end = record.value == generations[2];
    assert_true(has_end);
}

static void a_full_ring_forgets_the_oldest(void **state) {
    struct core *core = *state;
    struct proto_record record;

    add_pool(core, 8 * MIB, 2 * MIB, 0);
    struct proto_records *file = begin(core, 4);
    for (unsigned i = 1; i <= 6; i++)
        close_session(open_session(core, (pid_t)i, UID_A), i);
    assert_int_equal(atomic_load(&file->next), 13);
    for (uint64_t number = 0; number <= 8; number++)
        assert_false(proto_records_read(file, number, &record));
    for (uint64_t number = 9; number <= 12; number++)
        assert_true(proto_records_read(file, number, &record));
    assert_false(proto_records_read(file, 13, &record));
    assert_int_equal(expect(file, 12, PROTO_RECORD_FAREWELL).pid, 6);
}

static void an_hour_knows_its_peak_and_who_had_it(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 64 * MIB, 2 * MIB, 0);
    struct proto_records *file = begin(core, 64);
    struct session *small = open_session(core, 1, UID_A), *large = open_session(core, 2, UID_B),
                   *other = open_session(core, 3, UID_B);

    snprintf(large->peer.command, sizeof large->peer.command, "a program of a very long name");
    describe(take_growing(small, pool, 4 * MIB, 1), NULL);
    describe(take_growing(other, pool, 2 * MIB, 2), NULL);
    describe(take_growing(large, pool, 8 * MIB, 3), NULL);
    close_session(large, 4);
    const struct proto_hour *hour = proto_records_hour(file, 10, pool->id);
    assert_int_equal(hour->hour, 10);
    assert_int_equal(hour->leased_peak_bytes, 14 * MIB);
    assert_int_equal(hour->leased_peak_ns, 10 * NS_PER_HOUR + 3);
    assert_int_equal(hour->user, UID_B);
    assert_int_equal(hour->user_bytes, 10 * MIB);
    assert_int_equal(hour->process_pid, 2);
    assert_int_equal(hour->process_bytes, 8 * MIB);
    assert_string_equal(hour->process_name, "a program of a very l");

    /* An hour in which nothing happens has a peak, too: the look at the clock begins it. */
    recorder_set_clock(core, NS_PER_HOUR, 11 * NS_PER_HOUR);
    hour = proto_records_hour(file, 11, pool->id);
    assert_int_equal(hour->leased_peak_bytes, 6 * MIB);
    assert_int_equal(hour->user, UID_A);
    /* The next event begins one as well. It takes the place of the oldest. */
    describe(take_growing(small, pool, 2 * MIB, 2 * NS_PER_HOUR), NULL);
    hour = proto_records_hour(file, 12, pool->id);
    assert_int_equal(hour->hour, 12);
    assert_int_equal(hour->leased_peak_bytes, 8 * MIB);
}

static void without_a_file_nothing_is_recorded(void **state) {
    struct core *core = *state;
    struct pool *pool = add_pool(core, 8 * MIB, 2 * MIB, 0);

    recorder_set_clock(core, 1, 1);
    record(core, &(struct recorded){.kind = PROTO_RECORD_RELOAD});
    assert_null(recorder_hour(pool));
}

static void a_header_that_leads_behind_the_end_is_not_sane(void **state) {
    struct proto_records header, changed = {0};
    (void)state;

    proto_records_lay_out(&header, 1000, 10, 3);
    assert_int_equal(header.records_count, 15);
    assert_true(proto_records_are_sane(&header, header.file_bytes));
    assert_false(proto_records_are_sane(&header, header.file_bytes - 1));
    uint64_t *const members[] = {&changed.records_count, &changed.records_offset, &changed.hours_count,
                                 &changed.hours_offset};
    for (unsigned i = 0; i < sizeof members / sizeof *members; i++) {
        changed = header;
        (*members[i])++;
        assert_false(proto_records_are_sane(&changed, header.file_bytes));
        *members[i] = UINT64_MAX;
        assert_false(proto_records_are_sane(&changed, header.file_bytes));
        *members[i] = 0;
        assert_false(proto_records_are_sane(&changed, header.file_bytes));
    }
    changed = header;
    changed.pools_count = PROTO_POOLS_MAX + 1;
    assert_false(proto_records_are_sane(&changed, UINT64_MAX));
    changed = header;
    changed.magic[PROTO_RECORDS_MAGIC_BYTES - 1]++;
    assert_false(proto_records_are_sane(&changed, header.file_bytes));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(what_happens_is_recorded_in_order),
        CORE_TEST(a_refusal_says_why_and_after_which_wait),
        CORE_TEST(each_generation_has_a_beginning_and_an_end),
        CORE_TEST(a_full_ring_forgets_the_oldest),
        CORE_TEST(an_hour_knows_its_peak_and_who_had_it),
        CORE_TEST(without_a_file_nothing_is_recorded),
        cmocka_unit_test(a_header_that_leads_behind_the_end_is_not_sane),
    };
    return cmocka_run_group_tests_name("recorder", tests, NULL, NULL);
}
