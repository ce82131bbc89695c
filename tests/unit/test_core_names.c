/* SPDX-License-Identifier: Apache-2.0 */
/* Names: how editions are published, replaced and ended. Requests for names are in test_core_name_waits.c. */
#include <stdatomic.h>

#include "daemon/core/scope.h"
#include "names_fixture.h"

#define SLOT  7u
#define VALUE (proto_board_first(5) + 9) /* of the fences: in the epoch of the publisher's slot */

static struct proto_board_slot words; /* the publisher's */

struct scene {
    struct core *core;
    struct pool *pool;
    struct session *publisher, *reader;
    struct lease *lease;
};

/* A publisher with a lease of 2 MiB and a slot on the board, and another session of its user. */
static struct scene scene_of(void **state) {
    struct scene scene = {.core = *state};

    memset(&words, 0, sizeof words);
    atomic_store(&words.words[1], proto_board_first(5));
    scene.pool = add_pool(scene.core, 16 * MIB, 2 * MIB, 0);
    scene.publisher = open_with_page(scene.core, 1, UID_A);
    scene.reader = open_session(scene.core, 2, UID_A);
    core_session_set_board(scene.publisher, SLOT, &words);
    scene.lease = take_growing(scene.publisher, scene.pool, 2 * MIB, 0);
    return scene;
}

/* The publisher's lease as "a", with KEEP, behind the fence. */
static struct wish kept_behind_fence(const struct scene *scene) {
    return (struct wish){.name = "a",
                         .leases = {scene->lease},
                         .count = 1,
                         .flags = PROTO_PUBLISH_KEEP,
                         .has_fence = true,
                         .fence_value = VALUE};
}

/* Begins anew, for a test of several cases. */
static void end_scene(const struct scene *scene, void **state) {
    core_destroy(scene->core);
    *state = core_make();
}

/* --- what readers get --- */

static void a_name_stands_for_blocks_and_a_directory(void **state) {
    struct scene scene = scene_of(state);
    struct lease *second = take_growing(scene.publisher, scene.pool, MIB + 5, 0), *attached;
    const struct wish wish = {.name = "model/a",
                              .leases = {scene.lease, second},
                              .count = 2,
                              .flags = PROTO_PUBLISH_LIVE,
                              .layout = 77,
                              .directory_bytes = 9,
                              .has_fence = true,
                              .fence_value = VALUE};
    uint64_t generation;

    assert_int_equal(write_directory(scene.publisher, 0, "directory", 9), 0);
    assert_int_equal(publish(scene.publisher, &wish, &generation), 0);
    struct proto_named named = open_now(scene.reader, "model/a", generation);
    assert_int_equal(named.flags, PROTO_PUBLISH_LIVE);
    assert_int_equal(named.layout, 77);
    assert_int_equal(named.session, scene.publisher->id);
    assert_int_equal(named.count, 2);
    assert_int_equal(named.directory_bytes, 9);
    assert_int_equal(named.buffers[0].size_bytes, 2 * MIB);
    assert_int_equal(named.buffers[1].size_bytes, MIB + 5);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(named.buffers[i].pool, scene.pool->id);
        assert_int_equal(named.buffers[i].has_fence, 1);
        assert_int_equal(named.buffers[i].fence.slot, SLOT);
        assert_int_equal(named.buffers[i].fence.value, VALUE);
    }
    assert_int_equal(named.buffers[2].size_bytes, 0);
    for (unsigned i = 0; i < 20; i++) { /* as often as sessions like */
        assert_int_equal(attach_to(scene.reader, &named.buffers[1].token, &attached), 0);
        assert_ptr_equal(attached->block, second->block);
        assert_int_equal(release(scene.reader, name_of(attached), 0), 0);
    }
    assert_int_equal(attach_to(scene.reader, &named.buffers[0].token, &attached), 0);
    assert_ptr_equal(attached->block, scene.lease->block);
}

/* A second session of the publisher's user reads; those of others do not learn that the name is there. */
static void names_are_their_users_own(void **state) {
    struct scene scene = scene_of(state);
    struct session *stranger = open_session(scene.core, 3, UID_B);
    uint64_t generation = publish_one(scene.publisher, "a", scene.lease, PROTO_PUBLISH_KEEP);
    struct proto_named named = open_now(scene.reader, "a", generation);
    struct lease *attached;
    struct proto_names names;

    expect_nothing(stranger, "a");
    assert_int_equal(attach_to(stranger, &named.buffers[0].token, &attached), PROTO_E_NO_TOKEN);
    assert_int_equal(unpublish(stranger, "a", 0, 0), PROTO_E_NO_NAME);
    core_list_names(stranger, 0, &names);
    assert_int_equal(names.count, 0);
    struct lease *own = take_growing(stranger, scene.pool, MIB, 0);
    uint64_t theirs = publish_one(stranger, "a", own, 0);
    assert_true(theirs > generation);
    open_now(scene.reader, "a", generation);
    open_now(stranger, "a", theirs);
}

static void the_blocks_outlive_the_publishers_leases(void **state) {
    struct scene scene = scene_of(state);
    uint64_t generation = publish_one(scene.publisher, "a", scene.lease, 0);
    struct lease *attached;

    assert_int_equal(release(scene.publisher, name_of(scene.lease), 0), 0);
    assert_int_equal(scene.pool->leased_bytes, 2 * MIB);
    struct proto_named named = open_now(scene.reader, "a", generation);
    assert_int_equal(attach_to(scene.reader, &named.buffers[0].token, &attached), 0);
    assert_int_equal(unpublish(scene.reader, "a", 0, 0), 0); /* any session of the user may */
    assert_int_equal(attach_to(scene.reader, &named.buffers[0].token, &attached), PROTO_E_NO_TOKEN);
    assert_int_equal(scene.pool->leased_bytes, 2 * MIB); /* the reader has it */
    expect_nothing(scene.reader, "a");
    close_session(scene.reader, 0);
    assert_int_equal(scene.pool->leased_bytes, 0);
}

/* --- replacing and withdrawing --- */

static void what_is_published_replaces_what_was(void **state) {
    struct scene scene = scene_of(state);
    struct lease *next = take_growing(scene.reader, scene.pool, MIB, 0), *attached;
    uint64_t first = publish_one(scene.publisher, "a", scene.lease, 0);
    struct proto_named before = open_now(scene.reader, "a", first);

    assert_int_equal(attach_to(scene.reader, &before.buffers[0].token, &attached), 0);
    uint64_t second = publish_one(scene.reader, "a", next, 0);
    assert_true(second > first);
    assert_int_equal(open_now(scene.publisher, "a", second).session, scene.reader->id);
    assert_int_equal(scene.pool->n_parcels, 1);
    struct lease *late;
    assert_int_equal(attach_to(scene.reader, &before.buffers[0].token, &late), PROTO_E_NO_TOKEN);
    assert_int_equal(query(scene.reader, attached).size_bytes, 2 * MIB); /* the old one is still mapped */
    close_session(scene.publisher, 0);                                   /* not its edition any more */
    open_now(scene.reader, "a", second);
}

/* With other contents. The blocks are never without a holder. */
static void the_same_blocks_are_published_again(void **state) {
    struct scene scene = scene_of(state);
    uint64_t first = publish_one(scene.publisher, "a", scene.lease, 0);

    assert_int_equal(
        release(scene.reader, (struct proto_lease_name){scene.lease->id, scene.lease->generation}, 0),
        PROTO_E_STALE);
    uint64_t second = publish_one(scene.publisher, "a", scene.lease, 0);
    uint64_t other = publish_one(scene.publisher, "b", scene.lease, 0);
    assert_true(first < second && second < other);
    assert_int_equal(scene.lease->block->n_parcels, 2);
    open_now(scene.reader, "a", second);
    open_now(scene.reader, "b", other);
}

static void only_the_generation_that_is_meant_is_withdrawn(void **state) {
    struct scene scene = scene_of(state);
    uint64_t first = publish_one(scene.publisher, "a", scene.lease, 0);
    uint64_t second = publish_one(scene.publisher, "a", scene.lease, 0);

    assert_int_equal(unpublish(scene.publisher, "a", first, 0), PROTO_E_NO_NAME);
    assert_int_equal(unpublish(scene.publisher, "b", 0, 0), PROTO_E_NO_NAME);
    open_now(scene.reader, "a", second);
    assert_int_equal(unpublish(scene.publisher, "a", second, 0), 0);
    assert_int_equal(unpublish(scene.publisher, "a", 0, 0), PROTO_E_NO_NAME);
    assert_int_equal(scene.publisher->tenant->n_names, 0);
}

static void an_operator_withdraws_a_name(void **state) {
    struct scene scene = scene_of(state);
    const struct tenant_id owner = {.uid = UID_A}, other = {.uid = UID_B};

    publish_one(scene.publisher, "a", scene.lease, PROTO_PUBLISH_KEEP);
    assert_int_equal(core_unpublish_of(scene.core, other, "a", 0), PROTO_E_NO_NAME);
    assert_int_equal(core_unpublish_of(scene.core, owner, "b", 0), PROTO_E_NO_NAME);
    assert_int_equal(core_unpublish_of(scene.core, owner, "a", 0), 0);
    assert_true(core_is_valid(scene.core));
    assert_int_equal(core_unpublish_of(scene.core, owner, "a", 0), PROTO_E_NO_NAME);
    assert_int_equal(used(scene.publisher, QUOTA_KEPT), 0);
}

static void a_layout_may_be_the_condition(void **state) {
    struct scene scene = scene_of(state);
    struct wish wish = {
        .name = "a", .leases = {scene.lease}, .count = 1, .layout = 4, .flags = PROTO_PUBLISH_SAME_LAYOUT};
    uint64_t generation;

    assert_int_equal(publish(scene.publisher, &wish, NULL), PROTO_E_INVALID); /* nothing is there */
    wish.flags = 0;
    assert_int_equal(publish(scene.publisher, &wish, &generation), 0);
    wish.flags = PROTO_PUBLISH_SAME_LAYOUT;
    wish.layout = 5;
    assert_int_equal(publish(scene.publisher, &wish, NULL), PROTO_E_INVALID);
    open_now(scene.reader, "a", generation);
    wish.layout = 4;
    assert_int_equal(publish(scene.publisher, &wish, &generation), 0);
    assert_int_equal(open_now(scene.reader, "a", generation).flags, 0); /* the condition is no property */
}

/* A token of an edition is no parcel's for a user, and its end is the edition's alone. */
static void parts_of_editions_are_not_revoked(void **state) {
    struct scene scene = scene_of(state);
    uint64_t generation = publish_one(scene.publisher, "a", scene.lease, 0), bytes;
    struct proto_named named = open_now(scene.reader, "a", generation);

    assert_int_equal(core_revoke(scene.reader, &named.buffers[0].token, 0), PROTO_E_NO_TOKEN);
    assert_int_equal(core_revoke_all(scene.core, 0, 0, &bytes), 0);
    assert_int_equal(core_revoke_all(scene.core, scene.publisher->id, 0, &bytes), 0);
    tick(scene.core, NS_FOREVER - 1);
    open_now(scene.reader, "a", generation);
    assert_int_equal(core_next_tick_ns(scene.core), NS_FOREVER);
}

/* --- what cannot be published --- */

static void what_cannot_be_published_is_refused(void **state) {
    struct scene scene = scene_of(state);
    struct lease *torn = take_growing(scene.publisher, scene.pool, MIB, 0);
    const struct wish wish = {.name = "a", .leases = {scene.lease}, .count = 1};
    struct proto_publish message = publish_of(scene.publisher, &wish);

    message.buffers[0].size_bytes = 2 * MIB + 1;
    assert_int_equal(publish_message(scene.publisher, &message, NULL), PROTO_E_INVALID);
    message.buffers[0].size_bytes = MIB;
    message.buffers[0].generation++;
    assert_int_equal(publish_message(scene.publisher, &message, NULL), PROTO_E_STALE);
    message.buffers[0].generation--;
    assert_int_equal(publish_message(scene.reader, &message, NULL), PROTO_E_STALE);
    message.buffers[0].has_fence = 1;
    message.buffers[0].fence = (struct proto_board_fence){SLOT + 1, 0, VALUE};
    assert_int_equal(publish_message(scene.publisher, &message, NULL), PROTO_E_INVALID);
    struct session *slotless = open_session(scene.core, 5, UID_A);
    const struct wish theirs = {
        .name = "a", .leases = {take_growing(slotless, scene.pool, MIB, 0)}, .count = 1};
    struct proto_publish from_slotless = publish_of(slotless, &theirs);
    from_slotless.buffers[0].has_fence = 1;
    for (unsigned i = 0; i < 2; i++) {
        from_slotless.buffers[0].fence = (struct proto_board_fence){i == 0 ? SLOT : UINT32_MAX, 0, VALUE};
        assert_int_equal(publish_message(slotless, &from_slotless, NULL), PROTO_E_INVALID);
    }
    assert_int_equal(release_part(scene.publisher, name_of(torn), 0, 512 * KIB, 0), 0);
    const struct wish of_torn = {.name = "a", .leases = {scene.lease, torn}, .count = 2};
    assert_int_equal(publish(scene.publisher, &of_torn, NULL), PROTO_E_INVALID);
    message = publish_of(scene.publisher, &wish);
    message.directory_bytes = 1; /* none was written */
    assert_int_equal(publish_message(scene.publisher, &message, NULL), PROTO_E_STALE);

    assert_int_equal(scene.core->parcels.count, 0);
    assert_int_equal(scene.publisher->tenant->n_names, 0);
    assert_int_equal(scene.lease->block->size_bytes, 2 * MIB);
    assert_false(scene.lease->block->shared);
}

static void a_block_has_the_size_that_readers_are_told(void **state) {
    struct scene scene = scene_of(state);
    const struct wish wish = {.name = "a", .leases = {scene.lease}, .count = 1};
    struct proto_publish message = publish_of(scene.publisher, &wish);
    uint64_t generation;

    message.buffers[0].size_bytes = 1000;
    assert_int_equal(publish_message(scene.publisher, &message, &generation), 0);
    assert_int_equal(open_now(scene.reader, "a", generation).buffers[0].size_bytes, 1000);
    assert_int_equal(query(scene.publisher, scene.lease).size_bytes, 1000);
    assert_int_equal(query(scene.publisher, scene.lease).capacity_bytes, 2 * MIB);
}

/* --- directories --- */

static int read_at(struct session *session, const char *name, uint64_t generation, uint32_t offset_bytes,
                   struct proto_directory_part *ret_part) {
    struct proto_read_directory read = {.generation = generation, .offset_bytes = offset_bytes};

    snprintf(read.name, sizeof read.name, "%s", name);
    return core_read_directory(session, &read, ret_part);
}

/* As large as one can be: each part is read as it was written. */
static void a_directory_is_read_in_parts(void **state) {
    static char bytes[PROTO_DIRECTORY_BYTES_MAX], read[PROTO_DIRECTORY_BYTES_MAX];
    struct scene scene = scene_of(state);
    struct wish wish = {.name = "a", .leases = {scene.lease}, .count = 1, .directory_bytes = sizeof bytes};
    struct proto_directory_part part;
    uint64_t generation;
    uint32_t size;

    for (uint32_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 2654435761u >> 24);
    for (uint32_t at = 0; at < sizeof bytes; at += size) {
        size = sizeof bytes - at < 15000 ? (uint32_t)sizeof bytes - at : 15000;
        assert_int_equal(write_directory(scene.publisher, at, bytes + at, size), 0);
    }
    assert_int_equal(used(scene.publisher, QUOTA_REPLIES), sizeof bytes);
    assert_int_equal(publish(scene.publisher, &wish, &generation), 0);
    assert_int_equal(used(scene.publisher, QUOTA_REPLIES), sizeof bytes); /* as long as it is published */
    for (uint32_t at = 0; at < sizeof bytes; at += part.n_bytes) {
        assert_int_equal(read_at(scene.reader, "a", generation, at, &part), 0);
        assert_int_equal(part.offset_bytes, at);
        assert_true(part.n_bytes > 0 && at + part.n_bytes <= sizeof bytes);
        memcpy(read + at, part.bytes, part.n_bytes);
    }
    assert_memory_equal(read, bytes, sizeof bytes);
    assert_int_equal(read_at(scene.reader, "a", generation, sizeof bytes, &part), PROTO_E_INVALID);
    assert_int_equal(read_at(scene.reader, "b", generation, 0, &part), PROTO_E_NO_NAME);
    assert_int_equal(read_at(scene.reader, "a", generation + 1, 0, &part), PROTO_E_STALE);
    wish.directory_bytes = 0; /* the draft was used up */
    assert_int_equal(publish(scene.publisher, &wish, &generation), 0);
    assert_int_equal(used(scene.publisher, QUOTA_REPLIES), 0);
    assert_int_equal(read_at(scene.reader, "a", generation - 1, 0, &part), PROTO_E_STALE);
    assert_int_equal(read_at(scene.reader, "a", generation, 0, &part), PROTO_E_INVALID);
}

static void a_draft_is_written_in_order_and_begins_anew_at_0(void **state) {
    struct scene scene = scene_of(state);
    struct wish wish = {.name = "a", .leases = {scene.lease}, .count = 1, .directory_bytes = 6};
    struct proto_directory_part part;
    uint64_t generation;

    assert_int_equal(write_directory(scene.publisher, 1, "x", 1), PROTO_E_INVALID);
    assert_int_equal(write_directory(scene.publisher, 0, "wrong", 5), 0);
    assert_int_equal(write_directory(scene.publisher, 4, "x", 1), PROTO_E_INVALID);
    assert_int_equal(write_directory(scene.publisher, 6, "x", 1), PROTO_E_INVALID);
    assert_int_equal(publish(scene.publisher, &wish, NULL), PROTO_E_STALE); /* the draft stays */
    assert_int_equal(write_directory(scene.publisher, 0, "new", 3), 0);
    assert_int_equal(write_directory(scene.publisher, 3, "one", 3), 0);
    assert_int_equal(write_directory(scene.reader, 0, "another session's", 17), 0);
    assert_int_equal(publish(scene.publisher, &wish, &generation), 0);
    assert_int_equal(read_at(scene.reader, "a", generation, 2, &part), 0);
    assert_int_equal(part.n_bytes, 4);
    assert_memory_equal(part.bytes, "wone", 4);
}

static void a_draft_is_charged_and_ends_with_its_session(void **state) {
    struct scene scene = scene_of(state);

    limit_all(scene.core, QUOTA_REPLIES, 100, 0);
    assert_int_equal(write_directory(scene.publisher, 0, (char[60]){0}, 60), 0);
    assert_int_equal(write_directory(scene.publisher, 60, (char[41]){0}, 41), PROTO_E_LIMIT);
    assert_int_equal(scene.publisher->tenant->quota.n_refusals, 1);
    assert_int_equal(write_directory(scene.reader, 0, (char[40]){0}, 40), 0);
    lose_session(scene.publisher, 0);
    assert_int_equal(used(scene.reader, QUOTA_REPLIES), 40);
    close_session(scene.reader, 0);
    session_gone(scene.publisher, 0);
}

/* --- ends of the publisher --- */

static void what_is_not_kept_ends_with_its_publisher(void **state) {
    for (unsigned dies = 0; dies < 2; dies++) {
        struct scene scene = scene_of(state);
        publish_one(scene.publisher, "a", scene.lease, 0);
        if (dies)
            lose_session(scene.publisher, 0);
        else
            close_session(scene.publisher, 0);
        expect_nothing(scene.reader, "a"); /* at once: also while the process may still be there */
        assert_int_equal(scene.core->parcels.count, 0);
        assert_int_equal(scene.pool->quarantined_bytes, dies ? 2 * MIB : 0);
        if (dies)
            session_gone(scene.publisher, 0);
        end_scene(&scene, state);
    }
}

static void what_is_kept_outlives_its_publisher(void **state) {
    for (unsigned dies = 0; dies < 2; dies++) {
        struct scene scene = scene_of(state);
        uint64_t generation = publish_one(scene.publisher, "a", scene.lease, PROTO_PUBLISH_KEEP);
        uint64_t publisher = scene.publisher->id;
        struct lease *attached;

        if (dies)
            lose_session(scene.publisher, 0);
        else
            close_session(scene.publisher, 0);
        open_now(scene.reader, "a", generation);
        if (dies)
            session_gone(scene.publisher, 0);
        struct proto_named named = open_now(scene.reader, "a", generation);
        assert_int_equal(named.session, publisher);
        assert_int_equal(attach_to(scene.reader, &named.buffers[0].token, &attached), 0);
        close_session(scene.reader, 0);
        assert_true(core_has_tenant(scene.core, (struct tenant_id){.uid = UID_A}));
        struct session *later = open_session(scene.core, 9, UID_A);
        open_now(later, "a", generation);
        end_scene(&scene, state);
    }
}

/* KEEP, with a fence: the contents are there when the word has reached its value. how: 0: it did; 1: not quite, and the
 * session says farewell, behind all its work; 2: not quite, and the process dies. */
static void contents_that_never_came_are_not_kept(void **state) {
    for (unsigned how = 0; how < 3; how++) {
        struct scene scene = scene_of(state);
        const struct wish wish = kept_behind_fence(&scene);
        uint64_t generation;

        assert_int_equal(publish(scene.publisher, &wish, &generation), 0);
        atomic_store(&words.words[1], how == 0 ? VALUE : VALUE - 1);
        if (how == 1) {
            close_session(scene.publisher, 0);
        } else {
            lose_session(scene.publisher, 0);
            assert_int_equal(open_now(scene.reader, "a", generation).buffers[0].has_fence, 1);
            session_gone(scene.publisher, 0);
        }
        if (how == 2) {
            expect_nothing(scene.reader, "a");
            assert_int_equal(scene.pool->leased_bytes, 0);
            assert_int_equal(used(scene.reader, QUOTA_KEPT), 0);
        } else {
            struct proto_named named = open_now(scene.reader, "a", generation);
            assert_int_equal(named.buffers[0].has_fence, 0);
            assert_int_equal(named.buffers[0].fence.slot + named.buffers[0].fence.value, 0);
        }
        end_scene(&scene, state);
    }
}

/* Without the words nothing is known of the work. */
static void without_its_words_a_fence_was_not_reached(void **state) {
    struct scene scene = scene_of(state);
    const struct wish wish = kept_behind_fence(&scene);

    assert_int_equal(publish(scene.publisher, &wish, NULL), 0);
    atomic_store(&words.words[1], VALUE);
    scene.publisher->board_words = NULL;
    lose_session(scene.publisher, 0);
    session_gone(scene.publisher, 0);
    expect_nothing(scene.reader, "a");
}

/* The edition of the dead session was replaced meanwhile, or withdrawn. */
static void the_end_of_a_publisher_leaves_later_editions_alone(void **state) {
    for (unsigned is_replaced = 0; is_replaced < 2; is_replaced++) {
        struct scene scene = scene_of(state);
        const struct wish wish = kept_behind_fence(&scene);
        struct lease *own = take_growing(scene.reader, scene.pool, MIB, 0);

        assert_int_equal(publish(scene.publisher, &wish, NULL), 0);
        lose_session(scene.publisher, 0);
        uint64_t second = is_replaced ? publish_one(scene.reader, "a", own, 0) : 0;
        if (!is_replaced)
            assert_int_equal(unpublish(scene.reader, "a", 0, 0), 0);
        session_gone(scene.publisher, 0);
        if (is_replaced)
            open_now(scene.reader, "a", second);
        else
            expect_nothing(scene.reader, "a");
        end_scene(&scene, state);
    }
}

static void names_end_with_the_daemon_or_their_scope(void **state) {
    struct scene scene = scene_of(state);
    struct scope_terms terms = {.id = 7, .name = "pod"};
    struct scope *scope;
    const struct peer peer = {.pid = 7, .uid = UID_A, .scope = 7};
    struct session *session = NULL;

    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        terms.limits[item] = POLICY_UNSET;
    assert_int_equal(scope_add(scene.core, &terms, &scope), 0);
    assert_int_equal(core_session_open(scene.core, &peer, 0, &session), 0);
    publish_one(session, "a", take_growing(session, scene.pool, MIB, 0), PROTO_PUBLISH_KEEP);
    uint64_t generation = publish_one(scene.publisher, "a", scene.lease, PROTO_PUBLISH_KEEP);
    core_scope_drop(scope, 0);
    assert_true(core_is_valid(scene.core));
    assert_int_equal(session->tenant->n_names, 1); /* while a session is there */
    close_session(session, 0);
    retire_all(scene.core, 0);
    open_now(scene.reader, "a", generation);
    close_session(scene.publisher, 0);
    publish_one(scene.reader, "b", take_growing(scene.reader, scene.pool, MIB, 0), 0);
    core_unpublish_all(scene.core, 0);
    assert_true(core_is_valid(scene.core));
    assert_int_equal(scene.core->parcels.count, 0);
    expect_nothing(scene.reader, "a");
}

/* --- limits --- */

static void a_user_keeps_so_many_bytes_and_no_more(void **state) {
    struct scene scene = scene_of(state);
    struct lease *second = take_growing(scene.publisher, scene.pool, 2 * MIB, 0);
    const struct wish other = {.name = "b", .leases = {second}, .count = 1, .flags = PROTO_PUBLISH_KEEP},
                      larger = {.name = "a",
                                .leases = {scene.lease, second},
                                .count = 2,
                                .flags = PROTO_PUBLISH_KEEP},
                      loose = {.name = "b", .leases = {second}, .count = 1};

    limit_all(scene.core, QUOTA_KEPT, 3 * MIB, 0);
    publish_one(scene.publisher, "a", scene.lease, PROTO_PUBLISH_KEEP);
    assert_int_equal(used(scene.publisher, QUOTA_KEPT), 2 * MIB);
    assert_int_equal(publish(scene.publisher, &other, NULL), PROTO_E_LIMIT);
    assert_int_equal(publish(scene.publisher, &larger, NULL), PROTO_E_LIMIT);
    assert_int_equal(scene.publisher->tenant->quota.n_refusals, 2);
    assert_int_equal(publish(scene.publisher, &loose, NULL), 0); /* nothing is kept of it */
    uint64_t again =
        publish_one(scene.publisher, "a", second, PROTO_PUBLISH_KEEP); /* in the place of its own */
    assert_int_equal(used(scene.publisher, QUOTA_KEPT), 2 * MIB);
    limit_all(scene.core, QUOTA_KEPT, MIB, 0); /* takes nothing away */
    open_now(scene.reader, "a", again);
    publish_one(scene.publisher, "a", second,
                PROTO_PUBLISH_KEEP); /* and the bytes are not more than before */
    close_session(scene.publisher, 0);
    assert_int_equal(used(scene.reader, QUOTA_KEPT), 2 * MIB);
    assert_int_equal(unpublish(scene.reader, "a", 0, 0), 0);
    assert_int_equal(used(scene.reader, QUOTA_KEPT), 0);
}

static void what_is_published_counts_as_leases_of_its_user(void **state) {
    struct scene scene = scene_of(state);
    struct lease *second = take_growing(scene.publisher, scene.pool, MIB, 0);
    const struct wish one = {.name = "a", .leases = {scene.lease}, .count = 1},
                      two = {.name = "a", .leases = {scene.lease, second}, .count = 2},
                      other = {.name = "b", .leases = {second}, .count = 1};

    limit_all(scene.core, QUOTA_LEASES, 3, 0);
    assert_int_equal(publish(scene.publisher, &two, NULL), PROTO_E_LIMIT);
    assert_int_equal(publish(scene.publisher, &one, NULL), 0);
    assert_int_equal(used(scene.publisher, QUOTA_LEASES), 3);
    assert_int_equal(publish(scene.publisher, &other, NULL), PROTO_E_LIMIT);
    assert_int_equal(publish(scene.publisher, &two, NULL), PROTO_E_LIMIT);
    assert_int_equal(publish(scene.publisher, &one, NULL), 0); /* in its own place */
    limit_all(scene.core, QUOTA_LEASES, QUOTA_UNLIMITED, 0);
    scene.publisher->tenant->n_parcels += PARCELS_MAX; /* as if: the validators would not agree */
    const struct proto_publish message = publish_of(scene.publisher, &other);
    const struct proto_token tokens[2] = {token_of(1), token_of(2)};
    uint64_t generation;
    assert_int_equal(core_publish(scene.publisher, &message, tokens, 0, &generation), PROTO_E_LIMIT);
    scene.publisher->tenant->n_parcels -= PARCELS_MAX;
}

static void a_user_has_so_many_names_and_no_more(void **state) {
    struct scene scene = scene_of(state);
    struct wish wish = {.leases = {scene.lease}, .count = 1};
    struct proto_names names;
    char text[32];
    uint64_t after = 0;
    unsigned n = 0, n_answers = 0;

    for (unsigned i = 0; i < NAMES_MAX; i++) { /* the helpers would walk the core each time */
        struct proto_publish message;
        struct proto_token tokens[2] = {{{1}}, {{2}}};
        uint64_t generation;
        snprintf(text, sizeof text, "name-%u", i);
        wish.name = text;
        message = publish_of(scene.publisher, &wish);
        memcpy(tokens[0].bytes + 4, &i, sizeof i);
        memcpy(tokens[1].bytes + 4, &i, sizeof i);
        assert_int_equal(core_publish(scene.publisher, &message, tokens, 0, &generation), 0);
    }
    wish.name = "one more";
    assert_int_equal(publish(scene.publisher, &wish, NULL), PROTO_E_LIMIT);
    assert_int_equal(try_open(scene.reader, 1, "one more", 0, 0, NS_FOREVER, 0), PROTO_E_LIMIT);
    assert_int_equal(scene.publisher->tenant->quota.n_refusals, 2);
    wish.name = "name-7"; /* one that is there */
    assert_int_equal(publish(scene.publisher, &wish, NULL), 0);
    do {
        core_list_names(scene.reader, after, &names);
        for (unsigned i = 0; i < names.count; i++) {
            assert_true(names.names[i].id > after);
            after = names.names[i].id;
            n++;
        }
        assert_int_equal(names.n_left, NAMES_MAX - n);
        n_answers++;
    } while (names.n_left > 0);
    assert_int_equal(n, NAMES_MAX);
    assert_int_equal(n_answers, NAMES_MAX / PROTO_NAMES_PER_MESSAGE);
    core_list_names(scene.reader, after, &names);
    assert_int_equal(names.count, 0);
    close_session(scene.publisher, 0);
    assert_int_equal(scene.reader->tenant->n_names, 0);
}

static void names_are_listed_as_they_are(void **state) {
    struct scene scene = scene_of(state);
    struct lease *second = take_growing(scene.publisher, scene.pool, MIB, 0);
    const struct wish wish = {.name = "two",
                              .leases = {scene.lease, second},
                              .count = 2,
                              .flags = PROTO_PUBLISH_KEEP | PROTO_PUBLISH_LIVE,
                              .layout = 9};
    struct proto_names names;
    uint64_t generation;

    assert_int_equal(publish(scene.publisher, &wish, &generation), 0);
    open_name(scene.reader, 1, "built", 0, PROTO_OPEN_NAME_BUILD);
    expect_state(scene.core, scene.reader, 1, PROTO_NAME_BUILD);
    open_name(scene.publisher, 2, "awaited", 0, 0);
    core_list_names(scene.reader, 0, &names);
    assert_int_equal(names.count, 3);
    assert_int_equal(names.n_left, 0);
    assert_string_equal(names.names[0].name, "two");
    assert_int_equal(names.names[0].generation, generation);
    assert_int_equal(names.names[0].bytes, 3 * MIB);
    assert_int_equal(names.names[0].layout, 9);
    assert_int_equal(names.names[0].session, scene.publisher->id);
    assert_int_equal(names.names[0].flags, wish.flags);
    assert_int_equal(names.names[0].count, 2);
    assert_string_equal(names.names[1].name, "built");
    assert_int_equal(names.names[1].generation, 0);
    assert_int_equal(names.names[1].session, scene.reader->id);
    assert_string_equal(names.names[2].name, "awaited");
    assert_int_equal(names.names[2].session, 0);
    core_list_names(scene.reader, names.names[0].id, &names);
    assert_int_equal(names.count, 2);
}

/* Texts of one hash are different names: these two are a known collision of FNV-1a of 64 bits. */
static void names_of_one_hash_are_different(void **state) {
    struct scene scene = scene_of(state);
    static const char *const texts[] = {"8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ"};

    uint64_t first = publish_one(scene.publisher, texts[0], scene.lease, 0);
    expect_nothing(scene.reader, texts[1]);
    uint64_t second = publish_one(scene.publisher, texts[1], scene.lease, 0);
    assert_int_equal(name_find(scene.reader->tenant, texts[0])->text_node.key,
                     name_find(scene.reader->tenant, texts[1])->text_node.key);
    open_now(scene.reader, texts[0], first);
    assert_int_equal(unpublish(scene.reader, texts[0], 0, 0), 0);
    open_now(scene.reader, texts[1], second);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CORE_TEST(a_name_stands_for_blocks_and_a_directory),
        CORE_TEST(names_are_their_users_own),
        CORE_TEST(the_blocks_outlive_the_publishers_leases),
        CORE_TEST(what_is_published_replaces_what_was),
        CORE_TEST(the_same_blocks_are_published_again),
        CORE_TEST(only_the_generation_that_is_meant_is_withdrawn),
        CORE_TEST(an_operator_withdraws_a_name),
        CORE_TEST(a_layout_may_be_the_condition),
        CORE_TEST(parts_of_editions_are_not_revoked),
        CORE_TEST(what_cannot_be_published_is_refused),
        CORE_TEST(a_block_has_the_size_that_readers_are_told),
        CORE_TEST(a_directory_is_read_in_parts),
        CORE_TEST(a_draft_is_written_in_order_and_begins_anew_at_0),
        CORE_TEST(a_draft_is_charged_and_ends_with_its_session),
        CORE_TEST(what_is_not_kept_ends_with_its_publisher),
        CORE_TEST(what_is_kept_outlives_its_publisher),
        CORE_TEST(contents_that_never_came_are_not_kept),
        CORE_TEST(without_its_words_a_fence_was_not_reached),
        CORE_TEST(the_end_of_a_publisher_leaves_later_editions_alone),
        CORE_TEST(names_end_with_the_daemon_or_their_scope),
        CORE_TEST(a_user_keeps_so_many_bytes_and_no_more),
        CORE_TEST(what_is_published_counts_as_leases_of_its_user),
        CORE_TEST(a_user_has_so_many_names_and_no_more),
        CORE_TEST(names_are_listed_as_they_are),
        CORE_TEST(names_of_one_hash_are_different),
    };
    return cmocka_run_group_tests_name("core names", tests, NULL, NULL);
}
