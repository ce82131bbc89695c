/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/property/world.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "gpu/sim/sim.h"
#include "tests/device_export.h"
#include "tests/entries.h"

#define POOL_MIB   16u         /* more than all objects of a roomy history need */
#define PIECE_SIM  (256 * KIB) /* a CPU copies it in some 20 us */
#define PIECE_CUDA (64 * MIB)  /* an H200 copies it in some 40 us */
#define YIELDS_MAX 10000u      /* some milliseconds */
#define HOLD_S     10u         /* long against what comes through at once */
#define LEAKS_CUDA 4u          /* in a row: CUDA's driver opens some of its own when it needs them first */
#define POOLS_MAX  64u

struct world world;

static _Thread_local unsigned own_thread;

/* The second thread does what it is given, one thing at a time. */
static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*function)(void *);
    void *argument;
    bool ends;
} helper = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* --- what goes wrong --- */

void world_fail(const char *format, ...) {
    char *text = world.progress->failure;
    va_list arguments;
    int length = snprintf(text, sizeof world.progress->failure, "step %u: ", world.progress->step);

    va_start(arguments, format);
    vsnprintf(text + length, sizeof world.progress->failure - (size_t)length, format, arguments);
    va_end(arguments);
    fflush(stdout);
    _exit(WORLD_STATUS_FOUND);
}

void world_break(const char *what) {
    fprintf(stderr, "histories: %s: %s\n", what, gpupool_error_text());
    _exit(1);
}

void world_tell(const char *format, ...) {
    va_list arguments;

    if (!world.is_verbose)
        return;
    printf("  %2u%s ", world.progress->step, world.thread == 0 ? " " : "'");
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

static void need(int result, const char *what) {
    if (result != 0)
        world_break(what);
}

/* --- chance --- */

uint64_t world_random(uint64_t limit) {
    return random_next(&world.random) % limit;
}

uint64_t world_random_size(void) {
    unsigned powers = (unsigned)(63 - __builtin_clzll(world.bytes_max));
    uint64_t base = UINT64_C(1) << world_random(powers);
    return base + world_random(base) + 1;
}

struct world_stream *world_random_stream(unsigned device) {
    for (;;) {
        struct world_stream *stream = &world.streams[device][world_random(WORLD_STREAMS)];
        if (stream->handle != GPUPOOL_PER_THREAD || stream->thread == world.thread)
            return stream;
    }
}

const char *world_stream_name(const struct world_stream *stream) {
    static const char *const names[WORLD_STREAMS] = {"null", "per-thread", "per-thread'", "created 1",
                                                     "created 2"};
    return names[stream->number];
}

void world_make_bytes(unsigned char *bytes, uint64_t size_bytes) {
    uint64_t state = random_next(&world.random), i = 0;

    for (; i + sizeof state <= size_bytes; i += sizeof state) {
        uint64_t word = random_next(&state);
        memcpy(bytes + i, &word, sizeof word);
    }
    for (; i < size_bytes; i++)
        bytes[i] = (unsigned char)(random_next(&state) >> 56);
}

/* --- the library's part of a step --- */

static uint64_t piece(void) {
    return world.is_cuda ? PIECE_CUDA : PIECE_SIM;
}

/* Passes some time on a stream. */
static void pass_time(unsigned device, void *handle) {
    unsigned number = 0;

    if (random_next(&world.delays) % 3 != 0)
        return;
    for (unsigned i = 0; i < WORLD_STREAMS; i++) {
        const struct world_stream *stream = &world.streams[device][i];
        if (stream->handle == handle && (handle != GPUPOOL_PER_THREAD || stream->thread == own_thread))
            number = i;
    }
    uint64_t piece_bytes = piece();
    unsigned char *pieces = world.scratch[device] + number * 2 * piece_bytes;
    for (uint64_t n = 1 + random_next(&world.delays) % 8; n > 0; n--)
        need(world.driver->memory_copy(device, pieces, pieces + piece_bytes, piece_bytes, handle),
             "passing time");
}

/* --- captures --- */

static struct {
    const struct world_stream *stream; /* NULL: none */
    unsigned device;
} captured;

static void capture_begin(unsigned device, const struct world_stream *stream) {
    captured.stream = NULL;
    if (!world.has_captures || stream == NULL || !world_one_in(8))
        return;
    captured.stream = world_one_in(2) ? stream : world_random_stream(device);
    captured.device = device;
    world_tell("  … while the %s stream is captured", world_stream_name(captured.stream));
    if (gpu_sim_capture_begin(device, captured.stream->handle) != 0)
        world_break("a capture");
    world.progress->tally.captures++;
}

/* Whether the library may have been in the capture's way, and says so. */
static bool capture_end(int result, const char *what) {
    unsigned operations = 0;

    if (captured.stream == NULL)
        return false;
    int error = gpu_sim_capture_end(captured.device, captured.stream->handle, &operations);
    captured.stream = NULL;
    if (operations > 0)
        world_fail("%s: %u operations landed in a capture", what, operations);
    if (error != 0 && result != GPUPOOL_E_CAPTURING)
        world_fail("%s: it spoilt a capture", what);
    world.progress->tally.captures_met += result == GPUPOOL_E_CAPTURING;
    return result == GPUPOOL_E_CAPTURING;
}

void world_library_begin(unsigned device, const struct world_stream *stream) {
    enum spy_call call = (enum spy_call)world_random(SPY_ANY + 1);
    unsigned nth = 1 + (unsigned)world_random(3);
    /* When every call fails, the world cannot wait for the work of a device that goes on in truth. So only
     * the failure of one kind of call may last. */
    bool lasts = call != SPY_ANY && world_one_in(3);
    capture_begin(device, stream);
    spy_begin(call, world.has_failures && world_one_in(6) ? nth : 0, lasts);
}

bool world_library_end(int result, const char *what) {
    spy_end(&world.sight);
    world.progress->tally.planned_failures += world.sight.failed;
    bool met_capture = capture_end(result, what);
    if (result == 0)
        return true;
    world_tell("  … %s: %s", gpupool_error_name(result), gpupool_error_text());
    if (result == GPUPOOL_E_EXHAUSTED && world.is_tight)
        world.progress->tally.exhausted++;
    else if (!world.sight.failed && !met_capture)
        world_fail("%s: %s: %s, and no driver call failed", what, gpupool_error_name(result),
                   gpupool_error_text());
    return false;
}

/* --- contents --- */

void world_expect(const unsigned char *found, const unsigned char *expected, uint64_t size_bytes,
                  const char *what) {
    world.progress->tally.checks++;
    if (memcmp(found, expected, size_bytes) == 0)
        return;
    uint64_t first = 0, count = 0;
    for (uint64_t i = size_bytes; i-- > 0;)
        if (found[i] != expected[i]) {
            first = i;
            count++;
        }
    world_fail("%s: %llu of %llu bytes are not what was written, first byte %llu: %02x, not %02x", what,
               (unsigned long long)count, (unsigned long long)size_bytes, (unsigned long long)first,
               found[first], expected[first]);
}

void world_settle(void) {
    for (unsigned i = 0; i < world.n_devices; i++)
        need(world.driver->device_synchronize(i), "waiting for a device");
    world.n_sources = 0;
    for (unsigned i = 0; i < world.n_checks; i++) {
        const struct world_check *check = &world.checks[i];
        char what[256];
        snprintf(what, sizeof what, "%s, as read on the stream in step %u", check->what, check->step);
        world_expect(check->found, check->expected, check->size_bytes, what);
    }
    world.n_checks = 0;
}

void world_write_on_stream(unsigned device, unsigned char *to, const unsigned char *bytes,
                           uint64_t size_bytes, const struct world_stream *stream) {
    if (size_bytes == 0)
        return;
    if (world.n_sources == WORLD_SLOTS)
        world_settle();
    unsigned char *source = world.sources[world.n_sources++];
    memcpy(source, bytes, size_bytes);
    pass_time(device, stream->handle);
    need(world.driver->memory_copy(device, to, source, size_bytes, stream->handle),
         "writing to device memory");
}

void world_expect_on_stream(unsigned device, const unsigned char *from, const unsigned char *expected,
                            uint64_t size_bytes, const struct world_stream *stream, const char *what) {
    if (world.n_checks == WORLD_SLOTS)
        world_settle();
    struct world_check *check = &world.checks[world.n_checks++];
    snprintf(check->what, sizeof check->what, "%s", what);
    check->size_bytes = size_bytes;
    check->step = world.progress->step;
    memcpy(check->expected, expected, size_bytes);
    pass_time(device, stream->handle);
    need(world.driver->memory_copy(device, check->found, from, size_bytes, stream->handle),
         "reading device memory");
}

/* --- streams that stand still --- */

static struct {
    uint64_t *gate, *mark; /* words that streams wait for, and write */
    uint64_t gates, marks; /* how often */
    pthread_t thread;
    sem_t let_go;
    bool was_late;
} hold;

static void *hold_main(void *unused) {
    struct timespec until;

    (void)unused;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += HOLD_S;
    hold.was_late = sem_timedwait(&hold.let_go, &until) != 0;
    __atomic_store_n(hold.gate, hold.gates, __ATOMIC_RELEASE);
    return NULL;
}

void world_hold(unsigned device, const struct world_stream *stream) {
    hold.gates++;
    need(world.driver->stream_wait64(device, stream->handle, hold.gate, hold.gates), "holding a stream");
    if (pthread_create(&hold.thread, NULL, hold_main, NULL) != 0)
        world_break("a thread");
    world.progress->tally.held++;
}

bool world_let_go(void) {
    sem_post(&hold.let_go);
    pthread_join(hold.thread, NULL);
    if (hold.was_late)
        sem_wait(&hold.let_go); /* what came too late */
    return !hold.was_late;
}

bool world_comes_through(unsigned device, const struct world_stream *stream) {
    uint64_t deadline_ns = clock_now_ns() + HOLD_S * NS_PER_S, mark = ++hold.marks;

    need(world.driver->stream_write64(device, stream->handle, hold.mark, mark), "a mark");
    for (unsigned i = 0; __atomic_load_n(hold.mark, __ATOMIC_ACQUIRE) != mark; i++)
        if (clock_now_ns() > deadline_ns)
            return false;
        else if (i < YIELDS_MAX)
            sched_yield();
        else
            usleep(1000); /* it does not come through at once: most likely not at all */
    return true;
}

/* --- memory that is not the pools' --- */

unsigned char *world_adoptable(struct adoptable *list, unsigned device, const unsigned char *bytes,
                               uint64_t size_bytes) {
    for (unsigned i = 0; i < WORLD_ADOPTED; i++) {
        if (list[i].in_use)
            continue;
        list[i].in_use = true;
        need(world.driver->memory_copy(device, list[i].memory, bytes, size_bytes, NULL),
             "filling memory to adopt");
        need(world.driver->stream_synchronize(device, NULL), "filling memory to adopt");
        world.progress->tally.adopted++;
        return list[i].memory;
    }
    return NULL;
}

static unsigned char *pinned_memory(uint64_t size_bytes) {
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        world_break("no memory");
    need(world.driver->host_register(memory, size_bytes), "pinning memory");
    return memory;
}

static unsigned char *ordinary_memory(uint64_t size_bytes) {
    unsigned char *memory = calloc(1, size_bytes);
    if (memory == NULL)
        world_break("no memory");
    return memory;
}

static unsigned char *device_memory(unsigned device, uint64_t size_bytes) {
    void *memory;
    uint64_t granules = (size_bytes + GPU_ALLOCATION_GRANULE - 1) / GPU_ALLOCATION_GRANULE;
    need(world.driver->memory_allocate(device, granules * GPU_ALLOCATION_GRANULE, &memory), "device memory");
    need(world.driver->memory_set(device, memory, 0, size_bytes, NULL), "device memory");
    need(world.driver->stream_synchronize(device, NULL), "device memory");
    return memory;
}

static void own_memory_make(void) {
    unsigned char *pinned = pinned_memory((WORLD_ADOPTED + 2 * WORLD_SLOTS) * WORLD_BYTES_MAX);

    hold.gate = (uint64_t *)(void *)pinned_memory((uint64_t)getpagesize());
    hold.mark = hold.gate + 8;
    sem_init(&hold.let_go, 0, 0);

    for (unsigned i = 0; i < WORLD_ADOPTED; i++, pinned += WORLD_BYTES_MAX) {
        world.pinned[i].memory = pinned;
        world.pageable[i].memory = ordinary_memory(WORLD_BYTES_MAX);
    }
    for (unsigned i = 0; i < WORLD_SLOTS; i++, pinned += 2 * WORLD_BYTES_MAX) {
        world.sources[i] = pinned;
        world.checks[i].found = pinned + WORLD_BYTES_MAX;
        world.checks[i].expected = ordinary_memory(WORLD_BYTES_MAX);
    }
    for (unsigned device = 0; device < world.n_devices; device++) {
        unsigned char *adoptable = device_memory(device, WORLD_ADOPTED * WORLD_BYTES_MAX);
        for (unsigned i = 0; i < WORLD_ADOPTED; i++)
            world.on_device[device][i].memory = adoptable + i * WORLD_BYTES_MAX;
        world.scratch[device] = device_memory(device, 2 * WORLD_STREAMS * piece());
    }
}

/* --- others --- */

void world_pass_stranger(bool on_device, unsigned device, uint64_t size_bytes) {
    const struct world_stream *stream =
        &world.streams[device][WORLD_STREAMS - 1 - world_random(WORLD_CREATED)];
    void *first =
        on_device && world_one_in(2) ? stream->handle : GPUPOOL_NO_STREAM; /* which memory it gets */
    struct gpupool_buffer buffer;
    uint32_t pool;

    need(on_device ? gpupool_device_pool(world.client, (int)device, &pool)
                   : gpupool_host_pool(world.client, -1, &pool),
         "a pool");
    if (gpupool_acquire(world.client, pool, size_bytes, first, GPUPOOL_NOW, 0, &buffer) != 0)
        return; /* the pool is full */
    if (on_device)
        need(world.driver->memory_set(device, buffer.data, (uint8_t)world_random(256), size_bytes,
                                      stream->handle),
             "a stranger's write");
    else
        memset(buffer.data, (int)world_random(256), size_bytes);
    need(gpupool_release(world.client, &buffer, on_device ? stream->handle : GPUPOOL_NO_STREAM), "release");
}

/* --- pools that are full --- */

void world_hog(void) {
    unsigned device = (unsigned)world_random(world.n_devices);
    uint32_t pool;

    need(world_one_in(2) ? gpupool_host_pool(world.client, -1, &pool)
                         : gpupool_device_pool(world.client, (int)device, &pool),
         "a pool");
    world_tell("take all of pool %u", pool);
    for (uint64_t size = POOL_MIB * MIB; size >= 512 && world.n_hogs < WORLD_HOGS;)
        if (gpupool_acquire(world.client, pool, size, GPUPOOL_NO_STREAM, GPUPOOL_NOW, 0,
                            &world.hogs[world.n_hogs]) == 0)
            world.n_hogs++;
        else
            size /= 2;
}

void world_unhog(void) {
    if (world.n_hogs > 0)
        world_tell("give it back");
    for (; world.n_hogs > 0; world.n_hogs--)
        need(gpupool_release(world.client, &world.hogs[world.n_hogs - 1], GPUPOOL_NO_STREAM), "giving back");
}

/* --- threads --- */

static void *helper_main(void *unused) {
    (void)unused;
    own_thread = 1;
    pthread_mutex_lock(&helper.lock);
    while (!helper.ends) {
        if (helper.function == NULL) {
            pthread_cond_wait(&helper.changed, &helper.lock);
            continue;
        }
        helper.function(helper.argument);
        helper.function = NULL;
        pthread_cond_broadcast(&helper.changed);
    }
    pthread_mutex_unlock(&helper.lock);
    return NULL;
}

void world_run_on(unsigned thread, void (*function)(void *), void *argument) {
    if (thread == 0) {
        function(argument);
        return;
    }
    pthread_mutex_lock(&helper.lock);
    helper.function = function;
    helper.argument = argument;
    pthread_cond_broadcast(&helper.changed);
    while (helper.function != NULL)
        pthread_cond_wait(&helper.changed, &helper.lock);
    pthread_mutex_unlock(&helper.lock);
}

/* --- daemon and client --- */

static void daemon_start(const char *gpu) {
    char path[] = "/tmp/histories.XXXXXX", text[256];
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    /* All memory of the pools is there from the start, so that no request waits for growth. */
    snprintf(text, sizeof text,
             "[daemon]\nsim_gpus = %u\n[device]\nlimit = %uMiB\nreserve = %uMiB\nstep = 2MiB\n"
             "[host]\nlimit = %uMiB\nreserve = %uMiB\nstep = 2MiB\n",
             WORLD_DEVICES, POOL_MIB, POOL_MIB, POOL_MIB, POOL_MIB);
    const char *arguments[] = {"--gpu", gpu, "--config", path, "--log-level", "warning", NULL};

    if (!device_export_write_config(path, text))
        world_break("a configuration file");
    options.socket = "private";
    options.daemon_arguments = arguments;
    int r = gpupool_open(&options, &world.root);
    unlink(path);
    need(r, "starting a daemon");
    setenv("GPUPOOL_SOCKET", gpupool_socket_path(world.root), 1);
}

/* Returns the pools' bytes that are leased or in quarantine. */
static uint64_t taken_bytes(void) {
    struct gpupool_pool pools[POOLS_MAX];
    uint64_t bytes = 0;
    size_t count;

    need(gpupool_pools(world.root, pools, POOLS_MAX, &count), "the pools");
    for (size_t i = 0; i < count && i < POOLS_MAX; i++)
        bytes += pools[i].leased_bytes + pools[i].quarantined_bytes;
    return bytes;
}

static void streams_make(void) {
    for (unsigned device = 0; device < world.n_devices; device++)
        for (unsigned i = 0; i < WORLD_STREAMS; i++) {
            struct world_stream *stream = &world.streams[device][i];
            *stream = (struct world_stream){.handle = i == 0 ? NULL : GPUPOOL_PER_THREAD, .number = i};
            if (i >= 1 + WORLD_THREADS)
                need(gpupool_stream_create(world.client, (int)device, &stream->handle), "a stream");
            else if (i >= 1)
                stream->thread = i - 1;
        }
}

static void client_open(void) {
    const struct gpu *driver = NULL;

    need(gpupool_open(NULL, &world.client), "open");
    need(devices_need_gpu(&world.client->session.devices, &driver), "the driver");
    /* Everything that the client asks of the driver from now on passes the spy. */
    world.driver = driver;
    world.client->session.devices.gpu = spy_before(driver, pass_time);
    world.n_devices = world.client->session.devices.count < WORLD_DEVICES
                          ? world.client->session.devices.count
                          : WORLD_DEVICES;
    streams_make();
}

static void client_close(void) {
    for (unsigned device = 0; device < world.n_devices; device++)
        for (unsigned i = 1 + WORLD_THREADS; i < WORLD_STREAMS; i++)
            need(gpupool_stream_destroy(world.client, (int)device, world.streams[device][i].handle),
                 "a stream's end");
    gpupool_close(world.client);
    world.client = NULL;
}

void world_reopen_client(void) {
    static unsigned before, in_a_row; /* how often there were more than the time before */

    client_close();
    unsigned now = count_entries("/proc/self/fd");
    in_a_row = before != 0 && now > before ? in_a_row + 1 : 0;
    if (in_a_row == (world.is_cuda ? LEAKS_CUDA : 1))
        world_fail("a client left %u descriptors open", now - before);
    before = now;
    client_open();
}

void world_open(const char *gpu, struct world_progress *progress) {
    world.progress = progress;
    setenv("GPUPOOL_SIM_LATENCY", "0", 1);
    /* Streams that share one of the GPU's queues wait for each other, without being told to: by default there
     * are 8 queues. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    daemon_start(gpu);
    world.is_cuda = gpupool_gpu_kind(world.root) == GPUPOOL_GPU_CUDA;
    client_open();
    own_memory_make();
    if (pthread_create(&helper.thread, NULL, helper_main, NULL) != 0)
        world_break("a thread");
}

void world_history_ends(void) {
    world_unhog();
    world_settle();
    /* Adopted memory is the test's, and is as the objects left it. A write by another object would have shown
     * as wrong contents. */
    for (unsigned i = 0; i < WORLD_ADOPTED; i++) {
        world.pinned[i].in_use = world.pageable[i].in_use = false;
        for (unsigned device = 0; device < world.n_devices; device++)
            world.on_device[device][i].in_use = false;
    }
    need(gpupool_trim(world.client, NULL), "trim");
    /* The other thread gives its cache back when it is asked, and may not have been. */
    uint64_t deadline_ns = clock_now_ns() + 10 * NS_PER_S, bytes;
    while ((bytes = taken_bytes()) > 0) {
        if (clock_now_ns() > deadline_ns)
            world_fail("%llu bytes are still leased, and nobody has them", (unsigned long long)bytes);
        need(gpupool_trim(world.client, NULL), "trim");
    }
}

void world_close(void) {
    pthread_mutex_lock(&helper.lock);
    helper.ends = true;
    pthread_cond_broadcast(&helper.changed);
    pthread_mutex_unlock(&helper.lock);
    pthread_join(helper.thread, NULL);
    client_close();
    if (taken_bytes() > 0)
        world_fail("the client is gone, and %llu bytes are not back", (unsigned long long)taken_bytes());
    for (unsigned i = 0; i < WORLD_ADOPTED; i++)
        free(world.pageable[i].memory);
    for (unsigned i = 0; i < WORLD_SLOTS; i++)
        free(world.checks[i].expected);
    gpupool_close(world.root);
}
