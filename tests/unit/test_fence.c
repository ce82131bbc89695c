/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests of a client's fences, on the simulated GPU and a false daemon. Streams are held back by a
 * gate: a word that the test opens.
 */
#include <poll.h>
#include <stdatomic.h>

#include "gpu/sim/sim.h"
#include "tests/unit/client_fixture.h"

#define THREADS 4u
#define FENCES  200u
#define DEVICES 2u

struct fenced {
    struct gpupool_client *client;
    const struct gpu *gpu;
    struct gpupool_buffer gate;
    void *stream;
};

static uint64_t *gate_word(struct fenced *fenced) {
    return fenced->gate.data;
}

/* A client, a stream, and a gate in front of nothing yet. */
static void fenced_init(struct fenced *fenced, bool (*handle)(struct false_daemon *, struct false_session *,
                                                              const struct proto_message *)) {
    fenced->client = start(handle);
    assert_ok(devices_need_gpu(&fenced->client->session.devices, &fenced->gpu));
    assert_ok(gpupool_acquire(fenced->client, FALSE_POOL_HOST, 4096, GPUPOOL_NO_STREAM, GPUPOOL_NOW,
                              GPUPOOL_ZERO, &fenced->gate));
    assert_ok(gpupool_stream_create(fenced->client, 0, &fenced->stream));
}

static void fenced_deinit(struct fenced *fenced) {
    assert_ok(gpupool_stream_destroy(fenced->client, 0, fenced->stream));
    gpupool_close(fenced->client);
}

static void fence_await(struct fenced *fenced, struct fence fence) {
    assert_ok(fence_wait(&fenced->client->session, fence, -1, clock_now_ns() + TEST_WAIT_NS));
}

/* Work that is enqueued on the stream from now on waits for gate_open(). */
static void gate_close(struct fenced *fenced, void *stream) {
    __atomic_store_n(gate_word(fenced), 0, __ATOMIC_SEQ_CST);
    assert_int_equal(fenced->gpu->stream_wait64(0, stream, gate_word(fenced), 1), 0);
}

static void gate_open(struct fenced *fenced) {
    __atomic_store_n(gate_word(fenced), 1, __ATOMIC_SEQ_CST);
}

static struct fence enqueue(struct fenced *fenced, unsigned device, void *stream) {
    struct fence fence;
    assert_ok(fences_enqueue(&fenced->client->session, device, stream, &fence));
    return fence;
}

static void a_fence_is_ready_when_what_was_enqueued_before_is_done(void **state) {
    struct fenced fenced;
    (void)state;
    fenced_init(&fenced, NULL);
    assert_int_equal(daemon_.pages, 0);
    gate_close(&fenced, fenced.stream);
    struct fence first = enqueue(&fenced, 0, fenced.stream), second = enqueue(&fenced, 0, fenced.stream);
    assert_int_not_equal(first.word, 0);
    assert_int_equal(second.word, first.word);
    assert_int_equal(second.value, first.value + 1);
    assert_false(fence_is_ready(&fenced.client->session, first));
    assert_false(fence_is_ready(&fenced.client->session, second));
    assert_true(fence_is_ready(&fenced.client->session, FENCE_NONE));
    assert_error(fence_wait(&fenced.client->session, first, -1, clock_now_ns() + NS_PER_MS),
                 GPUPOOL_E_TIMED_OUT);
    gate_open(&fenced);
    fence_await(&fenced, second);
    assert_true(fence_is_ready(&fenced.client->session, first));
    assert_true(fence_is_ready(&fenced.client->session, second));
    assert_int_equal(daemon_.pages, 1);
    fenced_deinit(&fenced);
}

static void streams_and_devices_have_words_of_their_own(void **state) {
    struct fenced fenced;
    void *others[2];
    (void)state;
    fenced_init(&fenced, NULL);
    assert_ok(gpupool_stream_create(fenced.client, 0, &others[0]));
    assert_int_equal(fenced.gpu->stream_create(1, &others[1]), 0);
    gate_close(&fenced, fenced.stream);
    struct fence fences[] = {
        enqueue(&fenced, 0, fenced.stream), enqueue(&fenced, 0, others[0]), enqueue(&fenced, 1, others[1]),
        enqueue(&fenced, 0, NULL),          enqueue(&fenced, 1, NULL),
    };
    for (unsigned i = 0; i < 5; i++)
        for (unsigned j = 0; j < i; j++)
            assert_int_not_equal(fences[i].word, fences[j].word);
    /* no stream waits behind another's gate */
    for (unsigned i = 1; i < 5; i++)
        fence_await(&fenced, fences[i]);
    assert_false(fence_is_ready(&fenced.client->session, fences[0]));
    assert_int_equal(enqueue(&fenced, 0, others[0]).word, fences[1].word);
    gate_open(&fenced);
    assert_int_equal(daemon_.pages, 1);
    assert_ok(gpupool_stream_destroy(fenced.client, 0, others[0]));
    assert_ok(gpupool_stream_destroy(fenced.client, 1, others[1]));
    fenced_deinit(&fenced);
}

struct worker {
    struct fenced *fenced;
    void *stream;
    pthread_t thread;
    struct fence fences[FENCES];
    int result;
};

static void *leave_fences(void *argument) {
    struct worker *worker = argument;
    for (unsigned i = 0; i < FENCES && worker->result == 0; i++)
        worker->result =
            fences_enqueue(&worker->fenced->client->session, 0, worker->stream, &worker->fences[i]);
    if (worker->result == 0) /* the per-thread stream ends with its thread */
        worker->result =
            fence_wait(&worker->fenced->client->session, worker->fences[FENCES - 1], -1, NS_FOREVER);
    return NULL;
}

static void run_workers(struct fenced *fenced, struct worker *workers, void *stream) {
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i] = (struct worker){.fenced = fenced, .stream = stream};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, leave_fences, &workers[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        TEST_JOIN(workers[i].thread, NULL);
        assert_int_equal(workers[i].result, 0);
    }
}

static void threads_on_one_stream_never_take_its_word_back(void **state) {
    static struct worker workers[THREADS];
    static bool seen[THREADS * FENCES + 1];
    struct fenced fenced;
    (void)state;
    memset(seen, 0, sizeof seen);
    fenced_init(&fenced, NULL);
    run_workers(&fenced, workers, fenced.stream);
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned j = 0; j < FENCES; j++) {
            struct fence fence = workers[i].fences[j];
            assert_int_equal(fence.word, workers[0].fences[0].word);
            assert_in_range(fence.value, 1, THREADS * FENCES);
            assert_false(seen[fence.value]);
            seen[fence.value] = true;
            assert_true(j == 0 || fence.value > workers[i].fences[j - 1].value);
            assert_true(fence_is_ready(&fenced.client->session, fence));
        }
    /* the last write was that of the last value */
    assert_ok(gpupool_stream_synchronize(fenced.client, 0, fenced.stream));
    assert_int_equal(fenced.client->session.page.memory->fences[workers[0].fences[0].word - 1],
                     THREADS * FENCES);
    fenced_deinit(&fenced);
}

static void the_per_thread_stream_is_another_in_each_thread(void **state) {
    static struct worker workers[THREADS];
    struct fenced fenced;
    (void)state;
    fenced_init(&fenced, NULL);
    run_workers(&fenced, workers, GPUPOOL_PER_THREAD);
    for (unsigned i = 0; i < THREADS; i++)
        for (unsigned j = 0; j < i; j++)
            assert_int_not_equal(workers[i].fences[0].word, workers[j].fences[0].word);
    fenced_deinit(&fenced);
}

static void a_captured_stream_gets_nothing(void **state) {
    struct fence fence = {77, 78};
    struct fenced fenced;
    unsigned operations = 1;
    (void)state;
    fenced_init(&fenced, NULL);
    void *other;
    assert_ok(gpupool_stream_create(fenced.client, 0, &other));
    gate_close(&fenced, other);
    struct fence ordered = enqueue(&fenced, 0, other);
    assert_int_equal(gpu_sim_capture_begin(0, fenced.stream), 0);
    assert_error(fences_enqueue(&fenced.client->session, 0, fenced.stream, &fence), GPUPOOL_E_CAPTURING);
    assert_error(fence_order(&fenced.client->session, ordered, 0, fenced.stream), GPUPOOL_E_CAPTURING);
    assert_int_equal(fence.word, 77);
    assert_int_equal(gpu_sim_capture_end(0, fenced.stream, &operations), 0);
    assert_int_equal(operations, 0);
    /* and is as before when it is over */
    fence = enqueue(&fenced, 0, fenced.stream);
    fence_await(&fenced, fence);
    gate_open(&fenced);
    assert_ok(gpupool_stream_destroy(fenced.client, 0, other));
    fenced_deinit(&fenced);
}

static void another_stream_is_made_to_wait_on_the_gpu(void **state) {
    struct fenced fenced;
    void *other;
    (void)state;
    fenced_init(&fenced, NULL);
    assert_ok(gpupool_stream_create(fenced.client, 0, &other));
    gate_close(&fenced, fenced.stream);
    struct fence before = enqueue(&fenced, 0, fenced.stream);
    assert_ok(fence_order(&fenced.client->session, before, 0, other));
    struct fence behind = enqueue(&fenced, 0, other);
    assert_error(fence_wait(&fenced.client->session, behind, -1, clock_now_ns() + 5 * NS_PER_MS),
                 GPUPOOL_E_TIMED_OUT);
    gate_open(&fenced);
    fence_await(&fenced, behind);
    assert_true(fence_is_ready(&fenced.client->session, before));
    assert_ok(gpupool_stream_destroy(fenced.client, 0, other));
    fenced_deinit(&fenced);
}

/* Opens the gate after a while: a call that does not wait for the stream is back long before. */
static void *open_late(void *argument) {
    poll(NULL, 0, 30);
    gate_open(argument);
    return NULL;
}

/* There are no words to be had: the fence is a wait. */
static void must_wait(struct fenced *fenced, void *stream) {
    pthread_t thread;
    gate_close(fenced, stream);
    assert_int_equal(pthread_create(&thread, NULL, open_late, fenced), 0);
    struct fence fence = enqueue(fenced, 0, stream);
    int busy = fenced->gpu->stream_query(0, stream);
    TEST_JOIN(thread, NULL);
    assert_int_equal(fence.word, 0);
    assert_int_equal(busy, 0);
}

static bool refuse_page(struct false_daemon *daemon, struct false_session *session,
                        const struct proto_message *request) {
    (void)daemon;
    if (request->header.operation != PROTO_ASK_PAGE)
        return false;
    false_send_error(session, request->header.request, PROTO_E_LIMIT, "no page for you");
    return true;
}

static void without_a_page_a_fence_is_a_wait(void **state) {
    struct fenced fenced;
    (void)state;
    fenced_init(&fenced, refuse_page);
    assert_error(gpupool_release(fenced.client, NULL, NULL), GPUPOOL_E_INVALID);
    must_wait(&fenced, fenced.stream);
    assert_text_has("no buffer"); /* what did not fail says nothing */
    unsigned messages = daemon_.messages;
    must_wait(&fenced, fenced.stream);
    assert_int_equal(daemon_.messages, messages); /* it is asked for once */
    fenced_deinit(&fenced);
}

static void words_that_cannot_be_registered_are_done_without(void **state) {
    struct fenced fenced;
    (void)state;
    fenced_init(&fenced, NULL);
    assert_int_equal(gpu_sim_fail("host_register", 1, GPU_ERROR_MEMORY_ALLOCATION), 0);
    must_wait(&fenced, fenced.stream);
    assert_true(gpu_sim_failed());
    must_wait(&fenced, fenced.stream);
    fenced_deinit(&fenced);
}

static void a_device_that_writes_no_words_is_waited_for(void **state) {
    struct fenced fenced;
    (void)state;
    fenced_init(&fenced, NULL);
    enqueue(&fenced, 0, fenced.stream);
    assert_int_equal(gpu_sim_fail("stream_write64", 1, GPU_ERROR_NOT_SUPPORTED), 0);
    must_wait(&fenced, fenced.stream);
    assert_true(gpu_sim_failed());
    fenced_deinit(&fenced);
}

static void a_fence_that_failed_leaves_no_gap(void **state) {
    struct fenced fenced;
    struct fence fence = {77, 78};
    (void)state;
    fenced_init(&fenced, NULL);
    struct fence before = enqueue(&fenced, 0, fenced.stream);
    assert_int_equal(gpu_sim_fail("stream_write64", 1, GPU_ERROR_UNKNOWN), 0);
    assert_error(fences_enqueue(&fenced.client->session, 0, fenced.stream, &fence), GPUPOOL_E_DRIVER);
    assert_text_has("cudaErrorUnknown");
    assert_int_equal(fence.word, 77);
    struct fence after = enqueue(&fenced, 0, fenced.stream);
    assert_int_equal(after.word, before.word);
    assert_int_equal(after.value, before.value + 1);
    fence_await(&fenced, after);
    assert_error(fences_enqueue(&fenced.client->session, 0, &fence, &fence),
                 GPUPOOL_E_DRIVER); /* no stream */
    fenced_deinit(&fenced);
}

static void a_word_whose_stream_is_done_is_given_to_another(void **state) {
    struct fenced fenced;
    void *other;
    (void)state;
    fenced_init(&fenced, NULL);
    assert_ok(gpupool_stream_create(fenced.client, 0, &other));
    struct fences *fences = &fenced.client->session.fences;
    struct fence own = enqueue(&fenced, 0, fenced.stream);
    fence_await(&fenced, own);
    /* all other words are those of streams that are busy */
    gate_close(&fenced, fenced.stream);
    own = enqueue(&fenced, 0, fenced.stream);
    while (fences->count < PROTO_PAGE_FENCES) {
        struct fence_word *word = &fences->words[fences->count++];
        word->stream = word;
        word->value = 9;
        list_append(&fences->buckets[0], &word->link);
    }
    gate_open(&fenced);
    must_wait(&fenced, other);
    gate_close(&fenced, fenced.stream);
    struct fence last = enqueue(&fenced, 0, fenced.stream); /* a stream with a word keeps it */
    assert_int_equal(last.word, own.word);
    /* one of them is done */
    atomic_store(&fenced.client->session.page.memory->fences[300], 9);
    struct fence got = enqueue(&fenced, 0, other);
    assert_int_equal(got.word, 301);
    assert_int_equal(got.value, 10);
    fence_await(&fenced, got);
    assert_int_equal(enqueue(&fenced, 0, other).word, 301);
    assert_false(fence_is_ready(&fenced.client->session, last));
    gate_open(&fenced);
    fence_await(&fenced, last);
    assert_ok(gpupool_stream_destroy(fenced.client, 0, other));
    fenced_deinit(&fenced);
}

/* The driver may give its handle to a stream that is ahead of what this one has still to write. CUDA takes a
 * stream's handle on any device; the simulated GPU only NULL. */
static void a_stream_that_ends_takes_its_words_along(void **state) {
    struct fenced fenced;
    struct fence before[DEVICES], after[DEVICES];
    (void)state;
    fenced_init(&fenced, NULL);
    gate_close(&fenced, NULL);
    assert_int_equal(fenced.gpu->stream_wait64(1, NULL, gate_word(&fenced), 1), 0);
    for (unsigned device = 0; device < DEVICES; device++)
        before[device] = enqueue(&fenced, device, NULL);
    fences_leave_stream(&fenced.client->session.fences, NULL);
    for (unsigned device = 0; device < DEVICES; device++)
        after[device] = enqueue(&fenced, device, NULL); /* as if it were another */
    for (unsigned device = 0; device < DEVICES; device++) {
        for (unsigned other = 0; other < DEVICES; other++)
            assert_int_not_equal(after[device].word, before[other].word);
        assert_false(fence_is_ready(&fenced.client->session, before[device]));
        assert_int_equal(enqueue(&fenced, device, NULL).word, after[device].word);
    }
    gate_open(&fenced);
    for (unsigned device = 0; device < DEVICES; device++) {
        fence_await(&fenced, before[device]);
        fence_await(&fenced, after[device]);
    }
    fenced_deinit(&fenced);
}

int main(void) {
    fixture_init();
    const struct CMUnitTest tests[] = {
        TEST(a_fence_is_ready_when_what_was_enqueued_before_is_done),
        TEST(streams_and_devices_have_words_of_their_own),
        TEST(threads_on_one_stream_never_take_its_word_back),
        TEST(the_per_thread_stream_is_another_in_each_thread),
        TEST(a_captured_stream_gets_nothing),
        TEST(another_stream_is_made_to_wait_on_the_gpu),
        TEST(without_a_page_a_fence_is_a_wait),
        TEST(words_that_cannot_be_registered_are_done_without),
        TEST(a_device_that_writes_no_words_is_waited_for),
        TEST(a_fence_that_failed_leaves_no_gap),
        TEST(a_word_whose_stream_is_done_is_given_to_another),
        TEST(a_stream_that_ends_takes_its_words_along),
    };
    int failed = cmocka_run_group_tests_name("fence", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
