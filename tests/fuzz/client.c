/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client library against a daemon that lies (liar.h), on the simulated GPU. Whatever the daemon says: a
 * call returns success or one of its errors with a text; memory that a call hands out is there, from its
 * first byte to its last; the connection breaks once and for good; closing leaves no descriptor and no memory
 * behind.
 *
 * Input: how the client is opened, then calls and the answers to them, interleaved as they come to be read.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/segment.h"
#include "tests/fuzz/liar.h"
#include "tests/unit/false_daemon.h"

#define BUFFERS   12u
#define CALLS_MAX 64u

static struct exporter exporter;
static const struct gpu *gpu;

int __real_segments_remove(struct segments *segments, uint64_t id, uint32_t pool);
int __wrap_segments_remove(struct segments *segments, uint64_t id, uint32_t pool);

static struct {
    struct input input;
    struct gpupool_client *client;
    struct gpupool_buffer buffers[BUFFERS];
    void *pointers[BUFFERS];
    struct gpupool_token token;
    void *stream; /* of device 0; NULL: not made yet */
    bool cached;
    void *kept; /* the segment's memory, once it is open for longer than the library has it open; so often */
    _Atomic unsigned n_kept;
} scene;

/* Starts what there is one of in a process: before anything else, because it forks. */
static void set_scene(void) {
    static bool set;

    if (set)
        return;
    set = true;
    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("GPUPOOL_SOCKET");
    unsetenv("GPUPOOL_ALLOC_TIMEOUT");
    exporter_start(&exporter);
    /* what the simulated driver opens once for a process is open before descriptors are counted */
    void *stream, *memory;
    MUST(gpu_sim(&(struct gpu_sim_options){0}, &gpu) == 0);
    MUST(gpu->stream_create(0, &stream) == 0 && gpu->stream_destroy(0, stream) == 0);
    MUST(gpu->ipc_open(0, &exporter.handle, &memory) == 0 && gpu->ipc_close(0, memory) == 0);
}

/* A false daemon can have a segment closed that is in use (SECURITY.md says so), and whatever is touched of
 * it then would end the process. So that all that comes after is still looked at, the memory stays where it
 * is to the end: the device's is opened once more, and the host's is not closed, as if the driver refused. */
int __wrap_segments_remove(struct segments *segments, uint64_t id, uint32_t pool) {
    if (pool == LIAR_POOL_HOST)
        return -EIO;
    if (gpu->ipc_open(0, &exporter.handle, &scene.kept) == 0)
        scene.n_kept++;
    return __real_segments_remove(segments, id, pool);
}

static void let_go(void) {
    for (; scene.n_kept > 0; scene.n_kept--)
        MUST(gpu->ipc_close(0, scene.kept) == 0);
}

/* Success, or an error that has a name and a text. */
static bool check(int r) {
    MUST(r <= 0);
    if (r < 0)
        MUST(strncmp(gpupool_error_name(r), "GPUPOOL_E_", 10) == 0 && gpupool_error_text()[0] != '\0');
    return r == 0;
}

/* The simulated device's memory can be reached as host memory can. */
static void touch(void *memory, uint64_t size_bytes) {
    volatile uint8_t *bytes = memory;
    MUST(memory != NULL && (uintptr_t)memory % 512 == 0 && size_bytes > 0);
    bytes[0] = 1;
    bytes[size_bytes - 1] = 2;
}

static void check_buffer(const struct gpupool_buffer *buffer) {
    MUST(buffer->size_bytes <= buffer->capacity_bytes);
    touch(buffer->data, buffer->capacity_bytes);
}

static unsigned choose_slot(void) {
    return input_below(&scene.input, BUFFERS);
}

static uint32_t choose_pool(void) {
    unsigned choice = input_below(&scene.input, 16);
    return choice == 15      ? (uint32_t)input_edgy(&scene.input)
           : choice % 2 == 0 ? LIAR_POOL_HOST
                             : LIAR_POOL_DEVICE;
}

static uint64_t choose_size(void) {
    return input_below(&scene.input, 8) == 7 ? input_edgy(&scene.input)
                                             : 1 + input_number(&scene.input, 2) * 16;
}

/* Returns no stream, or the one stream. Each call is followed by a wait for the stream, so that nothing
 * depends on the speed of the simulated GPU. */
static void *choose_stream(void) {
    if (input_below(&scene.input, 2) == 0)
        return GPUPOOL_NO_STREAM;
    if (scene.stream == NULL && !check(gpupool_stream_create(scene.client, 0, &scene.stream)))
        scene.stream = NULL;
    return scene.stream != NULL ? scene.stream : GPUPOOL_NO_STREAM;
}

static void acquire(void) {
    static const uint64_t timeouts[] = {GPUPOOL_NOW, NS_PER_MS, GPUPOOL_FOREVER};
    unsigned slot = choose_slot(), flags = input_below(&scene.input, 8) == 7 ? GPUPOOL_ZERO : 0;
    uint32_t pool = choose_pool();
    uint64_t size_bytes = choose_size(), timeout_ns = timeouts[input_below(&scene.input, 3)];
    void *stream = choose_stream();
    struct gpupool_buffer buffer;

    if (scene.buffers[slot].data != NULL)
        return;
    if (check(gpupool_acquire(scene.client, pool, size_bytes, stream, timeout_ns, flags, &buffer))) {
        MUST(buffer.size_bytes == size_bytes);
        check_buffer(&buffer);
        scene.buffers[slot] = buffer;
    }
}

static void release(void) {
    unsigned slot = choose_slot();
    struct gpupool_buffer copy = scene.buffers[slot];

    if (check(gpupool_release(scene.client, &scene.buffers[slot], choose_stream()))) {
        MUST(scene.buffers[slot].data == NULL);
        /* A lease of its own is the daemon's to refuse, which this one need not do. */
        check(gpupool_release(scene.client, &copy, GPUPOOL_NO_STREAM));
    }
}

static void shrink(void) {
    unsigned slot = choose_slot();
    uint64_t size_bytes = 1 + input_number(&scene.input, 2);

    if (check(gpupool_shrink(scene.client, &scene.buffers[slot], size_bytes, choose_stream())))
        check_buffer(&scene.buffers[slot]);
}

static void attach(void) {
    unsigned slot = choose_slot();
    struct gpupool_buffer buffer;

    if (input_below(&scene.input, 2) == 1)
        scene.token.bytes[0] = (uint8_t)input_number(&scene.input, 1);
    if (scene.buffers[slot].data == NULL &&
        check(gpupool_attach(scene.client, &scene.token, GPUPOOL_NO_STREAM, 0, &buffer))) {
        check_buffer(&buffer);
        scene.buffers[slot] = buffer;
    }
}

static void list_pools(void) {
    struct gpupool_pool pools[4];
    size_t count;
    uint32_t pool;

    if (check(gpupool_pools(scene.client, pools, sizeof pools / sizeof *pools, &count)))
        for (size_t i = 0; i < count && i < sizeof pools / sizeof *pools; i++)
            MUST(memchr(pools[i].name, '\0', sizeof pools[i].name) != NULL &&
                 memchr(pools[i].uuid, '\0', sizeof pools[i].uuid) != NULL);
    check(gpupool_host_pool(scene.client, -1, &pool));
    check(gpupool_device_pool(scene.client, 0, &pool));
}

static void query(void) {
    struct gpupool_buffer_info info;
    unsigned slot = choose_slot();

    check(gpupool_query(scene.client, &scene.buffers[slot], &info));
}

static void allocate(void) {
    unsigned slot = choose_slot();
    uint32_t pool = choose_pool();
    uint64_t size_bytes = choose_size();
    struct gpupool_buffer buffer;

    if (!scene.cached || scene.pointers[slot] != NULL)
        return;
    void *memory = gpupool_alloc(scene.client, pool, size_bytes, choose_stream());
    if (memory == NULL)
        return;
    touch(memory, size_bytes);
    MUST(gpupool_lookup(memory, NULL, &buffer) == 0 && buffer.data == memory &&
         buffer.size_bytes >= size_bytes);
    scene.pointers[slot] = memory;
}

static void free_pointer(void) {
    unsigned slot = choose_slot();
    if (check(gpupool_free(scene.pointers[slot], choose_stream())))
        scene.pointers[slot] = NULL;
}

static void call(void) {
    switch (input_below(&scene.input, 16)) {
    case 0:
    case 1:
    case 2:
    case 3:
        acquire();
        break;
    case 4:
    case 5:
    case 6:
        release();
        break;
    case 7:
        shrink();
        break;
    case 8:
        check(gpupool_share(scene.client, &scene.buffers[choose_slot()], GPUPOOL_NO_STREAM, &scene.token));
        break;
    case 9:
        attach();
        break;
    case 10:
        query();
        break;
    case 11:
        check(gpupool_trim(scene.client, NULL));
        break;
    case 12:
        liar_ask_reclaim();
        if (scene.cached)
            check(gpupool_dispatch(scene.client));
        break;
    case 13:
        list_pools();
        break;
    case 14:
        allocate();
        break;
    default:
        free_pointer();
        break;
    }
    if (scene.stream != NULL)
        MUST(gpupool_stream_synchronize(scene.client, 0, scene.stream) == 0);
    for (unsigned i = 0; i < BUFFERS; i++)
        if (scene.buffers[i].data != NULL)
            check_buffer(&scene.buffers[i]);
}

/* The lowest descriptor that is free: one that stays open makes it higher. */
static int lowest_descriptor(void) {
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
    close_fd(fd);
    return fd;
}

#define OPEN_NO_CACHE 1u
#define OPEN_NO_CUDA  2u
#define OPEN_HASTY    4u /* answers are waited for so short that they can be late */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    set_scene();
    int descriptor = lowest_descriptor();
    memset(&scene, 0, sizeof scene);
    scene.input = (struct input){data, size};
    liar_begin(&scene.input, &exporter.uuid, &exporter.handle);

    unsigned flags = input_below(&scene.input, 8);
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    options.socket = LIAR_PATH;
    /* far more than anything here takes: what is late is late because the input says so */
    options.answer_timeout_ns = (flags & OPEN_HASTY) != 0 ? NS_PER_S / 2 : 1000 * NS_PER_S;
    options.connect_timeout_ns = 1000 * NS_PER_S;
    options.alloc_timeout_ns = NS_PER_MS;
    options.decay_ns = GPUPOOL_FOREVER;
    scene.cached = (flags & OPEN_NO_CACHE) == 0;
    options.flags = scene.cached ? GPUPOOL_OPEN_NO_THREAD : GPUPOOL_OPEN_NO_CACHE;
    options.flags |= (flags & OPEN_NO_CUDA) != 0 ? GPUPOOL_OPEN_NO_CUDA : 0;
    if (check(gpupool_open(&options, &scene.client))) {
        for (unsigned n = 0; n < CALLS_MAX && scene.input.left > 0; n++)
            call();
        if (scene.stream != NULL) /* what is kept for it may not go back any more */
            (void)gpupool_stream_destroy(scene.client, 0, scene.stream);
        gpupool_close(scene.client);
    }
    let_go();
    liar_end();
    MUST(lowest_descriptor() == descriptor);
    return 0;
}
