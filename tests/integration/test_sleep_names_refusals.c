/* SPDX-License-Identifier: Apache-2.0 */
/* Names that cannot sleep, generations that have no place in a name, and what a name that sleeps is refused. */
#include <sys/mman.h>

#include "tests/integration/sleep_names_fixture.h"

/* --- publishers --- */

/* Publishes buffers that are as they come, and has a reader open them so that they may sleep: INVALID. */
static void refuse_to_open(struct gpupool_client *publisher, struct gpupool_client *client, uint32_t pool,
                           uint64_t size_bytes, const char *advice) {
    struct gpupool_buffer buffers[2] = {{0}};
    struct gpupool_name *name = NULL;
    size_t count = 1;
    int builds;

    MUST(gpupool_acquire(publisher, pool, size_bytes, NULL, GPUPOOL_FOREVER, 0, &buffers[0]));
    if (gpupool_acquire(publisher, device_pool(publisher), MIB, NULL, GPUPOOL_FOREVER, GPUPOOL_CAN_SLEEP,
                        &buffers[1]) == 0)
        count++;
    MUST(gpupool_publish(publisher, NAME, buffers, count, NULL, NULL, NULL));
    for (unsigned i = 0; i < 2; i++) { /* the second one first, too */
        MUST_BE(gpupool_open_name(client, NAME, 0, GPUPOOL_NAME_CAN_SLEEP, NULL, GPUPOOL_NOW, &name),
                GPUPOOL_E_INVALID);
        SAYS(advice);
        MUST_BE(
            gpupool_open_or_build(client, NAME, GPUPOOL_NAME_CAN_SLEEP, NULL, GPUPOOL_NOW, &name, &builds),
            GPUPOOL_E_INVALID);
        SAYS(advice);
        assert_null(name);
        if (count < 2)
            break;
        const struct gpupool_buffer reversed[] = {buffers[1], buffers[0]};
        MUST(gpupool_publish(publisher, NAME, reversed, count, NULL, NULL, NULL));
    }
    MUST(gpupool_open_name(client, NAME, 0, 0, NULL, GPUPOOL_NOW, &name));
    MUST_BE(gpupool_sleep_name(client, name, NULL), GPUPOOL_E_INVALID);
    SAYS("GPUPOOL_NAME_CAN_SLEEP");
    MUST_BE(gpupool_wake_name(client, name, 0, NULL, GPUPOOL_NOW), GPUPOOL_E_INVALID);
    SAYS("GPUPOOL_NAME_CAN_SLEEP");
    MUST(gpupool_close_name(client, name, NULL));
    MUST(gpupool_unpublish(publisher, NAME, 0));
    for (size_t i = 0; i < count; i++)
        MUST(gpupool_release(publisher, &buffers[i], NULL));
}

static void sets_of_other_buffers_are_refused_with_advice(void **state) {
    static const char *const exports[] = {"vmm", "ipc"};
    struct test_daemon daemon;
    uint32_t host_pool;
    char config[128];

    (void)state;
    if (!test_is_simulated())
        skip();
    for (unsigned i = 0; i < 2; i++) {
        snprintf(config, sizeof config,
                 "[device]\nexport = %s\nlimit = 64MiB\n[host]\nlimit = 32MiB\nstep = 4MiB\n", exports[i]);
        sleep_start_with(&daemon, &(struct daemon_options){.config = config, .sim_gpus = 1});
        for (unsigned kind = 0; kind < CLIENT_KINDS; kind++) {
            struct gpupool_client *publisher = sleep_open(&daemon, client_kinds[kind]);
            struct gpupool_client *client = sleep_open(&daemon, client_kinds[kind]);
            MUST(gpupool_host_pool(publisher, -1, &host_pool));
            refuse_to_open(publisher, client, host_pool, MIB, "host memory cannot sleep");
            refuse_to_open(publisher, client, device_pool(publisher), MIB,
                           i == 0 ? "acquire its buffers with GPUPOOL_CAN_SLEEP" : "export = vmm");
            gpupool_close(client);
            gpupool_close(publisher);
        }
        sleep_stop(&daemon);
    }
}

/* --- generations --- */

/* A name, awake or asleep, is asked for a generation that has no place in it. It stays as it is. */
static void refuse_generation(struct gpupool_client *publisher, struct gpupool_client *client,
                              const struct gpupool_buffer *buffers, size_t count, const char *directory,
                              const char *text) {
    struct gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;
    uint64_t generation = publish_seed(publisher, 1, 0), other;
    struct gpupool_name *name = open_set(client, 0);
    const struct places places = places_of(name);

    publication.directory = directory;
    publication.directory_bytes = strlen(directory) + 1;
    MUST(gpupool_publish(publisher, NAME, buffers, count, NULL, &publication, &other));
    MUST_BE(gpupool_wake_name(client, name, other, NULL, GPUPOOL_NOW), GPUPOOL_E_INVALID);
    SAYS(text);
    expect_awake(client, name, &places, 1);
    MUST(gpupool_sleep_name(client, name, NULL));
    MUST_BE(gpupool_wake_name(client, name, 0, NULL, GPUPOOL_NOW), GPUPOOL_E_INVALID);
    SAYS(text);
    expect_asleep(name, &places);
    assert_int_equal(gpupool_name_generation(name), generation);
    publish_seed(publisher, 2, 0);
    MUST(gpupool_wake_name(client, name, 0, NULL, GPUPOOL_NOW));
    expect_awake(client, name, &places, 2);
    MUST(gpupool_close_name(client, name, NULL));
    MUST(gpupool_unpublish(publisher, NAME, 0));
}

static void generations_of_another_layout_are_refused(void **state) {
    struct set set = {.sizes = {SLEEPER_BYTES, MIB}};
    struct gpupool_buffer plain[SET];
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0), *client = sleep_open(&daemon, 0);
    set_acquire(publisher, &set);
    refuse_generation(publisher, client, set.buffers, SET, "it lies elsewhere", "another layout");
    refuse_generation(publisher, client, set.buffers, 1, LAYOUT, "another layout");
    set_release(publisher, &set);
    set.sizes[1]++;
    set_acquire(publisher, &set);
    refuse_generation(publisher, client, set.buffers, SET, LAYOUT, "another layout");
    set_release(publisher, &set);
    /* The layout is the same, and the place in the segments is not. */
    MUST(gpupool_acquire(publisher, device_pool(publisher), SLEEPER_BYTES, NULL, GPUPOOL_FOREVER,
                         GPUPOOL_CAN_SLEEP, &plain[0]));
    struct gpupool_buffer first; /* so that the next lies in the middle of its segment */
    MUST(gpupool_acquire(publisher, device_pool(publisher), 4096, NULL, GPUPOOL_FOREVER, 0, &first));
    MUST(gpupool_acquire(publisher, device_pool(publisher), MIB, NULL, GPUPOOL_FOREVER, 0, &plain[1]));
    refuse_generation(publisher, client, plain, SET, LAYOUT, "buffer 1: the other block");
    MUST(gpupool_release(publisher, &first, NULL));
    MUST(gpupool_release(publisher, &plain[0], NULL));
    MUST(gpupool_release(publisher, &plain[1], NULL));
    gpupool_close(client);
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

/* A generation on another device has another place, whatever its layout. */
static void generations_on_another_device_are_refused(void **state) {
    struct set set = SET_OF_TWO;
    struct test_daemon daemon;
    uint32_t pools[2];

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start_with(&daemon, &(struct daemon_options){.config = SLEEP_CONFIG, .sim_gpus = 2});
    struct gpupool_client *publisher = sleep_open(&daemon, 0), *client = sleep_open(&daemon, 0);
    for (unsigned i = 0; i < 2; i++)
        MUST(gpupool_device_pool(publisher, (int)i, &pools[i]));
    for (unsigned i = 0; i < SET; i++)
        MUST(gpupool_acquire(publisher, pools[i], set.sizes[i], GPUPOOL_NO_STREAM, GPUPOOL_FOREVER,
                             GPUPOOL_CAN_SLEEP, &set.buffers[i]));
    refuse_generation(publisher, client, set.buffers, SET, LAYOUT,
                      "buffer 1: the buffer lies on another device");
    for (unsigned i = 0; i < SET; i++)
        MUST(gpupool_release(publisher, &set.buffers[i], GPUPOOL_NO_STREAM));
    gpupool_close(client);
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

/* --- arguments and states --- */

static void wrong_arguments_are_refused(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    publish_seed(client, 1, 0);
    struct gpupool_name *name = open_set(client, 0);
    const struct places places = places_of(name);
    MUST_BE(gpupool_sleep_name(NULL, name, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_sleep_name(client, NULL, NULL), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_wake_name(client, NULL, 0, NULL, GPUPOOL_NOW), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_sleep_name(client, name, GPUPOOL_OWN_STREAM), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_wake_name(client, name, 0, GPUPOOL_OWN_STREAM, GPUPOOL_NOW), GPUPOOL_E_INVALID);
    expect_awake(client, name, &places, 1);
    MUST(gpupool_close_name(client, name, NULL));
    gpupool_close(client);
    sleep_stop(&daemon);
}

static void buffers_of_a_name_that_sleeps_say_what_to_do(void **state) {
    struct gpupool_buffer_info info;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    publish_seed(client, 1, 0);
    struct gpupool_name *name = open_set(client, 0);
    const struct places places = places_of(name);
    MUST(gpupool_sleep_name(client, name, NULL));
    for (unsigned i = 0; i < SET; i++) {
        const struct gpupool_buffer *buffer = &gpupool_name_buffers(name, NULL)[i];
        struct gpupool_buffer copy = *buffer;
        const int results[] = {
            gpupool_share(client, buffer, GPUPOOL_NO_STREAM, &token),
            gpupool_publish(client, "again", buffer, 1, GPUPOOL_NO_STREAM, NULL, NULL),
            gpupool_reuse(client, buffer, NULL),
            gpupool_record_stream(client, buffer, NULL),
            gpupool_query(client, buffer, &info),
            gpupool_sleep(client, buffer, GPUPOOL_KEEP_NOTHING, NULL),
            gpupool_sleep(client, buffer, GPUPOOL_KEEP_ON_GPU, NULL),
            gpupool_wake(client, &copy, NULL, GPUPOOL_NOW, 0),
        };
        for (unsigned j = 0; j < sizeof results / sizeof *results; j++)
            assert_int_equal(results[j], GPUPOOL_E_INVALID);
        SAYS("gpupool_wake_name()");
    }
    expect_asleep(name, &places);
    MUST(gpupool_wake_name(client, name, 0, NULL, GPUPOOL_NOW));
    expect_awake(client, name, &places, 1);
    for (unsigned i = 0; i < SET; i++)
        MUST(gpupool_query(client, &gpupool_name_buffers(name, NULL)[i], &info));
    MUST(gpupool_close_name(client, name, NULL));
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* The program may put a buffer of a name to sleep, which keeps its lease; the name is then as it says. */
static void a_buffer_that_sleeps_by_itself_is_not_the_names(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    uint64_t generation = publish_seed(client, 1, 0);
    struct gpupool_name *name = open_set(client, 0);
    const struct places places = places_of(name);
    struct gpupool_buffer copy = gpupool_name_buffers(name, NULL)[1];
    MUST(gpupool_sleep(client, &copy, GPUPOOL_KEEP_ON_GPU, NULL));
    MUST_BE(gpupool_sleep_name(client, name, NULL), GPUPOOL_E_INVALID);
    SAYS("buffer 1 sleeps by itself");
    MUST_BE(gpupool_wake_name(client, name, generation + 1, NULL, GPUPOOL_NOW), GPUPOOL_E_INVALID);
    SAYS("buffer 1 sleeps by itself");
    MUST(gpupool_wake(client, &copy, NULL, GPUPOOL_NOW, 0));
    expect_awake(client, name, &places, 1);
    MUST(gpupool_sleep_name(client, name, NULL));
    MUST(gpupool_close_name(client, name, NULL));
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* --- work --- */

static void a_stream_that_is_captured_is_refused(void **state) {
    struct test_daemon daemon;
    unsigned operations;
    void *stream;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *client = sleep_open(&daemon, 0);
    publish_seed(client, 1, 0);
    struct gpupool_name *name = open_set(client, 0);
    const struct places places = places_of(name);
    MUST(gpupool_stream_create(client, 0, &stream));
    uint64_t generation = publish_seed(client, 2, 0);
    for (unsigned i = 0; i < 3; i++) { /* asleep, awake with an older generation, to sleep */
        if (i == 0)
            MUST(gpupool_sleep_name(client, name, stream));
        else if (i == 1)
            generation = publish_seed(client, 3, 0);
        assert_int_equal(gpu_sim_capture_begin(0, stream), 0);
        MUST_BE(i < 2 ? gpupool_wake_name(client, name, generation, stream, GPUPOOL_NOW)
                      : gpupool_sleep_name(client, name, stream),
                GPUPOOL_E_CAPTURING);
        assert_int_equal(gpu_sim_capture_end(0, stream, &operations), 0);
        assert_int_equal(operations, 0);
        if (i == 0)
            expect_asleep(name, &places);
        else
            expect_awake(client, name, &places, 1 + i);
        if (i < 2)
            MUST(gpupool_wake_name(client, name, generation, stream, GPUPOOL_NOW));
    }
    MUST(gpupool_close_name(client, name, stream));
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
    sleep_stop(&daemon);
}

/* A word that holds a stream of the test's process. */
struct held_stream {
    const struct gpu *gpu;
    uint64_t *word;
    void *stream;
};

static void hold(struct held_stream *held) {
    assert_int_equal(gpu_sim(NULL, &held->gpu), 0);
    held->word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(held->word != MAP_FAILED);
    assert_int_equal(held->gpu->host_register(held->word, 4096), 0);
    assert_int_equal(held->gpu->stream_create(0, &held->stream), 0);
    assert_int_equal(held->gpu->stream_wait64(0, held->stream, held->word, 1), 0);
}

static void let_go(struct held_stream *held) {
    __atomic_store_n(held->word, 1, __ATOMIC_RELEASE);
    assert_int_equal(held->gpu->stream_synchronize(0, held->stream), 0);
}

static void drop(struct held_stream *held) {
    assert_int_equal(held->gpu->stream_destroy(0, held->stream), 0);
    assert_int_equal(held->gpu->host_unregister(held->word), 0);
    munmap(held->word, 4096);
}

/* An address that maps nothing would end the device: neither call goes on while the GPU uses the buffers. */
static void memory_that_the_gpu_uses_stays(void **state) {
    struct held_stream held;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0);
    struct gpupool_client *client = sleep_open_for(&daemon, 0, UINT64_C(50000000));
    uint64_t generation = publish_seed(publisher, 1, 0);
    struct gpupool_name *name = open_set(client, 0);
    const struct places places = places_of(name);
    for (unsigned is_recorded = 0; is_recorded < 2; is_recorded++) {
        generation = publish_seed(publisher, 2 + is_recorded, 0);
        hold(&held);
        if (is_recorded)
            MUST(gpupool_record_stream(client, &gpupool_name_buffers(name, NULL)[1], held.stream));
        void *stream = is_recorded ? NULL : held.stream;
        for (unsigned j = 0; j < 2; j++) {
            MUST_BE(gpupool_sleep_name(client, name, stream), GPUPOOL_E_TIMED_OUT);
            MUST_BE(gpupool_wake_name(client, name, generation, stream, GPUPOOL_NOW), GPUPOOL_E_TIMED_OUT);
            expect_awake(client, name, &places, 1 + is_recorded);
            assert_int_equal(gpupool_name_generation(name) < generation, true);
        }
        let_go(&held);
        MUST(gpupool_wake_name(client, name, generation, stream, GPUPOOL_NOW));
        expect_awake(client, name, &places, 2 + is_recorded);
        drop(&held);
    }
    MUST(gpupool_close_name(client, name, NULL));
    gpupool_close(client);
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

/* The publisher's work is not done when the name wakes: the stream waits for it, and the program does not. */
static void a_stream_waits_for_the_publishers_work(void **state) {
    struct set set = SET_OF_TWO;
    struct held_stream held;
    struct test_daemon daemon;
    void *stream;

    (void)state;
    if (!test_is_simulated())
        skip();
    sleep_start(&daemon);
    struct gpupool_client *publisher = sleep_open(&daemon, 0), *client = sleep_open(&daemon, 0);
    publish_seed(publisher, 1, 0);
    struct gpupool_name *name = open_set(client, 0);
    const struct gpupool_buffer *buffers = gpupool_name_buffers(name, NULL);
    MUST(gpupool_stream_create(client, 0, &stream));
    struct gpupool_buffer seen = acquire_sleeper(client, MIB);
    for (unsigned sleeps = 0; sleeps < 2; sleeps++) {
        set_acquire(publisher, &set);
        hold(&held);
        for (unsigned i = 0; i < SET; i++)
            MUST(gpupool_set(publisher, 0, set.buffers[i].data, 40 + (int)sleeps, set.sizes[i], held.stream));
        struct gpupool_publication publication = GPUPOOL_PUBLICATION_INIT;
        publication.directory = LAYOUT;
        publication.directory_bytes = sizeof LAYOUT;
        MUST(gpupool_publish(publisher, NAME, set.buffers, SET, held.stream, &publication, &set.generation));
        if (sleeps)
            MUST(gpupool_sleep_name(client, name, stream));
        MUST(gpupool_wake_name(client, name, set.generation, stream, GPUPOOL_NOW));
        MUST(gpupool_copy(client, 0, seen.data, buffers[1].data, MIB, stream));
        let_go(&held);
        MUST(gpupool_stream_synchronize(client, 0, stream));
        for (unsigned i = 0; i < MIB; i += 509)
            assert_int_equal(((const char *)seen.data)[i], 40 + (int)sleeps);
        for (unsigned i = 0; i < SET; i++)
            MUST(gpupool_release(publisher, &set.buffers[i], held.stream));
        MUST(gpupool_trim(publisher, NULL));
        drop(&held);
    }
    MUST(gpupool_release(client, &seen, stream));
    MUST(gpupool_close_name(client, name, stream));
    MUST(gpupool_stream_destroy(client, 0, stream));
    gpupool_close(client);
    gpupool_close(publisher);
    sleep_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sets_of_other_buffers_are_refused_with_advice),
        cmocka_unit_test(generations_of_another_layout_are_refused),
        cmocka_unit_test(generations_on_another_device_are_refused),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(buffers_of_a_name_that_sleeps_say_what_to_do),
        cmocka_unit_test(a_buffer_that_sleeps_by_itself_is_not_the_names),
        cmocka_unit_test(a_stream_that_is_captured_is_refused),
        cmocka_unit_test(memory_that_the_gpu_uses_stays),
        cmocka_unit_test(a_stream_waits_for_the_publishers_work),
    };

    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
