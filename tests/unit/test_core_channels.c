/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels in the core: how they are made, joined, left, lost and ended, and what a successor has of them. The pages of
 * channels are in integration/channels.
 */
#include "daemon/core/channel.h"

#include <errno.h>

#include "inherit_fixture.h"

/* Links stand for the shell's objects. They outlive the tests: channels that are there at the end go with the core. */
struct scene {
    struct core *core;
    struct pool *pool;
    struct session *maker, *one, *two;
    struct lease *lease;
};

static struct scene scene_of(void **state) {
    struct scene scene = {.core = *state};

    scene.pool = add_pool(scene.core, 16 * MIB, 2 * MIB, 0);
    scene.maker = open_with_page(scene.core, 1, UID_A);
    scene.one = open_session(scene.core, 2, UID_A);
    scene.two = open_session(scene.core, 3, UID_A);
    scene.lease = take_growing(scene.maker, scene.pool, 2 * MIB, 0);
    return scene;
}

/* Of four slots, which have room in 2 MiB, and two consumers. */
static struct proto_make_channel make_of(const char *name, const struct lease *lease, uint32_t flags) {
    struct proto_make_channel make = {.lease = lease->id,
                                      .generation = lease->generation,
                                      .slot_bytes = MIB / 2,
                                      .n_slots = 4,
                                      .metadata_bytes = 10,
                                      .n_consumers = 2,
                                      .policy = PROTO_CHANNEL_FAIL,
                                      .flags = flags};

    snprintf(make.name, sizeof make.name, "%s", name);
    return make;
}

/* Returns what core_make_channel() does. The shell has made the pages of a channel that is made. */
static int try_make(struct session *session, const struct proto_make_channel *make, struct list *link,
                    struct channel **ret_channel) {
    static uint8_t next_token = 100;
    const struct proto_token tokens[2] = {token_of(next_token), token_of((uint8_t)(next_token + 1))};

    next_token += 2;
    int r = core_make_channel(session, make, tokens, 0, ret_channel);
    if (r == 0) {
        list_init(link);
        core_channel_made(*ret_channel, link);
    }
    assert_true(core_is_valid(session->core));
    return r;
}

static struct channel *make_channel(struct session *session, const char *name, const struct lease *lease,
                                    uint32_t flags, struct list *link) {
    const struct proto_make_channel make = make_of(name, lease, flags);
    struct channel *channel = NULL;

    assert_int_equal(try_make(session, &make, link, &channel), 0);
    return channel;
}

/* Asks for a place, without a deadline. */
static void ask_to_join(struct session *session, uint64_t request, const char *name, uint32_t place) {
    struct proto_join_channel join = {.timeout_ns = NS_FOREVER, .place = place};

    snprintf(join.name, sizeof join.name, "%s", name);
    assert_int_equal(core_join_channel(session, request, &join, 0), 0);
    assert_true(core_is_valid(session->core));
}

/* The next answer is that the session has the place. */
static struct proto_channel_reply expect_joined(const struct session *session, uint64_t request,
                                                const struct channel *channel, uint32_t place) {
    const struct name_answer answer = expect_name_answer(session->core, session, request);

    assert_int_equal(answer.error, 0);
    assert_true(answer.is_of_channel);
    assert_int_equal(answer.channel.channel, channel->id);
    assert_int_equal(answer.channel.place, place);
    return answer.channel;
}

static void join(struct session *session, const struct channel *channel, uint32_t wished, uint32_t place) {
    ask_to_join(session, 800, channel->name->text, wished);
    expect_joined(session, 800, channel, place);
}

static int leave(struct session *session, uint64_t channel, uint32_t place) {
    const struct proto_channel_page_name left = {.channel = channel, .page = place};
    int r = core_leave_channel(session, &left, 0);

    assert_true(core_is_valid(session->core));
    return r;
}

static void expect_place(const struct channel *channel, unsigned place, enum proto_channel_state state,
                         uint32_t queue, uint32_t processes) {
    assert_int_equal(channel->places[place].state, state);
    assert_int_equal(channel->places[place].queue, queue);
    assert_int_equal(channel->places[place].processes, processes);
}

static void expect_told(struct core *core, const struct channel *channel) {
    struct channel *told;

    assert_true(core_next_channel(core, &told));
    assert_ptr_equal(told, channel);
    assert_false(core_next_channel(core, &told));
}

/* --- places --- */

static void a_session_that_joins_gets_the_channel_and_its_memory(void **state) {
    struct scene scene = scene_of(state);
    static struct list link;
    struct channel *channel = make_channel(scene.maker, "ring", scene.lease, 0, &link);
    struct lease *attached;

    ask_to_join(scene.one, 1, "ring", PROTO_CHANNEL_PRODUCER);
    const struct proto_channel_reply reply = expect_joined(scene.one, 1, channel, PROTO_CHANNEL_PRODUCER);
    assert_int_equal(reply.slot_bytes, MIB / 2);
    assert_int_equal(reply.n_slots, 4);
    assert_int_equal(reply.metadata_bytes, 10);
    assert_int_equal(reply.n_consumers, 2);
    assert_int_equal(reply.policy, PROTO_CHANNEL_FAIL);
    assert_int_equal(reply.pool, scene.pool->id);
    assert_int_equal(attach_to(scene.one, &reply.token, &attached), 0);
    assert_ptr_equal(attached->block, scene.lease->block);
    expect_told(scene.core, channel);
    expect_place(channel, PROTO_CHANNEL_PRODUCER, PROTO_CHANNEL_TAKEN, 0, 1);
}

static void the_state_of_a_place_follows_its_sessions(void **state) {
    struct scene scene = scene_of(state);
    static struct list link;
    struct channel *channel = make_channel(scene.maker, "ring", scene.lease, 0, &link);

    join(scene.one, channel, 1, 1);
    assert_int_equal(leave(scene.one, channel->id, 1), 0);
    expect_place(channel, 1, PROTO_CHANNEL_LEFT, 0, 1);
    assert_int_equal(channel->places[1].last_session, scene.one->id);
    join(scene.two, channel, 1, 1); /* a queue of its own */
    expect_place(channel, 1, PROTO_CHANNEL_TAKEN, 1, 2);
    lose_session(scene.two, 0);
    expect_place(channel, 1, PROTO_CHANNEL_DYING, 1, 2);
    session_gone(scene.two, 0);
    expect_place(channel, 1, PROTO_CHANNEL_VACANT, 1, 2);
    join(scene.one, channel, 1, 1); /* the queue of the dead session */
    expect_place(channel, 1, PROTO_CHANNEL_TAKEN, 1, 3);
    close_session(scene.one, 0);
    expect_place(channel, 1, PROTO_CHANNEL_LEFT, 1, 3);
    expect_place(channel, 2, PROTO_CHANNEL_EMPTY, 0, 0);
    expect_told(scene.core, channel);
}

static void a_place_that_holds_elements_comes_before_an_empty_one(void **state) {
    struct scene scene = scene_of(state);
    static struct list link;
    struct channel *channel = make_channel(scene.maker, "ring", scene.lease, 0, &link);
    struct session *dies = open_session(scene.core, 9, UID_A);

    join(scene.one, channel, PROTO_CHANNEL_ANY_CONSUMER, 1);
    join(dies, channel, PROTO_CHANNEL_ANY_CONSUMER, 2);
    assert_int_equal(leave(scene.one, channel->id, 1), 0);
    lose_session(dies, 0);
    session_gone(dies, 0);
    join(scene.one, channel, PROTO_CHANNEL_ANY_CONSUMER, 2); /* VACANT before LEFT */
    join(scene.two, channel, PROTO_CHANNEL_ANY_CONSUMER, 1);
    ask_to_join(scene.maker, 5, "ring", PROTO_CHANNEL_ANY_CONSUMER); /* the producer's is none of them */
    expect_no_name_answer(scene.core);
}

static void requests_wait_for_a_place_in_their_order(void **state) {
    struct scene scene = scene_of(state);
    static struct list link;

    ask_to_join(scene.one, 1, "ring", 1); /* before there is a channel */
    ask_to_join(scene.two, 2, "ring", 1);
    expect_no_name_answer(scene.core);
    assert_int_equal(used(scene.maker, QUOTA_WAITING), 2);
    struct channel *channel = make_channel(scene.maker, "ring", scene.lease, 0, &link);
    expect_joined(scene.one, 1, channel, 1);
    expect_no_name_answer(scene.core);
    lose_session(scene.one, 0);
    expect_no_name_answer(scene.core); /* the place is not free while the GPU may use its slots */
    session_gone(scene.one, 0);
    expect_joined(scene.two, 2, channel, 1);
    assert_int_equal(used(scene.maker, QUOTA_WAITING), 0);
}

static void a_wait_for_a_place_has_an_end(void **state) {
    struct scene scene = scene_of(state);
    static struct list link;
    struct channel *channel = make_channel(scene.maker, "ring", scene.lease, 0, &link);
    struct proto_join_channel late = {.name = "ring", .timeout_ns = 100, .place = 1};

    join(scene.one, channel, 1, 1);
    assert_int_equal(core_join_channel(scene.two, 1, &late, 0), 0);
    expect_no_name_answer(scene.core);
    tick(scene.core, 100);
    expect_name_refused(scene.core, scene.two, 1, PROTO_E_NO_NAME);
    ask_to_join(scene.two, 2, "ring", 1);
    core_cancel(scene.two, 2, 100);
    expect_name_refused(scene.core, scene.two, 2, PROTO_E_CANCELLED);
    assert_int_equal(leave(scene.one, channel->id, 1), 0);
    expect_place(channel, 1, PROTO_CHANNEL_LEFT, 0, 1);
}

static void what_cannot_be_joined_or_opened_is_refused(void **state) {
    struct scene scene = scene_of(state);
    static struct list link;
    struct lease *other = take_growing(scene.one, scene.pool, MIB, 0);
    struct channel *channel = make_channel(scene.maker, "ring", scene.lease, 0, &link);

    ask_to_join(scene.one, 1, "ring", 3);
    expect_text(expect_name_refused(scene.core, scene.one, 1, PROTO_E_INVALID), "3");
    publish_one(scene.one, "buffers", other, 0);
    ask_to_join(scene.one, 2, "buffers", 1);
    expect_text(expect_name_refused(scene.core, scene.one, 2, PROTO_E_INVALID), "is no channel");
    open_name(scene.one, 3, "ring", 0, 0);
    expect_text(expect_name_refused(scene.core, scene.one, 3, PROTO_E_INVALID), "join it");
    const struct wish wish = {.name = "ring", .leases = {other}, .count = 1};
    assert_int_equal(publish(scene.one, &wish, NULL), PROTO_E_INVALID);
    assert_int_equal(leave(scene.one, channel->id, 0), PROTO_E_STALE);
    assert_int_equal(leave(scene.one, channel->id + 1, 0), PROTO_E_STALE);
}

static void places_and_pages_are_their_users_own(void **state) {
    struct scene scene = scene_of(state);
    static struct list link;
    struct channel *channel = make_channel(scene.maker, "ring", scene.lease, 0, &link), *found;
    struct session *stranger = open_session(scene.core, 8, UID_B);
    struct proto_channel_page_name wanted = {.channel = channel->id};
    struct lease *attached;
    bool is_own;

    join(scene.one, channel, 1, 1);
    ask_to_join(stranger, 1, "ring", 0);
    expect_no_name_answer(scene.core);
    core_cancel(stranger, 1, 0);
    expect_name_refused(scene.core, stranger, 1, PROTO_E_CANCELLED);
    assert_int_equal(leave(stranger, channel->id, 1), PROTO_E_STALE);
    assert_int_equal(unpublish(stranger, "ring", 0, 0), PROTO_E_NO_NAME);
    assert_int_equal(attach_to(stranger, &channel->parcel->token, &attached), PROTO_E_NO_TOKEN);
    assert_int_equal(core_find_channel_page(stranger, &wanted, &found, &is_own), PROTO_E_STALE);
    assert_int_equal(core_find_channel_page(scene.two, &wanted, &found, &is_own), PROTO_E_STALE);
    assert_int_equal(leave(scene.two, channel->id, 1), PROTO_E_STALE);
    for (wanted.page = 0; wanted.page <= 3; wanted.page++) {
        assert_int_equal(core_find_channel_page(scene.one, &wanted, &found, &is_own), 0);
        assert_ptr_equal(found, channel);
        assert_int_equal(is_own, wanted.page == 2);
    }
    assert_int_equal(core_find_channel_page(scene.one, &wanted, &found, &is_own), PROTO_E_INVALID);
}

/* --- making --- */

static void what_cannot_be_made_is_refused(void **state) {
    struct scene scene = scene_of(state);
    struct proto_make_channel make = make_of("ring", scene.lease, 0);
    struct channel *channel;
    static struct list link;

    make.slot_bytes++;
    assert_int_equal(try_make(scene.maker, &make, &link, &channel), PROTO_E_INVALID);
    make.slot_bytes--;
    assert_int_equal(try_make(scene.one, &make, &link, &channel), PROTO_E_STALE);
    publish_one(scene.maker, "ring", scene.lease, 0);
    assert_int_equal(try_make(scene.maker, &make, &link, &channel), PROTO_E_INVALID);
    assert_int_equal(unpublish(scene.maker, "ring", 0, 0), 0);
    assert_int_equal(try_make(scene.maker, &make, &link, &channel), 0);
    assert_int_equal(try_make(scene.maker, &make, &link, &channel), PROTO_E_INVALID);
    struct lease *part = take_growing(scene.maker, scene.pool, 2 * MIB, 0);
    const struct proto_make_channel of_part = make_of("part", part, 0);
    assert_int_equal(release_part(scene.maker, name_of(part), MIB, MIB, 0), 0);
    assert_int_equal(try_make(scene.maker, &of_part, &link, &channel), PROTO_E_INVALID);
}

static void a_channel_whose_pages_cannot_be_made_is_gone(void **state) {
    struct scene scene = scene_of(state);
    const struct proto_make_channel make = make_of("ring", scene.lease, PROTO_MAKE_CHANNEL_KEEP);
    const struct proto_token tokens[2] = {token_of(1), token_of(2)};
    struct channel *channel;

    ask_to_join(scene.one, 1, "ring", 1);
    assert_int_equal(core_make_channel(scene.maker, &make, tokens, 0, &channel), 0);
    core_unmake_channel(channel, 0);
    assert_true(core_is_valid(scene.core));
    expect_no_name_answer(scene.core);
    assert_null(core_next_channel_gone(scene.core));
    assert_int_equal(scene.core->parcels.count, 0);
    assert_int_equal(used(scene.maker, QUOTA_KEPT), 0);
}

static void a_channel_is_charged_as_a_lease_and_as_kept_bytes(void **state) {
    struct scene scene = scene_of(state);
    struct lease *other = take_growing(scene.maker, scene.pool, 2 * MIB, 0);
    struct proto_make_channel make = make_of("more", other, PROTO_MAKE_CHANNEL_KEEP);
    struct channel *channel;
    static struct list link, second;

    limit_all(scene.core, QUOTA_KEPT, 3 * MIB, 0);
    make_channel(scene.maker, "ring", scene.lease, PROTO_MAKE_CHANNEL_KEEP, &link);
    assert_int_equal(used(scene.maker, QUOTA_KEPT), 2 * MIB);
    assert_int_equal(used(scene.maker, QUOTA_LEASES), 3);
    assert_int_equal(try_make(scene.maker, &make, &second, &channel), PROTO_E_LIMIT);
    assert_int_equal(unpublish(scene.one, "ring", 0, 0), 0);
    assert_int_equal(used(scene.maker, QUOTA_KEPT), 0);
    assert_int_equal(try_make(scene.maker, &make, &second, &channel), 0);
    limit_all(scene.core, QUOTA_LEASES, 3, 0);
    make = make_of("ring", scene.lease, 0);
    assert_int_equal(try_make(scene.maker, &make, &link, &channel), PROTO_E_LIMIT);
}

static void a_user_has_half_of_the_pages_at_most(void **state) {
    struct scene scene = scene_of(state);
    struct session *stranger = open_session(scene.core, 8, UID_B);
    struct lease *other = take_growing(scene.maker, scene.pool, 2 * MIB, 0),
                 *theirs = take_growing(stranger, scene.pool, 2 * MIB, 0);
    const struct proto_make_channel second = make_of("more", other, 0), more = make_of("more", theirs, 0);
    static struct list links[3];
    struct channel *channel;

    scene.core->channel_pages_limit = 10; /* a channel of two consumers has four */
    make_channel(scene.maker, "ring", scene.lease, 0, &links[0]);
    assert_int_equal(try_make(scene.maker, &second, &links[1], &channel), PROTO_E_LIMIT);
    make_channel(stranger, "ring", theirs, 0, &links[1]);
    assert_int_equal(try_make(stranger, &more, &links[2], &channel), PROTO_E_LIMIT);
    assert_int_equal(unpublish(scene.maker, "ring", 0, 0), 0);
    assert_int_equal(try_make(scene.maker, &second, &links[0], &channel), 0);
    assert_int_equal(unpublish(scene.maker, "more", 0, 0), 0);
    scene.core->channel_pages_limit = 7; /* fewer than two users have */
    assert_int_equal(try_make(scene.maker, &second, &links[0], &channel), PROTO_E_LIMIT);
}

/* A call without memory changes nothing, whichever allocation fails. */
static void without_memory_no_channel_is_made_or_joined(void **state) {
    struct scene scene = scene_of(state);
    const struct proto_make_channel make = make_of("ring", scene.lease, PROTO_MAKE_CHANNEL_KEEP);
    const struct proto_join_channel wish = {.name = "ring", .timeout_ns = NS_FOREVER, .place = 1};
    const struct proto_token tokens[2] = {token_of(1), token_of(2)};
    struct channel *channel = NULL;
    static struct list link;
    int r = -ENOMEM;

    for (unsigned n = 1; r != 0; n++) {
        memory_fail_nth(n);
        r = core_make_channel(scene.maker, &make, tokens, 0, &channel);
        assert_true(r == 0 || (r == -ENOMEM && memory_failed()));
        memory_fail_nth(0);
        if (r < 0) {
            assert_true(core_is_valid(scene.core));
            assert_int_equal(scene.core->parcels.count, 0);
            assert_null(name_find(scene.maker->tenant, "ring"));
        }
    }
    list_init(&link);
    core_channel_made(channel, &link);
    r = -ENOMEM;
    for (unsigned n = 1; r != 0; n++) {
        memory_fail_nth(n);
        r = core_join_channel(scene.one, 1, &wish, 0);
        assert_true(r == 0 || (r == -ENOMEM && memory_failed()));
        memory_fail_nth(0);
        assert_true(core_is_valid(scene.core));
    }
    expect_joined(scene.one, 1, channel, 1);
    expect_place(channel, 1, PROTO_CHANNEL_TAKEN, 0, 1);
}

/* --- ends --- */

static void a_channel_goes_with_its_last_place_after_its_end(void **state) {
    struct scene scene = scene_of(state);
    static struct list link;
    struct channel *channel = make_channel(scene.maker, "ring", scene.lease, PROTO_MAKE_CHANNEL_KEEP, &link);
    const uint64_t id = channel->id;

    join(scene.one, channel, 0, 0);
    join(scene.two, channel, 1, 1);
    assert_int_equal(unpublish(scene.maker, "ring", id + 1, 0), PROTO_E_NO_NAME);
    assert_int_equal(unpublish(scene.maker, "ring", id, 0), 0);
    assert_int_equal(used(scene.maker, QUOTA_KEPT), 0);
    ask_to_join(scene.maker, 1, "ring", 2); /* waits for another channel */
    expect_no_name_answer(scene.core);
    assert_int_equal(leave(scene.one, id, 0), 0);
    assert_null(core_next_channel_gone(scene.core));
    assert_int_equal(leave(scene.two, id, 1), 0);
    assert_ptr_equal(core_next_channel_gone(scene.core), &link);
    assert_int_equal(scene.core->parcels.count, 0);
    struct channel *next =
        make_channel(scene.one, "ring", take_growing(scene.one, scene.pool, 2 * MIB, 0), 0, &link);
    expect_joined(scene.maker, 1, next, 2);
}

static void a_channel_without_keep_ends_with_its_maker_and_its_sessions(void **state) {
    struct scene scene = scene_of(state);
    static struct list link, kept_link;
    struct lease *other = take_growing(scene.maker, scene.pool, 2 * MIB, 0);
    struct channel *channel = make_channel(scene.maker, "ring", scene.lease, 0, &link),
                   *kept = make_channel(scene.maker, "kept", other, PROTO_MAKE_CHANNEL_KEEP, &kept_link);

    join(scene.one, channel, 0, 0);
    lose_session(scene.maker, 0);
    assert_non_null(channel->session); /* until its GPU work is over */
    session_gone(scene.maker, 0);
    assert_null(channel->session);
    assert_null(core_next_channel_gone(scene.core));
    close_session(scene.one, 0);
    assert_ptr_equal(core_next_channel_gone(scene.core), &link);
    assert_null(name_find(scene.two->tenant, "ring"));
    join(scene.two, kept, 0, 0);
    close_session(scene.two, 0);
    assert_null(core_next_channel_gone(scene.core));
}

static void a_session_that_is_not_told_of_its_place_leaves_it_when_the_channel_ends(void **state) {
    struct scene scene = scene_of(state);
    static struct list link, next_link;
    struct lease *other = take_growing(scene.maker, scene.pool, 2 * MIB, 0);

    make_channel(scene.maker, "ring", scene.lease, PROTO_MAKE_CHANNEL_KEEP, &link);
    ask_to_join(scene.one, 1, "ring", 1);
    assert_int_equal(unpublish(scene.maker, "ring", 0, 0), 0);
    assert_ptr_equal(core_next_channel_gone(scene.core), &link);
    expect_no_name_answer(scene.core); /* it waits again */
    struct channel *next = make_channel(scene.maker, "ring", other, 0, &next_link);
    expect_joined(scene.one, 1, next, 1);
    expect_place(next, 1, PROTO_CHANNEL_TAKEN, 0, 1);
}

/* The first request got a place of a channel that has ended since. The second one has the place of that number in the
 * channel that came after. Each place has one request that is told of it. */
static void a_place_is_told_to_one_request(void **state) {
    struct scene scene = scene_of(state);
    static struct list link, next_link;
    struct lease *other = take_growing(scene.maker, scene.pool, 2 * MIB, 0);

    make_channel(scene.maker, "ring", scene.lease, 0, &link);
    ask_to_join(scene.one, 1, "ring", PROTO_CHANNEL_ANY_CONSUMER);
    assert_int_equal(unpublish(scene.maker, "ring", 0, 0), 0);
    struct channel *next = make_channel(scene.maker, "ring", other, 0, &next_link);
    ask_to_join(scene.one, 2, "ring", PROTO_CHANNEL_ANY_CONSUMER);
    expect_joined(scene.one, 2, next, 1); /* it came first to this channel */
    expect_joined(scene.one, 1, next, 2);
    expect_no_name_answer(scene.core);
}

static void a_channel_without_its_pages_ends_at_once(void **state) {
    struct scene scene = scene_of(state);
    static struct list link;
    struct channel *channel = make_channel(scene.maker, "ring", scene.lease, PROTO_MAKE_CHANNEL_KEEP, &link);

    join(scene.one, channel, 0, 0);
    ask_to_join(scene.two, 2, "ring", 1); /* is not told of it */
    core_lose_channel(channel, 0);
    assert_true(core_is_valid(scene.core));
    assert_ptr_equal(core_next_channel_gone(scene.core), &link);
    expect_no_name_answer(scene.core);
    assert_true(list_is_empty(&scene.one->places));
    assert_int_equal(used(scene.maker, QUOTA_KEPT), 0);
    close_session(scene.two, 0);
    assert_null(name_find(scene.one->tenant, "ring"));
}

/* --- successors --- */

#define MAKER 51
#define DYING 52

/* Channels with a place in each of its states, one that has ended, and requests for places. */
static void make_channels_scene(void) {
    struct core *core = core_make();
    struct estate estate;
    static struct list links[2];

    memset(memory, 0, sizeof memory);
    assert_int_equal(estate_make(&estate, memory, kept_kinds, KEPT_KINDS - 1, &owner), 0);
    assert_int_equal(core_keep(core, &estate), 0);
    add_pools(core, true);
    struct pool *pool = core_find_pool(core, 1);
    struct session *maker = open_session(core, MAKER, UID_A), *dying = open_session(core, DYING, UID_A),
                   *gone = open_session(core, 53, UID_A);
    struct proto_make_channel make =
        make_of("ring", take_growing(maker, pool, 2 * MIB, 0), PROTO_MAKE_CHANNEL_KEEP);
    struct channel *channel, *ended;
    make.n_consumers = 4;
    assert_int_equal(try_make(maker, &make, &links[0], &channel), 0);
    ended = make_channel(maker, "ended", take_growing(maker, pool, 2 * MIB, 0), 0, &links[1]);
    join(maker, channel, 0, 0);
    join(dying, channel, 1, 1);
    join(gone, channel, 2, 2);
    join(maker, channel, 3, 3);
    join(maker, ended, 0, 0);
    assert_int_equal(leave(maker, channel->id, 3), 0);
    assert_int_equal(unpublish(maker, "ended", 0, 0), 0);
    lose_session(dying, TIME_NS);
    lose_session(gone, TIME_NS);
    session_gone(gone, TIME_NS);
    ask_to_join(maker, 70, "ring", 1);
    ask_to_join(maker, 71, "ring", 4); /* the answer is not taken */
    estate_end_step(&estate);
    memcpy(whole, memory, sizeof whole);
    core->estate = NULL;
    estate_deinit(&estate);
    core_destroy(core);
}

static struct channel *nth_channel(const struct core *core, unsigned n) {
    list_for_each_entry(struct channel, channel, &core->channels, link) {
        if (n-- == 0)
            return channel;
    }
    fail_msg("a channel is missing");
    return NULL;
}

static struct session *session_of_pid(const struct core *core, pid_t pid) {
    list_for_each_entry(struct session, session, &core->sessions, link) {
        if (session->peer.pid == pid)
            return session;
    }
    fail_msg("a session is missing");
    return NULL;
}

static void a_successor_has_the_channels(void **state) {
    struct heir heir;

    (void)state;
    make_channels_scene();
    assert_int_equal(inherit(&heir, 0), 0);
    struct session *maker = session_of_pid(heir.core, MAKER);
    struct channel *channel = nth_channel(heir.core, 0), *ended = nth_channel(heir.core, 1);
    expect_place(channel, 0, PROTO_CHANNEL_TAKEN, 0, 1);
    expect_place(channel, 1, PROTO_CHANNEL_DYING, 0, 1);
    expect_place(channel, 2, PROTO_CHANNEL_VACANT, 0, 1);
    expect_place(channel, 3, PROTO_CHANNEL_LEFT, 0, 1);
    expect_place(channel, 4, PROTO_CHANNEL_TAKEN, 0, 1);
    expect_place(channel, 5, PROTO_CHANNEL_EMPTY, 0, 0);
    assert_ptr_equal(channel->session, maker);
    assert_int_equal(channel->capacities.n_consumers, 4);
    assert_int_equal(used(maker, QUOTA_KEPT), 2 * MIB);
    assert_null(ended->name);
    expect_joined(maker, 71, channel, 4);
    expect_no_name_answer(heir.core);
    session_gone(session_of_pid(heir.core, DYING), TIME_NS);
    expect_joined(maker, 70, channel, 1);
    assert_int_equal(leave(maker, ended->id, 0), 0);
    assert_int_equal(leave(maker, channel->id, 3), PROTO_E_STALE);
    use_and_end(&heir);
}

static void a_successor_without_memory_leaves_nothing(void **state) {
    struct heir heir = {0};
    int r = -ENOMEM;

    (void)state;
    make_channels_scene();
    for (unsigned n = 1; r != 0; n++) {
        memcpy(memory, whole, sizeof memory);
        r = inherit(&heir, n);
        if (r < 0)
            expect_nothing_left(&heir);
    }
    use_and_end(&heir);
}

static void impossible_channels_are_refused(void **state) {
    static const char numbers[] = "a channel has impossible numbers",
                      all[] = "its records contradict each other",
                      slots[] = "a channel has slots that are not there",
                      name[] = "a channel has another one's name",
                      maker[] = "a channel was made by a session that is not there",
                      place[] = "a place of a channel is taken by a session that is not there",
                      wait[] = "a request for a name is in no state";

    (void)state;
    make_channels_scene();
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, id), 0, numbers);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, id), UINT64_C(1) << 40, numbers);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, n_slots), 0, numbers);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, n_consumers), 17, numbers);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, policy), 9, numbers);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, flags), 2, numbers);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, slot_bytes), MIB, all);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, n_consumers), 3,
                          all); /* place 4 is taken */
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, block), 1 << 20, slots);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, name), 1 << 20, name);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, session), 1 << 20, maker);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, maker), 1 << 20, maker);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, places[0].session), 1 << 20, place);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, places[0].state), 5, place);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, places[0].session), 0, all);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, places[0].state), PROTO_CHANNEL_LEFT, all);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, places[1].state), PROTO_CHANNEL_TAKEN, all);
    expect_number_refused(KEPT_CHANNEL, ANY, MEMBER(kept_channel, places[0].last_session), 1 << 20, all);
    expect_twins_refused(KEPT_CHANNEL, MEMBER(kept_channel, id), numbers);
    expect_twins_refused(KEPT_CHANNEL, MEMBER(kept_channel, token), "two parcels have one token");
    expect_twins_refused(KEPT_CHANNEL, MEMBER(kept_channel, name), name);
    expect_number_refused(KEPT_NAME_WAIT, ANY, MEMBER(kept_name_wait, place), PROTO_CHANNEL_PLACES, wait);
    expect_number_refused(KEPT_NAME_WAIT, ANY, MEMBER(kept_name_wait, got), PROTO_CHANNEL_PLACES, wait);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(a_session_that_joins_gets_the_channel_and_its_memory),
        CORE_TEST(the_state_of_a_place_follows_its_sessions),
        CORE_TEST(a_place_that_holds_elements_comes_before_an_empty_one),
        CORE_TEST(requests_wait_for_a_place_in_their_order),
        CORE_TEST(a_wait_for_a_place_has_an_end),
        CORE_TEST(what_cannot_be_joined_or_opened_is_refused),
        CORE_TEST(places_and_pages_are_their_users_own),
        CORE_TEST(what_cannot_be_made_is_refused),
        CORE_TEST(a_channel_whose_pages_cannot_be_made_is_gone),
        CORE_TEST(a_channel_is_charged_as_a_lease_and_as_kept_bytes),
        CORE_TEST(a_user_has_half_of_the_pages_at_most),
        CORE_TEST(without_memory_no_channel_is_made_or_joined),
        CORE_TEST(a_channel_goes_with_its_last_place_after_its_end),
        CORE_TEST(a_channel_without_keep_ends_with_its_maker_and_its_sessions),
        CORE_TEST(a_session_that_is_not_told_of_its_place_leaves_it_when_the_channel_ends),
        CORE_TEST(a_place_is_told_to_one_request),
        CORE_TEST(a_channel_without_its_pages_ends_at_once),
        cmocka_unit_test(a_successor_has_the_channels),
        cmocka_unit_test(a_successor_without_memory_leaves_nothing),
        cmocka_unit_test(impossible_channels_are_refused),
    };
    return cmocka_run_group_tests_name("core channels", tests, NULL, NULL);
}
