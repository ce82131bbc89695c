/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The importer's side of IPC. A link is this process's connection to one exporter for one of its devices; it
 * is made by the first handle opened and closed with the last mapping from it, so that the exporter can tell
 * who has its memory mapped. Opening what is open already gives the same mapping and counts. Mappings outlive
 * the exporter's free and its death: they hold the memfd's pages.
 *
 * One lock for all: opening takes a round trip to the exporter, which answers within a bound or is given up.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/high_fd.h"
#include "base/lock.h"
#include "base/packet.h"
#include "gpu/sim/internal.h"

/* An exporter that takes longer for a lookup is as good as dead, however much the machine has to do. */
#define ANSWER_S 60

/* Measured on H200, driver 580, CUDA 13.0: 64–105 us, 33–40 us. Opening again costs nothing worth spending.
 */
#define OPEN_NS  (85 * NS_PER_US)
#define CLOSE_NS (35 * NS_PER_US)

struct sim_link {
    uint8_t nonce[SIM_NONCE_BYTES]; /* which exporter */
    uint32_t physical;              /* which of its devices */
    int fd;
    int device_file;   /* see sim_device_file_name() */
    unsigned mappings; /* and memory by descriptor; 0 only while the first handle is being opened */
    uint64_t key;      /* its name towards the ghost */
    struct list link;
};

/* More than the daemons, each in another network namespace, that a process has clients of at one time. */
#define PATHS_MAX 8u

static struct {
    pthread_mutex_t lock;
    struct sockaddr_un
        paths[PATHS_MAX]; /* where exporters may be found; the newest in the place of the oldest */
    unsigned next_path;
    struct list links;
    struct list imports; /* sim_range.import_link: all that are open; each a reference */
    uint64_t last_key;
} importer = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .links = {&importer.links, &importer.links},
    .imports = {&importer.imports, &importer.imports},
};

void sim_import_path_add(const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    if (strlen(path) >= sizeof(address.sun_path))
        return;
    strcpy(address.sun_path, path);
    LOCKED(&importer.lock);
    for (unsigned i = 0; i < PATHS_MAX; i++)
        if (strcmp(importer.paths[i].sun_path, path) == 0)
            return;
    importer.paths[importer.next_path++ % PATHS_MAX] = address;
}

/* --- links --- */

/* Returns -1 where no process listens. */
static int connect_to(const struct sockaddr_un *address, socklen_t length) {
    struct timeval timeout = {.tv_sec = ANSWER_S};
    _cleanup_(close_fdp) int fd = high_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));

    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0)
        return -1;
    while (connect(fd, (const struct sockaddr *)address, length) < 0)
        if (errno != EINTR)
            return -1;
    return take_fd(&fd);
}

/* Sends a handle to its exporter, and receives the answer. Returns the answer's error, or
 * MAP_BUFFER_OBJECT_FAILED. */
static int link_exchange(const struct sim_link *link, const struct sim_handle *handle, uint64_t flags,
                         struct sim_answer *ret_answer, int *ret_memfd) {
    struct sim_handle question = *handle;

    if (question.reserved == 0)
        question.reserved = flags | (sim_settings.under_mps ? SIM_FROM_MPS : 0);
    ssize_t sent = send_with_fd(link->fd, &question, sizeof(question), -1, MSG_NOSIGNAL);
    if (sent != sizeof(question) ||
        receive_with_fd(link->fd, ret_answer, sizeof(*ret_answer), ret_memfd, 0) < 0 ||
        ret_answer->error > GPU_ERROR_UNKNOWN)
        return GPU_ERROR_MAP_BUFFER_OBJECT_FAILED;
    return (int)ret_answer->error;
}

/* Finds the exporter at one of the paths, where it is in another network namespace. -1: it is dead, or not
 * reached. */
static int connect_by_path(const struct sim_handle *handle) {
    for (unsigned i = 0; i < PATHS_MAX; i++) {
        _cleanup_(close_fdp) int memfd = -1;
        struct sim_answer answer;
        if (importer.paths[i].sun_path[0] == '\0')
            continue;
        struct sim_link link = {.fd = connect_to(&importer.paths[i], sizeof(importer.paths[i]))};
        if (link.fd >= 0 && link_exchange(&link, handle, SIM_PRESENT, &answer, &memfd) == 0)
            return link.fd;
        close_fd(link.fd); /* another exporter */
    }
    return -1;
}

static int link_connect(const struct sim_handle *handle, struct sim_link **ret_link) {
    _cleanup_(freep) struct sim_link *link = calloc(1, sizeof(*link));
    _cleanup_(close_fdp) int fd = -1, device_file = -1;
    char name[SIM_DEVICE_FILE_SIZE];
    struct sockaddr_un address;
    socklen_t length = sim_handle_address(handle, &address);

    if (link == NULL)
        return GPU_ERROR_MEMORY_ALLOCATION;
    fd = connect_to(&address, length);
    if (fd < 0)
        fd = connect_by_path(handle);
    if (fd < 0)
        return GPU_ERROR_MAP_BUFFER_OBJECT_FAILED;
    sim_device_file_name(handle->nonce, name);
    device_file = high_fd(memfd_create(name, MFD_CLOEXEC));
    if (device_file < 0)
        return GPU_ERROR_UNKNOWN;
    memcpy(link->nonce, handle->nonce, sizeof(link->nonce));
    link->physical = handle->physical;
    link->key = ++importer.last_key;
    link->fd = take_fd(&fd);
    link->device_file = take_fd(&device_file);
    list_append(&importer.links, &link->link);
    sim_ghost_keep(link->key, link->fd, 0);
    *ret_link = take_ptr(&link);
    return 0;
}

static int link_get(const struct sim_handle *handle, struct sim_link **ret_link) {
    list_for_each_entry(struct sim_link, link, &importer.links, link) {
        if (link->physical == handle->physical && memcmp(link->nonce, handle->nonce, SIM_NONCE_BYTES) == 0) {
            *ret_link = link;
            return 0;
        }
    }
    return link_connect(handle, ret_link);
}

/* Ends a link that no mapping needs. */
static void link_end_if_unused(struct sim_link *link) {
    if (link->mappings > 0)
        return;
    sim_ghost_drop(link->key);
    list_remove(&link->link);
    close_fd(link->fd);
    close_fd(link->device_file);
    free(link);
}

/* Presents a handle to its exporter. */
static int link_ask(const struct sim_link *link, const struct sim_handle *handle, int *ret_memfd,
                    uint64_t *ret_size) {
    _cleanup_(close_fdp) int memfd = -1;
    struct sim_answer answer = {0};
    struct stat status;
    int seals, r = link_exchange(link, handle, 0, &answer, &memfd);

    if (r != 0)
        return r;
    /* The process that answers holds the nonce, but may not be the exporter. The seal ensures that the memory
     * cannot shrink under the mapping. */
    seals = fcntl(memfd, F_GET_SEALS); /* -1 where no descriptor came */
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(memfd, &status) < 0 || answer.size_bytes == 0 ||
        (uint64_t)status.st_size != answer.size_bytes)
        return GPU_ERROR_MAP_BUFFER_OBJECT_FAILED;
    *ret_memfd = take_fd(&memfd);
    *ret_size = answer.size_bytes;
    return 0;
}

/* --- memory by descriptor --- */

int sim_link_join(const struct sim_handle *exporter, struct sim_link **ret_link) {
    _cleanup_(close_fdp) int memfd = -1;
    struct sim_link *link = NULL;
    struct sim_answer answer;

    LOCKED(&importer.lock);
    sim_ghost_start();
    int r = link_get(exporter, &link);
    if (r == 0) {
        r = link_exchange(link, exporter, SIM_PRESENT, &answer, &memfd);
        if (r != 0)
            link_end_if_unused(link);
    }
    if (r != 0)
        return r;
    link->mappings++;
    *ret_link = link;
    return 0;
}

void sim_link_leave(struct sim_link *link) {
    LOCKED(&importer.lock);
    link->mappings--;
    link_end_if_unused(link);
}

uint64_t sim_import_note(int memfd, uint64_t size_bytes) {
    LOCKED(&importer.lock);
    sim_ghost_keep(++importer.last_key, memfd, size_bytes);
    return importer.last_key;
}

void sim_import_forget(uint64_t ghost_key) {
    LOCKED(&importer.lock);
    sim_ghost_drop(ghost_key);
}

/* --- imports --- */

static struct sim_range *import_find(const struct gpu_ipc_handle *handle) {
    list_for_each_entry(struct sim_range, range, &importer.imports, import_link) {
        if (memcmp(&range->handle, handle, sizeof(*handle)) == 0)
            return range;
    }
    return NULL;
}

/* The open import that begins there, or NULL. */
static struct sim_range *import_at(const void *memory) {
    list_for_each_entry(struct sim_range, range, &importer.imports, import_link) {
        if (range->start == (uintptr_t)memory)
            return range;
    }
    return NULL;
}

/* Maps what a handle names. On success the mapping is registered and the link counts it. */
static int import_create(struct sim_link *link, const struct gpu_ipc_handle *bytes,
                         const struct sim_handle *handle, struct sim_range **ret_range) {
    _cleanup_(sim_range_unrefp) struct sim_range *range = NULL;
    _cleanup_(close_fdp) int memfd = -1;
    uint64_t size_bytes = 0;
    int r = link_ask(link, handle, &memfd, &size_bytes);

    if (r != 0)
        return r;
    range = sim_range_map(SIM_RANGE_IMPORT, handle->physical, memfd, size_bytes);
    if (range == NULL)
        return GPU_ERROR_MAP_BUFFER_OBJECT_FAILED;
    range->handle = *bytes;
    range->link = link;
    range->opens = 1;
    range->ghost_key = ++importer.last_key;
    r = sim_range_register(range);
    if (r != 0)
        return r;
    sim_ghost_keep(range->ghost_key, memfd, size_bytes);
    list_append(&importer.imports, &sim_range_ref(range)->import_link);
    link->mappings++;
    *ret_range = take_ptr(&range);
    return 0;
}

int sim_ipc_open(unsigned device, const struct gpu_ipc_handle *bytes, void **ret_memory) {
    struct sim_range *range = NULL;
    struct sim_handle handle;
    struct sim_link *link = NULL;
    unsigned physical;
    int r = sim_enter_context(SIM_IPC_OPEN, device, &physical);

    if (r != 0)
        return r;
    memcpy(&handle, bytes->bytes, sizeof(handle));
    if (handle.magic != SIM_MAGIC || handle.physical >= GPU_SIM_DEVICES_MAX)
        return GPU_ERROR_INVALID_VALUE;
    if (sim_handle_is_own(&handle))
        return GPU_ERROR_INVALID_CONTEXT;

    LOCKED(&importer.lock);
    range = import_find(bytes);
    if (range != NULL)
        range->opens++;
    else {
        sim_ghost_start();
        r = link_get(&handle, &link);
        if (r != 0)
            return r;
        r = import_create(link, bytes, &handle, &range);
        if (r != 0) {
            link_end_if_unused(link);
            return r;
        }
        sim_spend(OPEN_NS, 0, 0);
    }
    *ret_memory = (void *)range->start;
    return 0;
}

int sim_ipc_close(unsigned device, void *memory) {
    struct sim_range *range;
    unsigned physical;
    int r = sim_enter_context(SIM_IPC_CLOSE, device, &physical);

    if (r != 0)
        return r;
    pthread_mutex_lock(&importer.lock);
    range = import_at(memory);
    bool is_last = range != NULL && range->opens == 1;
    if (range != NULL && !is_last)
        range->opens--;
    pthread_mutex_unlock(&importer.lock);
    if (!is_last)
        return range == NULL ? GPU_ERROR_INVALID_VALUE : 0;

    /* Without the lock: work on the memory may take as long as it likes. Somebody may open the handle again,
     * or close it too, in the meantime. */
    sim_streams_drain(physical);
    LOCKED(&importer.lock);
    range = import_at(memory);
    if (range == NULL)
        return GPU_ERROR_INVALID_VALUE;
    if (--range->opens > 0)
        return 0;
    struct sim_link *link = range->link;
    list_remove(&range->import_link);
    sim_ghost_drop(range->ghost_key);
    sim_range_unregister(range);
    sim_range_unref(range); /* unmapped before the exporter hears that it is */
    link->mappings--;
    link_end_if_unused(link);
    sim_spend(CLOSE_NS, 0, 0);
    return 0;
}
