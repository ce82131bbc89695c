/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/liar.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/packet.h"
#include "base/units.h"
#include "proto/page.h"
#include "proto/proto.h"

#define REQUESTS_MAX                                                                                         \
    16u /* without an answer: a client with one thread has one, and those that it gave up                    \
         */
#define LEASES_MAX    64u
#define WRONG_FDS_MAX 20u
#define FDS_MAX       PROTO_LEASES_PER_MESSAGE

/* A lease that the liar lent. About a lease it tells the truth. */
struct lent {
    uint64_t lease; /* 0: none */
    uint32_t pool;
    uint64_t offset_bytes, capacity_bytes;
};

static struct {
    struct input *input;
    struct gpu_uuid uuid;
    struct gpu_ipc_handle handle;
    int client_fd, fd; /* the library's end and ours; -1: there is none */
    int reclaim_fd;
    struct proto_message requests[REQUESTS_MAX];
    unsigned n_requests;
    struct lent lent[LEASES_MAX];
    uint64_t next_lease, next_segment, next_offset[LIAR_POOL_DEVICE + 1];
    bool described[LIAR_POOL_DEVICE + 1];
    struct proto_message reply;
} liar;

int __real_connect(int fd, const struct sockaddr *address, socklen_t length);
int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length);
int __real_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask);
ssize_t __real_recvmsg(int fd, struct msghdr *message, int flags);
ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags);

void liar_begin(struct input *input, const struct gpu_uuid *uuid, const struct gpu_ipc_handle *handle) {
    memset(&liar, 0, sizeof liar);
    liar.input = input;
    liar.uuid = *uuid;
    liar.handle = *handle;
    liar.client_fd = liar.fd = liar.reclaim_fd = -1;
}

void liar_end(void) {
    liar.fd = close_fd(liar.fd);
    liar.reclaim_fd = close_fd(liar.reclaim_fd);
    liar.client_fd = -1;
}

static void hang_up(void) {
    liar.fd = close_fd(liar.fd);
}

void liar_ask_reclaim(void) {
    uint64_t one = 1;
    if (liar.reclaim_fd >= 0)
        (void)!write(liar.reclaim_fd, &one, sizeof one);
}

/* --- what it is asked --- */

static void listen_to_client(void) {
    uint8_t packet[PROTO_PACKET_MAX];
    struct proto_message message;
    const char *reason = NULL;

    for (;;) {
        ssize_t n = liar.fd < 0 ? 0 : recv(liar.fd, packet, sizeof packet, MSG_DONTWAIT);
        if (n <= 0)
            return;
        int r = proto_decode(PROTO_FROM_CLIENT, packet, (size_t)n, &message, &reason);
        if (r < 0)
            fprintf(stderr, "the library sent what does not check out: %s\n", reason);
        MUST(r == 0);
        if (message.header.request != 0 && liar.n_requests < REQUESTS_MAX)
            liar.requests[liar.n_requests++] = message;
    }
}

/* --- what is true --- */

static struct lent *find_lent(uint64_t lease) {
    for (unsigned i = 0; lease != 0 && i < LEASES_MAX; i++)
        if (liar.lent[i].lease == lease)
            return &liar.lent[i];
    return NULL;
}

/* A pipe that has hung up, as if the daemon had ended. */
static int make_pipe(void) {
    int fds[2];
    MUST(pipe2(fds, O_CLOEXEC) == 0);
    close(fds[1]);
    return fds[0];
}

static int make_memfd(uint64_t size_bytes, unsigned seals) {
    int fd = memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    MUST(fd >= 0 && ftruncate(fd, (off_t)size_bytes) == 0);
    MUST(fcntl(fd, F_ADD_SEALS, seals) == 0);
    return fd;
}

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* A lease, described where it is the first in its segment. Returns its descriptor or -1. */
static int lend(uint32_t pool, uint64_t offset_bytes, uint64_t size_bytes, uint64_t capacity_bytes) {
    struct proto_lease *lease = &liar.reply.lease;

    liar.reply.header.operation = PROTO_LEASE;
    *lease = (struct proto_lease){.lease = ++liar.next_lease,
                                  .generation = 1,
                                  .segment = pool,
                                  .offset_bytes = offset_bytes,
                                  .size_bytes = size_bytes,
                                  .capacity_bytes = capacity_bytes,
                                  .pool = pool};
    liar.lent[lease->lease % LEASES_MAX] = (struct lent){lease->lease, pool, offset_bytes, capacity_bytes};
    if (liar.described[pool])
        return -1;
    liar.described[pool] = true;
    lease->description = (struct proto_segment){.id = pool,
                                                .size_bytes = LIAR_SEGMENT_SIZE,
                                                .pool = pool,
                                                .kind = pool == LIAR_POOL_HOST ? PROTO_SEGMENT_MEMFD
                                                                               : PROTO_SEGMENT_LEGACY_IPC};
    if (pool == LIAR_POOL_HOST)
        return make_memfd(LIAR_SEGMENT_SIZE, SEALS);
    memcpy(lease->description.handle, liar.handle.bytes, sizeof lease->description.handle);
    return -1;
}

static int refuse(enum proto_error error) {
    liar.reply.header.operation = PROTO_ERROR;
    proto_failure_set(&liar.reply.failure, error, "so the input says");
    return -1;
}

static int answer_acquire(const struct proto_acquire *acquire) {
    uint64_t capacity_bytes = (acquire->size_bytes + 511) / 512 * 512;

    if (acquire->pool != LIAR_POOL_HOST && acquire->pool != LIAR_POOL_DEVICE)
        return refuse(PROTO_E_NO_POOL);
    if (capacity_bytes > LIAR_SEGMENT_SIZE)
        return refuse(PROTO_E_TOO_LARGE);
    if (capacity_bytes > LIAR_SEGMENT_SIZE - liar.next_offset[acquire->pool])
        return refuse(PROTO_E_EXHAUSTED);
    uint64_t offset_bytes = liar.next_offset[acquire->pool];
    liar.next_offset[acquire->pool] += capacity_bytes;
    return lend(acquire->pool, offset_bytes, acquire->size_bytes, capacity_bytes);
}

/* As many segments as a message has room for, all of them new. Their descriptors are of no memory of the
 * driver's. No pool says that it has such segments, unless POOLS was distorted. */
static int answer_acquire_segments(const struct proto_acquire_segments *acquire) {
    struct proto_leases *leases = &liar.reply.leases;

    liar.reply.header.operation = PROTO_LEASES;
    *leases = (struct proto_leases){.pool = acquire->pool, .segment_bytes = acquire->segment_bytes};
    while (leases->count < acquire->count && leases->count < PROTO_LEASES_PER_MESSAGE)
        leases->leases[leases->count++] =
            (struct proto_segment_lease){++liar.next_lease, 1, LIAR_POOL_DEVICE + 1 + ++liar.next_segment};
    leases->n_described = leases->count;
    leases->n_left = acquire->count - leases->count;
    return -1;
}

static int answer_split(const struct proto_release *split) {
    const struct lent *lent = find_lent(split->lease);
    if (lent == NULL)
        return refuse(PROTO_E_STALE);
    return lend(lent->pool, lent->offset_bytes + split->offset_bytes, split->size_bytes, split->size_bytes);
}

static int answer_query(const struct proto_lease_name *name) {
    const struct lent *lent = find_lent(name->lease);
    if (lent == NULL)
        return refuse(PROTO_E_STALE);
    liar.reply.header.operation = PROTO_INFO;
    liar.reply.info = (struct proto_info){.segment = lent->pool,
                                          .offset_bytes = lent->offset_bytes,
                                          .size_bytes = lent->capacity_bytes,
                                          .capacity_bytes = lent->capacity_bytes,
                                          .pool = lent->pool,
                                          .holders = 1};
    return -1;
}

static int answer_list(void) {
    struct proto_pool *pools = liar.reply.pools.pools;

    liar.reply.header.operation = PROTO_POOLS;
    liar.reply.pools.count = 2;
    liar.reply.pools.reserved = 0;
    pools[0] = (struct proto_pool){.id = LIAR_POOL_HOST,
                                   .kind = PROTO_POOL_HOST,
                                   .device = -1,
                                   .limit_bytes = LIAR_SEGMENT_SIZE,
                                   .name = "host"};
    pools[1] = (struct proto_pool){.id = LIAR_POOL_DEVICE,
                                   .kind = PROTO_POOL_DEVICE,
                                   .limit_bytes = LIAR_SEGMENT_SIZE,
                                   .name = "device"};
    memcpy(pools[1].uuid, liar.uuid.bytes, sizeof pools[1].uuid);
    return -1;
}

static int answer_hello(const struct proto_hello *hello) {
    bool wants_reclaim = (hello->flags & PROTO_HELLO_RECLAIM) != 0;

    liar.reply.header.operation = PROTO_HELLO_REPLY;
    liar.reply.hello_reply =
        (struct proto_hello_reply){.magic = PROTO_MAGIC,
                                   .version = PROTO_VERSION_MAX,
                                   .gpu = PROTO_GPU_SIM,
                                   .session = 1,
                                   .daemon_pid = 1,
                                   .flags = wants_reclaim ? PROTO_HELLO_REPLY_EVENTFD : 0};
    if (!wants_reclaim)
        return -1;
    close_fd(liar.reclaim_fd);
    liar.reclaim_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    MUST(liar.reclaim_fd >= 0);
    return fcntl(liar.reclaim_fd, F_DUPFD_CLOEXEC, 3);
}

static void answer_open_name(void) {
    struct proto_named *named = &liar.reply.named;

    liar.reply.header.operation = PROTO_NAMED;
    named->state = PROTO_NAME_THERE + input_below(liar.input, 3);
    if (named->state != PROTO_NAME_THERE)
        return;
    named->generation = 1 + input_below(liar.input, 4);
    named->count = 1 + input_below(liar.input, 2);
    named->directory_bytes = input_below(liar.input, 64);
    for (uint32_t i = 0; i < named->count; i++) {
        named->buffers[i].size_bytes = 1000;
        named->buffers[i].pool = i == 0 ? LIAR_POOL_HOST : LIAR_POOL_DEVICE;
        named->buffers[i].token.bytes[0] = (uint8_t)i;
    }
}

/* Composes the right reply. Returns its descriptor, owned, or -1. */
static int compose(const struct proto_message *request) {
    memset(&liar.reply, 0, sizeof liar.reply);
    liar.reply.header.request = request->header.request;
    switch (request->header.operation) {
    case PROTO_HELLO:
        return answer_hello(&request->hello);
    case PROTO_LIST_POOLS:
        return answer_list();
    case PROTO_ACQUIRE:
        return answer_acquire(&request->acquire);
    case PROTO_ACQUIRE_SEGMENTS:
        return answer_acquire_segments(&request->acquire_segments);
    case PROTO_SPLIT:
        return answer_split(&request->split);
    case PROTO_ATTACH:
        return lend(request->attach.bytes[0] % 2 == 0 ? LIAR_POOL_HOST : LIAR_POOL_DEVICE, 0, 1000, 1024);
    case PROTO_SHARE:
    case PROTO_SEND:
        liar.reply.header.operation = PROTO_TOKEN;
        liar.reply.token = (struct proto_token_reply){.lease = request->share.lease,
                                                      .generation = request->share.generation};
        if (request->share.part_bytes > 0)
            liar.reply.token.lease++;
        memset(liar.reply.token.token.bytes, (int)request->share.lease, sizeof liar.reply.token.token.bytes);
        return -1;
    case PROTO_QUERY:
        return answer_query(&request->query);
    case PROTO_ASK_PAGE:
        liar.reply.header.operation = PROTO_PAGE;
        liar.reply.page = (struct proto_page_reply){.size_bytes = PROTO_PAGE_BYTES};
        return make_memfd(PROTO_PAGE_BYTES, SEALS);
    case PROTO_ASK_BOARD:
        liar.reply.header.operation = PROTO_BOARD;
        liar.reply.board = (struct proto_board_reply){.size_bytes = PROTO_BOARD_BYTES,
                                                      .slot = input_below(liar.input, PROTO_BOARD_SLOTS)};
        return make_memfd(PROTO_BOARD_BYTES, SEALS);
    case PROTO_ASK_ALIVE:
        liar.reply.header.operation = PROTO_ALIVE;
        return make_pipe();
    case PROTO_ASK_HOLDERS:
        liar.reply.header.operation = PROTO_HOLDERS;
        liar.reply.holders.n_holding = input_below(liar.input, 2);
        return -1;
    case PROTO_IDLE:
    case PROTO_OFFER: /* perhaps what the client has memory in, or never heard of */
        liar.reply.header.operation = PROTO_SEGMENTS;
        liar.reply.segments.count = input_below(liar.input, 4) % 3;
        for (uint32_t i = 0; i < liar.reply.segments.count; i++)
            liar.reply.segments.ids[i] = 1 + input_below(liar.input, 3);
        return -1;
    case PROTO_PUBLISH:
        liar.reply.header.operation = PROTO_PUBLISHED;
        liar.reply.published.generation = 1 + input_below(liar.input, 4);
        return -1;
    case PROTO_OPEN_NAME:
        answer_open_name();
        return -1;
    case PROTO_READ_DIRECTORY:
        liar.reply.header.operation = PROTO_DIRECTORY;
        liar.reply.directory.offset_bytes = request->read_directory.offset_bytes % PROTO_DIRECTORY_PART_MAX;
        liar.reply.directory.n_bytes = 1 + input_below(liar.input, 64);
        return -1;
    case PROTO_LIST_NAMES:
        liar.reply.header.operation = PROTO_NAMES;
        liar.reply.names.count = 1;
        liar.reply.names.names[0] =
            (struct proto_listed_name){.id = request->list_names.after % 1024 + 1, .name = "a"};
        return -1;
    default: /* RELEASE, MERGE, CLOSED, BYE, WRITE_DIRECTORY, UNPUBLISH */
        liar.reply.header.operation = PROTO_OK;
        return -1;
    }
}

/* --- what it says --- */

static void say(const void *packet, size_t size, const int *fds, unsigned n_fds) {
    if (send_with_fds(liar.fd, packet, size, fds, n_fds, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        hang_up();
}

/* Descriptors that are not what the message goes with. */
static unsigned make_fds(struct input *input, int fds[WRONG_FDS_MAX]) {
    static const uint64_t sizes[] = {
        LIAR_SEGMENT_SIZE, 0, 4096, PROTO_PAGE_BYTES, LIAR_SEGMENT_SIZE - 4096, LIAR_SEGMENT_SIZE + 4096};
    static const unsigned seals[] = {SEALS, 0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW,
                                     SEALS | F_SEAL_WRITE};
    unsigned count = input_below(input, 32);

    if (count >= WRONG_FDS_MAX)
        count %= 3;
    for (unsigned i = 0; i < count; i++) {
        unsigned kind = input_below(input, 8);
        if (kind == 7)
            fds[i] = open("/dev/null", O_RDWR | O_CLOEXEC);
        else if (kind == 6)
            fds[i] = eventfd(0, EFD_CLOEXEC);
        else
            fds[i] = make_memfd(sizes[kind], seals[input_below(input, sizeof seals / sizeof *seals)]);
        MUST(fds[i] >= 0);
    }
    return count;
}

/* Changes the body of a packet, or all of it. Returns its size, which may be another than before. */
static size_t distort(struct input *input, uint8_t *packet, size_t size) {
    for (unsigned n = 1 + input_below(input, 3); n > 0; n--) {
        unsigned how = input_below(input, 8);
        size_t at = sizeof(struct proto_header) + input_below(input, 256) * (how < 5 ? 4u : 1u);
        uint64_t value = how < 3 ? input_edgy(input) : input_number(input, 1);
        size_t width = how < 2 ? 8 : how < 5 ? 4 : 1;

        if (how == 7) {
            packet[input_below(input, sizeof(struct proto_header))] = (uint8_t)value;
        } else if (at + width <= size) {
            memcpy(packet + at, &value, width);
        } else if (how == 6) {
            uint32_t length =
                (uint32_t)(size = value < size && value >= sizeof(struct proto_header) ? value : size);
            memcpy(packet + offsetof(struct proto_header, length), &length, sizeof length);
        }
    }
    return size;
}

enum manner {
    MANNER_WELL = 0, /* and all up to this one's last number */
    MANNER_WELL_LAST = 8,
    MANNER_DISTORTED,
    MANNER_DISTORTED_LAST = 11,
    MANNER_REFUSED,
    MANNER_WRONG_FDS,
    MANNER_BYTES,
    MANNER_LATE_OR_GONE,
};

/* Deals with the oldest request. False: it says nothing, and time passes. */
static bool answer(bool may_be_late) {
    uint8_t packet[PROTO_PACKET_MAX + 64];
    int fds[FDS_MAX];
    unsigned n_fds = 0;
    size_t size = 0;
    struct input *input = liar.input;

    if (input->left == 0 || liar.n_requests == 0) {
        hang_up();
        return true;
    }
    unsigned manner = input_below(input, 16), which = 0;
    if (manner == MANNER_LATE_OR_GONE) {
        if (may_be_late && input_below(input, 4) != 0)
            return false;
        hang_up();
        return true;
    }
    if (manner == MANNER_BYTES) { /* a request that was given up, perhaps */
        which = input_below(input, liar.n_requests);
        if (input_below(input, 2) == 0) {
            size = input_number(input, 1);
            const uint8_t *bytes = input_bytes(input, &size);
            say(bytes, size, NULL, 0);
            return true;
        }
    }
    struct proto_message request = liar.requests[which];
    memmove(liar.requests + which, liar.requests + which + 1,
            (--liar.n_requests - which) * sizeof *liar.requests);
    int fd = compose(&request);
    if (liar.reply.header.operation == PROTO_LEASES) {
        while (n_fds < liar.reply.leases.n_described)
            fds[n_fds++] = make_memfd(4096, SEALS);
        if (liar.reply.leases.n_left > 0 &&
            liar.n_requests < REQUESTS_MAX) { /* the rest, before the others */
            memmove(liar.requests + 1, liar.requests, liar.n_requests++ * sizeof *liar.requests);
            liar.requests[0] = request;
            liar.requests[0].acquire_segments.count = liar.reply.leases.n_left;
        }
    }
    if (manner == MANNER_REFUSED) {
        fd = close_fd(fd);
        while (n_fds > 0)
            close_fd(fds[--n_fds]);
        (void)refuse(1 + input_below(input, PROTO_E_MAX));
    }
    if (fd >= 0)
        fds[n_fds++] = fd;
    if (manner == MANNER_WRONG_FDS) {
        while (n_fds > 0)
            close_fd(fds[--n_fds]);
        n_fds = make_fds(input, fds);
    }
    size = proto_encode(&liar.reply, packet);
    if (manner >= MANNER_DISTORTED && manner <= MANNER_DISTORTED_LAST)
        size = distort(input, packet, size);
    say(packet, size, fds, n_fds);
    for (unsigned i = 0; i < n_fds; i++)
        close_fd(fds[i]);
    return true;
}

/* --- where the library would wait --- */

int __wrap_connect(int fd, const struct sockaddr *address, socklen_t length) {
    const struct sockaddr_un *path = (const struct sockaddr_un *)address;
    int ends[2];

    if (address->sa_family != AF_UNIX || strcmp(path->sun_path, LIAR_PATH) != 0)
        return __real_connect(fd, address, length);
    hang_up(); /* a client whose greeting was cut off, by an empty packet perhaps, connects again */
    if (liar.input->left == 0) {
        errno = ECONNREFUSED;
        return -1;
    }
    liar.n_requests = 0;
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
    MUST(dup3(ends[0], fd, O_CLOEXEC) == fd);
    close_fd(ends[0]);
    liar.client_fd = fd;
    liar.fd = ends[1];
    return 0;
}

static bool has_something(void) {
    struct pollfd poll_fd = {.fd = liar.client_fd, .events = POLLIN};
    return poll(&poll_fd, 1, 0) > 0;
}

int __wrap_ppoll(struct pollfd *fds, nfds_t n, const struct timespec *timeout, const sigset_t *mask) {
    if (n >= 1 && fds->fd == liar.client_fd && liar.client_fd >= 0) {
        listen_to_client();
        if ((fds->events & POLLIN) != 0 && !has_something() && liar.fd >= 0 && !answer(timeout != NULL))
            return 0;
    }
    return __real_ppoll(fds, n, timeout, mask);
}

ssize_t __wrap_recvmsg(int fd, struct msghdr *message, int flags) {
    if (fd == liar.client_fd && liar.client_fd >= 0 && (flags & MSG_DONTWAIT) == 0) {
        listen_to_client();
        if (!has_something() && liar.fd >= 0)
            (void)answer(false);
    }
    return __real_recvmsg(fd, message, flags);
}
