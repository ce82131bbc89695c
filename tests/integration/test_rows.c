/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that lie in several segments, shared between processes: rows. */
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/failing_memory.h"
#include "tests/integration/rows_fixture.h"

/* --- what is shared --- */

static void a_row_is_read_and_written_by_another_process(void **state) {
    struct puppet owner, other, third;
    struct gpupool_token token, again;
    struct test_daemon daemon;

    (void)state;
    if (!test_has_device())
        skip();
    rows_start(&daemon, 1);
    owner_start(&owner, &daemon);
    puppet_connect(&other, &daemon);
    puppet_connect(&third, &daemon);
    owner_share(&owner, 0, 1, &token);
    PUPPET_MUST(&owner, puppet_query(&owner, 0));
    assert_int_not_equal(owner.answer.info.offset_bytes, 0); /* it begins inside a segment */
    PUPPET_MUST(&other, puppet_attach(&other, 0, &token));
    assert_int_equal(other.answer.buffer.size_bytes, ROW_BYTES);
    const void *memory = other.answer.buffer.data;
    PUPPET_MUST(&other, puppet_attach(&other, 1, &token));
    assert_ptr_equal(other.answer.buffer.data, memory);
    PUPPET_MUST(&other, puppet_check(&other, 1, 1));
    PUPPET_MUST(&other, puppet_fill(&other, 0, 2));
    PUPPET_MUST(&owner, puppet_check(&owner, 0, 2));

    PUPPET_MUST(&other, puppet_share(&other, 0, &again)); /* a holder may share it on */
    assert_memory_equal(&again, &token, sizeof token);
    PUPPET_MUST(&third, puppet_attach(&third, 0, &again));
    PUPPET_MUST(&third, puppet_check(&third, 0, 2));
    PUPPET_MUST(&third, puppet_query(&third, 0));
    assert_int_equal(third.answer.info.holders, 4);
    assert_int_equal(third.answer.info.buffer.size_bytes, ROW_BYTES);
    puppet_quit(&third);
    puppet_quit(&other);
    PUPPET_MUST(&owner, puppet_check(&owner, 0, 2));
    puppet_quit(&owner);
    rows_stop(&daemon);
}

static void a_row_is_given_back_in_any_order(void **state) {
    (void)state;
    if (!test_has_device())
        skip();
    for (unsigned owner_first = 0; owner_first < 2; owner_first++) {
        struct puppet owner, other;
        struct gpupool_token token;
        struct test_daemon daemon;
        rows_start(&daemon, 1);
        owner_start(&owner, &daemon);
        puppet_connect(&other, &daemon);
        uint64_t before = daemon_sum(&daemon, "leased_bytes");
        owner_share(&owner, 0, 1, &token);
        PUPPET_MUST(&other, puppet_attach(&other, 0, &token));
        if (owner_first) {
            PUPPET_MUST(&owner, puppet_release(&owner, 0));
            /* The owner's next buffers do not lie in what the other process still has. */
            PUPPET_MUST(&owner,
                        puppet_acquire(&owner, 1, GPUPOOL_POOL_DEVICE, ROW_BYTES, GPUPOOL_FOREVER, 0));
            PUPPET_MUST(&owner, puppet_fill(&owner, 1, 3));
            PUPPET_MUST(&other, puppet_check(&other, 0, 1));
            PUPPET_MUST(&owner, puppet_release(&owner, 1));
        }
        PUPPET_MUST(&other, puppet_release(&other, 0));
        PUPPET_MUST_BE(&other, puppet_release(&other, 0), GPUPOOL_E_STALE);
        if (!owner_first) {
            PUPPET_MUST(&owner, puppet_check(&owner, 0, 1));
            PUPPET_MUST(&owner, puppet_release(&owner, 0));
            WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") <= before + SEGMENT_BYTES);
        }
        PUPPET_MUST_BE(&other, puppet_attach(&other, 0, &token), GPUPOOL_E_NO_TOKEN);
        puppet_quit(&other);
        puppet_quit(&owner);
        rows_stop(&daemon);
    }
}

static void a_shared_row_is_not_divided(void **state) {
    struct puppet owner, other;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_has_device())
        skip();
    rows_start(&daemon, 1);
    owner_start(&owner, &daemon);
    puppet_connect(&other, &daemon);
    owner_share(&owner, 0, 1, &token);
    PUPPET_MUST(&other, puppet_attach(&other, 0, &token));
    struct puppet *both[] = {&owner, &other};
    for (unsigned i = 0; i < 2; i++) {
        PUPPET_MUST_BE(both[i],
                       puppet_call(both[i], &(struct puppet_command){.verb = PUPPET_SHRINK, .size = MIB}),
                       GPUPOOL_E_SHARED);
        PUPPET_SAID(both[i], "release it whole");
        PUPPET_MUST(both[i], puppet_check(both[i], 0, 1));
        PUPPET_MUST(both[i], puppet_release(both[i], 0));
    }
    puppet_quit(&other);
    puppet_quit(&owner);
    rows_stop(&daemon);
}

/* More parts than one message names. */
static void a_row_of_many_parts_is_attached(void **state) {
    struct puppet owner, other;
    struct gpupool_token token;
    struct test_daemon daemon;
    const struct puppet_command acquire = {.verb = PUPPET_ACQUIRE,
                                           .kind = GPUPOOL_POOL_DEVICE,
                                           .size = 150 * MIB,
                                           .timeout_ns = GPUPOOL_FOREVER};

    (void)state;
    if (!test_has_device())
        skip();
    daemon_start(&daemon, &(struct daemon_options){.config = "[device]\nexport = vmm\nlimit = 192MiB\n",
                                                   .sim_gpus = 1});
    owner_start(&owner, &daemon);
    puppet_connect(&other, &daemon);
    PUPPET_MUST(&owner, puppet_call(&owner, &acquire));
    PUPPET_MUST(&owner, puppet_fill(&owner, 0, 1));
    PUPPET_MUST(&owner, puppet_share(&owner, 0, &token));
    PUPPET_MUST(&other, puppet_attach(&other, 0, &token));
    PUPPET_MUST(&other, puppet_check(&other, 0, 1));
    puppet_quit(&other);
    puppet_quit(&owner);
    rows_stop(&daemon);
}

struct sharer {
    struct gpupool_client *client;
    const struct gpupool_buffer *buffer;
    pthread_barrier_t *barrier;
    struct gpupool_token token;
    int result;
};

static void *share_it(void *argument) {
    struct sharer *sharer = argument;

    pthread_barrier_wait(sharer->barrier);
    sharer->result = gpupool_share(sharer->client, sharer->buffer, GPUPOOL_NO_STREAM, &sharer->token);
    return NULL;
}

/* One of them makes the row, and all get its token. */
static void threads_share_one_buffer_at_once(void **state) {
    struct test_daemon daemon;
    pthread_barrier_t barrier;
    uint32_t pool;

    (void)state;
    if (!test_has_device())
        skip();
    rows_start(&daemon, 1);
    struct gpupool_client *client = client_open(&daemon, true);
    MUST(gpupool_device_pool(client, 0, &pool));
    assert_int_equal(pthread_barrier_init(&barrier, NULL, 3), 0);
    for (unsigned round = 0; round < 100; round++) {
        struct gpupool_buffer buffer;
        struct sharer sharers[3];
        pthread_t threads[3];
        /* Whole segments, or parts of the first and the last one. */
        MUST(gpupool_acquire(client, pool, round % 2 == 0 ? 6 * MIB : 5 * MIB, NULL, GPUPOOL_FOREVER, 0,
                             &buffer));
        for (unsigned i = 0; i < 3; i++) {
            sharers[i] = (struct sharer){.client = client, .buffer = &buffer, .barrier = &barrier};
            assert_int_equal(pthread_create(&threads[i], NULL, share_it, &sharers[i]), 0);
        }
        for (unsigned i = 0; i < 3; i++) {
            TEST_JOIN(threads[i], NULL);
            assert_int_equal(sharers[i].result, 0);
            assert_memory_equal(&sharers[i].token, &sharers[0].token, sizeof sharers[0].token);
        }
        MUST(gpupool_release(client, &buffer, NULL));
    }
    pthread_barrier_destroy(&barrier);
    gpupool_close(client);
    rows_stop(&daemon);
}

/* --- processes that end --- */

static void a_row_outlives_its_owner(void **state) {
    struct puppet owner, other;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_has_device())
        skip();
    rows_start(&daemon, 1);
    owner_start(&owner, &daemon);
    puppet_connect(&other, &daemon);
    owner_share(&owner, 0, 1, &token);
    PUPPET_MUST(&other, puppet_attach(&other, 0, &token));
    puppet_kill(&owner);
    PUPPET_MUST(&other, puppet_check(&other, 0, 1));
    WAIT_UNTIL(daemon_sum(&daemon, "quarantined_bytes") == 0);
    PUPPET_MUST(&other, puppet_check(&other, 0, 1));
    PUPPET_MUST(&other, puppet_attach(&other, 1, &token)); /* it holds it, and so the token is good */
    PUPPET_MUST(&other, puppet_release(&other, 1));
    PUPPET_MUST(&other, puppet_release(&other, 0));
    WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0);
    puppet_quit(&other);
    rows_stop(&daemon);
}

static void a_row_comes_back_from_a_dead_process(void **state) {
    struct puppet owner, other;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_has_device())
        skip();
    rows_start(&daemon, 1);
    owner_start(&owner, &daemon);
    puppet_connect(&other, &daemon);
    owner_share(&owner, 0, 1, &token);
    PUPPET_MUST(&other, puppet_attach(&other, 0, &token));
    puppet_kill(&other);
    WAIT_UNTIL(daemon_sessions(&daemon, "quarantined") == 0);
    PUPPET_MUST(&owner, puppet_query(&owner, 0));
    assert_int_equal(owner.answer.info.holders, 1);
    PUPPET_MUST(&owner, puppet_check(&owner, 0, 1));
    PUPPET_MUST(&owner, puppet_release(&owner, 0));
    puppet_quit(&owner);
    rows_stop(&daemon);
}

/* The owner dies after its token was taken, and before all segments are there. */
static void an_attach_goes_on_when_the_owner_dies(void **state) {
    char path[] = "/tmp/gpupool-hang-XXXXXX", plan[96];
    struct puppet owner, other;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(plan, sizeof plan, "GPUPOOL_SIM_HANG=vmm_import:1:%s", path);
    rows_start(&daemon, 1);
    owner_start(&owner, &daemon);
    puppet_connect_as(&other, &daemon, (const char *const[]){plan, NULL}, 0);
    owner_share(&owner, 0, 1, &token);
    puppet_send(&other, &(struct puppet_command){.verb = PUPPET_ATTACH, .token = token});
    WAIT_UNTIL(puppet_query(&owner, 0) == 0 && owner.answer.info.holders == 2);
    puppet_kill(&owner);
    WAIT_UNTIL(daemon_sum(&daemon, "quarantined_bytes") == 0);
    assert_false(puppet_has_answered(&other));
    unlink(path);
    PUPPET_MUST(&other, puppet_receive(&other));
    PUPPET_MUST(&other, puppet_check(&other, 0, 1));
    PUPPET_MUST(&other, puppet_release(&other, 0));
    puppet_quit(&other);
    rows_stop(&daemon);
}

struct attacher {
    struct gpupool_client *client;
    struct gpupool_token token;
    unsigned attached;
    int result; /* of the call that ended it */
};

/* Attaches until there is nothing to attach. */
static void *attach_on(void *argument) {
    struct attacher *attacher = argument;
    struct gpupool_buffer buffer;

    while ((attacher->result =
                gpupool_attach(attacher->client, &attacher->token, GPUPOOL_NO_STREAM, 0, &buffer)) == 0) {
        __atomic_add_fetch(&attacher->attached, 1, __ATOMIC_RELAXED);
        attacher->result = gpupool_release(attacher->client, &buffer, GPUPOOL_NO_STREAM);
        if (attacher->result != 0)
            break;
    }
    return NULL;
}

/* At any point of an attach. */
static void attaches_race_with_the_owners_death(void **state) {
    struct test_daemon daemon;

    (void)state;
    if (!test_has_device())
        skip();
    rows_start(&daemon, 1);
    struct gpupool_client *client = client_open(&daemon, false);
    for (unsigned round = 0; round < 10; round++) {
        struct puppet owner;
        struct attacher attachers[2];
        struct gpupool_token token;
        pthread_t threads[2];
        owner_start(&owner, &daemon);
        owner_share(&owner, 0, 1, &token);
        for (unsigned i = 0; i < 2; i++) {
            attachers[i] = (struct attacher){.client = client, .token = token};
            assert_int_equal(pthread_create(&threads[i], NULL, attach_on, &attachers[i]), 0);
        }
        WAIT_UNTIL(round == 0 || __atomic_load_n(&attachers[0].attached, __ATOMIC_RELAXED) > round);
        puppet_kill(&owner);
        for (unsigned i = 0; i < 2; i++) {
            TEST_JOIN(threads[i], NULL);
            assert_int_equal(attachers[i].result, GPUPOOL_E_NO_TOKEN);
        }
        WAIT_UNTIL(daemon_sum(&daemon, "leased_bytes") == 0 && daemon_sum(&daemon, "quarantined_bytes") == 0);
    }
    gpupool_close(client);
    rows_stop(&daemon);
}

/* --- failures --- */

/* A process that cannot use the memory gets an error, and holds nothing. */
static void a_process_without_the_device_is_refused(void **state) {
    struct puppet owner, other;
    struct gpupool_token token;
    struct test_daemon daemon;

    (void)state;
    if (!test_is_simulated())
        skip();
    rows_start(&daemon, 2);
    owner_start(&owner, &daemon);
    owner_share(&owner, 0, 1, &token);
    for (unsigned i = 0; i < 2; i++) {
        puppet_start_as(&other, &daemon,
                        i == 0 ? (const char *const[]){"CUDA_VISIBLE_DEVICES=1", NULL} : NULL, 0);
        PUPPET_MUST(&other, puppet_call(&other, &(struct puppet_command){
                                                    .verb = PUPPET_OPEN,
                                                    .flags = i == 0 ? 0 : GPUPOOL_OPEN_NO_CUDA}));
        PUPPET_MUST_BE(&other, puppet_attach(&other, 0, &token),
                       i == 0 ? GPUPOOL_E_NO_POOL : GPUPOOL_E_NO_GPU);
        PUPPET_MUST(&other, puppet_acquire(&other, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&owner, puppet_query(&owner, 0));
        assert_int_equal(owner.answer.info.holders, 1);
        puppet_quit(&other);
    }
    PUPPET_MUST(&owner, puppet_check(&owner, 0, 1));
    puppet_quit(&owner);
    rows_stop(&daemon);
}

/* Each call of the driver in turn fails while a client attaches. Nothing of the attempt is left but the
 * segments that were imported; the next attempt succeeds. */
static void an_attach_fails_whole_and_succeeds_later(void **state) {
    struct gpupool_buffer buffer;
    struct gpupool_token token;
    struct test_daemon daemon;
    struct puppet owner;
    unsigned failures = 0;

    (void)state;
    if (!test_is_simulated())
        skip();
    rows_start(&daemon, 1);
    owner_start(&owner, &daemon);
    owner_share(&owner, 0, 1, &token);
    struct gpupool_client *first =
        client_open(&daemon, false); /* the driver starts, and keeps what it opens */
    MUST(gpupool_attach(first, &token, GPUPOOL_NO_STREAM, 0, &buffer));
    gpupool_close(first);
    unsigned descriptors = count_descriptors();
    uint64_t addresses = count_addresses();
    for (unsigned n = 1, failed = 1; failed; n++) {
        struct gpupool_client *client = client_open(&daemon, false);
        assert_int_equal(gpu_sim_fail("any", n, GPU_ERROR_MEMORY_ALLOCATION), 0);
        int r = gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &buffer);
        failed = gpu_sim_failed();
        assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
        if (r != 0) {
            assert_true(failed);
            assert_int_equal(r, GPUPOOL_E_DRIVER);
            assert_non_null(strstr(gpupool_error_text(), "cudaErrorMemoryAllocation"));
            assert_int_equal(count_addresses(), addresses);
            failures++;
            PUPPET_MUST(&owner, puppet_query(&owner, 0));
            assert_int_equal(owner.answer.info.holders, 1);
            MUST(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &buffer));
        }
        if (n % 8 == 0) /* a sanitizer takes long over all */
            MUST(puppet_read_pattern(client, &buffer, 1, NULL));
        MUST(gpupool_release(client, &buffer, NULL));
        gpupool_close(client);
        assert_int_equal(count_descriptors(), descriptors);
        assert_int_equal(count_addresses(), addresses);
    }
    assert_true(failures > 2 * ROW_BYTES / SEGMENT_BYTES); /* each import and each mapping */
    PUPPET_MUST(&owner, puppet_check(&owner, 0, 1));
    puppet_quit(&owner);
    rows_stop(&daemon);
}

/* Memory for bookkeeping runs out at each step of the call that shares. The buffer stays as it is, and is
 * shared later. */
static void a_share_without_memory_changes_nothing(void **state) {
    struct gpupool_buffer begin, buffer, attached;
    struct gpupool_token token;
    struct test_daemon daemon;
    unsigned failures = 0;
    uint32_t pool;

    (void)state;
    if (!test_has_device())
        skip();
    rows_start(&daemon, 1);
    struct gpupool_client *other = client_open(&daemon, false);
    for (unsigned n = 1, failed = 1; failed; n++) {
        struct gpupool_client *client = client_open(&daemon, true);
        MUST(gpupool_device_pool(client, 0, &pool));
        MUST(gpupool_acquire(client, pool, 5 * MIB, NULL, GPUPOOL_FOREVER, 0, &begin));
        MUST(gpupool_acquire(client, pool, ROW_BYTES, NULL, GPUPOOL_FOREVER, 0, &buffer));
        MUST(puppet_write_pattern(client, &buffer, n, NULL));
        memory_fail_nth(n);
        int r = gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token);
        failed = memory_failed();
        memory_fail_nth(0);
        if (r != 0) {
            assert_int_equal(r, GPUPOOL_E_NO_MEMORY);
            failures++;
            MUST(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token));
        }
        MUST(gpupool_attach(other, &token, GPUPOOL_NO_STREAM, 0, &attached));
        MUST(puppet_read_pattern(other, &attached, n, NULL));
        MUST(gpupool_release(other, &attached, GPUPOOL_NO_STREAM));
        MUST(gpupool_release(client, &buffer, NULL));
        MUST(gpupool_release(client, &begin, NULL));
        gpupool_close(client);
        assert_int_equal(daemon_sum(&daemon, "leased_bytes"), 0);
    }
    assert_true(failures > 0);
    gpupool_close(other);
    rows_stop(&daemon);
}

/* --- what is kept mapped --- */

static void a_row_is_mapped_once(void **state) {
    struct gpupool_buffer first, second;
    struct gpupool_token token;
    struct test_daemon daemon;
    struct puppet owner;

    (void)state;
    if (!test_is_simulated())
        skip();
    rows_start(&daemon, 1);
    owner_start(&owner, &daemon);
    owner_share(&owner, 0, 1, &token);
    struct gpupool_client *client = client_open(&daemon, false);
    MUST(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &first));
    unsigned descriptors = count_descriptors();
    uint64_t addresses = count_addresses();
    const void *memory = first.data;
    assert_int_equal(gpu_sim_fail("any", 1, GPU_ERROR_UNKNOWN), 0); /* no call is made */
    for (unsigned i = 0; i < 20; i++) {
        MUST(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &second));
        assert_ptr_equal(second.data, memory);
        MUST(gpupool_release(client, &second, GPUPOOL_NO_STREAM));
        MUST(gpupool_release(client, &first, GPUPOOL_NO_STREAM));
        MUST(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &first));
        assert_ptr_equal(first.data, memory);
    }
    assert_false(gpu_sim_failed());
    assert_int_equal(gpu_sim_fail("any", 0, 0), 0);
    assert_int_equal(count_descriptors(), descriptors);
    assert_int_equal(count_addresses(), addresses);
    assert_int_equal(count_idle_rows(client), 0);
    MUST(gpupool_release(client, &first, GPUPOOL_NO_STREAM));
    assert_int_equal(count_idle_rows(client), 1);
    gpupool_close(client);
    puppet_quit(&owner);
    rows_stop(&daemon);
}

#define ROUNDS 400u

/* One round: a buffer of a random size goes from one client to the other and back. */
static void hand_over(struct gpupool_client *owner, struct gpupool_client *other, uint32_t pool,
                      uint64_t size_bytes, uint64_t seal) {
    struct gpupool_buffer buffer, attached;
    struct gpupool_token token;

    MUST(gpupool_acquire(owner, pool, size_bytes, NULL, GPUPOOL_FOREVER, 0, &buffer));
    memcpy(buffer.data, &seal, sizeof seal);
    memcpy((char *)buffer.data + size_bytes - sizeof seal, &seal, sizeof seal);
    MUST(gpupool_share(owner, &buffer, GPUPOOL_NO_STREAM, &token));
    MUST(gpupool_attach(other, &token, GPUPOOL_NO_STREAM, 0, &attached));
    assert_memory_equal(attached.data, &seal, sizeof seal);
    assert_memory_equal((char *)attached.data + size_bytes - sizeof seal, &seal, sizeof seal);
    MUST(gpupool_release(other, &attached, NULL));
    MUST(gpupool_release(owner, &buffer, NULL));
}

/* A row that was released while its stream still works on it. */
struct busy_row {
    const struct gpu *gpu;
    uint64_t *word; /* holds the stream */
    void *stream;
};

static void busy_begin(struct busy_row *busy, struct gpupool_client *client,
                       const struct gpupool_token *token) {
    struct gpupool_buffer buffer;

    assert_int_equal(gpu_sim(NULL, &busy->gpu), 0);
    busy->word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(busy->word != MAP_FAILED);
    assert_int_equal(busy->gpu->host_register(busy->word, 4096), 0);
    assert_int_equal(busy->gpu->stream_create(0, &busy->stream), 0);
    MUST(gpupool_attach(client, token, GPUPOOL_NO_STREAM, 0, &buffer));
    assert_int_equal(busy->gpu->stream_wait64(0, busy->stream, busy->word, 1), 0);
    assert_int_equal(busy->gpu->memory_set(0, buffer.data, 1, buffer.size_bytes, busy->stream), 0);
    MUST(gpupool_release(client, &buffer, busy->stream));
}

/* An address that maps nothing would end the device. */
static void busy_end(struct busy_row *busy) {
    __atomic_store_n(busy->word, 1, __ATOMIC_RELEASE);
    assert_int_equal(busy->gpu->stream_synchronize(0, busy->stream), 0);
    assert_int_equal(busy->gpu->stream_destroy(0, busy->stream), 0);
    assert_int_equal(busy->gpu->host_unregister(busy->word), 0);
    munmap(busy->word, 4096);
}

/* So many rows of so many lists of segments that most are not kept: the oldest are unmapped, but for one that
 * a stream works on. */
static void rows_that_nothing_uses_are_few(void **state) {
    struct gpupool_buffer kept;
    struct gpupool_token token;
    struct test_daemon daemon;
    struct busy_row busy;
    uint64_t random = 1;
    unsigned most = 0;
    uint32_t pool;

    (void)state;
    if (!test_is_simulated())
        skip();
    rows_start(&daemon, 1);
    gpupool_close(client_open(&daemon, false));
    struct gpupool_client *owner = client_open(&daemon, true), *other = client_open(&daemon, false);
    MUST(gpupool_device_pool(owner, 0, &pool));
    hand_over(owner, other, pool, MIB, 1);
    hand_over(owner, other, pool, 5 * MIB, 1);
    MUST(gpupool_acquire(owner, pool, 9 * MIB, NULL, GPUPOOL_FOREVER, 0, &kept));
    MUST(gpupool_share(owner, &kept, GPUPOOL_NO_STREAM, &token));
    unsigned descriptors = count_descriptors();
    uint64_t addresses = count_addresses();
    busy_begin(&busy, other, &token);
    for (unsigned i = 0; i < ROUNDS; i++) {
        struct gpupool_buffer aside;
        MUST(gpupool_acquire(owner, pool, 5 * MIB + test_random(&random) % (20 * MIB), NULL, GPUPOOL_FOREVER,
                             0, &aside));
        hand_over(owner, other, pool, 5 * MIB + test_random(&random) % (20 * MIB) / 8 * 8,
                  test_random(&random));
        MUST(gpupool_release(owner, &aside, NULL));
        if (count_idle_rows(other) > most)
            most = count_idle_rows(other);
    }
    assert_int_equal(most, ROWS_IDLE_MAX);
    busy_end(&busy);
    MUST(gpupool_release(owner, &kept, NULL));
    gpupool_close(other);
    gpupool_close(owner);
    assert_true(count_descriptors() < descriptors);
    assert_true(count_addresses() < addresses);
    rows_stop(&daemon);
}

/* The daemon has idle segments closed, to make a larger one. Rows that they are a part of go with them. */
static void a_row_ends_with_its_segments(void **state) {
    struct gpupool_buffer buffer;
    struct gpupool_token token;
    struct test_daemon daemon;
    struct puppet owner, large;
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;

    (void)state;
    if (!test_is_simulated())
        skip();
    rows_start(&daemon, 1);
    owner_start(&owner, &daemon);
    owner_share(&owner, 0, 1, &token);
    gpupool_close(client_open(&daemon, false));
    options.socket = daemon.socket;
    MUST(gpupool_open(&options, &client)); /* with a thread that answers the daemon */
    uint64_t addresses = count_addresses();
    MUST(gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, &buffer));
    MUST(puppet_read_pattern(client, &buffer, 1, NULL));
    MUST(gpupool_release(client, &buffer, NULL));
    assert_int_equal(count_idle_rows(client), 1);
    puppet_quit(&owner);
    puppet_connect(&large, &daemon);
    PUPPET_MUST(&large, puppet_acquire(&large, 0, GPUPOOL_POOL_DEVICE, 126 * MIB, GPUPOOL_FOREVER, 0));
    WAIT_UNTIL(count_addresses() == addresses);
    assert_int_equal(count_idle_rows(client), 0);
    PUPPET_MUST(&large, puppet_release(&large, 0));
    puppet_quit(&large);
    gpupool_close(client);
    rows_stop(&daemon);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_is_read_and_written_by_another_process),
        cmocka_unit_test(a_row_is_given_back_in_any_order),
        cmocka_unit_test(a_shared_row_is_not_divided),
        cmocka_unit_test(a_row_of_many_parts_is_attached),
        cmocka_unit_test(threads_share_one_buffer_at_once),
        cmocka_unit_test(a_row_outlives_its_owner),
        cmocka_unit_test(a_row_comes_back_from_a_dead_process),
        cmocka_unit_test(an_attach_goes_on_when_the_owner_dies),
        cmocka_unit_test(attaches_race_with_the_owners_death),
        cmocka_unit_test(a_process_without_the_device_is_refused),
        cmocka_unit_test(an_attach_fails_whole_and_succeeds_later),
        cmocka_unit_test(a_share_without_memory_changes_nothing),
        cmocka_unit_test(a_row_is_mapped_once),
        cmocka_unit_test(rows_that_nothing_uses_are_few),
        cmocka_unit_test(a_row_ends_with_its_segments),
    };

    int status = puppet_main(argc, argv, NULL);
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, NULL, NULL));
}
