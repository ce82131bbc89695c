/* SPDX-License-Identifier: Apache-2.0 */
/* Parcels: blocks that are on their way between sessions, held by a token alone. */
#include "core_fixture.h"
#include "tests/random.h"

#define LIFETIME_NS (10 * NS_PER_S)

struct scene {
    struct core *core;
    struct pool *pool;
    struct session *sender, *taker;
    struct lease *lease;
};

/* A sender with a lease of 2 MiB, and another session of its user. */
static struct scene scene_of(void **state) {
    struct scene scene = {.core = *state};

    scene.pool = add_pool(scene.core, 8 * MIB, 2 * MIB, 0);
    scene.sender = open_with_page(scene.core, 1, UID_A);
    scene.taker = open_session(scene.core, 2, UID_A);
    scene.lease = take_growing(scene.sender, scene.pool, 2 * MIB, 0);
    return scene;
}

/* byte: of the token, another one for each parcel. */
static int send_for(struct session *session, const struct lease *lease, uint8_t byte, uint32_t takers,
                    uint64_t lifetime_ns, uint64_t now_ns, struct proto_token *ret_token) {
    const struct proto_token fresh[2] = {token_of((uint8_t)(100 + byte)), token_of(byte)};
    const struct proto_send send = {{lease->id, lease->generation, 0, 0, 0}, lifetime_ns, takers, 0};
    int r = send_lease(session, &send, fresh, now_ns, ret_token);
    assert_true(core_is_valid(session->core));
    return r;
}

static struct proto_token send_to(const struct scene *scene, uint8_t byte, uint32_t takers) {
    struct proto_token token;
    assert_int_equal(send_for(scene->sender, scene->lease, byte, takers, LIFETIME_NS, 0, &token), 0);
    return token;
}

static int attach(struct session *session, const struct proto_token *token, struct lease **ret_lease) {
    int r = core_attach(session, token, ret_lease);
    assert_true(core_is_valid(session->core));
    return r;
}

static int revoke_as(struct session *session, const struct proto_token *token) {
    int r = core_revoke(session, token, 0);
    assert_true(core_is_valid(session->core));
    return r;
}

static void expect_gone(const struct scene *scene, const struct proto_token *token) {
    struct lease *lease;
    assert_int_equal(attach(scene->taker, token, &lease), PROTO_E_NO_TOKEN);
    assert_int_equal(revoke_as(scene->taker, token), PROTO_E_NO_TOKEN);
}

static void what_is_sent_outlives_its_lease_and_its_sender(void **state) {
    for (unsigned dies = 0; dies < 2; dies++) {
        struct scene scene = scene_of(state);
        struct proto_token token = send_to(&scene, 1, 1);
        struct lease *taken;

        assert_int_equal(release(scene.sender, name_of(scene.lease), 0), 0);
        assert_int_equal(scene.pool->leased_bytes, 2 * MIB);
        assert_int_equal(scene.pool->parcel_bytes, 2 * MIB);
        if (dies) {
            lose_session(scene.sender, 0);
            session_gone(scene.sender, 0);
        } else {
            close_session(scene.sender, 0);
        }
        assert_int_equal(scene.pool->n_parcels, 1);
        assert_int_equal(used(scene.taker, QUOTA_LEASES), 1);
        assert_int_equal(attach(scene.taker, &token, &taken), 0);
        assert_int_equal(query(scene.taker, taken).holders, 1);
        assert_int_equal(scene.pool->n_parcels, 0);
        assert_int_equal(scene.pool->parcel_bytes, 0);
        assert_int_equal(used(scene.taker, QUOTA_LEASES), 1);
        expect_gone(&scene, &token);
        assert_int_equal(release(scene.taker, name_of(taken), 0), 0);
        assert_int_equal(scene.pool->leased_bytes, 0);
        close_session(scene.taker, 0);
        core_destroy(scene.core);
        *state = core_make();
    }
}

static void a_parcel_serves_as_many_as_it_was_sent_to(void **state) {
    struct scene scene = scene_of(state);
    struct proto_token token = send_to(&scene, 1, 3);
    struct lease *taken;

    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(query(scene.sender, scene.lease).holders, 2 + i);
        assert_int_equal(attach(scene.taker, &token, &taken), 0);
    }
    assert_int_equal(query(scene.sender, scene.lease).holders, 4);
    expect_gone(&scene, &token);
}

static void each_parcel_of_a_block_has_a_token_of_its_own(void **state) {
    struct scene scene = scene_of(state);
    struct proto_token first = send_to(&scene, 1, 1), second = send_to(&scene, 2, 1), shared;
    const struct proto_token fresh = token_of(3);
    const struct proto_lease_name name = name_of(scene.lease);

    assert_memory_not_equal(&first, &second, sizeof first);
    assert_int_equal(share_lease(scene.sender, &name, 0, &fresh, &shared), 0);
    assert_memory_not_equal(&first, &shared, sizeof first);
    assert_int_equal(revoke_as(scene.taker, &shared), PROTO_E_NO_TOKEN); /* it is no parcel */
    assert_int_equal(query(scene.sender, scene.lease).holders, 3);
    assert_int_equal(revoke_as(scene.sender, &first), 0);
    expect_gone(&scene, &first);
    assert_int_equal(query(scene.sender, scene.lease).holders, 2);
    assert_int_equal(release(scene.sender, name, 0), 0);
    struct lease *lease;
    assert_int_equal(attach(scene.taker, &shared, &lease), PROTO_E_NO_TOKEN); /* no session has it */
    assert_int_equal(attach(scene.taker, &second, &lease), 0);
    assert_int_equal(attach(scene.taker, &shared, &lease), 0);
}

static void a_parcel_ends_in_time_and_its_memory_serves(void **state) {
    struct scene scene = scene_of(state);
    struct proto_token late, soon;

    assert_int_equal(send_for(scene.sender, scene.lease, 1, 1, 8 * NS_PER_S, 0, &late), 0);
    assert_int_equal(send_for(scene.sender, scene.lease, 2, 1, 2 * NS_PER_S, 0, &soon), 0);
    assert_int_equal(release(scene.sender, name_of(scene.lease), 0), 0);
    ask(scene.taker, scene.pool, 7, 8 * MIB, NS_FOREVER, 0);
    expect_no_answer(scene.core);
    assert_int_equal(core_next_tick_ns(scene.core), 2 * NS_PER_S);
    tick(scene.core, 2 * NS_PER_S - 1);
    assert_int_equal(scene.pool->n_parcels, 2);
    tick(scene.core, 2 * NS_PER_S);
    expect_gone(&scene, &soon);
    assert_int_equal(scene.pool->leased_bytes, 2 * MIB);
    tick(scene.core, 8 * NS_PER_S);
    assert_int_equal(scene.pool->leased_bytes, 0);
    expect_gone(&scene, &late);
}

static void the_time_of_what_is_held_counts_from_the_end_of_its_sender(void **state) {
    for (unsigned dies = 0; dies < 2; dies++) {
        struct scene scene = scene_of(state);
        const struct proto_token fresh[3] = {token_of(1), token_of(2), token_of(3)};
        struct proto_send send = {.share = {.lease = scene.lease->id, .generation = scene.lease->generation},
                                  .lifetime_ns = LIFETIME_NS,
                                  .takers = 2,
                                  .flags = PROTO_SEND_HELD};
        const uint64_t late_ns = 1000 * LIFETIME_NS;
        struct proto_token token;
        struct lease *taken;

        assert_int_equal(send_lease(scene.sender, &send, fresh, 0, &token), 0);
        send.flags = 0;
        assert_int_equal(send_lease(scene.sender, &send, &fresh[1], 0, &token), 0);
        assert_int_equal(release(scene.sender, name_of(scene.lease), 0), 0);
        tick(scene.core, late_ns);
        expect_gone(&scene, &fresh[2]);
        assert_int_equal(attach(scene.taker, &fresh[1], &taken), 0);
        assert_int_equal(release(scene.taker, name_of(taken), 0), 0);
        if (dies)
            lose_session(scene.sender, late_ns);
        else
            close_session(scene.sender, late_ns);
        tick(scene.core, late_ns + LIFETIME_NS - 1);
        assert_int_equal(scene.pool->n_parcels, 1);
        tick(scene.core, late_ns + LIFETIME_NS);
        expect_gone(&scene, &fresh[1]);
        assert_int_equal(scene.pool->n_parcels, 0);
        if (dies)
            session_gone(scene.sender, late_ns + LIFETIME_NS);
        close_session(scene.taker, late_ns + LIFETIME_NS);
        core_destroy(scene.core);
        *state = core_make();
    }
}

static void many_parcels_end_in_the_order_of_their_time(void **state) {
    struct scene scene = scene_of(state);
    struct proto_token tokens[100];
    uint64_t random = 7;
    unsigned n_left = 100;

    for (unsigned i = 0; i < 100; i++) {
        uint64_t lifetime_ns = 1 + random_next(&random) % 1000;
        assert_int_equal(send_for(scene.sender, scene.lease, (uint8_t)i, 1, lifetime_ns, 0, &tokens[i]), 0);
    }
    for (unsigned i = 0; i < 100; i += 3) {
        assert_int_equal(revoke_as(scene.sender, &tokens[i]), 0);
        n_left--;
    }
    for (uint64_t now_ns = 0; now_ns <= 1001; now_ns++) {
        tick(scene.core, now_ns);
        for (size_t i = 0; i < scene.core->parcels.count; i++)
            assert_true(scene.core->parcels.entries[i]->deadline_ns > now_ns);
        assert_true(scene.core->parcels.count <= n_left);
        n_left = (unsigned)scene.core->parcels.count;
    }
    assert_int_equal(n_left, 0);
}

static void only_its_own_user_may_take_or_revoke_a_parcel(void **state) {
    struct scene scene = scene_of(state);
    struct session *stranger = open_session(scene.core, 3, UID_B);
    struct proto_token token = send_to(&scene, 1, 1);
    struct lease *lease;

    assert_int_equal(attach(stranger, &token, &lease), PROTO_E_NO_TOKEN);
    assert_int_equal(revoke_as(stranger, &token), PROTO_E_NO_TOKEN);
    assert_int_equal(attach(scene.taker, &token, &lease), 0);
}

static void what_was_sent_is_held_by_others(void **state) {
    struct scene scene = scene_of(state);
    const struct proto_lease_name name = name_of(scene.lease);
    struct proto_holders holders;

    send_to(&scene, 1, 1);
    assert_int_equal(core_ask_holders(scene.sender, &name, &holders), 0);
    assert_int_equal(holders.n_holding, 1);
    assert_int_equal(release_part(scene.sender, name, 0, MIB, 0), PROTO_E_SHARED);
}

static void a_parcel_of_what_a_dead_session_holds_waits_with_it(void **state) {
    struct scene scene = scene_of(state);
    struct proto_token token = send_to(&scene, 1, 1);
    struct lease *taken;

    lose_session(scene.sender, 0);
    assert_int_equal(scene.pool->leased_bytes, 2 * MIB);
    assert_int_equal(scene.pool->quarantined_bytes, 0);
    assert_int_equal(attach(scene.taker, &token, &taken), 0); /* its stream waits for the sender's fence */
    assert_int_equal(release(scene.taker, name_of(taken), 0), 0);
    assert_int_equal(scene.pool->quarantined_bytes, 2 * MIB);
    session_gone(scene.sender, 0);
    assert_int_equal(scene.pool->quarantined_bytes, 0);
}

static void parcels_count_as_leases_of_their_user(void **state) {
    struct scene scene = scene_of(state);
    struct proto_token token, second;

    limit_all(scene.core, QUOTA_LEASES, 2, 0);
    token = send_to(&scene, 1, 1);
    assert_int_equal(send_for(scene.sender, scene.lease, 2, 1, LIFETIME_NS, 0, &second), PROTO_E_LIMIT);
    assert_int_equal(revoke_as(scene.sender, &token), 0);
    assert_int_equal(send_for(scene.sender, scene.lease, 2, 1, LIFETIME_NS, 0, &second), 0);
    struct lease *taken; /* takes the place of the parcel */
    assert_int_equal(attach(scene.taker, &second, &taken), 0);
    assert_int_equal(used(scene.taker, QUOTA_LEASES), 2);
    assert_int_equal(release(scene.taker, name_of(taken), 0), 0);
    assert_int_equal(send_for(scene.sender, scene.lease, 3, 2, LIFETIME_NS, 0, &second), 0);
    assert_int_equal(attach(scene.taker, &second, &taken), PROTO_E_LIMIT); /* the parcel would stay */
}

static void a_user_has_so_many_parcels_and_no_more(void **state) {
    struct scene scene = scene_of(state);
    struct proto_token token;

    scene.sender->tenant->n_parcels += PARCELS_MAX; /* as if: the validators would not agree */
    const struct proto_token fresh[2] = {token_of(1), token_of(2)};
    const struct proto_send send = {{scene.lease->id, scene.lease->generation, 0, 0, 0}, LIFETIME_NS, 1, 0};
    assert_int_equal(send_lease(scene.sender, &send, fresh, 0, &token), PROTO_E_LIMIT);
    scene.sender->tenant->n_parcels -= PARCELS_MAX;
    assert_true(core_is_valid(scene.core));
}

static void an_operator_ends_those_of_a_sender_or_all(void **state) {
    struct scene scene = scene_of(state);
    struct lease *other = take_growing(scene.taker, scene.pool, 2 * MIB, 0);
    struct proto_token token;
    uint64_t bytes, random = 3;

    for (unsigned i = 0; i < 40; i++) {
        bool of_sender = i % 3 == 0;
        assert_int_equal(send_for(of_sender ? scene.sender : scene.taker, of_sender ? scene.lease : other,
                                  (uint8_t)i, 1, 1 + random_next(&random) % 50, 0, &token),
                         0);
    }
    assert_int_equal(release(scene.sender, name_of(scene.lease), 0), 0);
    assert_int_equal(core_revoke_all(scene.core, scene.sender->id, 0, &bytes), 14);
    assert_int_equal(bytes, 2 * MIB);
    assert_true(core_is_valid(scene.core));
    assert_int_equal(core_revoke_all(scene.core, scene.sender->id, 0, &bytes), 0);
    assert_int_equal(core_revoke_all(scene.core, 0, 0, &bytes), 26);
    assert_int_equal(bytes, 0); /* the taker has its block */
    assert_true(core_is_valid(scene.core));
}

static void a_user_stays_known_while_something_of_it_is_on_its_way(void **state) {
    struct scene scene = scene_of(state);

    close_session(scene.taker, 0);
    send_to(&scene, 1, 1);
    close_session(scene.sender, 0);
    assert_true(core_has_tenant(scene.core, (struct tenant_id){.uid = UID_A}));
    tick(scene.core, LIFETIME_NS);
    assert_false(core_has_tenant(scene.core, (struct tenant_id){.uid = UID_A}));
}

static void what_cannot_be_sent_is_refused(void **state) {
    struct scene scene = scene_of(state);
    struct proto_token token;

    struct lease *lease = take_growing(scene.sender, scene.pool, MIB, 0);
    assert_int_equal(release_part(scene.sender, name_of(lease), 0, 512 * KIB, 0), 0);
    assert_int_equal(send_for(scene.sender, lease, 1, 1, LIFETIME_NS, 0, &token), PROTO_E_INVALID);
    assert_int_equal(send_for(scene.taker, scene.lease, 1, 1, LIFETIME_NS, 0, &token), PROTO_E_STALE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(what_is_sent_outlives_its_lease_and_its_sender),
        CORE_TEST(a_parcel_serves_as_many_as_it_was_sent_to),
        CORE_TEST(each_parcel_of_a_block_has_a_token_of_its_own),
        CORE_TEST(a_parcel_ends_in_time_and_its_memory_serves),
        CORE_TEST(the_time_of_what_is_held_counts_from_the_end_of_its_sender),
        CORE_TEST(many_parcels_end_in_the_order_of_their_time),
        CORE_TEST(only_its_own_user_may_take_or_revoke_a_parcel),
        CORE_TEST(what_was_sent_is_held_by_others),
        CORE_TEST(a_parcel_of_what_a_dead_session_holds_waits_with_it),
        CORE_TEST(parcels_count_as_leases_of_their_user),
        CORE_TEST(a_user_has_so_many_parcels_and_no_more),
        CORE_TEST(an_operator_ends_those_of_a_sender_or_all),
        CORE_TEST(a_user_stays_known_while_something_of_it_is_on_its_way),
        CORE_TEST(what_cannot_be_sent_is_refused),
    };
    return cmocka_run_group_tests_name("parcels", tests, NULL, NULL);
}
