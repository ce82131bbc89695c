/* SPDX-License-Identifier: Apache-2.0 */
/* Host pools whose segments are descriptors (export = vmm), whatever the other tests run on. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "gpu/sim/sim.h"
#include "tests/integration/puppet.h"
#include "tests/integration/wire_peer.h"
#include "tests/raw_client.h"

#define CONFIG "[host]\nexport = vmm\nlimit = 32MiB\nstep = 4MiB\n[device]\nlimit = 32MiB\nstep = 4MiB\n"

static void start(struct test_daemon *daemon, const char *fault) {
    static const char *environment[2];

    environment[0] = fault;
    daemon_start(daemon,
                 &(struct daemon_options){.config = CONFIG, .sim_gpus = 2, .environment = environment});
}

static int acquire(struct puppet *puppet, unsigned slot, uint64_t size_bytes) {
    return puppet_acquire(puppet, slot, GPUPOOL_POOL_HOST, size_bytes, GPUPOOL_FOREVER, 0);
}

static void memory_is_shared_and_comes_back_from_the_dead(void **state) {
    struct test_daemon daemon;
    struct puppet holder, other;
    struct gpupool_token token;

    (void)state;
    if (!test_has_device())
        skip();
    start(&daemon, NULL);
    puppet_connect(&holder, &daemon);
    puppet_connect(&other, &daemon);
    PUPPET_MUST(&holder, acquire(&holder, 0, 6 * MIB));
    assert_int_equal(holder.answer.buffer.kind, GPUPOOL_POOL_HOST);
    assert_int_equal(holder.answer.buffer.device, -1);
    PUPPET_MUST(&holder, puppet_check(&holder, 0, 0));
    PUPPET_MUST(&holder, puppet_fill(&holder, 0, 1));
    PUPPET_MUST(&holder, puppet_share(&holder, 0, &token));
    PUPPET_MUST(&other, puppet_attach(&other, 0, &token));
    PUPPET_MUST(&other, puppet_check(&other, 0, 1));
    PUPPET_MUST(&other, puppet_fill(&other, 0, 2));
    PUPPET_MUST(&holder, puppet_check(&holder, 0, 2));
    puppet_kill(&holder);
    PUPPET_MUST(&other, puppet_check(&other, 0, 2));
    PUPPET_MUST(&other, puppet_release(&other, 0));
    WAIT_UNTIL(daemon_sum(&daemon, "quarantined_bytes") == 0);
    PUPPET_MUST(&other, acquire(&other, 1, 30 * MIB));
    PUPPET_MUST(&other, puppet_fill(&other, 1, 3));
    PUPPET_MUST(&other, puppet_check(&other, 1, 3));
    puppet_quit(&other);
    daemon_stop(&daemon);
}

#define SEGMENTS 4u

/* A client takes so many segments and ends, and the daemon gives them back to the driver. Returns how many
 * descriptors the daemon had with all of them. */
static unsigned take_and_trim(struct test_daemon *daemon, struct puppet *worker) {
    for (unsigned slot = 0; slot < SEGMENTS; slot++)
        PUPPET_MUST(worker, acquire(worker, slot, 4 * MIB));
    unsigned held = daemon_descriptors(daemon);
    puppet_quit(worker);
    /* Its leases end before its mappings do. */
    WAIT_UNTIL(daemon_number(daemon, "sessions") == 0 && daemon_sum(daemon, "leases") == 0);
    cJSON_Delete(daemon_ask(daemon, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(daemon_pool(daemon, "host", 0, "reserved_bytes") == 0);
    puppet_connect(worker, daemon);
    return held;
}

/* From a second round on: CUDA opens descriptors of its own with its first allocation, and keeps them. */
static void segments_cost_a_descriptor_and_give_it_back(void **state) {
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_has_device())
        skip();
    start(&daemon, NULL);
    puppet_connect(&worker, &daemon);
    (void)take_and_trim(&daemon, &worker);
    unsigned before = daemon_descriptors_at_rest(&daemon);
    for (unsigned round = 0; round < 3; round++) {
        assert_true(take_and_trim(&daemon, &worker) >= before + SEGMENTS);
        WAIT_UNTIL(daemon_descriptors(&daemon) <= before);
    }
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

/* Its segments cannot be mapped side by side, and the pool does not say so. */
static void the_pool_and_its_segments_say_what_they_are(void **state) {
    struct proto_message message = {
        .hello = {.magic = PROTO_MAGIC, .version_min = 1, .version_max = PROTO_VERSION_MAX}};
    struct test_daemon daemon;
    struct peer peer = {.event_fd = -1};

    (void)state;
    if (!test_has_device())
        skip();
    start(&daemon, NULL);
    peer.fd = raw_client_connect(daemon.socket, SOCK_SEQPACKET, TEST_WAIT_NS);
    peer_ask(&peer, PROTO_HELLO, &message, PROTO_HELLO_REPLY);
    peer_ask(&peer, PROTO_LIST_POOLS, &message, PROTO_POOLS);
    for (uint32_t i = 0; i < message.pools.count; i++)
        if (message.pools.pools[i].kind == PROTO_POOL_HOST) {
            assert_int_equal(message.pools.pools[i].flags, 0);
            peer.pool = message.pools.pools[i].id;
        }
    assert_int_not_equal(peer.pool, 0);
    struct proto_lease lease = peer_acquire(&peer, 4096);
    assert_int_equal(lease.description.kind, PROTO_SEGMENT_HOST_VMM_FD);
    peer_close(&peer);

    cJSON *stats = daemon_ask(&daemon, "{\"command\":\"stats\"}");
    const cJSON *pool;
    unsigned n_host = 0;
    cJSON_ArrayForEach(pool, cJSON_GetObjectItemCaseSensitive(stats, "pools")) {
        if (strcmp(cJSON_GetObjectItemCaseSensitive(pool, "kind")->valuestring, "host") != 0)
            continue;
        n_host++;
        assert_string_equal(cJSON_GetObjectItemCaseSensitive(pool, "export")->valuestring, "vmm");
        assert_true(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(pool, "pages")));
    }
    assert_true(n_host > 0);
    cJSON_Delete(stats);
    daemon_stop(&daemon);
}

/* --- where it cannot be --- */

static void a_driver_that_cannot_do_it_closes_the_pool_alone(void **state) {
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_is_simulated())
        skip();
    start(&daemon, "GPUPOOL_SIM_FAIL=vmm_host_granule:1:801");
    WAIT_UNTIL(daemon_logged(&daemon, "use export = memfd"));
    puppet_connect(&worker, &daemon);
    PUPPET_MUST_BE(&worker, acquire(&worker, 0, MIB), GPUPOOL_E_DRIVER);
    PUPPET_SAID(&worker, "host memory of NUMA node");
    PUPPET_MUST(&worker, puppet_acquire(&worker, 0, GPUPOOL_POOL_DEVICE, MIB, GPUPOOL_FOREVER, 0));
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

static void a_daemon_without_a_gpu_says_so(void **state) {
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    daemon_start(&daemon, &(struct daemon_options){.config = CONFIG, .gpu = "none"});
    WAIT_UNTIL(daemon_logged(&daemon, "the daemon has no GPU"));
    puppet_connect(&worker, &daemon);
    PUPPET_MUST_BE(&worker, acquire(&worker, 0, MIB), GPUPOOL_E_DRIVER);
    PUPPET_SAID(&worker, "use export = memfd");
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

static void a_client_without_cuda_is_told_what_to_do(void **state) {
    struct puppet_command open_plain = {.verb = PUPPET_OPEN, .flags = GPUPOOL_OPEN_NO_CUDA};
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_has_device())
        skip();
    start(&daemon, NULL);
    puppet_start(&worker, &daemon);
    PUPPET_MUST(&worker, puppet_call(&worker, &open_plain));
    PUPPET_MUST_BE(&worker, acquire(&worker, 0, MIB), GPUPOOL_E_NO_GPU);
    PUPPET_SAID(&worker, "GPUPOOL_OPEN_NO_CUDA");
    PUPPET_SAID(&worker, "export = memfd");
    WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0);
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

/* Each call that a client opens a segment with fails once; the next request is served. */
static void a_segment_that_cannot_be_opened_is_tried_again(void **state) {
    static const char *const faults[] = {"vmm_import:1:999", "address_reserve:1:999", "vmm_map:1:999",
                                         "vmm_host_set_access:1:999", "vmm_set_access@1:1:999"};

    (void)state;
    if (!test_is_simulated())
        skip();
    for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct test_daemon daemon;
        struct puppet worker;
        char fault[64];
        snprintf(fault, sizeof fault, "GPUPOOL_SIM_FAIL=%s", faults[i]);
        start(&daemon, NULL);
        puppet_connect_as(&worker, &daemon, (const char *const[]){fault, NULL}, 0);
        PUPPET_MUST_BE(&worker, acquire(&worker, 0, MIB), GPUPOOL_E_DRIVER);
        PUPPET_SAID(&worker, "cudaErrorUnknown");
        PUPPET_MUST(&worker, acquire(&worker, 0, MIB));
        PUPPET_MUST(&worker, puppet_fill(&worker, 0, 1));
        PUPPET_MUST(&worker, puppet_check(&worker, 0, 1));
        puppet_quit(&worker);
        WAIT_UNTIL(daemon_sum(&daemon, "leases") == 0);
        daemon_stop(&daemon);
    }
}

/* The device through whose driver the memory is made. Processes keep what they have. */
static void a_lost_device_takes_the_pool_along(void **state) {
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_is_simulated())
        skip();
    start(&daemon, "GPUPOOL_SIM_FAIL=vmm_host_create@0:2!:214");
    puppet_connect(&worker, &daemon);
    PUPPET_MUST(&worker, acquire(&worker, 0, MIB));
    PUPPET_MUST(&worker, puppet_fill(&worker, 0, 1));
    PUPPET_MUST_BE(&worker, acquire(&worker, 1, 16 * MIB), GPUPOOL_E_DRIVER);
    PUPPET_SAID(&worker, "the device is lost");
    PUPPET_MUST(&worker, puppet_check(&worker, 0, 1));
    puppet_quit(&worker);
    daemon_stop(&daemon);
}

/* --- no registration, and no waiting for kernels --- */

/* A client registers nothing of it: it works where the driver registers no host memory at all. */
static void nothing_is_registered(void **state) {
    static const char *const fault[] = {"GPUPOOL_SIM_FAIL=host_register:1+:999,host_unregister:1+:999", NULL};
    struct test_daemon daemon;
    struct puppet worker;

    (void)state;
    if (!test_is_simulated())
        skip();
    start(&daemon, NULL);
    puppet_connect_as(&worker, &daemon, fault, 0);
    for (unsigned slot = 0; slot < 4; slot++) {
        PUPPET_MUST(&worker, acquire(&worker, slot, 4 * MIB));
        PUPPET_MUST(&worker, puppet_fill(&worker, slot, slot + 1));
    }
    for (unsigned slot = 0; slot < 4; slot++) {
        PUPPET_MUST(&worker, puppet_check(&worker, slot, slot + 1));
        PUPPET_MUST(&worker, puppet_release(&worker, slot));
    }
    puppet_quit(&worker);
    WAIT_UNTIL(daemon_number(&daemon, "sessions") == 0);
    daemon_stop(&daemon);
}

struct local {
    struct test_daemon daemon;
    struct gpupool_client *client;
    const struct gpu *gpu;
    uint32_t pool;
};

static void open_local(struct local *local) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;

    start(&local->daemon, NULL);
    options.socket = local->daemon.socket;
    assert_int_equal(gpupool_open(&options, &local->client), 0);
    assert_int_equal(gpupool_host_pool(local->client, -1, &local->pool), 0);
    assert_int_equal(gpu_sim(NULL, &local->gpu), 0);
}

/* The daemon has an idle segment of a client closed while a stream of the client is held up: the client
 * unmaps it without waiting, where unregistering a memfd would wait for the stream. */
static void a_busy_client_closes_a_segment_without_waiting(void **state) {
    struct gpupool_buffer buffer;
    struct local local;
    struct puppet other;
    void *stream;

    (void)state;
    if (!test_is_simulated())
        skip();
    open_local(&local);
    assert_int_equal(
        gpupool_acquire(local.client, local.pool, 8 * MIB, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0, &buffer),
        0);
    memset(buffer.data, 1, 8 * MIB);
    assert_int_equal(gpupool_release(local.client, &buffer, GPUPOOL_NO_STREAM), 0);
    uint64_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(word != MAP_FAILED);
    assert_int_equal(local.gpu->host_register(word, 4096), 0);
    assert_int_equal(local.gpu->stream_create(0, &stream), 0);
    assert_int_equal(local.gpu->stream_wait64(0, stream, word, 1), 0);

    puppet_connect(&other, &local.daemon);
    PUPPET_MUST(&other, acquire(&other, 0, 30 * MIB));
    assert_int_equal(local.gpu->stream_query(0, stream), GPU_ERROR_NOT_READY);
    assert_true(daemon_pool(&local.daemon, "host", 0, "closes") > 0);
    puppet_quit(&other);

    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    assert_int_equal(local.gpu->stream_synchronize(0, stream), 0);
    assert_int_equal(local.gpu->stream_destroy(0, stream), 0);
    assert_int_equal(local.gpu->host_unregister(word), 0);
    munmap(word, 4096);
    gpupool_close(local.client);
    daemon_stop(&local.daemon);
}

/* As memory of cudaHostRegister() with its flags for all devices: host code and every device use one address.
 */
static void host_code_and_every_device_use_it(void **state) {
    struct gpupool_buffer buffer;
    struct local local;

    (void)state;
    if (!test_is_simulated())
        skip();
    open_local(&local);
    assert_int_equal(
        gpupool_acquire(local.client, local.pool, MIB, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0, &buffer), 0);
    for (unsigned device = 0; device < 2; device++) {
        memset(buffer.data, 1, MIB);
        assert_int_equal(local.gpu->memory_set(device, buffer.data, 2, MIB, NULL), 0);
        assert_int_equal(local.gpu->device_synchronize(device), 0);
        for (uint64_t i = 0; i < MIB; i += 4096)
            assert_int_equal(((unsigned char *)buffer.data)[i], 2);
    }
    assert_int_equal(gpupool_release(local.client, &buffer, NULL), 0);
    gpupool_close(local.client);
    daemon_stop(&local.daemon);
}

/* Large buffers are cut from arenas in pools whose segments can be mapped at further places: not in this one.
 * A shared piece of an arena is mapped a second time where it is attached. */
static void it_is_mapped_at_one_place(void **state) {
    struct gpupool_buffer buffer, again, reader;
    struct gpupool_token token;
    struct local local;

    (void)state;
    if (!test_is_simulated())
        skip();
    assert_int_equal(setenv("GPUPOOL_ARENAS", "1", 1), 0);
    open_local(&local);
    assert_int_equal(unsetenv("GPUPOOL_ARENAS"), 0);
    assert_int_equal(
        gpupool_acquire(local.client, local.pool, 24 * MIB, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0, &buffer),
        0);
    assert_int_equal(gpupool_share(local.client, &buffer, GPUPOOL_NO_STREAM, &token), 0);
    assert_int_equal(gpupool_attach(local.client, &token, GPUPOOL_NO_STREAM, 0, &again), 0);
    assert_ptr_equal(again.data, buffer.data);
    assert_int_equal(gpupool_attach(local.client, &token, GPUPOOL_NO_STREAM, GPUPOOL_READ_ONLY, &reader),
                     GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "host memory cannot be mapped for reading alone"));
    assert_int_equal(gpupool_release(local.client, &again, NULL), 0);
    assert_int_equal(gpupool_release(local.client, &buffer, NULL), 0);
    gpupool_close(local.client);
    daemon_stop(&local.daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_shared_and_comes_back_from_the_dead),
        cmocka_unit_test(segments_cost_a_descriptor_and_give_it_back),
        cmocka_unit_test(the_pool_and_its_segments_say_what_they_are),
        cmocka_unit_test(a_driver_that_cannot_do_it_closes_the_pool_alone),
        cmocka_unit_test(a_daemon_without_a_gpu_says_so),
        cmocka_unit_test(a_client_without_cuda_is_told_what_to_do),
        cmocka_unit_test(a_segment_that_cannot_be_opened_is_tried_again),
        cmocka_unit_test(a_lost_device_takes_the_pool_along),
        cmocka_unit_test(nothing_is_registered),
        cmocka_unit_test(a_busy_client_closes_a_segment_without_waiting),
        cmocka_unit_test(host_code_and_every_device_use_it),
        cmocka_unit_test(it_is_mapped_at_one_place),
    };

    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
