/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client library with a daemon that is not there, late, gone, or sends what it should not.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "client/session/lease.h"
#include "tests/unit/client_fixture.h"

/* --- a daemon that is not there, late or gone --- */

static void no_daemon_is_said_with_what_to_do(void **state) {
    (void)state;
    struct gpupool_options options = options_for("/tmp/gpupool-no-such-socket");
    struct gpupool_client *client = NULL;
    char path[200];

    assert_error(gpupool_open(&options, &client), GPUPOOL_E_CONNECT);
    assert_text_has("/tmp/gpupool-no-such-socket");
    assert_text_has("ENOENT");
    assert_text_has("start gpupoold");
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    options.socket = path;
    assert_error(gpupool_open(&options, &client), GPUPOOL_E_INVALID);
    assert_null(client);
}

static void full_backlog_times_out(void **state) {
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct gpupool_options options = options_for(NULL);
    struct gpupool_client *client = NULL;
    char path[108];

    snprintf(path, sizeof path, "%s/full.sock", daemon_.directory);
    memcpy(address.sun_path, path, sizeof path);
    _cleanup_(close_fdp) int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    _cleanup_(close_fdp) int first = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, 0), 0);
    assert_int_equal(connect(first, (struct sockaddr *)&address, sizeof address), 0);
    options.socket = path;
    options.connect_timeout_ns = IMPATIENT_NS;
    assert_error(gpupool_open(&options, &client), GPUPOOL_E_TIMED_OUT);
    unlink(path);
}

static bool say_nothing(struct false_daemon *daemon, struct false_session *session,
                        const struct proto_message *request) {
    (void)daemon, (void)session, (void)request;
    return true;
}

static bool hang_up(struct false_daemon *daemon, struct false_session *session,
                    const struct proto_message *request) {
    (void)daemon, (void)request;
    shutdown(session->fd, SHUT_RDWR);
    return true;
}

static bool refuse_version(struct false_daemon *daemon, struct false_session *session,
                           const struct proto_message *request) {
    (void)daemon;
    false_send_error(session, request->header.request, PROTO_E_VERSION, "this daemon speaks versions 7 to 9");
    return true;
}

static bool refuse_session(struct false_daemon *daemon, struct false_session *session,
                           const struct proto_message *request) {
    (void)daemon, (void)request;
    false_send_error(session, 0, PROTO_E_LIMIT, "uid 1000 has 64 sessions");
    shutdown(session->fd, SHUT_RDWR);
    return true;
}

static bool greet_with_a_lease(struct false_daemon *daemon, struct false_session *session,
                               const struct proto_message *request) {
    struct proto_message message =
        false_lease_message(daemon, request->header.request, FALSE_POOL_DEVICE, 1, true);
    false_send(session, &message, NULL, 0);
    return true;
}

static void bad_greetings_are_told_apart(void **state) {
    (void)state;
    static const struct {
        bool (*handle)(struct false_daemon *, struct false_session *, const struct proto_message *);
        int error;
        const char *word;
    } cases[] = {
        {refuse_version, GPUPOOL_E_VERSION, "versions 7 to 9"},
        {refuse_session, GPUPOOL_E_LIMIT, "64 sessions"},
        {hang_up, GPUPOOL_E_CONNECT, "closed the connection"},
        {say_nothing, GPUPOOL_E_TIMED_OUT, daemon_.path},
        {greet_with_a_lease, GPUPOOL_E_PROTOCOL, "wrong kind"},
    };
    struct gpupool_client *client = NULL;

    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (i > 0) {
            false_daemon_deinit(&daemon_);
            false_daemon_init(&daemon_, &exporter);
        }
        daemon_.handle = cases[i].handle;
        false_daemon_run(&daemon_);
        struct gpupool_options options = options_for(daemon_.path);
        if (cases[i].error == GPUPOOL_E_TIMED_OUT || cases[i].handle == hang_up)
            options.connect_timeout_ns = IMPATIENT_NS;
        int r = gpupool_open(&options, &client);
        /* The time may be over while the last of several connections is made. */
        for (unsigned n = 0; n < 20 && r == GPUPOOL_E_TIMED_OUT && cases[i].handle == hang_up; n++)
            r = gpupool_open(&options, &client);
        if (r != cases[i].error)
            fail_msg("greeting %u: %s: %s", i, gpupool_error_name(r), gpupool_error_text());
        assert_text_has(cases[i].word);
        assert_null(client);
    }
}

/* Answers ACQUIRE only when the next request comes. */
static bool answer_late(struct false_daemon *daemon, struct false_session *session,
                        const struct proto_message *request) {
    struct proto_message *held = daemon->user;

    if (request->header.operation == PROTO_ACQUIRE) {
        *held = *request;
        return true;
    }
    if (request->header.operation == PROTO_LIST_POOLS && held->header.operation == PROTO_ACQUIRE) {
        struct proto_message late = *held;
        held->header.operation = 0;
        false_daemon_serve(daemon, session, &late);
        /* The rule of one unread descriptor holds for this reply too: it goes out after OPENED. */
        if (session->unconfirmed != 0) {
            session->backlog[session->backlog_count++] = *request;
            return true;
        }
    }
    return false;
}

static void late_leases_are_given_back(void **state) {
    (void)state;
    static const uint32_t pools[] = {FALSE_POOL_HOST, FALSE_POOL_HOST, FALSE_POOL_DEVICE};
    struct proto_message *held = calloc(1, sizeof *held);
    daemon_.user = held;
    struct gpupool_client *client = start(answer_late);
    struct gpupool_buffer buffer = {0};
    size_t count;

    assert_ok(gpupool_pools(client, NULL, 0, &count));
    for (unsigned i = 0; i < sizeof pools / sizeof *pools; i++) {
        client->session.connection.answer_timeout_ns = IMPATIENT_NS;
        assert_error(gpupool_acquire(client, pools[i], 1000, NULL, GPUPOOL_NOW, 0, &buffer),
                     GPUPOOL_E_TIMED_OUT);
        assert_null(buffer.data);
        client->session.connection.answer_timeout_ns = PATIENT_NS;
        assert_ok(gpupool_pools(client, NULL, 0, &count));
        false_daemon_await(&daemon_, &daemon_.releases, i + 1);
        assert_int_equal(daemon_.leases, 0);
    }
    assert_int_equal(daemon_.opened, 1);
    /* The late answer was entered: the segment is known, and is not described again. */
    daemon_.handle = NULL;
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1000, NULL, GPUPOOL_NOW, 0, &buffer));
    assert_ok(gpupool_release(client, &buffer, NULL));
    assert_true(list_is_empty(&client->session.connection.abandoned));
    gpupool_close(client);
    free(held);
}

/* Answers SEND only when LIST_POOLS comes, and counts the REVOKEs of its token. */
static struct {
    struct proto_message send;
    _Atomic unsigned revokes;
} held_send;

static bool answer_send_late(struct false_daemon *daemon, struct false_session *session,
                             const struct proto_message *request) {
    if (request->header.operation == PROTO_SEND) {
        held_send.send = *request;
        return true;
    }
    if (request->header.operation == PROTO_LIST_POOLS && held_send.send.header.operation == PROTO_SEND) {
        held_send.send.header.operation = PROTO_SHARE; /* which gives a token, too */
        false_daemon_serve(daemon, session, &held_send.send);
    }
    if (request->header.operation == PROTO_REVOKE && request->revoke.bytes[0] == 0xa5)
        held_send.revokes++;
    return false;
}

/* No process has the token of a parcel whose answer came too late. */
static void a_late_parcel_is_revoked(void **state) {
    (void)state;
    struct gpupool_client *client = start(answer_send_late);
    struct gpupool_buffer buffer;
    struct gpupool_token token;
    size_t count;

    assert_ok(gpupool_pools(client, NULL, 0, &count));
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1000, NULL, GPUPOOL_NOW, 0, &buffer));
    client->session.connection.answer_timeout_ns = IMPATIENT_NS;
    assert_error(gpupool_send(client, &buffer, GPUPOOL_NO_STREAM, 1, NS_PER_S, &token), GPUPOOL_E_TIMED_OUT);
    client->session.connection.answer_timeout_ns = PATIENT_NS;
    assert_ok(gpupool_pools(client, NULL, 0, &count));
    assert_ok(gpupool_pools(client, NULL, 0, &count)); /* the daemon has read what was sent before */
    assert_int_equal(held_send.revokes, 1);
    assert_ok(gpupool_release(client, &buffer, NULL));
    assert_true(list_is_empty(&client->session.connection.abandoned));
    gpupool_close(client);
}

#define REJECTION "RELEASE.fence: above 512; the session ends"

/* Ends the session because of a RELEASE, as the daemon does for a packet that does not check out. */
static bool reject_release(struct false_daemon *daemon, struct false_session *session,
                           const struct proto_message *request) {
    (void)daemon;
    if (request->header.operation != PROTO_RELEASE)
        return false;
    false_send_error(session, request->header.request, PROTO_E_INVALID, REJECTION);
    shutdown(session->fd, SHUT_RDWR);
    return true;
}

static void why_the_daemon_ended_the_session_is_the_error_of_the_call(void **state) {
    (void)state;
    struct gpupool_client *client = start(reject_release);
    size_t count;

    assert_error(lease_release(&client->session, 1, 1, 0, 0, FENCE_NONE), GPUPOOL_E_INVALID);
    assert_text_has(REJECTION);
    assert_error(gpupool_pools(client, NULL, 0, &count), GPUPOOL_E_DISCONNECTED);
    gpupool_close(client);
}

static void why_the_daemon_ended_the_session_is_the_error_after_a_one_way_message(void **state) {
    (void)state;
    struct gpupool_client *client = start(reject_release);
    uint64_t deadline_ns = clock_now_ns() + PATIENT_NS;
    size_t count;
    int r;

    do /* no call reads an answer: the daemon is gone when a message cannot be sent any more */
        r = lease_release_one_way(&client->session, 1, 1, 0, 0, FENCE_NONE);
    while (r == 0 && clock_now_ns() < deadline_ns);
    assert_error(r, GPUPOOL_E_INVALID);
    assert_text_has(REJECTION);
    assert_error(gpupool_pools(client, NULL, 0, &count), GPUPOOL_E_INVALID);
    assert_text_has(REJECTION);
    gpupool_close(client);
}

struct waiter {
    struct gpupool_client *client;
    pthread_t thread;
    int result;
    char text[ERROR_TEXT_SIZE];
};

static void *wait_for_room(void *argument) {
    struct waiter *waiter = argument;
    struct gpupool_buffer buffer;
    waiter->result =
        gpupool_acquire(waiter->client, FALSE_POOL_HOST, 1000, NULL, GPUPOOL_FOREVER, 0, &buffer);
    snprintf(waiter->text, sizeof waiter->text, "%s", gpupool_error_text());
    return NULL;
}

static bool hold_acquires(struct false_daemon *daemon, struct false_session *session,
                          const struct proto_message *request) {
    (void)session;
    return daemon->user != NULL && request->header.operation == PROTO_ACQUIRE;
}

static void dead_daemon_leaves_buffers_usable(void **state) {
    (void)state;
    struct gpupool_client *client = start(hold_acquires);
    struct gpupool_buffer host, device, other = {0};
    struct waiter waiters[4];
    char back[6] = "";
    size_t count;

    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1000, NULL, GPUPOOL_NOW, 0, &host));
    assert_ok(gpupool_acquire(client, FALSE_POOL_DEVICE, 1000, NULL, GPUPOOL_NOW, 0, &device));
    unsigned messages = daemon_.messages;
    pthread_mutex_lock(&daemon_.lock);
    daemon_.user = &daemon_;
    pthread_mutex_unlock(&daemon_.lock);
    for (unsigned i = 0; i < 4; i++) {
        waiters[i] = (struct waiter){.client = client};
        assert_int_equal(pthread_create(&waiters[i].thread, NULL, wait_for_room, &waiters[i]), 0);
    }
    false_daemon_await(&daemon_, &daemon_.messages, messages + 4);
    false_daemon_stop(&daemon_);
    for (unsigned i = 0; i < 4; i++) {
        TEST_JOIN(waiters[i].thread, NULL);
        assert_int_equal(waiters[i].result, GPUPOOL_E_DISCONNECTED);
        assert_non_null(strstr(waiters[i].text, "closed the connection"));
    }
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, GPUPOOL_NOW, 0, &other),
                 GPUPOOL_E_DISCONNECTED);
    assert_error(gpupool_pools(client, NULL, 0, &count), GPUPOOL_E_DISCONNECTED);

    memcpy(host.data, "alive", 6);
    assert_ok(gpupool_copy(client, 0, device.data, host.data, 6, NULL));
    assert_ok(gpupool_copy(client, 0, back, device.data, 6, NULL));
    assert_ok(gpupool_stream_synchronize(client, 0, NULL));
    assert_string_equal(back, "alive");
    assert_ok(gpupool_release(client, &host, NULL));
    assert_ok(gpupool_release(client, &device, NULL));
    assert_error(gpupool_release(client, &device, NULL), GPUPOOL_E_STALE);
    gpupool_close(client);
}

/* --- a daemon that does not behave --- */

enum misbehaviour {
    UNSEALED,
    GROWABLE,
    SHORT_MEMFD,
    NO_MEMFD,
    MISSING_FD,
    TWO_FDS,
    TOO_MANY_FDS,
    FD_WITH_OK,
    FD_WITH_JUNK,
    JUNK,
    SHORT,
    OVERLONG,
    REPLY_TO_NOBODY,
    WRONG_REPLY,
    REPLY_TWICE,
    DESCRIBED_TWICE,
    NEVER_DESCRIBED,
    BEYOND_THE_SEGMENT,
    OTHER_POOL_THAN_SEGMENT,
    OTHER_POOL_THAN_ASKED,
    OTHER_SIZE,
    KIND_OF_ANOTHER_POOL,
    MISBEHAVIOURS,
};

static const char *const misbehaviour_words[MISBEHAVIOURS] = {
    [UNSEALED] = "not sealed",
    [GROWABLE] = "not sealed",
    [SHORT_MEMFD] = "another size",
    [NO_MEMFD] = "no memfd",
    [MISSING_FD] = "number of descriptors",
    [TWO_FDS] = "number of descriptors",
    [TOO_MANY_FDS] = "more descriptors",
    [FD_WITH_OK] = "number of descriptors",
    [FD_WITH_JUNK] = "does not check out",
    [JUNK] = "does not check out",
    [SHORT] = "does not check out",
    [OVERLONG] = "larger than any",
    [REPLY_TO_NOBODY] = "no request",
    [WRONG_REPLY] = "wrong kind",
    [REPLY_TWICE] = "no request",
    [DESCRIBED_TWICE] = "described twice",
    [NEVER_DESCRIBED] = "never described",
    [BEYOND_THE_SEGMENT] = "beyond its segment",
    [OTHER_POOL_THAN_SEGMENT] = "another pool than its segment",
    [OTHER_POOL_THAN_ASKED] = "than asked for",
    [OTHER_SIZE] = "than asked for",
    [KIND_OF_ANOTHER_POOL] = "another kind than its pool",
};

static bool misbehave(struct false_daemon *daemon, struct false_session *session,
                      const struct proto_message *request) {
    enum misbehaviour kind = *(const enum misbehaviour *)daemon->user;
    uint8_t bytes[PROTO_PACKET_MAX + 100] = {0};
    int fds[FALSE_FDS_MAX]; /* more than the client has room for */
    unsigned count = 1;

    /* A first acquire of 512 bytes goes well where the second is to go wrong. */
    if (request->header.operation != PROTO_ACQUIRE || request->acquire.size_bytes == 512)
        return false;
    uint64_t id = request->header.request, size = request->acquire.size_bytes;
    bool described = kind < DESCRIBED_TWICE;
    struct proto_message lease = false_lease_message(daemon, id, request->acquire.pool, size, described);
    struct proto_message ok = {.header = {.operation = PROTO_OK, .request = id}};

    for (unsigned i = 0; i < FALSE_FDS_MAX; i++)
        fds[i] = daemon->host_segments[FALSE_POOL_HOST];
    switch (kind) {
    case UNSEALED:
    case GROWABLE:
    case SHORT_MEMFD: {
        _cleanup_(close_fdp) int fd =
            make_memfd(kind == SHORT_MEMFD ? 2 * MIB : FALSE_SEGMENT_SIZE, kind == SHORT_MEMFD);
        if (kind == GROWABLE)
            fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL);
        false_send(session, &lease, &fd, 1);
        return true;
    }
    case NO_MEMFD: {
        _cleanup_(close_fdp) int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
        false_send(session, &lease, &fd, 1);
        return true;
    }
    case MISSING_FD:
        false_send(session, &lease, NULL, 0);
        return true;
    case TOO_MANY_FDS:
        count = FALSE_FDS_MAX;
        false_send(session, &lease, fds, count);
        return true;
    case TWO_FDS:
        false_send(session, &lease, fds, 2);
        return true;
    case FD_WITH_OK:
        false_send(session, &ok, fds, 1);
        return true;
    case FD_WITH_JUNK:
        memset(bytes, 0xee, sizeof bytes);
        false_send_bytes(session, bytes, 100, fds, 3);
        return true;
    case JUNK:
        memset(bytes, 0xee, sizeof bytes);
        false_send_bytes(session, bytes, 100, NULL, 0);
        return true;
    case SHORT:
        false_send_bytes(session, bytes, proto_encode(&lease, bytes) - 1, fds, 1);
        return true;
    case OVERLONG:
        proto_encode(&lease, bytes);
        false_send_bytes(session, bytes, sizeof bytes, fds, 1);
        return true;
    case REPLY_TO_NOBODY:
        lease.header.request += 1000;
        false_send(session, &lease, fds, 1);
        return true;
    case WRONG_REPLY:
        false_send(session, &ok, NULL, 0);
        return true;
    case REPLY_TWICE:
        /* Each is sound; the second has no request any more. It is met by the next call. */
        false_send_error(session, id, PROTO_E_TOO_LARGE, "too large");
        false_send_error(session, id, PROTO_E_TOO_LARGE, "too large");
        return true;
    case DESCRIBED_TWICE:
        lease = false_lease_message(daemon, id, request->acquire.pool, size, true);
        false_send(session, &lease, fds, 1);
        return true;
    case NEVER_DESCRIBED:
        lease.lease.segment = 1234567;
        break;
    case BEYOND_THE_SEGMENT:
        lease.lease.offset_bytes = FALSE_SEGMENT_SIZE;
        break;
    case OTHER_POOL_THAN_SEGMENT:
        lease.lease.pool = FALSE_POOL_HOST_B;
        break;
    case OTHER_POOL_THAN_ASKED:
        lease = false_lease_message(daemon, id, FALSE_POOL_HOST_B, size, true);
        session->unconfirmed = FALSE_POOL_HOST_B;
        false_send(session, &lease, fds, 1);
        return true;
    case OTHER_SIZE:
        lease.lease.size_bytes--;
        break;
    case KIND_OF_ANOTHER_POOL:
        lease = false_lease_message(daemon, id, FALSE_POOL_DEVICE, size, true);
        lease.lease.pool = lease.lease.description.pool = FALSE_POOL_HOST_B;
        lease.lease.segment = lease.lease.description.id = 55;
        break;
    case MISBEHAVIOURS:
        return false;
    }
    false_send(session, &lease, NULL, 0);
    return true;
}

static void misbehaviour_ends_the_connection_and_leaks_nothing(void **state) {
    (void)state;
    enum misbehaviour kind;

    daemon_.user = &kind;
    daemon_.handle = misbehave;
    for (kind = 0; kind < MISBEHAVIOURS; kind++) {
        struct gpupool_buffer buffer, other = {0};
        size_t count;

        if (kind > 0) {
            false_daemon_deinit(&daemon_);
            false_daemon_init(&daemon_, &exporter);
            daemon_.user = &kind;
            daemon_.handle = misbehave;
        }
        int before = open_fds();
        false_daemon_run(&daemon_);
        struct gpupool_client *client = open_client();
        if (kind >= DESCRIBED_TWICE)
            assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 512, NULL, GPUPOOL_NOW, 0, &buffer));
        int r = gpupool_acquire(client, FALSE_POOL_HOST, 1000, NULL, GPUPOOL_FOREVER, 0, &other);
        if (kind == REPLY_TWICE) {
            assert_int_equal(r, GPUPOOL_E_TOO_LARGE);
            r = gpupool_pools(client, NULL, 0, &count);
        }
        if (r != GPUPOOL_E_PROTOCOL)
            fail_msg("misbehaviour %u: %s: %s", kind, gpupool_error_name(r), gpupool_error_text());
        assert_text_has(misbehaviour_words[kind]);
        assert_null(other.data);
        assert_error(gpupool_pools(client, NULL, 0, &count), GPUPOOL_E_PROTOCOL); /* for good */
        if (kind >= DESCRIBED_TWICE)
            memset(buffer.data, 1, buffer.size_bytes); /* what was sound stays usable */
        false_daemon_await(&daemon_, &daemon_.session_count,
                           0); /* the daemon sees it at once, before the close */
        gpupool_close(client);
        false_daemon_stop(&daemon_);
        if (open_fds() != before - 2) /* less the listener and the stop descriptor */
            fail_msg("misbehaviour %u: %d descriptors before, %d after", kind, before, open_fds() + 2);
    }
}

static bool end_session(struct false_daemon *daemon, struct false_session *session,
                        const struct proto_message *request) {
    (void)daemon;
    if (request->header.operation != PROTO_LIST_POOLS)
        return false;
    false_send_error(session, 0, PROTO_E_SHUTDOWN, "stopped by an operator");
    return true;
}

static void session_wide_errors_reach_every_call(void **state) {
    (void)state;
    struct gpupool_client *client = start(end_session);
    struct gpupool_buffer buffer;
    size_t count;

    assert_error(gpupool_pools(client, NULL, 0, &count), GPUPOOL_E_SHUTDOWN);
    assert_text_has("stopped by an operator");
    assert_error(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, GPUPOOL_NOW, 0, &buffer),
                 GPUPOOL_E_SHUTDOWN);
    gpupool_close(client);
}

int main(void) {
    fixture_init();
    const struct CMUnitTest tests[] = {
        TEST(no_daemon_is_said_with_what_to_do),
        TEST(full_backlog_times_out),
        TEST(bad_greetings_are_told_apart),
        TEST(why_the_daemon_ended_the_session_is_the_error_of_the_call),
        TEST(why_the_daemon_ended_the_session_is_the_error_after_a_one_way_message),
        TEST(late_leases_are_given_back),
        TEST(a_late_parcel_is_revoked),
        TEST(dead_daemon_leaves_buffers_usable),
        TEST(misbehaviour_ends_the_connection_and_leaks_nothing),
        TEST(session_wide_errors_reach_every_call),
    };
    int failed = cmocka_run_group_tests_name("client_peer", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
