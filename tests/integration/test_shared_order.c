/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers that processes share in stream order: a reader's stream waits for the writer's work, and
 * the writer's stream, before it writes again, waits for the readers' work. Streams stand at gates that the
 * test opens, so that what must not happen before has all the time to happen. Two clients of this process are
 * two sessions to the daemon. Another process plays the one that dies.
 */
#include <signal.h>
#include <sys/socket.h>

#include "client/session/lease.h"
#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define SIZE (64 * KIB)

static const unsigned kinds[] = {GPUPOOL_POOL_DEVICE, GPUPOOL_POOL_HOST};

/* A client with a stream, and memory to see what is in a buffer: the contents are copied to device memory in
 * stream order, and from there to host memory afterwards. (CUDA copies from host to host memory at once.) */
struct side {
    struct gpupool_client *client;
    void *stream;
    struct gpupool_buffer kept, seen;
};

static struct side side_open(void) {
    struct side side;

    side.client = open_cached_with_stream(&side.stream);
    side.kept = acquire(side.client, GPUPOOL_POOL_DEVICE, SIZE, side.stream);
    side.seen = acquire(side.client, GPUPOOL_POOL_HOST, SIZE, GPUPOOL_NO_STREAM);
    return side;
}

static void side_close(struct side *side) {
    MUST(gpupool_release(side->client, &side->seen, GPUPOOL_NO_STREAM));
    MUST(gpupool_release(side->client, &side->kept, side->stream));
    MUST(gpupool_trim(side->client, NULL));
    MUST(gpupool_stream_destroy(side->client, 0, side->stream));
    gpupool_close(side->client);
}

static void set(const struct side *side, const struct gpupool_buffer *buffer, int byte, void *stream) {
    MUST(gpupool_set(side->client, 0, buffer->data, byte, SIZE, stream));
}

/* Copies what is in a buffer, in stream order. */
static void look(const struct side *side, const struct gpupool_buffer *buffer, void *stream) {
    MUST(gpupool_copy(side->client, 0, side->kept.data, buffer->data, SIZE, stream));
}

/* The stream that it was copied on is through. */
static void expect_seen(const struct side *side, int byte) {
    const uint8_t *seen = side->seen.data;

    MUST(gpupool_copy(side->client, 0, side->seen.data, side->kept.data, SIZE, side->stream));
    MUST(gpupool_stream_synchronize(side->client, 0, side->stream));
    for (unsigned i = 0; i < SIZE; i++)
        if (seen[i] != byte)
            fail_msg("byte %u is %d, not %d", i, seen[i], byte);
}

/* Requests that a client sent so far. */
static uint64_t requests_of(const struct side *side) {
    return side->client->session.connection.last_id;
}

static void a_reader_waits_for_the_writer(void **state) {
    (void)state;
    for (unsigned kind = 0; kind < 2; kind++) {
        struct side writer = side_open(), reader = side_open();
        struct gpupool_buffer buffer = acquire(writer.client, kinds[kind], SIZE, NULL), attached;
        struct gpupool_token token;
        struct gate gate;

        gate_init(&gate, writer.client);
        gate_close(&gate);
        set(&writer, &buffer, 7, gate.stream);
        MUST(gpupool_share(writer.client, &buffer, gate.stream, &token));
        MUST(gpupool_attach(reader.client, &token, reader.stream, 0, &attached));
        look(&reader, &attached, reader.stream);
        for (unsigned i = 0; i < 5; i++)
            test_pause();
        assert_false(gate_was_passed(&gate)); /* no call waited */
        assert_int_equal(reader.client->session.devices.gpu->stream_query(0, reader.stream),
                         GPU_ERROR_NOT_READY);
        gate_open(&gate);
        MUST(gpupool_stream_synchronize(reader.client, 0, reader.stream));
        expect_seen(&reader, 7);
        MUST(gpupool_release(reader.client, &attached, reader.stream));
        MUST(gpupool_release(writer.client, &buffer, gate.stream));
        gate_deinit(&gate);
        side_close(&reader);
        side_close(&writer);
    }
}

static void without_a_stream_the_reader_itself_waits(void **state) {
    struct side writer = side_open(), reader = side_open();
    struct gpupool_buffer buffer = acquire(writer.client, GPUPOOL_POOL_HOST, SIZE, NULL), attached;
    struct gpupool_token token;
    struct gate gate;
    pthread_t opener;

    (void)state;
    gate_init(&gate, writer.client);
    gate_close(&gate);
    set(&writer, &buffer, 9, gate.stream);
    MUST(gpupool_share(writer.client, &buffer, gate.stream, &token));
    assert_int_equal(pthread_create(&opener, NULL, gate_open_late, &gate), 0);
    MUST(gpupool_attach(reader.client, &token, GPUPOOL_NO_STREAM, 0, &attached));
    assert_true(gate_was_passed(&gate));
    look(&reader, &attached, reader.stream);
    expect_seen(&reader, 9);
    pthread_join(opener, NULL);
    MUST(gpupool_release(reader.client, &attached, GPUPOOL_NO_STREAM));
    MUST(gpupool_release(writer.client, &buffer, gate.stream));
    gate_deinit(&gate);
    side_close(&reader);
    side_close(&writer);
}

static void a_reader_that_waits_itself_gives_up_in_time(void **state) {
    struct side writer = side_open();
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *reader;
    struct gpupool_buffer buffer = acquire(writer.client, GPUPOOL_POOL_DEVICE, SIZE, NULL), attached;
    struct gpupool_token token;
    struct gate gate;

    (void)state;
    options.socket = daemon_.socket;
    options.alloc_timeout_ns = NS_PER_MS;
    MUST(gpupool_open(&options, &reader));
    gate_init(&gate, writer.client);
    gate_close(&gate);
    MUST(gpupool_share(writer.client, &buffer, gate.stream, &token));
    assert_int_equal(gpupool_attach(reader, &token, GPUPOOL_NO_STREAM, 0, &attached), GPUPOOL_E_TIMED_OUT);
    gate_open(&gate);
    MUST(gpupool_stream_synchronize(writer.client, 0, gate.stream));
    MUST(gpupool_reuse(writer.client, &buffer, gate.stream)); /* nothing is left of it */
    MUST(gpupool_release(writer.client, &buffer, gate.stream));
    gate_deinit(&gate);
    gpupool_close(reader);
    side_close(&writer);
}

static void a_writer_waits_for_those_who_read(void **state) {
    (void)state;
    for (unsigned kind = 0; kind < 2; kind++) {
        struct side writer = side_open(), reader = side_open();
        struct gpupool_buffer buffer = acquire(writer.client, kinds[kind], SIZE, NULL), attached;
        struct gpupool_token token;
        struct gate gate;

        gate_init(&gate, reader.client);
        set(&writer, &buffer, 1, writer.stream);
        MUST(gpupool_share(writer.client, &buffer, writer.stream, &token));
        gate_close(&gate);
        MUST(gpupool_attach(reader.client, &token, gate.stream, 0, &attached));
        assert_int_equal(gpupool_reuse(writer.client, &buffer, writer.stream), GPUPOOL_E_SHARED);
        look(&reader, &attached, gate.stream);
        MUST(gpupool_release(reader.client, &attached, gate.stream));
        MUST(gpupool_reuse(writer.client, &buffer, writer.stream));
        set(&writer, &buffer, 2, writer.stream);
        look(&writer, &buffer, writer.stream);
        for (unsigned i = 0; i < 5; i++)
            test_pause();
        assert_false(gate_was_passed(&gate));
        gate_open(&gate);
        MUST(gpupool_stream_synchronize(reader.client, 0, gate.stream));
        MUST(gpupool_stream_synchronize(writer.client, 0, writer.stream));
        expect_seen(&reader, 1);
        expect_seen(&writer, 2);
        MUST(gpupool_release(writer.client, &buffer, writer.stream));
        gate_deinit(&gate);
        side_close(&reader);
        side_close(&writer);
    }
}

/* It leaves a fence behind all its streams, which others do not see: the daemon tells when it is ready. */
static void a_writer_waits_for_one_who_read_with_several_streams(void **state) {
    struct side writer = side_open(), reader = side_open();
    struct gpupool_buffer buffer = acquire(writer.client, GPUPOOL_POOL_DEVICE, SIZE, NULL), attached;
    struct gpupool_token token;
    struct gate gate;
    pthread_t opener;

    (void)state;
    gate_init(&gate, reader.client);
    MUST(gpupool_share(writer.client, &buffer, writer.stream, &token));
    MUST(gpupool_attach(reader.client, &token, reader.stream, 0, &attached));
    gate_close(&gate);
    MUST(gpupool_record_stream(reader.client, &attached, gate.stream));
    MUST(gpupool_release(reader.client, &attached, reader.stream));
    assert_int_equal(pthread_create(&opener, NULL, gate_open_late, &gate), 0);
    MUST(gpupool_reuse(writer.client, &buffer, writer.stream));
    assert_true(gate_was_passed(&gate));
    pthread_join(opener, NULL);
    MUST(gpupool_release(writer.client, &buffer, writer.stream));
    gate_deinit(&gate);
    side_close(&reader);
    side_close(&writer);
}

static void a_buffer_that_was_never_shared_can_be_written_at_once(void **state) {
    struct side side = side_open();
    struct gpupool_buffer buffer = acquire(side.client, GPUPOOL_POOL_DEVICE, SIZE, side.stream), stale;
    uint64_t before = requests_of(&side);

    (void)state;
    MUST(gpupool_reuse(side.client, &buffer, side.stream));
    assert_int_equal(requests_of(&side), before);
    stale = buffer;
    MUST(gpupool_release(side.client, &buffer, side.stream));
    assert_int_equal(gpupool_reuse(side.client, &stale, side.stream), GPUPOOL_E_STALE);
    assert_int_equal(gpupool_reuse(side.client, NULL, side.stream), GPUPOOL_E_INVALID);
    side_close(&side);
}

/* Buffers that a reader releases without an answer, and what the writer is told of each. */
#define CROWD PROTO_UNHEARD_MAX
struct crowd {
    struct side writer;
    struct gpupool_buffer buffers[CROWD];
    int results[CROWD];
};

/* Once both have the board and the segment. */
static void a_turn_takes_few_messages(void **state) {
    struct side writer = side_open(), reader = side_open();
    struct gpupool_buffer buffer = acquire(writer.client, GPUPOOL_POOL_DEVICE, SIZE, NULL), attached;
    struct gpupool_token token;

    (void)state;
    for (unsigned turn = 0; turn < 3; turn++) {
        uint64_t written = requests_of(&writer), read = requests_of(&reader);
        set(&writer, &buffer, (int)turn, writer.stream);
        MUST(gpupool_share(writer.client, &buffer, writer.stream, &token));
        assert_true(turn == 0 || requests_of(&writer) == written); /* the name is known */
        MUST(gpupool_attach(reader.client, &token, reader.stream, 0, &attached));
        assert_true(turn == 0 || requests_of(&reader) == read + 1);
        look(&reader, &attached, reader.stream);
        MUST(gpupool_release(reader.client, &attached, reader.stream));
        assert_true(turn == 0 || requests_of(&reader) == read + 1); /* nothing is answered */
        MUST(gpupool_reuse(writer.client, &buffer, writer.stream));
        assert_true(turn == 0 || requests_of(&writer) <= written + PROTO_HOLDERS_ASKS);
        MUST(gpupool_stream_synchronize(reader.client, 0, reader.stream));
        expect_seen(&reader, (int)turn);
    }
    MUST(gpupool_release(writer.client, &buffer, writer.stream));
    side_close(&reader);
    side_close(&writer);
}

static void *reuse_all(void *argument) {
    struct crowd *crowd = argument;
    for (unsigned i = 0; i < CROWD; i++)
        crowd->results[i] = gpupool_reuse(crowd->writer.client, &crowd->buffers[i], crowd->writer.stream);
    return NULL;
}

/* The daemon stands still while a reader gives many buffers back and the writer asks about the first one: the
 * question and the releases lie in their sockets together. */
static void releases_that_were_sent_before_a_question_are_seen(void **state) {
    struct side reader = side_open();
    struct crowd crowd = {.writer = side_open()};
    struct gpupool_buffer attached[CROWD];
    struct gpupool_token token;
    pthread_t asking;

    (void)state;
    for (unsigned round = 0; round < 4; round++) {
        for (unsigned i = 0; i < CROWD; i++) {
            crowd.buffers[i] = acquire(crowd.writer.client, GPUPOOL_POOL_DEVICE, SIZE, crowd.writer.stream);
            MUST(gpupool_share(crowd.writer.client, &crowd.buffers[i], crowd.writer.stream, &token));
            MUST(gpupool_attach(reader.client, &token, reader.stream, 0, &attached[i]));
        }
        assert_int_equal(connection_unheard(&reader.client->session.connection),
                         0); /* attaching was answered */
        assert_int_equal(kill(daemon_.pid, SIGSTOP), 0);
        for (unsigned i = CROWD; i-- > 0;)
            MUST(gpupool_release(reader.client, &attached[i], reader.stream));
        assert_int_equal(pthread_create(&asking, NULL, reuse_all, &crowd), 0);
        for (unsigned i = 0; i < 3; i++)
            test_pause();
        assert_int_equal(kill(daemon_.pid, SIGCONT), 0);
        assert_int_equal(pthread_join(asking, NULL), 0);
        for (unsigned i = 0; i < CROWD; i++) {
            assert_int_equal(crowd.results[i], 0);
            MUST(gpupool_release(crowd.writer.client, &crowd.buffers[i], crowd.writer.stream));
        }
    }
    side_close(&reader);
    side_close(&crowd.writer);
}

static void bytes_that_are_no_token_are_refused(void **state) {
    struct side side = side_open();
    struct gpupool_buffer attached;
    struct gpupool_token token;

    (void)state;
    memset(&token, 0, sizeof token);
    assert_int_equal(gpupool_attach(side.client, &token, side.stream, 0, &attached), GPUPOOL_E_NO_TOKEN);
    assert_int_equal(gpupool_attach(side.client, &token, GPUPOOL_OWN_STREAM, 0, &attached),
                     GPUPOOL_E_INVALID);
    for (unsigned at = GPUPOOL_TOKEN_NAME_BYTES; at < sizeof token.bytes; at++) {
        memset(&token, 0, sizeof token);
        token.bytes[at] = 0xff;
        assert_int_equal(gpupool_attach(side.client, &token, side.stream, 0, &attached), GPUPOOL_E_NO_TOKEN);
    }
    side_close(&side);
}

/* A token of a buffer that is there, with another fence than the one that was left. */
static void fences_that_no_process_left_are_refused(void **state) {
    struct side writer = side_open(), reader = side_open();
    struct gpupool_buffer buffer = acquire(writer.client, GPUPOOL_POOL_DEVICE, SIZE, writer.stream), attached;
    struct gpupool_token token;
    struct shared_fence fence;
    struct proto_token name;

    (void)state;
    MUST(gpupool_share(writer.client, &buffer, writer.stream, &token));
    MUST(gpupool_attach(reader.client, &token, reader.stream, 0, &attached));
    MUST(gpupool_release(reader.client, &attached, reader.stream));
    assert_true(token_read(&token, &name, &fence));
    const struct proto_board_fence forged[] = {
        {fence.fence.slot, fence.fence.word, fence.fence.value + (UINT64_C(1) << PROTO_BOARD_EPOCH_BITS)},
        {PROTO_BOARD_SLOTS - 1, 0, UINT64_C(1) << PROTO_BOARD_EPOCH_BITS},
        {reader.client->session.board.slot, 0, (UINT64_C(1) << PROTO_BOARD_EPOCH_BITS) + 1000},
        {reader.client->session.board.slot, PROTO_BOARD_WORDS - 1, UINT64_C(1) << PROTO_BOARD_EPOCH_BITS},
    };
    for (unsigned i = 0; i < sizeof forged / sizeof *forged; i++) {
        fence.fence = forged[i];
        token_make(&name, &fence, &token);
        assert_int_equal(gpupool_attach(reader.client, &token, reader.stream, 0, &attached),
                         GPUPOOL_E_NO_TOKEN);
    }
    MUST(gpupool_reuse(writer.client, &buffer, writer.stream)); /* nothing was taken */
    assert_int_equal(gpupool_share(writer.client, &buffer, GPUPOOL_OWN_STREAM, &token), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_reuse(writer.client, &buffer, GPUPOOL_OWN_STREAM), GPUPOOL_E_INVALID);
    MUST(gpupool_release(writer.client, &buffer, writer.stream));
    side_close(&reader);
    side_close(&writer);
}

/* Readers are told the size that the buffer has when it is shared. */
static void a_buffer_that_shrank_is_shared_with_its_new_size(void **state) {
    struct side writer = side_open(), reader = side_open();
    struct gpupool_buffer buffer = acquire(writer.client, GPUPOOL_POOL_DEVICE, 1000, writer.stream), attached;
    struct gpupool_token token;

    (void)state;
    MUST(gpupool_share(writer.client, &buffer, writer.stream, &token));
    MUST(gpupool_shrink(writer.client, &buffer, 900, writer.stream)); /* nothing to give back */
    MUST(gpupool_share(writer.client, &buffer, writer.stream, &token));
    MUST(gpupool_attach(reader.client, &token, reader.stream, 0, &attached));
    assert_int_equal(attached.size_bytes, 900);
    MUST(gpupool_release(reader.client, &attached, reader.stream));
    MUST(gpupool_release(writer.client, &buffer, writer.stream));
    side_close(&reader);
    side_close(&writer);
}

/* --- ends --- */

/* The worker's message about the buffer that it shares. */
struct told {
    struct gpupool_token now, later; /* without work before it, and behind work that never ends */
};

/* Shares a buffer, and waits for its end. */
static int share_and_wait(int fd, const char *argument) {
    struct gpupool_client *client = NULL;
    MUST(gpupool_open(NULL, &client));
    struct gpupool_buffer buffer = acquire(client, GPUPOOL_POOL_DEVICE, SIZE, NULL);
    struct told told;
    struct gate gate;
    char byte;

    (void)argument;
    gate_init(&gate, client);
    MUST(gpupool_set(client, 0, buffer.data, 3, SIZE, gate.stream));
    MUST(gpupool_share(client, &buffer, gate.stream, &told.now));
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    gate_close(&gate);
    MUST(gpupool_share(client, &buffer, gate.stream, &told.later));
    if (send(fd, &told, sizeof told, 0) != (ssize_t)sizeof told)
        return 1;
    if (recv(fd, &byte, 1, 0) != 1) /* to be killed, or to leave well */
        return 1;
    gate_open(&gate);
    MUST(gpupool_stream_synchronize(client, 0, gate.stream));
    MUST(gpupool_release(client, &buffer, gate.stream));
    gate_deinit(&gate);
    gpupool_close(client);
    return 0;
}

static const struct puppet_role roles[] = {{"share", share_and_wait}, {NULL, NULL}};

static struct told start_worker(struct puppet *worker) {
    struct told told;

    puppet_start_role(worker, &daemon_, "share", "");
    assert_int_equal(recv(worker->fd, &told, sizeof told, 0), sizeof told);
    return told;
}

static void a_reader_hears_of_a_writer_that_died(void **state) {
    struct side reader = side_open();
    struct gpupool_buffer first, second, third;
    struct puppet worker;
    struct told told = start_worker(&worker);

    (void)state;
    MUST(gpupool_attach(reader.client, &told.now, reader.stream, 0, &first));
    MUST(gpupool_attach(reader.client, &told.later, reader.stream, 0, &second));
    look(&reader, &second, reader.stream);
    puppet_kill(&worker);
    /* The stream goes on when the worker's work is known to be over. The next call says what happened, once.
     */
    assert_int_equal(gpupool_stream_synchronize(reader.client, 0, reader.stream), GPUPOOL_E_LOST);
    assert_non_null(strstr(gpupool_error_text(), "ended before its GPU work"));
    MUST(gpupool_stream_synchronize(reader.client, 0, reader.stream));
    expect_seen(&reader, 3);
    /* Work that was done before is not lost. Of a buffer whose work is lost nothing is taken. */
    MUST(gpupool_attach(reader.client, &told.now, reader.stream, 0, &third));
    MUST(gpupool_release(reader.client, &third, reader.stream));
    assert_int_equal(gpupool_attach(reader.client, &told.later, reader.stream, 0, &third), GPUPOOL_E_LOST);
    MUST(gpupool_release(reader.client, &first, reader.stream));
    MUST(gpupool_release(reader.client, &second, reader.stream));
    side_close(&reader);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
}

/* It released the buffer before the worker died. */
static void a_reader_hears_of_it_by_any_call_that_looks(void **state) {
    (void)state;
    for (unsigned call = 0; call < 3; call++) {
        struct side reader = side_open();
        struct gpupool_buffer buffer = acquire(reader.client, GPUPOOL_POOL_DEVICE, SIZE, reader.stream), lost;
        struct gpupool_buffer_info info;
        struct gpupool_token token;
        struct puppet worker;
        struct told told = start_worker(&worker);
        int r;

        MUST(gpupool_share(reader.client, &buffer, GPUPOOL_NO_STREAM, &token));
        for (unsigned i = 0; i < 3; i++) { /* it is said once for them all */
            MUST(gpupool_attach(reader.client, &told.later, reader.stream, 0, &lost));
            MUST(gpupool_release(reader.client, &lost, reader.stream));
        }
        puppet_kill(&worker);
        assert_int_equal(reader.client->session.devices.gpu->stream_synchronize(0, reader.stream), 0);
        r = call == 0   ? gpupool_share(reader.client, &buffer, reader.stream, &token)
            : call == 1 ? gpupool_query(reader.client, &buffer, &info)
                        : gpupool_reuse(reader.client, &buffer, reader.stream);
        assert_int_equal(r, GPUPOOL_E_LOST);
        MUST(gpupool_query(reader.client, &buffer, &info));
        MUST(gpupool_release(reader.client, &buffer, reader.stream));
        side_close(&reader);
        WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
    }
}

/* All its work was done: nothing of it is lost, however late a reader comes. */
static void a_writer_that_left_well_lost_nothing(void **state) {
    struct side reader = side_open();
    struct gpupool_buffer first, second;
    struct puppet worker;
    struct told told = start_worker(&worker);

    (void)state;
    MUST(gpupool_attach(reader.client, &told.later, reader.stream, 0, &first));
    assert_int_equal(send(worker.fd, "", 1, 0), 1);
    int status;
    assert_int_equal(waitpid(worker.pid, &status, 0), worker.pid);
    assert_int_equal(status, 0);
    close(worker.fd);
    MUST(gpupool_stream_synchronize(reader.client, 0, reader.stream));
    MUST(gpupool_attach(reader.client, &told.later, reader.stream, 0, &second));
    MUST(gpupool_release(reader.client, &second, reader.stream));
    MUST(gpupool_release(reader.client, &first, reader.stream));
    side_close(&reader);
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0);
}

/* The memory's earlier user is this process itself, whose work is still pending. */
static void what_its_process_did_not_use_goes_behind_the_stream_it_was_acquired_on(void **state) {
    struct side side = side_open();
    struct gate gate;
    struct gpupool_buffer buffer;
    struct gpupool_token token;

    (void)state;
    gate_init(&gate, side.client);
    buffer = acquire(side.client, GPUPOOL_POOL_DEVICE, SIZE, gate.stream);
    void *memory = buffer.data;
    gate_close(&gate);
    set(&side, &buffer, 1, gate.stream);
    MUST(gpupool_release(side.client, &buffer, gate.stream));
    buffer = acquire(side.client, GPUPOOL_POOL_DEVICE, SIZE, gate.stream);
    assert_ptr_equal(buffer.data, memory);
    MUST(gpupool_share(side.client, &buffer, GPUPOOL_NO_STREAM, &token));
    MUST(gpupool_release(side.client, &buffer, GPUPOOL_NO_STREAM));
    WAIT_UNTIL(daemon_sum(&daemon_, "fenced_bytes") == SIZE);
    for (unsigned i = 0; i < 5; i++)
        test_pause();
    assert_int_equal(daemon_sum(&daemon_, "fenced_bytes"), SIZE);
    gate_open(&gate);
    WAIT_UNTIL(daemon_sum(&daemon_, "fenced_bytes") == 0);
    MUST(gpupool_stream_synchronize(side.client, 0, gate.stream));
    MUST(gpupool_trim(side.client, NULL));
    gate_deinit(&gate);
    side_close(&side);
}

/* More sessions come and go than a board has slots. */
static void slots_are_used_again(void **state) {
    struct side writer = side_open();
    struct gpupool_buffer buffer = acquire(writer.client, GPUPOOL_POOL_DEVICE, SIZE, writer.stream);
    struct gpupool_token token;
    uint32_t first_slot = 0;
    bool again = false;

    (void)state;
    MUST(gpupool_share(writer.client, &buffer, writer.stream, &token));
    for (unsigned i = 0; i < PROTO_BOARD_SLOTS + 8; i++) {
        struct gpupool_client *reader = open_client(&daemon_, GPUPOOL_OPEN_NO_THREAD, GPUPOOL_FOREVER);
        struct gpupool_buffer attached;
        MUST(gpupool_attach(reader, &token, GPUPOOL_NO_STREAM, 0, &attached));
        uint32_t slot = reader->session.board.slot;
        first_slot = i == 0 ? slot : first_slot;
        assert_true(slot != writer.client->session.board.slot);
        again = again || (i > 0 && slot == first_slot);
        assert_true(i >= PROTO_BOARD_SLOTS - 2 || !again); /* the one that is free for longest */
        MUST(gpupool_release(reader, &attached, GPUPOOL_NO_STREAM));
        gpupool_close(reader);
    }
    assert_true(again);
    MUST(gpupool_release(writer.client, &buffer, writer.stream));
    side_close(&writer);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reader_waits_for_the_writer),
        cmocka_unit_test(without_a_stream_the_reader_itself_waits),
        cmocka_unit_test(a_reader_that_waits_itself_gives_up_in_time),
        cmocka_unit_test(a_writer_waits_for_those_who_read),
        cmocka_unit_test(a_writer_waits_for_one_who_read_with_several_streams),
        cmocka_unit_test(a_buffer_that_was_never_shared_can_be_written_at_once),
        cmocka_unit_test(a_turn_takes_few_messages),
        cmocka_unit_test(releases_that_were_sent_before_a_question_are_seen),
        cmocka_unit_test(bytes_that_are_no_token_are_refused),
        cmocka_unit_test(fences_that_no_process_left_are_refused),
        cmocka_unit_test(a_buffer_that_shrank_is_shared_with_its_new_size),
        cmocka_unit_test(a_reader_hears_of_a_writer_that_died),
        cmocka_unit_test(a_reader_hears_of_it_by_any_call_that_looks),
        cmocka_unit_test(a_writer_that_left_well_lost_nothing),
        cmocka_unit_test(what_its_process_did_not_use_goes_behind_the_stream_it_was_acquired_on),
        cmocka_unit_test(slots_are_used_again),
    };
    int r = puppet_main(argc, argv, roles);
    return r >= 0 ? r : cmocka_run_group_tests(tests, start_daemon, stop_daemon);
}
