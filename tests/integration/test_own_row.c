/* SPDX-License-Identifier: Apache-2.0 */
/* Another block at the addresses of an attached buffer: own_row_change(). */
#include "base/cleanup.h"
#include "client/session/lease.h"
#include "client/session/own_row.h"
#include "tests/failing_memory.h"
#include "tests/integration/sleep_fixture.h"

/* Blocks of a publisher, and a reader with one of them at addresses of its own. */
struct scene {
    struct test_daemon daemon;
    struct gpupool_client *publisher, *reader;
    struct gpupool_buffer published[2], attached;
    struct gpupool_token tokens[2];
};

static void scene_begin(struct scene *scene, uint64_t first_bytes, uint64_t second_bytes) {
    const uint64_t sizes[] = {first_bytes, second_bytes};

    sleep_start(&scene->daemon);
    scene->publisher = sleep_open(&scene->daemon, 0);
    scene->reader = sleep_open(&scene->daemon, 0);
    for (unsigned i = 0; i < 2; i++) {
        scene->published[i] = acquire_sleeper(scene->publisher, sizes[i]);
        MUST(puppet_write_pattern(scene->publisher, &scene->published[i], 1 + i, NULL));
        MUST(gpupool_share(scene->publisher, &scene->published[i], GPUPOOL_NO_STREAM, &scene->tokens[i]));
    }
    MUST(gpupool_attach(scene->reader, &scene->tokens[0], GPUPOOL_NO_STREAM,
                        GPUPOOL_CAN_SLEEP | GPUPOOL_READ_ONLY, &scene->attached));
}

static void scene_end(struct scene *scene) {
    MUST(gpupool_release(scene->reader, &scene->attached, GPUPOOL_NO_STREAM));
    assert_false(is_readable(scene->attached.data));
    for (unsigned i = 0; i < 2; i++)
        MUST(gpupool_release(scene->publisher, &scene->published[i], GPUPOOL_NO_STREAM));
    gpupool_close(scene->reader);
    gpupool_close(scene->publisher);
    sleep_stop(&scene->daemon);
}

static struct proto_lease_name name_of(const struct gpupool_buffer *buffer) {
    return (struct proto_lease_name){.lease = buffer->lease, .generation = buffer->generation};
}

/* Takes a lease by a token, and maps nothing. *ret_segment: its first one. */
static struct proto_lease take_lease(struct scene *scene, unsigned number, struct segment **ret_segment) {
    struct connection *connection = &scene->reader->session.connection;
    _cleanup_(request_recyclep) struct request *request = connection_request(connection, PROTO_ATTACH);

    assert_non_null(request);
    memcpy(&request->message.attach, scene->tokens[number].bytes, sizeof request->message.attach);
    MUST(connection_exchange(connection, &request, connection_deadline_ns(connection, 0)));
    *ret_segment = request->segment;
    return request->message.lease;
}

/* Puts a published block in the place of the attached one, whose lease goes back. */
static int replace(struct scene *scene, unsigned number) {
    struct session *session = &scene->reader->session;
    struct proto_lease_name before = name_of(&scene->attached);
    struct segment *segment;
    struct pool pool;

    MUST(pools_find(session, scene->attached.pool, &pool));
    const struct proto_lease lease = take_lease(scene, number, &segment);
    struct own_change change = {0};
    int r = own_row_prepare(session, before, &lease, segment, pool.uuid, &change);
    if (r == 0)
        r = own_row_change(session, &change);
    own_change_free(&change);
    if (r < 0) {
        lease_give_back(session, &lease);
        return r;
    }
    MUST(lease_release(session, before.lease, before.generation, 0, 0, FENCE_NONE));
    held_end(&session->held, before.lease, before.generation);
    held_add(&session->held, lease.lease, lease.generation, segment->id);
    scene->attached.lease = lease.lease;
    scene->attached.generation = lease.generation;
    return 0;
}

static void the_reader_has_another_block_at_the_same_addresses(void **state) {
    struct gpupool_buffer_info info;
    struct scene scene;

    (void)state;
    if (!test_is_simulated())
        skip();
    scene_begin(&scene, SLEEPER_BYTES, SLEEPER_BYTES);
    MUST(puppet_read_pattern(scene.reader, &scene.attached, 1, NULL));
    for (unsigned i = 1; i < 7; i++) {
        if (i % 3 == 0) /* also while it sleeps, which ends by that */
            MUST(gpupool_sleep(scene.reader, &scene.attached, GPUPOOL_KEEP_ON_GPU, NULL));
        if (i % 3 == 0)
            MUST(gpupool_wake(scene.reader, &scene.attached, NULL, GPUPOOL_NOW, 0));
        MUST(replace(&scene, i % 2));
        MUST(puppet_read_pattern(scene.reader, &scene.attached, 1 + i % 2, NULL));
        MUST(gpupool_query(scene.reader, &scene.attached, &info));
        assert_ptr_equal(info.buffer.data, scene.attached.data);
        assert_int_equal(info.holders, 2);
    }
    scene_end(&scene);
}

/* One segment, and a row that is unmapped. */
static void a_block_takes_the_place_of_one_that_is_not_mapped(void **state) {
    struct scene scene;
    bool is_unmapped;

    (void)state;
    if (!test_is_simulated())
        skip();
    scene_begin(&scene, MIB, MIB);
    MUST(own_row_unmap(&scene.reader->session, name_of(&scene.attached), &is_unmapped));
    assert_true(is_unmapped);
    assert_false(is_readable(scene.attached.data));
    MUST(replace(&scene, 1));
    MUST(puppet_read_pattern(scene.reader, &scene.attached, 2, NULL));
    scene_end(&scene);
}

/* How the row of the attached buffer is when its block is changed. */
enum before {
    WAS_MAPPED,
    WAS_UNMAPPED,
    WAS_EMPTY,
    BEFORES
};

/* A second call has the row as it was before the first one: mapped, unmapped, or without a block. */
static void a_change_is_undone_by_the_next(void **state) {
    (void)state;
    if (!test_is_simulated())
        skip();
    for (unsigned before = 0; before < BEFORES; before++) {
        struct own_change change;
        struct segment *segment;
        struct scene scene;
        struct pool pool;
        bool is_unmapped;
        uint32_t count;

        scene_begin(&scene, SLEEPER_BYTES, SLEEPER_BYTES);
        struct session *session = &scene.reader->session;
        const struct proto_lease_name name = name_of(&scene.attached);
        MUST(pools_find(session, scene.attached.pool, &pool));
        assert_true(own_row_is_whole(session, name, scene.attached.capacity_bytes));
        if (before != WAS_MAPPED)
            MUST(own_row_unmap(session, name, &is_unmapped));
        if (before == WAS_EMPTY) {
            MUST(lease_release(session, name.lease, name.generation, 0, 0, FENCE_NONE));
            free(own_row_empty(session, name, &count));
        }
        const struct proto_lease lease = take_lease(&scene, 1, &segment);
        MUST(own_row_prepare(session, name, &lease, segment, pool.uuid, &change));
        for (unsigned i = 0; i < 3; i++) {
            MUST(own_row_change(session, &change));
            assert_false(own_row_is(session, name));
            assert_true(own_row_is_mapped(session, (struct proto_lease_name){lease.lease, lease.generation}));
            MUST(puppet_read_pattern(scene.reader, &scene.attached, 2, NULL));
            MUST(own_row_change(session, &change));
            assert_int_equal(own_row_is_mapped(session, name), before == WAS_MAPPED);
            assert_int_equal(is_readable(scene.attached.data), before == WAS_MAPPED);
            if (before == WAS_MAPPED)
                MUST(puppet_read_pattern(scene.reader, &scene.attached, 1, NULL));
        }
        if (before == WAS_EMPTY) { /* a buffer needs a block for its release */
            MUST(own_row_change(session, &change));
            scene.attached.lease = lease.lease;
            scene.attached.generation = lease.generation;
        } else {
            lease_give_back(session, &lease);
        }
        own_change_free(&change);
        scene_end(&scene);
    }
}

static void a_block_of_another_size_is_refused(void **state) {
    struct scene scene;

    (void)state;
    if (!test_is_simulated())
        skip();
    scene_begin(&scene, SLEEPER_BYTES, SLEEPER_BYTES + SEGMENT_BYTES);
    MUST_BE(replace(&scene, 1), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "segments of 10 MiB"));
    MUST(puppet_read_pattern(scene.reader, &scene.attached, 1, NULL));
    scene_end(&scene);
}

/* Each call of the driver, and each allocation, fails in turn: the reader has the one block or the other. */
static void a_failure_leaves_the_old_block(void **state) {
    unsigned failures = 0;
    struct scene scene;

    (void)state;
    if (!test_is_simulated())
        skip();
    scene_begin(&scene, SLEEPER_BYTES, SLEEPER_BYTES);
    for (unsigned of_memory = 0; of_memory < 2; of_memory++) {
        bool failed = true;
        for (unsigned n = 1, number = 0; failed; n++) {
            if (of_memory != 0)
                memory_fail_nth(n);
            else
                assert_int_equal(gpu_sim_fail("any", n, GPU_ERROR_MEMORY_ALLOCATION), 0);
            int r = replace(&scene, 1 - number);
            failed = of_memory != 0 ? memory_failed() : gpu_sim_failed();
            memory_fail_nth(0);
            assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
            assert_true(r == 0 || failed);
            failures += r != 0;
            number = r == 0 ? 1 - number : number;
            MUST(puppet_read_pattern(scene.reader, &scene.attached, 1 + number, NULL));
        }
    }
    assert_true(failures > 10);
    scene_end(&scene);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reader_has_another_block_at_the_same_addresses),
        cmocka_unit_test(a_block_takes_the_place_of_one_that_is_not_mapped),
        cmocka_unit_test(a_change_is_undone_by_the_next),
        cmocka_unit_test(a_block_of_another_size_is_refused),
        cmocka_unit_test(a_failure_leaves_the_old_block),
    };

    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
