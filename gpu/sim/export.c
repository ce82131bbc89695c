/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exporter's side of IPC. With its first export a process starts one thread, which serves an abstract
 * Unix socket for the rest of the process's life: a process that presents a valid handle gets the
 * allocation's memfd, under any uid. An exporter that was given a path serves a second socket there, for
 * processes of other network namespaces. A connection (a peer) stays open while its process has the memory
 * mapped, which is how processes() knows who has.
 *
 * A peer is fresh until it presented a valid handle; fresh peers are few and have little time. Every packet
 * is one handle, every answer one sim_answer; anything else ends the connection. Nothing here blocks on a
 * peer: what cannot be sent at once ends the connection too. The peers belong to the thread; the lock is for
 * those who count them.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/high_fd.h"
#include "base/lock.h"
#include "base/packet.h"
#include "base/thread.h"
#include "gpu/sim/internal.h"

#define PEERS_MAX       4096u           /* what a process with 16 GPUs and 256 clients of each needs */
#define FRESH_PEERS_MAX 64u             /* an importer presents its handle in the moment after it connected */
#define FRESH_NS        (60 * NS_PER_S) /* which is long only for a machine that has far too much to do */
#define BACKLOG         1024
#define EVENTS_MAX      64
#define ACCEPTS_MAX     64              /* in a row, before the peers have their turn again */
#define EXPORT_NS       (5 * NS_PER_US) /* measured on H200: 2–6 us */

struct peer {
    int fd;
    pid_t pid;
    bool under_mps;       /* as it says itself */
    uint32_t devices;     /* a bit for each physical device that it asked memory of; 0: fresh */
    uint64_t deadline_ns; /* while fresh */
    struct list link;     /* in exporter.fresh or exporter.peers */
};

static struct {
    pthread_mutex_t lock; /* start; peers' membership and devices */
    bool started;
    uint32_t pid;
    uint8_t nonce[SIM_NONCE_BYTES];
    int listener, path_listener, epoll, spare;
    struct list fresh; /* oldest first; the thread's alone */
    struct list peers;
    unsigned fresh_count, peer_count;
} exporter = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .listener = -1,
    .path_listener = -1,
    .epoll = -1,
    .spare = -1,
    .fresh = {&exporter.fresh, &exporter.fresh},
    .peers = {&exporter.peers, &exporter.peers},
};

int sim_random(void *bytes, size_t size) {
    return getrandom(bytes, size, 0) == (ssize_t)size ? 0 : GPU_ERROR_UNKNOWN;
}

void sim_nonce_format(const uint8_t nonce[SIM_NONCE_BYTES], char text[SIM_NONCE_TEXT_SIZE]) {
    for (unsigned i = 0; i < SIM_NONCE_BYTES; i++)
        snprintf(text + (size_t)2 * i, 3, "%02x", (unsigned)nonce[i]);
}

int sim_nonce_parse(const char *text, uint8_t ret_nonce[SIM_NONCE_BYTES]) {
    if (strlen(text) != (size_t)2 * SIM_NONCE_BYTES)
        return -EINVAL;
    for (unsigned i = 0; i < SIM_NONCE_BYTES; i++)
        if (sscanf(text + (size_t)2 * i, "%2hhx", &ret_nonce[i]) != 1)
            return -EINVAL;
    return 0;
}

unsigned sim_handle_address(const struct sim_handle *handle, struct sockaddr_un *address) {
    char nonce[SIM_NONCE_TEXT_SIZE];

    sim_nonce_format(handle->nonce, nonce);
    *address = (struct sockaddr_un){.sun_family = AF_UNIX}; /* the leading NUL makes it abstract */
    int length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "gpupool-sim/%u/%s",
                          (unsigned)handle->pid, nonce);
    return (unsigned)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

bool sim_handle_is_own(const struct sim_handle *handle) {
    LOCKED(&exporter.lock);
    return exporter.started && memcmp(handle->nonce, exporter.nonce, sizeof(exporter.nonce)) == 0;
}

/* --- peers --- */

static void peer_end(struct peer *peer) {
    /* Closing does not take it out of the epoll set while a forked child holds a copy of it. */
    epoll_ctl(exporter.epoll, EPOLL_CTL_DEL, peer->fd, NULL);
    pthread_mutex_lock(&exporter.lock);
    list_remove(&peer->link);
    if (peer->devices == 0)
        exporter.fresh_count--;
    exporter.peer_count--;
    pthread_mutex_unlock(&exporter.lock);
    close_fd(peer->fd);
    free(peer);
}

/* Compares all bytes whatever they are, so that the time taken says nothing about the secret. */
static bool secret_equal(const uint8_t *a, const uint8_t *b) {
    uint8_t difference = 0;

    for (unsigned i = 0; i < SIM_SECRET_BYTES; i++)
        difference |= a[i] ^ b[i];
    return difference == 0;
}

/* The allocation that a handle names; the caller gets a reference. */
static int handle_resolve(const struct sim_handle *handle, struct sim_range **ret_range) {
    _cleanup_(sim_range_unrefp) struct sim_range *range = NULL;

    if (handle->magic != SIM_MAGIC || handle->reserved != 0 || !sim_handle_is_own(handle))
        return GPU_ERROR_INVALID_VALUE;
    range = sim_range_find_allocation(handle->id);
    if (range == NULL)
        return GPU_ERROR_MAP_BUFFER_OBJECT_FAILED; /* freed */
    if (!secret_equal(handle->secret, range->secret) || handle->physical != range->physical)
        return GPU_ERROR_INVALID_VALUE;
    *ret_range = take_ptr(&range);
    return 0;
}

/* A process with a descriptor of this exporter's memory knows the exporter's nonce. So does any that reads
 * the names of sockets: it would only have itself listed. */
static int presence_check(const struct sim_handle *handle) {
    return handle->magic == SIM_MAGIC && handle->reserved == 0 && sim_handle_is_own(handle) &&
                   handle->physical < GPU_SIM_DEVICES_MAX
               ? 0
               : GPU_ERROR_INVALID_VALUE;
}

/* Sends an answer, and the descriptor where there is one. Never blocks. */
static int answer_send(int fd, const struct sim_answer *answer, int memfd) {
    ssize_t sent = send_with_fd(fd, answer, sizeof(*answer), memfd, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent == sizeof(*answer) ? 0 : -EIO;
}

/* Reads one packet and answers it. Returns 0, or negative when the connection is to end. */
static int peer_serve(struct peer *peer) {
    _cleanup_(sim_range_unrefp) struct sim_range *range = NULL;
    struct sim_answer answer = {0};
    struct sim_handle handle;
    ssize_t length;

    /* No control buffer: the kernel drops whatever descriptors a peer attaches. */
    length = recv(peer->fd, &handle, sizeof(handle), MSG_DONTWAIT | MSG_TRUNC);
    if (length < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    if (length != sizeof(handle))
        return -EPROTO;
    bool under_mps = (handle.reserved & SIM_FROM_MPS) != 0;
    bool is_presence = (handle.reserved & SIM_PRESENT) != 0;
    handle.reserved &= ~(SIM_FROM_MPS | SIM_PRESENT);
    answer.error = (uint32_t)(is_presence ? presence_check(&handle) : handle_resolve(&handle, &range));
    if (answer.error != 0)
        return answer_send(peer->fd, &answer, -1);
    pthread_mutex_lock(&exporter.lock);
    peer->under_mps |= under_mps;
    if (peer->devices == 0) {
        exporter.fresh_count--;
        list_remove(&peer->link);
        list_append(&exporter.peers, &peer->link);
    }
    peer->devices |= 1u << handle.physical;
    pthread_mutex_unlock(&exporter.lock);
    if (is_presence)
        return answer_send(peer->fd, &answer, -1);
    answer.size_bytes = range->size_bytes;
    return answer_send(peer->fd, &answer, range->memfd);
}

/* Takes an accepted connection over; closes it where there is no room. */
static void peer_begin(int accepted) {
    _cleanup_(close_fdp) int fd = accepted;
    _cleanup_(freep) struct peer *peer = NULL;
    struct ucred credentials;
    socklen_t length = sizeof(credentials);

    if (exporter.fresh_count == FRESH_PEERS_MAX)
        peer_end(list_first(&exporter.fresh, struct peer, link));
    if (exporter.peer_count == PEERS_MAX ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) < 0)
        return;
    peer = calloc(1, sizeof(*peer));
    if (peer == NULL || epoll_ctl(exporter.epoll, EPOLL_CTL_ADD, fd,
                                  &(struct epoll_event){.events = EPOLLIN, .data.ptr = peer}) < 0)
        return;
    peer->fd = take_fd(&fd);
    peer->pid = credentials.pid;
    peer->deadline_ns = clock_now_ns() + FRESH_NS;
    pthread_mutex_lock(&exporter.lock);
    list_append(&exporter.fresh, &peer->link);
    exporter.fresh_count++;
    exporter.peer_count++;
    pthread_mutex_unlock(&exporter.lock);
    peer = NULL;
}

/* With all descriptors in use, a connection would stay in the queue and wake the thread for ever: it is
 * accepted in place of the spare descriptor, and closed. */
static void refuse_one(int listener) {
    exporter.spare = close_fd(exporter.spare);
    close_fd(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
    exporter.spare = high_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

static void accept_some(int listener) {
    for (unsigned i = 0; i < ACCEPTS_MAX; i++) {
        int fd = high_fd(accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));

        if (fd >= 0)
            peer_begin(fd);
        else if (errno == EMFILE || errno == ENFILE) {
            if (!list_is_empty(&exporter.fresh)) {
                peer_end(list_first(&exporter.fresh, struct peer, link));
                continue;
            }
            if (exporter.spare < 0)
                exporter.spare = high_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
            if (exporter.spare < 0) {
                /* Somebody else took it in between; give the process a moment rather than spin. */
                nanosleep(&(struct timespec){.tv_nsec = (long)NS_PER_MS}, NULL);
                return;
            }
            refuse_one(listener);
        } else if (errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

/* Ends the fresh peers whose time is over. Returns how long epoll may wait, in ms. */
static int fresh_expire(void) {
    while (!list_is_empty(&exporter.fresh)) {
        struct peer *oldest = list_first(&exporter.fresh, struct peer, link);
        uint64_t now_ns = clock_now_ns();

        if (oldest->deadline_ns > now_ns)
            return (int)((oldest->deadline_ns - now_ns) / NS_PER_MS) + 1;
        peer_end(oldest);
    }
    return -1;
}

static void *serve(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "gpupool-sim-ipc");
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        bool accepting = false, accepting_at_path = false;
        int count = epoll_wait(exporter.epoll, events, EVENTS_MAX, fresh_expire());

        for (int i = 0; i < count; i++) {
            struct peer *peer = events[i].data.ptr;

            /* Accepting ends fresh peers, which may have events of their own here: it comes last. */
            if (peer == NULL)
                accepting = true;
            else if (events[i].data.ptr == &exporter.path_listener)
                accepting_at_path = true;
            else if (peer_serve(peer) < 0)
                peer_end(peer);
        }
        if (accepting)
            accept_some(exporter.listener);
        if (accepting_at_path)
            accept_some(exporter.path_listener);
    }
    return NULL;
}

/* --- start --- */

/* Listens at a path, in the place of what an exporter that is dead left there. Returns -1 where that cannot
 * be. */
static int listen_at(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct stat status;

    if (strlen(path) >= sizeof(address.sun_path))
        return -1;
    strcpy(address.sun_path, path);
    _cleanup_(close_fdp) int fd = high_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0 || (lstat(path, &status) == 0 && S_ISSOCK(status.st_mode) && unlink(path) < 0) ||
        bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
        return -1;
    if (chmod(path, 0666) < 0 || listen(fd, BACKLOG) < 0) {
        unlink(path);
        return -1;
    }
    return take_fd(&fd);
}

/* Locked. */
static int exporter_start(void) {
    _cleanup_(close_fdp) int listener = -1, epoll = -1, spare = -1;
    struct sockaddr_un address;
    struct sim_handle own = {.pid = (uint32_t)getpid()};
    pthread_t thread;

    if (sim_random(own.nonce, sizeof(own.nonce)) != 0)
        return GPU_ERROR_UNKNOWN;
    listener = high_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    epoll = high_fd(epoll_create1(EPOLL_CLOEXEC));
    spare = high_fd(open("/dev/null", O_RDONLY | O_CLOEXEC));
    socklen_t length = sim_handle_address(&own, &address);
    if (listener < 0 || epoll < 0 || spare < 0 || bind(listener, (struct sockaddr *)&address, length) < 0 ||
        listen(listener, BACKLOG) < 0 ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN}) < 0)
        return GPU_ERROR_UNKNOWN;
    exporter.listener = listener;
    exporter.epoll = epoll;
    exporter.spare = spare;
    if (thread_create(&thread, NULL, serve, NULL) != 0) {
        exporter.listener = exporter.epoll = exporter.spare = -1;
        return GPU_ERROR_UNKNOWN;
    }
    pthread_detach(thread);
    listener = epoll = spare = -1;
    exporter.pid = own.pid;
    memcpy(exporter.nonce, own.nonce, sizeof(own.nonce));
    exporter.started = true;
    return 0;
}

int sim_exporter_start_at(const char *path) {
    LOCKED(&exporter.lock);
    int r = exporter.started ? 0 : exporter_start();
    if (r != 0)
        return r;
    exporter.path_listener = listen_at(path);
    if (exporter.path_listener >= 0 &&
        epoll_ctl(exporter.epoll, EPOLL_CTL_ADD, exporter.path_listener,
                  &(struct epoll_event){.events = EPOLLIN, .data.ptr = &exporter.path_listener}) < 0)
        return GPU_ERROR_UNKNOWN;
    return 0;
}

int sim_exporter(struct sim_handle *ret_exporter) {
    LOCKED(&exporter.lock);
    int r = exporter.started ? 0 : exporter_start();
    *ret_exporter = (struct sim_handle){.magic = SIM_MAGIC, .pid = exporter.pid};
    memcpy(ret_exporter->nonce, exporter.nonce, sizeof(exporter.nonce));
    return r;
}

/* --- the table's calls --- */

int sim_ipc_export(unsigned device, void *memory, struct gpu_ipc_handle *ret_handle) {
    _cleanup_(sim_range_unrefp) struct sim_range *range = NULL;
    struct sim_handle handle;
    unsigned physical;
    int r = sim_enter_context(SIM_IPC_EXPORT, device, &physical);

    if (r != 0)
        return r;
    range = sim_range_find(memory);
    if (range == NULL || range->kind != SIM_RANGE_DEVICE || range->physical != physical)
        return GPU_ERROR_INVALID_VALUE;
    r = sim_exporter(&handle);
    if (r != 0)
        return r;
    handle.physical = physical;
    handle.id = range->id;
    memcpy(handle.secret, range->secret, sizeof(handle.secret));
    sim_spend(EXPORT_NS, 0, 0);
    memcpy(ret_handle->bytes, &handle, sizeof(handle));
    return 0;
}

/* Adds a pid that is not there yet. */
static void pid_add(pid_t pid, pid_t *pids, size_t capacity, size_t *count) {
    for (size_t i = 0; i < *count && i < capacity; i++)
        if (pids[i] == pid)
            return;
    if (*count < capacity)
        pids[*count] = pid;
    (*count)++;
}

int sim_processes(unsigned device, pid_t *pids, size_t capacity, size_t *ret_count) {
    _cleanup_(freep) pid_t *seen = NULL;
    unsigned physical;
    int r = sim_enter_on(SIM_PROCESSES, device, &physical);

    if (r != 0)
        return r;
    LOCKED(&exporter.lock);
    size_t count = 0, room = exporter.peer_count + 1;
    /* Not in the caller's array, which may be too small to tell which pids were counted. */
    seen = malloc(room * sizeof(*seen));
    if (seen == NULL)
        return GPU_ERROR_MEMORY_ALLOCATION;
    if (sim_has_context(physical))
        pid_add(getpid(), seen, room, &count);
    list_for_each_entry(const struct peer, peer, &exporter.peers, link) {
        /* 0: a process outside this PID namespace, which has no pid here. */
        if ((peer->devices & 1u << physical) != 0 && peer->pid != 0)
            pid_add(peer->pid, seen, room, &count);
    }
    for (size_t i = 0; i < count && i < capacity; i++)
        pids[i] = seen[i];
    *ret_count = count;
    return 0;
}

static bool is_under_mps(pid_t pid) {
    LOCKED(&exporter.lock);
    list_for_each_entry(const struct peer, peer, &exporter.peers, link) {
        if (peer->pid == pid && peer->under_mps)
            return true;
    }
    return false;
}

/* The driver of an H100 lists a process that has a context and nothing else with so much. */
#define SIM_CONTEXT_BYTES (UINT64_C(518) << 20)

int sim_all_processes(struct gpu_process *processes, size_t capacity, size_t *ret_count) {
    _cleanup_(freep) pid_t *pids = NULL;
    unsigned physical;
    size_t count = 0;

    if (capacity > 0 && (pids = malloc(capacity * sizeof(*pids))) == NULL)
        return GPU_ERROR_MEMORY_ALLOCATION;
    for (unsigned device = 0; sim_device(device, &physical) == 0; device++) {
        size_t listed = 0;
        int r = sim_processes(device, pids, capacity, &listed);

        if (r != 0 && !sim_is_lost(physical))
            return r;
        for (size_t i = 0; i < listed; i++, count++)
            if (i < capacity && count < capacity)
                processes[count] = (struct gpu_process){
                    .pid = pids[i], .under_mps = is_under_mps(pids[i]), .used_bytes = SIM_CONTEXT_BYTES};
    }
    *ret_count = count;
    return 0;
}

void sim_device_file_name(const uint8_t nonce[SIM_NONCE_BYTES], char name[SIM_DEVICE_FILE_SIZE]) {
    char text[SIM_NONCE_TEXT_SIZE];

    sim_nonce_format(nonce, text);
    snprintf(name, SIM_DEVICE_FILE_SIZE, "gpupool-sim-gpu-%s", text);
}

void sim_device_files(char prefix[GPU_DEVICE_FILES_SIZE]) {
    char name[SIM_DEVICE_FILE_SIZE];

    LOCKED(&exporter.lock);
    /* Before the first export no process has a link, and no file has this name. */
    sim_device_file_name(exporter.nonce, name);
    snprintf(prefix, GPU_DEVICE_FILES_SIZE, "/memfd:%s", name);
}
