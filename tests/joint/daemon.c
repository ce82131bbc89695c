/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon around its core: it reads packets by the real handlers, one connection at a time, in any order
 * of the connections. It carries out what the core decides: at once, but for growths, which take a while and
 * fail now and then.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/core.h"
#include "daemon/core/pool.h"
#include "daemon/core/session.h"
#include "daemon/core/types.h"
#include "daemon/data/clients.h"
#include "daemon/data/requests.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/identity.h"
#include "daemon/supply/backing.h"
#include "daemon/supply/pools.h"
#include "tests/joint/peer.h"
#include "tests/joint/wrapped.h"

#define PEERS_MAX 64u

static struct joint_peer peers[PEERS_MAX];
static struct desk desk; /* there is no estate */
static struct clients clients;
static struct machine machine = {.gpu_kind = PROTO_GPU_CUDA};
static struct identity identity;
static char quarantine_reason[] = "the simulated process may still use it";

static struct growing {
    struct pool *pool; /* NULL: none */
    uint64_t size_bytes;
} growing[JOINT_POOLS];
static struct segment *retiring[JOINT_SEGMENTS];
static unsigned n_retiring;

void daemon_count_error(unsigned client, unsigned error, const char *text) {
    if (error == PROTO_E_STALE || error == PROTO_E_INVALID || error == PROTO_E_SHARED)
        if (!world.daemon_sleeps) { /* else the client may not have heard of an answer */
            static char what[256];
            snprintf(what, sizeof what, "the daemon refuses a name of client %u: %s", client, text);
            world_fail(what, proto_error_text(error), __FILE__, __LINE__);
        }
}

int daemon_find_inode(uint64_t inode) {
    for (unsigned i = 0; i < world.n_segments; i++)
        if (world.segments[i].is_used && world.segments[i].inode == inode)
            return (int)i;
    return -1;
}

/* --- connections --- */

void daemon_accept(int fd, unsigned client) {
    unsigned i = 0;

    while (i < PEERS_MAX && peers[i].is_used)
        i++;
    must(i < PEERS_MAX, "the simulator has no room for a connection");
    peers[i] = (struct joint_peer){.is_used = true, .client = client};
    struct client *record = &peers[i].record;
    record->clients = &clients;
    record->state = CLIENT_GREETING;
    record->connection.fd = fd;
    outbox_init(&record->connection.outbox, fd, &desk);
    record->peer = (struct peer){
        .pid = (pid_t)(1000 + client), .uid = world_uid(client), .gid = 1000, .command = "program"};
    record->reclaim_fd = record->pidfd = record->page.fd = -1;
}

struct session *daemon_session(unsigned client) {
    for (unsigned i = 0; i < PEERS_MAX; i++)
        if (peers[i].is_used && !peers[i].is_lost && peers[i].client == client)
            return peers[i].record.session;
    return NULL;
}

bool daemon_has(unsigned client) {
    for (unsigned i = 0; i < PEERS_MAX; i++)
        if (peers[i].is_used && peers[i].client == client)
            return true;
    return false;
}

void daemon_tell(void) {
    for (unsigned i = 0; i < PEERS_MAX; i++) {
        const struct outbox *outbox = &peers[i].record.connection.outbox;
        if (peers[i].is_used)
            fprintf(stderr,
                    "connection of client %u: lost %d, replies %u, awaits %" PRIu64
                    ", full %d, unread %" PRIu64 "\n",
                    peers[i].client, peers[i].is_lost, outbox->n_replies, outbox->awaited_segment,
                    outbox->full, outbox_unread_bytes(outbox->fd));
    }
}

bool daemon_has_lost(void) {
    for (unsigned i = 0; i < PEERS_MAX; i++)
        if (peers[i].is_used && peers[i].is_lost)
            return true;
    return false;
}

static void forget(struct joint_peer *peer) {
    struct client *record = &peer->record;

    outbox_drop(&record->connection.outbox, NULL);
    if (record->board != NULL)
        board_leave(&record->clients->boards, record->board, record->board_slot, false);
    if (record->page.memory != NULL)
        __real_munmap(record->page.memory, PROTO_PAGE_BYTES);
    if (record->page.fd >= 0)
        __real_close(record->page.fd);
    if (record->reclaim_fd >= 0)
        __real_close(record->reclaim_fd);
    peer->is_used = false;
}

/* The connection is over: its session's memory waits for the process's end, unless it said farewell. */
static void end(struct joint_peer *peer) {
    struct client *record = &peer->record;

    __real_close(record->connection.fd);
    record->connection.fd = -1;
    if (record->session == NULL) {
        forget(peer);
        return;
    }
    outbox_drop(&record->connection.outbox, record->session);
    if (record->session->n_segments == 0 && record->board == NULL) {
        core_session_close(record->session, world.now_ns);
        record->session = NULL;
        forget(peer);
        return;
    }
    record->state = CLIENT_LOST;
    core_session_lose(record->session, world.now_ns, quarantine_reason);
    peer->is_lost = true;
}

void daemon_break(void) {
    for (unsigned i = 0; i < PEERS_MAX; i++)
        if (peers[i].is_used && !peers[i].is_lost)
            end(&peers[i]);
}

/* The process of a lost session is over, or has closed what it had, and the GPU is done. */
static bool reap(void) {
    for (unsigned i = 0; i < PEERS_MAX; i++) {
        struct joint_peer *peer = &peers[i];
        const struct joint_client *client = &world.clients[peer->client];
        if (!peer->is_used || !peer->is_lost || (client->is_open && !client->is_killed) ||
            !gpu_is_idle(peer->client))
            continue;
        if (client->is_killed)
            gpu_forget(peer->client);
        core_session_gone(peer->record.session, world.now_ns);
        peer->record.session = NULL;
        forget(peer);
        world.tally->reaped++;
        return true;
    }
    return false;
}

/* --- packets --- */

/* Reads a packet. False: none is there. */
static bool serve(struct joint_peer *peer) {
    struct client *record = &peer->record;
    struct outbox *outbox = &record->connection.outbox;
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message;
    const char *reason = "";

    if (outbox_is_stuck(outbox)) {
        int r = outbox_flush(outbox, record->session);
        if (r < 0) {
            end(peer);
            return true;
        }
        return true; /* also where the socket is full: it is not for long */
    }
    struct iovec piece = {packet, sizeof packet};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
    ssize_t n = __real_recvmsg(record->connection.fd, &header, MSG_DONTWAIT);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0) {
        end(peer);
        return true;
    }
    if (proto_decode(PROTO_FROM_CLIENT, packet, (size_t)n, &message, &reason) < 0)
        world_fail(reason, "a packet checks out", __FILE__, __LINE__);
    int r = request_handle(record, &message);
    if (r < 0) {
        must(r == -ESHUTDOWN || r == -EPIPE || r == -ECONNRESET, "the daemon serves a packet");
        end(peer);
    }
    return true;
}

static bool serve_any(void) {
    unsigned start = (unsigned)random_below(PEERS_MAX);

    for (unsigned i = 0; i < PEERS_MAX; i++) {
        struct joint_peer *peer = &peers[(start + i) % PEERS_MAX];
        if (peer->is_used && !peer->is_lost && serve(peer))
            return true;
    }
    return false;
}

/* --- what the core decides --- */

static void send_answer(const struct answer *answer) {
    struct client *record = answer->session->owner;
    if (record->state == CLIENT_OPEN && request_send_answer(record, answer) < 0)
        end(joint_peer_of(record));
}

static void carry_out(void) {
    struct answer answer;
    struct pool *pool;
    struct segment *segment;
    struct session *session;
    struct long_wait wait;
    uint64_t size_bytes, one = 1;
    bool more = true;

    while (more) {
        more = false;
        while (core_next_answer(world.core, &answer)) {
            send_answer(&answer);
            core_answer_sent(&answer, world.now_ns);
            more = true;
        }
        while (core_next_growth(world.core, &pool, &size_bytes))
            growing[pool->id - 1] = (struct growing){pool, size_bytes};
        while (core_next_retirement(world.core, &segment))
            retiring[n_retiring++] = segment;
        while (core_next_reclaim(world.core, &session)) {
            struct client *record = session->owner;
            world.tally->questions++;
            (void)!__real_write(record->reclaim_fd, &one, sizeof one);
        }
        while (core_next_long_wait(world.core, world.now_ns, &wait)) {
        }
    }
}

static struct backing *make_backing(struct joint_segment *segment, unsigned number) {
    static const enum proto_segment_kind kinds[] = {PROTO_SEGMENT_VMM_FD, PROTO_SEGMENT_LEGACY_IPC,
                                                    PROTO_SEGMENT_MEMFD};
    struct backing *backing = memset(malloc(sizeof *backing), 0, sizeof *backing);
    struct stat status;

    backing->kind = kinds[segment->pool];
    backing->size_bytes = segment->size_bytes;
    backing->fd = -1;
    memcpy(backing->handle.bytes, &number, sizeof number);
    if (backing->kind == PROTO_SEGMENT_LEGACY_IPC)
        return backing;
    backing->fd = memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(backing->fd >= 0 && ftruncate(backing->fd, (off_t)segment->size_bytes) == 0 &&
             fcntl(backing->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 &&
             fstat(backing->fd, &status) == 0,
         "a segment can be made");
    segment->inode = status.st_ino;
    return backing;
}

static bool grow(void) {
    unsigned p = (unsigned)random_below(JOINT_POOLS), looked = 0;
    for (; looked < JOINT_POOLS && growing[p].pool == NULL; looked++)
        p = (p + 1) % JOINT_POOLS;
    if (looked == JOINT_POOLS || (!world.is_calm && world.growth_waits > 0 && !one_in(world.growth_waits)))
        return false;
    struct growing done = growing[p];
    growing[p].pool = NULL;
    if (!world.is_calm && one_in(world.growth_fails)) {
        world.tally->failed_growths++;
        core_growth_failed(done.pool, "cudaErrorMemoryAllocation", world.now_ns);
        return true;
    }
    must(world.n_segments < JOINT_SEGMENTS, "the simulator has no room for a segment");
    unsigned number = world.n_segments++;
    struct joint_segment *segment = &world.segments[number];
    *segment = (struct joint_segment){.is_used = true, .size_bytes = done.size_bytes, .pool = p};
    segment->backing = make_backing(segment, number);
    segment->id = world.core->next_segment_id + 1;
    must(core_segment_made(done.pool, done.size_bytes, segment->backing, world.now_ns) == 0,
         "the core takes a segment");
    world.tally->growths++;
    return true;
}

static unsigned number_of(const struct segment *segment) {
    for (unsigned i = 0; i < world.n_segments; i++)
        if (world.segments[i].is_used && world.segments[i].backing == segment->backing)
            return i;
    world_fail("the core knows a segment that was not made", "", __FILE__, __LINE__);
}

static bool retire(void) {
    if (n_retiring == 0)
        return false;
    struct segment *segment = retiring[--n_retiring];
    struct joint_segment *where = &world.segments[number_of(segment)];
    struct backing *backing = segment->backing;
    for (unsigned c = 0; c < world.n_clients; c++)
        must(!gpu_has_mapped(c, (unsigned)(where - world.segments)),
             "no process has a segment mapped that goes back to the driver");
    where->is_retired = true;
    where->backing = NULL;
    if (backing->fd >= 0)
        __real_close(backing->fd);
    free(backing);
    core_segment_retired(segment, world.now_ns);
    world.tally->retirements++;
    return true;
}

static bool tick(void) {
    if (core_next_tick_ns(world.core) > world.now_ns)
        return false;
    core_tick(world.core, world.now_ns);
    return true;
}

static bool is_asleep(void) {
    return world.daemon_wakes_ns > world.now_ns && !world.is_calm;
}

bool daemon_act(void) {
    if (is_asleep())
        return false;
    unsigned start = (unsigned)random_below(5);
    bool any = false;

    for (unsigned i = 0; i < 5 && !any; i++) {
        unsigned which = (start + i) % 5;
        any = which == 0   ? serve_any()
              : which == 1 ? grow()
              : which == 2 ? retire()
              : which == 3 ? reap()
                           : tick();
    }
    carry_out();
    return any;
}

uint64_t daemon_next_ns(void) {
    if (is_asleep())
        return world.daemon_wakes_ns;
    uint64_t next = core_next_tick_ns(world.core);
    for (unsigned p = 0; p < JOINT_POOLS; p++)
        if (growing[p].pool != NULL) /* it ends by itself, some time */
            return world.now_ns + NS_PER_MS < next ? world.now_ns + NS_PER_MS : next;
    return next;
}

void daemon_trim(unsigned pool) {
    core_trim(world.core->pools[pool]);
    carry_out();
}

bool daemon_has_parcels(void) {
    return world.core->parcels.count > 0;
}

void daemon_check_end(void) {
    must(world.core->leases.used == 0, "all clients are gone, and leases are left");
    must(world.core->parcels.count == 0, "all clients are gone, and tokens hold memory");
    daemon_check();
}

void daemon_check(void) {
    must(core_is_valid(world.core), "the core of the daemon is valid");
}

/* --- the beginning --- */

static void add_pool(unsigned p) {
    struct pool *pool;
    const struct pool_config config = {
        .kind = p == JOINT_HOST ? PROTO_POOL_HOST : PROTO_POOL_DEVICE,
        .device = p == JOINT_HOST ? -1 : (int)p,
        .numa_node = -1,
        .uuid = {p == JOINT_HOST ? 0 : (uint8_t)(p + 1)},
        .name = "pool",
        .sizes = {.limit_bytes = world.limits[p],
                  .step_bytes = one_in(2) ? POOL_STEP_BY_SIZE : JOINT_SLOT * (1 + random_below(4))},
        .needs_vmm = p == JOINT_VMM,
        .takes_descriptors = p != JOINT_LEGACY,
    };
    must(core_add_pool(world.core, &config, &pool) == 0, "a pool can be added");
    core_pool_ready(pool, world.now_ns);
}

void daemon_begin(void) {
    must(core_new(&world.core) == 0, "a core can be made");
    world.core->sessions_limit = 64;
    world.core->session_leases_limit = world.leases_limit;
    world.core->segments_limit = UINT32_MAX;
    list_init(&clients.all);
    list_init(&clients.greeting);
    boards_init(&clients.boards, &desk, NULL);
    alive_init(&clients.alive);
    clients.terms.core = world.core;
    clients.terms.machine = &machine;
    clients.terms.identity = &identity;
    for (unsigned p = 0; p < JOINT_POOLS; p++)
        add_pool(p);
    carry_out();
}
