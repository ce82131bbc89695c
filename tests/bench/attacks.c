/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/bench/attacks.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/packet.h"
#include "base/units.h"
#include "proto/proto.h"
#include "tests/lingering_socket.h"
#include "tests/raw_client.h"

#define SOCKETS      16u
#define SOCKETS_MANY 1000u /* below the daemon's limit of sessions */
#define SOCKETS_KEPT 2000u /* above what it lets a user leave unread */
#define MAPPINGS     32u
#define RIGHTS       64u
#define NOBODY       65534u
#define TRIM_INTERVAL_NS (20 * NS_PER_MS)

/* Returns -1 where the daemon does not let it in. */
static int connected(void) {
    return raw_client_connect(getenv("GPUPOOL_SOCKET"), SOCK_SEQPACKET, 0);
}

static int greeted(void) {
    int fd = connected();
    return fd >= 0 && raw_client_greet(fd) ? fd : close_fd(fd);
}

/* Sends without waiting; connects anew when the daemon has ended the connection. */
static void push(int *fd, const uint8_t *packet, size_t size) {
    if (*fd >= 0 && send(*fd, packet, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EAGAIN) {
        close(*fd);
        *fd = -1;
    }
    if (*fd < 0)
        *fd = greeted();
}

static void drain(int fd) {
    uint8_t packet[PROTO_PACKET_MAX];
    while (fd >= 0 && recv(fd, packet, sizeof packet, MSG_DONTWAIT) > 0) {
    }
}

/* The n-th request: none of them can be granted. */
static void fill(struct proto_message *message, unsigned operation, uint64_t n) {
    *message = (struct proto_message){0};
    if (operation == PROTO_ACQUIRE)
        message->acquire = (struct proto_acquire){.pool = 1, .size_bytes = PROTO_SIZE_MAX};
    else if (operation == PROTO_RELEASE) /* the other's leases are among these */
        message->release = (struct proto_release){.lease = n % 4096, .generation = n / 4096 % 16};
    else if (operation == PROTO_ATTACH)
        for (size_t i = 0; i < sizeof message->attach.bytes; i++)
            message->attach.bytes[i] = (uint8_t)rand();
}

static void flood_of(bool reads, unsigned operation, unsigned sockets) {
    static int fds[SOCKETS_MANY];
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message;
    struct rlimit many = {4096, 4096};

    setrlimit(RLIMIT_NOFILE, &many);
    for (unsigned i = 0; i < sockets; i++)
        fds[i] = greeted();
    for (uint64_t n = 2;; n++) {
        fill(&message, operation, n);
        size_t size = raw_client_encode(&message, operation, n, packet);
        for (unsigned i = 0; i < sockets; i++) {
            push(&fds[i], packet, size);
            if (reads)
                drain(fds[i]);
        }
    }
}

static void flood_questions(void) {
    flood_of(true, PROTO_LIST_POOLS, SOCKETS);
}

static void flood_from_many(void) {
    flood_of(true, PROTO_LIST_POOLS, SOCKETS_MANY);
}

static void flood_refusals(void) {
    flood_of(true, PROTO_ACQUIRE, SOCKETS);
}

static void release_what_others_have(void) {
    flood_of(true, PROTO_RELEASE, SOCKETS);
}

static void guess_tokens(void) {
    flood_of(true, PROTO_ATTACH, SOCKETS);
}

static void never_read(void) {
    flood_of(false, PROTO_LIST_POOLS, SOCKETS);
}

static void connect_and_leave(void) {
    for (;;) {
        int fd = greeted();
        if (fd >= 0)
            close(fd);
    }
}

static void connect_and_say_nothing(void) {
    struct rlimit many = {4096, 4096};
    int fds[400] = {0};

    setrlimit(RLIMIT_NOFILE, &many);
    for (unsigned i = 0;; i = (i + 1) % 400) {
        if (fds[i] > 0)
            close(fds[i]);
        fds[i] = connected();
    }
}

static void send_garbage(void) {
    uint8_t packet[64];
    memset(packet, 0x5a, sizeof packet);
    for (;;) {
        int fd = greeted();
        if (fd < 0)
            continue;
        (void)send(fd, packet, sizeof packet, MSG_NOSIGNAL);
        close(fd);
    }
}

static void attach_descriptors(void) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message = {0};
    int fd = greeted(), fds[RIGHTS];

    for (uint64_t n = 2;; n++) {
        size_t size = raw_client_encode(&message, PROTO_LIST_POOLS, n, packet);
        for (unsigned i = 0; i < RIGHTS; i++)
            fds[i] = fd;
        if (fd < 0 || send_with_fds(fd, packet, size, fds, RIGHTS, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            push(&fd, packet, size);
        drain(fd);
    }
}

/* A socket in a ring of them; the one that was there goes. */
static int *next_of(int fds[SOCKETS_KEPT]) {
    static unsigned n;
    struct rlimit many = {4096, 4096};

    if (n == 0) {
        setrlimit(RLIMIT_NOFILE, &many);
        for (unsigned i = 0; i < SOCKETS_KEPT; i++)
            fds[i] = -1;
    }
    int *fd = &fds[n++ % SOCKETS_KEPT];
    *fd = close_fd(*fd);
    return fd;
}

/* Says something, ends what it can send, and keeps the socket with the answer in it. */
static void leave_unread(int *fd, const void *bytes, size_t size) {
    if (*fd >= 0 && send(*fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size)
        shutdown(*fd, SHUT_WR);
}

static void end_sessions_unread(void) {
    static int fds[SOCKETS_KEPT];
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message hello = {.hello = RAW_CLIENT_HELLO};

    hello.hello.flags = PROTO_HELLO_RECLAIM;
    size_t size = raw_client_encode(&hello, PROTO_HELLO, 1, packet);
    for (;;) {
        int *fd = next_of(fds);
        *fd = connected();
        leave_unread(fd, packet, size);
    }
}

static void send_garbage_and_stay(void) {
    static int fds[SOCKETS_KEPT];

    for (;;) {
        int *fd = next_of(fds);
        *fd = connected();
        leave_unread(fd, "?", 1);
    }
}

static void ask_the_operators_questions(void) {
    static const char question[] = "{\"command\":\"stats\"}\n";
    static int fds[SOCKETS_KEPT];
    const char *path = getenv("GPUPOOL_ADMIN_SOCKET");

    /* As the user of the uid 65534, if that one gets to the socket: root may ask as much as it likes. */
    if (path != NULL && seteuid(NOBODY) == 0) {
        _cleanup_(close_fdp) int fd = raw_client_connect(path, SOCK_STREAM, 0);
        if (fd < 0)
            (void)!seteuid(0);
    }
    for (;;) {
        int *fd = next_of(fds);
        *fd = path == NULL ? -1 : raw_client_connect(path, SOCK_STREAM, 0);
        leave_unread(fd, question, sizeof question - 1);
    }
}

/* Attached to what is sent over connections that are not accepted yet. */
static void attach_lingering_sockets(void) {
    int peers[SOCKETS] = {0};

    for (unsigned i = 0;; i = (i + 1) % SOCKETS) {
        if (peers[i] > 0)
            close(peers[i]);
        peers[i] = 0;
        int fd = connected(), lingering = lingering_socket(600, &peers[i]);
        (void)send_with_fds(fd, "?", 1, &lingering, 1, MSG_NOSIGNAL);
        close_fd(lingering);
        close_fd(fd);
    }
}

/* A descriptor that comes along goes to *ret_fd, for the caller to close. */
static bool ask(int fd, struct proto_message *message, unsigned operation, int *ret_fd) {
    uint8_t packet[PROTO_PACKET_MAX];
    size_t size = raw_client_encode(message, operation, operation == PROTO_OPENED ? 0 : 2, packet);
    int came = -1;

    if (send(fd, packet, size, MSG_NOSIGNAL) != (ssize_t)size)
        return false;
    if (operation == PROTO_OPENED)
        return true;
    ssize_t n = raw_client_receive(fd, packet, 0, &came);
    if (came >= 0)
        *ret_fd = came;
    return n > 0 && proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, message, NULL) == 0;
}

/* Maps a host segment in a session and says farewell. The mapping is the caller's. NULL: not this time. */
static void *map_and_say_farewell(uint64_t *ret_size_bytes) {
    _cleanup_(close_fdp) int fd = greeted(), memfd = -1;
    struct proto_message message = {0};
    uint32_t pool = 0;

    if (fd < 0 || !ask(fd, &message, PROTO_LIST_POOLS, &memfd))
        return NULL;
    for (uint32_t i = 0; i < message.pools.count; i++)
        if (message.pools.pools[i].kind == PROTO_POOL_HOST)
            pool = message.pools.pools[i].id;
    message.acquire = (struct proto_acquire){.pool = pool, .size_bytes = 2 * MIB};
    if (!ask(fd, &message, PROTO_ACQUIRE, &memfd) || message.header.operation != PROTO_LEASE || memfd < 0)
        return NULL;
    *ret_size_bytes = message.lease.description.size_bytes;
    void *memory = mmap(NULL, *ret_size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    message.opened.segment = message.lease.segment;
    (void)ask(fd, &message, PROTO_OPENED, &memfd);
    (void)ask(fd, &message, PROTO_BYE, &memfd);
    return memory == MAP_FAILED ? NULL : memory;
}

/* As often as an operator's script might. */
static void trim(void) {
    static const char question[] = "{\"command\":\"trim\"}\n";
    static uint64_t next_ns;
    if (clock_now_ns() < next_ns)
        return;
    next_ns = clock_now_ns() + TRIM_INTERVAL_NS;
    const char *path = getenv("GPUPOOL_ADMIN_SOCKET");
    _cleanup_(close_fdp) int fd = path == NULL ? -1 : raw_client_connect(path, SOCK_STREAM, 0);
    char answer[1024];

    if (fd >= 0 && send(fd, question, sizeof question - 1, MSG_NOSIGNAL) > 0)
        (void)!read(fd, answer, sizeof answer);
}

/* The operator trims the pools meanwhile: what was mapped is given up, and made anew for the next session. */
static void keep_memory_after_farewells(void) {
    struct {
        void *memory;
        uint64_t size_bytes;
    } kept[MAPPINGS] = {0};

    for (unsigned i = 0;; i = (i + 1) % MAPPINGS) {
        if (kept[i].memory != NULL)
            munmap(kept[i].memory, kept[i].size_bytes);
        kept[i].memory = map_and_say_farewell(&kept[i].size_bytes);
        trim();
    }
}

const struct attack attacks[] = {
    {"questions", flood_questions},
    {"questions_of_1000_sessions", flood_from_many},
    {"refused_acquires", flood_refusals},
    {"releases_of_others", release_what_others_have},
    {"tokens_guessed", guess_tokens},
    {"replies_never_read", never_read},
    {"sessions_ended_unread", end_sessions_unread},
    {"connect_and_leave", connect_and_leave},
    {"connect_and_say_nothing", connect_and_say_nothing},
    {"garbage", send_garbage},
    {"garbage_unread", send_garbage_and_stay},
    {"admin_unread", ask_the_operators_questions},
    {"descriptors_attached", attach_descriptors},
    {"lingering_sockets_attached", attach_lingering_sockets},
    {"memory_kept", keep_memory_after_farewells},
};
_Static_assert(sizeof attacks / sizeof *attacks == ATTACKS, "as many as the header says");
