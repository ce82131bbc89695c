/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client library with a daemon that lies, in every way there is: each field of each message at its ends
 * (tests/wire_fields.h), each message with more and with fewer descriptors than belong to it, and each
 * descriptor with a flaw. After each lie
 *
 * - a call returns success or an error with a text, at once;
 * - memory that it hands out is there from the first byte to the last;
 * - every later call names the failure that broke the connection;
 * - closing leaves no descriptor behind.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/unit/client_fixture.h"
#include "tests/wire_fields.h"

#define ANSWER_NS (30 * NS_PER_S)

/* The lie, which is told once. */
static struct {
    const struct wire_field *field; /* NULL: a descriptor */
    uint64_t value;
    unsigned operation;  /* of the message */
    unsigned skip;       /* so many messages of that kind are true */
    int count;           /* of descriptors; -1: as many as belong to it */
    int fd;              /* each of them; -1: the right one */
    unsigned seen, told; /* how many of that kind there were, and lies, in this script */
} lie;

static void tell_a_lie(const struct proto_message *message, struct false_packet *packet) {
    if (message->header.operation != lie.operation || lie.seen++ != lie.skip)
        return;
    lie.told++;
    if (lie.field != NULL) {
        wire_set(lie.field, lie.value, packet->bytes);
        return;
    }
    if (lie.count >= 0)
        packet->n_fds = (unsigned)lie.count;
    for (unsigned i = 0; i < packet->n_fds; i++)
        packet->fds[i] = lie.fd >= 0 ? lie.fd : daemon_.host_segments[FALSE_POOL_HOST];
}

/* As the real one with a device pool at its limit: no room, and a segment to close before it is asked again.
 */
static bool serve(struct false_daemon *daemon, struct false_session *session,
                  const struct proto_message *request) {
    struct proto_message reply = {.header.request = request->header.request};

    (void)daemon;
    switch (request->header.operation) {
    case PROTO_ACQUIRE:
        if ((request->acquire.flags & PROTO_ACQUIRE_NO_RECLAIM) == 0 ||
            request->acquire.pool != FALSE_POOL_DEVICE || !session->described[FALSE_POOL_DEVICE])
            return false;
        false_send_error(session, request->header.request, PROTO_E_EXHAUSTED, "the pool cannot grow");
        return true;
    case PROTO_IDLE:
        reply.header.operation = PROTO_SEGMENTS;
        reply.segments.count = request->idle.pool == FALSE_POOL_DEVICE;
        reply.segments.ids[0] = request->idle.pool == FALSE_POOL_DEVICE ? FALSE_POOL_DEVICE : 0;
        false_send(session, &reply, NULL, 0);
        return true;
    case PROTO_CLOSED:
        if (request->closed.segment == FALSE_POOL_DEVICE)
            session->described[FALSE_POOL_DEVICE] = false;
        false_send_ok(session, request->header.request);
        return true;
    case PROTO_SPLIT:
        false_send_error(session, request->header.request, PROTO_E_LIMIT, "no more parts");
        return true;
    case PROTO_MERGE:
        return true;
    default:
        return false;
    }
}

/* --- what a client does, until it is told something that it cannot go on with --- */

struct script {
    struct gpupool_client *client;
    unsigned failures;
    bool over; /* the connection was broken off */
};

/* Success, or an error that says something; when it is the connection's end, the end of the script. */
static bool went_well(struct script *script, int r) {
    if (r == 0)
        return true;
    script->failures++;
    if (r > 0 || gpupool_error_text()[0] == '\0' || strncmp(gpupool_error_name(r), "GPUPOOL_E_", 10) != 0)
        fail_msg("an error without a text: %d", r);
    if (r == GPUPOOL_E_TIMED_OUT)
        fail_msg("a call waited for an answer until its end: %s", gpupool_error_text());
    script->over = script->over || r == GPUPOOL_E_PROTOCOL || r == GPUPOOL_E_DISCONNECTED;
    return false;
}

/* The simulated device's memory can be reached as host memory can. */
static bool took(struct script *script, int r, const struct gpupool_buffer *buffer) {
    if (!went_well(script, r))
        return false;
    volatile uint8_t *bytes = buffer->data;
    assert_true(bytes != NULL && buffer->size_bytes > 0 && buffer->size_bytes <= buffer->capacity_bytes);
    bytes[0] = 1;
    bytes[buffer->capacity_bytes - 1] = 2;
    return true;
}

static void use_leases(struct script *script) {
    struct gpupool_client *client = script->client;
    struct gpupool_buffer buffers[3], other;
    struct gpupool_buffer_info info;
    struct gpupool_pool pools[PROTO_POOLS_MAX];
    struct gpupool_token token;
    bool taken[3] = {false};
    size_t count;

    went_well(script, gpupool_pools(client, pools, PROTO_POOLS_MAX, &count));
    for (unsigned i = 0; i < 3; i++) {
        uint32_t pool = i < 2 ? FALSE_POOL_HOST : FALSE_POOL_DEVICE;
        int r = gpupool_acquire(client, pool, 4000, NULL, GPUPOOL_NOW, 0, &buffers[i]);
        taken[i] = took(script, r, &buffers[i]);
    }
    /* refused */
    if (took(script, gpupool_acquire(client, FALSE_POOL_HOST, 2 * MIB, NULL, GPUPOOL_NOW, 0, &other), &other))
        went_well(script, gpupool_release(client, &other, NULL));
    if (taken[0]) {
        went_well(script, gpupool_query(client, &buffers[0], &info));
        if (went_well(script, gpupool_share(client, &buffers[0], NULL, &token)) &&
            took(script, gpupool_attach(client, &token, NULL, 0, &other), &other))
            went_well(script, gpupool_release(client, &other, NULL));
        went_well(script, gpupool_reuse(client, &buffers[0], NULL));
    }
    if (taken[1] && went_well(script, gpupool_shrink(client, &buffers[1], 1000, NULL)))
        took(script, 0, &buffers[1]);
    for (unsigned i = 0; i < 3; i++)
        if (taken[i])
            went_well(script, gpupool_release(client, &buffers[i], NULL));
}

static void use_cache(struct script *script) {
    struct gpupool_client *client = script->client;
    struct gpupool_buffer buffer;
    uint64_t bytes;

    for (unsigned i = 0; i < 2; i++) {
        int r = gpupool_acquire(client, FALSE_POOL_DEVICE, 4096, NULL, GPUPOOL_NOW, 0, &buffer);
        if (took(script, r, &buffer))
            went_well(script, gpupool_release(client, &buffer, NULL));
        went_well(script, gpupool_trim(client, &bytes));
    }
}

/* Plays one of the two scripts with a fresh daemon. Returns how many calls failed. */
static unsigned play(bool cached) {
    struct gpupool_options options;
    struct script script = {0};
    int before;

    false_daemon_deinit(&daemon_);
    false_daemon_init(&daemon_, &exporter);
    before = open_fds();
    lie.seen = lie.told = 0;
    daemon_.handle = serve;
    false_alter = tell_a_lie;
    false_daemon_run(&daemon_);
    options = options_for(daemon_.path);
    options.flags = cached ? GPUPOOL_OPEN_NO_THREAD : GPUPOOL_OPEN_NO_CACHE;
    options.answer_timeout_ns = options.connect_timeout_ns = ANSWER_NS;
    if (went_well(&script, gpupool_open(&options, &script.client))) {
        (cached ? use_cache : use_leases)(&script);
        if (script.over) {
            size_t count;
            int r = gpupool_pools(script.client, NULL, 0, &count);
            if (r != GPUPOOL_E_PROTOCOL && r != GPUPOOL_E_DISCONNECTED)
                fail_msg("after a connection's end: %s", gpupool_error_name(r));
        }
        gpupool_close(script.client);
    }
    false_daemon_stop(&daemon_);
    false_alter = NULL;
    if (open_fds() != before - 2) /* less the listener and the stop descriptor */
        fail_msg("%d descriptors before, %d after", before, open_fds() + 2);
    return script.failures;
}

/* How many calls of either script fail when nothing is told wrongly. */
static unsigned usual[2];

static void what_is_true_is_believed(void **state) {
    (void)state;
    memset(&lie, 0, sizeof lie);
    usual[0] = play(false);
    usual[1] = play(true);
    assert_int_equal(usual[0], 1); /* what is refused */
    assert_int_equal(usual[1], 0);
}

/* Plays both. Returns whether the lie was noticed; fails where it was not told. */
static bool is_noticed(const char *name) {
    unsigned told = 0;
    bool noticed = false;

    for (unsigned cached = 0; cached < 2; cached++) {
        noticed |= play(cached) != usual[cached];
        told += lie.told;
    }
    if (told == 0)
        fail_msg("%s is in no message that was sent", name);
    return noticed;
}

/* The answers about names and channels: the scripts ask for none. */
static bool is_about_names(const struct wire_field *field) {
    return field->operation >= PROTO_PUBLISHED && field->operation <= PROTO_CHANNEL_MEMORY;
}

/* Fields whose value is the daemon's to choose: they name what only it knows, or are shown to people. */
static bool may_be_anything(const struct wire_field *field) {
    return (field->operation == PROTO_HELLO_REPLY &&
            (strcmp(field->name, "session") == 0 || strcmp(field->name, "daemon_pid") == 0)) ||
           (field->operation == PROTO_POOLS && strcmp(field->name, "pools[i].limit_bytes") == 0) ||
           (field->operation == PROTO_HOLDERS && /* it is asked again */
            (strcmp(field->name, "n_left") == 0 || strcmp(field->name, "n_holding") == 0));
}

static void try_field_of(const struct wire_field *field, unsigned operation, unsigned skip) {
    bool noticed = false;

    memset(&lie, 0, sizeof lie);
    lie.field = field;
    lie.operation = operation;
    lie.skip = skip;
    for (unsigned i = 0; i < WIRE_EXTREMES; i++) {
        if (field->size < 8 && i > 0 && wire_extremes[i] >> (8 * field->size) != 0 &&
            wire_extremes[i] != UINT64_MAX)
            continue; /* its low bytes are another one's */
        lie.value = wire_extremes[i];
        noticed |= is_noticed(field->name);
    }
    if (!noticed && !may_be_anything(field))
        fail_msg("%s.%s may be anything", proto_operation_name(operation), field->name);
}

static void try_field(const struct wire_field *field, unsigned operation) {
    try_field_of(field, operation, 0);
    if (operation == PROTO_LEASE) /* in a segment that was described before */
        try_field_of(field, operation, 1);
}

static void every_field_at_its_ends_is_an_error_or_harmless(void **state) {
    (void)state;
    for (unsigned i = 0; i < WIRE_FIELDS; i++)
        if (wire_is_number(&wire_fields[i]) && !wire_is_from_client(wire_fields[i].operation) &&
            !is_about_names(&wire_fields[i]) &&
            wire_fields[i].operation != PROTO_PARTS && /* unit/client_rows */
            wire_fields[i].operation != PROTO_LEASES)  /* unit/client_segments_request */
            try_field(&wire_fields[i], wire_fields[i].operation);
}

static const unsigned replies[] = {PROTO_HELLO_REPLY, PROTO_POOLS, PROTO_LEASE,  PROTO_OK,
                                   PROTO_TOKEN,       PROTO_INFO,  PROTO_ERROR,  PROTO_PAGE,
                                   PROTO_SEGMENTS,    PROTO_BOARD, PROTO_HOLDERS};
#define REPLIES (sizeof replies / sizeof *replies)

static void every_header_at_its_ends_is_an_error_or_harmless(void **state) {
    (void)state;
    for (unsigned i = 0; i < REPLIES; i++)
        for (unsigned f = 0; f < WIRE_FIELDS; f++)
            if (wire_fields[f].operation == 0)
                try_field(&wire_fields[f], replies[i]);
}

static void a_wrong_number_of_descriptors_is_an_error(void **state) {
    static const int counts[] = {0, 1, 2, 3, 40, FALSE_FDS_MAX};
    (void)state;

    for (unsigned i = 0; i < REPLIES; i++)
        for (unsigned c = 0; c < sizeof counts / sizeof *counts; c++) {
            int right = replies[i] == PROTO_LEASE || replies[i] == PROTO_PAGE || replies[i] == PROTO_BOARD;
            if (counts[c] == right)
                continue;
            memset(&lie, 0, sizeof lie);
            lie.operation = replies[i];
            lie.count = counts[c];
            lie.fd = -1;
            if (!is_noticed(proto_operation_name(replies[i])))
                fail_msg("%s with %d descriptors is believed", proto_operation_name(replies[i]), counts[c]);
        }
}

static int reopened(int memfd, int flags) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", memfd);
    int fd = open(path, flags | O_CLOEXEC);
    close(memfd);
    return fd;
}

static void a_descriptor_with_a_flaw_is_an_error(void **state) {
    enum {
        READ_ONLY = 7
    };
    (void)state;
    for (unsigned i = 0; i < 3; i++) {
        uint64_t size = i == 0 ? FALSE_SEGMENT_SIZE : i == 1 ? PROTO_PAGE_BYTES : PROTO_BOARD_BYTES;
        int pipe_fds[2];
        assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
        int fds[] = {
            make_memfd(size, false),
            make_memfd(0, true),
            make_memfd(size - 1, true),
            make_memfd(size - 4096, true),
            make_memfd(size + 1, true),
            make_memfd(size + 4096, true),
            make_memfd(2 * size, true),
            [READ_ONLY] = reopened(make_memfd(size, true), O_RDONLY),
            reopened(make_memfd(size, true), O_PATH),
            open("/dev/zero", O_RDWR | O_CLOEXEC),
            open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
            pipe_fds[0],
            pipe_fds[1],
        };
        for (unsigned f = 0; f < sizeof fds / sizeof *fds; f++) {
            assert_true(fds[f] >= 0);
            memset(&lie, 0, sizeof lie);
            lie.operation = i == 0 ? PROTO_LEASE : i == 1 ? PROTO_PAGE : PROTO_BOARD;
            lie.count = -1;
            lie.fd = fds[f];
            /* A page or a board that cannot be written to is done without. */
            if (!is_noticed("a flaw") && !(i > 0 && f == READ_ONLY))
                fail_msg("flaw %u of %s is believed", f, proto_operation_name(lie.operation));
            close(fds[f]);
        }
    }
}

int main(void) {
    fixture_init();
    const struct CMUnitTest tests[] = {
        TEST(what_is_true_is_believed),
        TEST(every_field_at_its_ends_is_an_error_or_harmless),
        TEST(every_header_at_its_ends_is_an_error_or_harmless),
        TEST(a_wrong_number_of_descriptors_is_an_error),
        TEST(a_descriptor_with_a_flaw_is_an_error),
    };
    int failed = cmocka_run_group_tests_name("client_lies", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
