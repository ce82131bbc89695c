/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers that come after their caller has given up. One table has every request of the protocol: what the
 * library does with the late answer, and that the session goes on. Then calls whose own state depends on it.
 * The daemon here takes messages and answers none while it is silent, and then all of them in order, as one
 * does that was stopped for a while.
 */
#include <string.h>

#include "base/lock.h"
#include "base/thread.h"
#include "client/session/lease.h"
#include "client/session/segment.h"
#include "client/session/submit.h"
#include "tests/unit/client_fixture.h"

#define HELD_MAX 64u
/* No answer comes. */
#define SILENCE_NS (10 * NS_PER_MS)

static struct {
    pthread_mutex_t lock; /* of the test and of the false daemon's thread */
    bool is_silent;
    unsigned n;
    struct proto_message messages[HELD_MAX];
    struct false_session *sessions[HELD_MAX]; /* that sent them */
    _Atomic unsigned asked[PROTO_ASK_ALIVE + 1]; /* messages of each operation */
} silence = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Answers what the false daemon by itself does not. */
static void serve(struct false_daemon *daemon, struct false_session *session,
                  const struct proto_message *request) {
    struct proto_message reply = {.header.request = request->header.request};

    switch (request->header.operation) {
    case PROTO_OFFER:
    case PROTO_IDLE: /* the segment of the host pool is to be closed, which it is told once */
        reply.header.operation = PROTO_SEGMENTS;
        reply.segments.count = session->described[FALSE_POOL_HOST];
        reply.segments.ids[0] = reply.segments.count > 0 ? FALSE_POOL_HOST : 0;
        session->described[FALSE_POOL_HOST] = false;
        break;
    case PROTO_ASK_PARTS:
        reply.header.operation = PROTO_PARTS;
        reply.parts = (struct proto_parts){.count = 1, .total = 2};
        reply.parts.parts[0] = (struct proto_part){1, FALSE_SEGMENT_SIZE, 0, 512};
        break;
    case PROTO_ACQUIRE_SEGMENTS:
        false_send_error(session, request->header.request, PROTO_E_EXHAUSTED, "none");
        return;
    case PROTO_MERGE:
    case PROTO_CLOSED:
        if (request->header.request == 0)
            return;
        reply.header.operation = PROTO_OK;
        break;
    case PROTO_DESCRIBE: /* the part that was asked for, in a segment that was described */
        reply = false_lease_message(daemon, request->header.request, FALSE_POOL_HOST, 512, false);
        break;
    default:
        false_daemon_serve(daemon, session, request);
        return;
    }
    false_send(session, &reply, NULL, 0);
}

/* Serves a message, or keeps it until the descriptor that the session was sent is confirmed. */
static void serve_in_turn(struct false_daemon *daemon, struct false_session *session,
                          const struct proto_message *request) {
    if (session->fd >= 0 && session->unconfirmed != 0)
        session->backlog[session->backlog_count++] = *request;
    else if (session->fd >= 0)
        serve(daemon, session, request);
}

static bool hold_or_serve(struct false_daemon *daemon, struct false_session *session,
                          const struct proto_message *request) {
    LOCKED(&silence.lock);
    silence.asked[request->header.operation]++;
    if (silence.is_silent) {
        assert(silence.n < HELD_MAX);
        silence.sessions[silence.n] = session;
        silence.messages[silence.n++] = *request;
        return true;
    }
    for (unsigned i = 0; i < silence.n; i++)
        serve_in_turn(daemon, silence.sessions[i], &silence.messages[i]);
    silence.n = 0;
    serve_in_turn(daemon, session, request);
    return true;
}

static void set_silent(bool is_silent) {
    LOCKED(&silence.lock);
    silence.is_silent = is_silent;
}

static void begin_silence(struct gpupool_client *client) {
    set_silent(true);
    client->session.connection.answer_timeout_ns = SILENCE_NS;
}

/* From now on the daemon answers; on return it has answered what was sent before. */
static void end_silence(struct gpupool_client *client) {
    size_t count;

    client->session.connection.answer_timeout_ns = PATIENT_NS;
    set_silent(false);
    assert_ok(gpupool_pools(client, NULL, 0, &count));
    assert_ok(gpupool_pools(client, NULL, 0, &count)); /* and what the library sent because of that */
}

static struct gpupool_client *start_cached(void) {
    struct gpupool_options options = options_for(daemon_.path);
    struct gpupool_client *client = NULL;

    options.flags = 0;
    options.decay_ns = GPUPOOL_FOREVER;
    daemon_.large_bytes = 64 * KIB; /* so that a piece is a part of its extent */
    daemon_.handle = hold_or_serve;
    false_daemon_run(&daemon_);
    assert_ok(gpupool_open(&options, &client));
    return client;
}

static int set_up_silence(void **state) {
    memset(&silence, 0, sizeof silence);
    return set_up(state);
}
#define LATE_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_silence, tear_down)

/* --- all requests --- */

/* Fills in a request about a lease of the session. */
static void fill_in(struct proto_message *message, uint16_t operation, const struct gpupool_buffer *buffer) {
    const struct proto_lease_name lease = {buffer->lease, buffer->generation};

    switch (operation) {
    case PROTO_ACQUIRE:
        message->acquire = (struct proto_acquire){.pool = FALSE_POOL_HOST, .size_bytes = 512};
        break;
    case PROTO_ACQUIRE_SEGMENTS:
        message->acquire_segments = (struct proto_acquire_segments){
            .pool = FALSE_POOL_HOST, .segment_bytes = FALSE_SEGMENT_SIZE, .count = 1};
        break;
    case PROTO_RELEASE:
        message->release = (struct proto_release){.lease = lease.lease, .generation = lease.generation};
        break;
    case PROTO_SPLIT:
        message->split =
            (struct proto_release){.lease = lease.lease, .generation = lease.generation, .size_bytes = 512};
        break;
    case PROTO_SHARE:
        message->share = (struct proto_share){.lease = lease.lease, .generation = lease.generation};
        break;
    case PROTO_SEND:
        message->send = (struct proto_send){.share = {.lease = lease.lease, .generation = lease.generation},
                                            .lifetime_ns = NS_PER_S,
                                            .takers = 1};
        break;
    case PROTO_ATTACH:
    case PROTO_REVOKE:
        memset(message->attach.bytes, 0xa5, sizeof message->attach.bytes);
        break;
    case PROTO_QUERY:
    case PROTO_ASK_HOLDERS:
        message->query = lease;
        break;
    case PROTO_MERGE:
        message->merge = (struct proto_merge){lease.lease, lease.generation, lease.lease, lease.generation};
        break;
    case PROTO_IDLE:
        message->idle = (struct proto_idle){.pool = FALSE_POOL_HOST};
        break;
    case PROTO_OFFER:
        message->offer = (struct proto_offer){.pool = FALSE_POOL_HOST, .count = 1, .ids = {FALSE_POOL_HOST}};
        break;
    case PROTO_CLOSED:
        message->closed.segment = FALSE_POOL_HOST;
        break;
    case PROTO_ASK_PARTS:
    case PROTO_DESCRIBE:
        message->ask_parts = (struct proto_part_name){.lease = lease.lease, .generation = lease.generation};
        break;
    default: /* no body */
        break;
    }
}

/* undoing: the message that the library sends because of the late answer; 0: none. is_kept: the caller takes
 * the answer. */
static const struct late_case {
    const char *name; /* NULL: no request that a client has under way beside others */
    enum proto_operation undoing;
    bool is_kept, names_segments;
} late_cases[PROTO_ASK_ALIVE + 1] = {
    [PROTO_LIST_POOLS] = {"LIST_POOLS", 0, false, false},
    [PROTO_ACQUIRE] = {"ACQUIRE", PROTO_RELEASE, false, false},
    [PROTO_ACQUIRE_SEGMENTS] = {"ACQUIRE_SEGMENTS", 0, false, false}, /* leases: client_segments_request */
    [PROTO_RELEASE] = {"RELEASE", 0, false, false},
    [PROTO_SHARE] = {"SHARE", 0, false, false},
    [PROTO_ATTACH] = {"ATTACH", PROTO_RELEASE, false, false},
    [PROTO_QUERY] = {"QUERY", 0, false, false},
    [PROTO_SPLIT] = {"SPLIT", 0, true, false},
    [PROTO_ASK_PAGE] = {"ASK_PAGE", 0, true, false},
    [PROTO_MERGE] = {"MERGE", 0, false, false},
    [PROTO_IDLE] = {"IDLE", 0, false, true},
    [PROTO_CLOSED] = {"CLOSED", 0, false, false},
    [PROTO_ASK_PARTS] = {"ASK_PARTS", 0, false, false},
    [PROTO_DESCRIBE] = {"DESCRIBE", 0, false, false},
    [PROTO_OFFER] = {"OFFER", 0, false, true},
    [PROTO_ASK_BOARD] = {"ASK_BOARD", 0, true, false},
    [PROTO_ASK_HOLDERS] = {"ASK_HOLDERS", 0, false, false},
    [PROTO_SEND] = {"SEND", PROTO_REVOKE, false, false},
    [PROTO_REVOKE] = {"REVOKE", 0, false, false},
    [PROTO_ASK_ALIVE] = {"ASK_ALIVE", 0, false, false}, /* its answer is the connection's */
};

static void no_late_answer_spoils_a_session(void **state) {
    (void)state;
    daemon_.shows_alive = true;
    struct gpupool_client *client = start(hold_or_serve);
    struct connection *connection = &client->session.connection;

    for (uint16_t operation = PROTO_HELLO; operation <= PROTO_ASK_ALIVE; operation++) {
        const struct late_case *expected = &late_cases[operation];
        bool has_one =
            operation != PROTO_HELLO && operation != PROTO_BYE && proto_reply_to(operation) != PROTO_NONE;
        assert_int_equal(expected->name != NULL, has_one);
        if (!has_one)
            continue;
        struct gpupool_buffer buffer;
        struct gpupool_token token;
        assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 512, NULL, GPUPOOL_NOW, 0, &buffer));
        assert_ok(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token)); /* there is one to attach */
        unsigned before = expected->undoing == 0 ? 0 : silence.asked[expected->undoing];
        struct request *request = connection_request(connection, operation);
        assert_non_null(request);
        fill_in(&request->message, operation, &buffer);
        if (operation == PROTO_ACQUIRE_SEGMENTS)
            request->n_wanted = 1;
        begin_silence(client);
        uint64_t deadline_ns = connection_deadline_ns(connection, 0);
        int r = expected->is_kept ? connection_exchange_kept(connection, &request, deadline_ns)
                                  : connection_exchange(connection, &request, deadline_ns);
        assert_error(r, GPUPOOL_E_TIMED_OUT);
        assert_int_equal(request != NULL, expected->is_kept);
        end_silence(client);
        assert_true(list_is_empty(&connection->abandoned));
        if (expected->undoing != 0)
            assert_int_equal(silence.asked[expected->undoing], before + 1);
        assert_int_equal(client->session.segments.n_named, expected->names_segments);
        if (expected->names_segments) {
            before = silence.asked[PROTO_CLOSED];
            assert_ok(lease_close_named(&client->session));
            assert_int_equal(silence.asked[PROTO_CLOSED], before + 1);
            assert_null(segments_find(&client->session.segments, FALSE_POOL_HOST));
        }
        if (expected->is_kept) {
            assert_ok(connection_go_on(connection, &request, 0)); /* it has come */
            if (operation == PROTO_SPLIT)
                assert_ok(lease_release(&client->session, request->message.lease.lease,
                                        request->message.lease.generation, 0, 0, FENCE_NONE));
            request_recycle(request);
        }
        if (operation != PROTO_RELEASE)
            assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
        if (daemon_.leases != 0)
            fail_msg("after a late answer to %s %u leases are left", expected->name,
                     (unsigned)daemon_.leases);
        assert_true(connection_is_up(connection));
    }
    gpupool_close(client);
}

/* --- calls --- */

static void a_share_that_is_answered_late_can_be_made_again(void **state) {
    (void)state;
    struct gpupool_client *client = start_cached();
    struct gpupool_buffer buffer;
    struct gpupool_buffer_info info;
    struct gpupool_token token;
    uint64_t bytes;

    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &buffer));
    begin_silence(client);
    assert_error(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token), GPUPOOL_E_TIMED_OUT);
    assert_error(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token), GPUPOOL_E_TIMED_OUT);
    assert_int_equal(silence.asked[PROTO_SHARE], 1); /* it goes on with the first one */
    end_silence(client);
    assert_ok(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token));
    assert_int_equal(silence.asked[PROTO_SHARE], 2); /* it is a lease of its own now */
    assert_ok(gpupool_query(client, &buffer, &info));
    assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    assert_ok(gpupool_trim(client, &bytes));
    assert_int_equal(daemon_.leases, 1); /* the extent's, which the false daemon does not end by parts */
    gpupool_close(client);
}

static void a_buffer_can_be_released_while_its_share_is_not_answered(void **state) {
    (void)state;
    struct gpupool_client *client = start_cached();
    struct gpupool_buffer buffer, copy;
    struct gpupool_token token;
    uint64_t bytes;

    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &buffer));
    copy = buffer;
    begin_silence(client);
    assert_error(gpupool_send(client, &buffer, GPUPOOL_NO_STREAM, 1, NS_PER_S, &token), GPUPOOL_E_TIMED_OUT);
    assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    assert_error(gpupool_release(client, &copy, GPUPOOL_NO_STREAM), GPUPOOL_E_STALE);
    assert_error(gpupool_share(client, &copy, GPUPOOL_NO_STREAM, &token), GPUPOOL_E_STALE);
    end_silence(client);
    assert_int_equal(daemon_.leases, 2); /* the extent's, and the piece's own */
    assert_ok(gpupool_trim(client, &bytes));
    assert_int_equal(silence.asked[PROTO_REVOKE], 1); /* of the parcel */
    assert_int_equal(daemon_.leases, 1); /* the extent's, which the false daemon does not end by parts */
    gpupool_close(client);
}

static void a_split_that_is_refused_late_leaves_the_buffer_as_it_was(void **state) {
    (void)state;
    struct gpupool_client *client = start_cached();
    struct gpupool_buffer buffer, next;
    struct gpupool_token token;

    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &buffer));
    begin_silence(client);
    assert_error(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token), GPUPOOL_E_TIMED_OUT);
    pthread_mutex_lock(&silence.lock);
    silence.messages[0].share.lease = 4711; /* the daemon refuses it */
    pthread_mutex_unlock(&silence.lock);
    end_silence(client);
    void *memory = buffer.data;
    assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &next));
    assert_ptr_equal(next.data, memory); /* it is in the cache, as it would be without the share */
    assert_ok(gpupool_share(client, &next, GPUPOOL_NO_STREAM, &token));
    assert_ok(gpupool_release(client, &next, GPUPOOL_NO_STREAM));
    gpupool_close(client);
}

static void a_page_and_a_board_that_come_late_are_used(void **state) {
    (void)state;
    struct gpupool_client *client = start(hold_or_serve);
    struct session *session = &client->session;

    begin_silence(client);
    assert_error(
        page_need(&session->page, &session->connection, connection_deadline_ns(&session->connection, 0)),
        GPUPOOL_E_TIMED_OUT);
    assert_error(board_need(session), GPUPOOL_E_TIMED_OUT);
    end_silence(client);
    assert_ok(page_need(&session->page, &session->connection, clock_now_ns() + PATIENT_NS));
    assert_ok(board_need(session));
    assert_non_null(session->page.memory);
    assert_non_null(session->board.memory);
    assert_int_equal(silence.asked[PROTO_ASK_PAGE], 1);
    assert_int_equal(silence.asked[PROTO_ASK_BOARD], 1);
    gpupool_close(client);
}

static void a_release_that_is_not_answered_is_done(void **state) {
    (void)state;
    struct gpupool_client *client = start(hold_or_serve);
    struct gpupool_buffer buffer;

    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, GPUPOOL_NOW, 0, &buffer));
    begin_silence(client);
    assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    assert_null(buffer.data);
    end_silence(client);
    assert_int_equal(daemon_.leases, 0);
    gpupool_close(client);
}

static void a_client_closes_while_answers_are_due(void **state) {
    (void)state;
    struct gpupool_client *client = start_cached();
    struct gpupool_buffer buffer;
    struct gpupool_token token;

    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 4096, NULL, PATIENT_NS, 0, &buffer));
    begin_silence(client);
    assert_error(gpupool_share(client, &buffer, GPUPOOL_NO_STREAM, &token), GPUPOOL_E_TIMED_OUT);
    assert_error(board_need(&client->session), GPUPOOL_E_TIMED_OUT);
    gpupool_close(client);
}

/* --- the caller's timeout --- */

/* Longer than any bound of a test: a call that waits for it has not kept to its timeout. */
#define NEVER_NS (3600 * NS_PER_S)
#define SHORT_NS (10 * NS_PER_MS)

struct caller {
    struct gpupool_client *client;
    int (*call)(struct gpupool_client *client);
    pthread_t thread;
    int result;
};

static struct gpupool_token some_token;

static int call_acquire_now(struct gpupool_client *client) {
    struct gpupool_buffer buffer;
    return gpupool_acquire(client, FALSE_POOL_HOST, 1 * MIB, NULL, GPUPOOL_NOW, 0, &buffer);
}

static int call_acquire(struct gpupool_client *client) {
    struct gpupool_buffer buffer;
    return gpupool_acquire(client, FALSE_POOL_HOST_B, 1 * MIB, NULL, SHORT_NS, 0, &buffer);
}

static int call_acquire_of_unknown_pool(struct gpupool_client *client) {
    struct gpupool_buffer buffer;
    return gpupool_acquire(client, 17, 1 * MIB, NULL, SHORT_NS, 0, &buffer);
}

static int call_request(struct gpupool_client *client) {
    struct gpupool_buffer buffer;
    uint64_t request;
    int r = gpupool_acquire_begin(client, FALSE_POOL_HOST, 1 * MIB, NULL, SHORT_NS, 0, &request);
    return r < 0 ? r : gpupool_acquire_end(client, request, &buffer);
}

static int call_prepare(struct gpupool_client *client) {
    return gpupool_prepare(client, FALSE_POOL_HOST, 1 * MIB);
}

static int call_attach(struct gpupool_client *client) {
    struct gpupool_buffer buffer;
    return gpupool_attach(client, &some_token, GPUPOOL_NO_STREAM, 0, &buffer);
}

static int call_open(struct gpupool_client *client) {
    struct gpupool_options options = options_for(client->socket_path);
    struct gpupool_client *other;

    options.connect_timeout_ns = SHORT_NS;
    options.answer_timeout_ns = NEVER_NS;
    return gpupool_open(&options, &other);
}

static void *make_call(void *argument) {
    struct caller *caller = argument;
    caller->result = caller->call(caller->client);
    return NULL;
}

static void each_call_keeps_to_its_timeout_when_the_daemon_is_silent(void **state) {
    static int (*const calls[])(struct gpupool_client *) = {
        call_acquire_now, call_acquire, call_acquire_of_unknown_pool, call_request, call_prepare,
        call_attach,      call_open,
    };
    enum {
        N_CALLS = sizeof calls / sizeof *calls
    };
    struct caller callers[2][N_CALLS];
    struct gpupool_client *clients[2];
    struct gpupool_buffer buffer;
    (void)state;

    daemon_.handle = hold_or_serve;
    false_daemon_run(&daemon_);
    for (unsigned i = 0; i < 2; i++) {
        struct gpupool_options options = options_for(daemon_.path);
        options.flags = i == 0 ? 0 : GPUPOOL_OPEN_NO_CACHE;
        options.alloc_timeout_ns = SHORT_NS;
        options.answer_timeout_ns = NEVER_NS;
        assert_ok(gpupool_open(&options, &clients[i]));
        size_t count;
        assert_ok(gpupool_pools(clients[i], NULL, 0, &count));
    }
    assert_ok(gpupool_acquire(clients[1], FALSE_POOL_HOST, 512, NULL, PATIENT_NS, 0, &buffer));
    assert_ok(gpupool_share(clients[1], &buffer, GPUPOOL_NO_STREAM, &some_token));
    set_silent(true);
    for (unsigned i = 0; i < 2 * N_CALLS; i++) {
        struct caller *caller = &callers[i / N_CALLS][i % N_CALLS];
        *caller = (struct caller){.client = clients[i / N_CALLS], .call = calls[i % N_CALLS]};
        assert_int_equal(pthread_create(&caller->thread, NULL, make_call, caller), 0);
    }
    for (unsigned i = 0; i < 2 * N_CALLS; i++) {
        TEST_JOIN(callers[i / N_CALLS][i % N_CALLS].thread, NULL);
        assert_error(callers[i / N_CALLS][i % N_CALLS].result, GPUPOOL_E_TIMED_OUT);
    }
    set_silent(false);
    for (unsigned i = 0; i < 2; i++) {
        end_silence(clients[i]);
        assert_true(list_is_empty(&clients[i]->session.connection.abandoned));
    }
    assert_ok(gpupool_release(clients[1], &buffer, GPUPOOL_NO_STREAM));
    assert_int_equal(daemon_.leases, 0);
    for (unsigned i = 0; i < 2; i++)
        gpupool_close(clients[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        LATE_TEST(no_late_answer_spoils_a_session),
        LATE_TEST(a_share_that_is_answered_late_can_be_made_again),
        LATE_TEST(a_buffer_can_be_released_while_its_share_is_not_answered),
        LATE_TEST(a_split_that_is_refused_late_leaves_the_buffer_as_it_was),
        LATE_TEST(a_page_and_a_board_that_come_late_are_used),
        LATE_TEST(a_release_that_is_not_answered_is_done),
        LATE_TEST(a_client_closes_while_answers_are_due),
        LATE_TEST(each_call_keeps_to_its_timeout_when_the_daemon_is_silent),
    };
    fixture_init();
    int failed = cmocka_run_group_tests_name("client_late", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
