/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outbox over a socket pair whose other end is the test. Random histories run against a list of what has
 * to arrive. A second program (unit/outbox_planted) has a fault planted: a packet that overtakes the queue.
 */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/lock.h"
#include "client/session/outbox.h"
#include "tests/unit/unit.h"

/* The kernel makes more of it: some ten packets. */
#define SOCKET_BYTES 4096
#define PACKET_LARGE 3000u
#define PACKETS_MAX  20000u

static struct outbox outbox;
static int far_fd;  /* the daemon's end of the socket */
static int near_fd; /* the outbox's */

static int set_up(void **state) {
    (void)state;
    int fds[2], size = SOCKET_BYTES;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0 ||
        setsockopt(fds[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size) < 0)
        return -1;
    near_fd = fds[0];
    far_fd = fds[1];
    outbox_init(&outbox);
    outbox_open(&outbox, near_fd);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    bool is_valid = outbox_is_valid(&outbox);
    near_fd = close_fd(near_fd);
    far_fd = close_fd(far_fd);
    outbox_deinit(&outbox);
    return is_valid ? 0 : -1;
}
#define OUTBOX_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

/* A packet is its number, over and over. */
static uint32_t packet[PACKET_LARGE / 4];

static void make_packet(uint32_t *words, uint32_t number, size_t size) {
    for (size_t i = 0; i < size / 4; i++)
        words[i] = number;
}

/* Reads one packet. Returns its number, -1: there is none. */
static int64_t read_packet(int flags) {
    uint32_t words[PACKET_LARGE / 4];

    ssize_t n = recv(far_fd, words, sizeof words, flags);
    if (n < 0)
        return -1;
    assert_true(n >= 4 && n % 4 == 0);
    for (size_t i = 1; i < (size_t)n / 4; i++)
        assert_int_equal(words[i], words[0]);
    return words[0];
}

static int put(uint32_t number, size_t size) {
    make_packet(packet, number, size);
    return outbox_put(&outbox, packet, size);
}

static int send_until(uint32_t number, size_t size, uint64_t deadline_ns, uint64_t *ret_place) {
    make_packet(packet, number, size);
    return outbox_send(&outbox, packet, size, false, deadline_ns, ret_place);
}

/* Fills the socket. Returns how many packets are in it, numbered from 0. */
static uint32_t fill_socket(void) {
    uint64_t place;
    uint32_t n = 0;

    while (send_until(n, 64, 0, &place) == 0)
        n++;
    assert_false(outbox_has_any(&outbox));
    return n;
}

/* Whether there is a packet, perhaps because the queue was sent. */
static bool has_packet(void) {
    uint32_t word;

    (void)outbox_flush(&outbox, 0);
    return recv(far_fd, &word, sizeof word, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* Waits for a packet of any thread. */
static void await(uint32_t number) {
    WAIT_UNTIL(has_packet());
    int64_t got = read_packet(MSG_DONTWAIT);
    if (got != number)
        fail_msg("packet %d came in the place of packet %u", (int)got, number);
}

static void expect(int64_t number) {
    int64_t got = read_packet(MSG_DONTWAIT);

    if (got < 0) {
        (void)outbox_flush(&outbox, 0);
        got = read_packet(MSG_DONTWAIT);
    }
    if (got != number)
        fail_msg("packet %d came in the place of packet %d", (int)got, (int)number);
}

/* --- one thread --- */

static void packets_leave_in_the_order_in_which_they_came(void **state) {
    (void)state;
    static uint32_t expected[PACKETS_MAX];
    static uint64_t places[PACKETS_MAX];
    size_t read = 0, count = 0;
    unsigned refused = 0, withdrawn = 0;

    srandom(7);
    for (uint32_t number = 0; number < PACKETS_MAX; number++) {
        size_t size = 4 * (1 + (size_t)random() % (random() % 8 == 0 ? PACKET_LARGE / 4 : 20));
        uint64_t place = OUTBOX_NOWHERE;
        int r;
        switch (random() % 8) {
        case 0:
        case 1:
        case 2:
            place = outbox.tail;
            r = put(number, size);
            break;
        case 3:
        case 4:
            r = send_until(number, size, 0, &place);
            break;
        case 5:
            r = outbox_flush(&outbox, 0);
            assert_true(r == 0 || r == -ETIMEDOUT);
            continue;
        case 6: /* takes back the last packet, or one that left long ago */
            if (count > 0 && outbox_withdraw(&outbox, places[random() % 4 == 0 ? 0 : count - 1])) {
                withdrawn++;
                count--;
            }
            continue;
        default:
            for (unsigned n = (unsigned)random() % 40; n > 0 && read < count; n--)
                expect(expected[read++]);
            continue;
        }
        if (r == 0) {
            places[count] = place;
            expected[count++] = number;
        } else {
            assert_true(r == -EAGAIN || r == -ETIMEDOUT);
            refused++;
        }
        assert_true(outbox_is_valid(&outbox));
    }
    while (read < count)
        expect(expected[read++]);
    assert_int_equal(outbox_flush(&outbox, 0), 0);
    assert_int_equal(read_packet(MSG_DONTWAIT), -1);
    assert_true(refused > 0 && withdrawn > 0 && outbox.head > 10 * (uint64_t)OUTBOX_BYTES);
}

static void what_a_sender_leaves_is_sent_by_the_next_one(void **state) {
    (void)state;
    uint32_t n = fill_socket();
    uint64_t place;

    assert_int_equal(put(n, 64), 0);
    assert_int_equal(outbox_flush(&outbox, 0), -ETIMEDOUT);
    assert_int_equal(send_until(n + 1, 64, 0, &place), 0); /* behind it */
    assert_int_not_equal(place, OUTBOX_NOWHERE);
    assert_true(outbox_go_on(&outbox, NS_FOREVER) < NS_FOREVER);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(read_packet(MSG_DONTWAIT), i);
    assert_true(outbox_go_on(&outbox, NS_FOREVER) == NS_FOREVER);
    expect(n);
    expect(n + 1);
    assert_int_equal(send_until(n + 2, 64, 0, &place), 0);
    assert_true(place == OUTBOX_NOWHERE); /* from the test's own buffer */
    expect(n + 2);
}

static void a_withdrawn_packet_does_not_arrive(void **state) {
    (void)state;
    uint32_t n = fill_socket();
    uint64_t first = outbox.tail, second;

    assert_false(outbox_withdraw(&outbox, OUTBOX_NOWHERE));
    assert_int_equal(put(n, 64), 0);
    assert_int_equal(send_until(n + 1, 64, 0, &second), 0);
    assert_int_equal(put(n + 2, 64), 0);
    assert_true(outbox_withdraw(&outbox, first));
    assert_true(outbox_withdraw(&outbox, second));
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(read_packet(MSG_DONTWAIT), i);
    expect(n + 2);
    assert_false(outbox_has_any(&outbox));
    assert_false(outbox_withdraw(&outbox, first));
}

static void a_full_queue_takes_no_packet_but_the_readers(void **state) {
    (void)state;
    uint32_t n = fill_socket(), number = n;
    uint64_t place;

    while (put(number, 512) == 0)
        number++;
    assert_int_equal(put(number, 512), -EAGAIN);
    assert_int_equal(send_until(number, 512, 0, &place), -ETIMEDOUT);
    make_packet(packet, number, 512);
    assert_int_equal(outbox_send(&outbox, packet, 512, true, 0, &place), 0);
    for (uint32_t i = 0; i <= number; i++)
        expect(i);
    assert_int_equal(read_packet(MSG_DONTWAIT), -1);
}

static void a_closed_outbox_takes_and_keeps_nothing(void **state) {
    (void)state;
    uint32_t n = fill_socket();
    uint64_t place;

    assert_int_equal(put(n, 64), 0);
    outbox_close(&outbox);
    assert_false(outbox_has_any(&outbox));
    assert_int_equal(put(n, 64), -EPIPE);
    assert_int_equal(send_until(n, 64, NS_FOREVER, &place), -EPIPE);
    assert_int_equal(outbox_flush(&outbox, NS_FOREVER), 0);
}

static void the_end_of_the_other_side_is_reported(void **state) {
    (void)state;
    uint32_t n = fill_socket();
    uint64_t place;

    assert_int_equal(put(n, 64), 0);
    far_fd = close_fd(far_fd);
    assert_int_equal(outbox_flush(&outbox, NS_FOREVER), -EPIPE);
    outbox_close(&outbox);
    assert_int_equal(send_until(n, 64, NS_FOREVER, &place), -EPIPE);
}

/* --- several threads --- */

struct sender {
    uint32_t number;
    size_t size;
    int result;
    pthread_t thread;
};

static void *send_one(void *argument) {
    struct sender *sender = argument;
    uint32_t words[PACKET_LARGE / 4];
    uint64_t place;

    make_packet(words, sender->number, sender->size);
    sender->result = outbox_send(&outbox, words, sender->size, false, NS_FOREVER, &place);
    return NULL;
}

static void begin_to_send(struct sender *sender, uint32_t number, size_t size) {
    *sender = (struct sender){.number = number, .size = size, .result = 1};
    assert_int_equal(pthread_create(&sender->thread, NULL, send_one, sender), 0);
}

static bool is_sending(void) {
    LOCKED(&outbox.lock);
    return outbox.is_sending;
}

static unsigned n_waiting(void) {
    LOCKED(&outbox.lock);
    return outbox.n_waiting;
}

static void a_full_socket_keeps_one_thread_waiting(void **state) {
    (void)state;
    uint32_t n = fill_socket();
    struct sender sender;
    uint64_t place;

    begin_to_send(&sender, n, 64);
    WAIT_UNTIL(is_sending());
    assert_int_equal(put(n + 1, 64), 0);
    assert_int_equal(send_until(n + 2, 64, NS_FOREVER, &place), 0); /* returns: the other thread waits */
    assert_int_not_equal(place, OUTBOX_NOWHERE);
    assert_int_equal(outbox_flush(&outbox, NS_FOREVER), 0);
    assert_true(outbox_has_any(&outbox));
    for (uint32_t i = 0; i <= n + 2; i++)
        await(i);
    TEST_JOIN(sender.thread, NULL);
    assert_int_equal(sender.result, 0);
    assert_false(outbox_has_any(&outbox));
}

static void a_thread_waits_for_room_in_the_queue(void **state) {
    (void)state;
    uint32_t n = fill_socket(), number;
    struct sender first, second;

    begin_to_send(&first, n, 64);
    WAIT_UNTIL(is_sending());
    for (number = n + 1; put(number, 512) == 0; number++) {
    }
    begin_to_send(&second, number, 512);
    WAIT_UNTIL(n_waiting() == 1);
    for (uint32_t i = 0; i <= number; i++)
        await(i);
    TEST_JOIN(first.thread, NULL);
    TEST_JOIN(second.thread, NULL);
    assert_int_equal(first.result, 0);
    assert_int_equal(second.result, 0);
}

static void a_close_ends_all_waits(void **state) {
    (void)state;
    uint32_t n = fill_socket();
    struct sender first, second;

    begin_to_send(&first, n, 64);
    WAIT_UNTIL(is_sending());
    while (put(n, 512) == 0) {
    }
    begin_to_send(&second, n, 512);
    WAIT_UNTIL(n_waiting() == 1);
    outbox_close(&outbox);
    shutdown(near_fd, SHUT_RDWR); /* as connection_break() */
    TEST_JOIN(first.thread, NULL);
    TEST_JOIN(second.thread, NULL);
    assert_int_equal(first.result, -EPIPE);
    assert_int_equal(second.result, -EPIPE);
}

#define THREADS    6u
#define EACH_SENDS 2000u

static struct {
    pthread_mutex_t lock; /* the threads' common one, over the numbers and what they put */
    uint32_t next;
    _Atomic unsigned failures;
} common = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *send_many(void *argument) {
    (void)argument;
    uint32_t words[16];
    uint64_t place;

    for (unsigned i = 0; i < EACH_SENDS; i++) {
        int r = -EAGAIN;
        while (r == -EAGAIN) {
            pthread_mutex_lock(&common.lock);
            make_packet(words, common.next, sizeof words);
            r = i % 3 == 0 ? outbox_send(&outbox, words, sizeof words, false, NS_FOREVER, &place)
                           : outbox_put(&outbox, words, sizeof words);
            common.next += r == 0;
            pthread_mutex_unlock(&common.lock);
            common.failures += r != 0 && r != -EAGAIN;
            if (i % 2 == 0 || r == -EAGAIN)
                common.failures += outbox_flush(&outbox, NS_FOREVER) != 0;
        }
    }
    common.failures += outbox_flush(&outbox, NS_FOREVER) != 0;
    return NULL;
}

static void packets_of_all_threads_leave_in_order(void **state) {
    (void)state;
    pthread_t threads[THREADS];

    common.next = 0;
    for (unsigned i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, send_many, NULL), 0);
    for (uint32_t i = 0; i < THREADS * EACH_SENDS; i++)
        await(i);
    for (unsigned i = 0; i < THREADS; i++)
        TEST_JOIN(threads[i], NULL);
    assert_int_equal(common.failures, 0);
    assert_false(outbox_has_any(&outbox));
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        OUTBOX_TEST(packets_leave_in_the_order_in_which_they_came),
        OUTBOX_TEST(what_a_sender_leaves_is_sent_by_the_next_one),
        OUTBOX_TEST(a_withdrawn_packet_does_not_arrive),
        OUTBOX_TEST(a_full_queue_takes_no_packet_but_the_readers),
        OUTBOX_TEST(a_closed_outbox_takes_and_keeps_nothing),
        OUTBOX_TEST(the_end_of_the_other_side_is_reported),
        OUTBOX_TEST(a_full_socket_keeps_one_thread_waiting),
        OUTBOX_TEST(a_thread_waits_for_room_in_the_queue),
        OUTBOX_TEST(a_close_ends_all_waits),
        OUTBOX_TEST(packets_of_all_threads_leave_in_order),
    };
    if (argc > 1) /* the test that finds the planted fault */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests_name("outbox", tests, NULL, NULL);
}
