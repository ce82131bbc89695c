/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Synchronised arrays by element type, and of 0 bytes: then a typed access returns NULL and has not failed.
 */
#include "tests/integration/synced_fixture.h"

#define COUNT (SIZE / sizeof(uint32_t))

/* Leaves an error for the next call to take away. */
static void fail_before(void) {
    MUST_BE(gpupool_open(NULL, NULL), GPUPOOL_E_INVALID);
}

#define CONSTANT(pointer) _Generic((pointer), const uint32_t * : true, uint32_t * : false)

static void each_access_is_the_one_that_its_name_says(struct gpupool_client *client) {
    struct gpupool_synced *array = create(client, SIZE);
    void *stream;

    MUST(gpupool_stream_create(client, 0, &stream));
    assert_true(CONSTANT(GPUPOOL_SYNCED_READ_HOST(array, uint32_t, stream)));
    assert_true(CONSTANT(GPUPOOL_SYNCED_READ_DEVICE(array, uint32_t, stream)));
    assert_false(CONSTANT(GPUPOOL_SYNCED_WRITE_HOST(array, uint32_t, stream)));
    assert_false(CONSTANT(GPUPOOL_SYNCED_WRITE_DEVICE(array, uint32_t, stream)));
    assert_false(CONSTANT(GPUPOOL_SYNCED_OVERWRITE_HOST(array, uint32_t, stream)));
    assert_false(CONSTANT(GPUPOOL_SYNCED_OVERWRITE_DEVICE(array, uint32_t, stream)));

    expect(array, GPUPOOL_SYNCED_UNINITIALIZED, 0, 0); /* CONSTANT evaluates nothing */
    uint32_t *host = GPUPOOL_SYNCED_OVERWRITE_HOST(array, uint32_t, stream);
    assert_non_null(host);
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
    assert_int_equal(info_of(array).zeroed, 0);
    for (uint32_t i = 0; i < COUNT; i++)
        host[i] = i;
    assert_non_null(GPUPOOL_SYNCED_READ_DEVICE(array, uint32_t, stream));
    expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
    uint32_t *on_device = GPUPOOL_SYNCED_WRITE_DEVICE(array, uint32_t, stream);
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 0);
    MUST(gpupool_set(client, 0, on_device, 0xff, sizeof *on_device, stream));
    const uint32_t *back = GPUPOOL_SYNCED_READ_HOST(array, uint32_t, stream);
    expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 1);
    assert_true(back[0] == UINT32_MAX && back[1] == 1 && back[COUNT - 1] == COUNT - 1);
    assert_non_null(GPUPOOL_SYNCED_WRITE_HOST(array, uint32_t, stream));
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 1, 1);
    assert_ptr_equal(GPUPOOL_SYNCED_OVERWRITE_DEVICE(array, uint32_t, stream), on_device);
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 1);
    end(array, stream);
    MUST(gpupool_stream_synchronize(client, 0, stream));
    MUST(gpupool_stream_destroy(client, 0, stream));
}

static void an_access_that_fails_returns_null_and_tells_why(struct gpupool_client *client) {
    struct gpupool_synced *array = create(client, UINT64_C(1) << 50);

    assert_null(GPUPOOL_SYNCED_READ_HOST(array, char, NULL));
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_TOO_LARGE);
    assert_null(GPUPOOL_SYNCED_OVERWRITE_DEVICE(array, char, NULL));
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_TOO_LARGE);
    assert_non_null(strstr(gpupool_error_text(), "device access to a synchronised array"));
    assert_null(GPUPOOL_SYNCED_READ_DEVICE(array, char, GPUPOOL_NO_STREAM));
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_INVALID);
    assert_null(GPUPOOL_SYNCED_READ_DEVICE(NULL, char, NULL));
    assert_int_equal(gpupool_error_number(), GPUPOOL_E_INVALID);
    MUST(gpupool_synced_resize(array, 1));
    assert_non_null(GPUPOOL_SYNCED_READ_DEVICE(array, char, NULL));
    assert_int_equal(gpupool_error_number(), 0);
    end(array, NULL);
}

/* Whichever way an array of 0 bytes is used, it copies, zeroes and takes nothing. */
static void an_array_of_no_bytes_has_states_and_no_memory(struct gpupool_client *client) {
    struct gpupool_synced *array = create(client, 0);
    uint64_t acquires = daemon_sum(&daemon_, "acquires");

    for (enum gpupool_access access = GPUPOOL_READ; access <= GPUPOOL_OVERWRITE; access++) {
        enum gpupool_synced_state state = GPUPOOL_SYNCED_HOST_NEWER;
        fail_before();
        assert_null(gpupool_synced_host_memory(array, access, NULL));
        assert_int_equal(gpupool_error_number(), 0);
        if (access == GPUPOOL_READ)
            expect(array, GPUPOOL_SYNCED_HOST_NEWER, 0, 0);
        MUST(gpupool_synced_push(array, NULL));
        expect(array, GPUPOOL_SYNCED_IN_STEP, 0, 0);
        fail_before();
        assert_null(gpupool_synced_device_memory(array, access, NULL));
        assert_int_equal(gpupool_error_number(), 0);
        state = access == GPUPOOL_READ ? GPUPOOL_SYNCED_IN_STEP : GPUPOOL_SYNCED_DEVICE_NEWER;
        expect(array, state, 0, 0);
        MUST(gpupool_synced_pull(array, NULL));
        expect(array, GPUPOOL_SYNCED_IN_STEP, 0, 0);
        assert_null(gpupool_synced_device_memory(array, GPUPOOL_OVERWRITE, NULL));
        assert_null(gpupool_synced_host_memory(array, GPUPOOL_READ, NULL));
        expect(array, GPUPOOL_SYNCED_IN_STEP, 0, 0);
    }
    struct gpupool_synced_info info = info_of(array);
    assert_true(info.size_bytes == 0 && info.zeroed == 0);
    assert_true(info.host_capacity_bytes == 0 && info.device_capacity_bytes == 0);
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    MUST(gpupool_synced_settle(array));
    MUST(gpupool_synced_move(array, 0, NULL));
    end(array, NULL);
}

static void an_array_becomes_one_of_no_bytes_and_back(struct gpupool_client *client) {
    struct gpupool_synced *array = create(client, 0);
    char own[16];

    MUST(gpupool_synced_resize(array, SIZE));
    expect(array, GPUPOOL_SYNCED_UNINITIALIZED, 0, 0);
    unsigned char *host = on_host(array, GPUPOOL_READ, NULL);
    assert_true(is_all(host, 0, SIZE));
    on_device(array, GPUPOOL_WRITE, NULL);
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 0);
    MUST(gpupool_synced_resize(array, 0));
    /* what is there from a larger size is given, and nothing is copied to it */
    assert_ptr_equal(gpupool_synced_host_memory(array, GPUPOOL_READ, NULL), host);
    expect(array, GPUPOOL_SYNCED_IN_STEP, 1, 0);
    MUST(gpupool_synced_resize(array, SIZE));
    expect(array, GPUPOOL_SYNCED_UNINITIALIZED, 1, 0);
    MUST(gpupool_synced_settle(array)); /* the copy to the device has read it */
    memset(host, 1, SIZE);
    assert_true(is_all(on_host(array, GPUPOOL_READ, NULL), 0, SIZE));
    /* memory to adopt may be none then, and must not be otherwise */
    MUST_BE(gpupool_synced_adopt_host(array, NULL, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_synced_adopt_device(array, NULL, NULL), GPUPOOL_E_INVALID);
    MUST(gpupool_synced_resize(array, 0));
    MUST(gpupool_synced_adopt_host(array, NULL, NULL));
    expect(array, GPUPOOL_SYNCED_HOST_NEWER, 1, 0);
    MUST(gpupool_synced_adopt_device(array, NULL, NULL));
    expect(array, GPUPOOL_SYNCED_DEVICE_NEWER, 1, 0);
    MUST(gpupool_synced_adopt_host(array, own, NULL));
    assert_ptr_equal(gpupool_synced_host_memory(array, GPUPOOL_READ, NULL), own);
    MUST(gpupool_synced_resize(array, sizeof own)); /* more than was adopted: the pool's takes its place */
    assert_ptr_not_equal(on_host(array, GPUPOOL_WRITE, NULL), own);
    end(array, NULL);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        WITH_CLIENT(each_access_is_the_one_that_its_name_says),
        WITH_CLIENT(an_access_that_fails_returns_null_and_tells_why),
        WITH_CLIENT(an_array_of_no_bytes_has_states_and_no_memory),
        WITH_CLIENT(an_array_becomes_one_of_no_bytes_and_back),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
