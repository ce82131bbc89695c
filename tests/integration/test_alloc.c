/* SPDX-License-Identifier: Apache-2.0 */
/* Memory by pointers: what is handed out, found and given back by address alone, which pointers are refused,
 * and the default client. */
#include "tests/integration/cache_fixture.h"

#define CROWD  4u
#define ROUNDS 1000u
#define HELD   40u

static char *alloc(struct gpupool_client *client, unsigned kind, uint64_t size_bytes) {
    void *memory = gpupool_alloc(client, pool_of(client, kind), size_bytes, NULL);
    if (memory == NULL)
        fail_msg("gpupool_alloc: %s", gpupool_error_text());
    assert_int_equal((uintptr_t)memory % 512, 0);
    return memory;
}

static struct gpupool_buffer look_up(const void *memory) {
    struct gpupool_buffer buffer;
    MUST(gpupool_lookup(memory, NULL, &buffer));
    return buffer;
}

static void write_memory(struct gpupool_client *client, const void *memory, uint64_t seed) {
    struct gpupool_buffer buffer = look_up(memory);
    MUST(puppet_write_pattern(client, &buffer, seed, NULL));
}

static void check_memory(struct gpupool_client *client, const void *memory, uint64_t seed) {
    struct gpupool_buffer buffer = look_up(memory);
    assert_int_equal(puppet_read_pattern(client, &buffer, seed, NULL), 0);
}

/* --- what is handed out --- */

static void reuse(unsigned kind) {
    static const uint64_t sizes[] = {1, 512, 4096, 100000, MIB, 3 * MIB + 5};
    const unsigned count = sizeof sizes / sizeof *sizes;
    struct gpupool_client *client = open_cached();
    uint64_t acquires = 0, releases = 0;

    for (unsigned round = 0; round < ROUNDS; round++) {
        char *memory = alloc(client, kind, sizes[round % count]);
        MUST(gpupool_free(memory, stream_of(kind)));
        if (round == 2 * count) {
            acquires = daemon_sum(&daemon_, "acquires");
            releases = daemon_sum(&daemon_, "releases");
        }
    }
    assert_int_equal(daemon_sum(&daemon_, "acquires"), acquires);
    assert_int_equal(daemon_sum(&daemon_, "releases"), releases);
    MUST(gpupool_free(NULL, NULL));
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

static void freed_memory_is_allocated_again_without_the_daemon(void **state) {
    (void)state;
    for_each_kind(reuse);
}

static void found(unsigned kind) {
    static const uint64_t sizes[] = {1, 700, 64 * KIB, MIB + 1, 5 * MIB};
    const unsigned count = sizeof sizes / sizeof *sizes;
    struct gpupool_client *clients[2] = {open_cached(), open_cached()}, *owner;
    char *memory[2][5];

    for (unsigned i = 0; i < count; i++)
        for (unsigned of = 0; of < 2; of++) {
            memory[of][i] = alloc(clients[of], kind, sizes[i]);
            write_memory(clients[of], memory[of][i], 10 * of + i + 1);
        }
    for (unsigned i = 0; i < count; i++)
        for (unsigned of = 0; of < 2; of++) {
            struct gpupool_buffer buffer;
            struct gpupool_buffer_info info;
            MUST(gpupool_lookup(memory[of][i], &owner, &buffer));
            assert_ptr_equal(owner, clients[of]);
            assert_ptr_equal(buffer.data, memory[of][i]);
            assert_int_equal(buffer.kind, kind);
            assert_int_equal(buffer.pool, pool_of(owner, kind));
            assert_int_equal(buffer.device, kind == GPUPOOL_POOL_DEVICE ? 0 : -1);
            assert_int_equal(buffer.size_bytes, buffer.capacity_bytes);
            assert_true(buffer.size_bytes >= sizes[i]);
            for (unsigned part = 1; part <= 3; part++) { /* also by an address inside */
                struct gpupool_buffer around;
                MUST(gpupool_lookup(memory[of][i] + part * (sizes[i] - 1) / 3, &owner, &around));
                assert_ptr_equal(owner, clients[of]);
                assert_memory_equal(&around, &buffer, sizeof buffer);
            }
            MUST(gpupool_query(owner, &buffer, &info)); /* it is one to the daemon too */
            check_memory(clients[of], memory[of][i], 10 * of + i + 1);
        }
    for (unsigned i = 0; i < count; i++)
        for (unsigned of = 0; of < 2; of++)
            MUST(gpupool_free(memory[of][i], stream_of(kind)));
    gpupool_close(clients[1]);
    close_cached(clients[0]);
}

static void a_pointer_is_found_as_the_buffer_that_it_is(void **state) {
    (void)state;
    for_each_kind(found);
}

static void share(unsigned kind) {
    struct gpupool_client *client = open_cached();
    struct gpupool_token token;
    struct puppet puppet;

    puppet_connect(&puppet, &daemon_);
    char *memory = alloc(client, kind, MIB), *neighbour = alloc(client, kind, MIB);
    write_memory(client, neighbour, 2);
    struct gpupool_buffer buffer = look_up(memory);
    MUST(puppet_write_pattern(client, &buffer, 1, NULL));
    MUST(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token));
    PUPPET_MUST(&puppet, puppet_attach(&puppet, 0, &token));
    PUPPET_MUST(&puppet, puppet_check(&puppet, 0, 1));
    check_memory(client, memory, 1); /* still found */
    MUST(gpupool_free(memory, stream_of(kind)));
    MUST_BE(gpupool_free(memory, stream_of(kind)), GPUPOOL_E_INVALID);
    PUPPET_MUST(&puppet, puppet_fill(&puppet, 0, 3));
    check_memory(client, neighbour, 2);
    PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
    MUST(gpupool_free(neighbour, stream_of(kind)));
    puppet_quit(&puppet);
    assert_true(stream_heaps_are_valid(client));
    close_cached(client);
}

static void a_pointer_can_be_shared(void **state) {
    (void)state;
    for_each_kind(share);
}

/* --- pointers that are refused --- */

static void wrong(unsigned kind) {
    struct gpupool_client *client = open_cached();
    struct gpupool_buffer buffer, looked_up;
    char *memory[3], on_stack[1024];

    for (unsigned i = 0; i < 3; i++) {
        memory[i] = alloc(client, kind, 64 * KIB);
        write_memory(client, memory[i], i + 1);
    }
    uint64_t leased = daemon_sum(&daemon_, "leased_bytes");
    /* never allocated, or inside of what was */
    char *const strays[] = {on_stack,
                            (char *)client,
                            (char *)1,
                            memory[1] + 1,
                            memory[1] + 512,
                            memory[1] + 64 * KIB - 512,
                            memory[1] - 512,
                            (char *)UINTPTR_MAX,
                            (char *)((uintptr_t)memory[1] | 1ull << 60),
                            (char *)(((uintptr_t)on_stack + 511) / 512 * 512)};
    for (unsigned i = 0; i < sizeof strays / sizeof *strays; i++) {
        if (strays[i] == memory[0] || strays[i] == memory[2])
            continue;
        MUST_BE(gpupool_free(strays[i], stream_of(kind)), GPUPOOL_E_INVALID);
        assert_non_null(strstr(gpupool_error_text(), "gpupool_alloc()"));
        const char *around = NULL;
        for (unsigned of = 0; of < 3; of++)
            if (strays[i] >= memory[of] && strays[i] < memory[of] + 64 * KIB)
                around = memory[of];
        MUST_BE(gpupool_lookup(strays[i], NULL, &buffer), around != NULL ? 0 : GPUPOOL_E_INVALID);
        assert_true(around == NULL || buffer.data == around);
    }
    MUST_BE(gpupool_lookup(memory[0], NULL, NULL), GPUPOOL_E_INVALID);
    /* freed before, and lying in the cache */
    MUST(gpupool_free(memory[1], stream_of(kind)));
    for (unsigned i = 0; i < 3; i++)
        MUST_BE(gpupool_free(memory[1], stream_of(kind)), GPUPOOL_E_STALE);
    MUST_BE(gpupool_lookup(memory[1], NULL, &buffer), GPUPOOL_E_STALE);
    MUST_BE(gpupool_lookup(memory[1] + 512, NULL, &buffer), GPUPOOL_E_STALE);
    /* taken again, as a buffer, by whom no pointer was given */
    buffer = acquire(client, kind, 64 * KIB, NULL);
    assert_ptr_equal(buffer.data, memory[1]); /* else this shows nothing */
    MUST(puppet_write_pattern(client, &buffer, 4, NULL));
    MUST_BE(gpupool_free(memory[1], stream_of(kind)), GPUPOOL_E_STALE);
    MUST_BE(gpupool_lookup(memory[1], NULL, &looked_up), GPUPOOL_E_STALE);
    /* no thread lost anything, and nothing is there twice */
    char *other = alloc(client, kind, 64 * KIB);
    write_memory(client, other, 5);
    assert_int_equal(puppet_read_pattern(client, &buffer, 4, NULL), 0);
    check_memory(client, memory[0], 1);
    check_memory(client, memory[2], 3);
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), leased);
    MUST(gpupool_release(client, &buffer, stream_of(kind)));
    MUST(gpupool_free(other, stream_of(kind)));
    /* by the one face, and then by the other */
    looked_up = look_up(memory[0]);
    MUST(gpupool_free(memory[0], stream_of(kind)));
    MUST_BE(gpupool_release(client, &looked_up, stream_of(kind)), GPUPOOL_E_STALE);
    looked_up = look_up(memory[2]);
    MUST(gpupool_release(client, &looked_up, stream_of(kind)));
    MUST_BE(gpupool_free(memory[2], stream_of(kind)), GPUPOOL_E_STALE);
    /* gone to the daemon */
    MUST(gpupool_trim(client, NULL));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    for (unsigned i = 0; i < 3; i++)
        MUST_BE(gpupool_free(memory[i], stream_of(kind)), GPUPOOL_E_INVALID);
    assert_true(stream_heaps_are_valid(client));
    /* of a client that is closed */
    memory[0] = alloc(client, kind, 4096);
    memory[1] = alloc(client, kind, 4096);
    MUST(gpupool_free(memory[1], stream_of(kind)));
    close_cached(client);
    MUST_BE(gpupool_free(memory[0], stream_of(kind)), GPUPOOL_E_INVALID);
    MUST_BE(gpupool_free(memory[1], stream_of(kind)), GPUPOOL_E_INVALID);
}

static void wrong_pointers_are_refused_and_harm_nothing(void **state) {
    (void)state;
    for_each_kind(wrong);
}

static void sizes_and_clients_that_cannot_be_are_refused(void **state) {
    struct gpupool_client *client = open_cached(), *plain = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, 0);
    uint32_t pool = pool_of(client, GPUPOOL_POOL_HOST);

    (void)state;
    assert_null(gpupool_alloc(client, pool, 0, NULL));
    assert_null(gpupool_alloc(client, pool, POOL_MIB * MIB + 1, NULL));
    assert_non_null(strstr(gpupool_error_text(), "64 MiB")); /* the limit */
    assert_null(gpupool_alloc(client, pool, UINT64_MAX, NULL));
    assert_null(gpupool_alloc(client, pool + 77, 1, NULL));
    assert_null(gpupool_alloc(plain, pool, 1, NULL));
    assert_non_null(strstr(gpupool_error_text(), "without a cache"));
    gpupool_close(plain);
    close_cached(client);
}

/* --- threads --- */

struct thread {
    struct gpupool_client *client;
    uint32_t pool;
    uint64_t random;
    struct crowd *crowd;
    unsigned wrong;
};

/* Where threads leave memory for others to free. */
struct crowd {
    _Atomic(uint64_t *) shelf[HELD];
};

/* Allocates and writes its mark into each word, or frees what any thread left and looks whether the mark is
 * whole. */
static void *take_and_leave(void *argument) {
    struct thread *thread = argument;

    for (unsigned round = 0; round < 6000; round++) {
        uint64_t size = 16 + test_random(&thread->random) % (round % 16 == 0 ? 100 * KIB : 4 * KIB);
        uint64_t words = size / 8, mark = test_random(&thread->random);
        uint64_t *memory = gpupool_alloc(thread->client, thread->pool, size, GPUPOOL_NO_STREAM);
        if (memory == NULL) {
            thread->wrong++;
            continue;
        }
        memory[0] = words;
        for (uint64_t i = 1; i < words; i++)
            memory[i] = mark;
        memory = atomic_exchange(&thread->crowd->shelf[test_random(&thread->random) % HELD], memory);
        if (memory == NULL)
            continue;
        for (uint64_t i = 2; i < memory[0]; i++)
            thread->wrong += memory[i] != memory[1];
        thread->wrong += gpupool_free(memory, GPUPOOL_NO_STREAM) != 0;
    }
    return NULL;
}

static void threads_free_what_others_allocated_and_none_has_anothers(void **state) {
    struct gpupool_client *client = open_cached();
    struct thread threads[CROWD];
    struct crowd crowd;
    pthread_t ids[CROWD];

    (void)state;
    for (unsigned i = 0; i < HELD; i++)
        atomic_init(&crowd.shelf[i], NULL);
    for (unsigned i = 0; i < CROWD; i++) {
        threads[i] = (struct thread){
            .client = client, .pool = pool_of(client, GPUPOOL_POOL_HOST), .random = i, .crowd = &crowd};
        assert_int_equal(pthread_create(&ids[i], NULL, take_and_leave, &threads[i]), 0);
    }
    for (unsigned i = 0; i < CROWD; i++) {
        TEST_JOIN(ids[i], NULL);
        assert_int_equal(threads[i].wrong, 0);
    }
    for (unsigned i = 0; i < HELD; i++)
        MUST(gpupool_free(crowd.shelf[i], GPUPOOL_NO_STREAM));
    assert_true(stream_heaps_are_valid(client));
    MUST(gpupool_trim(client, NULL));
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes"), 0);
    close_cached(client);
}

/* --- the default client --- */

static void close_default(void) {
    struct gpupool_client *client;
    MUST(gpupool_default(&client));
    close_cached(client);
}

static void *first_call(void *argument) {
    struct thread *thread = argument;

    thread->wrong =
        gpupool_default(&thread->client) != 0 || gpupool_host_pool(thread->client, -1, &thread->pool) != 0;
    void *memory = thread->wrong != 0 ? NULL : gpupool_alloc(NULL, thread->pool, 5000, NULL);
    thread->wrong += memory == NULL || gpupool_free(memory, NULL) != 0;
    return NULL;
}

static void the_default_client_is_one_whoever_comes_first(void **state) {
    struct thread threads[CROWD] = {0};
    pthread_t ids[CROWD];

    (void)state;
    setenv("GPUPOOL_SOCKET", daemon_.socket, 1);
    for (unsigned round = 0; round < 5; round++) { /* closed, it is opened anew */
        for (unsigned i = 0; i < CROWD; i++)
            assert_int_equal(pthread_create(&ids[i], NULL, first_call, &threads[i]), 0);
        for (unsigned i = 0; i < CROWD; i++) {
            TEST_JOIN(ids[i], NULL);
            assert_int_equal(threads[i].wrong, 0);
            assert_ptr_equal(threads[i].client, threads[0].client);
        }
        assert_int_equal(daemon_sessions(&daemon_, "active"), 1);
        close_default();
    }
    unsetenv("GPUPOOL_SOCKET");
}

static void without_a_daemon_there_is_no_default_client_until_there_is_one(void **state) {
    struct gpupool_client *client = NULL;

    (void)state;
    setenv("GPUPOOL_SOCKET", "/nonexistent/gpupool.sock", 1);
    for (unsigned i = 0; i < 2; i++) {
        assert_null(gpupool_alloc(NULL, 1, 4096, NULL));
        assert_non_null(strstr(gpupool_error_text(), "default client"));
        assert_non_null(strstr(gpupool_error_text(), "/nonexistent/gpupool.sock"));
        MUST_BE(gpupool_default(&client), GPUPOOL_E_CONNECT);
        assert_null(client);
    }
    MUST_BE(gpupool_default(NULL), GPUPOOL_E_INVALID);
    setenv("GPUPOOL_SOCKET", daemon_.socket, 1);
    MUST(gpupool_default(&client));
    MUST(gpupool_free(alloc(client, GPUPOOL_POOL_HOST, 4096), NULL));
    close_default();
    unsetenv("GPUPOOL_SOCKET");
}

/* The first fault that a forked child finds, as a number. */
static int try_in_child(const struct gpupool_client *parents, uint32_t pool, char *memory) {
    struct gpupool_client *client = NULL;
    struct gpupool_buffer buffer;

    if (gpupool_free(memory, NULL) != GPUPOOL_E_FORKED)
        return 1;
    if (gpupool_lookup(memory, NULL, &buffer) != GPUPOOL_E_FORKED)
        return 2;
    if (test_is_sanitized() || !test_is_simulated())
        return 0; /* ThreadSanitizer wants no threads in a forked child, and CUDA does not work there */
    if (gpupool_default(&client) != 0 || client == parents)
        return 3;
    for (unsigned i = 0; i < 3; i++) {
        char *own = gpupool_alloc(NULL, pool, 4096, NULL);
        if (own == NULL)
            return 4;
        memset(own, 5, 4096);
        if (gpupool_free(own, NULL) != 0)
            return 5;
    }
    gpupool_close(client);
    return 0;
}

static void a_forked_child_has_a_default_client_of_its_own(void **state) {
    struct gpupool_client *client;

    (void)state;
    if (test_host_exports_vmm())
        skip(); /* CUDA does not work in a forked child of a process that uses it */
    setenv("GPUPOOL_SOCKET", daemon_.socket, 1);
    MUST(gpupool_default(&client));
    uint32_t pool = pool_of(client, GPUPOOL_POOL_HOST);
    char *memory = alloc(client, GPUPOOL_POOL_HOST, 4096);
    memset(memory, 7, 4096);
    for (unsigned i = 0; i < 5; i++) {
        pid_t pid = fork();
        if (pid == 0)
            _exit(try_in_child(client, pool, memory));
        assert_true(pid > 0);
        assert_int_equal(test_wait(pid), 0);
    }
    for (unsigned i = 0; i < 4096; i++)
        assert_int_equal(memory[i], 7);
    MUST(gpupool_free(memory, NULL));
    WAIT_UNTIL(daemon_sessions(&daemon_, "active") == 1);
    close_default();
    unsetenv("GPUPOOL_SOCKET");
}

/* --- waiting --- */

static void an_allocation_waits_as_long_as_the_option_or_the_environment_says(void **state) {
    const uint64_t large = 40 * MIB; /* no two of them fit */
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct puppet_command release = {.verb = PUPPET_RELEASE};
    struct gpupool_client *client;
    struct puppet puppet;

    (void)state;
    empty_the_pools();
    puppet_connect(&puppet, &daemon_);
    PUPPET_MUST(&puppet, puppet_acquire(&puppet, 0, GPUPOOL_POOL_HOST, large, GPUPOOL_FOREVER, 0));
    options.socket = daemon_.socket;
    options.decay_ns = GPUPOOL_FOREVER;
    for (unsigned by_option = 0; by_option < 2; by_option++) {
        options.alloc_timeout_ns = by_option == 1 ? 1 : 0;
        setenv("GPUPOOL_ALLOC_TIMEOUT", by_option == 1 ? "forever" : "1us", 1); /* the option counts more */
        MUST(gpupool_open(&options, &client));
        assert_null(gpupool_alloc(client, pool_of(client, GPUPOOL_POOL_HOST), large, NULL));
        assert_non_null(strstr(gpupool_error_text(), "40 MiB"));
        gpupool_close(client);
    }
    options.alloc_timeout_ns = 0;
    setenv("GPUPOOL_ALLOC_TIMEOUT", "soon", 1);
    MUST_BE(gpupool_open(&options, &client), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "soon"));
    setenv("GPUPOOL_ALLOC_TIMEOUT", "forever", 1);
    MUST(gpupool_open(&options, &client));
    unsetenv("GPUPOOL_ALLOC_TIMEOUT");
    puppet_send(&puppet, &release);
    char *memory = alloc(client, GPUPOOL_POOL_HOST, large);
    PUPPET_MUST(&puppet, puppet_receive(&puppet));
    MUST(gpupool_free(memory, NULL));
    puppet_quit(&puppet);
    close_cached(client);
}

/* Memory is given back on its own stream by callers that know no stream. */
static void memory_goes_back_on_its_own_stream(void **state) {
    (void)state;
    for (unsigned kind = 0; kind < 2; kind++) {
        unsigned of = kind == 0 ? GPUPOOL_POOL_DEVICE : GPUPOOL_POOL_HOST;
        struct gpupool_client *client = open_cached();
        void *stream, *memory;

        MUST(gpupool_stream_create(client, 0, &stream));
        memory = gpupool_alloc(client, pool_of(client, of), 64 * KIB, stream);
        assert_non_null(memory);
        MUST(gpupool_free(memory, GPUPOOL_OWN_STREAM));
        uint64_t asked = daemon_sum(&daemon_, "acquires");
        struct gpupool_buffer buffer = acquire(client, of, 64 * KIB, stream);
        assert_ptr_equal(buffer.data, memory); /* the stream orders it: it is there at once */
        MUST(gpupool_shrink(client, &buffer, 32 * KIB, GPUPOOL_OWN_STREAM));
        MUST(gpupool_release(client, &buffer, GPUPOOL_OWN_STREAM));
        assert_null(buffer.data);
        MUST_BE(gpupool_release(client, &buffer, GPUPOOL_OWN_STREAM), GPUPOOL_E_STALE);
        assert_int_equal(daemon_sum(&daemon_, "acquires"), asked);
        MUST(gpupool_trim(client, NULL));
        MUST(gpupool_stream_destroy(client, 0, stream));
        close_cached(client);
    }
}

static void a_buffer_without_a_stream_of_its_own_says_so(void **state) {
    struct gpupool_client *client = open_client(&daemon_, GPUPOOL_OPEN_NO_CACHE, GPUPOOL_FOREVER);
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, 64 * KIB, NULL);

    (void)state;
    MUST_BE(gpupool_release(client, &buffer, GPUPOOL_OWN_STREAM), GPUPOOL_E_INVALID);
    assert_non_null(strstr(gpupool_error_text(), "name the stream"));
    MUST_BE(gpupool_shrink(client, &buffer, 512, GPUPOOL_OWN_STREAM), GPUPOOL_E_INVALID);
    struct gpupool_buffer other;
    MUST_BE(
        gpupool_acquire(client, pool_of(client, GPUPOOL_POOL_DEVICE), 512, GPUPOOL_OWN_STREAM, 0, 0, &other),
        GPUPOOL_E_INVALID);
    MUST(gpupool_release(client, &buffer, NULL));
    close_cached(client);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(freed_memory_is_allocated_again_without_the_daemon),
        cmocka_unit_test(a_pointer_is_found_as_the_buffer_that_it_is),
        cmocka_unit_test(a_pointer_can_be_shared),
        cmocka_unit_test(memory_goes_back_on_its_own_stream),
        cmocka_unit_test(a_buffer_without_a_stream_of_its_own_says_so),
        cmocka_unit_test(wrong_pointers_are_refused_and_harm_nothing),
        cmocka_unit_test(sizes_and_clients_that_cannot_be_are_refused),
        cmocka_unit_test(threads_free_what_others_allocated_and_none_has_anothers),
        cmocka_unit_test(the_default_client_is_one_whoever_comes_first),
        cmocka_unit_test(without_a_daemon_there_is_no_default_client_until_there_is_one),
        cmocka_unit_test(a_forked_child_has_a_default_client_of_its_own),
        cmocka_unit_test(an_allocation_waits_as_long_as_the_option_or_the_environment_says),
    };
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
