/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client library with a daemon that shares one buffer in several segments: how its parts are asked for,
 * described and mapped, what is left when a step fails, and each way in which the daemon can lie about them.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/session/lease.h"
#include "gpu/sim/sim.h"
#include "tests/failing_memory.h"
#include "tests/unit/client_fixture.h"
#include "tests/wire_fields.h"

#define SEGMENT_BYTES (2 * MIB)
#define SEGMENTS_MAX  70u /* more than one PARTS names */
#define FIRST_SEGMENT 10u
#define FIRST_OFFSET  MIB
#define LAST_BYTES    (MIB / 2)

/* The daemon's lies and failures. */
enum lie {
    LIE_NONE,
    LIE_GAP,           /* the second part does not begin with its segment */
    LIE_SHORT_PART,    /* the first part does not end with its segment */
    LIE_LONG,          /* the parts are longer than the lease */
    LIE_SHORT,         /* shorter */
    LIE_OTHER_FIRST,   /* the first part is in another segment than the lease */
    LIE_OTHER_OFFSET,  /* or at another place of it */
    LIE_TOTAL,         /* another number of parts than the lease has */
    LIE_FEW,           /* PARTS without an end: the same one each time */
    LIE_SEGMENT_BYTES, /* a description of a segment of another size */
    LIE_HOST_SEGMENT,  /* a segment that cannot be mapped side by side */
    LIE_OTHER_PART,    /* the description of another part's segment */
    LIE_OTHER_LEASE,   /* a description for another lease */
    LIE_NOT_DESCRIBED, /* no description of a segment that was not described */
    LIE_DESCRIBES_ROW, /* a row instead of a part */
    LIE_FIRST_HOST,    /* a lease with parts in host memory */
    LIE_ACQUIRED,      /* an ACQUIRE is answered by a row */
    LIE_LAST = LIE_ACQUIRED,
    FAIL_PARTS,       /* no lie: ASK_PARTS is refused */
    FAIL_DESCRIBE,    /* DESCRIBE is refused */
    FAIL_DESCRIPTOR,  /* the descriptor is of no memory of the driver's */
    LATE_DESCRIPTION, /* the description comes when the client has given up */
};

/* The shared buffer. */
static struct {
    unsigned n_parts;
    bool described[SEGMENTS_MAX];
    uint64_t late; /* the DESCRIBE that was not answered */
    uint64_t closing;
    _Atomic unsigned lie; /* enum lie */
    _Atomic unsigned asks, describes, releases, closed;
} row;

static int descriptors[SEGMENTS_MAX];

static uint64_t row_bytes(void) {
    return (row.n_parts - 1) * SEGMENT_BYTES - FIRST_OFFSET + LAST_BYTES;
}

/* --- the daemon --- */

static struct proto_part part_of(unsigned i) {
    struct proto_part part = {
        .segment = FIRST_SEGMENT + i, .segment_bytes = SEGMENT_BYTES, .size_bytes = SEGMENT_BYTES};

    if (i == 0) {
        part.offset_bytes = FIRST_OFFSET;
        part.size_bytes = SEGMENT_BYTES - FIRST_OFFSET;
    }
    if (i + 1 == row.n_parts)
        part.size_bytes = LAST_BYTES;
    return part;
}

/* Sends a lease in a segment, with its description if the session has not seen it. */
static void send_lease(struct false_session *session, struct proto_message *reply, unsigned i) {
    bool is_hidden = row.lie == LIE_FIRST_HOST || (row.lie == LIE_NOT_DESCRIBED && i > 0);
    bool describes = !row.described[i] && !is_hidden;
    bool is_larger = row.lie == LIE_SEGMENT_BYTES && i > 0;

    reply->header.operation = PROTO_LEASE;
    if (describes) {
        reply->lease.description = (struct proto_segment){.id = FIRST_SEGMENT + i,
                                                          .size_bytes = (is_larger ? 2 : 1) * SEGMENT_BYTES,
                                                          .pool = FALSE_POOL_DEVICE,
                                                          .kind = PROTO_SEGMENT_VMM_FD};
        row.described[i] = true;
        session->unconfirmed = FIRST_SEGMENT + i;
    }
    bool is_flawed = row.lie == FAIL_DESCRIPTOR && i > 0;
    false_send(session, reply, is_flawed ? &daemon_.host_segments[FALSE_POOL_HOST] : &descriptors[i],
               describes);
}

static void send_row(struct false_daemon *daemon, struct false_session *session, uint64_t request) {
    struct proto_message reply = {.header.request = request};
    uint64_t lease = ++daemon->last_lease;
    bool is_longer = row.lie == LIE_HOST_SEGMENT;

    reply.lease = (struct proto_lease){.lease = lease,
                                       .generation = lease * 3,
                                       .segment = FIRST_SEGMENT,
                                       .offset_bytes = FIRST_OFFSET,
                                       .size_bytes = row_bytes() - 1,
                                       .capacity_bytes = row_bytes() + (is_longer ? SEGMENT_BYTES : 0),
                                       .pool = FALSE_POOL_DEVICE,
                                       .parts = row.n_parts};
    if (row.lie == LIE_FIRST_HOST)
        reply.lease.segment = reply.lease.pool = FALSE_POOL_HOST;
    send_lease(session, &reply, 0);
}

static void lie_about_parts(struct proto_parts *parts) {
    switch ((enum lie)row.lie) {
    case LIE_GAP:
        parts->parts[1].offset_bytes = 512;
        parts->parts[1].size_bytes -= 512;
        break;
    case LIE_SHORT_PART:
        parts->parts[0].size_bytes -= 512;
        break;
    case LIE_LONG:
        parts->parts[2].size_bytes += 512;
        break;
    case LIE_SHORT:
        parts->parts[2].size_bytes -= 512;
        break;
    case LIE_OTHER_FIRST:
        parts->parts[0].segment++;
        break;
    case LIE_OTHER_OFFSET:
        parts->parts[0].offset_bytes += 512;
        parts->parts[0].size_bytes -= 512;
        break;
    case LIE_TOTAL:
        parts->total++;
        break;
    case LIE_FEW:
        parts->count = 1;
        memset(&parts->parts[1], 0, sizeof parts->parts - sizeof parts->parts[0]);
        break;
    case LIE_HOST_SEGMENT:
        parts->parts[1].segment = FALSE_POOL_HOST;
        parts->parts[1].segment_bytes = parts->parts[1].size_bytes = FALSE_SEGMENT_SIZE;
        break;
    default:
        break;
    }
}

static void send_parts(struct false_session *session, const struct proto_message *request) {
    struct proto_message reply = {.header = {.operation = PROTO_PARTS, .request = request->header.request}};

    row.asks++;
    if (row.lie == FAIL_PARTS) {
        false_send_error(session, request->header.request, PROTO_E_NO_MEMORY, "no memory for parts");
        return;
    }
    memset(&reply.parts, 0, sizeof reply.parts);
    reply.parts.total = row.n_parts;
    for (unsigned i = request->ask_parts.part; i < row.n_parts && reply.parts.count < PROTO_PARTS_MAX; i++)
        reply.parts.parts[reply.parts.count++] = part_of(i);
    lie_about_parts(&reply.parts);
    false_send(session, &reply, NULL, 0);
}

static void send_description(struct false_session *session, uint64_t request,
                             const struct proto_part_name *name) {
    struct proto_message reply = {.header.request = request};
    unsigned number = name->part + (row.lie == LIE_OTHER_PART);
    struct proto_part part = part_of(number);
    uint64_t more_bytes = row.lie == LIE_DESCRIBES_ROW ? SEGMENT_BYTES : 0;

    reply.lease = (struct proto_lease){.lease = name->lease + (row.lie == LIE_OTHER_LEASE),
                                       .generation = name->generation,
                                       .segment = part.segment,
                                       .offset_bytes = part.offset_bytes,
                                       .size_bytes = part.size_bytes,
                                       .capacity_bytes = part.size_bytes + more_bytes,
                                       .pool = FALSE_POOL_DEVICE,
                                       .parts = row.lie == LIE_DESCRIBES_ROW ? 2 : 0};
    send_lease(session, &reply, number);
}

static bool is_of_row(uint64_t lease, uint64_t generation) {
    return generation == lease * 3;
}

static void send_info(struct false_session *session, const struct proto_message *request) {
    struct proto_message reply = {.header = {.operation = PROTO_INFO, .request = request->header.request}};

    reply.info = (struct proto_info){.segment = FIRST_SEGMENT,
                                     .offset_bytes = FIRST_OFFSET,
                                     .size_bytes = row_bytes() - 1,
                                     .capacity_bytes = row_bytes(),
                                     .pool = FALSE_POOL_DEVICE,
                                     .holders = 2,
                                     .shared = 1,
                                     .parts = row.n_parts + (row.lie == LIE_TOTAL)};
    false_send(session, &reply, NULL, 0);
}

/* The late description goes out before the answer to this RELEASE, which waits for OPENED then. */
static void release(struct false_session *session, const struct proto_message *request) {
    if (row.late != 0) {
        struct proto_part_name name = {
            .lease = request->release.lease, .generation = request->release.generation, .part = 1};
        session->backlog[session->backlog_count++] = *request;
        send_description(session, row.late, &name);
        row.late = 0;
        return;
    }
    row.releases++;
    if (request->header.request != 0) /* else it is one-way */
        false_send_ok(session, request->header.request);
}

static bool serve(struct false_daemon *daemon, struct false_session *session,
                  const struct proto_message *request) {
    struct proto_message reply = {.header.request = request->header.request};

    switch (request->header.operation) {
    case PROTO_ACQUIRE:
        if (request->acquire.pool != FALSE_POOL_DEVICE || row.lie != LIE_ACQUIRED)
            return false;
        send_row(daemon, session, request->header.request);
        return true;
    case PROTO_ATTACH:
        send_row(daemon, session, request->header.request);
        return true;
    case PROTO_ASK_PARTS:
        send_parts(session, request);
        return true;
    case PROTO_DESCRIBE:
        row.describes++;
        if (row.lie == FAIL_DESCRIBE)
            false_send_error(session, request->header.request, PROTO_E_NO_MEMORY, "no memory to describe it");
        else if (row.lie == LATE_DESCRIPTION && row.late == 0)
            row.late = request->header.request;
        else
            send_description(session, request->header.request, &request->describe);
        return true;
    case PROTO_QUERY:
        send_info(session, request);
        return true;
    case PROTO_RELEASE:
        if (session->described[FALSE_POOL_HOST] ||
            !is_of_row(request->release.lease, request->release.generation))
            return false;
        release(session, request);
        return true;
    case PROTO_IDLE:
        reply.header.operation = PROTO_SEGMENTS;
        memset(&reply.segments, 0, sizeof reply.segments);
        reply.segments.count = row.closing != 0;
        reply.segments.ids[0] = row.closing;
        row.closing = 0;
        false_send(session, &reply, NULL, 0);
        return true;
    case PROTO_CLOSED:
        row.described[request->closed.segment - FIRST_SEGMENT] = false;
        row.closed++;
        false_send_ok(session, request->header.request);
        return true;
    default:
        return false;
    }
}

/* --- the tests --- */

/* A client of a fresh daemon that shares a buffer of so many parts. */
static struct gpupool_client *begin(unsigned n_parts, enum lie lie, uint64_t answer_ns) {
    struct gpupool_options options;
    struct gpupool_client *client = NULL;

    row.n_parts = n_parts;
    memset(row.described, 0, sizeof row.described);
    row.late = row.closing = 0;
    row.lie = lie;
    row.asks = row.describes = row.releases = row.closed = 0;
    daemon_.handle = serve;
    false_daemon_run(&daemon_);
    options = options_for(daemon_.path);
    options.answer_timeout_ns = answer_ns;
    assert_ok(gpupool_open(&options, &client));
    return client;
}

/* Ends the client and the daemon, and prepares another one. */
static void finish(struct gpupool_client *client) {
    gpupool_close(client);
    false_daemon_deinit(&daemon_);
    false_daemon_init(&daemon_, &exporter);
}

static int attach(struct gpupool_client *client, struct gpupool_buffer *ret_buffer) {
    const struct gpupool_token token = {{1}};
    return gpupool_attach(client, &token, GPUPOOL_NO_STREAM, 0, ret_buffer);
}

static void assert_there(const struct gpupool_buffer *buffer) {
    volatile uint8_t *bytes = buffer->data;

    assert_int_equal(buffer->size_bytes, row_bytes() - 1);
    assert_int_equal(buffer->capacity_bytes, row_bytes());
    assert_int_equal((uintptr_t)bytes % SEGMENT_BYTES, FIRST_OFFSET);
    bytes[0] = 1;
    bytes[buffer->capacity_bytes - 1] = 2;
}

static void each_segment_is_described_once(void **state) {
    struct gpupool_buffer first, second;
    struct gpupool_buffer_info info;

    (void)state;
    struct gpupool_client *client = begin(3, LIE_NONE, PATIENT_NS);
    assert_ok(attach(client, &first));
    assert_there(&first);
    assert_int_equal(row.describes, 2); /* LEASE describes the first */
    assert_ok(attach(client, &second));
    assert_ptr_equal(second.data, first.data);
    assert_int_equal(row.describes, 2);
    assert_ok(gpupool_query(client, &second, &info));
    assert_ptr_equal(info.buffer.data, first.data);
    assert_ok(gpupool_release(client, &first, NULL));
    assert_there(&second);
    assert_ok(gpupool_release(client, &second, NULL));
    gpupool_close(client);
    assert_int_equal(row.releases, 2); /* before the farewell */
    assert_int_equal(daemon_.byes, 1);
}

static void parts_come_in_several_messages(void **state) {
    struct gpupool_buffer buffer;

    (void)state;
    struct gpupool_client *client = begin(SEGMENTS_MAX, LIE_NONE, PATIENT_NS);
    assert_ok(attach(client, &buffer));
    assert_there(&buffer);
    assert_int_equal(row.asks, 2);
    assert_int_equal(row.describes, SEGMENTS_MAX - 1);
    gpupool_close(client);
}

static void a_lie_ends_the_session(void **state) {
    static const char *const texts[] = {
        [LIE_GAP] = "have a gap",
        [LIE_SHORT_PART] = "have a gap",
        [LIE_LONG] = "longer than the row",
        [LIE_SHORT] = "shorter than the row",
        [LIE_OTHER_FIRST] = "not where the row begins",
        [LIE_OTHER_OFFSET] = "not where the row begins",
        [LIE_TOTAL] = "another number than the row has",
        [LIE_FEW] = "another number than the row has",
        [LIE_SEGMENT_BYTES] = "in another segment than was described",
        [LIE_HOST_SEGMENT] = "in another segment than was described",
        [LIE_OTHER_PART] = "another part than asked for",
        [LIE_OTHER_LEASE] = "another part than asked for",
        [LIE_NOT_DESCRIBED] = "never described",
        [LIE_DESCRIBES_ROW] = "another part than asked for",
        [LIE_FIRST_HOST] = "cannot be mapped side by side",
        [LIE_ACQUIRED] = "was not asked for",
    };
    struct gpupool_buffer host, buffer;
    size_t count;

    (void)state;
    for (enum lie lie = LIE_NONE + 1; lie <= LIE_LAST; lie++) {
        struct gpupool_client *client = begin(3, lie, PATIENT_NS);
        if (lie == LIE_HOST_SEGMENT || lie == LIE_FIRST_HOST)
            assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, GPUPOOL_NOW, 0, &host));
        int r = lie == LIE_ACQUIRED
                    ? gpupool_acquire(client, FALSE_POOL_DEVICE, MIB, NULL, GPUPOOL_NOW, 0, &buffer)
                    : attach(client, &buffer);
        if (r != GPUPOOL_E_PROTOCOL)
            fail_msg("lie %u: %s: %s", lie, gpupool_error_name(r), r != 0 ? gpupool_error_text() : "");
        assert_text_has(texts[lie]);
        assert_error(gpupool_pools(client, NULL, 0, &count), GPUPOOL_E_PROTOCOL);
        assert_true(row.asks <= 1);
        finish(client);
    }
}

static void information_about_another_row_ends_the_session(void **state) {
    struct gpupool_buffer buffer;
    struct gpupool_buffer_info info;

    (void)state;
    struct gpupool_client *client = begin(3, LIE_NONE, PATIENT_NS);
    assert_ok(attach(client, &buffer));
    row.lie = LIE_TOTAL;
    assert_error(gpupool_query(client, &buffer, &info), GPUPOOL_E_PROTOCOL);
    gpupool_close(client);
}

/* The field of PARTS that is changed on its way, and its value. */
static const struct wire_field *lied_field;
static uint64_t lied_value;

static void alter_parts(const struct proto_message *message, struct false_packet *packet) {
    if (message->header.operation == PROTO_PARTS)
        wire_set(lied_field, lied_value, packet->bytes);
}

static void every_field_of_parts_is_an_error_or_harmless(void **state) {
    struct gpupool_buffer buffer;

    (void)state;
    for (unsigned f = 0; f < WIRE_FIELDS; f++)
        for (unsigned i = 0; i < WIRE_EXTREMES && wire_fields[f].operation == PROTO_PARTS; i++) {
            lied_field = &wire_fields[f];
            lied_value = wire_extremes[i];
            false_alter = alter_parts;
            struct gpupool_client *client = begin(3, LIE_NONE, PATIENT_NS);
            int r = attach(client, &buffer);
            if (r == 0)
                assert_there(&buffer);
            else
                assert_int_equal(r, GPUPOOL_E_PROTOCOL);
            finish(client);
            false_alter = NULL;
        }
}

/* An error of one request: nothing is held afterwards, and the next attempt succeeds. */
static void a_refusal_ends_its_request_alone(void **state) {
    struct gpupool_buffer buffer;

    (void)state;
    for (enum lie fault = FAIL_PARTS; fault <= FAIL_DESCRIBE; fault++) {
        struct gpupool_client *client = begin(3, fault, PATIENT_NS);
        assert_error(attach(client, &buffer), GPUPOOL_E_NO_MEMORY);
        assert_text_has("no memory");
        assert_int_equal(row.releases, 1);
        row.lie = LIE_NONE;
        assert_ok(attach(client, &buffer));
        assert_there(&buffer);
        finish(client);
    }
}

static void a_descriptor_that_the_driver_refuses_ends_its_request_alone(void **state) {
    struct gpupool_buffer buffer, host;

    (void)state;
    struct gpupool_client *client = begin(3, FAIL_DESCRIPTOR, PATIENT_NS);
    for (unsigned i = 0; i < 2; i++) { /* it is not sent again */
        assert_error(attach(client, &buffer), GPUPOOL_E_DRIVER);
        assert_text_has("importing its descriptor");
        assert_int_equal(row.releases, i + 1);
    }
    assert_ok(gpupool_acquire(client, FALSE_POOL_HOST, 1, NULL, GPUPOOL_NOW, 0, &host));
    gpupool_close(client);
}

/* The description is entered all the same, and the lease is given back once. */
static void a_description_may_come_late(void **state) {
    struct gpupool_buffer buffer;

    (void)state;
    struct gpupool_client *client = begin(3, LATE_DESCRIPTION, 500 * NS_PER_MS);
    assert_error(attach(client, &buffer), GPUPOOL_E_TIMED_OUT);
    assert_int_equal(row.releases, 1);
    row.lie = LIE_NONE;
    assert_ok(attach(client, &buffer));
    assert_there(&buffer);
    assert_int_equal(row.describes, 2);
    assert_int_equal(row.releases, 1);
    gpupool_close(client);
}

static void an_attach_without_memory_changes_nothing(void **state) {
    struct gpupool_buffer buffer;
    unsigned failures = 0;

    (void)state;
    for (unsigned n = 1, failed = 1; failed; n++) {
        struct gpupool_client *client = begin(3, LIE_NONE, PATIENT_NS);
        memory_fail_nth(n);
        int r = attach(client, &buffer);
        failed = memory_failed();
        memory_fail_nth(0);
        if (r != 0) {
            assert_int_equal(r, GPUPOOL_E_NO_MEMORY);
            failures++;
            assert_ok(attach(client, &buffer));
        }
        assert_there(&buffer);
        assert_ok(gpupool_release(client, &buffer, NULL));
        finish(client);
    }
    assert_true(failures >= 5);
}

/* --- segments that the daemon has closed --- */

static struct gpu table;
static unsigned unmaps_that_fail;

static int unmap_or_fail(unsigned device, void *address, uint64_t size_bytes) {
    const struct gpu *real = NULL;

    if (unmaps_that_fail > 0) {
        unmaps_that_fail--;
        return GPU_ERROR_UNKNOWN;
    }
    assert_int_equal(gpu_sim(NULL, &real), 0);
    return real->vmm_unmap(device, address, size_bytes);
}

static void close_segment(struct gpupool_client *client, uint64_t id) {
    bool any = false;

    row.closing = id;
    assert_ok(lease_close_idle(&client->session, FALSE_POOL_DEVICE, 0, false, &any));
    assert_true(any);
}

static void a_segment_that_is_closed_ends_its_rows(void **state) {
    struct gpupool_buffer buffer;

    (void)state;
    struct gpupool_client *client = begin(3, LIE_NONE, PATIENT_NS);
    assert_ok(attach(client, &buffer));
    assert_ok(gpupool_release(client, &buffer, NULL));
    assert_int_equal(client->session.rows.n_idle, 1);
    close_segment(client, FIRST_SEGMENT + 1);
    assert_int_equal(row.closed, 1);
    assert_int_equal(client->session.rows.n_idle, 0);
    assert_ok(attach(client, &buffer)); /* it is described again, alone */
    assert_there(&buffer);
    assert_int_equal(row.describes, 3);
    gpupool_close(client);
    assert_int_equal(daemon_.byes, 1);
}

/* The lease of a row in use is not the daemon's to end: the buffer is lost, and nothing else. */
static void a_row_that_is_closed_in_use_is_lost(void **state) {
    struct gpupool_buffer buffer;
    struct gpupool_buffer_info info;

    (void)state;
    struct gpupool_client *client = begin(3, LIE_NONE, PATIENT_NS);
    assert_ok(attach(client, &buffer));
    close_segment(client, FIRST_SEGMENT + 2);
    assert_ok(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    assert_ok(attach(client, &buffer));
    close_segment(client, FIRST_SEGMENT);
    assert_error(gpupool_query(client, &buffer, &info), GPUPOOL_E_PROTOCOL);
    gpupool_close(client);
}

/* The addresses of such a row are not free, so it stays apart until the client closes. The segment that is to
 * be closed is tried once more. */
static void a_row_that_cannot_be_unmapped_is_not_used_again(void **state) {
    struct gpupool_buffer buffer;

    (void)state;
    for (unsigned failing = 1; failing <= 3; failing++) {
        struct gpupool_client *client = begin(3, LIE_NONE, PATIENT_NS);
        (void)table_over(client, &table);
        table.vmm_unmap = unmap_or_fail;
        assert_ok(attach(client, &buffer));
        const void *memory = buffer.data;
        assert_ok(gpupool_release(client, &buffer, NULL));
        unmaps_that_fail = failing;
        close_segment(client, FIRST_SEGMENT);
        assert_int_equal(row.closed, 1);
        assert_false(list_is_empty(&client->session.rows.stuck));
        assert_ok(attach(client, &buffer));
        assert_there(&buffer);
        assert_ptr_not_equal(buffer.data, memory);
        finish(client);
    }
}

static void make_segments(void) {
    const struct gpu *gpu;
    uint64_t handle;

    if (gpu_sim(NULL, &gpu) != 0)
        abort();
    for (unsigned i = 0; i < SEGMENTS_MAX; i++)
        if (gpu->vmm_create(0, SEGMENT_BYTES, &handle) != 0 ||
            gpu->vmm_export(0, handle, &descriptors[i]) != 0)
            abort();
}

int main(void) {
    fixture_init();
    make_segments();
    const struct CMUnitTest tests[] = {
        TEST(each_segment_is_described_once),
        TEST(parts_come_in_several_messages),
        TEST(a_lie_ends_the_session),
        TEST(information_about_another_row_ends_the_session),
        TEST(every_field_of_parts_is_an_error_or_harmless),
        TEST(a_refusal_ends_its_request_alone),
        TEST(a_descriptor_that_the_driver_refuses_ends_its_request_alone),
        TEST(a_description_may_come_late),
        TEST(an_attach_without_memory_changes_nothing),
        TEST(a_segment_that_is_closed_ends_its_rows),
        TEST(a_row_that_is_closed_in_use_is_lost),
        TEST(a_row_that_cannot_be_unmapped_is_not_used_again),
    };
    int failed = cmocka_run_group_tests_name("client_rows", tests, NULL, NULL);
    fixture_deinit();
    return failed;
}
