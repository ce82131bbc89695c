/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core without memory: one scenario through all of its calls, played again and again, in which the n-th
 * allocation fails, for every n there is. Whatever fails says so and changes nothing: the same call works
 * when it is made again, and at the end nothing is left (core_free asserts it, the sanitizer's leak check
 * sees it).
 */
#include <errno.h>

#include "core_fixture.h"
#include "tests/failing_memory.h"

/* Walks the core after every call that had a failure in it, and after some of the others, which other tests
 * walk. */
static bool still_valid(const struct core *core, bool failed_before) {
    static unsigned calls;
    return (memory_failed() == failed_before && calls++ % 32 != 0) || core_is_valid(core);
}

/* Makes a call that may fail once, for want of memory and for that only; then again. */
#define twice(core_, call)                                                                                   \
    do {                                                                                                     \
        bool before_ = memory_failed();                                                                      \
        int r_ = (call);                                                                                     \
        assert_true((core_) == NULL || still_valid(core_, before_));                                         \
        if (r_ != 0) {                                                                                       \
            assert_int_equal(r_, -ENOMEM);                                                                   \
            assert_true(memory_failed() && !before_);                                                        \
            assert_int_equal((call), 0);                                                                     \
            assert_true((core_) == NULL || core_is_valid(core_));                                            \
        }                                                                                                    \
    } while (0)

static uint64_t now_ns;

static struct session *open_one(struct core *core, pid_t pid, uid_t uid) {
    const struct peer peer = {.pid = pid, .uid = uid};
    struct session *session = NULL;
    twice(core, core_session_open(core, &peer, now_ns, &session));
    assert_non_null(session);
    return session;
}

/* Makes what growth is decided, with one failure at most, which the core takes for the driver's. */
static void grow_all(struct core *core) {
    struct pool *pool;
    uint64_t size;

    while (core_next_growth(core, &pool, &size)) {
        bool before = memory_failed();
        int r = core_segment_made(pool, size, NULL, now_ns);
        assert_true(still_valid(core, before));
        if (r != 0) {
            assert_int_equal(r, -ENOMEM);
            assert_true(memory_failed() && !before);
            assert_int_equal(pool->growth.bytes == 0 || pool->growth.is_decided, true);
            now_ns += 2 * GROW_RETRY_NS;
            tick(core, now_ns);
        }
    }
}

/* A lease, whatever it takes; a refusal has to be the one allocation's that failed. */
static struct lease *take_one(struct session *session, const struct pool *pool, uint64_t size) {
    struct core *core = session->core;
    const struct proto_acquire acquire = {.pool = pool->id, .size_bytes = size, .timeout_ns = NS_FOREVER};
    struct answer answer;
    bool before = memory_failed();

    for (unsigned attempt = 0; attempt < 2; attempt++) {
        twice(core, core_acquire(session, attempt + 1, &acquire, now_ns));
        grow_all(core);
        assert_true(core_next_answer(core, &answer));
        assert_ptr_equal(answer.session, session);
        struct answer none;
        assert_false(core_next_answer(core, &none));
        if (answer.lease != NULL)
            return answer.lease;
        /* waiting requests take a failure of core_segment_made() for the growth's */
        assert_true(answer.failure.error == PROTO_E_NO_MEMORY || answer.failure.error == PROTO_E_DRIVER);
        assert_true(memory_failed() && !before);
    }
    fail_msg("refused twice for one failure");
    return NULL;
}

/* Names: what is published and awaited, with a directory of more than one record. */
static void name_scenario(struct session *one, struct session *two, const struct pool *pool) {
    struct core *core = one->core;
    struct lease *lease = take_one(one, pool, 64 * KIB), *other = take_one(one, pool, 64 * KIB);
    struct proto_directory_part part = {.n_bytes = 3000};
    struct proto_open_name open = {.name = "a", .timeout_ns = NS_FOREVER, .flags = PROTO_OPEN_NAME_BUILD};
    struct proto_publish publish = {
        .name = "a", .flags = PROTO_PUBLISH_KEEP, .count = 2, .directory_bytes = 6000};
    const struct proto_token tokens[4] = {token_of(20), token_of(21), token_of(22), token_of(23)},
                             others[4] = {token_of(24), token_of(25), token_of(26), token_of(27)};
    struct proto_unpublish unpublish = {.name = "a"};
    struct name_answer answer;
    uint64_t generation;

    twice(core, core_open_name(one, 1, &open, now_ns));
    assert_true(core_next_name_answer(core, &answer) && answer.named.state == PROTO_NAME_BUILD);
    twice(core, core_open_name(two, 2, &open, now_ns));
    publish.buffers[0] =
        (struct proto_publish_buffer){.lease = lease->id, .generation = lease->generation, .size_bytes = KIB};
    publish.buffers[1] =
        (struct proto_publish_buffer){.lease = other->id, .generation = other->generation, .size_bytes = KIB};
    twice(core, core_write_directory(one, &part));
    part.offset_bytes = 3000;
    twice(core, core_write_directory(one, &part));
    uint64_t before = lease->block->size_bytes;
    bool failed_before = memory_failed();
    int r = core_publish(one, &publish, tokens, now_ns, &generation);
    assert_true(core_is_valid(core));
    if (r != 0) { /* the blocks, the builder and the draft are as they were */
        assert_true(r == -ENOMEM && memory_failed() && !failed_before);
        assert_true(lease->block->size_bytes == before && core->parcels.n_named == 0);
        assert_false(core_next_name_answer(core, &answer));
        assert_int_equal(core_publish(one, &publish, tokens, now_ns, &generation), 0);
    }
    assert_true(core_next_name_answer(core, &answer) && answer.session == two &&
                answer.named.generation == generation && answer.named.directory_bytes == 6000);
    publish.directory_bytes = 0;
    twice(core, core_publish(one, &publish, others, now_ns, &generation));
    assert_int_equal(core_unpublish(two, &unpublish, now_ns), 0);
    assert_true(core_is_valid(core));
}

static void scenario(void) {
    struct core *core = NULL;
    struct pool *pool = NULL, *second = NULL;
    struct proto_token token, fresh = {.bytes = {1}};
    struct lease *attached = NULL;
    const struct pool_config config = {.kind = PROTO_POOL_HOST,
                                       .device = -1,
                                       .numa_node = 0,
                                       .name = "host memory",
                                       .sizes = {.limit_bytes = 512 * MIB, .step_bytes = 2 * MIB}};

    now_ns = 0;
    twice(NULL, core_new(&core));
    twice(core, core_add_pool(core, &config, &pool));
    twice(core, core_add_pool(core, &config, &second));
    core_pool_ready(pool, now_ns);
    core_pool_ready(second, now_ns);
    struct policy *policy = NULL;
    const struct policy_subject user = {.id = UID_A}, group = {.is_group = true, .id = UID_B};
    uint64_t limits[QUOTA_ITEMS];
    for (unsigned item = 0; item < QUOTA_ITEMS; item++)
        limits[item] = item % 2 == 0 ? QUOTA_UNLIMITED : POLICY_UNSET;
    twice(NULL, policy_new(&policy));
    twice(NULL, policy_add_rule(policy, &user, limits));
    twice(NULL, policy_add_rule(policy, &group, limits));
    policy_restrict(policy, second->id);
    twice(NULL, policy_allow(policy, second->id, &user));
    twice(NULL, policy_allow(policy, second->id, &group));
    core_set_policy(core, policy, now_ns);
    struct session *one = open_one(core, 1, UID_A), *two = open_one(core, 2, UID_A),
                   *three = open_one(core, 3, UID_B);

    struct lease *lease = take_one(one, pool, MIB);
    describe(lease, NULL);
    take_one(two, second, MIB);
    take_one(three, pool, MIB);

    /* parts: from the middle, and then what crosses two borders */
    struct proto_release part = {lease->id, lease->generation, 256 * KIB, 256 * KIB};
    twice(core, core_release(one, &part, now_ns));
    part.offset_bytes = 640 * KIB;
    part.size_bytes = 64 * KIB;
    twice(core, core_release(one, &part, now_ns));
    part.offset_bytes = 704 * KIB;
    twice(core, core_release(one, &part, now_ns));

    /* and parts as leases of their own: with both borders new, with none, and all that is left of a part */
    struct lease *split_off = NULL, *whole = NULL;
    part.offset_bytes = 64 * KIB;
    part.size_bytes = 128 * KIB;
    twice(core, core_split(one, &part, &split_off));
    part.offset_bytes = 512 * KIB;
    twice(core, core_split(one, &part, &whole));
    part = (struct proto_release){split_off->id, split_off->generation, 0, 128 * KIB};
    twice(core, core_split(one, &part, &whole));
    assert_int_equal(core_release(one, &part, now_ns), PROTO_E_STALE);

    /* behind fences: of a new word and of a known one, in another pool, and what needs no lease of its own */
    core_session_set_page(one, &page);
    part = (struct proto_release){lease->id, lease->generation, 768 * KIB,
                                  64 * KIB,  .fence = 1,        .fence_value = 1};
    twice(core, core_release(one, &part, now_ns));
    part.offset_bytes = 896 * KIB;
    twice(core, core_release(one, &part, now_ns));
    part = (struct proto_release){whole->id, whole->generation, 0, 128 * KIB, .fence = 9, .fence_value = 1};
    twice(core, core_release(one, &part, now_ns));
    assert_int_equal(core_release(one, &part, now_ns), PROTO_E_STALE);
    whole = take_one(one, second, MIB);
    part = (struct proto_release){whole->id, whole->generation, .fence = 1, .fence_value = 1};
    twice(core, core_release(one, &part, now_ns));
    assert_int_equal(second->fenced_bytes, MIB);

    struct lease *shared = take_one(one, pool, 64 * KIB);
    const struct proto_lease_name name = name_of(shared);
    twice(core, share_lease(one, &name, 0, &fresh, &token));
    twice(core, core_attach(two, &token, &attached));
    /* a part is split off and shared or sent, or nothing is done */
    struct lease *of_parts = take_one(one, pool, 64 * KIB), *own = NULL;
    struct proto_send send = {{of_parts->id, of_parts->generation, 1024, 1024, 0}, NS_PER_S, 1, 0};
    const struct proto_token tokens[2] = {token_of(8), token_of(9)};
    twice(core, core_share(one, &send.share, &tokens[0], now_ns, &own, &token));
    send.share.offset_bytes = 4096;
    twice(core, core_send(one, &send, tokens, now_ns, &own, &token));
    describe(attached, NULL);
    name_scenario(one, two, pool);

    /* more leases than a table, more ranges than a chunk of nodes, more segments than a word of bits */
    for (unsigned i = 0; i < 70; i++)
        take_one(two, pool, 2 * MIB);

    core_session_lose(two, now_ns, "test");
    assert_true(core_is_valid(core));
    core_session_gone(two, now_ns);
    core_session_close(one, now_ns);
    assert_true(core_trim(pool) > 0);
    retire_all(core, now_ns);
    take_one(three, pool, 3 * MIB);
    core_destroy(core);
}

static void every_allocation_may_fail(void **state) {
    unsigned n = 1;
    (void)state;

    for (;; n++) {
        memory_fail_nth(n);
        scenario();
        if (!memory_failed())
            break; /* nothing failed: there is no n-th allocation */
    }
    memory_fail_nth(0);
    assert_true(n > 70 * 4); /* request, segment, span, block and lease of each */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests_name("the core without memory", tests, NULL, NULL);
}
