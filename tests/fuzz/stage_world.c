/* SPDX-License-Identifier: Apache-2.0 */
/* The world of a stage, which replaces the machine: see stage.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/units.h"
#include "daemon/death/holders.h"
#include "daemon/loop/log.h"
#include "daemon/loop/peer.h"
#include "daemon/loop/worker.h"
#include "daemon/supply/host_pages.h"
#include "daemon/supply/numa.h"
#include "gpu/gpu.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/stage.h"

#define WORKERS_MAX 8u
#define PEERS_MAX   1024u

extern const struct stage_process *stage_connecting;

static struct stage *stage;
static struct worker *workers[WORKERS_MAX]; /* NULL: stopped */
static unsigned n_workers;

void stage_world_reset(struct stage *fresh) {
    stage = fresh;
    n_workers = 0;
}

/* Whether the next call for memory is the one that was told to fail. */
static bool fails(void) {
    bool failing = stage->driver_fails;
    stage->driver_fails = false;
    return failing;
}

/* --- daemon/loop/log.h --- */

void log_set_level(enum log_level level) {
    (void)level;
}

void log_copy_to(struct log_copy *copy) {
    (void)copy;
}

/* The message is made, so that its arguments are read, and shown only on demand: a daemon under fire logs
 * much. */
void log_message(enum log_level level, const char *format, ...) {
    char line[2048];
    va_list arguments;

    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    MUST(n >= 0);
    if (getenv("GPUPOOL_FUZZ_LOG") != NULL)
        fprintf(stderr, "%d: %s\n", (int)level, line);
}

/* --- daemon/loop/worker.h --- */

int worker_start(struct worker *worker, uv_loop_t *loop, const char *name) {
    (void)loop;
    MUST(n_workers < WORKERS_MAX);
    memset(worker, 0, sizeof *worker);
    snprintf(worker->name, sizeof worker->name, "%s", name);
    list_init(&worker->queued);
    list_init(&worker->finished);
    worker->started = true;
    workers[n_workers++] = worker;
    return 0;
}

static bool run_job(struct worker *worker) {
    struct worker_job *job = list_first(&worker->queued, struct worker_job, link);
    if (job == NULL)
        return false;
    list_remove(&job->link);
    job->run(job);
    worker->pending--;
    job->done(job);
    return true;
}

void worker_stop(struct worker *worker) {
    if (!worker->started)
        return;
    worker->started = false;
    worker->stopping = true;
    while (run_job(worker)) {
    }
    for (unsigned i = 0; i < n_workers; i++)
        if (workers[i] == worker)
            workers[i] = NULL;
}

void worker_submit(struct worker *worker, struct worker_job *job) {
    worker->pending++;
    list_append(&worker->queued, &job->link);
}

void worker_enter_call(struct worker *worker, const char *name) {
    if (worker != NULL)
        worker->call = name;
}

void worker_leave_call(struct worker *worker) {
    if (worker != NULL)
        worker->call = NULL;
}

const char *worker_call(struct worker *worker, uint64_t *ret_since_ns) {
    *ret_since_ns = stage->now_ns;
    return worker->call;
}

bool worker_is_alive(struct worker *worker) {
    return !worker->stopping;
}

bool stage_run_job(struct stage *on, unsigned worker) {
    MUST(on == stage);
    if (worker >= n_workers || workers[worker] == NULL || !run_job(workers[worker]))
        return false;
    stage_turn(on);
    return true;
}

bool stage_run_any_job(struct stage *on) {
    for (unsigned i = 0; i < n_workers; i++)
        if (stage_run_job(on, i))
            return true;
    return false;
}

/* --- daemon/loop/peer.h --- */

/* Whose the daemon's sockets are, by descriptor. */
static struct {
    const struct stage_process *process;
    pid_t pid; /* the process that connected: by now there may be another in its place */
} connected[PEERS_MAX];

int peer_identify(int fd, struct peer *ret_peer) {
    MUST(stage_connecting != NULL && fd < (int)PEERS_MAX);
    connected[fd].process = stage_connecting;
    connected[fd].pid = stage_connecting->pid;
    *ret_peer = (struct peer){.pid = stage_connecting->foreign ? 0 : stage_connecting->pid,
                              .uid = stage_connecting->uid,
                              .gid = stage_connecting->uid,
                              .command = "process"};
    return 0;
}

void peer_read_command(struct peer *peer) {
    (void)peer;
}

/* Every other user is in a group beside his own. */
int peer_read_groups(int fd, struct peer *peer) {
    (void)fd;
    if (peer->uid % 2 == 0)
        return 0;
    gid_t *group = malloc(sizeof *group);
    if (group == NULL)
        return -ENOMEM;
    *group = STAGE_GID;
    peer->groups = group;
    peer->n_groups = 1;
    return 0;
}

void peer_drop_groups(struct peer *peer) {
    free((void *)peer->groups);
    peer->groups = NULL;
    peer->n_groups = 0;
}

int peer_open_pidfd(int fd, pid_t pid, int *ret_pidfd) {
    (void)pid;
    if (connected[fd].pid != connected[fd].process->pid)
        return -ESRCH; /* else a dead one's pidfd, as kernels since 6.18 have it */
    *ret_pidfd = fcntl(connected[fd].process->death_fd, F_DUPFD_CLOEXEC, 3);
    return *ret_pidfd < 0 ? -errno : 0;
}

bool peer_is_unmapped(const struct peer *peer) {
    (void)peer;
    return false;
}

bool peer_is_remembered(int fd) {
    (void)fd;
    return true;
}

/* --- daemon/supply/host_pages.h, daemon/supply/numa.h --- */

int host_pages_make(void *memory, uint64_t size_bytes, bool huge, struct worker *worker,
                    uint64_t *ret_huge_bytes) {
    (void)memory, (void)size_bytes, (void)huge, (void)worker;
    *ret_huge_bytes = 0;
    return fails() ? -ENOMEM : 0;
}

int host_pages_lock(void *memory, uint64_t size_bytes) {
    (void)memory, (void)size_bytes;
    return 0;
}

void host_pages_unmap(void *memory, uint64_t size_bytes) {
    munmap(memory, size_bytes);
}

unsigned numa_nodes(int nodes[NUMA_NODES_MAX]) {
    nodes[0] = 0;
    return 1;
}

int numa_memory(int node, uint64_t *ret_total_bytes, uint64_t *ret_available_bytes) {
    (void)node;
    *ret_total_bytes = *ret_available_bytes = 64 * GIB;
    return 0;
}

uint64_t numa_free_huge_pages(int node) {
    (void)node;
    return 0;
}

int numa_prefer(void *memory, size_t size_bytes, int node) {
    (void)memory, (void)size_bytes, (void)node;
    return 0;
}

/* --- the driver --- */

static int stage_device_count(unsigned *ret_count) {
    *ret_count = 1;
    return 0;
}

static int stage_device_describe(unsigned device, struct gpu_device *ret_device) {
    (void)device;
    *ret_device = (struct gpu_device){.uuid = {{1, 2, 3}}, .name = "a GPU on a stage", .total_bytes = GIB};
    return 0;
}

static int stage_device_memory(unsigned device, uint64_t *ret_free_bytes, uint64_t *ret_total_bytes) {
    (void)device;
    if (stage->device_lost)
        return GPU_ERROR_UNKNOWN;
    *ret_free_bytes = *ret_total_bytes = GIB;
    return 0;
}

static int stage_device_current(unsigned *ret_device) {
    *ret_device = 0;
    return 0;
}

static int stage_device_check(unsigned device) {
    (void)device;
    return 0;
}

static bool stage_has_context(unsigned device) {
    (void)device;
    return true;
}

static void stage_nothing(void) {}

static const char *stage_unclean_setting(bool is_host) {
    (void)is_host;
    return NULL;
}

static int stage_device_synchronize(unsigned device) {
    (void)device;
    return stage->device_lost ? GPU_ERROR_UNKNOWN : 0;
}

/* Hands out addresses that no code reads or writes, each once. */
static int stage_memory_allocate(unsigned device, uint64_t size_bytes, void **ret_memory) {
    (void)device;
    MUST(size_bytes > 0 && size_bytes % GPU_ALLOCATION_GRANULE == 0);
    if (stage->device_lost)
        return GPU_ERROR_UNKNOWN;
    if (fails())
        return GPU_ERROR_MEMORY_ALLOCATION;
    *ret_memory = (void *)(uintptr_t)stage->next_address;
    stage->next_address += size_bytes;
    return 0;
}

static int stage_memory_free(unsigned device, void *memory) {
    (void)device;
    if (stage->on_free != NULL)
        stage->on_free(memory);
    return 0;
}

static int stage_memory_set(unsigned device, void *memory, uint8_t byte, uint64_t size_bytes, void *stream) {
    (void)device, (void)memory, (void)byte, (void)size_bytes, (void)stream;
    return 0;
}

static int stage_stream_synchronize(unsigned device, void *stream) {
    (void)device, (void)stream;
    return 0;
}

static int stage_ipc_export(unsigned device, void *memory, struct gpu_ipc_handle *ret_handle) {
    (void)device;
    memset(ret_handle, 0, sizeof *ret_handle);
    memcpy(ret_handle->bytes, &memory, sizeof memory);
    return 0;
}

static int stage_processes(unsigned device, pid_t *pids, size_t capacity, size_t *ret_count) {
    size_t count = 0;

    (void)device;
    if (stage->process_list_fails)
        return GPU_ERROR_UNKNOWN;
    for (unsigned i = 0; i < STAGE_PROCESSES; i++) {
        const struct stage_process *process = &stage->processes[i];
        if (process->pid == 0 || !process->listed)
            continue;
        if (count < capacity)
            pids[count] = process->pid;
        count++;
    }
    *ret_count = count;
    return 0;
}

static int stage_all_processes(struct gpu_process *processes, size_t capacity, size_t *ret_count) {
    pid_t pids[STAGE_PROCESSES];
    size_t count;

    int r = stage_processes(0, pids, STAGE_PROCESSES, &count);
    if (r != 0)
        return r;
    for (size_t i = 0; i < count && i < capacity; i++)
        processes[i] = (struct gpu_process){.pid = pids[i]};
    *ret_count = count;
    return 0;
}

static void stage_device_files(char prefix[GPU_DEVICE_FILES_SIZE]) {
    snprintf(prefix, GPU_DEVICE_FILES_SIZE, "/nothing");
}

static const char *stage_error_name(int error) {
    return error == GPU_ERROR_MEMORY_ALLOCATION ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}

static const char *stage_error_text(int error) {
    return error == GPU_ERROR_MEMORY_ALLOCATION ? "out of memory" : "unknown error";
}

const struct gpu stage_gpu = {
    .name = "stage",
    .device_count = stage_device_count,
    .device_describe = stage_device_describe,
    .device_memory = stage_device_memory,
    .device_check = stage_device_check,
    .context_make = stage_device_check,
    .has_context = stage_has_context,
    .contexts_by_hand = stage_nothing,
    .unclean_setting = stage_unclean_setting,
    .device_synchronize = stage_device_synchronize,
    .device_current = stage_device_current,
    .memory_allocate = stage_memory_allocate,
    .memory_free = stage_memory_free,
    .memory_set = stage_memory_set,
    .stream_synchronize = stage_stream_synchronize,
    .ipc_export = stage_ipc_export,
    .processes = stage_processes,
    .all_processes = stage_all_processes,
    .device_files = stage_device_files,
    .error_name = stage_error_name,
    .error_text = stage_error_text,
};

/* --- /proc: no process of the stage has children that hold anything --- */

void holders_look(const char *proc, const char *device_files, const pid_t *exempt, size_t n_exempt,
                  struct holders_subject *subjects, size_t n_subjects) {
    (void)proc, (void)device_files, (void)exempt, (void)n_exempt;
    for (size_t i = 0; i < n_subjects; i++)
        subjects[i].holders = HOLDERS_NONE;
}

void process_origin_read(struct process_origin *origin, struct process_origin_cache *cache, const char *proc,
                         pid_t pid) {
    (void)cache, (void)proc, (void)pid;
    *origin = (struct process_origin){.start_ticks = 1};
}

bool holders_driver_is_loaded(const char *proc) {
    (void)proc;
    return true;
}
