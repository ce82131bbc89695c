/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A successor has the names of its predecessor: the editions with their directories, fences and tokens, the sessions that
 * build, and the requests with their answers. It refuses records of names that contradict each other, and withdraws
 * editions in memory that no further process can map.
 */
#include <stdatomic.h>

#include "inherit_fixture.h"

/* A successor of the scene. lost: the id of a segment of which the shell has nothing; 0: it has all. */
static void make_heir(struct heir *heir, uint64_t lost) {
    make_scene();
    memcpy(memory, whole, sizeof memory);
    refused_segment = lost;
    assert_int_equal(inherit(heir, 0), 0);
    refused_segment = 0;
}

static struct session *session_of_pid(const struct core *core, pid_t pid) {
    list_for_each_entry(struct session, session, &core->sessions, link) {
        if (session->peer.pid == pid)
            return session;
    }
    fail_msg("the scene has no such session");
    return NULL;
}

static const struct edition *edition_of(const struct session *session, const char *name) {
    const struct name *found = name_find(session->tenant, name);
    return found != NULL ? found->edition : NULL;
}

static void end_heir(struct heir *heir) {
    unsigned kind;

    estate_end_step(&heir->estate);
    assert_true(estate_is_valid(&heir->estate, &kind));
    use_and_end(heir);
}

static void editions_are_as_they_were(void **state) {
    struct heir heir;
    make_heir(&heir, 0);
    struct session *one = session_of_pid(heir.core, 41);
    const struct edition *kept = edition_of(one, "kept"), *loose = edition_of(one, "loose"),
                         *left = edition_of(one, "left"), *dead = edition_of(one, "dead");
    struct proto_read_directory read = {.name = "kept"};
    struct proto_directory_part part;
    struct lease *attached;

    (void)state;
    assert_non_null(kept);
    assert_int_equal(kept->flags, PROTO_PUBLISH_KEEP | PROTO_PUBLISH_LIVE);
    assert_int_equal(kept->layout, 5);
    assert_ptr_equal(kept->session, one);
    assert_int_equal(kept->pid, 41);
    assert_true(kept->parcels[0]->has_fence);
    assert_int_equal(kept->parcels[0]->fence.slot, NAMES_SLOT);
    assert_int_equal(kept->parcels[0]->fence.value, NAMES_VALUE);
    read.generation = kept->generation;
    assert_int_equal(core_read_directory(one, &read, &part), 0);
    assert_int_equal(part.n_bytes, NAMES_DIRECTORY);
    assert_memory_equal(part.bytes, directory_bytes(), NAMES_DIRECTORY);
    assert_int_equal(loose->n_parcels, 2);
    assert_ptr_equal(loose->session, session_of_pid(heir.core, 42));
    assert_ptr_equal(dead->session, session_of_pid(heir.core, 44));
    assert_null(left->session);
    assert_int_equal(left->pid, 43);
    assert_int_equal(used(one, QUOTA_KEPT), 2 * MIB + MIB + MIB + MIB); /* and the channel's */
    assert_int_equal(used(one, QUOTA_REPLIES), NAMES_DIRECTORY);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(attach_to(one, &loose->parcels[i]->token, &attached), 0);
    assert_ptr_equal(attached->block, loose->parcels[1]->block);
    uint64_t last = heir.core->leases.next_generation;
    assert_true(publish_one(one, "later", attached, 0) > last); /* no generation comes twice */
    end_heir(&heir);
}

/* The fence of the lost session was never reached, as far as this daemon can see. */
static void a_publishers_end_counts_with_the_successor(void **state) {
    struct heir heir;
    make_heir(&heir, 0);
    struct session *one = session_of_pid(heir.core, 41);

    (void)state;
    session_gone(session_of_pid(heir.core, 44), TIME_NS);
    assert_null(edition_of(one, "dead"));
    lose_session(session_of_pid(heir.core, 42), TIME_NS);
    assert_null(edition_of(one, "loose"));
    assert_non_null(edition_of(one, "kept"));
    assert_non_null(edition_of(one, "left"));
    end_heir(&heir);
}

static void requests_for_names_go_on(void **state) {
    struct heir heir;
    make_heir(&heir, 0);
    struct session *one = session_of_pid(heir.core, 41), *two = session_of_pid(heir.core, 42);
    uint64_t generation = edition_of(one, "kept")->generation, loose = edition_of(one, "loose")->generation;

    (void)state;
    expect_place_got(heir.core, two, 70, 1);
    expect_state(heir.core, two, 61, PROTO_NAME_BUILD);
    expect_there(heir.core, one, 63, generation);
    expect_name_refused(heir.core, one, 64, PROTO_E_NO_NAME);
    expect_state(heir.core, two, 66, PROTO_NAME_GONE);
    expect_no_name_answer(heir.core);
    assert_int_equal(core_next_tick_ns(heir.core) <= NAMES_WAIT_NS + TIME_NS, true);
    assert_int_equal(unpublish(two, "built", 0, PROTO_UNPUBLISH_BUILD), 0);
    expect_state(heir.core, one, 62, PROTO_NAME_BUILD);
    assert_int_equal(unpublish(two, "loose", loose, 0), 0);
    expect_state(heir.core, one, 65, PROTO_NAME_GONE);
    open_name(one, 80, "told", 0, PROTO_OPEN_NAME_BUILD); /* two still builds it */
    expect_no_name_answer(heir.core);
    session_gone(session_of_pid(heir.core, 44), TIME_NS);
    expect_place_got(heir.core, two, 71, 2); /* the dead session's place */
    lose_session(two, TIME_NS);
    expect_state(heir.core, one, 80, PROTO_NAME_BUILD);
    end_heir(&heir);
}

/* The places of a channel, with the sessions in them. */
static void channels_are_as_they_were(void **state) {
    static const enum proto_channel_state states[] = {PROTO_CHANNEL_TAKEN, PROTO_CHANNEL_TAKEN,
                                                      PROTO_CHANNEL_DYING};
    static const pid_t pids[] = {41, 42, 44};
    struct heir heir;
    make_heir(&heir, 0);
    const struct session *one = session_of_pid(heir.core, 41);
    const struct channel *channel = name_find(one->tenant, "ring")->channel;

    (void)state;
    assert_non_null(channel);
    assert_ptr_equal(channel->session, one);
    assert_int_equal(channel->flags, PROTO_MAKE_CHANNEL_KEEP);
    assert_int_equal(channel->capacities.n_slots, 4);
    assert_int_equal(channel->parcel->token.bytes[0], 0xc2);
    assert_int_equal(channel->kept.amount, MIB);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(channel->places[i].state, states[i]);
        assert_ptr_equal(channel->places[i].session, session_of_pid(heir.core, pids[i]));
        assert_int_equal(channel->places[i].processes, 1);
    }
    assert_int_equal(channel->places[3].state, PROTO_CHANNEL_EMPTY);
    end_heir(&heir);
}

static void impossible_channels_are_refused(void **state) {
    static const char slots[] = "a channel has slots that are not there",
                      name[] = "a channel has another one's name",
                      maker[] = "a channel was made by a session that is not there",
                      numbers[] = "a channel has impossible numbers",
                      place[] = "a place of a channel is taken by a session that is not there",
                      contradiction[] = "its records contradict each other";

    (void)state;
    make_scene();
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, block), 1, slots);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, name), 1, name);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, session), 1, maker);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, maker), 1, maker);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, id), 0, numbers);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, id), UINT64_C(1) << 40, numbers);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, flags), 2, numbers);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, n_slots), 1, numbers);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, slot_bytes), MIB, contradiction);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, places[1].session), 1, place);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, places[1].state), PROTO_CHANNEL_LEFT + 1,
                          place);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, places[1].state), PROTO_CHANNEL_LEFT,
                          contradiction);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, places[3].state), PROTO_CHANNEL_VACANT,
                          contradiction);
}

/* A successor without the descriptor of a segment: names whose blocks lie there end, and others stay. */
static void what_no_process_can_map_is_withdrawn(void **state) {
    static const char *const names[] = {"kept", "loose", "left", "dead"};
    struct heir heir;

    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        make_heir(&heir, 0);
        const struct edition *edition = edition_of(session_of_pid(heir.core, 41), names[i]);
        uint64_t segment = edition->parcels[edition->n_parcels - 1]->block->segment->id;
        bool is_shared[4] = {false};
        for (unsigned k = 0; k < 4; k++) {
            const struct edition *other = edition_of(session_of_pid(heir.core, 41), names[k]);
            for (unsigned n = 0; n < other->n_parcels; n++)
                is_shared[k] = is_shared[k] || other->parcels[n]->block->segment->id == segment;
        }
        end_heir(&heir);
        make_heir(&heir, segment);
        assert_true(core_is_valid(heir.core));
        struct session *one = session_of_pid(heir.core, 41);
        for (unsigned k = 0; k < 4; k++)
            assert_true((edition_of(one, names[k]) == NULL) == is_shared[k]);
        end_heir(&heir);
    }
}

/* The answer that a name is there was not sent, and the name ended with the daemon: the request waits again. */
static void an_answer_of_what_ended_with_the_daemon_is_none(void **state) {
    struct heir heir;
    make_heir(&heir, 0);
    struct session *one = session_of_pid(heir.core, 41);
    uint64_t segment = edition_of(one, "kept")->parcels[0]->block->segment->id;
    struct name_answer answer;

    (void)state;
    end_heir(&heir);
    make_heir(&heir, segment);
    one = session_of_pid(heir.core, 41);
    while (core_next_name_answer(heir.core, &answer))
        assert_int_not_equal(answer.request, 63);
    assert_true(core_is_valid(heir.core));
    core_cancel(one, 63, TIME_NS);
    expect_name_refused(heir.core, one, 63, PROTO_E_CANCELLED);
    end_heir(&heir);
}

/* --- records that contradict each other --- */

/* The record of the name of a text. */
static struct estate_found find_name(const struct estate *estate, const char *text) {
    struct estate_found found = {0};

    while (estate_next(estate, KEPT_NAME, found.record, &found))
        if (strcmp(((const struct kept_name *)found.payload)->text, text) == 0)
            return found;
    fail_msg("the scene has no such name");
    return found;
}

static void impossible_names_are_refused(void **state) {
    static const char numbers[] = "a name has no text, or a number that was never given";
    char full[PROTO_NAME_TEXT_SIZE], behind[PROTO_NAME_TEXT_SIZE] = "kept";
    const char *const texts[] = {"", "a\nb", "\xff"};

    (void)state;
    make_scene();
    memset(full, 'x', sizeof full);
    behind[20] = 'x';
    for (unsigned i = 0; i < 5; i++) {
        char text[PROTO_NAME_TEXT_SIZE] = {0};
        if (i < 3)
            memcpy(text, texts[i], strlen(texts[i]));
        else
            memcpy(text, i == 3 ? full : behind, sizeof text);
        struct estate estate = patch_begin();
        patch(&estate, find_name(&estate, "kept").record, offsetof(struct kept_name, text), text,
              sizeof text);
        patch_end(&estate);
        expect_refused_for(numbers);
    }
    expect_number_refused(KEPT_NAME, ANY, MEMBER(kept_name, id), 0, numbers);
    expect_number_refused(KEPT_NAME, ANY, MEMBER(kept_name, id), UINT64_C(1) << 40, numbers);
    expect_number_refused(KEPT_NAME, ANY, MEMBER(kept_name, builder), 1 << 20,
                          "a name is built by a session that is not there");
    expect_twins_refused(KEPT_NAME, MEMBER(kept_name, text), "two names are one");
    expect_twins_refused(KEPT_NAME, MEMBER(kept_name, id), "two names are one");
    const uint32_t none = 0;
    struct estate estate =
        patch_begin(); /* a name that stands for nothing, and that no session builds or awaits */
    patch(&estate, find_name(&estate, "told").record, offsetof(struct kept_name, builder), &none,
          sizeof none);
    estate_remove(&estate,
                  find_with(&estate, KEPT_NAME_WAIT, MEMBER(kept_name_wait, id), &(uint64_t){67}).record);
    patch_end(&estate);
    expect_refused_for("its records contradict each other");
}

static void impossible_editions_are_refused(void **state) {
    static const char numbers[] = "what is published has impossible numbers",
                      fence[] = "what is published is behind a fence that is not there",
                      place[] = "a part of a directory has no place";

    (void)state;
    make_scene();
    expect_number_refused(KEPT_EDITION, ANY, MEMBER(kept_edition, generation), 0, numbers);
    expect_number_refused(KEPT_EDITION, ANY, MEMBER(kept_edition, generation), UINT64_C(1) << 40, numbers);
    expect_number_refused(KEPT_EDITION, ANY, MEMBER(kept_edition, n_parcels), 0, numbers);
    expect_number_refused(KEPT_EDITION, ANY, MEMBER(kept_edition, n_parcels), 65, numbers);
    expect_number_refused(KEPT_EDITION, ANY, MEMBER(kept_edition, n_parcels), 3,
                          "a block that is published is missing");
    expect_number_refused(KEPT_EDITION, ANY, MEMBER(kept_edition, directory_bytes), 65537, numbers);
    expect_number_refused(KEPT_EDITION, WITH(kept_edition, layout, 5), MEMBER(kept_edition, directory_bytes),
                          NAMES_DIRECTORY + KEPT_DIRECTORY_BYTES, "a part of a directory is missing");
    expect_number_refused(KEPT_EDITION, WITH(kept_edition, layout, 5), MEMBER(kept_edition, directory_bytes),
                          1, place);
    expect_number_refused(KEPT_EDITION, ANY, MEMBER(kept_edition, flags), 8, numbers);
    expect_number_refused(KEPT_EDITION, ANY, MEMBER(kept_edition, flags), PROTO_PUBLISH_SAME_LAYOUT, numbers);
    expect_number_refused(KEPT_EDITION, ANY, MEMBER(kept_edition, name), 1,
                          "what is published has no name, or another one's");
    expect_twins_refused(KEPT_EDITION, MEMBER(kept_edition, name),
                         "what is published has no name, or another one's");
    expect_number_refused(KEPT_EDITION, WITH(kept_edition, layout, 5), MEMBER(kept_edition, publisher), 1,
                          "what is published is of a session that is not there");
    expect_number_refused(KEPT_EDITION, WITH(kept_edition, layout, 5), MEMBER(kept_edition, session), 0,
                          fence);
    expect_number_refused(KEPT_EDITION, WITH(kept_edition, flags, 0), MEMBER(kept_edition, session), 0,
                          "its records contradict each other"); /* not kept, and its publisher is gone */
    expect_number_refused(KEPT_NAMED, ANY, MEMBER(kept_named, has_fence), 2, fence);
    expect_number_refused(KEPT_NAMED, WITH(kept_named, has_fence, 1), MEMBER(kept_named, has_fence), 0,
                          fence);
    expect_number_refused(KEPT_NAMED, WITH(kept_named, has_fence, 1), MEMBER(kept_named, fence.slot),
                          NAMES_SLOT + 9, fence);
    expect_number_refused(KEPT_NAMED, WITH(kept_named, has_fence, 1), MEMBER(kept_named, fence.word),
                          PROTO_BOARD_WORDS, fence);
    expect_number_refused(KEPT_NAMED, ANY, MEMBER(kept_named, number), 1,
                          "a block is published that is not there");
    expect_number_refused(KEPT_NAMED, ANY, MEMBER(kept_named, block), 1,
                          "a block is published that is not there");
    expect_twins_refused(KEPT_NAMED, MEMBER(kept_named, token), "two parcels have one token");
    expect_number_refused(KEPT_DIRECTORY, ANY, MEMBER(kept_directory, offset_bytes), 1, place);
    expect_number_refused(KEPT_DIRECTORY, ANY, MEMBER(kept_directory, offset_bytes), KEPT_DIRECTORY_BYTES * 2,
                          place);
    expect_twins_refused(KEPT_DIRECTORY, MEMBER(kept_directory, offset_bytes), place);
    expect_missing_refused(KEPT_DIRECTORY, "a part of a directory is missing");
    expect_missing_refused(KEPT_NAMED, "a block that is published is missing");
}

/* A fence in no slot, of a session without one: one more than that number is 0. */
static void a_session_without_a_slot_has_no_fence(void **state) {
    const uint32_t no_slot = 0, slot = UINT32_MAX;

    (void)state;
    make_scene();
    struct estate estate = patch_begin();
    patch(&estate,
          find_with(&estate, KEPT_SESSION, MEMBER(kept_session, board_slot), &(uint32_t){NAMES_SLOT + 1})
              .record,
          offsetof(struct kept_session, board_slot), &no_slot, sizeof no_slot);
    patch(&estate,
          find_with(&estate, KEPT_NAMED, MEMBER(kept_named, fence.slot), &(uint32_t){NAMES_SLOT}).record,
          offsetof(struct kept_named, fence.slot), &slot, sizeof slot);
    patch_end(&estate);
    expect_refused_for("what is published is behind a fence that is not there");
}

static void impossible_requests_for_names_are_refused(void **state) {
    static const char session[] = "a name is waited for by a session that is not there",
                      stateless[] = "a request for a name is in no state",
                      contradiction[] = "its records contradict each other";

    (void)state;
    make_scene();
    expect_number_refused(KEPT_NAME_WAIT, ANY, MEMBER(kept_name_wait, session), 1, session);
    expect_number_refused(KEPT_NAME_WAIT, ANY, MEMBER(kept_name_wait, name), 1, session);
    struct estate estate = patch_begin();
    struct estate_found lost = find_with(&estate, KEPT_SESSION, MEMBER(kept_session, pid), &(int32_t){44});
    estate_deinit(&estate);
    expect_number_refused(KEPT_NAME_WAIT, ANY, MEMBER(kept_name_wait, session), lost.record, session);
    expect_number_refused(KEPT_NAME_WAIT, ANY, MEMBER(kept_name_wait, state), NAME_WAIT_JOINED + 1,
                          stateless);
    expect_number_refused(KEPT_NAME_WAIT, WITH(kept_name_wait, id, 62), MEMBER(kept_name_wait, error), 1,
                          stateless);
    expect_number_refused(KEPT_NAME_WAIT, WITH(kept_name_wait, id, 64), MEMBER(kept_name_wait, error), 0,
                          stateless);
    expect_number_refused(KEPT_NAME_WAIT, WITH(kept_name_wait, id, 64), MEMBER(kept_name_wait, error),
                          PROTO_E_MAX + 1, stateless);
    expect_number_refused(KEPT_NAME_WAIT, ANY, MEMBER(kept_name_wait, flags), 4, stateless);
    expect_number_refused(KEPT_NAME_WAIT, WITH(kept_name_wait, id, 62), MEMBER(kept_name_wait, state),
                          NAME_WAIT_JOINED, stateless);
    expect_number_refused(KEPT_NAME_WAIT, WITH(kept_name_wait, id, 62), MEMBER(kept_name_wait, place), 1,
                          stateless);
    expect_number_refused(KEPT_NAME_WAIT, WITH(kept_name_wait, id, 62), MEMBER(kept_name_wait, got), 1,
                          stateless);
    expect_number_refused(KEPT_NAME_WAIT, WITH(kept_name_wait, id, 71), MEMBER(kept_name_wait, got),
                          PROTO_CHANNEL_PLACES, stateless);
    expect_number_refused(KEPT_NAME_WAIT, WITH(kept_name_wait, id, 71), MEMBER(kept_name_wait, place),
                          PROTO_CHANNEL_PLACES, stateless);
    expect_number_refused(KEPT_NAME_WAIT, WITH(kept_name_wait, id, 71), MEMBER(kept_name_wait, state),
                          NAME_WAIT_THERE, stateless);
    expect_number_refused(KEPT_NAME_WAIT, WITH(kept_name_wait, id, 71), MEMBER(kept_name_wait, flags),
                          NAME_WAIT_JOIN | 1, stateless);
    expect_number_refused(KEPT_NAME_WAIT, ANY, MEMBER(kept_name_wait, number), 0, stateless);
    expect_number_refused(KEPT_NAME_WAIT, ANY, MEMBER(kept_name_wait, number), UINT64_C(1) << 40, stateless);
    expect_twins_refused(KEPT_NAME_WAIT, MEMBER(kept_name_wait, number), "two requests have one number");
    expect_number_refused(KEPT_NAME_WAIT, WITH(kept_name_wait, id, 63), MEMBER(kept_name_wait, state),
                          NAME_WAIT_WAITING, contradiction); /* for what is there */
    expect_number_refused(KEPT_SESSION, WITH(kept_session, pid, 42), MEMBER(kept_session, state),
                          SESSION_QUARANTINED, session);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(editions_are_as_they_were),
        cmocka_unit_test(a_publishers_end_counts_with_the_successor),
        cmocka_unit_test(requests_for_names_go_on),
        cmocka_unit_test(channels_are_as_they_were),
        cmocka_unit_test(impossible_channels_are_refused),
        cmocka_unit_test(what_no_process_can_map_is_withdrawn),
        cmocka_unit_test(an_answer_of_what_ended_with_the_daemon_is_none),
        cmocka_unit_test(impossible_names_are_refused),
        cmocka_unit_test(impossible_editions_are_refused),
        cmocka_unit_test(a_session_without_a_slot_has_no_fence),
        cmocka_unit_test(impossible_requests_for_names_are_refused),
    };
    return cmocka_run_group_tests_name("inherit names", tests, NULL, NULL);
}
