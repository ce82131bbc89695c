/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the memory that a client's cache gives back, whatever the daemon does meanwhile. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/unit/asking.h"
#include "tests/unit/client_fixture.h"

static struct gpupool_client *client_; /* for the program's callback */

/* A client with a purger, of a daemon that can ask it and answers by handle. */
static struct gpupool_client *open_with_callback(bool (*handle)(struct false_daemon *, struct false_session *,
                                                                const struct proto_message *),
                                                 void (*reclaim)(void *argument)) {
    struct gpupool_options options = options_for(daemon_.path);
    struct gpupool_client *client = NULL;

    asking_begin();
    options.flags = 0;
    options.decay_ns = GPUPOOL_FOREVER;
    options.reclaim = reclaim;
    options.reclaim_argument = &client_;
    daemon_.handle = handle;
    false_daemon_run(&daemon_);
    assert_ok(gpupool_open(&options, &client));
    client_ = client;
    return client;
}

static struct gpupool_client *open_with_purger(bool (*handle)(struct false_daemon *, struct false_session *,
                                                              const struct proto_message *)) {
    return open_with_callback(handle, NULL);
}

/* The daemon sets its timer anew while the last time is still being read: there is nothing to be read then.
 * The descriptor is good all the same. */
static void a_purger_that_is_asked_many_times_hears_the_last_one(void **state) {
    struct gpupool_buffer buffer;

    (void)state;
    struct gpupool_client *client = open_with_purger(greet_with_timer);
    for (unsigned i = 0; i < 10000; i++)
        ask();
    for (unsigned round = 1; round <= 3; round++) {
        assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &buffer));
        assert_int_equal(daemon_.releases, round - 1);
        assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM)); /* it stays, the pool is not short */
        assert_int_equal(daemon_.releases, round - 1);
        mark(client, true);
        ask();
        false_daemon_await(&daemon_, &daemon_.releases, round);
        mark(client, false);
    }
    gpupool_close(client);
    asking_fd = close_fd(asking_fd);
}

static atomic_uint answers;

static bool count_answers(struct false_daemon *daemon, struct false_session *session,
                          const struct proto_message *request) {
    if (request->header.operation == PROTO_IDLE && request->idle.size_bytes == 0) {
        pthread_mutex_lock(&daemon->lock);
        answers++;
        pthread_cond_broadcast(&daemon->changed);
        pthread_mutex_unlock(&daemon->lock);
    }
    return greet_with_timer(daemon, session, request);
}

/* Until then it gives back each buffer at once, without being asked. */
static void a_pool_that_is_marked_as_short_is_kept_nothing_of_until_it_is_no_more(void **state) {
    struct gpupool_buffer buffer, other;

    (void)state;
    answers = 0;
    struct gpupool_client *client = open_with_purger(count_answers);
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &buffer));
    mark(client, true);
    ask();
    false_daemon_await(&daemon_, &answers, 1); /* it has nothing idle, and says so */
    for (unsigned round = 1; round <= 3; round++) {
        assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
        false_daemon_await(&daemon_, &daemon_.releases, round);
        assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &buffer));
    }
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST_B, 4096, NULL, PATIENT_NS, 0, &other));
    assert_ok(gpupool_release(client, &other, GPUPOOL_NO_STREAM)); /* another pool's stay */
    mark(client, false);
    assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    assert_int_equal(daemon_.releases, 3);
    gpupool_close(client);
    asking_fd = close_fd(asking_fd);
}

/* --- the answers to questions --- */

/* Asks with a number, as the daemon counts them in the page. */
static void ask_as(const struct gpupool_client *client, uint64_t number) {
    atomic_store(&client->session.page.memory->shortage.asked, number);
    ask();
}

static void expect_answer(unsigned count, enum proto_reclaim outcome, uint64_t asked, uint64_t kept_bytes) {
    false_daemon_await(&daemon_, &daemon_.n_reclaimed, count);
    assert_int_equal(daemon_.reclaimed.pool, FALSE_POOL_HOST);
    assert_int_equal(daemon_.reclaimed.outcome, outcome);
    assert_int_equal(daemon_.reclaimed.asked, asked);
    assert_int_equal(daemon_.reclaimed.kept_bytes, kept_bytes);
}

static void each_question_is_answered_behind_what_it_brought(void **state) {
    struct gpupool_buffer buffers[2];

    (void)state;
    struct gpupool_client *client = open_with_purger(greet_with_timer);
    for (unsigned i = 0; i < 2; i++)
        assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &buffers[i]));
    assert_ok(gpupool_release(client, &buffers[0], GPUPOOL_NO_STREAM));
    mark(client, true);
    ask_as(client, 7);
    expect_answer(1, PROTO_RECLAIM_DONE, 7, 0);
    assert_int_equal(daemon_.releases, 1); /* the daemon heard of it before */
    ask_as(client, 8);
    expect_answer(2, PROTO_RECLAIM_NOTHING, 8, 0);
    assert_ok(gpupool_reclaimed(client, 0, GPUPOOL_RECLAIM_NOTHING, 0)); /* of no callback: not sent */
    mark(client, false);
    gpupool_close(client);
    asking_fd = close_fd(asking_fd);
}

static atomic_uint n_told;
static _Atomic enum gpupool_reclaim_outcome told_at_once; /* 0: the program answers later */

static void program_is_told(void *argument) {
    assert_ptr_equal(argument, &client_);
    if (told_at_once != 0)
        (void)gpupool_reclaimed(client_, 0, told_at_once, 0);
    pthread_mutex_lock(&daemon_.lock);
    n_told++;
    pthread_cond_broadcast(&daemon_.changed);
    pthread_mutex_unlock(&daemon_.lock);
}

static void a_program_answers_when_it_can(void **state) {
    struct gpupool_buffer buffer, kept;

    (void)state;
    n_told = 0;
    told_at_once = 0;
    struct gpupool_client *client = open_with_callback(greet_with_timer, program_is_told);
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &buffer));
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &kept));
    assert_ok(gpupool_reclaimed(client, FALSE_POOL_HOST, GPUPOOL_RECLAIM_DONE, 5)); /* of no question */
    mark(client, true);
    ask_as(client, 3);
    expect_answer(1, PROTO_RECLAIM_PENDING, 3, 0);
    assert_int_equal(n_told, 1);
    assert_ok(gpupool_reclaimed(client, FALSE_POOL_HOST, GPUPOOL_RECLAIM_CAPTURING, 8192));
    expect_answer(2, PROTO_RECLAIM_CAPTURING, 3, 8192);
    assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    assert_ok(gpupool_reclaimed(client, FALSE_POOL_HOST, GPUPOOL_RECLAIM_DONE, 4096));
    expect_answer(3, PROTO_RECLAIM_DONE, 3, 4096);
    assert_int_equal(daemon_.releases, 1);
    ask_as(client, 4); /* the program owes an answer again */
    expect_answer(4, PROTO_RECLAIM_PENDING, 4, 4096);
    assert_ok(gpupool_reclaimed(client, 0, GPUPOOL_RECLAIM_WAITS, 0));
    expect_answer(5, PROTO_RECLAIM_WAITS, 4, 0);
    told_at_once = GPUPOOL_RECLAIM_NOTHING;
    ask_as(client, 5);
    expect_answer(6, PROTO_RECLAIM_NOTHING, 5, 0); /* one message says both */
    mark(client, false);
    gpupool_close(client);
    asking_fd = close_fd(asking_fd);
}

static void answers_are_checked(void **state) {
    struct gpupool_options options = options_for(daemon_.path);
    struct gpupool_client *client;

    (void)state;
    false_daemon_run(&daemon_);
    assert_ok(gpupool_open(&options, &client)); /* without a cache */
    assert_error(gpupool_reclaimed(client, 0, GPUPOOL_RECLAIM_DONE, 0), GPUPOOL_E_INVALID);
    gpupool_close(client);
    options.flags = 0;
    assert_ok(gpupool_open(&options, &client));
    assert_error(gpupool_reclaimed(NULL, 0, GPUPOOL_RECLAIM_DONE, 0), GPUPOOL_E_INVALID);
    assert_error(gpupool_reclaimed(client, 0, 0, 0), GPUPOOL_E_INVALID);
    assert_error(gpupool_reclaimed(client, 0, (enum gpupool_reclaim_outcome)6, 0), GPUPOOL_E_INVALID);
    assert_error(gpupool_reclaimed(client, 0, GPUPOOL_RECLAIM_BUSY, 1), GPUPOOL_E_INVALID);
    assert_text_has("say for each pool");
    assert_error(gpupool_reclaimed(client, FALSE_POOL_HOST, GPUPOOL_RECLAIM_BUSY, PROTO_SIZE_MAX + 1),
                 GPUPOOL_E_INVALID);
    assert_error(gpupool_reclaimed(client, 99, GPUPOOL_RECLAIM_BUSY, 0), GPUPOOL_E_NO_POOL);
    assert_ok(gpupool_reclaimed(client, FALSE_POOL_HOST, GPUPOOL_RECLAIM_BUSY, 1)); /* it was never asked */
    assert_int_equal(daemon_.n_reclaimed, 0);
    gpupool_close(client);
}

static atomic_bool mute;
static atomic_uint unanswered;

static struct proto_message held;

static bool answer_no_release(struct false_daemon *daemon, struct false_session *session,
                              const struct proto_message *request) {
    if (!mute && held.header.request != 0) { /* now, and in order */
        false_daemon_serve(daemon, session, &held);
        held.header.request = 0;
    }
    if (!mute || request->header.operation != PROTO_RELEASE)
        return false;
    unanswered++;
    held = *request;
    return true;
}

static void a_daemon_that_does_not_answer_is_waited_for_once(void **state) {
    static const uint32_t pools[2] = {FALSE_POOL_HOST, FALSE_POOL_HOST_B};
    struct gpupool_options options = options_for(daemon_.path);
    struct gpupool_client *client = NULL;
    struct gpupool_buffer buffers[2];
    uint64_t bytes;
    size_t count;

    (void)state;
    options.flags = 0;
    options.decay_ns = GPUPOOL_FOREVER;
    daemon_.handle = answer_no_release;
    false_daemon_run(&daemon_);
    assert_ok(gpupool_open(&options, &client));
    for (unsigned i = 0; i < 2; i++)
        assert_ok(gpupool_acquire(client, pools[i], 4096, NULL, PATIENT_NS, 0, &buffers[i]));
    for (unsigned i = 0; i < 2; i++)
        assert_ok(gpupool_release(client, &buffers[i], GPUPOOL_NO_STREAM));
    mute = true;
    client->session.connection.answer_timeout_ns = IMPATIENT_NS;
    assert_error(gpupool_trim(client, &bytes), GPUPOOL_E_TIMED_OUT);
    client->session.connection.answer_timeout_ns = PATIENT_NS;
    assert_ok(gpupool_pools(client, NULL, 0, &count)); /* the daemon has read what was sent before that */
    assert_int_equal(unanswered, 2); /* one was sent without waiting, for the other an answer is due */
    mute = false;
    assert_ok(gpupool_pools(client, NULL, 0, &count));
    assert_int_equal(daemon_.releases, 1);
    assert_ok(gpupool_trim(client, &bytes)); /* hears of it, and does not release it again */
    assert_int_equal(daemon_.releases, 1);
    gpupool_close(client);
}

/* --- a request that waits --- */

static struct proto_acquire asked[4];
static _Atomic unsigned n_asked;

/* Has no room: refuses what does not wait for memory of others, and lets the rest wait. */
static bool let_wait(struct false_daemon *daemon, struct false_session *session,
                     const struct proto_message *request) {
    if (request->header.operation != PROTO_ACQUIRE)
        return greet_with_timer(daemon, session, request);
    pthread_mutex_lock(&daemon->lock);
    if (n_asked < sizeof asked / sizeof *asked)
        asked[n_asked] = request->acquire;
    n_asked++;
    pthread_cond_broadcast(&daemon->changed);
    pthread_mutex_unlock(&daemon->lock);
    if ((request->acquire.flags & PROTO_ACQUIRE_NO_RECLAIM) != 0)
        false_send_error(session, request->header.request, PROTO_E_EXHAUSTED, "full");
    return true;
}

/* The surplus of a later one would be cut for others, and the one that waits could have it. */
static void beside_a_request_that_waits_others_ask_for_what_they_need(void **state) {
    uint64_t request;

    (void)state;
    n_asked = 0;
    struct gpupool_client *client = open_with_purger(let_wait);
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(gpupool_acquire_begin(client, FALSE_POOL_HOST, MIB, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, 0,
                                        &request));
        false_daemon_await(&daemon_, &n_asked, 2 * i + 2);
    }
    assert_true(asked[0].size_bytes > MIB); /* no request waited yet */
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(asked[i].least_bytes, MIB);
        assert_int_equal((asked[i].flags & PROTO_ACQUIRE_NO_RECLAIM) != 0, i % 2 == 0);
        assert_true(i == 0 || asked[i].size_bytes == MIB);
    }
    gpupool_close(client);
    asking_fd = close_fd(asking_fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_purger_that_is_asked_many_times_hears_the_last_one),
        TEST(each_question_is_answered_behind_what_it_brought),
        TEST(a_program_answers_when_it_can),
        TEST(answers_are_checked),
        TEST(a_pool_that_is_marked_as_short_is_kept_nothing_of_until_it_is_no_more),
        TEST(a_daemon_that_does_not_answer_is_waited_for_once),
        TEST(beside_a_request_that_waits_others_ask_for_what_they_need),
    };
    fixture_init();
    int failed = cmocka_run_group_tests_name("client_purger", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
