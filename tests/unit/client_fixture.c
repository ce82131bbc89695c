/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/client_fixture.h"

#include <stdlib.h>

#include "gpu/sim/sim.h"

struct exporter exporter;
struct false_daemon daemon_;
static int fds_before;

int set_up(void **state) {
    (void)state;
    fds_before = open_fds();
    false_daemon_init(&daemon_, &exporter);
    return 0;
}

int tear_down(void **state) {
    (void)state;
    false_daemon_deinit(&daemon_);
    gpu_sim_fail("any", 0, 0);
    if (open_fds() != fds_before) {
        print_error("%d descriptors were open before the test, %d are after\n", fds_before, open_fds());
        return -1;
    }
    return 0;
}

struct gpupool_options options_for(const char *path) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    options.socket = path;
    options.flags = GPUPOOL_OPEN_NO_CACHE; /* each call is a message that the false daemon sees */
    options.connect_timeout_ns = PATIENT_NS;
    options.answer_timeout_ns = PATIENT_NS;
    return options;
}

struct gpupool_client *open_client(void) {
    struct gpupool_options options = options_for(daemon_.path);
    struct gpupool_client *client = NULL;
    assert_ok(gpupool_open(&options, &client));
    return client;
}

struct gpupool_client *start(bool (*handle)(struct false_daemon *, struct false_session *,
                                            const struct proto_message *)) {
    daemon_.handle = handle;
    false_daemon_run(&daemon_);
    return open_client();
}

const struct gpu *table_over(struct gpupool_client *client, struct gpu *ret_table) {
    const struct gpu *real = NULL;

    assert_ok(devices_gpu(&client->session.devices, &real));
    assert_non_null(real);
    *ret_table = *real;
    client->session.devices.gpu = ret_table;
    return real;
}

void fixture_init(void) {
    const struct gpu *gpu;
    void *stream;

    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("GPUPOOL_SOCKET");
    exporter_start(&exporter);
    if (gpu_sim(&(struct gpu_sim_options){0}, &gpu) != 0 || gpu->stream_create(0, &stream) != 0 ||
        gpu->stream_destroy(0, stream) != 0)
        abort();
}

void fixture_deinit(void) {
    exporter_stop(&exporter);
}
