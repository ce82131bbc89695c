/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence of what can happen to a daemon, from its clients, its workers, the kernel, the driver and the
 * clock, against the daemon's own code on a stage (stage.h). After each step every validator is asked, what
 * clients read is decoded and held against a ledger of who may be touching what (ledger.h). At the end
 * everybody dies, and nothing may be left: no session, no leased or quarantined byte, no descriptor.
 *
 * Input: steps. Each is a byte that chooses an action below, and the bytes that the action reads.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "daemon/admin.h"
#include "daemon/connection.h"
#include "daemon/pool/core.h"
#include "proto/page.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/ledger.h"
#include "tests/fuzz/stage.h"
#include "tests/send_fds.h"

#define CLIENTS     6u
#define PROCESSES   6u
#define ADMINS      2u
#define USERS       3u
#define NAMES       24u  /* leases that a client remembers, to say something about */
#define TOKENS      8u   /* that anybody remembers */
#define OUTSTANDING 256u /* requests without an answer that are followed */
#define GIVEN_UP    256u
#define STEPS_MAX   400u
#define TURNS_QUIET 64u

/* One end of a connection to the daemon, and what its user knows. */
struct client {
    int fd;          /* -1: not connected */
    unsigned number; /* of the connection: never used again */
    unsigned process;
    uint64_t last_request;
    struct proto_lease_name names[NAMES];
    uint64_t offsets[NAMES], capacities[NAMES];
    unsigned n_names;
    uint64_t unopened; /* the segment whose descriptor came */
    uint64_t closable; /* a segment that it was told to close */
    struct proto_page *page;
    bool said_bye;
    bool no_gpu; /* it said that it does no GPU work, and was given no memory of a GPU */
    /* Requests that were sent and not answered; beyond the array nobody counts any more. */
    struct {
        uint64_t request;
        unsigned operation;
    } outstanding[OUTSTANDING];
    unsigned n_outstanding;
    bool lost_count;
    /* Leases that the client spoke of as if they were over, perhaps before it was told that it has them. */
    struct proto_lease_name given_up[GIVEN_UP];
    unsigned n_given_up;
};

struct scene {
    struct stage *stage;
    struct ledger ledger;
    struct client clients[CLIENTS];
    int admins[ADMINS];
    unsigned connections;
    struct proto_token tokens[TOKENS];
    unsigned n_tokens;
    struct proto_message message, reply;
};

static struct scene scene;

/* --- what a client says --- */

static void give_up(struct client *client, uint64_t lease, uint64_t generation) {
    struct ledger_entry *entry = ledger_find(&scene.ledger, client->number, lease, generation);
    if (entry != NULL)
        entry->used = false;
    if (client->n_given_up < GIVEN_UP)
        client->given_up[client->n_given_up++] = (struct proto_lease_name){lease, generation};
}

static bool has_given_up(const struct client *client, uint64_t lease, uint64_t generation) {
    for (unsigned i = 0; i < client->n_given_up; i++)
        if (client->given_up[i].lease == lease && client->given_up[i].generation == generation)
            return true;
    return client->n_given_up == GIVEN_UP || client->said_bye;
}

/* Notes what a packet that is about to be sent means, if it means anything. */
static void note(struct client *client, const uint8_t *packet, size_t size) {
    struct proto_message *message = &scene.message;

    if (proto_decode(PROTO_FROM_CLIENT, packet, size, message, NULL) < 0)
        return;
    if (message->header.request != 0) {
        if (client->n_outstanding < OUTSTANDING)
            client->outstanding[client->n_outstanding++] =
                (__typeof__(*client->outstanding)){message->header.request, message->header.operation};
        else
            client->lost_count = true;
    }
    struct ledger_entry *entry;
    switch (message->header.operation) {
    case PROTO_HELLO:
        client->no_gpu = client->no_gpu || (message->hello.flags & PROTO_HELLO_NO_GPU) != 0;
        return;
    case PROTO_SHARE:
        entry = ledger_find(&scene.ledger, client->number, message->share.lease, message->share.generation);
        if (entry != NULL)
            entry->attached = true;
        return;
    case PROTO_RELEASE:
    case PROTO_SPLIT:
        give_up(client, message->release.lease, message->release.generation);
        return;
    case PROTO_MERGE:
        give_up(client, message->merge.lease, message->merge.generation);
        give_up(client, message->merge.other_lease, message->merge.other_generation);
        return;
    case PROTO_OPENED:
        if (message->opened.segment == client->unopened)
            client->unopened = 0;
        return;
    case PROTO_BYE:
        client->said_bye = true;
        ledger_leave_connection(&scene.ledger, client->number);
        return;
    default:
        return;
    }
}

static void send_packet(struct client *client, const uint8_t *packet, size_t size, unsigned n_fds) {
    const int fds[3] = {client->fd, client->fd, client->fd};

    if (client->fd < 0)
        return;
    note(client, packet, size);
    ssize_t n = send_with_fds(client->fd, packet, size, fds, n_fds, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EPERM && n_fds > 0) /* a kernel that lets the daemon refuse them at the door */
        (void)send(client->fd, packet, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* --- what a client hears --- */

/* Which operation it is the answer to; 0: that is not followed any more. */
static unsigned find_request(struct client *client, uint64_t request) {
    if (request == 0 || client->lost_count)
        return 0;
    for (unsigned i = 0; i < client->n_outstanding; i++)
        if (client->outstanding[i].request == request) {
            unsigned operation = client->outstanding[i].operation;
            client->outstanding[i] = client->outstanding[--client->n_outstanding];
            return operation;
        }
    MUST(!"an answer to no request");
}

static void remember(struct client *client, const struct proto_lease *lease) {
    unsigned i = client->n_names < NAMES ? client->n_names++ : (unsigned)(lease->lease % NAMES);
    client->names[i] = (struct proto_lease_name){lease->lease, lease->generation};
    client->offsets[i] = lease->offset_bytes;
    client->capacities[i] = lease->capacity_bytes;
}

/* Whether an attached block has no gaps: only when it is one that somebody got whole and shared. */
static bool is_known_whole(const struct ledger_entry *attached) {
    for (unsigned i = 0; i < scene.ledger.n_entries; i++) {
        const struct ledger_entry *entry = &scene.ledger.entries[i];
        if (entry->used && entry->attached && entry->whole && entry->segment == attached->segment &&
            entry->offset_bytes == attached->offset_bytes &&
            entry->capacity_bytes == attached->capacity_bytes)
            return true;
    }
    return false;
}

static void hear_lease(struct client *client, const struct proto_lease *lease, unsigned operation) {
    const struct stage_process *process = &scene.stage->processes[client->process];

    remember(client, lease);
    if (lease->description.kind == PROTO_SEGMENT_MEMFD) {
        client->unopened = lease->description.id;
    } else if (lease->description.kind == PROTO_SEGMENT_LEGACY_IPC) {
        const void *memory; /* what the stage's driver makes a handle of */
        memcpy(&memory, lease->description.handle, sizeof memory);
        ledger_describe(&scene.ledger, lease->description.id, memory);
        client->no_gpu = false;
        ledger_note_gpu_work(&scene.ledger, client->number);
    }
    if (has_given_up(client, lease->lease, lease->generation) ||
        (process->dead && (!process->listed || process->foreign || client->no_gpu)))
        return;
    struct ledger_entry entry = {.process = client->process,
                                 .connection = client->number,
                                 .uid = process->uid,
                                 .lease = lease->lease,
                                 .generation = lease->generation,
                                 .segment = lease->segment,
                                 .offset_bytes = lease->offset_bytes,
                                 .capacity_bytes = lease->capacity_bytes,
                                 .attached = operation != PROTO_ACQUIRE && operation != PROTO_SPLIT,
                                 .whole = true,
                                 .no_gpu = client->no_gpu};
    if (entry.attached)
        entry.whole = is_known_whole(&entry);
    ledger_enter(&scene.ledger, &entry);
}

static void hear_page(struct client *client, int fd) {
    if (client->page != NULL)
        munmap(client->page, PROTO_PAGE_BYTES);
    void *memory = mmap(NULL, PROTO_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(memory != MAP_FAILED);
    client->page = memory;
}

/* Nobody is told to close what somebody has something in. */
static void hear_segments(struct client *client, const struct proto_segments *segments) {
    for (uint32_t i = 0; i < segments->count; i++) {
        for (unsigned j = 0; j < scene.ledger.n_entries; j++)
            MUST(!scene.ledger.entries[j].used || scene.ledger.entries[j].segment != segments->ids[i]);
        client->closable = segments->ids[i];
    }
}

static void hear(struct client *client, int fd) {
    const struct proto_message *reply = &scene.reply;

    MUST(client->unopened == 0); /* nothing comes between a segment's descriptor and its OPENED */
    unsigned operation = find_request(client, reply->header.request);
    if (reply->header.operation == PROTO_LEASE)
        hear_lease(client, &reply->lease, operation);
    else if (reply->header.operation == PROTO_TOKEN)
        scene.tokens[scene.n_tokens < TOKENS ? scene.n_tokens++ : reply->token.bytes[0] % TOKENS] =
            reply->token;
    else if (reply->header.operation == PROTO_SEGMENTS)
        hear_segments(client, &reply->segments);
    else if (reply->header.operation == PROTO_PAGE)
        hear_page(client, fd);
}

/* Reads one reply. False: there is none. */
static bool read_reply(struct client *client) {
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;
    uint8_t packet[PROTO_PACKET_MAX];
    struct iovec piece = {packet, sizeof packet};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    const char *reason = NULL;
    unsigned count = 0;
    int fd = -1;

    if (client->fd < 0)
        return false;
    ssize_t n = recvmsg(client->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return false;
    MUST((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header != NULL) {
        count = (unsigned)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        MUST(count == 1);
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    }
    int r = proto_decode(PROTO_FROM_DAEMON, packet, (size_t)n, &scene.reply, &reason);
    if (r < 0)
        fprintf(stderr, "the daemon sent what does not check out: %s\n", reason);
    MUST(r == 0);
    MUST(count == proto_message_fds(&scene.reply));
    hear(client, fd);
    close_fd(fd);
    return true;
}

static void on_free(const void *memory) {
    ledger_free(&scene.ledger, memory);
}

/* --- actions --- */

static struct client *choose_client(struct input *input) {
    return &scene.clients[input_below(input, CLIENTS)];
}

static void disconnect(struct client *client) {
    if (client->page != NULL)
        munmap(client->page, PROTO_PAGE_BYTES);
    client->page = NULL;
    client->fd = close_fd(client->fd);
}

static void send_hello(struct client *client, uint32_t flags) {
    struct proto_message hello = {.header = {.operation = PROTO_HELLO, .request = ++client->last_request},
                                  .hello = {.magic = PROTO_MAGIC,
                                            .version_min = PROTO_VERSION_MIN,
                                            .version_max = PROTO_VERSION_MAX,
                                            .flags = flags}};
    uint8_t packet[64];
    send_packet(client, packet, proto_encode(&hello, packet), 0);
}

#define CONNECT_SILENT  1u /* without HELLO */
#define CONNECT_RECLAIM 2u
#define CONNECT_NARROW  4u /* the kernel takes few replies */
#define CONNECT_FOREIGN 8u
#define CONNECT_AGAIN   16u  /* a second connection of a process that has one */
#define CONNECT_NO_GPU  192u /* all of these, which are a user's number too */

static void connect_client(struct input *input) {
    struct client *client = choose_client(input);
    unsigned number = input_below(input, PROCESSES), flags = input_below(input, 256);
    struct stage_process *process = &scene.stage->processes[number];

    disconnect(client);
    if (process->pid == 0 || (process->dead && (!process->listed || process->foreign))) {
        process = stage_begin_process(scene.stage, number, STAGE_UID + flags / 32 % USERS);
        process->foreign = (flags & CONNECT_FOREIGN) != 0;
    } else if (process->dead || (flags & CONNECT_AGAIN) == 0) {
        return;
    }
    *client = (struct client){.fd = -1, .number = ++scene.connections, .process = number};
    client->fd = stage_connect(scene.stage, process);
    if ((flags & CONNECT_NARROW) != 0 && !list_is_empty(&scene.stage->daemon->connections)) {
        const struct connection *connection =
            container_of(scene.stage->daemon->connections.previous, struct connection, link);
        int bytes = 1; /* the kernel makes its minimum of it */
        setsockopt(connection->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    if ((flags & CONNECT_SILENT) == 0) {
        send_hello(client, ((flags & CONNECT_RECLAIM) != 0 ? PROTO_HELLO_RECLAIM : 0) |
                               ((flags & CONNECT_NO_GPU) == CONNECT_NO_GPU ? PROTO_HELLO_NO_GPU : 0));
        stage_turn(scene.stage);
        (void)read_reply(client);
    }
}

/* The name of a lease: mostly one that the client has, or of another client, or one that nobody has. */
static struct proto_lease_name choose_name(struct input *input, const struct client *client,
                                           unsigned *ret_index) {
    unsigned choice = input_below(input, 256);
    const struct client *other = choice < 224 ? client : &scene.clients[choice % CLIENTS];

    *ret_index = other->n_names > 0 ? choice % other->n_names : 0;
    if (choice < 248 && other->n_names > 0)
        return other->names[*ret_index];
    struct proto_lease_name name = {.lease = input_edgy(input)};
    name.generation = input_edgy(input);
    return name;
}

static void choose_part(struct input *input, struct proto_release *part, uint64_t capacity_bytes) {
    if (input_below(input, 4) == 0) {
        part->offset_bytes = input_edgy(input);
        part->size_bytes = input_edgy(input);
    } else {
        part->offset_bytes = input_number(input, 1) * 512;
        part->size_bytes = input_number(input, 1) * 512;
        if (input_below(input, 4) == 0 && capacity_bytes > part->offset_bytes)
            part->size_bytes = capacity_bytes - part->offset_bytes;
    }
}

static void choose_release(struct input *input, const struct client *client, struct proto_message *message) {
    struct proto_release *release = &message->release;
    unsigned index, flags = input_below(input, 256);
    struct proto_lease_name name = choose_name(input, client, &index);

    *release = (struct proto_release){.lease = name.lease, .generation = name.generation};
    if (message->header.operation == PROTO_SPLIT || (flags & 1) != 0)
        choose_part(input, release, client->capacities[index]);
    if (message->header.operation == PROTO_RELEASE && (flags & 2) != 0) {
        release->fence = 1 + (flags & 4 ? (uint32_t)input_edgy(input) : input_below(input, 4));
        release->fence_value = flags & 8 ? input_edgy(input) : input_number(input, 1) % 8;
    }
    if (message->header.operation == PROTO_RELEASE && (flags & 16) != 0)
        message->header.request = 0;
}

static void choose_share(struct input *input, struct client *client, struct proto_message *message) {
    unsigned index;
    struct proto_lease_name name = choose_name(input, client, &index);
    message->share = (struct proto_share){name.lease, name.generation, input_edgy(input)};
}

/* A request that is right in form, mostly. */
static void send_request(struct input *input) {
    static const uint8_t operations[] = {
        PROTO_ACQUIRE,    PROTO_RELEASE, PROTO_ACQUIRE, PROTO_RELEASE, PROTO_SHARE,    PROTO_ATTACH,
        PROTO_QUERY,      PROTO_OPENED,  PROTO_SPLIT,   PROTO_MERGE,   PROTO_ASK_PAGE, PROTO_BYE,
        PROTO_LIST_POOLS, PROTO_HELLO,   PROTO_OPENED,  PROTO_IDLE,    PROTO_CLOSED};
    static const uint64_t timeouts[] = {0, NS_FOREVER, NS_PER_MS, NS_PER_S};
    struct client *client = choose_client(input);
    struct proto_message *message = &scene.message;
    unsigned index, choice;

    /* Initialisers read the input in no certain order, so that nothing is read in them. */
    memset(message, 0, offsetof(struct proto_message, hello) + sizeof(struct proto_release));
    message->header.operation = operations[input_below(input, sizeof operations)];
    message->header.request = ++client->last_request;
    switch (message->header.operation) {
    case PROTO_HELLO:
        message->hello = (struct proto_hello){.magic = PROTO_MAGIC, .version_max = 3};
        message->hello.version_min = 1 + (uint16_t)input_below(input, 3);
        message->hello.flags = input_below(input, 5);
        break;
    case PROTO_ACQUIRE:
        message->acquire.pool =
            input_below(input, 8) == 7 ? (uint32_t)input_edgy(input) : 1 + input_below(input, 2);
        message->acquire.size_bytes = input_edgy(input);
        choice = input_below(input, 8);
        message->acquire.timeout_ns = timeouts[choice % 4];
        message->acquire.flags = choice == 4 ? PROTO_ACQUIRE_WITHIN : 0;
        break;
    case PROTO_IDLE:
        message->idle.pool = 1 + input_below(input, 3);
        message->idle.size_bytes = input_edgy(input);
        break;
    case PROTO_CLOSED:
        message->closed.segment = input_below(input, 4) == 3 ? input_edgy(input) : client->closable;
        break;
    case PROTO_RELEASE:
    case PROTO_SPLIT:
        choose_release(input, client, message);
        break;
    case PROTO_MERGE: {
        struct proto_lease_name one = choose_name(input, client, &index),
                                two = choose_name(input, client, &index);
        message->merge = (struct proto_merge){one.lease, one.generation, two.lease, two.generation};
        if (message->header.request % 2 == 0)
            message->header.request = 0; /* nobody hears of it; the session ends where it is not right */
        break;
    }
    case PROTO_SHARE:
        choose_share(input, client, message);
        break;
    case PROTO_ATTACH:
        index = input_below(input, 256);
        if (scene.n_tokens > 0)
            message->attach = scene.tokens[index % scene.n_tokens];
        if (index >= 240)
            message->attach.bytes[index % PROTO_TOKEN_BYTES] ^= 1;
        break;
    case PROTO_QUERY:
        message->query = choose_name(input, client, &index);
        break;
    case PROTO_OPENED:
        message->header.request = 0;
        message->opened.segment = input_below(input, 8) == 7 ? input_edgy(input) : client->unopened;
        break;
    default:
        break;
    }
    /* Encoded here: the encoder asserts that what it makes is right, and this need not be. */
    static const uint8_t sizes[] = {
        [PROTO_HELLO] = sizeof(struct proto_hello),     [PROTO_ACQUIRE] = sizeof(struct proto_acquire),
        [PROTO_RELEASE] = sizeof(struct proto_release), [PROTO_SPLIT] = sizeof(struct proto_release),
        [PROTO_MERGE] = sizeof(struct proto_merge),     [PROTO_SHARE] = sizeof(struct proto_share),
        [PROTO_ATTACH] = sizeof(struct proto_token),    [PROTO_QUERY] = sizeof(struct proto_lease_name),
        [PROTO_OPENED] = sizeof(struct proto_opened),   [PROTO_IDLE] = sizeof(struct proto_idle),
        [PROTO_CLOSED] = sizeof(struct proto_closed)};
    size_t size = sizeof message->header + sizes[message->header.operation];
    message->header.length = (uint32_t)size;
    uint8_t packet[sizeof message->header + UINT8_MAX];
    memcpy(packet, message, size);
    send_packet(client, packet, size, 0);
}

/* Bytes; with a header that is right, or without. */
static void send_bytes(struct input *input) {
    struct client *client = choose_client(input);
    unsigned flags = input_below(input, 256);
    size_t size = input_number(input, 1);
    uint8_t packet[sizeof(struct proto_header) + UINT8_MAX];
    struct proto_header header = {.operation = (uint16_t)(flags / 8 % 16), .request = ++client->last_request};
    const uint8_t *bytes = input_bytes(input, &size);

    if ((flags & 1) != 0) {
        size_t used = 0;
        header.length = (uint32_t)(sizeof header + size);
        memcpy(packet, &header, sizeof header);
        used += sizeof header;
        memcpy(packet + used, bytes, size);
        send_packet(client, packet, used + size, flags >> 1 & 3);
    } else if (size > 0) {
        send_packet(client, bytes, size, flags >> 1 & 3);
    }
}

/* The process is over, and so is what it did on the GPU: what it had may be anybody's. Of one that the daemon
 * does not see it cannot know: that is never anybody's. */
static void note_end(unsigned number) {
    const struct stage_process *process = &scene.stage->processes[number];
    if (process->pid != 0 && process->dead && !process->listed && !process->foreign)
        ledger_leave_process(&scene.ledger, number);
}

static void kill_process(struct input *input) {
    unsigned number = input_below(input, PROCESSES);
    bool keep_sockets = input_below(input, 4) == 0; /* a forked child has them */

    for (unsigned i = 0; i < CLIENTS && !keep_sockets; i++)
        if (scene.clients[i].process == number)
            disconnect(&scene.clients[i]);
    stage_kill(&scene.stage->processes[number]);
    ledger_end_process(&scene.ledger, number);
    note_end(number);
}

static void unlist_process(struct input *input) {
    unsigned number = input_below(input, PROCESSES);
    stage_unlist(&scene.stage->processes[number]);
    note_end(number);
}

static void write_word(struct input *input) {
    struct client *client = choose_client(input);
    unsigned word = input_below(input, 8) == 7 ? (unsigned)(input_edgy(input) % PROTO_PAGE_FENCES)
                                               : input_below(input, 4);
    uint64_t value = input_below(input, 4) == 3 ? input_edgy(input) : input_number(input, 1) % 8;

    if (client->page != NULL)
        atomic_store(&client->page->fences[word], value);
}

/* Counters are the client's word; the stats have to bear whatever it is. */
static void write_counters(struct input *input) {
    struct client *client = choose_client(input);
    unsigned line = input_below(input, 4);

    if (client->page == NULL)
        return;
    struct proto_counters *counters = &client->page->counters[line];
    atomic_store(&counters->pool,
                 (uint32_t)(input_below(input, 4) == 3 ? input_edgy(input) : input_below(input, 3)));
    atomic_store(&counters->hits, input_edgy(input));
    atomic_store(&counters->taken_bytes, input_edgy(input));
    atomic_store(&counters->given_bytes, input_edgy(input));
}

static void pass_time(struct input *input) {
    static const uint64_t times[] = {NS_PER_MS, 10 * NS_PER_MS, 100 * NS_PER_MS, NS_PER_S, 11 * NS_PER_S};
    stage_pass(scene.stage, times[input_below(input, sizeof times / sizeof *times)]);
}

static void configure_pool(struct input *input) {
    struct core *core = scene.stage->daemon->core;
    struct pool *pool = core->pools[input_below(input, 2) % core->n_pools];
    struct pool_sizes sizes;

    sizes.limit_bytes = input_below(input, 24) * MIB;
    sizes.step_bytes = (1 + input_below(input, 8)) * MIB;
    sizes.reserve_bytes = input_below(input, 8) * MIB;
    sizes.low_water_bytes = input_below(input, 8) * MIB;
    core_pool_configure(pool, &sizes, scene.stage->now_ns);
    daemon_drain(scene.stage->daemon);
}

static void connect_admin(struct input *input) {
    int *fd = &scene.admins[input_below(input, ADMINS)];
    struct stage_process administrator = {.uid =
                                              input_below(input, 2) == 0 ? getuid() : getuid() + STAGE_UID};
    *fd = close_fd(*fd);
    *fd = stage_connect_admin(scene.stage, &administrator);
}

static void talk_to_admin(struct input *input) {
    static const char *const lines[] = {"{\"command\":\"stats\"}\n", "{\"command\":\"trim\"}\n",
                                        "{\"command\":\"trim\",\"pool\":1}\n", "{\"command\":\"sessions\"}"};
    int fd = scene.admins[input_below(input, ADMINS)];
    unsigned choice = input_below(input, 8);
    size_t size = choice < 4 ? strlen(lines[choice]) : input_number(input, 1);
    const void *bytes = choice < 4 ? (const void *)lines[choice] : input_bytes(input, &size);

    if (fd >= 0 && size > 0)
        (void)send(fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Until a line's end, so that answers are seen to be lines. */
static void hear_admin(struct input *input) {
    int *fd = &scene.admins[input_below(input, ADMINS)];
    char bytes[16384];
    ssize_t n = 1;

    if (input_below(input, 4) == 0)
        *fd = close_fd(*fd);
    for (unsigned i = 0; i < 16 && *fd >= 0 && n > 0; i++) {
        n = recv(*fd, bytes, sizeof bytes, MSG_DONTWAIT);
        MUST(n <= 0 || memchr(bytes, '\0', (size_t)n) == NULL);
        stage_turn(scene.stage);
    }
}

static void hear_client(struct input *input) {
    struct client *client = choose_client(input);
    for (unsigned n = 1 + input_below(input, 16); n > 0 && read_reply(client); n--)
        stage_turn(scene.stage);
}

/* What a good client does with what comes: it reads, and confirms descriptors. */
static void behave(struct input *input) {
    struct client *client = choose_client(input);

    for (unsigned n = 0; n < 8; n++) {
        stage_turn(scene.stage);
        while (read_reply(client)) {
        }
        if (client->unopened == 0 || client->fd < 0)
            return;
        struct proto_message opened = {.header = {.operation = PROTO_OPENED}, .opened = {client->unopened}};
        uint8_t packet[64];
        send_packet(client, packet, proto_encode(&opened, packet), 0);
    }
}

static void run_jobs(struct input *input) {
    unsigned worker = input_below(input, 4);
    if (worker == 3)
        for (unsigned n = 0; n < TURNS_QUIET && stage_run_any_job(scene.stage); n++) {
        }
    else
        (void)stage_run_job(scene.stage, worker);
}

/* A lost device stays lost, so that is rarer than the rest. */
static void fail(struct input *input) {
    unsigned what = input_below(input, 8);
    if (what == 7)
        scene.stage->device_lost = true;
    else if (what % 2 == 0)
        scene.stage->driver_fails = true;
    else
        scene.stage->process_list_fails = !scene.stage->process_list_fails;
}

static void step(struct input *input) {
    switch (input_below(input, 24)) {
    case 0:
    case 1:
        connect_client(input);
        break;
    case 2:
    case 3:
    case 4:
    case 5:
    case 6:
    case 7:
        send_request(input);
        break;
    case 8:
        send_bytes(input);
        break;
    case 9:
        hear_client(input);
        break;
    case 10:
    case 11:
        behave(input);
        break;
    case 12:
    case 13:
        run_jobs(input);
        break;
    case 14:
        disconnect(choose_client(input));
        break;
    case 15:
        kill_process(input);
        break;
    case 16:
        unlist_process(input);
        break;
    case 17:
        pass_time(input);
        break;
    case 18:
        write_word(input);
        break;
    case 19:
        fail(input);
        break;
    case 20:
        configure_pool(input);
        break;
    case 21:
        connect_admin(input);
        break;
    case 22:
        talk_to_admin(input);
        break;
    default:
        if (input_below(input, 4) == 0)
            write_counters(input);
        else
            hear_admin(input);
        break;
    }
    stage_turn(scene.stage);
    stage_check(scene.stage);
}

/* Nobody can tell of the end of a process whose PID namespace the daemon does not see: an operator says so.
 */
static void force_foreign(const struct daemon *daemon) {
    list_for_each_safe(position, &daemon->connections) {
        struct connection *connection = container_of(position, struct connection, link);
        if (connection->state == CONNECTION_LOST && connection->peer.pid == 0)
            connection_force(connection);
    }
}

/* Everybody leaves. What then is left of anybody would be lost for good. */
static void end_scene(void) {
    struct stage *stage = scene.stage;
    struct daemon *daemon = stage->daemon;

    stage->driver_fails = stage->process_list_fails = false;
    for (unsigned i = 0; i < CLIENTS; i++)
        disconnect(&scene.clients[i]);
    for (unsigned i = 0; i < ADMINS; i++)
        scene.admins[i] = close_fd(scene.admins[i]);
    for (unsigned i = 0; i < STAGE_PROCESSES; i++) {
        stage_kill(&stage->processes[i]);
        stage_unlist(&stage->processes[i]);
        ledger_leave_process(&scene.ledger, i);
    }
    for (unsigned n = 0; n < TURNS_QUIET; n++) {
        stage_turn(stage);
        while (stage_run_any_job(stage)) {
        }
        stage_pass(stage, 50 * NS_PER_MS);
        force_foreign(daemon);
        if (daemon->n_connections == 0 && daemon->core->n_sessions == 0 && daemon->n_admin_clients == 0 &&
            n > 4)
            break;
    }
    stage_check(stage);
    MUST(daemon->n_connections == 0 && daemon->core->n_sessions == 0 && daemon->n_admin_clients == 0);
    for (unsigned i = 0; i < daemon->core->n_pools; i++) {
        const struct pool *pool = daemon->core->pools[i];
        MUST(pool->n_leases == 0 && pool->n_waiters == 0);
        MUST(pool->leased_bytes == 0 && pool->fenced_bytes == 0 && pool->quarantined_bytes == 0);
    }
}

/* The lowest descriptor that is free: one that stays open makes it higher. */
static int lowest_descriptor(void) {
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    close_fd(fd);
    return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct input input = {data, size};
    int descriptor = lowest_descriptor();

    memset(&scene, 0, sizeof scene);
    for (unsigned i = 0; i < CLIENTS; i++)
        scene.clients[i].fd = -1;
    for (unsigned i = 0; i < ADMINS; i++)
        scene.admins[i] = -1;
    scene.stage = stage_new(NULL);
    scene.stage->on_free = on_free;
    for (unsigned n = 0; n < STEPS_MAX && input.left > 0; n++)
        step(&input);
    end_scene();
    stage_free(scene.stage);
    MUST(lowest_descriptor() == descriptor);
    return 0;
}
