/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client beside a daemon that reads nothing for a while, with a full socket: one thread waits for the socket,
 * and the messages of the others wait in the outbox. Afterwards those arrive, in order, whose threads did not
 * give up.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "base/lock.h"
#include "client/session/lease.h"
#include "client/session/submit.h"
#include "tests/failing_memory.h"
#include "tests/unit/client_fixture.h"

#define SEEN_MAX 4096u
/* The kernel makes more of it: some ten messages, of which the false daemon keeps as many as it likes. */
#define SOCKET_BYTES 8192

struct seen {
    uint16_t operation;
    uint64_t number; /* of a RECLAIMED; the request's id of a CANCEL; of others their own id */
};

/* The state that the test shares with the daemon's thread. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint16_t stop_at; /* the daemon stops when this operation comes, and reads nothing more; 0: at none */
    bool has_stopped, may_answer, may_go_on;
    unsigned n;
    struct seen seen[SEEN_MAX]; /* the messages, as they came */
    uint64_t end_bytes;         /* where the next lease begins, for leases that continue each other */
    _Atomic uint64_t told;      /* the test's number of its last one-way message */
    bool is_slow;               /* an ACQUIRE is answered when its CANCEL comes */
    struct proto_message held;  /* the ACQUIRE */
} stop = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* The leases of one segment lie one behind the other. */
static void line_up(const struct proto_message *message, struct false_packet *packet) {
    struct proto_message lease = *message;

    if (message->header.operation != PROTO_LEASE)
        return;
    lease.lease.offset_bytes = stop.end_bytes;
    stop.end_bytes += lease.lease.capacity_bytes;
    packet->size = proto_encode(&lease, packet->bytes);
}

static void await_locked(const bool *condition) {
    const struct timespec end = test_wait_end();

    while (!*condition)
        if (pthread_cond_timedwait(&stop.changed, &stop.lock, &end) != 0)
            abort(); /* the daemon's thread: cmocka's assertions are not for it */
}

static void serve(struct false_daemon *daemon, struct false_session *session,
                  const struct proto_message *request) {
    switch (request->header.operation) {
    case PROTO_MERGE: /* one-way */
        return;
    case PROTO_ACQUIRE:
        if (!stop.is_slow)
            break;
        stop.held = *request;
        return;
    case PROTO_CANCEL:
        assert(stop.is_slow && stop.held.header.request == request->cancel.request);
        request = &stop.held;
        break;
    default:
        break;
    }
    false_daemon_serve(daemon, session, request);
}

static bool note_and_serve(struct false_daemon *daemon, struct false_session *session,
                           const struct proto_message *request) {
    uint16_t operation = request->header.operation;

    LOCKED(&stop.lock);
    assert(stop.n < SEEN_MAX);
    stop.seen[stop.n++] = (struct seen){operation, operation == PROTO_RECLAIMED ? request->reclaimed.asked
                                                   : operation == PROTO_CANCEL  ? request->cancel.request
                                                                                : request->header.request};
    bool stops = operation == stop.stop_at;
    if (stops) {
        stop.stop_at = 0;
        stop.has_stopped = true;
        pthread_cond_broadcast(&stop.changed);
        await_locked(&stop.may_answer);
    }
    serve(daemon, session, request);
    if (stops)
        await_locked(&stop.may_go_on);
    return true;
}

static void allow(bool *condition) {
    LOCKED(&stop.lock);
    *condition = true;
    pthread_cond_broadcast(&stop.changed);
}

/* From now on the daemon reads. */
static void go_on(void) {
    allow(&stop.may_answer);
    allow(&stop.may_go_on);
}

static void stop_at(uint16_t operation) {
    LOCKED(&stop.lock);
    stop.stop_at = operation;
    stop.has_stopped = stop.may_answer = stop.may_go_on = false;
}

static void await_stop(void) {
    LOCKED(&stop.lock);
    await_locked(&stop.has_stopped);
}

static unsigned count_seen(uint16_t operation) {
    LOCKED(&stop.lock);
    unsigned count = 0;
    for (unsigned i = 0; i < stop.n; i++)
        count += stop.seen[i].operation == operation;
    return count;
}

/* The place of the first message of an operation among those that came; SEEN_MAX: none came. */
static unsigned place_of(uint16_t operation) {
    LOCKED(&stop.lock);
    for (unsigned i = 0; i < stop.n; i++)
        if (stop.seen[i].operation == operation)
            return i;
    return SEEN_MAX;
}

/* All one-way messages that were told have come, in order. */
static void check_told(void) {
    uint64_t next = 1;

    pthread_mutex_lock(&stop.lock);
    for (unsigned i = 0; i < stop.n; i++)
        if (stop.seen[i].operation == PROTO_RECLAIMED && stop.seen[i].number == next)
            next++;
    pthread_mutex_unlock(&stop.lock);
    assert_int_equal(count_seen(PROTO_RECLAIMED), stop.told);
    assert_int_equal(next - 1, stop.told);
}

static struct proto_message one_way(uint64_t number) {
    return (struct proto_message){
        .header.operation = PROTO_RECLAIMED,
        .reclaimed = {.pool = FALSE_POOL_HOST, .outcome = PROTO_RECLAIM_DONE, .asked = number}};
}

/* Sends a one-way message that the daemon can tell from the others. */
static int tell(struct gpupool_client *client, uint64_t deadline_ns) {
    const struct proto_message message = one_way(stop.told + 1);
    int r = connection_tell(&client->session.connection, &message, deadline_ns);

    stop.told += r == 0;
    return r;
}

/* Leaves such a message in the outbox. */
static bool put(struct gpupool_client *client) {
    const struct proto_message message = one_way(stop.told + 1);
    bool is_put = connection_put(&client->session.connection, &message);

    stop.told += is_put;
    return is_put;
}

static bool is_sending(struct gpupool_client *client) {
    struct outbox *outbox = &client->session.connection.outbox;

    LOCKED(&outbox->lock);
    return outbox->is_sending;
}

static void fill_socket(struct gpupool_client *client) {
    int r, size = SOCKET_BYTES;

    WAIT_UNTIL(!is_sending(client)); /* a thread whose message the daemon has may still be the sender */
    assert_int_equal(setsockopt(client->session.connection.fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size), 0);
    while ((r = tell(client, 0)) == 0) {
    }
    assert_error(r, GPUPOOL_E_TIMED_OUT);
    assert_false(outbox_has_any(&client->session.connection.outbox));
}

static uint64_t tail_of(struct gpupool_client *client) {
    struct outbox *outbox = &client->session.connection.outbox;

    LOCKED(&outbox->lock);
    return outbox->tail;
}

static bool is_empty(struct gpupool_client *client) {
    struct outbox *outbox = &client->session.connection.outbox;

    assert_true(outbox_is_valid(outbox));
    return !outbox_has_any(outbox);
}

/* A thread that makes one call. */
struct caller {
    struct gpupool_client *client;
    pthread_t thread;
    int result;
    uint64_t size_bytes;
    struct gpupool_buffer buffer;
    uint64_t request;
};

static void *ask_pools(void *argument) {
    struct caller *caller = argument;
    size_t count;

    caller->result = gpupool_pools(caller->client, NULL, 0, &count);
    return NULL;
}

static void *acquire(void *argument) {
    struct caller *caller = argument;

    caller->result = gpupool_acquire(caller->client, FALSE_POOL_HOST, caller->size_bytes, GPUPOOL_NO_STREAM,
                                     PATIENT_NS, 0, &caller->buffer);
    return NULL;
}

static void *begin_acquire(void *argument) {
    struct caller *caller = argument;

    caller->result = gpupool_acquire_begin(caller->client, FALSE_POOL_HOST, 1000, GPUPOOL_NO_STREAM,
                                           GPUPOOL_FOREVER, 0, &caller->request);
    return NULL;
}

static void begin(struct caller *caller, struct gpupool_client *client, void *(*call)(void *)) {
    caller->client = client;
    assert_int_equal(pthread_create(&caller->thread, NULL, call, caller), 0);
}

/* Begins a call whose message waits in the outbox. */
static void begin_behind(struct caller *caller, struct gpupool_client *client, void *(*call)(void *)) {
    uint64_t tail = tail_of(client);

    begin(caller, client, call);
    WAIT_UNTIL(tail_of(client) > tail);
}

/* A thread asks for the pools, and waits for the full socket as the sender. */
static void begin_waiting(struct caller *caller, struct gpupool_client *client) {
    begin(caller, client, ask_pools);
    WAIT_UNTIL(is_sending(client));
}

static void end(struct caller *caller) {
    TEST_JOIN(caller->thread, NULL);
    assert_ok(caller->result);
}

/* A client whose daemon has stopped, and whose socket is full. */
static struct gpupool_client *start_stopped(void) {
    struct gpupool_client *client = start(note_and_serve);
    size_t count;

    assert_ok(gpupool_pools(client, NULL, 0, &count)); /* so that calls ask for nothing but memory */
    stop_at(PROTO_RECLAIMED);
    assert_ok(tell(client, NS_FOREVER));
    await_stop();
    fill_socket(client);
    return client;
}

/* The daemon goes on: all that was told comes, and the session works. */
static void finish(struct gpupool_client *client) {
    size_t count;

    assert_ok(gpupool_pools(client, NULL, 0, &count));
    assert_true(is_empty(client));
    check_told();
    gpupool_close(client);
}

static int set_up_stop(void **state) {
    stop.n = 0;
    stop.told = stop.end_bytes = 0;
    stop.is_slow = false;
    stop_at(0);
    return set_up(state);
}

static int tear_down_stop(void **state) {
    false_alter = NULL;
    go_on();
    return tear_down(state);
}
#define OUTBOX_TEST(name) cmocka_unit_test_setup_teardown(name, set_up_stop, tear_down_stop)

/* --- */

/* has_sender: another thread waits for the full socket when a lease is merged. */
static void merge_while_the_socket_is_full(bool has_sender) {
    struct gpupool_options options = options_for(daemon_.path);
    struct gpupool_client *client = NULL;
    struct caller miss = {.size_bytes = 40 * KIB}, waiting = {0}, hit = {.size_bytes = 40 * KIB},
                  from_heap = {.size_bytes = 9 * KIB};
    struct gpupool_buffer first;

    options.flags = 0;
    options.decay_ns = GPUPOOL_FOREVER;
    daemon_.large_bytes = 64 * KIB;
    daemon_.handle = note_and_serve;
    false_alter = line_up;
    false_daemon_run(&daemon_);
    assert_ok(gpupool_open(&options, &client));
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 64 * KIB, GPUPOOL_NO_STREAM, PATIENT_NS, 0, &first));

    /* The next lease continues the first one. It is granted when the socket is full. */
    stop_at(PROTO_ACQUIRE);
    begin(&miss, client, acquire);
    await_stop();
    fill_socket(client);
    if (has_sender)
        begin_waiting(&waiting, client);
    allow(&stop.may_answer);
    end(&miss);
    assert_true(outbox_has_any(&client->session.connection.outbox)); /* the MERGE */
    assert_int_equal(count_seen(PROTO_MERGE), 0);

    /* This thread's bin serves, and for other threads the stream heap. */
    for (unsigned i = 0; i < 2; i++) {
        assert_ok(gpupool_release(client, &miss.buffer, GPUPOOL_NO_STREAM));
        if (i == 0)
            assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 40 * KIB, GPUPOOL_NO_STREAM, GPUPOOL_NOW, 0,
                                      &miss.buffer));
    }
    begin(&hit, client, acquire);
    begin(&from_heap, client, acquire);
    end(&hit);
    end(&from_heap);
    assert_int_equal(count_seen(PROTO_ACQUIRE), 2);
    assert_int_equal(count_seen(PROTO_MERGE), 0);

    go_on();
    if (has_sender)
        end(&waiting);
    assert_ok(gpupool_release(client, &first, GPUPOOL_NO_STREAM));
    assert_ok(gpupool_release(client, &hit.buffer, GPUPOOL_NO_STREAM));
    assert_ok(gpupool_release(client, &from_heap.buffer, GPUPOOL_NO_STREAM));
    assert_ok(gpupool_trim(client, NULL)); /* releases what was merged */
    assert_int_equal(count_seen(PROTO_MERGE), 1);
    assert_true(place_of(PROTO_MERGE) < place_of(PROTO_RELEASE) && place_of(PROTO_RELEASE) < SEEN_MAX);
    finish(client);
}

static void a_merge_waits_for_the_socket_and_no_thread_for_the_merge(void **state) {
    (void)state;
    merge_while_the_socket_is_full(false);
}

static void a_merge_waits_behind_the_thread_that_sends(void **state) {
    (void)state;
    merge_while_the_socket_is_full(true);
}

#define TELLERS    4u
#define EACH_TELLS 20u

static pthread_mutex_t tellers_lock = PTHREAD_MUTEX_INITIALIZER;

static void *put_many(void *argument) {
    struct caller *caller = argument;

    for (unsigned i = 0; i < EACH_TELLS && caller->result == 0; i++) {
        LOCKED(&tellers_lock);
        caller->result = put(caller->client) ? 0 : GPUPOOL_E_TIMED_OUT;
    }
    return NULL;
}

static void *tell_many(void *argument) {
    struct caller *caller = argument;

    for (unsigned i = 0; i < EACH_TELLS && caller->result == 0; i++) {
        LOCKED(&tellers_lock);
        caller->result = tell(caller->client, NS_FOREVER);
    }
    return NULL;
}

static void *tell_once(void *argument) {
    struct caller *caller = argument;

    caller->result = tell(caller->client, NS_FOREVER);
    return NULL;
}

static void messages_of_all_threads_arrive_in_order(void **state) {
    (void)state;
    struct gpupool_client *client = start_stopped();
    struct caller waiting = {0}, tellers[TELLERS] = {0};

    begin_waiting(&waiting, client);
    for (unsigned i = 0; i < TELLERS; i++)
        begin(&tellers[i], client, put_many);
    for (unsigned i = 0; i < TELLERS; i++)
        end(&tellers[i]); /* they did not wait for the socket */
    assert_false(is_empty(client));
    begin_behind(&tellers[0], client, tell_many);
    for (unsigned i = 1; i < TELLERS; i++)
        begin(&tellers[i], client, tell_many);
    go_on();
    for (unsigned i = 0; i < TELLERS; i++)
        end(&tellers[i]);
    end(&waiting);
    finish(client);
}

/* A call that returns 0 has sent its message. The message of a call that fails never leaves. */
static void a_one_way_message_that_did_not_leave_is_withdrawn(void **state) {
    (void)state;
    struct gpupool_client *client = start_stopped();
    struct caller waiting = {0};

    /* Without a sender, behind what was left, and behind a thread that waits for the socket. */
    assert_true(put(client));
    assert_error(tell(client, clock_now_ns() + IMPATIENT_NS), GPUPOOL_E_TIMED_OUT);
    begin_behind(&waiting, client, tell_once);
    WAIT_UNTIL(is_sending(client)); /* and stays so: a request's thread would only look now and then */
    assert_error(tell(client, clock_now_ns() + IMPATIENT_NS), GPUPOOL_E_TIMED_OUT);
    go_on();
    end(&waiting);
    finish(client); /* one that was withdrawn would be one too many */
}

static void a_request_that_did_not_leave_is_withdrawn(void **state) {
    (void)state;
    struct gpupool_client *client = start_stopped();
    struct connection *connection = &client->session.connection;
    struct caller waiting = {0};

    /* Alone, and behind a thread that waits for the socket. */
    for (unsigned round = 0; round < 2; round++) {
        struct request *request = connection_request(connection, PROTO_IDLE);
        struct request *kept = connection_request(connection, PROTO_ASK_HOLDERS);
        assert_true(request != NULL && kept != NULL);
        request->message.idle.pool = FALSE_POOL_HOST;
        kept->message.query = (struct proto_lease_name){1, 3};
        assert_error(connection_exchange(connection, &request, clock_now_ns() + IMPATIENT_NS),
                     GPUPOOL_E_TIMED_OUT);
        assert_text_has("took no message");
        assert_null(request);
        assert_error(connection_exchange_kept(connection, &kept, clock_now_ns() + IMPATIENT_NS),
                     GPUPOOL_E_TIMED_OUT);
        assert_text_has("took no message");
        assert_false(kept->is_sent);
        if (round == 0) {
            connection_let_go(&kept);
            begin_waiting(&waiting, client);
            continue;
        }
        go_on();
        end(&waiting);
        assert_ok(connection_go_on(connection, &kept, NS_FOREVER)); /* sent anew */
        request_recycle(kept);
    }
    finish(client);
    assert_int_equal(count_seen(PROTO_IDLE), 0);
    assert_int_equal(count_seen(PROTO_ASK_HOLDERS), 1);
}

/* A request that waits in the outbox is sent by its own thread when the sender has given up. */
static void a_request_goes_on_without_the_thread_that_sent(void **state) {
    (void)state;
    struct gpupool_client *client = start_stopped();
    struct connection *connection = &client->session.connection;
    struct caller waiting = {0}, behind = {0};

    begin_waiting(&waiting, client);
    assert_true(put(client)); /* no thread waits for it */
    begin_behind(&behind, client, ask_pools);
    go_on();
    end(&behind);
    end(&waiting);
    assert_true(is_empty(client));

    /* One-way messages that are left are sent by the next thread that looks. */
    stop_at(PROTO_RECLAIMED);
    assert_ok(tell(client, NS_FOREVER));
    await_stop();
    fill_socket(client);
    assert_true(put(client));
    connection_send_rest(connection);
    assert_false(is_empty(client));
    unsigned messages = count_seen(PROTO_RECLAIMED);
    go_on();
    WAIT_UNTIL(count_seen(PROTO_RECLAIMED) > messages);
    WAIT_UNTIL((connection_hear_late(connection), is_empty(client)));
    finish(client);
}

/* The daemon serves nothing before it has the OPENED, which waits in the outbox. */
static void the_readers_own_message_waits_behind_the_thread_that_sends(void **state) {
    (void)state;
    struct gpupool_client *client = start(note_and_serve);
    struct caller opens = {.size_bytes = 512}, waiting = {0};
    size_t count;

    assert_ok(gpupool_pools(client, NULL, 0, &count));
    stop_at(PROTO_ACQUIRE);
    begin(&opens, client, acquire);
    await_stop();
    fill_socket(client);
    begin_waiting(&waiting, client);
    uint64_t tail = tail_of(client);
    allow(&stop.may_answer);
    WAIT_UNTIL(tail_of(client) > tail);
    assert_int_equal(daemon_.opened, 0);
    go_on();
    end(&opens);
    end(&waiting);
    assert_int_equal(daemon_.opened, 1);
    assert_ok(gpupool_release(client, &opens.buffer, GPUPOOL_NO_STREAM));
    finish(client);
}

/* The number of the request that a thread is just beginning. */
static uint64_t open_request(struct gpupool_client *client) {
    struct requests *requests = &client->requests;

    LOCKED(&requests->lock);
    for (size_t i = 0; i < requests->n_slots; i++)
        if (requests->slots[i].request != NULL)
            return requests->slots[i].request->number;
    return 0;
}

static void a_cancel_goes_behind_its_request(void **state) {
    (void)state;
    struct gpupool_client *client = start_stopped();
    struct caller waiting = {0}, asks = {0};
    struct gpupool_buffer buffer;

    stop.is_slow = true; /* the daemon's thread is at a stop */
    begin_waiting(&waiting, client);
    begin_behind(&asks, client, begin_acquire);
    uint64_t request = open_request(client);
    assert_ok(gpupool_request_cancel(client, request));
    assert_int_equal(count_seen(PROTO_ACQUIRE), 0);
    go_on();
    end(&asks);
    assert_int_equal(asks.request, request);
    assert_error(gpupool_acquire_end(client, asks.request, &buffer), GPUPOOL_E_CANCELLED);
    end(&waiting);
    assert_int_equal(count_seen(PROTO_ACQUIRE), 1);
    assert_int_equal(count_seen(PROTO_CANCEL), 1);
    assert_true(place_of(PROTO_ACQUIRE) < place_of(PROTO_CANCEL));
    assert_int_equal(stop.seen[place_of(PROTO_CANCEL)].number, stop.seen[place_of(PROTO_ACQUIRE)].number);
    finish(client);
    assert_int_equal(daemon_.leases, 0);
}

static void a_break_ends_all_that_waits_in_the_outbox(void **state) {
    (void)state;
    struct gpupool_client *client = start_stopped();
    struct caller waiting = {0}, behind = {0}, asks = {0};
    struct gpupool_buffer buffer;

    begin_waiting(&waiting, client);
    for (unsigned i = 0; i < 3; i++)
        assert_true(put(client));
    begin_behind(&asks, client, begin_acquire);
    begin_behind(&behind, client, ask_pools);
    for (unsigned i = 0; i < FALSE_SESSIONS_MAX; i++) /* as after a crash */
        if (daemon_.sessions[i].fd >= 0)
            shutdown(daemon_.sessions[i].fd, SHUT_RDWR);
    TEST_JOIN(waiting.thread, NULL);
    TEST_JOIN(behind.thread, NULL);
    end(&asks);
    assert_int_equal(waiting.result, GPUPOOL_E_DISCONNECTED);
    assert_int_equal(behind.result, GPUPOOL_E_DISCONNECTED);
    assert_error(gpupool_acquire_end(client, asks.request, &buffer), GPUPOOL_E_DISCONNECTED);
    assert_error(tell(client, NS_FOREVER), GPUPOOL_E_DISCONNECTED);
    const struct proto_message message = one_way(1);
    assert_false(connection_put(&client->session.connection, &message));
    assert_true(is_empty(client));
    go_on();
    gpupool_close(client);
}

/* The ways through the outbox allocate nothing. */
static void no_message_needs_memory(void **state) {
    (void)state;
    struct gpupool_client *client = start_stopped();
    struct caller waiting = {0};

    begin_waiting(&waiting, client);
    unsigned before = memory_allocations();
    assert_error(tell(client, 0), GPUPOOL_E_TIMED_OUT);
    while (put(client)) { /* until there is no room */
    }
    assert_error(tell(client, 0), GPUPOOL_E_TIMED_OUT);
    assert_text_has("sending to the daemon");
    assert_int_equal(memory_allocations(), before);
    go_on();
    end(&waiting);
    finish(client);
}

static void a_child_closes_a_client_whose_outbox_is_locked(void **state) {
    (void)state;
    struct gpupool_client *client = start_stopped();
    struct outbox *outbox = &client->session.connection.outbox;
    struct caller waiting = {0};
    int status;

    begin_waiting(&waiting, client);
    assert_true(put(client));
    fflush(NULL);
    pthread_mutex_lock(&outbox->lock); /* for another thread */
    pid_t child = fork();
    if (child == 0) {
        gpupool_close(client);
        _exit(0);
    }
    pthread_mutex_unlock(&outbox->lock);
    assert_true(child > 0);
    assert_int_equal(test_reap(child, &status), 0);
    assert_int_equal(status, 0);
    go_on();
    end(&waiting);
    finish(client);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        OUTBOX_TEST(a_merge_waits_for_the_socket_and_no_thread_for_the_merge),
        OUTBOX_TEST(a_merge_waits_behind_the_thread_that_sends),
        OUTBOX_TEST(messages_of_all_threads_arrive_in_order),
        OUTBOX_TEST(a_one_way_message_that_did_not_leave_is_withdrawn),
        OUTBOX_TEST(a_request_that_did_not_leave_is_withdrawn),
        OUTBOX_TEST(a_request_goes_on_without_the_thread_that_sent),
        OUTBOX_TEST(the_readers_own_message_waits_behind_the_thread_that_sends),
        OUTBOX_TEST(a_cancel_goes_behind_its_request),
        OUTBOX_TEST(a_break_ends_all_that_waits_in_the_outbox),
        OUTBOX_TEST(no_message_needs_memory),
        OUTBOX_TEST(a_child_closes_a_client_whose_outbox_is_locked),
    };
    fixture_init();
    int failed = cmocka_run_group_tests_name("client_outbox", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
