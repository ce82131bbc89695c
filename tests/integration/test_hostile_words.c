/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that mean harm by what they say, beside a well-behaved one (tests/integration/hostile.h): every
 * field of every request at its ends, names of what is others', and memory that they were given.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "proto/channel.h"
#include "tests/integration/hostile.h"
#include "tests/wire_fields.h"

#define GUESSES 3000u

/* --- every field at its ends --- */

/* Receives what comes until the answer to this request or the end; takes note of the first lease. Whatever
 * the daemon says has to check out. Returns false at the end. */
static bool hear(int fd, uint64_t request, struct proto_lease *ret_lease) {
    uint8_t packet[PROTO_PACKET_MAX];
    static struct proto_message message;

    for (;;) {
        ssize_t n = recv(fd, packet, sizeof packet, 0); /* without room for descriptors */
        if (n == 0 || (n < 0 && (errno == ECONNRESET || errno == EPIPE)))
            return false;
        MUST(n > 0);
        MUST(proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &message, NULL) == 0);
        uint64_t answered = message.header.request;
        if (message.header.operation == PROTO_LEASE) {
            if (ret_lease != NULL)
                *ret_lease = message.lease;
        }
        if ((message.header.operation == PROTO_LEASE || message.header.operation == PROTO_LEASES) &&
            proto_message_fds(&message) > 0) {
            bool is_one = message.header.operation == PROTO_LEASE;
            struct proto_message opened = {.opened.segment = is_one ? message.lease.segment
                                                                    : message.leases.leases[0].segment};
            uint8_t reply[PROTO_PACKET_MAX];
            size_t size = raw_client_encode(&opened, PROTO_OPENED, 0, reply);
            (void)send(fd, reply, size, MSG_NOSIGNAL);
        }
        if (answered == request)
            return true;
    }
}

/* Of the daemon under attack. The first device pool; without one the host pool, which has no such segments.
 */
static uint32_t host_pool_id, device_pool_id;

/* A message that the daemon would carry out, in a session that has these two leases and a page. */
static size_t make_good(unsigned operation, const struct proto_lease leases[2], uint8_t *packet) {
    struct proto_message message = {0};

    switch (operation) {
    case PROTO_HELLO:
        message.hello = (struct proto_hello){.magic = PROTO_MAGIC, .version_min = 1, .version_max = 1};
        break;
    case PROTO_ACQUIRE:
        message.acquire = (struct proto_acquire){.pool = host_pool_id, .size_bytes = 4096};
        break;
    case PROTO_RELEASE:
    case PROTO_SPLIT:
        message.release = (struct proto_release){.lease = leases[0].lease,
                                                 .generation = leases[0].generation,
                                                 .offset_bytes = 512,
                                                 .size_bytes = 512};
        break;
    case PROTO_MERGE:
        message.merge = (struct proto_merge){leases[0].lease, leases[0].generation, leases[1].lease,
                                             leases[1].generation};
        break;
    case PROTO_SHARE:
        message.share = (struct proto_share){leases[0].lease, leases[0].generation, 0};
        break;
    case PROTO_QUERY:
        message.query = (struct proto_lease_name){leases[0].lease, leases[0].generation};
        break;
    case PROTO_IDLE:
        message.idle = (struct proto_idle){.pool = host_pool_id, .size_bytes = MIB};
        break;
    case PROTO_CLOSED:
        message.closed.segment = leases[0].segment;
        break;
    case PROTO_ACQUIRE_SEGMENTS:
        message.acquire_segments =
            (struct proto_acquire_segments){.pool = device_pool_id, .segment_bytes = 2 * MIB, .count = 2};
        break;
    case PROTO_ASK_HOLDERS:
        message.ask_holders = (struct proto_lease_name){leases[0].lease, leases[0].generation};
        break;
    case PROTO_SEND:
        message.send = (struct proto_send){{leases[0].lease, leases[0].generation, 0, 0, 0}, NS_PER_MS, 1, 0};
        break;
    case PROTO_OFFER:
        message.offer = (struct proto_offer){
            .pool = device_pool_id, .count = 2, .ids = {leases[0].segment, leases[0].segment + 1}};
        break;
    case PROTO_ASK_PARTS:
    case PROTO_DESCRIBE:
        message.describe = (struct proto_part_name){leases[0].lease, leases[0].generation, 0, 0};
        break;
    case PROTO_OPENED:
        message.opened.segment = leases[0].segment;
        break;
    case PROTO_CANCEL:
        message.cancel.request = 77;
        break;
    case PROTO_RECLAIMED:
        message.reclaimed = (struct proto_reclaimed){.pool = host_pool_id, .outcome = PROTO_RECLAIM_DONE};
        break;
    case PROTO_NAME:
        memcpy(message.name.name, "hostile", sizeof "hostile");
        break;
    case PROTO_WRITE_DIRECTORY:
        message.write_directory = (struct proto_directory_part){0, 3, {1, 2, 3}};
        break;
    case PROTO_PUBLISH:
        message.publish = (struct proto_publish){
            .name = "hostile",
            .count = 1,
            .buffers = {{leases[0].lease, leases[0].generation, leases[0].size_bytes, {0}, 0, 0}}};
        break;
    case PROTO_UNPUBLISH:
        memcpy(message.unpublish.name, "hostile", sizeof "hostile");
        break;
    case PROTO_MAKE_CHANNEL:
        message.make_channel = (struct proto_make_channel){.name = "hostile",
                                                           .lease = leases[0].lease,
                                                           .generation = leases[0].generation,
                                                           .slot_bytes = 512,
                                                           .n_slots = 2,
                                                           .n_consumers = 1,
                                                           .policy = PROTO_CHANNEL_WAIT};
        break;
    case PROTO_JOIN_CHANNEL:
        memcpy(message.join_channel.name, "hostile", sizeof "hostile");
        break;
    case PROTO_OPEN_NAME:
        memcpy(message.open_name.name, "hostile", sizeof "hostile");
        break;
    case PROTO_READ_DIRECTORY:
        memcpy(message.read_directory.name, "hostile", sizeof "hostile");
        break;
    default:
        break;
    }
    return raw_client_encode(&message, operation,
                             operation == PROTO_OPENED || operation == PROTO_CANCEL ||
                                     operation == PROTO_RECLAIMED || operation == PROTO_NAME
                                 ? 0
                                 : 77,
                             packet);
}

/* One value in one field of an otherwise good message: an answer, or the end; and a session that is still
 * there serves. */
static void try_field(const struct wire_field *field, uint64_t value) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message = {0};
    struct proto_lease leases[2] = {0};
    int fd = raw_connect();

    MUST(fd >= 0);
    if (field->operation != PROTO_HELLO) {
        MUST(raw_client_greet(fd));
        for (unsigned i = 0; i < 2; i++) {
            message.acquire = (struct proto_acquire){
                .pool = host_pool_id, .size_bytes = 64 * KIB, .timeout_ns = UINT64_MAX};
            size_t size = raw_client_encode(&message, PROTO_ACQUIRE, 10 + i, packet);
            MUST(send(fd, packet, size, MSG_NOSIGNAL) == (ssize_t)size && hear(fd, 10 + i, &leases[i]));
        }
    }
    size_t size = make_good(field->operation, leases, packet);
    wire_set(field, value, packet);
    MUST(send(fd, packet, size, MSG_NOSIGNAL) == (ssize_t)size || errno == EPIPE);
    size = raw_client_encode(&message, PROTO_LIST_POOLS, 99, packet);
    if (send(fd, packet, size, MSG_NOSIGNAL) == (ssize_t)size)
        (void)hear(fd, 99, NULL);
    if (field->operation == PROTO_PUBLISH || field->operation == PROTO_MAKE_CHANNEL) { /* what it keeps would outlive it */
        size = make_good(PROTO_UNPUBLISH, leases, packet);
        (void)send(fd, packet, size, MSG_NOSIGNAL);
    }
    size = raw_client_encode(&message, PROTO_BYE, 100, packet);
    if (send(fd, packet, size, MSG_NOSIGNAL) == (ssize_t)size)
        (void)hear(fd, 100, NULL);
    close(fd);
}

/* A process for each field: what sessions that were ended hold comes back with their process. */
static void try_each(const struct wire_field *field) {
    int status;
    pid_t pid = fork();

    MUST(pid >= 0);
    if (pid == 0) {
        for (size_t v = 0; v < WIRE_EXTREMES; v++)
            try_field(field, wire_extremes[v]);
        try_field(field, POOL_MIB * MIB);
        try_field(field, POOL_MIB * MIB + 1);
        _exit(0);
    }
    MUST(test_reap(pid, &status) == 0);
    MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void try_fields(int ready) {
    be_heard_out();
    tell(ready);
    for (size_t f = 0; f < WIRE_FIELDS; f++) {
        struct wire_field field = wire_fields[f];
        if (!wire_is_number(&field) || !wire_is_from_client(field.operation))
            continue;
        if (field.operation == 0)
            field.operation = PROTO_ACQUIRE;
        try_each(&field);
    }
}

static void every_field_at_its_ends_harms_nobody(void **state) {
    struct proto_message message = {0};
    struct peer peer;
    (void)state;
    peer_open(&daemon_, &peer, 0);
    host_pool_id = device_pool_id = peer.pool;
    peer_ask(&peer, PROTO_LIST_POOLS, &message, PROTO_POOLS);
    for (uint32_t i = message.pools.count; i > 0; i--)
        if (message.pools.pools[i - 1].kind == PROTO_POOL_DEVICE)
            device_pool_id = message.pools.pools[i - 1].id;
    peer_close(&peer);
    survive(try_fields);
}

/* --- what belongs to others --- */

static struct proto_lease others_lease;
static struct proto_token others_token;

static unsigned ask_error(struct peer *peer, unsigned operation, struct proto_message *message) {
    int fd;
    peer_send(peer, operation, message);
    peer_receive(peer, message, &fd);
    close_fd(fd);
    return message->header.operation == PROTO_ERROR ? message->failure.error : 0;
}

static void take_from_others(int ready) {
    struct proto_message message = {0};
    struct peer peer;

    be_heard_out();
    peer_open(&daemon_, &peer, 0);
    struct proto_lease own = peer_acquire(&peer, MIB), twice = peer_acquire(&peer, MIB);
    tell(ready);
    /* what it was told, and what it might guess */
    for (uint64_t id = 1; id < 40; id++)
        for (uint64_t generation = 0; generation < 40; generation++) {
            const struct proto_lease guess = {.lease = id == 39 ? others_lease.lease : id,
                                              .generation = id == 39 ? others_lease.generation + generation
                                                                     : generation};
            if ((guess.lease == own.lease && guess.generation == own.generation) ||
                (guess.lease == twice.lease && guess.generation == twice.generation))
                continue;
            MUST(peer_dispose(&peer, PROTO_RELEASE, &guess, 0, 0, NULL) == PROTO_E_STALE);
            MUST(peer_dispose(&peer, PROTO_RELEASE, &guess, 0, 512, NULL) == PROTO_E_STALE);
            MUST(peer_dispose(&peer, PROTO_SPLIT, &guess, 0, 512, NULL) == PROTO_E_STALE);
            message.share = (struct proto_share){guess.lease, guess.generation, 0};
            MUST(ask_error(&peer, PROTO_SHARE, &message) == PROTO_E_STALE);
            message.query = (struct proto_lease_name){guess.lease, guess.generation};
            MUST(ask_error(&peer, PROTO_QUERY, &message) == PROTO_E_STALE);
            message.merge = (struct proto_merge){own.lease, own.generation, guess.lease, guess.generation};
            MUST(ask_error(&peer, PROTO_MERGE, &message) == PROTO_E_STALE);
            message.merge = (struct proto_merge){guess.lease, guess.generation, own.lease, own.generation};
            MUST(ask_error(&peer, PROTO_MERGE, &message) == PROTO_E_STALE);
            peer_release_one_way(&peer, &guess, 0, 0);
        }
    /* its own, again and with a generation that has passed */
    MUST(peer_release(&peer, &twice) == 0);
    MUST(peer_release(&peer, &twice) == PROTO_E_STALE);
    struct proto_lease anew = peer_acquire(&peer, MIB);
    MUST(peer_release(&peer, &twice) == PROTO_E_STALE);
    MUST(peer_release(&peer, &anew) == 0);
    MUST(peer_release(&peer, &own) == 0);
    peer_close(&peer);
}

static void guess_tokens(int ready) {
    struct proto_message message = {0};
    struct peer peer;

    be_heard_out();
    peer_open(&daemon_, &peer, 0);
    tell(ready);
    for (unsigned i = 0; i < GUESSES; i++) {
        MUST(getrandom(message.attach.bytes, sizeof message.attach.bytes, 0) == sizeof message.attach.bytes);
        if (i % 4 == 1)
            memset(message.attach.bytes, (int)i / 4, sizeof message.attach.bytes);
        if (i % 4 == 2) { /* another user's, as it is and nearly */
            message.attach = others_token;
            message.attach.bytes[i / 4 % sizeof message.attach.bytes] ^= (uint8_t)(i % 3);
        }
        MUST(ask_error(&peer, PROTO_ATTACH, &message) == PROTO_E_NO_TOKEN);
    }
    peer_close(&peer);
}

static void what_belongs_to_others_cannot_be_named(void **state) {
    struct proto_message message = {0};
    struct peer owner;

    (void)state;
    peer_open(&daemon_, &owner, 0);
    others_lease = peer_acquire(&owner, MIB);
    message.share = (struct proto_share){.lease = others_lease.lease, .generation = others_lease.generation};
    peer_ask(&owner, PROTO_SHARE, &message, PROTO_TOKEN);
    others_token = message.token.token;
    for (unsigned round = 0; round < 2; round++) {
        struct puppet good;
        int ready, status;
        if (round == 1 && geteuid() != 0)
            break;
        puppet_connect(&good, &daemon_);
        pid_t pid =
            attacker_start(round == 0 ? 0 : ATTACKER, round == 0 ? take_from_others : guess_tokens, &ready);
        while (waitpid(pid, &status, WNOHANG) == 0)
            live_well(&good, 5);
        close(ready);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
        puppet_quit(&good);
        message.query = (struct proto_lease_name){others_lease.lease, others_lease.generation};
        peer_ask(&owner, PROTO_QUERY, &message, PROTO_INFO);
        assert_int_equal(message.info.holders, 1);
    }
    /* a token ends with what it names */
    assert_int_equal(peer_release(&owner, &others_lease), 0);
    message.attach = others_token;
    assert_int_equal(ask_error(&owner, PROTO_ATTACH, &message), PROTO_E_NO_TOKEN);
    struct proto_lease again = peer_acquire(&owner, MIB); /* the same memory, most likely */
    message.attach = others_token;
    assert_int_equal(ask_error(&owner, PROTO_ATTACH, &message), PROTO_E_NO_TOKEN);
    assert_int_equal(peer_release(&owner, &again), 0);
    peer_close(&owner);
    come_to_rest("what belongs to others");
}

/* --- memory that it was given --- */

static void mistreat_memfds(int ready) {
    struct proto_message message;
    struct peer peer;
    int fd;

    be_heard_out();
    peer_open(&daemon_, &peer, 0);
    peer_send_acquire(&peer, MIB, NS_FOREVER);
    peer_receive(&peer, &message, &fd);
    MUST(message.header.operation == PROTO_LEASE && fd >= 0);
    uint64_t size = message.lease.description.size_bytes;
    const struct proto_lease lease = message.lease;
    MUST(ftruncate(fd, 0) < 0 && errno == EPERM);
    MUST(ftruncate(fd, (off_t)size + 4096) < 0 && errno == EPERM);
    MUST(fallocate(fd, 0, (off_t)size, 4096) < 0);
    const int seals[] = {F_SEAL_WRITE, F_SEAL_FUTURE_WRITE, F_SEAL_SHRINK, F_SEAL_SEAL};
    for (unsigned i = 0; i < sizeof seals / sizeof *seals; i++)
        MUST(fcntl(fd, F_ADD_SEALS, seals[i]) < 0 && errno == EPERM);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_RDWR | O_TRUNC | O_CLOEXEC);
    MUST(again < 0 || lseek(again, 0, SEEK_END) == (off_t)size);
    close_fd(again);
    tell(ready);
    for (unsigned i = 0; i < 300; i++) { /* holes may be punched: in its own user's memory */
        MUST(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)size) == 0);
        MUST(write(fd, "x", 1) == 1 && lseek(fd, 0, SEEK_SET) == 0);
    }
    message.opened.segment = lease.segment;
    peer_send(&peer, PROTO_OPENED, &message);
    MUST(peer_release(&peer, &lease) == 0);
    close(fd);
    peer_close(&peer);
}

static void holes_in_ones_own_memory_are_no_others(void **state) {
    (void)state;
    if (geteuid() != 0)
        skip();
    survive_as(ATTACKER, "mistreat_memfds", mistreat_memfds, true);
}

int main(int argc, char **argv) {
    test_needs_memfds();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_at_its_ends_harms_nobody),
        cmocka_unit_test(what_belongs_to_others_cannot_be_named),
        cmocka_unit_test(holes_in_ones_own_memory_are_no_others),
    };
    int status = puppet_main(argc, argv, NULL);
    return status >= 0
               ? status
               : test_finish(cmocka_run_group_tests(tests, hostile_start_daemon, hostile_stop_daemon));
}
