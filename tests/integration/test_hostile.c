/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that mean harm, beside a well-behaved one that takes, fills, checks and gives back all the time and
 * never sees an error. An attacker is a process of its own, so that what it leaves behind comes back with its
 * end; after each, nothing is leased, quarantined or waiting, and the daemon has as many descriptors as
 * before. What the well-behaved client's times are meanwhile is measured by tests/bench, not here.
 */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "tests/integration/puppet.h"
#include "tests/integration/wire_peer.h"
#include "tests/send_fds.h"

#define POOL_MIB    32u
#define ATTACKER    12345u /* a uid that nobody has */
#define CONNECTIONS 1024u
#define SILENT      400u /* more than the daemon lets be about to greet */
#define GUESSES     3000u
#define RIGHTS      SEND_FDS_MAX

static char config[TEST_CONFIG_SIZE];
static struct test_daemon daemon_;
static unsigned descriptors;

/* All but those of the segments. */
static unsigned count_descriptors(void) {
    unsigned segments = (unsigned)daemon_sum(&daemon_, "segments");
    return daemon_descriptors(&daemon_) - segments;
}

static bool is_at_rest(void) {
    return daemon_sum(&daemon_, "quarantined_bytes") == 0 && daemon_sum(&daemon_, "leases") == 0 &&
           daemon_sum(&daemon_, "waiters") == 0 && daemon_number(&daemon_, "sessions") == 0;
}

static void live_well(struct puppet *puppet, unsigned rounds) {
    PUPPET_MUST(puppet, puppet_call(puppet, &(struct puppet_command){.verb = PUPPET_ROUNDS,
                                                                     .kind = GPUPOOL_POOL_HOST,
                                                                     .size = 256 * KIB,
                                                                     .seed = rounds,
                                                                     .number = rounds}));
    assert_int_equal(puppet->answer.number, rounds);
}

static int start_daemon(void **state) {
    struct puppet victim;
    (void)state;
    daemon_start(&daemon_, &(struct daemon_options){.config = test_config(config, POOL_MIB, POOL_MIB),
                                                    .for_all_users = true});
    /* What the daemon opens once and keeps is not to be counted later. */
    puppet_connect(&victim, &daemon_);
    live_well(&victim, 2);
    if (test_has_device())
        PUPPET_MUST(&victim, puppet_acquire(&victim, 1, GPUPOOL_POOL_DEVICE, MIB, GPUPOOL_FOREVER, 0));
    PUPPET_MUST(&victim, puppet_acquire(&victim, 0, GPUPOOL_POOL_HOST, MIB, GPUPOOL_FOREVER, 0));
    puppet_kill(&victim);
    WAIT_UNTIL(is_at_rest());
    descriptors = count_descriptors();
    return 0;
}

static int stop_daemon(void **state) {
    (void)state;
    daemon_stop(&daemon_);
    return 0;
}

/* Must hold in an attacker, where nobody would see an assertion of cmocka's; the line is the exit status. */
#define MUST(holds)                                                                                          \
    do {                                                                                                     \
        if (!(holds)) {                                                                                      \
            fprintf(stderr, "attacker: line %d: %s (%s)\n", __LINE__, #holds, strerror(errno));              \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

static int raw_connect(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval timeout = {.tv_sec = (time_t)(TEST_WAIT_NS / NS_PER_S)};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", daemon_.socket);
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        fd = close_fd(fd);
    return fd;
}

static size_t make(struct proto_message *message, unsigned operation, uint64_t request, uint8_t *packet) {
    message->header = (struct proto_header){.operation = (uint16_t)operation, .request = request};
    return proto_encode(message, packet);
}

static bool greet(int fd) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message hello = {
        .hello = {.magic = PROTO_MAGIC, .version_min = PROTO_VERSION_MIN, .version_max = PROTO_VERSION_MAX}};
    size_t size = make(&hello, PROTO_HELLO, 1, packet);
    if (send(fd, packet, size, MSG_NOSIGNAL) != (ssize_t)size)
        return false;
    ssize_t n = recv(fd, packet, sizeof packet, 0);
    return n > 0 && proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &hello, NULL) == 0 &&
           hello.header.operation == PROTO_HELLO_REPLY;
}

/* --- the frame: one attacker, one good client from before, and one that comes meanwhile --- */

static void survive_as(uid_t uid, void (*attack)(int ready), bool newcomers) {
    struct puppet good, late;
    int ready[2];
    char byte;

    puppet_connect(&good, &daemon_);
    assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct rlimit many = {4096, 4096};
        setrlimit(RLIMIT_NOFILE, &many);
        if (uid != 0 && (setgroups(0, NULL) < 0 || setgid(uid) < 0 || setuid(uid) < 0))
            _exit(98);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        attack(ready[1]);
        _exit(0);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1); /* it has begun; its end before that is a failure */
    close(ready[0]);
    live_well(&good, 30);
    if (newcomers) {
        puppet_connect(&late, &daemon_);
        live_well(&late, 10);
        puppet_quit(&late);
    }
    int status = 0;
    if (waitpid(pid, &status, WNOHANG) == 0) {
        /* those that come to an end by themselves have things to say by their status */
        uint64_t end_ns = clock_now_ns() + 20 * NS_PER_S;
        kill(pid, SIGUSR1); /* ends those that go on for ever */
        while (waitpid(pid, &status, WNOHANG) == 0) {
            assert_true(clock_now_ns() < end_ns);
            live_well(&good, 5);
        }
    }
    if (!(WIFSIGNALED(status) && WTERMSIG(status) == SIGUSR1) &&
        !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        fail_msg("the attacker ended with status 0x%x", (unsigned)status);
    live_well(&good, 10);
    puppet_quit(&good);
    WAIT_UNTIL(is_at_rest());
    assert_int_equal(daemon_sum(&daemon_, "leased_bytes") + daemon_sum(&daemon_, "fenced_bytes"), 0);
    WAIT_UNTIL(count_descriptors() == descriptors);
}

static void survive(void (*attack)(int ready)) {
    survive_as(0, attack, true);
}

static void tell(int ready) {
    MUST(write(ready, "", 1) == 1);
}

/* An attacker that has to come to its end: it is not to be ended by the frame. */
static void be_heard_out(void) {
    signal(SIGUSR1, SIG_IGN);
}

/* --- floods, and connections --- */

static void flood(int ready) {
    enum {
        SOCKETS = 8
    };
    uint8_t ask[PROTO_PACKET_MAX], packet[PROTO_PACKET_MAX];
    struct proto_message message = {0};
    int fds[SOCKETS];

    for (unsigned i = 0; i < SOCKETS; i++)
        MUST((fds[i] = raw_connect()) >= 0 && greet(fds[i]));
    for (uint64_t n = 0;; n++) {
        for (unsigned i = 0; i < SOCKETS; i++) {
            message.acquire =
                (struct proto_acquire){.pool = 1 + (uint32_t)(n % 3), .size_bytes = 1 + n % (64 * MIB)};
            size_t size = make(&message, n % 2 == 0 ? PROTO_ACQUIRE : PROTO_LIST_POOLS, 2 + n, ask);
            if (send(fds[i], ask, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) {
                close(fds[i]); /* it was sent away: it comes again */
                MUST((fds[i] = raw_connect()) >= 0 && greet(fds[i]));
            }
            while (recv(fds[i], packet, sizeof packet, MSG_DONTWAIT) > 0) {
            }
        }
        if (n == 200)
            tell(ready);
    }
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

/* Half a greeting: a header, and the rest never comes; packets are whole, so that is a packet of its own. */
static void say_half(int ready) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message hello = {.hello = {.magic = PROTO_MAGIC, .version_min = 1, .version_max = 1}};
    size_t size = make(&hello, PROTO_HELLO, 1, packet);

    be_heard_out();
    for (size_t half = 0; half < size; half++) { /* an empty packet is the end of file to who reads it */
        int fd = raw_connect();
        char byte;
        MUST(fd >= 0 && send(fd, packet, half, MSG_NOSIGNAL) == (ssize_t)half);
        MUST(recv(fd, &byte, 1, 0) <= 0);
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
        greeted += greet(fd);
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
        char byte[PROTO_PACKET_MAX];
        int fd = raw_connect();
        MUST(fd >= 0 && greet(fd));
        MUST(send(fd, garbage, sizeof garbage, MSG_NOSIGNAL) == sizeof garbage);
        MUST(recv(fd, byte, sizeof byte, 0) <= 0);
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
    survive_as(ATTACKER, come_often, true);
}

/* --- descriptors --- */

static void attach_descriptors(int ready) {
    uint8_t ask[PROTO_PACKET_MAX], packet[PROTO_PACKET_MAX];
    struct proto_message message = {0};
    int fd = raw_connect(), fds[RIGHTS];

    be_heard_out();
    MUST(fd >= 0 && greet(fd));
    for (unsigned i = 0; i < RIGHTS; i++)
        fds[i] = fd;
    for (unsigned i = 0; i < 500; i++) {
        size_t size = make(&message, PROTO_LIST_POOLS, 2 + i, ask);
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
        if (!greet(fd)) {
            refused++;
            close(fd);
        } else {
            uint8_t packet[PROTO_PACKET_MAX];
            struct proto_message message = {0};
            size_t size = make(&message, PROTO_ASK_PAGE, 2, packet);
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
    survive_as(0, exhaust, false);
    assert_int_equal(prlimit(daemon_.pid, RLIMIT_NOFILE, &before, NULL), 0);
    struct puppet late;
    puppet_connect(&late, &daemon_);
    live_well(&late, 5);
    puppet_quit(&late);
    WAIT_UNTIL(is_at_rest());
}

static void a_client_without_descriptors_says_so_and_recovers(void **state) {
    struct rlimit before, few;
    struct puppet puppet;
    unsigned failures = 0;
    (void)state;

    puppet_start(&puppet, &daemon_);
    PUPPET_MUST(&puppet, puppet_do(&puppet, PUPPET_COPY, 0));
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
        assert_true(daemon_descriptors(&as_if) <= own + 2); /* what a simulated driver keeps */
    }
    assert_true(failures > 0);
    assert_int_equal(prlimit(puppet.pid, RLIMIT_NOFILE, &before, NULL), 0);
    PUPPET_MUST(&puppet, puppet_open(&puppet, ""));
    live_well(&puppet, 3);
    puppet_quit(&puppet);
    WAIT_UNTIL(is_at_rest());
}

/* --- every field at its ends --- */

struct field {
    unsigned operation;
    size_t offset, size;
};

#define FIELD(operation, type, member)                                                                       \
    {                                                                                                        \
        operation, sizeof(struct proto_header) + offsetof(struct type, member),                              \
            sizeof(((struct type *)0)->member)                                                               \
    }
#define HEADER(member)                                                                                       \
    { PROTO_ACQUIRE, offsetof(struct proto_header, member), sizeof(((struct proto_header *)0)->member) }
static const struct field fields[] = {
    HEADER(operation),
    HEADER(reserved),
    HEADER(length),
    HEADER(request),
    FIELD(PROTO_HELLO, proto_hello, magic),
    FIELD(PROTO_HELLO, proto_hello, version_min),
    FIELD(PROTO_HELLO, proto_hello, version_max),
    FIELD(PROTO_HELLO, proto_hello, flags),
    FIELD(PROTO_HELLO, proto_hello, reserved),
    FIELD(PROTO_ACQUIRE, proto_acquire, pool),
    FIELD(PROTO_ACQUIRE, proto_acquire, flags),
    FIELD(PROTO_ACQUIRE, proto_acquire, size_bytes),
    FIELD(PROTO_ACQUIRE, proto_acquire, timeout_ns),
    FIELD(PROTO_RELEASE, proto_release, lease),
    FIELD(PROTO_RELEASE, proto_release, generation),
    FIELD(PROTO_RELEASE, proto_release, offset_bytes),
    FIELD(PROTO_RELEASE, proto_release, size_bytes),
    FIELD(PROTO_RELEASE, proto_release, fence),
    FIELD(PROTO_RELEASE, proto_release, reserved),
    FIELD(PROTO_RELEASE, proto_release, fence_value),
    FIELD(PROTO_SPLIT, proto_release, lease),
    FIELD(PROTO_SPLIT, proto_release, generation),
    FIELD(PROTO_SPLIT, proto_release, offset_bytes),
    FIELD(PROTO_SPLIT, proto_release, size_bytes),
    FIELD(PROTO_SPLIT, proto_release, fence),
    FIELD(PROTO_SPLIT, proto_release, fence_value),
    FIELD(PROTO_MERGE, proto_merge, lease),
    FIELD(PROTO_MERGE, proto_merge, generation),
    FIELD(PROTO_MERGE, proto_merge, other_lease),
    FIELD(PROTO_MERGE, proto_merge, other_generation),
    FIELD(PROTO_SHARE, proto_share, lease),
    FIELD(PROTO_SHARE, proto_share, generation),
    FIELD(PROTO_SHARE, proto_share, size_bytes),
    FIELD(PROTO_QUERY, proto_lease_name, lease),
    FIELD(PROTO_QUERY, proto_lease_name, generation),
    FIELD(PROTO_OPENED, proto_opened, segment),
    FIELD(PROTO_IDLE, proto_idle, pool),
    FIELD(PROTO_IDLE, proto_idle, reserved),
    FIELD(PROTO_IDLE, proto_idle, size_bytes),
    FIELD(PROTO_CLOSED, proto_closed, segment),
};

static const uint64_t extremes[] = {
    0,
    1,
    2,
    POOL_MIB *MIB,
    POOL_MIB *MIB + 1,
    MIB,
    MIB + 1,
    PROTO_PAGE_FENCES,
    PROTO_PAGE_FENCES + 1,
    PROTO_POOLS_MAX + 1,
    PROTO_PACKET_MAX + 1,
    PROTO_SIZE_MAX,
    PROTO_SIZE_MAX + 1,
    UINT64_C(1) << 31,
    UINT32_MAX,
    UINT64_C(1) << 32,
    INT64_MAX,
    UINT64_C(1) << 63,
    UINT64_MAX - 511,
    UINT64_MAX,
};

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
            if (message.lease.description.kind == PROTO_SEGMENT_MEMFD) {
                struct proto_message opened = {.opened.segment = message.lease.segment};
                uint8_t reply[PROTO_PACKET_MAX];
                size_t size = make(&opened, PROTO_OPENED, 0, reply);
                (void)send(fd, reply, size, MSG_NOSIGNAL);
            }
        }
        if (answered == request)
            return true;
    }
}

static uint32_t host_pool_id; /* of the daemon under attack */

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
    case PROTO_OPENED:
        message.opened.segment = leases[0].segment;
        break;
    default:
        break;
    }
    return make(&message, operation, operation == PROTO_OPENED ? 0 : 77, packet);
}

/* One value in one field of an otherwise good message: an answer, or the end; and a session that is still
 * there serves. */
static void try_field(const struct field *field, uint64_t value) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message = {0};
    struct proto_lease leases[2] = {0};
    int fd = raw_connect();

    MUST(fd >= 0);
    if (field->operation != PROTO_HELLO) {
        MUST(greet(fd));
        for (unsigned i = 0; i < 2; i++) {
            message.acquire = (struct proto_acquire){
                .pool = host_pool_id, .size_bytes = 64 * KIB, .timeout_ns = UINT64_MAX};
            size_t size = make(&message, PROTO_ACQUIRE, 10 + i, packet);
            MUST(send(fd, packet, size, MSG_NOSIGNAL) == (ssize_t)size && hear(fd, 10 + i, &leases[i]));
        }
    }
    size_t size = make_good(field->operation, leases, packet);
    memcpy(packet + field->offset, &value, field->size); /* little-endian: the low bytes */
    MUST(send(fd, packet, size, MSG_NOSIGNAL) == (ssize_t)size || errno == EPIPE);
    size = make(&message, PROTO_LIST_POOLS, 99, packet);
    if (send(fd, packet, size, MSG_NOSIGNAL) == (ssize_t)size)
        (void)hear(fd, 99, NULL);
    size = make(&message, PROTO_BYE, 100, packet);
    if (send(fd, packet, size, MSG_NOSIGNAL) == (ssize_t)size)
        (void)hear(fd, 100, NULL);
    close(fd);
}

/* A process for each field: what sessions that were ended hold comes back with their process. */
static void try_fields(int ready) {
    be_heard_out();
    tell(ready);
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
        int status;
        pid_t pid = fork();
        MUST(pid >= 0);
        if (pid == 0) {
            for (size_t v = 0; v < sizeof extremes / sizeof *extremes; v++)
                try_field(&fields[f], extremes[v]);
            _exit(0);
        }
        MUST(waitpid(pid, &status, 0) == pid);
        MUST(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void every_field_at_its_ends_harms_nobody(void **state) {
    struct peer peer;
    (void)state;
    peer_open(&daemon_, &peer, 0);
    host_pool_id = peer.pool;
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
    message.share = (struct proto_share){others_lease.lease, others_lease.generation, 0};
    peer_ask(&owner, PROTO_SHARE, &message, PROTO_TOKEN);
    others_token = message.token;
    for (unsigned round = 0; round < 2; round++) {
        struct puppet good;
        int ready[2], status;
        if (round == 1 && geteuid() != 0)
            break;
        puppet_connect(&good, &daemon_);
        assert_int_equal(pipe2(ready, O_CLOEXEC), 0);
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            if (round == 1 && (setgroups(0, NULL) < 0 || setgid(ATTACKER) < 0 || setuid(ATTACKER) < 0))
                _exit(98);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (round == 0)
                take_from_others(ready[1]);
            else
                guess_tokens(ready[1]);
            _exit(0);
        }
        close(ready[1]);
        close(ready[0]);
        while (waitpid(pid, &status, WNOHANG) == 0)
            live_well(&good, 5);
        (void)ready;
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
    WAIT_UNTIL(is_at_rest());
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
    survive_as(ATTACKER, mistreat_memfds, true);
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
    WAIT_UNTIL(is_at_rest());
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floods_of_requests_hold_nobody_up),
        cmocka_unit_test(broken_packets_do_not_flood_the_log),
        cmocka_unit_test(who_connects_and_says_nothing_makes_room),
        cmocka_unit_test(half_a_greeting_ends_its_connection),
        cmocka_unit_test(one_users_connections_leave_room_for_others),
        cmocka_unit_test(descriptors_that_clients_attach_go_nowhere),
        cmocka_unit_test(a_daemon_without_descriptors_goes_on_with_whom_it_has),
        cmocka_unit_test(a_client_without_descriptors_says_so_and_recovers),
        cmocka_unit_test(every_field_at_its_ends_harms_nobody),
        cmocka_unit_test(what_belongs_to_others_cannot_be_named),
        cmocka_unit_test(holes_in_ones_own_memory_are_no_others),
        cmocka_unit_test(lines_that_are_not_quite_json_are_refused_one_by_one),
    };
    int status = puppet_main(argc, argv, NULL);
    if (status < 0 && !test_is_simulated() && test_has_device()) {
        fputs("made for the simulation: tests/bench/hostile.c is what looks at this on a GPU\n", stderr);
        return 77;
    }
    return status >= 0 ? status : test_finish(cmocka_run_group_tests(tests, start_daemon, stop_daemon));
}
