/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The streams of all clients: in each, operations run in order, when they are drawn. Work of a program names a
 * buffer's addresses and, by them, bytes of segments. When work runs, all work that was enqueued before on
 * these bytes for another buffer must be over, and its addresses map what they mapped when it was enqueued.
 */
#include <stdatomic.h>
#include <stdio.h>

#include "proto/page.h"
#include "tests/joint/gpu.h"

#define STREAMS_MAX     256u
#define OPERATIONS_MAX  8192u
#define OPERATIONS_MANY 4096u

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
    uint64_t order, instance, loan, behind_loan, behind_order; /* as in struct held */
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
static uintptr_t next_stream = 0x1000;

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

void streams_check_unused(const char *address, uint64_t size_bytes) {
    for (unsigned s = 0; s < n_streams; s++) {
        for (const struct operation *at = streams[s].first; at != NULL; at = at->next)
            if (operation_is_at(at, address, size_bytes))
                tell_use(at);
        for (const struct operation *at = streams[s].captured; at != NULL; at = at->next)
            must(!operation_is_at(at, address, size_bytes), "nothing is unmapped that captured work uses");
    }
}

bool streams_have_work_at(const char *address, uint64_t size_bytes) {
    for (unsigned s = 0; s < n_streams; s++)
        for (const struct operation *at = streams[s].first; at != NULL; at = at->next)
            if (operation_is_at(at, address, size_bytes))
                return true;
    return false;
}

void streams_forget(unsigned client) {
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

static bool is_past(const struct stream *stream, uint64_t loan, uint64_t order) {
    for (const struct operation *at = stream->first; at != NULL; at = at->next)
        if (at->kind == WORK && at->loan == loan && at->order <= order)
            return false;
    return true;
}

uint64_t gpu_now(void) {
    return next_order;
}

bool gpu_is_past(uint64_t loan, uint64_t order) {
    for (unsigned s = 0; s < n_streams; s++)
        if (!is_past(&streams[s], loan, order))
            return false;
    return true;
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
        must(work->behind_loan == 0 || is_past(&streams[s], work->behind_loan, work->behind_order),
             "work of a reader runs behind its writer's");
    }
}

static bool can_run(const struct stream *stream) {
    const struct operation *first = stream->first;

    if (first == NULL)
        return false;
    if (first->kind == WAIT)
        return proto_fence_is_ready(atomic_load((_Atomic uint64_t *)(void *)first->word), first->value);
    if (first->kind == AWAIT)
        return streams[first->stream].reached >= first->value;
    return true;
}

static void end_first(struct stream *stream) {
    struct operation *first = stream->first;

    stream->first = first->next;
    if (stream->first == NULL)
        stream->last = NULL;
    first->next = spare;
    spare = first;
    n_operations--;
}

static void run(struct stream *stream) {
    struct operation *first = stream->first;

    if (first->kind == WORK)
        run_work(stream, first);
    if (first->kind == WRITE)
        atomic_store((_Atomic uint64_t *)(void *)first->word, first->value);
    if (first->kind == RECORD)
        stream->reached = first->value;
    end_first(stream);
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

void gpu_drop(unsigned client) {
    for (unsigned s = 0; s < n_streams; s++)
        while (streams[s].client == client && streams[s].first != NULL) {
            end_first(&streams[s]);
            world.tally->drops++;
        }
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
            if (at->instance != 0 && parts_meet(&at->parts, parts))
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
    work->loan = held->loan;
    work->behind_loan = held->behind_loan;
    work->behind_order = held->behind_order;
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

/* --- calls of the table --- */

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
    if (gpu_fails())
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

void streams_fill_table(struct gpu *table) {
    table->stream_create = stream_create;
    table->stream_destroy = stream_destroy;
    table->stream_synchronize = stream_synchronize;
    table->stream_query = stream_query;
    table->stream_is_capturing = stream_is_capturing;
    table->stream_write64 = stream_write64;
    table->stream_wait64 = stream_wait64;
    table->device_synchronize = device_synchronize;
    table->memory_set = memory_set;
}
