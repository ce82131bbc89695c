/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that mean harm by how much they ask, how often they come, and what they attach, beside a
 * well-behaved one that takes, fills, checks and gives back all the time and never sees an error
 * (tests/integration/hostile.h). The well-behaved client's times are measured by tests/bench, and its
 * waits are counted by tests/unit/test_daemon_turns.c.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/packet.h"
#include "tests/integration/hostile.h"

#define CONNECTIONS 1024u
#define SILENT      400u /* more than the daemon lets be about to greet */
#define RIGHTS      PACKET_FDS_MAX
#define KEPT_MAX    2u /* descriptors that a driver may keep of its own accord */

/* --- floods, and connections --- */

/* Takes note of what comes, and gives back what it is given: a flood is to cost time, not memory. */
static void hear_and_give_back(int fd) {
    static struct proto_message message; /* not on the stack each time */
    uint8_t packet[PROTO_PACKET_MAX];
    ssize_t n;

    while ((n = recv(fd, packet, sizeof packet, MSG_DONTWAIT)) > 0) { /* without room for descriptors */
        MUST(proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &message, NULL) == 0);
        if (message.header.operation != PROTO_LEASE)
            continue;
        const struct proto_lease lease = message.lease;
        if (proto_message_fds(&message) == 1) {
            message.opened.segment = lease.segment;
            size_t size = raw_client_encode(&message, PROTO_OPENED, 0, packet);
            (void)send(fd, packet, size, MSG_NOSIGNAL);
        }
        message.release = (struct proto_release){.lease = lease.lease, .generation = lease.generation};
        size_t size = raw_client_encode(&message, PROTO_RELEASE, 0, packet);
        (void)send(fd, packet, size, MSG_NOSIGNAL);
    }
}

static void flood(int ready) {
    enum {
        SOCKETS = 8
    };
    uint8_t ask[PROTO_PACKET_MAX];
    struct proto_message message = {0};
    int fds[SOCKETS];

    for (unsigned i = 0; i < SOCKETS; i++)
        MUST((fds[i] = raw_connect()) >= 0 && raw_client_greet(fds[i]));
    for (uint64_t n = 0;; n++) {
        for (unsigned i = 0; i < SOCKETS; i++) {
            message.acquire = (struct proto_acquire){
                .pool = 1 + (uint32_t)(n / 2 % 3), .size_bytes = n % 8 == 0 ? PROTO_SIZE_MAX : 1 + n % 4096};
            size_t size =
                raw_client_encode(&message, n % 2 == 0 ? PROTO_ACQUIRE : PROTO_LIST_POOLS, 2 + n, ask);
            if (send(fds[i], ask, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) {
                close(fds[i]); /* it was sent away: it comes again */
                MUST((fds[i] = raw_connect()) >= 0 && raw_client_greet(fds[i]));
            }
            hear_and_give_back(fds[i]);
        }
        if (n == 200)
            tell(ready);
    }
}

/* Asks until the daemon reads no more, because it keeps replies that are not read; further requests stay in
 * the socket. */
static void never_read(int ready) {
    uint8_t ask[PROTO_PACKET_MAX];
    struct proto_message message = {0};

    for (unsigned i = 0; i < 3; i++) {
        int fd = raw_connect();
        MUST(fd >= 0 && raw_client_greet(fd));
        for (uint64_t n = 2;; n++) {
            size_t size = raw_client_encode(&message, PROTO_LIST_POOLS, n, ask);
            if (send(fd, ask, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
                break;
        }
        MUST(errno == EAGAIN);
    }
    tell(ready);
    pause();
}

static void say_nothing(int ready) {
    for (unsigned round = 0;; round++) {
        for (unsigned i = 0; i < SILENT; i++)
            (void)raw_connect();
        if (round == 0)
            tell(ready);
        pause();
    }
}

/* At most one message, which says what was wrong, comes before the end. */
static void hear_the_end(int fd) {
    char byte;
    if (recv(fd, &byte, sizeof byte, 0) > 0)
        MUST(recv(fd, &byte, sizeof byte, 0) <= 0);
}

/* Half a greeting: a header, and the rest never comes; packets are whole, so that is a packet of its own. */
static void say_half(int ready) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message hello = {.hello = {.magic = PROTO_MAGIC, .version_min = 1, .version_max = 1}};
    size_t size = raw_client_encode(&hello, PROTO_HELLO, 1, packet);

    be_heard_out();
    for (size_t half = 0; half < size; half++) { /* an empty packet is the end of file to who reads it */
        int fd = raw_connect();
        MUST(fd >= 0 && send(fd, packet, half, MSG_NOSIGNAL) == (ssize_t)half);
        hear_the_end(fd);
        close(fd);
        if (half == 1)
            tell(ready);
    }
}

static void come_often(int ready) {
    unsigned greeted = 0;
    for (unsigned i = 0; i < CONNECTIONS; i++) {
        int fd = raw_connect();
        MUST(fd >= 0);
        greeted += raw_client_greet(fd);
    }
    MUST(greeted > 100);
    tell(ready);
    pause();
}

static void send_garbage(int ready) {
    uint8_t garbage[64];

    be_heard_out();
    memset(garbage, 0x5a, sizeof garbage);
    for (unsigned i = 0; i < 300; i++) {
        int fd = raw_connect();
        MUST(fd >= 0 && raw_client_greet(fd));
        MUST(send(fd, garbage, sizeof garbage, MSG_NOSIGNAL) == sizeof garbage);
        hear_the_end(fd);
        close(fd);
        if (i == 10)
            tell(ready);
    }
}

static unsigned count_complaints(void) {
    _cleanup_(freep) char *log = daemon_log(&daemon_);
    unsigned count = 0;
    for (const char *at = log; (at = strstr(at, "does not check out")) != NULL; at++)
        count++;
    return count;
}

static void broken_packets_do_not_flood_the_log(void **state) {
    unsigned before = count_complaints();
    (void)state;
    survive(send_garbage);
    unsigned complaints = count_complaints() - before;
    assert_true(complaints > 0 && complaints < 300);
}

static void floods_of_requests_hold_nobody_up(void **state) {
    (void)state;
    survive(flood);
}

static void who_never_reads_is_read_no_more(void **state) {
    (void)state;
    survive(never_read);
}

static void who_connects_and_says_nothing_makes_room(void **state) {
    (void)state;
    survive(say_nothing);
}

static void half_a_greeting_ends_its_connection(void **state) {
    (void)state;
    survive(say_half);
}

static void one_users_connections_leave_room_for_others(void **state) {
    struct rlimit many = {16384, 16384};
    (void)state;
    if (geteuid() != 0 || prlimit(daemon_.pid, RLIMIT_NOFILE, &many, NULL) < 0)
        skip();
    survive_as(ATTACKER, "come_often", come_often, true);
}

/* --- descriptors --- */

static void attach_descriptors(int ready) {
    uint8_t ask[PROTO_PACKET_MAX], packet[PROTO_PACKET_MAX];
    struct proto_message message = {0};
    int fd = raw_connect(), fds[RIGHTS];

    be_heard_out();
    MUST(fd >= 0 && raw_client_greet(fd));
    for (unsigned i = 0; i < RIGHTS; i++)
        fds[i] = fd;
    for (unsigned i = 0; i < 500; i++) {
        size_t size = raw_client_encode(&message, PROTO_LIST_POOLS, 2 + i, ask);
        /* refused at the door, or more than may be under way */
        if (send_with_fds(fd, ask, size, fds, RIGHTS, MSG_NOSIGNAL) < 0) {
            MUST(errno == EPERM || errno == ETOOMANYREFS);
            MUST(send(fd, ask, size, MSG_NOSIGNAL) == (ssize_t)size);
        }
        MUST(recv(fd, packet, sizeof packet, 0) > 0);
        if (i == 10)
            tell(ready);
    }
}

static void descriptors_that_clients_attach_go_nowhere(void **state) {
    (void)state;
    survive(attach_descriptors);
}

/* A page is a descriptor more for each connection: the daemon has to come to the end of its own. */
static void exhaust(int ready) {
    be_heard_out();
    unsigned refused = 0;
    for (unsigned i = 0; i < 300; i++) {
        int fd = raw_connect();
        MUST(fd >= 0);
        if (!raw_client_greet(fd)) {
            refused++;
            close(fd);
        } else {
            uint8_t packet[PROTO_PACKET_MAX];
            struct proto_message message = {0};
            size_t size = raw_client_encode(&message, PROTO_ASK_PAGE, 2, packet);
            MUST(send(fd, packet, size, MSG_NOSIGNAL) == (ssize_t)size);
            (void)recv(fd, packet, sizeof packet, 0);
        }
        if (refused == 1)
            tell(ready), refused++;
    }
    MUST(refused > 0);
}

static void a_daemon_without_descriptors_goes_on_with_whom_it_has(void **state) {
    struct rlimit before, few;
    (void)state;
    assert_int_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, NULL, &before), 0);
    few = (struct rlimit){descriptors + 60, before.rlim_max};
    assert_int_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, &few, NULL), 0);
    survive_as(0, "exhaust", exhaust, false);
    assert_int_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, &before, NULL), 0);
    struct puppet late;
    puppet_connect(&late, &daemon_);
    live_well(&late, 5);
    puppet_quit(&late);
    come_to_rest("exhaust");
}

static void a_client_without_descriptors_says_so_and_recovers(void **state) {
    struct rlimit before, few;
    struct puppet puppet;
    unsigned failures = 0;
    (void)state;

    puppet_start(&puppet, &daemon_);
    /* Descriptors that a driver opens once in a process, and whose lack it may not survive, are open. */
    PUPPET_MUST(&puppet, puppet_open(&puppet, ""));
    for (unsigned slot = 0; slot < (test_has_device() ? 2 : 1); slot++) {
        unsigned kind = slot == 0 ? GPUPOOL_POOL_HOST : GPUPOOL_POOL_DEVICE;
        PUPPET_MUST(&puppet, puppet_acquire(&puppet, slot, kind, MIB, GPUPOOL_FOREVER, 0));
        PUPPET_MUST(&puppet, puppet_release(&puppet, slot));
    }
    PUPPET_MUST(&puppet, puppet_do(&puppet, PUPPET_CLOSE, 0));
    const struct test_daemon as_if = {.pid = puppet.pid};
    unsigned own = daemon_descriptors(&as_if);
    assert_int_equal(prlimit(puppet.pid, RLIMIT_NOFILE, NULL, &before), 0);
    for (unsigned room = 0; room < 12; room++) {
        few = (struct rlimit){own + room, before.rlim_max};
        assert_int_equal(prlimit(puppet.pid, RLIMIT_NOFILE, &few, NULL), 0);
        int r = puppet_call(&puppet, &(struct puppet_command){.verb = PUPPET_OPEN});
        if (r == 0) {
            r = puppet_acquire(&puppet, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0);
            if (r == 0)
                PUPPET_MUST(&puppet, puppet_release(&puppet, 0));
            else
                assert_true(puppet.answer.text[0] != '\0');
            PUPPET_MUST(&puppet, puppet_do(&puppet, PUPPET_CLOSE, 0));
        } else {
            assert_true(r < 0 && puppet.answer.text[0] != '\0');
        }
        failures += r != 0;
        assert_true(daemon_descriptors(&as_if) <= own + KEPT_MAX);
    }
    assert_true(failures > 0);
    assert_int_equal(prlimit(puppet.pid, RLIMIT_NOFILE, &before, NULL), 0);
    PUPPET_MUST(&puppet, puppet_open(&puppet, ""));
    live_well(&puppet, 3);
    puppet_quit(&puppet);
    come_to_rest("a client without descriptors");
}

/* --- lines --- */

static void lines_that_are_not_quite_json_are_refused_one_by_one(void **state) {
    static const struct {
        const char *line;
        size_t size; /* 0: its length */
    } lines[] = {
        {"{\"command\":\"trim\",\"pool\":01}", 0},
        {"{\"command\":\"trim\",\"pool\":1e400}", 0},
        {"{\"command\":\"trim\",\"pool\":-1}", 0},
        {"{\"command\":\"trim\",\"pool\":1.5}", 0},
        {"{\"command\":\"trim\",\"pool\":9007199254740993}", 0},
        {"{\"command\":\"trim\",\"pool\":4294967296}", 0},
        {"{\"command\":\"trim\",\"pool\":18446744073709551617}", 0},
        {"{\"command\":\"trim\",\"pool\":true}", 0},
        {"{\"command\":\"ping\",\"command\":\"trim\"}", 0},
        {"{\"COMMAND\":\"ping\"}", 0},
        {"{\"Command\":\"ping\"}", 0},
        {"{\"command\":\"Ping\"}", 0},
        {"{\"command\":\"pi\\u0000ng\"}", 0},
        {"{\"command\":\"pi\xff\"}", 0},
        {"{\"command\":\"pi\xc0\xaf\"}", 0},
        {"{\"command\":\"pi\xed\xa0\x80\"}", 0},
        {"{\"command\":\"pi\0ng\"}", 19},
        {"{\"command\":\"ping\x01\"}", 0},
        {"{\"command\":\"ping\"} {}", 0},
        {"{\"command\":\"ping\"", 0},
        {"{\"command\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]}", 0},
        {"[{\"command\":\"ping\"}]", 0},
        {"{\"command\":\"ping\",}", 0},
        {"{'command':'ping'}", 0},
        {"{\"command\":\"ping\"/**/}", 0},
        {"NaN", 0},
        {"", 0},
        {"{}", 0},
        {"null", 0},
    };
    struct puppet good;

    (void)state;
    puppet_connect(&good, &daemon_);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char text[256];
        size_t size = lines[i].size > 0 ? lines[i].size : strlen(lines[i].line);
        if (memchr(lines[i].line, '\0', size) != NULL)
            continue; /* what daemon_ask() cannot send: see the fuzz targets */
        snprintf(text, sizeof text, "%s", lines[i].line);
        cJSON *reply = daemon_ask(&daemon_, text);
        if (cJSON_GetObjectItemCaseSensitive(reply, "error") == NULL)
            fail_msg("'%s' was carried out", text);
        cJSON_Delete(reply);
        live_well(&good, 2);
    }
    puppet_quit(&good);
    come_to_rest("lines");
}

int main(int argc, char **argv) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floods_of_requests_hold_nobody_up),
        cmocka_unit_test(who_never_reads_is_read_no_more),
        cmocka_unit_test(broken_packets_do_not_flood_the_log),
        cmocka_unit_test(who_connects_and_says_nothing_makes_room),
        cmocka_unit_test(half_a_greeting_ends_its_connection),
        cmocka_unit_test(one_users_connections_leave_room_for_others),
        cmocka_unit_test(descriptors_that_clients_attach_go_nowhere),
        cmocka_unit_test(a_daemon_without_descriptors_goes_on_with_whom_it_has),
        cmocka_unit_test(a_client_without_descriptors_says_so_and_recovers),
        cmocka_unit_test(lines_that_are_not_quite_json_are_refused_one_by_one),
    };
    int status = puppet_main(argc, argv, NULL);
    return status >= 0
               ? status
               : test_finish(cmocka_run_group_tests(tests, hostile_start_daemon, hostile_stop_daemon));
}
