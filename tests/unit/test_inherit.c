/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core that begins with what another one kept (daemon/core/inherit.h). The scene has an object of each kind in each
 * of its states. The successor fails at each allocation. It is given records with right sums and wrong numbers: each
 * member of each record gets values that it cannot have. It is given records of kinds and sizes that only a later
 * daemon has. A refusal leaves a core that can be freed, and all else leaves a core that works. With the address
 * sanitizer nothing leaks.
 */
#include "inherit_fixture.h"
#include "tests/random.h"

#define SHARE_TRIED 96u

/* --- tests --- */

/* Its page may tell of a question of which the record does not. */
static void a_question_of_a_step_that_did_not_end_may_be_answered(void **state) {
    struct heir heir;
    struct kept_session kept;
    struct estate_found found = {0};
    unsigned n_answers = 0;

    (void)state;
    make_scene();
    memcpy(memory, whole, sizeof memory);
    assert_int_equal(inherit(&heir, 0), 0);
    while (estate_next(&heir.estate, KEPT_SESSION, found.record, &found)) {
        struct session *session = estate_object(&heir.estate, found.record, KEPT_SESSION);
        estate_read(&heir.estate, &found, &kept);
        const struct proto_reclaimed answer = {.outcome = PROTO_RECLAIM_NOTHING,
                                               .asked = kept.n_questions + 1};
        if (session->state != SESSION_ACTIVE)
            continue;
        assert_int_equal(session_hear_reclaimed(session, core_find_pool(heir.core, 1), &answer, TIME_NS), 0);
        n_answers++;
    }
    assert_true(n_answers > 0);
    use_and_end(&heir);
}

static void a_successor_has_all_of_it(void **state) {
    struct heir heir;
    unsigned kind, n_found[KEPT_KINDS] = {0};
    struct estate_found found = {0};

    (void)state;
    make_scene();
    memcpy(memory, whole, sizeof memory);
    assert_int_equal(inherit(&heir, 0), 0);
    while (estate_next(&heir.estate, 0, found.record, &found))
        n_found[found.kind]++;
    for (unsigned i = 1; i < KEPT_KINDS; i++)
        assert_true(n_found[i] > 0 || kept_kinds[i].size_bytes == 0); /* one of the shell's */
    estate_end_step(&heir.estate);
    assert_true(estate_is_valid(&heir.estate, &kind));
    assert_int_equal(segments_taken, n_found[KEPT_SEGMENT]);
    use_and_end(&heir);
}

static void an_estate_in_which_nothing_was_kept_is_a_new_one(void **state) {
    struct estate estate;
    struct heir heir;
    struct core *core = core_make();

    (void)state;
    memset(memory, 0, sizeof memory); /* its daemon died before it made it */
    assert_int_equal(inherit(&heir, 0), 0);
    assert_null(heir.reason);
    assert_ptr_equal(heir.core->estate, &heir.estate);
    use_and_end(&heir);

    memset(memory, 0, sizeof memory); /* or before its first step had ended */
    assert_int_equal(estate_make(&estate, memory, kept_kinds, KEPT_KINDS - 1, &owner), 0);
    assert_int_equal(estate_add(&estate, KEPT_NUMBERS, core, &core->record), 0);
    estate_deinit(&estate);
    core_free(core);
    assert_int_equal(inherit(&heir, 0), 0);
    use_and_end(&heir);
    assert_int_equal(inherit(&heir, 0), 0); /* it has numbers from now on */
    assert_true(heir.estate.step > 1);
    use_and_end(&heir);
}

static void without_memory_nothing_is_left(void **state) {
    struct heir heir;
    unsigned n = 0;
    int r;

    (void)state;
    make_scene();
    do {
        memcpy(memory, whole, sizeof memory);
        r = inherit(&heir, ++n);
        if (r < 0)
            expect_nothing_left(&heir);
    } while (r < 0);
    use_and_end(&heir);
    assert_true(n > 60);
}

static unsigned count_granted(const struct core *core) {
    unsigned n = 0;

    list_for_each_entry(const struct request, request, &core->answered, link) {
        const struct lease *lease = request->lease;
        for (unsigned k = lease != NULL ? request_n_leases(request) : 0; k > 0;
             k--, lease = session_next_lease(lease)) {
            const struct segment *segment = lease->block->segment;
            assert_true(!segment->is_orphan || session_has_mapped(request->session, segment));
        }
        n += request->lease != NULL;
    }
    return n;
}

/* A segment that the shell has not is an orphan: it is its sessions' until they end. A request that was granted one,
 * and not told, waits again. */
static void what_the_shell_has_not_is_refused_or_an_orphan(void **state) {
    struct heir heir;
    unsigned n_refused = 0, n_orphans = 0, n_fewest = 100, n_most = 0, kind;

    (void)state;
    make_scene();
    for (uint64_t id = 1; id < 80; id++) {
        memcpy(memory, whole, sizeof memory);
        refused_segment = id % 2 == 0 ? id / 2 : 0;
        refused_session = id % 2 == 0 ? 0 : id / 2;
        int r = inherit(&heir, 0);
        assert_true(r == 0 || r == -ENOENT);
        assert_true(r == 0 || refused_segment == 0); /* a segment is an orphan then */
        n_refused += r < 0;
        for (unsigned i = 0; r == 0 && i < heir.core->n_pools; i++)
            n_orphans += heir.core->pools[i]->n_orphans;
        if (r < 0) {
            expect_nothing_left(&heir);
            continue;
        }
        unsigned n_granted = count_granted(heir.core);
        n_fewest = n_granted < n_fewest ? n_granted : n_fewest;
        n_most = n_granted > n_most ? n_granted : n_most;
        estate_end_step(&heir.estate);
        assert_true(estate_is_valid(&heir.estate, &kind));
        use_and_end(&heir);
    }
    refused_segment = refused_session = 0;
    assert_true(n_fewest < n_most);
    assert_true(n_refused > 2);
    assert_true(n_orphans > 5);
}

/* Which values a member of so many bytes is tried with, beside those near its own. */
static const uint64_t odd_values[] = {0,
                                      1,
                                      2,
                                      63,
                                      64,
                                      255,
                                      UINT32_MAX,
                                      (UINT64_C(1) << 31) - 1,
                                      UINT64_C(1) << 31,
                                      UINT64_C(1) << 24,
                                      UINT64_C(1) << 56,
                                      (UINT64_C(1) << 56) + 512,
                                      (UINT64_C(1) << 63) - 1,
                                      UINT64_C(1) << 63,
                                      UINT64_MAX - 511,
                                      UINT64_MAX};

static void try_value(uint32_t record, size_t at, uint64_t value, size_t size_bytes, unsigned *n_refused) {
    struct estate estate = patch_begin();
    struct heir heir;

    patch(&estate, record, at, &value, size_bytes); /* the least significant bytes come first */
    patch_end(&estate);
    int r = inherit(&heir, 0);
    if (r == 0) {
        use_and_end(&heir);
        return;
    }
    assert_int_equal(r, -EBADMSG);
    assert_non_null(heir.reason);
    (*n_refused)++;
    expect_nothing_left(&heir);
}

/* Tries all values with one member. One in so many is tried, since each takes half a millisecond. */
static void try_member(const struct estate_found *found, const char *payload, size_t at, size_t size_bytes,
                       unsigned *n_tried, unsigned *n_refused) {
    static uint64_t random_state = 1;
    uint64_t value = 0;

    memcpy(&value, payload + at, size_bytes);
    const uint64_t near[] = {value + 1, value - 1, value * 2, value + 512, value ^ 2 * MIB};
    for (unsigned i = 0; i < sizeof odd_values / sizeof *odd_values + sizeof near / sizeof *near; i++) {
        if (random_next(&random_state) % SHARE_TRIED != 0)
            continue;
        bool is_odd = i < sizeof odd_values / sizeof *odd_values;
        try_value(found->record, at,
                  is_odd ? odd_values[i] : near[i - sizeof odd_values / sizeof *odd_values], size_bytes,
                  n_refused);
        (*n_tried)++;
    }
}

/* Whether the record may have any byte there. */
static bool is_any_byte(unsigned kind, size_t at) {
    return kind == KEPT_DIRECTORY && at >= offsetof(struct kept_directory, bytes);
}

static void numbers_that_cannot_be_are_refused_or_harmless(void **state) {
    static char payloads[256][1024];
    struct estate_found found = {0}, all[256];
    unsigned n_refused = 0, n_tried = 0, n_all = 0;

    (void)state;
    make_scene();
    struct estate original = patch_begin();
    while (estate_next(&original, 0, found.record, &found)) {
        assert_true(n_all < 256);
        memcpy(payloads[n_all], found.payload, found.size_bytes);
        all[n_all++] = found;
    }
    estate_deinit(&original);
    for (unsigned i = 0; i < n_all; i++)
        for (size_t size_bytes = 1; size_bytes <= 8; size_bytes *= 2)
            for (size_t at = 0; at < all[i].size_bytes && !is_any_byte(all[i].kind, at); at += size_bytes)
                try_member(&all[i], payloads[i], at, size_bytes, &n_tried, &n_refused);
    assert_true(n_refused > n_tried / 10 && n_tried > 1000);
}

/* --- two records that cannot be beside each other --- */

static void names_that_two_objects_have_are_refused(void **state) {
    (void)state;
    make_scene();
    expect_twins_refused(KEPT_SEGMENT, MEMBER(kept_segment, id), "a segment has no name of its own");
    expect_twins_refused(KEPT_SEGMENT, MEMBER(kept_segment, slot), "a segment has no slot of its own");
    expect_twins_refused(KEPT_SESSION, MEMBER(kept_session, id), "a session has no name of its own");
    expect_twins_refused(KEPT_LEASE, MEMBER(kept_lease, id), "two leases have one name");
    expect_twins_refused(KEPT_LEASE, MEMBER(kept_lease, generation), "two leases have one name");
    expect_twins_refused(KEPT_REQUEST, MEMBER(kept_request, number), "two requests have one number");
    expect_twins_refused(KEPT_PARCEL, MEMBER(kept_parcel, token), "two parcels have one token");
}

static void two_blocks_have_no_token_together(void **state) {
    (void)state;
    make_scene();
    struct estate estate = patch_begin();
    struct estate_found found = {0};
    const struct kept_block *shared = NULL;

    while (estate_next(&estate, KEPT_BLOCK, found.record, &found)) {
        const struct kept_block *kept = found.payload;
        if (kept->is_shared && shared != NULL)
            patch(&estate, found.record, offsetof(struct kept_block, token), shared->token,
                  sizeof shared->token);
        if (kept->is_shared && shared == NULL)
            shared = kept;
    }
    patch_end(&estate);
    expect_refused_for("two blocks have one token");
}

static void numbers_beyond_those_that_were_given_are_refused(void **state) {
    (void)state;
    make_scene();
    expect_number_refused(KEPT_LEASE, ANY, MEMBER(kept_lease, id), UINT64_C(1) << 31,
                          "a lease has a name that was never given");
    expect_number_refused(KEPT_SEGMENT, ANY, MEMBER(kept_segment, slot), 1u << 23,
                          "a segment has no slot of its own");
    expect_number_refused(KEPT_MAPPED, ANY, MEMBER(kept_mapped, word), 1u << 17,
                          "a session has a segment mapped that is not there");
    expect_number_refused(KEPT_NUMBERS, ANY, MEMBER(kept_numbers, segment), 1,
                          "a segment has no name of its own");
    expect_number_refused(KEPT_NUMBERS, ANY, MEMBER(kept_numbers, session), 1,
                          "a session has no name of its own");
    expect_number_refused(KEPT_NUMBERS, ANY, MEMBER(kept_numbers, request), 1,
                          "a request has a number that was never given");
    expect_number_refused(KEPT_NUMBERS, ANY, MEMBER(kept_numbers, generation), 1,
                          "a lease has a name that was never given");
    expect_number_refused(KEPT_NUMBERS, ANY, MEMBER(kept_numbers, generation), UINT64_MAX,
                          "its numbers are beyond all that were given");
}

static void requests_that_nobody_can_make_are_refused(void **state) {
    static const char nothing[] = "a request asks for nothing, or for too much",
                      stateless[] = "a request is in no state";

    (void)state;
    make_scene();
    expect_number_refused(KEPT_REQUEST, ANY, MEMBER(kept_request, size_bytes), 0, nothing);
    expect_number_refused(KEPT_REQUEST, ANY, MEMBER(kept_request, least_bytes), 64 * MIB, nothing);
    expect_number_refused(KEPT_REQUEST, ANY, MEMBER(kept_request, state), 3, stateless);
    expect_number_refused(KEPT_REQUEST, ANY, MEMBER(kept_request, queue), 3, stateless);
    expect_number_refused(KEPT_REQUEST, WITH(kept_request, pool, 0), MEMBER(kept_request, quota_item),
                          QUOTA_LEASES, stateless);
    struct estate estate = patch_begin();
    const uint8_t is_lost = SESSION_QUARANTINED;
    struct estate_found lost = find_with(&estate, KEPT_SESSION, MEMBER(kept_session, state), &is_lost);
    estate_deinit(&estate);
    expect_number_refused(KEPT_REQUEST, ANY, MEMBER(kept_request, session), lost.record,
                          "a request is of a session that is not there");
}

static void what_does_not_fit_together_is_refused(void **state) {
    (void)state;
    make_scene();
    expect_number_refused(KEPT_BLOCK, WITH(kept_block, is_row, 1), MEMBER(kept_block, capacity_bytes),
                          6 * MIB, "a block has other memory than its size");
    expect_number_refused(KEPT_BLOCK, WITH(kept_block, is_row, 0), MEMBER(kept_block, offset_bytes),
                          HEAP_GRANULE, "a block has other memory than its size");
    expect_number_refused(KEPT_PARCEL, WITH(kept_parcel, deadline_ns, NS_FOREVER),
                          MEMBER(kept_parcel, sender), 1,
                          "a parcel is held by another user than its block's");
    expect_number_refused(KEPT_LEASE, ANY, MEMBER(kept_lease, withheld_bytes), 1024 * MIB,
                          "more of a lease was withheld than it has");
    expect_number_refused(KEPT_SESSION, WITH(kept_session, state, SESSION_ACTIVE),
                          MEMBER(kept_session, state), 2, "a session is in no state");
}

static void missing_records_are_noticed(void **state) {
    (void)state;
    make_scene();
    expect_missing_refused(KEPT_NUMBERS, "its numbers are missing");
    expect_missing_refused(KEPT_FENCES, "a lease waits for a fence that is not there");
    expect_missing_refused(KEPT_RANGE, "a row is broken");
    expect_missing_refused(KEPT_BLOCK, "a range is of a block that is not there");
    expect_missing_refused(KEPT_LEASE, "nobody has a block");

    struct estate estate = patch_begin(); /* the first 64 segments of a session that has more */
    const uint32_t word = 1;
    patch(&estate, find_nth(&estate, KEPT_MAPPED, 0).record, offsetof(struct kept_mapped, word), &word,
          sizeof word);
    patch_end(&estate);
    expect_refused_for("a session has a segment mapped that is not its user's");
    estate = patch_begin();
    const uint64_t none[2] = {0};
    patch(&estate, find_nth(&estate, KEPT_MAPPED, 0).record, offsetof(struct kept_mapped, word), &word,
          sizeof word);
    patch_end(&estate);
    estate = patch_reopen();
    patch(&estate, find_nth(&estate, KEPT_MAPPED, 0).record, offsetof(struct kept_mapped, mapped), none,
          sizeof none);
    patch_end(&estate);
    expect_refused_for("it is not known what a session has mapped");
}

/* The values of fences are the client's, and need not be near each other: they are compared with the first one. */
static void fences_of_any_values_have_an_order(void **state) {
    static const uint64_t values[] = {0, UINT64_C(6) << 60, UINT64_C(12) << 60}, in_order[] = {2, 0, 1};
    struct estate_found found = {0};
    const struct lease *leases[3];
    uint32_t records[3];
    struct heir heir;
    unsigned n = 0;

    (void)state;
    make_scene();
    struct estate estate = patch_begin();
    while (estate_next(&estate, KEPT_LEASE, found.record, &found))
        if (((const struct kept_lease *)found.payload)->fence_word == FENCED_WORD + 1 && n < 3) {
            records[n] = found.record;
            patch(&estate, found.record, offsetof(struct kept_lease, fence_value), &values[n++],
                  sizeof *values);
        }
    assert_int_equal(n, 3);
    patch_end(&estate);
    assert_int_equal(inherit(&heir, 0), 0);
    for (unsigned i = 0; i < 3; i++) {
        leases[i] = estate_object(&heir.estate, records[i], KEPT_LEASE);
        assert_int_equal(leases[i]->fence_value, values[i]);
    }
    const struct list *link = leases[0]->fence->leases.next;
    for (unsigned i = 0; i < 3; i++, link = link->next)
        assert_ptr_equal(container_of(link, const struct lease, fence_link), leases[in_order[i]]);
    use_and_end(&heir);
}

/* --- damage --- */

/* The records of a group in the whole scene (0: all) of a kind. */
static unsigned count_records(enum kept_kind kind, uint32_t group) {
    struct estate estate = patch_begin();
    struct estate_found found = {0};
    unsigned n = 0;

    while (estate_next(&estate, kind, found.record, &found))
        n += group == 0 || found.groups[0] == group;
    estate_deinit(&estate);
    return n;
}

/* A byte of a whole record is another one. */
static struct estate_found damage(uint32_t record, size_t at) {
    struct estate estate = patch_begin();
    struct estate_found found;

    assert_true(estate_next(&estate, 0, record - 1, &found) && found.record == record);
    memory[(const char *)found.payload + at % found.size_bytes - memory] ^= 0x40;
    estate_deinit(&estate);
    return found;
}

/* The user of the record is lost, and no one else. */
static void expect_lost(const struct estate_found *damaged) {
    unsigned n_segments = count_records(KEPT_SEGMENT, damaged->groups[0]),
             n_sessions = count_records(KEPT_SESSION, damaged->groups[0]), n_all[2], kind;
    bool is_mine = damaged->groups[0] != 0;
    struct estate_found found = {0};
    struct heir heir;

    n_all[0] = count_records(KEPT_SEGMENT, 0);
    n_all[1] = count_records(KEPT_SESSION, 0);
    damage(damaged->record, damaged->record);
    assert_int_equal(inherit(&heir, 0), 0);
    if (!is_mine)
        n_segments = n_sessions = 0;
    n_segments += !is_mine && damaged->kind == KEPT_SEGMENT;
    assert_int_equal(loss.n_damaged, 1);
    assert_int_equal(loss.n_segments + (damaged->kind == KEPT_SEGMENT), n_segments);
    assert_int_equal(loss.n_sessions + (damaged->kind == KEPT_SESSION), n_sessions);
    assert_int_equal(segments_taken, n_all[0] - n_segments);
    assert_int_equal(list_length(&heir.core->sessions), n_all[1] - n_sessions);
    estate_end_step(&heir.estate);
    assert_true(estate_is_valid(&heir.estate, &kind));
    while (estate_next(&heir.estate, 0, found.record, &found))
        assert_true(!is_mine || found.groups[0] != damaged->groups[0]);
    heir.core->estate = NULL;
    core_destroy(heir.core);
    estate_deinit(&heir.estate);

    loss.n_damaged = 0; /* the next one has nothing to lose */
    assert_int_equal(inherit(&heir, 0), 0);
    assert_int_equal(loss.n_damaged, 0);
    assert_int_equal(list_length(&heir.core->sessions), n_all[1] - n_sessions);
    use_and_end(&heir);
}

static void a_user_of_whom_a_record_is_damaged_is_lost_alone(void **state) {
    struct estate_found all[256], found = {0};
    unsigned n = 0;

    (void)state;
    make_scene();
    struct estate estate = patch_begin();
    while (estate_next(&estate, 0, found.record, &found))
        all[n++] = found;
    estate_deinit(&estate);
    for (unsigned i = 0; i < n; i++) {
        if (all[i].kind != KEPT_NUMBERS) {
            expect_lost(&all[i]);
            continue;
        }
        damage(all[i].record, 0);
        expect_refused_for("its numbers are missing");
    }
}

/* In the record's own copy: its group, and all of it. */
static void damage_that_may_be_anyones_is_refused(void **state) {
    static const char reason[] = "a record is damaged, and it is not known whose it was";
    struct heir heir;

    (void)state;
    make_scene();
    for (unsigned fails = 0; fails < 2; fails++) {
        struct estate estate = patch_begin();
        struct estate_found found = find_nth(&estate, KEPT_LEASE, 2);
        estate_deinit(&estate);
        char *payload = memory + ((const char *)found.payload - memory);
        if (fails == 0)
            payload[-8] ^= 1;
        else
            memset(payload - 24, 0, 24 + found.size_bytes);
        expect_refused_for(reason);
    }
    struct estate estate = patch_begin();
    struct estate_found found = find_nth(&estate, KEPT_LEASE, 2);
    estate_deinit(&estate);
    damage(found.record, 0);
    assert_int_equal(inherit(&heir, 1), -ENOMEM);
    expect_nothing_left(&heir);
}

/* --- estates of later daemons --- */

/* Opens the scene's estate as a later daemon does, which has this kind among its kinds, and adds a record of it. */
static struct estate add_later(unsigned number, size_t size_bytes, bool holds, uint32_t *ret_record) {
    static struct estate_kind kinds[KEPT_KINDS + 1];
    static struct patched later;
    struct estate estate;
    const char *reason;

    memcpy(memory, whole, sizeof memory);
    memcpy(kinds, patched_kinds(), KEPT_KINDS * sizeof *kinds);
    kinds[number] = (struct estate_kind){.size_bytes = (uint16_t)size_bytes,
                                         .holds = holds,
                                         .write = write_patched,
                                         .group = group_of_patched};
    later = (struct patched){.size_bytes = size_bytes, .bytes = "later"};
    assert_int_equal(estate_open(&estate, memory, sizeof memory, kinds, KEPT_KINDS, &owner, &reason), 0);
    assert_int_equal(estate_add(&estate, number, &later, ret_record), 0);
    estate_end_step(&estate);
    return estate;
}

static void what_holds_no_memory_is_passed_over(void **state) {
    struct estate_found found = {0};
    struct heir heir;
    uint32_t record;

    (void)state;
    make_scene();
    unsigned n_sessions = count_records(KEPT_SESSION, 0), n_segments = count_records(KEPT_SEGMENT, 0);
    struct estate estate = add_later(KEPT_KINDS, 16, false, &record);
    estate_deinit(&estate);
    assert_int_equal(inherit(&heir, 0), 0);
    assert_int_equal(list_length(&heir.core->sessions), n_sessions);
    assert_int_equal(segments_taken, n_segments);
    while (estate_next(&heir.estate, 0, found.record, &found))
        assert_false(found.is_unknown || found.record == record);
    use_and_end(&heir);
}

static void what_may_hold_memory_is_refused(void **state) {
    static const char reason[] = "a newer daemon kept what this one does not know";
    uint32_t record;

    (void)state;
    make_scene();
    for (unsigned number = 1; number <= KEPT_KINDS; number++) { /* of more bytes, or a further one */
        size_t size_bytes = number < KEPT_KINDS ? kept_kinds[number].size_bytes + 8u : 16;
        struct estate estate = add_later(number, size_bytes, true, &record);
        estate_deinit(&estate);
        expect_refused_for(reason);
    }
}

/* A kind that was in use once stands in no earlier daemon's way. */
static void what_held_memory_and_ended_is_passed_over(void **state) {
    struct heir heir;
    uint32_t record;

    (void)state;
    make_scene();
    struct estate estate = add_later(KEPT_KINDS, 16, true, &record);
    estate_remove(&estate, record);
    patch_end(&estate);
    assert_int_equal(inherit(&heir, 0), 0);
    use_and_end(&heir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_successor_has_all_of_it),
        cmocka_unit_test(a_question_of_a_step_that_did_not_end_may_be_answered),
        cmocka_unit_test(an_estate_in_which_nothing_was_kept_is_a_new_one),
        cmocka_unit_test(without_memory_nothing_is_left),
        cmocka_unit_test(what_the_shell_has_not_is_refused_or_an_orphan),
        cmocka_unit_test(numbers_that_cannot_be_are_refused_or_harmless),
        cmocka_unit_test(names_that_two_objects_have_are_refused),
        cmocka_unit_test(two_blocks_have_no_token_together),
        cmocka_unit_test(numbers_beyond_those_that_were_given_are_refused),
        cmocka_unit_test(requests_that_nobody_can_make_are_refused),
        cmocka_unit_test(what_does_not_fit_together_is_refused),
        cmocka_unit_test(missing_records_are_noticed),
        cmocka_unit_test(fences_of_any_values_have_an_order),
        cmocka_unit_test(a_user_of_whom_a_record_is_damaged_is_lost_alone),
        cmocka_unit_test(damage_that_may_be_anyones_is_refused),
        cmocka_unit_test(what_holds_no_memory_is_passed_over),
        cmocka_unit_test(what_may_hold_memory_is_refused),
        cmocka_unit_test(what_held_memory_and_ended_is_passed_over),
    };
    return cmocka_run_group_tests_name("inherit", tests, NULL, NULL);
}
