/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon around its core: it reads packets by the real handlers, one connection at a time, in any order
 * of the connections. It carries out what the core decides: at once, but for growths, which take a while and
 * fail now and then. It may die in all of that (restarts.h).
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/core/core.h"
#include "daemon/core/pool.h"
#include "daemon/core/segment.h"
#include "daemon/core/session.h"
#include "daemon/core/types.h"
#include "daemon/data/clients.h"
#include "daemon/data/requests.h"
#include "daemon/data/serve.h"
#include "daemon/loop/desk.h"
#include "daemon/loop/die_here.h"
#include "daemon/loop/identity.h"
#include "daemon/supply/backing.h"
#include "daemon/supply/pools.h"
#include "tests/joint/peer.h"
#include "tests/joint/restarts.h"
#include "tests/joint/wrapped.h"

#define PEERS_MAX 64u

static struct joint_peer peers[PEERS_MAX];
static struct clients clients;
static struct store store = {.limit = STORE_SLOTS};
static struct pool_config configs[JOINT_POOLS];
static struct machine machine = {.gpu_kind = PROTO_GPU_CUDA};
static struct identity identity;
static char quarantine_reason[] = "the simulated process may still use it";

static struct growing {
    struct pool *pool; /* NULL: none */
    uint64_t size_bytes;
} growing[JOINT_POOLS];
static struct segment *retiring[JOINT_SEGMENTS];
static unsigned n_retiring;
static struct joint_segment *retired[JOINT_SEGMENTS]; /* in the present step */
static unsigned n_retired;

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

static void free_backing(struct joint_segment *segment) {
    struct backing *backing = segment->backing;

    segment->is_retired = true;
    segment->backing = NULL;
    if (backing->fd >= 0)
        __real_close(backing->fd);
    free(backing);
}

/* --- connections --- */

struct joint_peer *joint_peer_new(unsigned client) {
    unsigned i = 0;

    while (i < PEERS_MAX && peers[i].is_used)
        i++;
    must(i < PEERS_MAX, "the simulator has no room for a connection");
    peers[i] = (struct joint_peer){.is_used = true, .client = client};
    struct client *record = &peers[i].record;
    record->clients = &clients;
    record->connection.fd = record->reclaim_fd = record->pidfd = record->page.fd = -1;
    list_append(&clients.all, &record->link);
    return &peers[i];
}

void daemon_accept(int fd, unsigned client) {
    struct client *record = &joint_peer_new(client)->record;

    record->state = CLIENT_GREETING;
    record->connection.fd = fd;
    outbox_init(&record->connection.outbox, fd, &joint_desk);
    record->peer = (struct peer){
        .pid = JOINT_FIRST_PID + (pid_t)client, .uid = world_uid(client), .gid = 1000, .command = "program"};
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

static void close_descriptors(struct client *record) {
    if (record->connection.fd >= 0)
        __real_close(record->connection.fd);
    if (record->page.memory != NULL)
        __real_munmap(record->page.memory, PROTO_PAGE_BYTES);
    if (record->page.fd >= 0)
        __real_close(record->page.fd);
    if (record->reclaim_fd >= 0)
        __real_close(record->reclaim_fd);
    record->connection.fd = record->page.fd = record->reclaim_fd = -1;
}

static void forget(struct joint_peer *peer) {
    struct client *record = &peer->record;

    outbox_drop(&record->connection.outbox, NULL);
    if (record->board != NULL)
        board_leave(&record->clients->boards, record->board, record->board_slot, false);
    joint_peer_leave_estate(peer);
    close_descriptors(record);
    list_remove(&record->link);
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
    joint_peer_leave_socket(peer);
    peer->is_lost = true;
}

void client_end(struct client *client, const char *why) {
    (void)why;
    end(joint_peer_of(client));
}

/* Ends the present step, and does what was to wait for that. */
static void end_step(void) {
    desk_end_step(&joint_desk);
    boards_settle(&clients.boards);
    store_remove_leaving(&store);
    for (; n_retired > 0; n_retired--)
        free_backing(retired[n_retired - 1]);
}

bool daemon_break(void) {
    if (restarts_is_away())
        return false;
    for (unsigned i = 0; i < PEERS_MAX; i++)
        if (peers[i].is_used && !peers[i].is_lost)
            end(&peers[i]);
    end_step();
    return true;
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

static bool is_readable(int fd) {
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    return __real_poll(&ready, 1, 0) == 1;
}

static void deal_with(struct joint_peer *peer, const uint8_t *packet, size_t size) {
    struct proto_message message;
    const char *reason = "";

    if (proto_decode(PROTO_FROM_CLIENT, packet, size, &message, &reason) < 0)
        world_fail(reason, "a packet checks out", __FILE__, __LINE__);
    int r = request_handle(&peer->record, &message);
    if (r < 0) {
        must(r == -ESHUTDOWN || r == -EPIPE || r == -ECONNRESET, "the daemon serves a packet");
        end(peer);
    } else if (!proto_is_answered(&message.header)) {
        desk_end_step(&joint_desk);
    }
}

void serve_again(struct client *client, const uint8_t *packet, size_t size) {
    deal_with(joint_peer_of(client), packet, size);
}

/* Reads a packet. False: none is there. */
static bool serve(struct joint_peer *peer) {
    struct client *record = &peer->record;
    struct outbox *outbox = &record->connection.outbox;
    uint8_t own[PROTO_PACKET_MAX];

    if (outbox_is_stuck(outbox)) {
        int r = outbox_flush(outbox, record->session);
        if (r < 0) {
            end(peer);
            return true;
        }
        return true; /* also where the socket is full: it is not for long */
    }
    if (!is_readable(record->connection.fd))
        return false;
    uint8_t *packet = desk_receive(&joint_desk, outbox->session, own);
    struct iovec piece = {packet, sizeof own};
    struct msghdr header = {.msg_iov = &piece, .msg_iovlen = 1};
    ssize_t n = __real_recvmsg(record->connection.fd, &header, MSG_DONTWAIT);
    die_here();
    if (n <= 0)
        end(peer);
    else
        deal_with(peer, packet, (size_t)n);
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
        end_step(); /* a successor is not to lend what is freed */
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
    end_step();
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
        if (!world.segments[i].is_retired && world.segments[i].id == segment->id)
            return i;
    world_fail("the core knows a segment that was not made", "", __FILE__, __LINE__);
}

static bool retire(void) {
    if (n_retiring == 0)
        return false;
    struct segment *segment = retiring[--n_retiring];
    struct joint_segment *where = &world.segments[number_of(segment)];
    for (unsigned c = 0; c < world.n_clients; c++)
        must(!gpu_has_mapped(c, (unsigned)(where - world.segments)),
             "no process has a segment mapped that goes back to the driver");
    core_segment_retired(segment, world.now_ns);
    retired[n_retired++] = where;
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

static bool act(void) {
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

bool daemon_act(void) {
    if (is_asleep())
        return false;
    return restarts_is_away() ? restarts_come_back() : restarts_run(act);
}

uint64_t daemon_next_ns(void) {
    if (is_asleep())
        return world.daemon_wakes_ns;
    if (restarts_is_away())
        return world.now_ns;
    uint64_t next = core_next_tick_ns(world.core);
    for (unsigned p = 0; p < JOINT_POOLS; p++)
        if (growing[p].pool != NULL) /* it ends by itself, some time */
            return world.now_ns + NS_PER_MS < next ? world.now_ns + NS_PER_MS : next;
    return next;
}

void daemon_trim(unsigned pool) {
    if (restarts_is_away())
        return;
    core_trim(world.core->pools[pool]);
    carry_out();
}

bool daemon_has_parcels(void) {
    return world.core->parcels.count > 0;
}

void daemon_check_end(void) {
    must(world.core->leases.used == 0, "all clients are gone, and leases are left");
    must(world.core->parcels.count == 0, "all clients are gone, and tokens hold memory");
    must(joint_store_count(STORE_SOCKET) + joint_store_count(STORE_PAGE) + joint_store_count(STORE_RECLAIM) ==
             0,
         "all clients are gone, and descriptors of theirs are stored");
    daemon_check();
}

void daemon_check(void) {
    must(core_is_valid(world.core), "the core of the daemon is valid");
    restarts_check();
}

/* --- the beginning --- */

static struct pool_config draw_config(unsigned p) {
    return (struct pool_config){
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
}

struct clients *joint_daemon_make(void) {
    struct pool *pool;

    must(core_new(&world.core) == 0, "a core can be made");
    world.core->sessions_limit = 64;
    world.core->session_leases_limit = world.leases_limit;
    world.core->segments_limit = UINT32_MAX;
    clients = (struct clients){.terms = {.core = world.core,
                                         .machine = &machine,
                                         .identity = &identity,
                                         .desk = &joint_desk,
                                         .store = &store}};
    list_init(&clients.all);
    list_init(&clients.greeting);
    boards_init(&clients.boards, &joint_desk, &store);
    channels_init(&clients.channels, world.core, &joint_desk, &store);
    alive_init(&clients.alive);
    for (unsigned p = 0; p < JOINT_POOLS; p++)
        must(core_add_pool(world.core, &configs[p], &pool) == 0, "a pool can be added");
    return &clients;
}

void joint_daemon_ready(void) {
    desk_note_ready(&joint_desk);
    for (unsigned p = 0; p < JOINT_POOLS; p++)
        core_pool_ready(world.core->pools[p], world.now_ns);
    carry_out();
}

void daemon_begin(void) {
    for (unsigned p = 0; p < JOINT_POOLS; p++)
        configs[p] = draw_config(p);
    restarts_begin();
}

/* --- the end of one, and its successor --- */

void joint_daemon_bury(void) {
    for (unsigned i = 0; i < PEERS_MAX; i++) {
        if (peers[i].is_used)
            close_descriptors(&peers[i].record);
        peers[i].is_used = false;
    }
    list_for_each_entry(const struct board, board, &clients.boards.all, link) {
        __real_munmap(board->memory, PROTO_BOARD_BYTES);
        __real_close(board->fd);
    }
    alive_deinit(&clients.alive);
    memset(growing, 0, sizeof growing);
    n_retiring = n_retired = 0;
}

int joint_take_segment(void *argument, struct segment *segment) {
    const struct joint_segment *where = &world.segments[number_of(segment)];

    (void)argument;
    if (where->pool == JOINT_LEGACY) /* its handle is the dead process's */
        return -ENOENT;
    segment->backing = where->backing;
    return 0;
}

void joint_drop_unknown_segments(void) {
    for (unsigned i = 0; i < world.n_segments; i++) {
        struct joint_segment *segment = &world.segments[i];
        if (segment->is_retired || segment_find(world.core, segment->id) != NULL)
            continue;
        for (unsigned c = 0; c < world.n_clients; c++)
            must(!gpu_has_mapped(c, i), "no process has a segment mapped that the daemon does not know");
        free_backing(segment);
    }
}
