/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPU: streams, which run when they are drawn, and what addresses map. It is a table of gpu/gpu.h in
 * which each call may fail. No memory is touched.
 *
 * Work of a program names a buffer's addresses and, by them, bytes of segments. When work runs, all work that
 * was enqueued before on these bytes for another buffer must be over. An address maps what it mapped when the
 * work was enqueued, and nothing is unmapped that enqueued work uses.
 */
#include "gpu/gpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "proto/page.h"
#include "tests/joint/world.h"

#define STREAMS_MAX    256u
#define OPERATIONS_MAX 8192u
#define OPERATIONS_MANY 4096u
#define MAPPINGS_MAX   4096u
#define CAPTURE_ERROR  900 /* cudaErrorStreamCaptureUnsupported */
#define FIRST_ADDRESS  ((uintptr_t)1 << 45)

enum operation_kind {
    WORK,
    WRITE,
    WAIT,
    RECORD, /* an event of the program */
    AWAIT,
};

struct operation {
    enum operation_kind kind;
    struct operation *next;
    uint64_t order, instance;
    const char *address;
    uint64_t size_bytes;
    struct parts parts;
    uint64_t *word, value;
    unsigned stream; /* AWAIT: of the event */
};

static struct stream {
    bool is_used, is_captured;
    void *handle;
    unsigned client, thread;
    uint64_t recorded, reached; /* events */
    struct operation *first, *last;
    struct operation *captured; /* in order */
} streams[STREAMS_MAX];
static unsigned n_streams;
static struct operation operations[OPERATIONS_MAX];
static struct operation *spare;
static unsigned n_operations; /* in use, and of the table ever */
static unsigned n_touched;
static uint64_t next_order;

static struct mapping {
    const char *address;
    uint64_t size_bytes;
    unsigned segment, client, n_opened;
    bool has_access, is_ipc;
} mappings[MAPPINGS_MAX];
static unsigned n_mappings;
static uintptr_t next_address = FIRST_ADDRESS;
static uintptr_t next_stream = 0x1000;

static bool fails(void) {
    if (world.is_calm || !one_in(world.gpu_fails))
        return false;
    world.tally->driver_errors++;
    return true;
}

/* --- what addresses map --- */

bool parts_meet(const struct parts *a, const struct parts *b) {
    for (unsigned i = 0; i < a->count; i++)
        for (unsigned j = 0; j < b->count; j++) {
            const struct part *x = &a->list[i], *y = &b->list[j];
            if (x->segment == y->segment && x->offset_bytes < y->offset_bytes + y->size_bytes &&
                y->offset_bytes < x->offset_bytes + x->size_bytes)
                return true;
        }
    return false;
}

static bool parts_are_same(const struct parts *a, const struct parts *b) {
    for (unsigned i = 0; i < a->count && i < b->count; i++)
        if (a->list[i].segment != b->list[i].segment || a->list[i].offset_bytes != b->list[i].offset_bytes ||
            a->list[i].size_bytes != b->list[i].size_bytes)
            return false;
    return a->count == b->count;
}

static struct mapping *mapping_at(const char *address) {
    for (unsigned i = 0; i < n_mappings; i++)
        if (address >= mappings[i].address && address < mappings[i].address + mappings[i].size_bytes)
            return &mappings[i];
    return NULL;
}

bool gpu_resolve(const void *memory, uint64_t size_bytes, struct parts *ret_parts) {
    const char *address = memory;

    ret_parts->count = 0;
    while (size_bytes > 0) {
        const struct mapping *mapping = mapping_at(address);
        if (mapping == NULL || !mapping->has_access)
            return false;
        uint64_t offset = (uint64_t)(address - mapping->address), left = mapping->size_bytes - offset;
        uint64_t taken = left < size_bytes ? left : size_bytes;
        must(ret_parts->count < JOINT_PARTS, "the simulator has no room for a part");
        ret_parts->list[ret_parts->count++] = (struct part){mapping->segment, offset, taken};
        address += taken;
        size_bytes -= taken;
    }
    return true;
}

static bool operation_is_at(const struct operation *operation, const char *address, uint64_t size_bytes) {
    return operation->kind == WORK && operation->address < address + size_bytes &&
           address < operation->address + operation->size_bytes;
}

static _Noreturn void tell_use(const struct operation *work) {
    static char text[160];
    const char *state = "was released";

    for (unsigned c = 0; c < world.n_clients; c++)
        for (unsigned b = 0; b < JOINT_BUFFERS; b++)
            if (world.clients[c].buffers[b].is_used && world.clients[c].buffers[b].instance == work->instance)
                state = "is in use";
    snprintf(text, sizeof text,
             "nothing is unmapped that enqueued work uses: its buffer %s; client %u%s, flags %u", state,
             baton_client(), world.clients[baton_client()].is_broken ? " is broken" : "",
             world.clients[baton_client()].flags);
    world_fail(text, "", __FILE__, __LINE__);
}

static void check_unused(const char *address, uint64_t size_bytes) {
    for (unsigned s = 0; s < n_streams; s++) {
        for (const struct operation *at = streams[s].first; at != NULL; at = at->next)
            if (operation_is_at(at, address, size_bytes))
                tell_use(at);
        for (const struct operation *at = streams[s].captured; at != NULL; at = at->next)
            must(!operation_is_at(at, address, size_bytes), "nothing is unmapped that captured work uses");
    }
}

static void map(const void *address, uint64_t size_bytes, unsigned segment, bool has_access, bool is_ipc) {
    for (unsigned i = 0; i < n_mappings; i++)
        must((const char *)address >= mappings[i].address + mappings[i].size_bytes ||
                 mappings[i].address >= (const char *)address + size_bytes,
             "an address maps one segment");
    must(n_mappings < MAPPINGS_MAX, "the simulator has no room for a mapping");
    mappings[n_mappings++] = (struct mapping){.address = address,
                                              .size_bytes = size_bytes,
                                              .segment = segment,
                                              .client = baton_client(),
                                              .n_opened = 1,
                                              .has_access = has_access,
                                              .is_ipc = is_ipc};
    world.tally->segments_mapped++;
}

void gpu_map(void *address, uint64_t size_bytes, unsigned segment) {
    map(address, size_bytes, segment, true, false);
}

void gpu_unmap(void *address, uint64_t size_bytes, bool is_whole) {
    const char *start = address, *end = start + size_bytes;

    for (unsigned i = 0; i < n_mappings;) {
        struct mapping *mapping = &mappings[i];
        if (mapping->address >= end || mapping->address + mapping->size_bytes <= start) {
            i++;
            continue;
        }
        must(!is_whole ||
                 (mapping->address >= start && mapping->address + mapping->size_bytes <= end),
             "a handle is unmapped whole");
        check_unused(mapping->address, mapping->size_bytes);
        *mapping = mappings[--n_mappings];
        world.tally->segments_unmapped++;
    }
}

bool gpu_has_mapped(unsigned client, unsigned segment) {
    for (unsigned i = 0; i < n_mappings; i++)
        if (mappings[i].client == client && mappings[i].segment == segment)
            return true;
    return false;
}

void gpu_forget(unsigned client) {
    for (unsigned i = 0; i < n_mappings;)
        if (mappings[i].client == client)
            mappings[i] = mappings[--n_mappings];
        else
            i++;
    for (unsigned s = 0; s < n_streams; s++)
        if (streams[s].client == client)
            streams[s].is_used = false;
}

/* --- streams --- */

static struct stream *stream_of(void *handle) {
    uintptr_t number = (uintptr_t)handle;
    unsigned client = baton_client(), thread = number == 2 ? baton_number() : 0, place = n_streams;

    if (number > 2) {
        for (unsigned s = 0; s < n_streams; s++)
            if (streams[s].is_used && streams[s].handle == handle &&
                (client == streams[s].client || client == JOINT_CLIENTS))
                return &streams[s];
        /* Where no fence could be left, or the daemon is gone, memory stays for a stream that ended. */
        must(world.gpu_fails > 0 || world.has_raced || world.daemon_sleeps || world.clients[client].is_broken,
             "the driver is told of streams that there are");
        return NULL;
    }
    for (unsigned s = 0; s < n_streams; s++)
        if (streams[s].is_used && streams[s].handle == handle && streams[s].client == client &&
            streams[s].thread == thread)
            return &streams[s];
    must(place < STREAMS_MAX, "the simulator has no room for a stream");
    n_streams++;
    streams[place].is_used = true;
    streams[place].handle = handle;
    streams[place].client = client;
    streams[place].thread = thread;
    return &streams[place];
}

static struct operation *operation_new(enum operation_kind kind) {
    struct operation *operation = spare;

    if (operation != NULL) {
        spare = operation->next;
    } else {
        must(n_touched < OPERATIONS_MAX, "the simulator has no room for an operation");
        operation = &operations[n_touched++];
    }
    operation->kind = kind;
    operation->next = NULL;
    operation->order = ++next_order;
    n_operations++;
    return operation;
}

static void enqueue(struct stream *stream, struct operation *operation) {
    if (stream->last != NULL)
        stream->last->next = operation;
    else
        stream->first = operation;
    stream->last = operation;
}

static void run_work(const struct stream *own, const struct operation *work) {
    struct parts parts;

    must(gpu_resolve(work->address, work->size_bytes, &parts), "work uses addresses that map memory");
    must(parts_are_same(&parts, &work->parts),
         "an address maps the same memory until the work on it is done");
    for (unsigned s = 0; s < n_streams; s++) {
        if (&streams[s] == own)
            continue;
        for (const struct operation *at = streams[s].first; at != NULL && at->order < work->order;
             at = at->next)
            must(at->kind != WORK || at->instance == work->instance || !parts_meet(&at->parts, &work->parts),
                 "work on memory runs behind all work of the memory's earlier users");
    }
}

static bool can_run(const struct stream *stream) {
    const struct operation *first = stream->first;

    if (first == NULL)
        return false;
    if (first->kind == WAIT)
        return proto_fence_is_ready(
            atomic_load((_Atomic uint64_t *)(void *)first->word), first->value);
    if (first->kind == AWAIT)
        return streams[first->stream].reached >= first->value;
    return true;
}

static void run(struct stream *stream) {
    struct operation *first = stream->first;

    if (first->kind == WORK)
        run_work(stream, first);
    if (first->kind == WRITE)
        atomic_store((_Atomic uint64_t *)(void *)first->word, first->value);
    if (first->kind == RECORD)
        stream->reached = first->value;
    stream->first = first->next;
    if (stream->first == NULL)
        stream->last = NULL;
    first->next = spare;
    spare = first;
    n_operations--;
}

bool gpu_act(bool hurries) {
    if (!hurries && world.gpu_sleeps > 0 && !one_in(world.gpu_sleeps) && n_operations < OPERATIONS_MANY)
        return false;
    unsigned start = n_streams > 0 ? (unsigned)random_below(n_streams) : 0;

    for (unsigned i = 0; i < n_streams; i++) {
        struct stream *stream = &streams[(start + i) % n_streams];
        if (can_run(stream)) {
            run(stream);
            return true;
        }
    }
    return false;
}

bool gpu_is_idle(unsigned client) {
    for (unsigned s = 0; s < n_streams; s++)
        if (streams[s].client == client && streams[s].first != NULL)
            return false;
    return true;
}

bool gpu_is_empty(void) {
    return n_operations == 0;
}

bool gpu_is_done_with(const struct parts *parts) {
    for (unsigned s = 0; s < n_streams; s++) {
        for (const struct operation *at = streams[s].first; at != NULL; at = at->next)
            if (at->kind == WORK && parts_meet(&at->parts, parts))
                return false;
        for (const struct operation *at = streams[s].captured; at != NULL; at = at->next)
            if (parts_meet(&at->parts, parts))
                return false;
    }
    return true;
}

void gpu_check_words(const void *address, uint64_t size_bytes) {
    static char text[160];
    const char *start = address;

    for (unsigned s = 0; s < n_streams; s++)
        for (const struct operation *at = streams[s].first; at != NULL; at = at->next) {
            const char *word = (const char *)at->word;
            if ((at->kind != WRITE && at->kind != WAIT) || word < start || word >= start + size_bytes)
                continue;
            snprintf(text, sizeof text,
                     "memory of client %u is unmapped in which a stream is to %s a word: of client %u%s",
                     baton_client(), at->kind == WRITE ? "write" : "read", streams[s].client,
                     streams[s].is_used ? "" : ", destroyed");
            world_fail(text, "", __FILE__, __LINE__);
        }
}

void gpu_enqueue(unsigned client, void *handle, const struct held *held) {
    struct stream *stream = stream_of(handle);
    struct operation *work = operation_new(WORK);

    (void)client;
    work->instance = held->instance;
    work->address = held->buffer.data;
    work->size_bytes = held->buffer.capacity_bytes;
    must(gpu_resolve(work->address, work->size_bytes, &work->parts), "a buffer maps memory");
    world.tally->works++;
    if (!stream->is_captured) {
        enqueue(stream, work);
        return;
    }
    struct operation **last = &stream->captured;
    while (*last != NULL)
        last = &(*last)->next;
    *last = work;
}

void gpu_order(unsigned client, void *first, void *second) {
    struct stream *from = stream_of(first), *to = stream_of(second);

    (void)client;
    if (from == to || from->is_captured || to->is_captured)
        return;
    struct operation *record = operation_new(RECORD), *await = operation_new(AWAIT);
    await->stream = (unsigned)(from - streams);
    await->value = record->value = ++from->recorded;
    enqueue(from, record);
    enqueue(to, await);
}

void gpu_begin_capture(void *handle) {
    stream_of(handle)->is_captured = true;
}

void gpu_end_capture(void *handle) {
    struct stream *stream = stream_of(handle);

    stream->is_captured = false;
    while (stream->captured != NULL) {
        struct operation *work = stream->captured;
        stream->captured = work->next;
        work->next = NULL;
        work->order = ++next_order;
        enqueue(stream, work);
    }
}

bool gpu_is_captured(void *handle) {
    return stream_of(handle)->is_captured;
}

/* --- the table: devices --- */

static int device_count(unsigned *ret_count) {
    *ret_count = 2;
    return 0;
}

static int device_describe(unsigned device, struct gpu_device *ret_device) {
    *ret_device = (struct gpu_device){
        .uuid = {{(uint8_t)(device + 1)}}, .name = "joint", .total_bytes = GIB, .numa_node = -1};
    return 0;
}

static bool client_is_idle(void *argument) {
    return gpu_is_idle(*(unsigned *)argument);
}

static int device_synchronize(unsigned device) {
    unsigned client = baton_client();

    (void)device;
    for (unsigned s = 0; s < n_streams; s++)
        if (streams[s].is_used && streams[s].client == client && streams[s].is_captured)
            return CAPTURE_ERROR;
    baton_wait(client_is_idle, &client, NS_FOREVER);
    return 0;
}

static int device_current(unsigned *ret_device) {
    *ret_device = 0;
    return 0;
}

static int device_check(unsigned device) {
    (void)device;
    return 0;
}

static bool has_context(unsigned device) {
    (void)device;
    return true;
}

/* --- memory --- */

static int ipc_open(unsigned device, const struct gpu_ipc_handle *handle, void **ret_memory) {
    unsigned segment;

    (void)device;
    baton_may_pass();
    if (fails())
        return GPU_ERROR_MAP_BUFFER_OBJECT_FAILED;
    memcpy(&segment, handle->bytes, sizeof segment);
    must(segment < world.n_segments && !world.segments[segment].is_retired,
         "a handle is opened that names memory");
    for (unsigned i = 0; i < n_mappings; i++)
        if (mappings[i].is_ipc && mappings[i].client == baton_client() && mappings[i].segment == segment) {
            mappings[i].n_opened++;
            *ret_memory = (void *)(uintptr_t)mappings[i].address;
            return 0;
        }
    *ret_memory = (void *)next_address;
    map(*ret_memory, world.segments[segment].size_bytes, segment, true, true);
    next_address += world.segments[segment].size_bytes + 2 * MIB;
    return 0;
}

struct range {
    const char *address;
    uint64_t size_bytes;
};

static bool has_no_work(void *argument) {
    const struct range *range = argument;
    for (unsigned s = 0; s < n_streams; s++)
        for (const struct operation *at = streams[s].first; at != NULL; at = at->next)
            if (operation_is_at(at, range->address, range->size_bytes))
                return false;
    return true;
}

/* Closing a legacy handle and unregistering host memory wait for the work there. */
static void wait_for_work(const char *address, uint64_t size_bytes) {
    struct range range = {address, size_bytes};
    baton_wait(has_no_work, &range, NS_FOREVER);
}

static int ipc_close(unsigned device, void *memory) {
    (void)device;
    baton_may_pass();
    struct mapping *mapping = mapping_at(memory);
    must(mapping != NULL && mapping->is_ipc, "a mapping is closed that there is");
    if (--mapping->n_opened > 0)
        return 0;
    uint64_t size_bytes = mapping->size_bytes;
    wait_for_work(memory, size_bytes);
    gpu_unmap(memory, size_bytes, true);
    return 0;
}

static int vmm_import(unsigned device, int fd, uint64_t *ret_handle) {
    struct stat status;

    (void)device;
    baton_may_pass();
    if (fails())
        return GPU_ERROR_UNKNOWN;
    int segment = fstat(fd, &status) == 0 ? daemon_find_inode(status.st_ino) : -1;
    must(segment >= 0, "a descriptor is imported that names memory");
    *ret_handle = (uint64_t)segment + 1;
    return 0;
}

static int vmm_release(unsigned device, uint64_t handle) {
    (void)device, (void)handle;
    return 0;
}

static int address_reserve(unsigned device, uint64_t size_bytes, void **ret_address) {
    (void)device;
    baton_may_pass();
    if (fails())
        return GPU_ERROR_MEMORY_ALLOCATION;
    *ret_address = (void *)next_address;
    next_address += (size_bytes + 4 * MIB) / (2 * MIB) * (2 * MIB);
    return 0;
}

static int address_free(unsigned device, void *address, uint64_t size_bytes) {
    (void)device;
    for (unsigned i = 0; i < n_mappings; i++)
        must(mappings[i].address >= (const char *)address + size_bytes ||
                 mappings[i].address + mappings[i].size_bytes <= (const char *)address,
             "addresses are freed that map nothing");
    return 0;
}

static int vmm_map(unsigned device, void *address, uint64_t size_bytes, uint64_t handle) {
    (void)device;
    baton_may_pass();
    if (fails())
        return GPU_ERROR_UNKNOWN;
    must(size_bytes == world.segments[handle - 1].size_bytes, "a handle is mapped whole");
    map(address, size_bytes, (unsigned)handle - 1, false, false);
    return 0;
}

static int vmm_unmap(unsigned device, void *address, uint64_t size_bytes) {
    (void)device;
    baton_may_pass();
    must(mapping_at(address) != NULL, "a mapping is taken away that there is");
    gpu_unmap(address, size_bytes, true);
    return 0;
}

static int vmm_set_access(unsigned device, void *address, uint64_t size_bytes, enum gpu_access access) {
    (void)device;
    const char *at = address, *end = at + size_bytes;
    while (at < end) {
        struct mapping *mapping = mapping_at(at);
        must(mapping != NULL, "access is given to what is mapped");
        mapping->has_access = access != GPU_ACCESS_NONE;
        at = mapping->address + mapping->size_bytes;
    }
    return 0;
}

static int host_register(void *memory, uint64_t size_bytes) {
    (void)memory, (void)size_bytes;
    baton_may_pass();
    return fails() ? GPU_ERROR_UNKNOWN : 0;
}

static int host_unregister(void *memory) {
    const struct mapping *mapping = mapping_at(memory);
    if (mapping != NULL)
        wait_for_work(mapping->address, mapping->size_bytes);
    return 0;
}

/* --- streams --- */

/* The driver gives a handle again now and then, also while work of the stream that had it goes on. */
static void *draw_handle(void) {
    const struct stream *ended = n_streams > 0 ? &streams[random_below(n_streams)] : NULL;
    bool is_free = ended != NULL && !ended->is_used && ended->client == baton_client() &&
                   (uintptr_t)ended->handle > 2 && one_in(2);

    for (unsigned s = 0; s < n_streams && is_free; s++)
        is_free = !streams[s].is_used || streams[s].handle != ended->handle;
    return is_free ? ended->handle : (void *)(next_stream += 16);
}

static int stream_create(unsigned device, void **ret_stream) {
    unsigned place = 0;

    (void)device;
    while (place < n_streams && (streams[place].is_used || streams[place].first != NULL))
        place++;
    must(place < STREAMS_MAX, "the simulator has no room for a stream");
    n_streams += place == n_streams;
    struct stream *stream = &streams[place];
    stream->handle = draw_handle();
    stream->is_used = true;
    stream->is_captured = false;
    stream->client = baton_client();
    stream->thread = 0;
    *ret_stream = stream->handle;
    return 0;
}

static bool stream_is_idle(void *argument) {
    const struct stream *stream = argument;
    return stream->first == NULL;
}

static int stream_destroy(unsigned device, void *handle) {
    (void)device;
    struct stream *stream = stream_of(handle);
    if (stream == NULL)
        return GPU_ERROR_INVALID_RESOURCE_HANDLE;
    stream->is_used = false; /* its work goes on */
    return 0;
}

static int stream_synchronize(unsigned device, void *handle) {
    (void)device;
    struct stream *stream = stream_of(handle);
    if (stream == NULL)
        return GPU_ERROR_INVALID_RESOURCE_HANDLE;
    if (stream->is_captured) { /* as in stream_word() */
        world.has_raced = true;
        return CAPTURE_ERROR;
    }
    baton_wait(stream_is_idle, stream, NS_FOREVER);
    return 0;
}

static int stream_query(unsigned device, void *handle) {
    (void)device;
    const struct stream *stream = stream_of(handle);
    if (stream == NULL)
        return GPU_ERROR_INVALID_RESOURCE_HANDLE;
    must(!stream->is_captured, "a captured stream is not asked how far it is");
    return stream->first == NULL ? 0 : GPU_ERROR_NOT_READY;
}

static int stream_is_capturing(unsigned device, void *handle, bool *ret_capturing) {
    (void)device;
    baton_may_pass();
    const struct stream *stream = stream_of(handle);
    if (stream == NULL)
        return GPU_ERROR_INVALID_RESOURCE_HANDLE;
    *ret_capturing = stream->is_captured;
    return 0;
}

static int stream_word(void *handle, enum operation_kind kind, uint64_t *word, uint64_t value) {
    baton_may_pass();
    struct stream *stream = stream_of(handle);
    if (stream == NULL)
        return GPU_ERROR_INVALID_RESOURCE_HANDLE;
    if (stream->is_captured) { /* a capture that began since the client has asked */
        world.has_raced = true;
        return CAPTURE_ERROR;
    }
    if (fails())
        return GPU_ERROR_UNKNOWN;
    struct operation *operation = operation_new(kind);
    operation->word = word;
    operation->value = value;
    enqueue(stream, operation);
    return 0;
}

static int stream_write64(unsigned device, void *handle, uint64_t *word, uint64_t value) {
    (void)device;
    world.tally->writes++;
    return stream_word(handle, WRITE, word, value);
}

static int stream_wait64(unsigned device, void *handle, uint64_t *word, uint64_t value) {
    (void)device;
    world.tally->waits++;
    return stream_word(handle, WAIT, word, value);
}

static int memory_set(unsigned device, void *memory, uint8_t byte, uint64_t size_bytes, void *stream) {
    (void)device, (void)memory, (void)byte, (void)size_bytes, (void)stream;
    return 0;
}

static const char *error_name(int error) {
    (void)error;
    return "cudaErrorUnknown";
}

static const char *error_text(int error) {
    (void)error;
    return "it was drawn";
}

const struct gpu *gpu_table(void) {
    static const struct gpu table = {
        .name = "joint",
        .device_count = device_count,
        .device_describe = device_describe,
        .device_check = device_check,
        .has_context = has_context,
        .device_synchronize = device_synchronize,
        .device_current = device_current,
        .ipc_open = ipc_open,
        .ipc_close = ipc_close,
        .vmm_import = vmm_import,
        .vmm_release = vmm_release,
        .address_reserve = address_reserve,
        .address_free = address_free,
        .vmm_map = vmm_map,
        .vmm_unmap = vmm_unmap,
        .vmm_set_access = vmm_set_access,
        .host_register = host_register,
        .host_unregister = host_unregister,
        .stream_create = stream_create,
        .stream_destroy = stream_destroy,
        .stream_synchronize = stream_synchronize,
        .stream_query = stream_query,
        .stream_is_capturing = stream_is_capturing,
        .stream_write64 = stream_write64,
        .stream_wait64 = stream_wait64,
        .memory_set = memory_set,
        .error_name = error_name,
        .error_text = error_text,
    };
    return &table;
}

/* The client takes this table for CUDA's. */
int __wrap_gpu_cuda(const struct gpu **ret_gpu);
int __wrap_gpu_cuda(const struct gpu **ret_gpu) {
    *ret_gpu = gpu_table();
    return 0;
}
