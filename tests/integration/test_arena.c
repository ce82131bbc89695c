/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arenas beside a stream that stands at a gate: segments of buffers that it still uses are moved, and the
 * stream finds what it wrote. Device pools have segments of descriptors here, whatever the other tests run
 * on; slots are of 2 MiB. tests/integration/stream_order_sim.c does the same at random.
 */
#include "gpu/sim/sim.h"
#include "tests/integration/gate.h"

#define SLOT   (2 * MIB)
#define SLOTS  3u /* of the smaller buffers */
#define BYTES  (SLOTS * SLOT)
#define STRIPE 4096u /* of each slot of a buffer that is written and looked at */
#define LOOKS  4u

struct scene {
    struct gpupool_client *client;
    struct gate gate;
    struct gpupool_buffer small, low, middle, high; /* three that lie side by side */
    struct gpupool_buffer found;                    /* host memory: what the stream found, for each look */
};

static void scene_init(struct scene *scene) {
    empty_the_pools();
    scene->client = open_cached();
    gate_init(&scene->gate, scene->client);
    void *stream = scene->gate.stream;
    scene->small =
        acquire(scene->client, GPUPOOL_POOL_DEVICE, MIB, stream); /* which makes the fences' page */
    scene->low = acquire(scene->client, GPUPOOL_POOL_DEVICE, BYTES, stream);
    scene->middle = acquire(scene->client, GPUPOOL_POOL_DEVICE, BYTES, stream);
    scene->high = acquire(scene->client, GPUPOOL_POOL_DEVICE, BYTES, stream);
    assert_ptr_equal(scene->middle.data, (char *)scene->low.data + BYTES);
    assert_ptr_equal(scene->high.data, (char *)scene->middle.data + BYTES);
    scene->found = acquire(scene->client, GPUPOOL_POOL_HOST, LOOKS * 2 * SLOTS * STRIPE, GPUPOOL_NO_STREAM);
}

static void release(struct scene *scene, struct gpupool_buffer *buffer) {
    MUST(gpupool_release(scene->client, buffer, scene->gate.stream));
}

static void scene_deinit(struct scene *scene) {
    assert_true(stream_heaps_are_valid(scene->client));
    release(scene, &scene->small);
    release(scene, &scene->middle);
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->gate.stream));
    MUST(gpupool_release(scene->client, &scene->found, GPUPOOL_NO_STREAM));
    gate_deinit(&scene->gate);
    close_cached(scene->client);
}

static unsigned slots_of(const struct gpupool_buffer *buffer) {
    return (unsigned)(buffer->size_bytes / SLOT);
}

/* The stream writes a byte to each slot of a buffer. */
static void write_on_stream(struct scene *scene, const struct gpupool_buffer *buffer, int byte) {
    for (unsigned i = 0; i < slots_of(buffer); i++)
        MUST(
            gpupool_set(scene->client, 0, (char *)buffer->data + i * SLOT, byte, STRIPE, scene->gate.stream));
}

static uint8_t *found_at(const struct scene *scene, unsigned look, unsigned slot) {
    return (uint8_t *)scene->found.data + (look * 2 * SLOTS + slot) * STRIPE;
}

/* The stream looks at the buffer. */
static void look_on_stream(struct scene *scene, const struct gpupool_buffer *buffer, unsigned look) {
    for (unsigned i = 0; i < slots_of(buffer); i++)
        MUST(gpupool_copy(scene->client, 0, found_at(scene, look, i), (char *)buffer->data + i * SLOT, STRIPE,
                          scene->gate.stream));
}

static void expect_found(struct scene *scene, unsigned look, unsigned slots, uint8_t byte) {
    for (unsigned i = 0; i < slots; i++)
        for (unsigned j = 0; j < STRIPE; j++)
            assert_int_equal(found_at(scene, look, i)[j], byte);
}

static bool overlap(const struct gpupool_buffer *one, const struct gpupool_buffer *other) {
    return (char *)one->data < (char *)other->data + other->size_bytes &&
           (char *)other->data < (char *)one->data + one->size_bytes;
}

static uint64_t leased_bytes(void) {
    return daemon_pool(&daemon_, "device", 0, "leased_bytes");
}

/* Releases the lower and the upper buffer, with work on them behind the gate. */
static void release_both_in_use(struct scene *scene) {
    write_on_stream(scene, &scene->low, 1);
    write_on_stream(scene, &scene->high, 2);
    MUST(gpupool_stream_synchronize(scene->client, 0, scene->gate.stream));
    gate_close(&scene->gate);
    look_on_stream(scene, &scene->low, 0);
    look_on_stream(scene, &scene->high, 1);
    release(scene, &scene->low);
    release(scene, &scene->high);
}

static void segments_move_while_a_stream_uses_them(void **state) {
    struct gpupool_buffer large, next, last;
    struct scene scene;

    (void)state;
    if (!test_has_device())
        skip();
    scene_init(&scene);
    struct gpupool_buffer low = scene.low;
    release_both_in_use(&scene);
    uint64_t leased = leased_bytes();
    /* The upper segments stay, and the lower ones come behind them. */
    large = acquire(scene.client, GPUPOOL_POOL_DEVICE, 2 * BYTES, scene.gate.stream);
    assert_int_equal(leased_bytes(), leased);
    write_on_stream(&scene, &large, 3);
    look_on_stream(&scene, &large, 2);
    /* The stream still needs the addresses that they were at. */
    next = acquire(scene.client, GPUPOOL_POOL_DEVICE, BYTES, scene.gate.stream);
    assert_int_equal(leased_bytes(), leased + BYTES);
    assert_false(overlap(&next, &low));
    write_on_stream(&scene, &next, 4);
    look_on_stream(&scene, &next, 3);
    assert_false(gate_was_passed(&scene.gate)); /* no call waited for the stream */
    assert_true(stream_heaps_are_valid(scene.client));
    gate_open(&scene.gate);
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.gate.stream));
    expect_found(&scene, 0, SLOTS, 1);
    expect_found(&scene, 1, SLOTS, 2);
    expect_found(&scene, 2, 2 * SLOTS, 3);
    expect_found(&scene, 3, SLOTS, 4);
    /* Now it does not. */
    last = acquire(scene.client, GPUPOOL_POOL_DEVICE, BYTES, scene.gate.stream);
    assert_ptr_equal(last.data, low.data);
    write_on_stream(&scene, &last, 5);
    look_on_stream(&scene, &last, 0);
    look_on_stream(&scene, &large, 2);
    MUST(gpupool_stream_synchronize(scene.client, 0, scene.gate.stream));
    expect_found(&scene, 0, SLOTS, 5);
    expect_found(&scene, 2, 2 * SLOTS, 3);
    release(&scene, &large);
    release(&scene, &next);
    release(&scene, &last);
    scene_deinit(&scene);
}

#define IN_USE (MIB + 3 * BYTES) /* by a scene */
#define PART   (5 * MIB)
#define REST   (POOL_MIB * MIB / SLOT - 1 - 3 * SLOTS) /* segments of the pool that a scene leaves */

static void take_segments(struct puppet *puppet, unsigned count) {
    puppet_connect(puppet, &daemon_);
    for (unsigned i = 1; i <= count; i++)
        PUPPET_MUST(puppet, puppet_acquire(puppet, i, GPUPOOL_POOL_DEVICE, SLOT, GPUPOOL_FOREVER, 0));
}

static void release_segments(struct puppet *puppet, unsigned count) {
    for (unsigned i = 1; i <= count; i++)
        PUPPET_MUST(puppet, puppet_release(puppet, i));
    puppet_quit(puppet);
}

/* Segments that were taken from idle slots, and that the driver does not map, go to the daemon. The stream
 * may still use them. */
static void segments_that_are_not_mapped_go_back_behind_a_fence(void **state) {
    struct gpupool_buffer large;
    struct puppet puppet;
    struct scene scene;

    (void)state;
    if (!test_is_simulated())
        skip();
    scene_init(&scene);
    take_segments(&puppet, REST);
    release_both_in_use(&scene);
    uint64_t leased = leased_bytes();
    assert_int_equal(gpu_sim_fail("vmm_map", 1, GPU_ERROR_UNKNOWN), 0);
    MUST_BE(gpupool_acquire(scene.client, pool_of(scene.client, GPUPOOL_POOL_DEVICE), 2 * BYTES,
                            scene.gate.stream, GPUPOOL_NOW, 0, &large),
            GPUPOOL_E_DRIVER);
    assert_true(gpu_sim_failed());
    assert_true(stream_heaps_are_valid(scene.client));
    assert_int_equal(leased_bytes(), leased - BYTES);
    gate_hands_over(&scene.gate, GPUPOOL_POOL_DEVICE, SLOT, &puppet);
    release_segments(&puppet, REST);
    scene_deinit(&scene);
}

/* In a shortage the daemon gets a part of a slot that is in use. The rest goes with a later trim. */
static void nothing_stays_after_a_trim(void **state) {
    struct gpupool_buffer parts[2];
    struct puppet puppet;
    struct scene scene;

    (void)state;
    if (!test_has_device())
        skip();
    scene_init(&scene);
    for (unsigned i = 0; i < 2; i++) /* each has a half of the slot in the middle */
        parts[i] = acquire(scene.client, GPUPOOL_POOL_DEVICE, PART, scene.gate.stream);
    assert_ptr_equal(parts[1].data, (char *)parts[0].data + PART);
    take_segments(&puppet, REST - 5);
    release(&scene, &parts[0]);
    PUPPET_MUST_BE(&puppet, puppet_acquire(&puppet, 0, GPUPOOL_POOL_DEVICE, 4 * SLOT, NS_PER_S / 4, 0),
                   GPUPOOL_E_EXHAUSTED);
    WAIT_UNTIL(leased_bytes() == IN_USE + PART + (REST - 5) * SLOT);
    release_segments(&puppet, REST - 5);
    wait_until_nothing_is_short(scene.client);
    release(&scene, &parts[1]);
    MUST(gpupool_trim(scene.client, NULL));
    WAIT_UNTIL(leased_bytes() == IN_USE);
    release(&scene, &scene.low);
    release(&scene, &scene.high);
    scene_deinit(&scene);
}

static uint64_t pool_number(const char *member) {
    return daemon_pool(&daemon_, "device", 0, member);
}

/* Slots of a stream heap's arena that map a segment. */
static unsigned mapped_slots(struct stream_heap *stream_heap) {
    unsigned count = 0;

    pthread_mutex_lock(&stream_heap->lock);
    const struct arena *arena = stream_heap->arena;
    for (uint32_t i = 0; i < arena->n_slots; i++)
        count += arena->slots[i].maps != 0;
    pthread_mutex_unlock(&stream_heap->lock);
    return count;
}

/* The daemon can free it for others without asking the process, whose other stream stands at a gate all the
 * while. */
static void memory_that_was_idle_for_long_is_not_mapped_any_more(void **state) {
    struct gpupool_buffer buffer, again;
    struct gate gate;
    void *stream;

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    struct gpupool_client *client = open_client(&daemon_, 0, 20 * NS_PER_MS);
    gate_init(&gate, client);
    MUST(gpupool_stream_create(client, 0, &stream));
    uint64_t reserved_before = pool_number("reserved_bytes"), closes_before = pool_number("closes");
    gate_close(&gate);
    buffer = acquire(client, GPUPOOL_POOL_DEVICE, BYTES, stream);
    uint64_t reserved = pool_number("reserved_bytes");
    assert_true(reserved >= reserved_before + BYTES);
    struct stream_heap *stream_heap = stream_heap_of(&buffer);
    assert_int_equal(mapped_slots(stream_heap), SLOTS);
    MUST(gpupool_release(client, &buffer, stream));
    WAIT_UNTIL(pool_number("closes") >= closes_before + SLOTS);
    assert_int_equal(mapped_slots(stream_heap), 0); /* it was told before the daemon was */
    assert_false(gate_was_passed(&gate));
    assert_true(pool_number("reserved_bytes") >=
                reserved); /* the pool keeps it, and may grow ahead of demand */
    /* It serves the user again. */
    uint64_t grows = pool_number("grows");
    again = acquire(client, GPUPOOL_POOL_DEVICE, BYTES, stream);
    assert_true(pool_number("grows") <= grows + 1); /* likewise */
    MUST(gpupool_set(client, 0, again.data, 7, BYTES, stream));
    MUST(gpupool_stream_synchronize(client, 0, stream));
    MUST(gpupool_release(client, &again, stream));
    WAIT_UNTIL(pool_number("closes") >= closes_before + 2 * SLOTS);
    cJSON_Delete(daemon_ask(&daemon_, "{\"command\":\"trim\"}"));
    WAIT_UNTIL(pool_number("reserved_bytes") <= reserved - BYTES);
    assert_false(gate_was_passed(&gate));
    assert_true(stream_heaps_are_valid(client));
    gate_open(&gate);
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    MUST(gpupool_stream_destroy(client, 0, stream));
    gate_deinit(&gate);
    gpupool_close(client);
}

/* Each of two processes wants more than half of the pool again and again. A request gets all of its segments
 * or none, so neither waits for what the other has in hand. */
static void two_that_want_most_of_the_pool_take_turns(void **state) {
    enum {
        ROUNDS = 20
    };
    struct puppet puppets[2];

    (void)state;
    if (!test_has_device())
        skip();
    empty_the_pools();
    for (unsigned i = 0; i < 2; i++) {
        puppet_start(&puppets[i], &daemon_);
        PUPPET_MUST(&puppets[i],
                    puppet_call(&puppets[i], &(struct puppet_command){.verb = PUPPET_OPEN, .flags = 0}));
        puppet_send_acquire(&puppets[i], 0, GPUPOOL_POOL_DEVICE, 40 * MIB, GPUPOOL_FOREVER);
    }
    unsigned has = 0;
    WAIT_UNTIL(puppet_has_answered(&puppets[0]) || puppet_has_answered(&puppets[1]));
    has = puppet_has_answered(&puppets[0]) ? 0 : 1;
    PUPPET_MUST(&puppets[has], puppet_receive(&puppets[has]));
    for (unsigned round = 0; round < ROUNDS; round++, has = !has) {
        WAIT_UNTIL(daemon_sum(&daemon_, "waiters") == 1);
        assert_false(puppet_has_answered(&puppets[!has]));
        PUPPET_MUST(&puppets[has], puppet_release(&puppets[has], 0));
        PUPPET_MUST(&puppets[!has], puppet_receive(&puppets[!has]));
        if (round + 1 < ROUNDS)
            puppet_send_acquire(&puppets[has], 0, GPUPOOL_POOL_DEVICE, 40 * MIB, GPUPOOL_FOREVER);
    }
    PUPPET_MUST(&puppets[has], puppet_release(&puppets[has], 0));
    for (unsigned i = 0; i < 2; i++)
        puppet_quit(&puppets[i]);
}

/* The three fill the pool, and both ends of the middle one lie in slots that its neighbours use, too. */
struct row {
    struct gpupool_client *client;
    void *stream;
    struct gpupool_buffer low, middle, high;
    bool is_late; /* the middle one is released when the daemon has asked for idle memory */
};

#define MIDDLE_BYTES (5 * SLOT)

static void row_init(struct row *row) {
    empty_the_pools();
    row->client = open_cached_with_stream(&row->stream);
    row->low = acquire(row->client, GPUPOOL_POOL_DEVICE, 3 * SLOT + SLOT / 2, row->stream);
    row->middle = acquire(row->client, GPUPOOL_POOL_DEVICE, MIDDLE_BYTES, row->stream);
    row->high = acquire(row->client, GPUPOOL_POOL_DEVICE, POOL_MIB * MIB - 8 * SLOT - SLOT / 2, row->stream);
    assert_ptr_equal(row->middle.data, (char *)row->low.data + row->low.size_bytes);
    assert_ptr_equal(row->high.data, (char *)row->middle.data + MIDDLE_BYTES);
}

static void row_deinit(struct row *row) {
    MUST(gpupool_release(row->client, &row->low, row->stream));
    MUST(gpupool_release(row->client, &row->middle, row->stream));
    MUST(gpupool_release(row->client, &row->high, row->stream));
    assert_true(stream_heaps_are_valid(row->client));
    close_cached(row->client);
}

/* The daemon has room for no more than four whole segments then, and a request of five waits. */
static void *release_when_one_waits(void *argument) {
    struct row *row = argument;

    WAIT_UNTIL(daemon_sum(&daemon_, "waiters") == 1);
    WAIT_UNTIL(!row->is_late || shortage_is_on(&row->client->cache.shortage, row->middle.pool));
    MUST(gpupool_release(row->client, &row->middle, row->stream));
    return NULL;
}

/* A release makes room beside buffers in use, in fewer segments than a request waits for. */
static void a_release_serves_a_request_of_its_arena(void **state) {
    struct row row = {0};
    pthread_t thread;
    uint64_t request;

    (void)state;
    row_init(&row);
    const void *place = row.middle.data;
    assert_int_equal(pthread_create(&thread, NULL, release_when_one_waits, &row), 0);
    struct gpupool_buffer buffer = acquire(row.client, GPUPOOL_POOL_DEVICE, MIDDLE_BYTES, row.stream);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ptr_equal(buffer.data, place);
    row.middle = buffer;

    uint32_t pool = pool_of(row.client, GPUPOOL_POOL_DEVICE);
    /* The request is older than the daemon's question for idle memory. */
    const struct proto_page *page = row.client->session.page.memory;
    WAIT_UNTIL((atomic_load(&page->shortage.pools) & shortage_bit(pool)) == 0);
    row.is_late = true;
    MUST(gpupool_acquire_begin(row.client, pool, MIDDLE_BYTES, row.stream, GPUPOOL_FOREVER, 0, &request));
    (void)release_when_one_waits(&row);
    MUST(gpupool_acquire_end(row.client, request, &row.middle));
    assert_ptr_equal(row.middle.data, place);
    assert_int_equal(daemon_sum(&daemon_, "waiters"), 0);
    row_deinit(&row);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(segments_move_while_a_stream_uses_them),
        cmocka_unit_test(segments_that_are_not_mapped_go_back_behind_a_fence),
        cmocka_unit_test(nothing_stays_after_a_trim),
        cmocka_unit_test(memory_that_was_idle_for_long_is_not_mapped_any_more),
        cmocka_unit_test(two_that_want_most_of_the_pool_take_turns),
        cmocka_unit_test(a_release_serves_a_request_of_its_arena),
    };

    setenv("GPUPOOL_TEST_EXPORT", "vmm", 1);
    setenv("GPUPOOL_ARENAS", "1", 1);
    return cache_tests_run(argc, argv, tests, sizeof tests / sizeof *tests);
}
