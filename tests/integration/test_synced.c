/* SPDX-License-Identifier: Apache-2.0 */
/* Synchronised arrays: states, copies, sizes, memory of the user's, and what is refused. */
#include "tests/integration/synced_fixture.h"

/* --- states --- */

static void memory_comes_with_the_first_access_and_is_zero(struct gpupool_client *client) {
    struct gpupool_buffer sink = sink_new(client);
    uint64_t before = daemon_sum(&daemon_, "acquires");
    struct gpupool_synced *array = create(client, SIZE);
    assert_int_equal(daemon_sum(&daemon_, "acquires"), before);
    struct gpupool_synced_info info = info_of(array);
    assert_int_equal(info.size_bytes, SIZE);
    assert_int_equal(info.host_capacity_bytes + info.device_capacity_bytes, 0);
    assert_int_equal(info.host_owner, GPUPOOL_OWNER_NONE);
    assert_int_equal(info.device_owner, GPUPOOL_OWNER_NONE);
    MUST(gpupool_synced_push(array, NULL)); /* there is nothing to bring */
    MUST(gpupool_synced_pull(array, NULL));
    assert_int_equal(info_of(array).host_capacity_bytes + info_of(array).device_capacity_bytes, 0);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 0, SIZE));
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
    info = info_of(array);
    assert_int_equal(info.zeroed, 1);
    assert_true(info.host_capacity_bytes >= SIZE);
    assert_int_equal(info.host_owner, GPUPOOL_OWNER_POOL);
    assert_int_equal(info.device_capacity_bytes, 0);
    end(array, NULL);

    array = create(client, SIZE);
    read_on_device(client, array, &sink, NULL);
    MUST(gpupool_stream_synchronize(client, 0, NULL));
    assert_true(sink_has(&sink, 0));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 0, 0);
    info = info_of(array);
    assert_int_equal(info.zeroed, 1);
    assert_int_equal(info.host_capacity_bytes, 0);
    assert_int_equal(info.device_owner, GPUPOOL_OWNER_POOL);
    end(array, NULL);

    /* written in part: the rest is zero; as a whole: nothing is done before */
    array = create(client, SIZE);
    on_host(array, GPUPOOL_WRITE, NULL)[5] = 7;
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL) + 6, 0, SIZE - 6));
    assert_int_equal(info_of(array).zeroed, 1);
    end(array, NULL);
    array = create(client, SIZE);
    on_device(array, GPUPOOL_WRITE, NULL);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 0, SIZE));
    end(array, NULL);
    array = create(client, SIZE);
    set_on_device(client, array, 9, NULL);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 9, SIZE));
    set_on_host(array, 8);
    assert_int_equal(info_of(array).zeroed, 0);
    end(array, NULL);
    MUST(gpupool_release(client, &sink, GPUPOOL_NO_STREAM));
}

static void copies_are_made_exactly_when_they_are_needed(struct gpupool_client *client) {
    struct gpupool_buffer sink = sink_new(client);
    struct gpupool_synced *array = create(client, SIZE);
    set_on_host(array, 1);
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
    for (unsigned i = 0; i < 3; i++) {
        read_on_device(client, array, &sink, NULL);
        expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
        assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 1, SIZE));
        expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
    }
    MUST(gpupool_stream_synchronize(client, 0, NULL));
    assert_true(sink_has(&sink, 1));
    /* in part on the host */
    on_host(array, GPUPOOL_WRITE, NULL)[0] = 2;
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 1, 0);
    MUST(gpupool_set(client, 0, (char *)on_device(array, GPUPOOL_WRITE, NULL) + 1, 3, 1, NULL));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 2, 0);
    MUST(gpupool_set(client, 0, (char *)on_device(array, GPUPOOL_WRITE, NULL) + 2, 4, 1, NULL));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 2, 0);
    /* both parts are in what comes back */
    const unsigned char *memory = on_host(array, GPUPOOL_READ, NULL);
    expect(array, GPUPOOL_SYNCED_IN_STEP, 2, 1);
    assert_true(memory[0] == 2 && memory[1] == 3 && memory[2] == 4 && is_all(memory + 3, 1, SIZE - 3));
    on_device(array, GPUPOOL_WRITE, NULL);
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 2, 1);
    on_host(array, GPUPOOL_WRITE, NULL);
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 2, 2);
    /* what is written as a whole is not brought before */
    set_on_device(client, array, 5, NULL);
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 2, 2);
    set_on_host(array, 6);
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 2, 2);
    MUST(gpupool_synced_pull(array, NULL)); /* is good already */
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 2, 2);
    MUST(gpupool_synced_push(array, NULL));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 3, 2);
    MUST(gpupool_synced_push(array, NULL));
    read_on_device(client, array, &sink, NULL);
    expect(array, GPUPOOL_SYNCED_IN_STEP, 3, 2);
    MUST(gpupool_stream_synchronize(client, 0, NULL));
    assert_true(sink_has(&sink, 6));
    set_on_device(client, array, 7, NULL);
    MUST(gpupool_synced_pull(array, NULL));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 3, 3);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 7, SIZE));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 3, 3);
    assert_int_equal(info_of(array).copies_between_devices, 0);
    end(array, NULL);
    MUST(gpupool_release(client, &sink, GPUPOOL_NO_STREAM));
}

/* --- size --- */

static void to_less_the_first_bytes_stay_and_to_more_all_is_gone(struct gpupool_client *client) {
    struct gpupool_synced *array = create(client, SIZE);
    set_on_device(client, array, 5, NULL);
    const unsigned char *memory = on_host(array, GPUPOOL_READ, NULL);
    MUST(gpupool_synced_resize(array, 100));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 0, 1);
    assert_int_equal(info_of(array).size_bytes, 100);
    assert_ptr_equal(on_host(array, GPUPOOL_READ, NULL), memory);
    memset(on_host(array, GPUPOOL_WRITE, NULL), 6, 100);
    on_device(array, GPUPOOL_WRITE, NULL); /* 100 bytes are copied */
    MUST(gpupool_synced_resize(array, 100));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 1);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 6, 100));
    assert_true(memory[100] == 5);
    MUST(gpupool_synced_resize(array, 200));
    expect(array, GPUPOOL_SYNCED_UNINITIALIZED, 1, 2);
    assert_ptr_equal(on_host(array, GPUPOOL_READ, NULL), memory);
    assert_true(is_all(memory, 0, 200));
    assert_true(memory[200] == 5);
    struct gpupool_synced_info info = info_of(array);
    assert_true(info.host_capacity_bytes >= SIZE && info.device_capacity_bytes >= SIZE);
    /* beyond what there is, a larger block is taken when it is needed */
    MUST(gpupool_synced_resize(array, MIB));
    assert_int_equal(info_of(array).host_capacity_bytes, info.host_capacity_bytes);
    set_on_device(client, array, 7, NULL);
    assert_true(info_of(array).device_capacity_bytes >= MIB);
    assert_int_equal(info_of(array).host_capacity_bytes, info.host_capacity_bytes);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 7, MIB));
    assert_true(info_of(array).host_capacity_bytes >= MIB);
    end(array, NULL);
}

static void varying_sizes_within_the_capacity_take_no_memory(struct gpupool_client *client) {
    struct gpupool_synced *array = create(client, MIB);
    const void *on_gpu = on_device(array, GPUPOOL_OVERWRITE, NULL),
               *memory = on_host(array, GPUPOOL_OVERWRITE, NULL);
    uint64_t acquires = daemon_sum(&daemon_, "acquires"), releases = daemon_sum(&daemon_, "releases");
    unsigned random = 1;
    for (unsigned i = 0; i < 1000; i++) {
        random = random * 1103515245 + 12345;
        MUST(gpupool_synced_resize(array, 1 + random % MIB));
        assert_ptr_equal(on_device(array, GPUPOOL_OVERWRITE, NULL), on_gpu);
        assert_ptr_equal(on_host(array, GPUPOOL_OVERWRITE, NULL), memory);
    }
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    assert_int_equal(daemon_sum(&daemon_, "releases"), releases);
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
    end(array, NULL);
}

/* --- memory of the user's --- */

static void adopted_memory_counts_and_is_never_freed(struct gpupool_client *client) {
    struct gpupool_buffer host, device, sink;
    struct gpupool_buffer_info known;
    void *stream;

    MUST(gpupool_stream_create(client, 0, &stream));
    sink = sink_new(client);
    host = acquire(client, HOST, SIZE, GPUPOOL_NO_STREAM);
    device = acquire(client, DEVICE, SIZE, stream);
    struct gpupool_synced *array = create(client, SIZE);
    set_on_device(client, array, 1, stream);
    set_on_host(array, 2);
    memset(host.data, 3, SIZE);
    MUST(gpupool_synced_adopt_host(array, host.data, stream));
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
    assert_int_equal(info_of(array).host_owner, GPUPOOL_OWNER_USER);
    assert_int_equal(info_of(array).host_capacity_bytes, SIZE);
    assert_ptr_equal(on_host(array, GPUPOOL_READ, stream), host.data);
    read_on_device(client, array, &sink, stream);
    MUST(gpupool_stream_synchronize(client, 0, stream));
    assert_true(sink_has(&sink, 3));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
    MUST(gpupool_set(client, 0, device.data, 4, SIZE, stream));
    MUST(gpupool_synced_adopt_device(array, device.data, stream));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 0);
    assert_int_equal(info_of(array).device_owner, GPUPOOL_OWNER_USER);
    assert_ptr_equal(on_device(array, GPUPOOL_READ, NULL), device.data);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 4, SIZE));
    assert_true(is_all(host.data, 4, SIZE)); /* it came to the user's */
    /* the same again: its contents count anew */
    memset(host.data, 5, SIZE);
    MUST(gpupool_synced_adopt_host(array, host.data, stream));
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 1, 1);
    read_on_device(client, array, &sink, NULL);
    MUST(gpupool_synced_settle(array));
    assert_true(sink_has(&sink, 5));
    /* a smaller size is within it, a larger one is the pool's again */
    MUST(gpupool_synced_resize(array, SIZE / 2));
    assert_ptr_equal(on_host(array, GPUPOOL_READ, NULL), host.data);
    MUST(gpupool_synced_resize(array, SIZE + 1));
    assert_ptr_not_equal(on_host(array, GPUPOOL_OVERWRITE, NULL), host.data);
    assert_ptr_not_equal(on_device(array, GPUPOOL_READ, stream), device.data);
    assert_int_equal(info_of(array).host_owner, GPUPOOL_OWNER_POOL);
    assert_int_equal(info_of(array).device_owner, GPUPOOL_OWNER_POOL);
    void *own = on_host(array, GPUPOOL_READ, NULL);
    /* it would be lent again, also in part, or as the other side's */
    MUST_BE(gpupool_synced_adopt_host(array, own, stream), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_adopt_host(array, (char *)own + 512, stream), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_adopt_host(array, (char *)own - SIZE, stream), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_adopt_device(array, own, stream), GPUPOOL_E_INVALID);
    assert_int_equal(info_of(array).host_owner, GPUPOOL_OWNER_POOL);
    /* and the user's is the user's */
    MUST(gpupool_query(client, &host, &known));
    MUST(gpupool_query(client, &device, &known));
    MUST(gpupool_synced_resize(array, SIZE));
    MUST(gpupool_synced_adopt_host(array, host.data, stream));
    MUST(gpupool_synced_adopt_device(array, device.data, stream));
    end(array, stream);
    MUST(gpupool_release(client, &host, stream));
    MUST(gpupool_release(client, &device, stream));
    MUST(gpupool_release(client, &sink, GPUPOOL_NO_STREAM));
    MUST(gpupool_stream_destroy(client, 0, stream));
}

static void pageable_memory_can_be_adopted(struct gpupool_client *client) {
    unsigned char *memory = malloc(SIZE);
    struct gpupool_buffer sink = sink_new(client);
    struct gpupool_synced *array = create(client, SIZE);
    memset(memory, 3, SIZE);
    MUST(gpupool_synced_adopt_host(array, memory, NULL));
    MUST(gpupool_synced_push(array, NULL));
    memset(on_host(array, GPUPOOL_WRITE, NULL), 4, SIZE); /* waits until it was read */
    read_on_device(client, array, &sink, GPUPOOL_PER_THREAD);
    MUST(gpupool_synced_settle(array));
    assert_true(sink_has(&sink, 4));
    set_on_device(client, array, 5, GPUPOOL_PER_THREAD);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 5, SIZE));
    assert_true(is_all(memory, 5, SIZE));
    end(array, GPUPOOL_NO_STREAM);
    memset(memory, 6, SIZE);
    free(memory);
    MUST(gpupool_release(client, &sink, GPUPOOL_NO_STREAM));
}

/* --- errors --- */

static void what_cannot_be_is_refused(void **state) {
    struct gpupool_client *client;
    struct gpupool_synced *array = NULL;
    struct gpupool_synced_info info;
    void *memory = NULL;

    (void)state;
    client = open_cached();
    if (!test_has_device()) {
        close_cached(client);
        skip();
    }
    MUST_BE(gpupool_synced_create(NULL, 0, SIZE, &array), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_create(client, 0, SIZE, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_create(client, 77, SIZE, &array), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_create(client, -3, SIZE, &array), GPUPOOL_E_INVALID);
    assert_null(array);
    array = create(client, UINT64_MAX);
    MUST_BE(gpupool_synced_host(array, GPUPOOL_OVERWRITE, &memory, NULL), GPUPOOL_E_TOO_LARGE);
    MUST_BE(gpupool_synced_device(array, GPUPOOL_READ, &memory, NULL), GPUPOOL_E_TOO_LARGE);
    MUST_BE(gpupool_synced_adopt_host(array, &info, NULL), GPUPOOL_E_INVALID); /* so much is not there */
    expect(array, GPUPOOL_SYNCED_UNINITIALIZED, 0, 0);
    MUST(gpupool_synced_resize(array, SIZE));
    MUST_BE(gpupool_synced_resize(NULL, 1), GPUPOOL_E_INVALID);
    for (unsigned i = 0; i < 2; i++) { /* without memory, and where it would be had at once */
        MUST_BE(gpupool_synced_host(array, (enum gpupool_access)0, &memory, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_host(array, (enum gpupool_access)4, &memory, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_host(array, GPUPOOL_READ, NULL, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_host(array, GPUPOOL_READ, &memory, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_device(array, (enum gpupool_access)0, &memory, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_device(array, (enum gpupool_access)4, &memory, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_device(array, GPUPOOL_READ, NULL, NULL), GPUPOOL_E_INVALID);
        MUST_BE(gpupool_synced_device(array, GPUPOOL_READ, &memory, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
        assert_null(memory);
        set_on_host(array, 1);
        set_on_device(client, array, 1, NULL);
    }
    MUST_BE(gpupool_synced_host(NULL, GPUPOOL_READ, &memory, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_device(NULL, GPUPOOL_READ, &memory, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_push(NULL, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_pull(array, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_adopt_host(array, NULL, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_adopt_device(array, NULL, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_adopt_host(array, &info, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_move(array, 77, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_settle(NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_query(array, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_query(NULL, &info), GPUPOOL_E_INVALID);
    MUST(gpupool_synced_destroy(NULL, NULL));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 0, 0);
    end(array, NULL);
    expect_nothing_leased(client);
    close_cached(client);
}

static void without_room_nothing_changes_and_later_it_is_had(void **state) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = NULL;
    struct gpupool_synced *array = NULL;
    void *memory = NULL;

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    options.socket = daemon_.socket;
    options.alloc_timeout_ns = NS_PER_MS;
    MUST(gpupool_open(&options, &client));
    MUST(gpupool_synced_create(client, 0, 40 * MIB, &array));
    struct gpupool_buffer device = acquire(client, DEVICE, 40 * MIB, NULL),
                          host = acquire(client, HOST, 40 * MIB, GPUPOOL_NO_STREAM);
    MUST_BE(gpupool_synced_device(array, GPUPOOL_READ, &memory, NULL), GPUPOOL_E_EXHAUSTED);
    MUST_BE(gpupool_synced_host(array, GPUPOOL_WRITE, &memory, NULL), GPUPOOL_E_EXHAUSTED);
    expect(array, GPUPOOL_SYNCED_UNINITIALIZED, 0, 0);
    MUST(gpupool_release(client, &host, GPUPOOL_NO_STREAM));
    WAIT_UNTIL(gpupool_synced_host(array, GPUPOOL_OVERWRITE, &memory, NULL) == 0); /* the fence comes first */
    memset(memory, 1, 40 * MIB);
    memory = NULL;
    MUST_BE(gpupool_synced_push(array, NULL), GPUPOOL_E_EXHAUSTED);
    MUST_BE(gpupool_synced_device(array, GPUPOOL_WRITE, &memory, NULL), GPUPOOL_E_EXHAUSTED);
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
    assert_null(memory);
    MUST(gpupool_release(client, &device, NULL));
    WAIT_UNTIL(gpupool_synced_push(array, NULL) == 0);
    expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
    end(array, NULL);
    expect_nothing_leased(client);
    close_cached(client);
}

static void without_a_cache_it_is_the_same(void **state) {
    struct gpupool_client *client;

    (void)state;
    if (!test_has_device())
        skip();
    client = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0);
    struct gpupool_synced *array = create(client, SIZE);
    set_on_device(client, array, 5, GPUPOOL_PER_THREAD);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 5, SIZE));
    assert_int_equal(daemon_sum(&daemon_, "leases"), 2);
    end(array, GPUPOOL_PER_THREAD);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        WITH_CLIENT(memory_comes_with_the_first_access_and_is_zero),
        WITH_CLIENT(copies_are_made_exactly_when_they_are_needed),
        WITH_CLIENT(to_less_the_first_bytes_stay_and_to_more_all_is_gone),
        WITH_CLIENT(varying_sizes_within_the_capacity_take_no_memory),
        WITH_CLIENT(adopted_memory_counts_and_is_never_freed),
        WITH_CLIENT(pageable_memory_can_be_adopted),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(without_room_nothing_changes_and_later_it_is_had),
        cmocka_unit_test(without_a_cache_it_is_the_same),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
