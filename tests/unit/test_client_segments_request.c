/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's session with a daemon that answers requests for several whole segments: in one message and in
 * several, to a thread that reads for itself and to one that does not, in time and late, and with each lie
 * about them. After a lie the connection is broken with a text, and closing leaves no descriptor behind.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/cleanup.h"
#include "client/session/lease.h"
#include "client/session/question.h"
#include "tests/bounded.h"
#include "tests/failing_memory.h"
#include "tests/unit/client_fixture.h"
#include "tests/wire_fields.h"

#define SEGMENT_BYTES (2 * MIB)
#define LARGE_BYTES   (4 * MIB)
#define SEGMENTS_MAX  130u /* in three messages */
#define FIRST_SEGMENT 10u
#define LARGE_SEGMENT 1000u /* the first of those of LARGE_BYTES */
#define DESCRIPTORS   4u    /* the client cannot see that several segments have the same one */
#define LATE_NS       (300 * NS_PER_MS)

/* The daemon's lies and failures. */
enum lie {
    LIE_NONE,
    LIE_FEWER,           /* fewer leases than asked for */
    LIE_MORE,            /* more are said to come */
    LIE_END,             /* none are said to come after the first message */
    LIE_LEFT,            /* the second message says that more come than the first said */
    LIE_ENDLESS,         /* the second message says that as many come as the first said */
    LIE_FEWER_FDS,       /* a descriptor less than segments are described */
    LIE_MORE_FDS,        /* one more */
    LIE_NO_FDS,          /* none */
    LIE_MANY_FDS,        /* more than the client has room for */
    LIE_POOL,            /* of another pool */
    LIE_BYTES,           /* of another size */
    LIE_LATER_BYTES,     /* of another size in the second message */
    LIE_TWICE,           /* a segment is described twice in a message */
    LIE_TWICE_LATER,     /* a segment of the first message is described in the second */
    LIE_NOT_DESCRIBED,   /* a segment is not described */
    LIE_PART,            /* a segment that is larger */
    LIE_KIND,            /* a segment of another kind */
    LIE_ERROR,           /* an ERROR after the first message */
    LIE_LEASE,           /* a LEASE after the first message */
    LIE_LEASE_AT_ONCE,   /* a LEASE instead of LEASES */
    LIE_OTHER_REQUEST,   /* LEASES that answer no request */
    LIE_OTHER_OPERATION, /* LEASES that answer an ACQUIRE */
    LIE_LAST = LIE_OTHER_OPERATION,
    FAIL_REQUEST,    /* no lie: the request is refused */
    FAIL_DESCRIPTOR, /* the last descriptor is of no memory of the driver's */
};

/* The daemon's answer. */
static struct {
    _Atomic unsigned lie;        /* enum lie */
    uint64_t request;            /* the present one of several segments */
    unsigned sent;               /* leases of the present request that were sent */
    bool is_ascending;           /* each request is granted other segments */
    unsigned base;               /* the number of the first one that the present request is granted */
    bool is_answering;           /* the next message goes out when OPENED has come */
    unsigned shown, shown_large; /* segments that the session knows, from the first one on */
    unsigned withhold_after;     /* leases after which the rest is sent late; SEGMENTS_MAX: none */
    struct proto_message late;   /* that request; operation 0: none */
    struct proto_message held;   /* an ACQUIRE that is answered last; operation 0: none */
    unsigned closing;            /* how many of the ids that are offered are to be closed */
    _Atomic unsigned requests, offers, closed, one_way, answered, strange;
    bool released[8 * SEGMENTS_MAX]; /* by lease */
} plan;

static int small[DESCRIPTORS], large;

/* --- the daemon --- */

static void fill(struct false_daemon *daemon, const struct proto_acquire_segments *acquire, unsigned count,
                 struct proto_leases *leases, int *fds) {
    bool is_large = acquire->segment_bytes == LARGE_BYTES;
    unsigned *shown = is_large ? &plan.shown_large : &plan.shown, from = plan.base + plan.sent,
             first_new = from;

    leases->pool = acquire->pool;
    leases->segment_bytes = acquire->segment_bytes;
    leases->count = count;
    leases->n_left = acquire->count - plan.sent - count;
    if (first_new < *shown)
        first_new = *shown < from + count ? *shown : from + count;
    /* Those that are new to the session come first. */
    for (unsigned i = 0; i < count; i++) {
        unsigned n_new = from + count - first_new;
        unsigned number = i < n_new ? first_new + i : from + i - n_new;
        uint64_t lease = ++daemon->last_lease;
        leases->leases[i] = (struct proto_segment_lease){lease, lease * 3,
                                                         (is_large ? LARGE_SEGMENT : FIRST_SEGMENT) + number};
        if (i < n_new)
            fds[leases->n_described++] = is_large ? large : small[number % DESCRIPTORS];
    }
    if (from + count > *shown)
        *shown = from + count;
}

/* The lies that are told in one message. is_first: the first of an answer. */
static void tell_lie(struct proto_message *message, bool is_first, int *fds, unsigned *n_fds) {
    struct proto_leases *leases = &message->leases;
    struct proto_segment_lease *last = &leases->leases[leases->count - 1];

    if (plan.lie != FAIL_DESCRIPTOR &&
        is_first == (plan.lie == LIE_LEFT || plan.lie == LIE_ENDLESS || plan.lie == LIE_LATER_BYTES ||
                     plan.lie == LIE_TWICE_LATER))
        return;
    switch ((enum lie)plan.lie) {
    case LIE_FEWER:
        leases->n_left--;
        break;
    case LIE_MORE:
    case LIE_LEFT:
        leases->n_left++;
        break;
    case LIE_END:
        leases->n_left = 0;
        break;
    case LIE_ENDLESS:
        leases->n_left = SEGMENTS_MAX - leases->count;
        break;
    case LIE_FEWER_FDS:
        --*n_fds;
        break;
    case LIE_MORE_FDS:
        fds[(*n_fds)++] = small[0];
        break;
    case LIE_NO_FDS:
        *n_fds = 0;
        break;
    case LIE_MANY_FDS:
        while (*n_fds < FALSE_FDS_MAX)
            fds[(*n_fds)++] = small[0];
        break;
    case LIE_POOL:
        leases->pool = FALSE_POOL_HOST;
        break;
    case LIE_BYTES:
    case LIE_LATER_BYTES:
        leases->segment_bytes *= 2;
        break;
    case LIE_TWICE:
        last->segment = leases->leases[0].segment;
        break;
    case LIE_TWICE_LATER:
        last->segment = FIRST_SEGMENT;
        break;
    case LIE_NOT_DESCRIBED:
        leases->n_described--;
        --*n_fds;
        break;
    case LIE_PART:
    case LIE_KIND:
        leases->n_described--;
        --*n_fds;
        last->segment = plan.lie == LIE_PART ? LARGE_SEGMENT : FALSE_POOL_DEVICE;
        break;
    case LIE_OTHER_REQUEST:
        message->header.request += 1000;
        break;
    case FAIL_DESCRIPTOR:
        if (leases->n_left == 0)
            fds[leases->n_described - 1] = daemon_.host_segments[FALSE_POOL_HOST];
        break;
    default:
        break;
    }
}

/* The lies that are told in another message than LEASES. Returns whether one was. */
static bool answer_otherwise(struct false_daemon *daemon, struct false_session *session,
                             const struct proto_message *request) {
    uint64_t id = request->header.request;
    bool is_lease = plan.lie == LIE_LEASE || plan.lie == LIE_LEASE_AT_ONCE;

    if (plan.lie == FAIL_REQUEST) {
        false_send_error(session, id, PROTO_E_EXHAUSTED, "the pool holds 4 MiB, pid 4711 has them all");
    } else if (plan.lie == LIE_ERROR && plan.sent > 0) {
        false_send_error(session, id, PROTO_E_EXHAUSTED, "no more");
    } else if (is_lease && (plan.sent > 0) == (plan.lie == LIE_LEASE)) {
        struct proto_message reply = false_lease_message(daemon, id, FALSE_POOL_DEVICE, 512, true);
        false_send(session, &reply, NULL, 0);
    } else {
        return false;
    }
    return true;
}

/* Sends the next message of an answer. */
static void send_next(struct false_daemon *daemon, struct false_session *session,
                      const struct proto_message *request) {
    const struct proto_acquire_segments *acquire = &request->acquire_segments;
    struct proto_message reply = {.header = {.operation = PROTO_LEASES, .request = request->header.request}};
    unsigned left = acquire->count - plan.sent;
    int fds[FALSE_FDS_MAX];

    if (answer_otherwise(daemon, session, request)) {
        plan.sent = acquire->count;
        return;
    }
    memset(&reply.leases, 0, sizeof reply.leases);
    bool is_first = plan.sent == 0;
    fill(daemon, acquire, left < PROTO_LEASES_PER_MESSAGE ? left : PROTO_LEASES_PER_MESSAGE, &reply.leases,
         fds);
    plan.sent += reply.leases.count;
    unsigned n_fds = reply.leases.n_described;
    tell_lie(&reply, is_first, fds, &n_fds);
    if (n_fds > 0)
        session->unconfirmed = reply.leases.leases[0].segment;
    false_send(session, &reply, fds, n_fds);
}

/* Sends an answer, or as much of it as is not withheld. */
static void answer(struct false_daemon *daemon, struct false_session *session,
                   const struct proto_message *request) {
    uint32_t count = request->acquire_segments.count;

    plan.is_answering = false;
    while (plan.sent < count && plan.sent < plan.withhold_after) {
        send_next(daemon, session, request);
        if (session->unconfirmed != 0 && plan.sent < count) {
            session->backlog[session->backlog_count++] = *request;
            plan.is_answering = true;
            return;
        }
    }
    if (plan.sent < count)
        plan.late = *request;
}

static void note_release(const struct proto_message *request) {
    uint64_t lease = request->release.lease;

    if (request->release.generation != lease * 3 || lease >= sizeof plan.released || plan.released[lease] ||
        request->release.offset_bytes != 0 || request->release.size_bytes != 0 || request->release.fence != 0)
        plan.strange++;
    else
        plan.released[lease] = true;
    if (request->header.request == 0)
        plan.one_way++;
    else
        plan.answered++;
}

static void answer_offer(struct false_session *session, const struct proto_message *request) {
    struct proto_message reply = {
        .header = {.operation = PROTO_SEGMENTS, .request = request->header.request}};

    plan.offers++;
    memset(&reply.segments, 0, sizeof reply.segments);
    while (reply.segments.count < request->offer.count && plan.closing > 0) {
        reply.segments.ids[reply.segments.count] = request->offer.ids[reply.segments.count];
        reply.segments.count++;
        plan.closing--;
    }
    false_send(session, &reply, NULL, 0);
}

/* Sends the late answer, and the one that is held. Returns whether the next answer is to wait for OPENED. */
static bool send_late(struct false_daemon *daemon, struct false_session *session) {
    struct proto_message message = plan.late;

    if (message.header.operation != 0) {
        plan.late.header.operation = 0;
        plan.withhold_after = SEGMENTS_MAX;
        answer(daemon, session, &message);
    }
    message = plan.held;
    if (message.header.operation != 0 && session->unconfirmed == 0) {
        plan.held.header.operation = 0;
        false_daemon_serve(daemon, session, &message);
    }
    return session->unconfirmed != 0 || plan.is_answering;
}

static bool serve(struct false_daemon *daemon, struct false_session *session,
                  const struct proto_message *request) {
    switch (request->header.operation) {
    case PROTO_ACQUIRE_SEGMENTS:
        if (request->header.request != plan.request) {
            plan.request = request->header.request;
            plan.base += plan.is_ascending ? plan.sent : 0;
            plan.sent = 0;
            plan.requests++;
        }
        answer(daemon, session, request);
        return true;
    case PROTO_ACQUIRE:
        if (plan.lie == LIE_OTHER_OPERATION) {
            struct proto_message other = *request;
            plan.sent = 0;
            other.acquire_segments = (struct proto_acquire_segments){
                .pool = FALSE_POOL_DEVICE, .segment_bytes = SEGMENT_BYTES, .count = 1};
            send_next(daemon, session, &other);
            return true;
        }
        if (request->acquire.pool != FALSE_POOL_HOST)
            return false;
        plan.held = *request;
        return true;
    case PROTO_RELEASE:
        note_release(request);
        if (request->header.request != 0)
            false_send_ok(session, request->header.request);
        return true;
    case PROTO_OFFER:
        answer_offer(session, request);
        return true;
    case PROTO_CLOSED:
        plan.closed++;
        false_send_ok(session, request->header.request);
        return true;
    case PROTO_LIST_POOLS:
        if (!send_late(daemon, session))
            return false;
        session->backlog[session->backlog_count++] = *request;
        return true;
    default:
        return false;
    }
}

/* --- the tests --- */

static struct segment_grant grants[SEGMENTS_MAX];

/* A client of a fresh daemon. */
static struct gpupool_client *begin(enum lie lie) {
    struct gpupool_options options;
    struct gpupool_client *client = NULL;

    memset(&plan, 0, sizeof plan);
    plan.withhold_after = SEGMENTS_MAX;
    plan.lie = lie;
    daemon_.handle = serve;
    false_daemon_run(&daemon_);
    options = options_for(daemon_.path);
    assert_ok(gpupool_open(&options, &client));
    return client;
}

/* Ends the client and the daemon, and prepares another one. */
static void finish(struct gpupool_client *client) {
    gpupool_close(client);
    false_daemon_deinit(&daemon_);
    false_daemon_init(&daemon_, &exporter);
}

static int acquire(struct gpupool_client *client, uint32_t count, uint64_t segment_bytes) {
    const struct proto_acquire_segments how = {
        .pool = FALSE_POOL_DEVICE, .segment_bytes = segment_bytes, .count = count};

    memset(grants, 0, sizeof grants);
    return lease_acquire_segments(&client->session, &how, grants);
}

/* Makes sure that the daemon has read all that was sent before, and sends what is late. */
static int ask_something(struct gpupool_client *client) {
    size_t count;
    return gpupool_pools(client, NULL, 0, &count);
}

/* Each lease is there once, in a segment of its own that is imported, has no descriptor left and is mapped
 * nowhere. */
static void assert_granted(uint32_t count, uint64_t segment_bytes) {
    for (uint32_t i = 0; i < count; i++) {
        assert_int_equal(grants[i].generation, grants[i].lease * 3);
        assert_non_null(grants[i].segment);
        assert_int_equal(grants[i].segment->size_bytes, segment_bytes);
        assert_true(grants[i].segment->has_vmm_handle);
        assert_int_equal(grants[i].segment->fd, -1);
        assert_null(grants[i].segment->memory);
        for (uint32_t j = 0; j < i; j++)
            assert_true(grants[j].lease != grants[i].lease && grants[j].segment != grants[i].segment);
    }
}

static void a_long_answer_comes_in_several_messages(void **state) {
    (void)state;
    struct gpupool_client *client = begin(LIE_NONE);
    assert_ok(acquire(client, SEGMENTS_MAX, SEGMENT_BYTES));
    assert_granted(SEGMENTS_MAX, SEGMENT_BYTES);
    assert_int_equal(plan.requests, 1);
    assert_int_equal(daemon_.opened, 3); /* one for each message */
    lease_give_back_segments(&client->session, grants, SEGMENTS_MAX);
    assert_int_equal(plan.one_way, SEGMENTS_MAX - 1);
    assert_int_equal(plan.answered, 1);
    assert_ok(acquire(client, SEGMENTS_MAX, SEGMENT_BYTES)); /* the segments are known now */
    assert_granted(SEGMENTS_MAX, SEGMENT_BYTES);
    assert_int_equal(daemon_.opened, 3);
    assert_int_equal(plan.strange, 0);
    gpupool_close(client);
    assert_int_equal(daemon_.byes, 1);
}

static void new_segments_come_beside_known_ones(void **state) {
    (void)state;
    struct gpupool_client *client = begin(LIE_NONE);
    assert_ok(acquire(client, 3, SEGMENT_BYTES));
    assert_ok(acquire(client, 70, SEGMENT_BYTES));
    assert_granted(70, SEGMENT_BYTES);
    false_daemon_await(&daemon_, &daemon_.opened, 3);
    gpupool_close(client);
}

static int acquire_host_memory(struct gpupool_client *client) {
    const struct proto_acquire how = {.pool = FALSE_POOL_HOST, .size_bytes = 1, .timeout_ns = NS_FOREVER};
    struct grant grant;
    return lease_acquire(&client->session, &how, &grant);
}

static void *wait_for_host_memory(void *client) {
    return acquire_host_memory(client) == 0 ? client : NULL;
}

static bool has_reader(struct gpupool_client *client) {
    struct connection *connection = &client->session.connection;

    pthread_mutex_lock(&connection->lock);
    bool reading = connection->reading;
    pthread_mutex_unlock(&connection->lock);
    return reading;
}

/* A thread that waits for something else reads the answer. */
static void another_thread_reads_the_answer(void **state) {
    uint64_t deadline_ns = clock_now_ns() + TEST_WAIT_NS;
    pthread_t thread;
    void *result;

    (void)state;
    struct gpupool_client *client = begin(LIE_NONE);
    assert_int_equal(pthread_create(&thread, NULL, wait_for_host_memory, client), 0);
    while (!has_reader(client) && clock_now_ns() < deadline_ns)
        sched_yield();
    assert_ok(acquire(client, SEGMENTS_MAX, SEGMENT_BYTES));
    assert_granted(SEGMENTS_MAX, SEGMENT_BYTES);
    assert_ok(ask_something(client));
    assert_int_equal(test_join(thread, &result), 0);
    assert_ptr_equal(result, client);
    gpupool_close(client);
}

static void a_lie_ends_the_session(void **state) {
    static const char *const texts[] = {
        [LIE_FEWER] = "on another number of segments",
        [LIE_MORE] = "on another number of segments",
        [LIE_END] = "on another number of segments",
        [LIE_LEFT] = "on another number of segments",
        [LIE_ENDLESS] = "on another number of segments",
        [LIE_FEWER_FDS] = "another number of descriptors",
        [LIE_MORE_FDS] = "another number of descriptors",
        [LIE_NO_FDS] = "another number of descriptors",
        [LIE_MANY_FDS] = "more descriptors than",
        [LIE_POOL] = "of another pool or size",
        [LIE_BYTES] = "of another pool or size",
        [LIE_LATER_BYTES] = "of another pool or size",
        [LIE_TWICE] = "described twice",
        [LIE_TWICE_LATER] = "described twice",
        [LIE_NOT_DESCRIBED] = "never described",
        [LIE_PART] = "on a part of a segment",
        [LIE_KIND] = "of another kind",
        [LIE_ERROR] = "of the wrong kind",
        [LIE_LEASE] = "of the wrong kind",
        [LIE_LEASE_AT_ONCE] = "of the wrong kind",
        [LIE_OTHER_REQUEST] = "to no request",
        [LIE_OTHER_OPERATION] = "of the wrong kind",
    };
    struct gpupool_buffer buffer;

    (void)state;
    for (enum lie lie = LIE_NONE + 1; lie <= LIE_LAST; lie++) {
        int before = open_fds();
        struct gpupool_client *client = begin(LIE_NONE);
        if (lie == LIE_PART)
            assert_ok(acquire(client, 1, LARGE_BYTES));
        if (lie == LIE_KIND)
            assert_ok(gpupool_acquire(client, FALSE_POOL_DEVICE, 1, NULL, GPUPOOL_NOW, 0, &buffer));
        plan.lie = lie;
        int r = lie == LIE_OTHER_OPERATION
                    ? acquire_host_memory(client)
                    : acquire(client, SEGMENTS_MAX, lie == LIE_KIND ? LARGE_BYTES : SEGMENT_BYTES);
        if (r != GPUPOOL_E_PROTOCOL)
            fail_msg("lie %u: %s: %s", lie, gpupool_error_name(r), r != 0 ? gpupool_error_text() : "");
        assert_text_has(texts[lie]);
        assert_error(ask_something(client), GPUPOOL_E_PROTOCOL);
        assert_text_has(texts[lie]);
        assert_error(acquire(client, 1, SEGMENT_BYTES), GPUPOOL_E_PROTOCOL);
        gpupool_close(client);
        false_daemon_stop(&daemon_);
        if (open_fds() != before - 2) /* less the listener and the stop descriptor */
            fail_msg("lie %u: %d descriptors before, %d after", lie, before, open_fds() + 2);
        false_daemon_deinit(&daemon_);
        false_daemon_init(&daemon_, &exporter);
    }
}

/* --- each field at its ends --- */

static const struct wire_field *lied_field;
static uint64_t lied_value;

static void alter_leases(const struct proto_message *message, struct false_packet *packet) {
    const struct proto_leases *leases =
        (const struct proto_leases *)(packet->bytes + sizeof(struct proto_header));

    if (message->header.operation != PROTO_LEASES)
        return;
    wire_set(lied_field, lied_value, packet->bytes);
    for (unsigned i = 0; i < FALSE_SESSIONS_MAX; i++) /* which OPENED is right */
        if (daemon_.sessions[i].fd >= 0)
            memcpy(&daemon_.sessions[i].unconfirmed, &leases->leases[0].segment, sizeof(uint64_t));
}

static void every_field_of_leases_is_an_error_or_harmless(void **state) {
    (void)state;
    for (unsigned f = 0; f < WIRE_FIELDS; f++)
        for (unsigned i = 0; i < WIRE_EXTREMES && wire_fields[f].operation == PROTO_LEASES; i++) {
            struct gpupool_client *client = begin(LIE_NONE);
            lied_field = &wire_fields[f];
            lied_value = wire_extremes[i];
            false_alter = alter_leases;
            int r = acquire(client, 3, SEGMENT_BYTES);
            false_alter = NULL;
            if (r != 0) {
                assert_int_equal(r, GPUPOOL_E_PROTOCOL);
                assert_true(strlen(gpupool_error_text()) > 0);
            }
            for (unsigned j = 0; r == 0 && j < 3; j++)
                assert_true(grants[j].segment->has_vmm_handle);
            finish(client);
        }
}

/* --- refusals and failures --- */

static void a_refusal_ends_its_request_alone(void **state) {
    (void)state;
    struct gpupool_client *client = begin(FAIL_REQUEST);
    assert_error(acquire(client, SEGMENTS_MAX, SEGMENT_BYTES), GPUPOOL_E_EXHAUSTED);
    assert_text_has("pid 4711");
    plan.lie = LIE_NONE;
    assert_ok(acquire(client, SEGMENTS_MAX, SEGMENT_BYTES));
    assert_granted(SEGMENTS_MAX, SEGMENT_BYTES);
    assert_int_equal(plan.one_way + plan.answered, 0);
    gpupool_close(client);
}

static void a_descriptor_that_the_driver_refuses_ends_its_request_alone(void **state) {
    (void)state;
    struct gpupool_client *client = begin(FAIL_DESCRIPTOR);
    for (unsigned i = 1; i <= 2; i++) { /* it is not sent again */
        assert_error(acquire(client, 70, SEGMENT_BYTES), GPUPOOL_E_DRIVER);
        assert_text_has("importing its descriptor");
        plan.lie = LIE_NONE;
        assert_int_equal(plan.one_way + plan.answered, 70 * i);
    }
    assert_ok(acquire(client, 69, SEGMENT_BYTES));
    assert_granted(69, SEGMENT_BYTES);
    assert_int_equal(plan.strange, 0);
    gpupool_close(client);
}

static void a_request_without_memory_changes_nothing(void **state) {
    unsigned failures = 0;

    (void)state;
    for (unsigned n = 1, failed = 1; failed; n++) {
        struct gpupool_client *client = begin(LIE_NONE);
        memory_fail_nth(n);
        int r = acquire(client, 70, SEGMENT_BYTES);
        failed = memory_failed();
        memory_fail_nth(0);
        if (r != 0) {
            assert_int_equal(r, GPUPOOL_E_NO_MEMORY);
            assert_int_equal(plan.one_way + plan.answered, plan.requests * 70);
            failures++;
            assert_ok(acquire(client, 70, SEGMENT_BYTES));
        }
        assert_granted(70, SEGMENT_BYTES);
        assert_int_equal(plan.strange, 0);
        finish(client);
    }
    assert_true(failures >= 70); /* each segment has its memory before the request is sent */
}

/* --- a process that may have few descriptors --- */

static struct gpu table;

static int import_nothing(unsigned device, int fd, uint64_t *ret_handle) {
    (void)device, (void)fd;
    *ret_handle = 1;
    return 0;
}

static int release_nothing(unsigned device, uint64_t handle) {
    (void)device, (void)handle;
    return 0;
}

/* The simulated driver keeps a descriptor for each import, the real one none: here it keeps none. */
static void a_request_fits_the_descriptors_that_there_are(void **state) {
    struct rlimit before, few;

    (void)state;
    struct gpupool_client *client = begin(LIE_NONE);
    (void)table_over(client, &table);
    table.vmm_import = import_nothing;
    table.vmm_release = release_nothing;
    plan.is_ascending = true;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    few = before;
    few.rlim_cur = (rlim_t)open_fds() + 80;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int r = acquire(client, SEGMENTS_MAX, SEGMENT_BYTES);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_ok(r);
    assert_granted(SEGMENTS_MAX, SEGMENT_BYTES);
    assert_int_equal(plan.requests, 3);
    gpupool_close(client);
}

/* --- answers that come late --- */

/* All leases were released, each once, and without an answer: the thread that read them waited for something
 * else. The next request is served. */
static void assert_nothing_lost(struct gpupool_client *client) {
    assert_ok(ask_something(client)); /* what is late comes */
    assert_ok(ask_something(client)); /* the daemon has read the last RELEASE */
    assert_int_equal(plan.one_way, SEGMENTS_MAX);
    assert_int_equal(plan.answered, 0);
    assert_int_equal(plan.strange, 0);
    assert_ok(acquire(client, SEGMENTS_MAX, SEGMENT_BYTES));
    assert_granted(SEGMENTS_MAX, SEGMENT_BYTES);
    assert_int_equal(daemon_.opened, 3);
    assert_int_equal(plan.one_way, SEGMENTS_MAX);
}

static void what_comes_too_late_is_released(void **state) {
    (void)state;
    for (unsigned after = 0; after < SEGMENTS_MAX; after += PROTO_LEASES_PER_MESSAGE) {
        struct gpupool_client *client = begin(LIE_NONE);
        client->session.connection.answer_timeout_ns = LATE_NS;
        plan.withhold_after = after;
        assert_error(acquire(client, SEGMENTS_MAX, SEGMENT_BYTES), GPUPOOL_E_TIMED_OUT);
        assert_text_has("did not answer in time");
        client->session.connection.answer_timeout_ns = PATIENT_NS;
        assert_nothing_lost(client);
        gpupool_close(client);
        assert_int_equal(daemon_.byes, 1);
        false_daemon_deinit(&daemon_);
        false_daemon_init(&daemon_, &exporter);
    }
}

/* Lies in an answer for which no thread waits any more. */
static void a_late_lie_ends_the_session(void **state) {
    static const enum lie lies[] = {LIE_FEWER,     LIE_MORE,        LIE_END,          LIE_LEFT,
                                    LIE_FEWER_FDS, LIE_POOL,        LIE_MORE_FDS,     LIE_BYTES,
                                    LIE_TWICE,     LIE_LATER_BYTES, LIE_TWICE_LATER,  LIE_NOT_DESCRIBED,
                                    LIE_ERROR,     LIE_LEASE,       LIE_LEASE_AT_ONCE};

    (void)state;
    for (unsigned i = 0; i < sizeof lies / sizeof *lies; i++) {
        struct gpupool_client *client = begin(LIE_NONE);
        client->session.connection.answer_timeout_ns = LATE_NS;
        plan.withhold_after = 0;
        assert_error(acquire(client, SEGMENTS_MAX, SEGMENT_BYTES), GPUPOOL_E_TIMED_OUT);
        client->session.connection.answer_timeout_ns = PATIENT_NS;
        plan.lie = lies[i];
        int r = ask_something(client);
        if (r != GPUPOOL_E_PROTOCOL)
            fail_msg("lie %u: %s: %s", lies[i], gpupool_error_name(r), r != 0 ? gpupool_error_text() : "");
        finish(client);
    }
}

/* --- segments that are offered --- */

static void offers_name_as_many_as_a_message_has_room_for(void **state) {
    uint64_t ids[SEGMENTS_MAX];

    (void)state;
    struct gpupool_client *client = begin(LIE_NONE);
    assert_ok(acquire(client, SEGMENTS_MAX, SEGMENT_BYTES));
    lease_give_back_segments(&client->session, grants, SEGMENTS_MAX);
    for (unsigned i = 0; i < SEGMENTS_MAX; i++)
        ids[i] = grants[i].segment->id;
    uint64_t first = ids[0];
    plan.closing = 100;
    assert_ok(lease_close_offered(&client->session, FALSE_POOL_DEVICE, ids, SEGMENTS_MAX));
    assert_int_equal(plan.offers, 3);
    assert_int_equal(plan.closed, 100);
    unsigned left = 0; /* those that may be offered again */
    for (unsigned i = 0; i < SEGMENTS_MAX; i++)
        left += ids[i] != 0;
    assert_int_equal(left, SEGMENTS_MAX - 100);
    plan.closing = 1;
    assert_error(lease_close_offered(&client->session, FALSE_POOL_DEVICE, &first, 1), GPUPOOL_E_PROTOCOL);
    assert_text_has("has a segment closed that is not there");
    gpupool_close(client);
}

static void make_segments(void) {
    const struct gpu *gpu;
    uint64_t handle;

    if (gpu_sim(NULL, &gpu) != 0 || gpu->vmm_create(0, LARGE_BYTES, &handle) != 0 ||
        gpu->vmm_export(0, handle, &large) != 0)
        abort();
    for (unsigned i = 0; i < DESCRIPTORS; i++)
        if (gpu->vmm_create(0, SEGMENT_BYTES, &handle) != 0 || gpu->vmm_export(0, handle, &small[i]) != 0)
            abort();
}

int main(void) {
    fixture_init();
    make_segments();
    const struct CMUnitTest tests[] = {
        TEST(a_long_answer_comes_in_several_messages),
        TEST(new_segments_come_beside_known_ones),
        TEST(another_thread_reads_the_answer),
        TEST(a_lie_ends_the_session),
        TEST(every_field_of_leases_is_an_error_or_harmless),
        TEST(a_refusal_ends_its_request_alone),
        TEST(a_descriptor_that_the_driver_refuses_ends_its_request_alone),
        TEST(a_request_without_memory_changes_nothing),
        TEST(a_request_fits_the_descriptors_that_there_are),
        TEST(what_comes_too_late_is_released),
        TEST(a_late_lie_ends_the_session),
        TEST(offers_name_as_many_as_a_message_has_room_for),
    };
    int failed = cmocka_run_group_tests_name("client_segments_request", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
