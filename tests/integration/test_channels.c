/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Channels: frames from one process to others.
 */
#include <gpupool/channel.h>
#include <gpupool/names.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "tests/integration/cache_fixture.h"
#include "tests/integration/gate.h"

#define SIZE (64 * KIB)

static const unsigned kinds[] = {GPUPOOL_POOL_DEVICE, GPUPOOL_POOL_HOST};

static void make(struct gpupool_client *client, const char *name, unsigned kind, uint32_t slots,
                 uint32_t consumers, uint32_t policy) {
    struct gpupool_channel_options options = GPUPOOL_CHANNEL_OPTIONS_INIT;

    options.pool = pool_of(client, kind);
    options.slot_bytes = SIZE;
    options.slots = slots;
    options.consumers = consumers;
    options.policy = policy;
    options.metadata_bytes = 64;
    MUST(gpupool_channel_make(client, name, &options));
}

static struct gpupool_channel *join(struct gpupool_client *client, const char *name, uint32_t place) {
    struct gpupool_channel *channel = NULL;

    MUST(gpupool_channel_join(client, name, place, TEST_WAIT_NS, &channel));
    return channel;
}

/* The simulated GPU's memory is memory of the process. */
static void send_byte(struct gpupool_channel *channel, int byte, uint64_t timeout_ns) {
    struct gpupool_frame frame;

    MUST(gpupool_channel_loan(channel, GPUPOOL_NO_STREAM, timeout_ns, &frame));
    assert_int_equal(frame.size_bytes, SIZE);
    memset(frame.data, byte, SIZE / 2);
    MUST(gpupool_channel_send(channel, &frame, SIZE / 2, &byte, sizeof byte, GPUPOOL_NO_STREAM));
}

static struct gpupool_frame expect_byte(struct gpupool_channel *channel, int byte, uint64_t timeout_ns) {
    struct gpupool_frame frame;
    int metadata;

    MUST(gpupool_channel_receive(channel, GPUPOOL_NO_STREAM, timeout_ns, &frame));
    assert_int_equal(frame.size_bytes, SIZE / 2);
    assert_int_equal(frame.metadata_bytes, sizeof metadata);
    memcpy(&metadata, frame.metadata, sizeof metadata);
    assert_int_equal(metadata, byte);
    for (unsigned i = 0; i < SIZE / 2; i++)
        assert_int_equal(((const uint8_t *)frame.data)[i], (uint8_t)byte);
    return frame;
}

static void receive_byte(struct gpupool_channel *channel, int byte) {
    struct gpupool_frame frame = expect_byte(channel, byte, TEST_WAIT_NS);
    MUST(gpupool_channel_release(channel, &frame, GPUPOOL_NO_STREAM));
}

static void expect_nothing_leased(void) {
    WAIT_UNTIL(daemon_sum(&daemon_, "leased_bytes") == 0 && daemon_sum(&daemon_, "quarantined_bytes") == 0);
}

static void frames_reach_each_consumer_in_order(void **state) {
    (void)state;
    for (unsigned kind = 0; kind < 2; kind++) {
        struct gpupool_client *producer = open_cached(), *consumers[3];
        struct gpupool_channel *to, *from[3];
        struct gpupool_frame frame;

        make(producer, "frames", kinds[kind], 4, 3, GPUPOOL_CHANNEL_WAIT);
        to = join(producer, "frames", GPUPOOL_CHANNEL_PRODUCER);
        for (int i = 0; i < 4; i++) /* before anybody is there */
            send_byte(to, i, GPUPOOL_NOW);
        assert_int_equal(gpupool_channel_loan(to, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame),
                         GPUPOOL_E_EXHAUSTED);
        assert_non_null(strstr(gpupool_error_text(), "in which no process was yet"));
        for (unsigned k = 0; k < 3; k++) {
            consumers[k] = open_cached();
            from[k] = join(consumers[k], "frames", GPUPOOL_CHANNEL_ANY_CONSUMER);
        }
        for (int round = 0; round < 50; round++) {
            for (unsigned k = 0; k < 3; k++)
                receive_byte(from[k], round);
            send_byte(to, round + 4, TEST_WAIT_NS);
        }
        for (unsigned k = 0; k < 3; k++) {
            for (int i = 50; i < 54; i++)
                receive_byte(from[k], i);
            assert_int_equal(gpupool_channel_receive(from[k], GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame),
                             GPUPOOL_E_TIMED_OUT);
        }
        MUST(gpupool_channel_leave(to));
        for (unsigned k = 0; k < 3; k++) {
            assert_int_equal(gpupool_channel_receive(from[k], GPUPOOL_NO_STREAM, TEST_WAIT_NS, &frame),
                             GPUPOOL_E_ENDED);
            MUST(gpupool_channel_leave(from[k]));
            gpupool_close(consumers[k]);
        }
        gpupool_close(producer);
        expect_nothing_leased();
    }
}

/* The streams wait for each other, and no call does. */
static void device_frames_pass_in_stream_order(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_channel *to, *from;
    struct gpupool_frame frame, received;
    struct gpupool_buffer seen = acquire(client, GPUPOOL_POOL_HOST, SIZE, GPUPOOL_NO_STREAM);
    void *reader;
    struct gate writer;

    (void)state;
    MUST(gpupool_stream_create(client, 0, &reader));
    gate_init(&writer, client);
    make(client, "ordered", GPUPOOL_POOL_DEVICE, 2, 1, GPUPOOL_CHANNEL_WAIT);
    to = join(client, "ordered", GPUPOOL_CHANNEL_PRODUCER);
    from = join(client, "ordered", 1);
    for (int round = 1; round < 9; round++) {
        gate_close(&writer);
        MUST(gpupool_channel_loan(to, writer.stream, GPUPOOL_NOW, &frame));
        MUST(gpupool_set(client, 0, frame.data, round, SIZE, writer.stream));
        MUST(gpupool_channel_send(to, &frame, SIZE, NULL, 0, writer.stream));
        MUST(gpupool_channel_receive(from, reader, GPUPOOL_NOW, &received));
        assert_int_equal(received.sequence, round);
        MUST(gpupool_copy(client, 0, seen.data, received.data, SIZE, reader));
        MUST(gpupool_channel_release(from, &received, reader));
        assert_false(gate_was_passed(&writer));
        /* The next one takes the other slot, and the one behind it waits for the copy. */
        gate_open(&writer);
        MUST(gpupool_stream_synchronize(client, 0, reader));
        assert_int_equal(((const uint8_t *)seen.data)[SIZE - 1], round);
    }
    gate_deinit(&writer);
    MUST(gpupool_channel_leave(to));
    MUST(gpupool_channel_leave(from));
    MUST(gpupool_release(client, &seen, GPUPOOL_NO_STREAM));
    MUST(gpupool_trim(client, NULL));
    MUST(gpupool_stream_destroy(client, 0, reader));
    gpupool_close(client);
    expect_nothing_leased();
}

/* The producer's GPU work does not end in time. No frame is lost by that, and none is received out of order. */
static void a_frame_that_is_not_written_in_time_is_received_later(void **state) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client = open_cached(), *reader;
    struct gpupool_channel_info info;
    struct gpupool_channel *to, *from;
    struct gpupool_frame frame;
    struct gate writer;

    (void)state;
    options.socket = daemon_.socket;
    options.alloc_timeout_ns = NS_PER_MS;
    MUST(gpupool_open(&options, &reader));
    gate_init(&writer, client);
    for (unsigned kind = 0; kind < 2; kind++) {
        make(client, "late", kinds[kind], 4, 1, GPUPOOL_CHANNEL_WAIT);
        to = join(client, "late", GPUPOOL_CHANNEL_PRODUCER);
        from = join(reader, "late", 1);
        struct pollfd fd = {.fd = gpupool_channel_fd(from), .events = POLLIN};
        gate_close(&writer);
        MUST(gpupool_channel_loan(to, writer.stream, GPUPOOL_NOW, &frame));
        MUST(gpupool_channel_send(to, &frame, SIZE, NULL, 0, writer.stream));
        for (unsigned i = 0; i < 3; i++) {
            assert_int_equal(gpupool_channel_receive(from, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame),
                             GPUPOOL_E_TIMED_OUT);
            assert_non_null(strstr(gpupool_error_text(), "frame 1 is received by the next call"));
            MUST(gpupool_channel_look(from, &info));
            assert_int_equal(info.has_waiting, 1);
            assert_int_equal(poll(&fd, 1, 0), 1);
        }
        send_byte(to, 2, GPUPOOL_NOW);
        gate_open(&writer);
        MUST(gpupool_stream_synchronize(client, 0, writer.stream));
        MUST(gpupool_channel_receive(from, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame));
        assert_int_equal(frame.sequence, 1);
        MUST(gpupool_channel_look(from, &info));
        assert_int_equal(info.has_waiting, 0);
        MUST(gpupool_channel_release(from, &frame, GPUPOOL_NO_STREAM));
        receive_byte(from, 2);
        MUST(gpupool_channel_leave(to));
        MUST(gpupool_channel_leave(from));
        MUST(gpupool_unpublish(client, "late", 0));
    }
    gate_deinit(&writer);
    gpupool_close(reader);
    gpupool_close(client);
    expect_nothing_leased();
}

static void frames_are_held_and_released_in_any_order(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_channel *to, *from;
    struct gpupool_frame held[4], frame;

    (void)state;
    make(client, "held", GPUPOOL_POOL_HOST, 4, 1, GPUPOOL_CHANNEL_WAIT);
    to = join(client, "held", GPUPOOL_CHANNEL_PRODUCER);
    from = join(client, "held", 1);
    for (int i = 0; i < 4; i++)
        send_byte(to, i, GPUPOOL_NOW);
    for (int i = 0; i < 4; i++)
        held[i] = expect_byte(from, i, GPUPOOL_NOW);
    assert_int_equal(gpupool_channel_loan(to, GPUPOOL_NO_STREAM, 20 * NS_PER_MS, &frame),
                     GPUPOOL_E_EXHAUSTED);
    MUST(gpupool_channel_release(from, &held[2], GPUPOOL_NO_STREAM));
    MUST(gpupool_channel_loan(to, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame));
    assert_ptr_equal(frame.data, held[2].data);
    MUST(gpupool_channel_return(to, &frame, GPUPOOL_NO_STREAM));
    assert_int_equal(gpupool_channel_return(to, &frame, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_channel_release(from, &held[2], GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    send_byte(to, 9, GPUPOOL_NOW);
    receive_byte(from, 9);
    MUST(gpupool_channel_release(from, &held[0], GPUPOOL_NO_STREAM));
    MUST(gpupool_channel_leave(from)); /* and with it the others */
    send_byte(to, 1, GPUPOOL_NOW);
    MUST(gpupool_channel_leave(to));
    gpupool_close(client);
    expect_nothing_leased();
}

/* No call has had nothing yet: the descriptor is readable, and no frame is dropped to find that out. */
static void a_new_descriptor_is_readable_and_drops_nothing(void **state) {
    struct gpupool_client *client = open_cached();

    (void)state;
    make(client, "watched", GPUPOOL_POOL_HOST, 2, 1, GPUPOOL_CHANNEL_DROP_OLDEST);
    struct gpupool_channel *to = join(client, "watched", GPUPOOL_CHANNEL_PRODUCER),
                           *from = join(client, "watched", 1);
    send_byte(to, 1, GPUPOOL_NOW);
    send_byte(to, 2, GPUPOOL_NOW);
    struct pollfd fd = {.fd = gpupool_channel_fd(to), .events = POLLIN};
    assert_true(fd.fd >= 0 && poll(&fd, 1, 0) == 1);
    assert_int_equal(gpupool_channel_fd(to), fd.fd);
    receive_byte(from, 1);
    receive_byte(from, 2);
    MUST(gpupool_channel_leave(to));
    MUST(gpupool_channel_leave(from));
    gpupool_close(client);
    expect_nothing_leased();
}

static void policies_of_a_full_channel(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_channel *to, *from;
    struct gpupool_frame frame, held;

    (void)state;
    make(client, "fails", GPUPOOL_POOL_HOST, 2, 1, GPUPOOL_CHANNEL_FAIL);
    to = join(client, "fails", GPUPOOL_CHANNEL_PRODUCER);
    send_byte(to, 0, GPUPOOL_NOW);
    send_byte(to, 1, GPUPOOL_NOW);
    assert_int_equal(gpupool_channel_loan(to, GPUPOOL_NO_STREAM, GPUPOOL_FOREVER, &frame),
                     GPUPOOL_E_EXHAUSTED);
    MUST(gpupool_channel_leave(to));

    make(client, "drops", GPUPOOL_POOL_HOST, 3, 1, GPUPOOL_CHANNEL_DROP_OLDEST);
    to = join(client, "drops", GPUPOOL_CHANNEL_PRODUCER);
    from = join(client, "drops", 1);
    send_byte(to, 0, GPUPOOL_NOW);
    held = expect_byte(from, 0, GPUPOOL_NOW);
    for (int i = 1; i < 10; i++)
        send_byte(to, i, GPUPOOL_NOW);
    frame = expect_byte(from, 8, GPUPOOL_NOW);
    assert_int_equal(frame.missed, 7);
    assert_int_equal(*(const uint8_t *)held.data, 0); /* what is held is not written */
    MUST(gpupool_channel_release(from, &frame, GPUPOOL_NO_STREAM));
    receive_byte(from, 9);
    MUST(gpupool_channel_leave(from));
    MUST(gpupool_channel_leave(to));
    gpupool_close(client);
    expect_nothing_leased();
}

/* --- sleepers --- */

static void *send_late(void *argument) {
    for (unsigned i = 0; i < 5; i++)
        test_pause();
    send_byte(argument, 7, TEST_WAIT_NS);
    return NULL;
}

static void *release_late(void *argument) {
    for (unsigned i = 0; i < 5; i++)
        test_pause();
    receive_byte(argument, 7);
    return NULL;
}

static void a_call_that_waits_is_woken(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_channel *to, *from;
    pthread_t thread;

    (void)state;
    make(client, "sleeps", GPUPOOL_POOL_HOST, 2, 1, GPUPOOL_CHANNEL_WAIT);
    to = join(client, "sleeps", GPUPOOL_CHANNEL_PRODUCER);
    from = join(client, "sleeps", 1);
    for (unsigned round = 0; round < 20; round++) {
        assert_int_equal(pthread_create(&thread, NULL, send_late, to), 0);
        receive_byte(from, 7);
        pthread_join(thread, NULL);
        send_byte(to, 7, GPUPOOL_NOW);
        send_byte(to, 7, GPUPOOL_NOW);
        assert_int_equal(pthread_create(&thread, NULL, release_late, from), 0);
        send_byte(to, 7, TEST_WAIT_NS);
        pthread_join(thread, NULL);
        receive_byte(from, 7);
        receive_byte(from, 7);
    }
    MUST(gpupool_channel_leave(from));
    MUST(gpupool_channel_leave(to));
    gpupool_close(client);
}

static bool is_readable(int fd, int timeout_ms) {
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    return poll(&poll_fd, 1, timeout_ms) == 1;
}

static void the_descriptor_tells_of_frames_and_slots(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_channel *to, *from;
    struct gpupool_frame frame;
    int from_fd, to_fd, wait_ms = (int)(TEST_WAIT_NS / NS_PER_MS);

    (void)state;
    make(client, "watched", GPUPOOL_POOL_HOST, 2, 1, GPUPOOL_CHANNEL_WAIT);
    to = join(client, "watched", GPUPOOL_CHANNEL_PRODUCER);
    from = join(client, "watched", 1);
    from_fd = gpupool_channel_fd(from);
    to_fd = gpupool_channel_fd(to);
    assert_true(from_fd >= 0 && to_fd >= 0);
    for (int round = 0; round < 100; round++) {
        assert_int_equal(gpupool_channel_receive(from, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame),
                         GPUPOOL_E_TIMED_OUT);
        assert_false(is_readable(from_fd, 0));
        send_byte(to, round, GPUPOOL_NOW);
        assert_true(is_readable(from_fd, wait_ms));
        receive_byte(from, round);
        send_byte(to, round, GPUPOOL_NOW);
        send_byte(to, round, GPUPOOL_NOW);
        assert_int_equal(gpupool_channel_loan(to, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame),
                         GPUPOOL_E_EXHAUSTED);
        assert_false(is_readable(to_fd, 0));
        receive_byte(from, round);
        assert_true(is_readable(to_fd, wait_ms));
        receive_byte(from, round);
    }
    assert_int_equal(gpupool_channel_receive(from, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame),
                     GPUPOOL_E_TIMED_OUT);
    MUST(gpupool_channel_leave(to));
    assert_true(is_readable(from_fd, wait_ms));
    assert_int_equal(gpupool_channel_receive(from, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame), GPUPOOL_E_ENDED);
    MUST(gpupool_channel_leave(from));
    gpupool_close(client);
}

/* --- ends --- */

/* Joins a place, and does as the socket says: 's' sends the next byte, 'r' receives and releases, 'h' receives and holds,
 * 'l' leaves and ends. argument: name and place. */
static int take_part(int fd, const char *argument) {
    struct gpupool_client *client = NULL;
    struct gpupool_channel *channel = NULL;
    struct gpupool_frame frame;
    char name[64], command[2];
    unsigned place;

    if (sscanf(argument, "%63s %u", name, &place) != 2)
        return 1;
    MUST(gpupool_open(NULL, &client));
    channel = join(client, name, place);
    if (send(fd, "", 1, 0) != 1)
        return 1;
    while (recv(fd, command, 2, 0) == 2 && command[0] != 'l') {
        if (command[0] == 's')
            send_byte(channel, command[1], TEST_WAIT_NS);
        else
            frame = expect_byte(channel, command[1], TEST_WAIT_NS);
        if (command[0] == 'r')
            MUST(gpupool_channel_release(channel, &frame, GPUPOOL_NO_STREAM));
        if (send(fd, "", 1, 0) != 1)
            return 1;
    }
    MUST(gpupool_channel_leave(channel));
    gpupool_close(client);
    return 0;
}

static void begin_part(struct puppet *worker, const char *name, unsigned place) {
    char argument[80], byte;

    snprintf(argument, sizeof argument, "%s %u", name, place);
    puppet_start_role(worker, &daemon_, "part", argument);
    assert_int_equal(recv(worker->fd, &byte, 1, 0), 1);
}

static void command(struct puppet *worker, char what, char byte) {
    char answer;

    assert_int_equal(send(worker->fd, (char[]){what, byte}, 2, 0), 2);
    assert_int_equal(recv(worker->fd, &answer, 1, 0), 1);
}

static void what_a_dead_producer_sent_is_received(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_channel *from, *to;
    struct gpupool_frame frame;
    struct puppet worker;

    (void)state;
    make(client, "orphaned", GPUPOOL_POOL_DEVICE, 4, 1, GPUPOOL_CHANNEL_WAIT);
    from = join(client, "orphaned", 1);
    begin_part(&worker, "orphaned", GPUPOOL_CHANNEL_PRODUCER);
    for (char i = 1; i < 4; i++)
        command(&worker, 's', i);
    receive_byte(from, 1);
    puppet_kill(&worker);
    receive_byte(from, 2);
    receive_byte(from, 3);
    assert_int_equal(gpupool_channel_receive(from, GPUPOOL_NO_STREAM, TEST_WAIT_NS, &frame),
                     GPUPOOL_E_VACANT);
    to = join(client, "orphaned", GPUPOOL_CHANNEL_PRODUCER); /* its successor */
    send_byte(to, 4, GPUPOOL_NOW);
    frame = expect_byte(from, 4, TEST_WAIT_NS);
    assert_int_equal(frame.sequence, 4);
    MUST(gpupool_channel_leave(to));
    MUST(gpupool_channel_leave(from));
    gpupool_close(client);
    expect_nothing_leased();
}

static void a_dead_consumers_frames_are_its_successors(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_channel *to, *from;
    struct gpupool_frame frame;
    struct puppet worker;

    (void)state;
    make(client, "inherited", GPUPOOL_POOL_HOST, 4, 1, GPUPOOL_CHANNEL_WAIT);
    to = join(client, "inherited", GPUPOOL_CHANNEL_PRODUCER);
    begin_part(&worker, "inherited", 1);
    for (char i = 0; i < 4; i++)
        send_byte(to, i, GPUPOOL_NOW);
    command(&worker, 'r', 0);
    command(&worker, 'h', 1);
    command(&worker, 'r', 2);
    puppet_kill(&worker);
    assert_int_equal(gpupool_channel_loan(to, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame),
                     0); /* of what was released */
    MUST(gpupool_channel_return(to, &frame, GPUPOOL_NO_STREAM));
    from = join(client, "inherited", GPUPOOL_CHANNEL_ANY_CONSUMER);
    frame = expect_byte(from, 1, GPUPOOL_NOW);
    assert_int_equal(frame.is_again, 1);
    MUST(gpupool_channel_release(from, &frame, GPUPOOL_NO_STREAM));
    frame = expect_byte(from, 3, GPUPOOL_NOW);
    assert_int_equal(frame.is_again, 0);
    MUST(gpupool_channel_release(from, &frame, GPUPOOL_NO_STREAM));
    MUST(gpupool_channel_leave(from));
    send_byte(to, 4, GPUPOOL_NOW); /* no process receives it */
    from = join(client, "inherited", 1);
    assert_int_equal(gpupool_channel_receive(from, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame),
                     GPUPOOL_E_TIMED_OUT);
    send_byte(to, 5, GPUPOOL_NOW);
    receive_byte(from, 5);
    MUST(gpupool_channel_leave(from));
    MUST(gpupool_channel_leave(to));
    gpupool_close(client);
    expect_nothing_leased();
}

static void *expect_vacant(void *argument) {
    struct gpupool_frame frame;

    assert_int_equal(gpupool_channel_receive(argument, GPUPOOL_NO_STREAM, TEST_WAIT_NS, &frame),
                     GPUPOOL_E_VACANT);
    return NULL;
}

static void a_sleeper_is_woken_by_the_others_death(void **state) {
    struct gpupool_client *client = open_cached();
    struct gpupool_channel *from;
    struct puppet worker;
    pthread_t thread;

    (void)state;
    make(client, "woken", GPUPOOL_POOL_HOST, 4, 1, GPUPOOL_CHANNEL_WAIT);
    from = join(client, "woken", 1);
    begin_part(&worker, "woken", GPUPOOL_CHANNEL_PRODUCER);
    assert_int_equal(pthread_create(&thread, NULL, expect_vacant, from), 0);
    for (unsigned i = 0; i < 5; i++)
        test_pause();
    puppet_kill(&worker);
    pthread_join(thread, NULL);
    MUST(gpupool_channel_leave(from));
    gpupool_close(client);
    expect_nothing_leased();
}

static void a_channel_lasts_as_long_as_it_is_used_or_kept(void **state) {
    struct gpupool_client *maker = open_cached(), *other = open_cached();
    struct gpupool_channel *channel;
    size_t count;

    (void)state;
    make(maker, "short", GPUPOOL_POOL_HOST, 2, 1, GPUPOOL_CHANNEL_WAIT);
    channel = join(other, "short", 1);
    gpupool_close(maker);
    maker = open_cached();
    MUST(gpupool_names(other, NULL, 0, &count));
    assert_int_equal(count, 1);
    MUST(gpupool_channel_leave(channel));
    MUST(gpupool_names(other, NULL, 0, &count));
    assert_int_equal(count, 0);

    struct gpupool_channel_options options = GPUPOOL_CHANNEL_OPTIONS_INIT;
    options.pool = pool_of(maker, GPUPOOL_POOL_HOST);
    options.slot_bytes = SIZE;
    options.flags = GPUPOOL_CHANNEL_KEEP;
    MUST(gpupool_channel_make(maker, "kept", &options));
    gpupool_close(maker);
    channel = join(other, "kept", GPUPOOL_CHANNEL_PRODUCER);
    MUST(gpupool_channel_leave(channel));
    MUST(gpupool_unpublish(other, "kept", 0));
    assert_int_equal(gpupool_channel_join(other, "kept", 1, GPUPOOL_NOW, &channel), GPUPOOL_E_NO_NAME);
    gpupool_close(other);
    expect_nothing_leased();
}

static void wrong_arguments_are_refused(void **state) {
    struct gpupool_client *client = open_cached(), *other = open_cached();
    struct gpupool_channel_options options = GPUPOOL_CHANNEL_OPTIONS_INIT, bad;
    struct gpupool_channel *to, *from, *none;
    struct gpupool_buffer buffer;
    struct gpupool_frame frame;
    struct gpupool_name *opened;

    (void)state;
    options.pool = pool_of(client, GPUPOOL_POOL_HOST);
    options.slot_bytes = SIZE;
    assert_int_equal(gpupool_channel_make(client, "bad", NULL), GPUPOOL_E_INVALID);
    for (unsigned i = 0; i < 7; i++) {
        bad = options;
        bad.slot_bytes = i == 0 ? 0 : SIZE;
        bad.slots = i == 1 ? 1 : i == 2 ? 1025 : 0;
        bad.consumers = i == 3 ? 17 : 0;
        bad.metadata_bytes = i == 4 ? 1025 : 0;
        bad.policy = i == 5 ? 4 : 0;
        bad.flags = i == 6 ? 2 : 0;
        assert_int_equal(gpupool_channel_make(client, "bad", &bad), GPUPOOL_E_INVALID);
    }
    MUST(gpupool_channel_make(client, "good", &options));
    assert_int_equal(gpupool_channel_make(client, "good", &options), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_channel_join(client, "good", 17, GPUPOOL_NOW, &none), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_channel_join(client, "good", 2, GPUPOOL_FOREVER, &none), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_channel_join(client, "bad", 1, GPUPOOL_NOW, &none), GPUPOOL_E_NO_NAME);
    assert_int_equal(gpupool_open_name(client, "good", 0, 0, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &opened),
                     GPUPOOL_E_INVALID);
    buffer = acquire(client, GPUPOOL_POOL_HOST, SIZE, NULL);
    assert_int_equal(gpupool_publish(client, "good", &buffer, 1, GPUPOOL_NO_STREAM, NULL, NULL),
                     GPUPOOL_E_INVALID);
    MUST(gpupool_publish(client, "set", &buffer, 1, GPUPOOL_NO_STREAM, NULL, NULL));
    assert_int_equal(gpupool_channel_join(client, "set", 1, GPUPOOL_NOW, &none), GPUPOOL_E_INVALID);
    MUST(gpupool_release(client, &buffer, GPUPOOL_NO_STREAM));
    to = join(client, "good", GPUPOOL_CHANNEL_PRODUCER);
    assert_int_equal(gpupool_channel_join(other, "good", GPUPOOL_CHANNEL_PRODUCER, GPUPOOL_NOW, &none),
                     GPUPOOL_E_NO_NAME); /* it is taken */
    from = join(other, "good", 1);
    assert_int_equal(gpupool_channel_receive(to, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame), GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_channel_loan(from, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame), GPUPOOL_E_INVALID);
    MUST(gpupool_channel_loan(to, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame));
    assert_int_equal(gpupool_channel_send(to, &frame, SIZE + 1, NULL, 0, GPUPOOL_NO_STREAM),
                     GPUPOOL_E_INVALID);
    assert_int_equal(gpupool_channel_send(to, &frame, SIZE, "x", 1, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    MUST(gpupool_channel_send(to, &frame, 0, NULL, 0, GPUPOOL_NO_STREAM));
    assert_int_equal(gpupool_channel_send(to, &frame, 0, NULL, 0, GPUPOOL_NO_STREAM), GPUPOOL_E_INVALID);
    gpupool_close(other); /* with a channel: it is dead, and only to be freed */
    assert_int_equal(gpupool_channel_receive(from, GPUPOOL_NO_STREAM, GPUPOOL_NOW, &frame),
                     GPUPOOL_E_INVALID);
    MUST(gpupool_channel_leave(from));
    MUST(gpupool_channel_leave(to));
    MUST(gpupool_channel_leave(NULL));
    gpupool_close(client);
    expect_nothing_leased();
}

int main(int argc, char **argv) {
    static const struct puppet_role roles[] = {{"part", take_part}, {NULL, NULL}};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frames_reach_each_consumer_in_order),
        cmocka_unit_test(device_frames_pass_in_stream_order),
        cmocka_unit_test(a_frame_that_is_not_written_in_time_is_received_later),
        cmocka_unit_test(frames_are_held_and_released_in_any_order),
        cmocka_unit_test(a_new_descriptor_is_readable_and_drops_nothing),
        cmocka_unit_test(policies_of_a_full_channel),
        cmocka_unit_test(a_call_that_waits_is_woken),
        cmocka_unit_test(the_descriptor_tells_of_frames_and_slots),
        cmocka_unit_test(what_a_dead_producer_sent_is_received),
        cmocka_unit_test(a_dead_consumers_frames_are_its_successors),
        cmocka_unit_test(a_sleeper_is_woken_by_the_others_death),
        cmocka_unit_test(a_channel_lasts_as_long_as_it_is_used_or_kept),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    int status = puppet_main(argc, argv, roles);
    return status >= 0 ? status : cmocka_run_group_tests(tests, start_daemon, stop_daemon);
}
