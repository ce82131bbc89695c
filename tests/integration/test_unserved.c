/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that the process sees and the daemon does not serve: nothing is made or copied there, and texts count
 * the devices that are served. */
#define TEST_SIM_GPUS 2
#include <gpupool/staging.h>

#include "tests/integration/cache_fixture.h"

#define UNSERVED TEST_SIM_GPUS /* the simulated GPU has 16 devices in each client */
#define NO_SUCH  60
#define SIZE     UINT64_C(4096)

static void expect_refused(int result, int error, const char *call) {
    if (result != error)
        fail_msg("%s: %s, not %s", call, gpupool_error_name(result), gpupool_error_name(error));
    if (strstr(gpupool_error_text(), "the daemon serves 2 devices of this process") == NULL)
        fail_msg("%s: %s", call, gpupool_error_text());
}

static void refuse_on(struct gpupool_client *client, int device) {
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, SIZE, GPUPOOL_NO_STREAM);
    struct gpupool_buffer host = acquire(client, GPUPOOL_POOL_HOST, SIZE, GPUPOOL_NO_STREAM);
    char bytes[SIZE] = {0};
    uint32_t pool;
    void *stream;

    memset(host.data, 0x77, SIZE);
    expect_refused(gpupool_device_pool(client, device, &pool), GPUPOOL_E_NO_POOL, "gpupool_device_pool");
    expect_refused(gpupool_stream_create(client, device, &stream), GPUPOOL_E_INVALID,
                   "gpupool_stream_create");
    expect_refused(gpupool_copy(client, device, host.data, buffer.data, SIZE, NULL), GPUPOOL_E_INVALID,
                   "gpupool_copy");
    expect_refused(gpupool_set(client, device, host.data, 1, SIZE, NULL), GPUPOOL_E_INVALID, "gpupool_set");
    expect_refused(gpupool_upload(client, device, buffer.data, bytes, SIZE, NULL), GPUPOOL_E_INVALID,
                   "gpupool_upload");
    for (uint64_t i = 0; i < SIZE; i++)
        assert_int_equal(((uint8_t *)host.data)[i], 0x77);
    MUST(gpupool_release(client, &host, GPUPOOL_NO_STREAM));
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
}

static void nothing_is_made_or_copied_on_a_device_that_is_not_served(void **state) {
    (void)state;
    if (!test_is_simulated())
        skip();
    struct gpupool_client *client = open_cached();
    refuse_on(client, UNSERVED);
    refuse_on(client, NO_SUCH);
    for (int device = 0; device < TEST_SIM_GPUS; device++) {
        void *stream;
        MUST(gpupool_stream_create(client, device, &stream));
        MUST(gpupool_stream_destroy(client, device, stream));
    }
    close_cached(client);
}

static void a_client_whose_daemon_is_gone_can_still_copy(void **state) {
    struct test_daemon own;
    char own_config[TEST_CONFIG_SIZE];
    char from[SIZE], to[SIZE] = {0};

    (void)state;
    if (!test_is_simulated())
        skip();
    daemon_start(&own, &(struct daemon_options){.config = test_config(own_config, POOL_MIB, POOL_MIB),
                                                .sim_gpus = TEST_SIM_GPUS});
    struct gpupool_client *client = open_client(&own, GPUPOOL_OPEN_NO_CACHE, 0);
    daemon_stop(&own); /* before it was asked for its pools */
    memset(from, 5, SIZE);
    MUST(gpupool_copy(client, 0, to, from, SIZE, NULL));
    assert_memory_equal(to, from, SIZE);
    gpupool_close(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_made_or_copied_on_a_device_that_is_not_served),
        cmocka_unit_test(a_client_whose_daemon_is_gone_can_still_copy),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
