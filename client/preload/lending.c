/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/lending.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/units.h"
#include "client/preload/capture.h"
#include "client/preload/driver.h"
#include "client/preload/reclaim.h"
#include "client/preload/report.h"
#include "client/preload/retries.h"
#include "client/preload/shared.h"

/* A pool grows, and other processes give up what they keep idle, in less. */
#define ALLOC_TIMEOUT_NS (1 * NS_PER_S)
/* A pool that others are emptying is not out of memory: tens of gigabytes of closed and freed memory. */
#define COMING_TIMEOUT_NS (30 * NS_PER_S)
/* A framework that is refused has freed its cache by then, behind the work of its device. */
#define RETRY_NS (10 * NS_PER_S)

#define DEVICES_MAX 64

enum state {
    CLOSED,
    OPEN,
    OFF,
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct gpupool_client *) the_client; /* set in the state OPEN, and afterwards */
static _Atomic int state;
static atomic_bool warned;
static _Atomic uint64_t devices_used; /* a bit each: memory was lent, or host memory may be in use there */
static bool has_timeout;    /* GPUPOOL_ALLOC_TIMEOUT is set. Written before the state is OPEN */
static uint64_t timeout_ns; /* its value, or ALLOC_TIMEOUT_NS; likewise */

static _Thread_local bool inside;
static _Thread_local struct {
    enum lend_kind kind;
    size_t size_bytes; /* 0: none */
    uint64_t time_ns;
} refused; /* this thread's last request, if it was refused and may be tried again */

/* --- what is said --- */

__attribute__((format(printf, 1, 0))) static void say(const char *format, va_list arguments) {
    char text[2048];
    int length = snprintf(text, sizeof text, "gpupool (pid %d): ", (int)getpid());

    vsnprintf(text + length, sizeof text - (size_t)length - 1, format, arguments);
    strcat(text, "\n");
    ssize_t written = write(STDERR_FILENO, text, strlen(text)); /* in one piece, also beside other threads */
    (void)written;
}

void lend_say(const char *format, ...) {
    const char *verbose = getenv("GPUPOOL_PRELOAD_VERBOSE");
    va_list arguments;

    if (verbose == NULL || verbose[0] == '\0' || strcmp(verbose, "0") == 0)
        return;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

/* Once in a process. */
__attribute__((format(printf, 1, 2))) static void warn(const char *format, ...) {
    va_list arguments;

    if (atomic_exchange(&warned, true))
        return;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
}

bool lend_is_inside(void) {
    return inside;
}

bool lend_enter(void) {
    bool before = inside;
    inside = true;
    return before;
}

void lend_leave(bool before) {
    inside = before;
}

/* --- the client --- */

static void after_fork_in_child(void) {
    pthread_mutex_init(&opening, NULL);
    atomic_store(&the_client, NULL);
    atomic_store(&state, CLOSED);
    atomic_store(&warned, false);
    atomic_store(&devices_used, 0);
    driver_after_fork();
    shared_after_fork();
    reclaim_after_fork();
}

__attribute__((constructor)) static void prepare_for_fork(void) {
    pthread_atfork(NULL, NULL, after_fork_in_child);
}

static void turn_off(const char *why) {
    atomic_store(&state, OFF);
    warn("%s: this process gets its memory from CUDA from now on", why);
}

static void open_client(void) {
    struct gpupool_options options = GPUPOOL_OPTIONS_INIT;
    struct gpupool_client *client;
    const char *timeout = getenv("GPUPOOL_ALLOC_TIMEOUT");

    has_timeout = timeout != NULL && timeout[0] != '\0';
    if (!has_timeout)
        timeout_ns = ALLOC_TIMEOUT_NS;
    else if (units_parse_ns(timeout, &timeout_ns) < 0)
        timeout_ns = GPUPOOL_FOREVER;                        /* what it says, or gpupool_open() refuses it */
    options.alloc_timeout_ns = has_timeout ? 0 : timeout_ns; /* 0: the client reads the variable */
    options.reclaim = reclaim_asked;
    if (gpupool_open(&options, &client) < 0) {
        turn_off(gpupool_error_text());
        return;
    }
    if (gpupool_gpu_kind(client) == GPUPOOL_GPU_NONE) {
        gpupool_close(client);
        turn_off("the daemon serves no GPU");
        return;
    }
    if (gpupool_gpu_kind(client) == GPUPOOL_GPU_SIM)
        lend_say("the daemon simulates its GPU: device memory is ordinary memory, which no real GPU can use");
    atomic_store(&the_client, client);
    atomic_store(&state, OPEN);
}

struct gpupool_client *lend_client(void) {
    if (atomic_load_explicit(&state, memory_order_acquire) == CLOSED) {
        pthread_mutex_lock(&opening);
        if (atomic_load(&state) == CLOSED)
            open_client();
        pthread_mutex_unlock(&opening);
    }
    return lend_client_if_open();
}

struct gpupool_client *lend_client_if_open(void) {
    return atomic_load_explicit(&state, memory_order_acquire) == OPEN ? atomic_load(&the_client) : NULL;
}

/* --- devices --- */

void lend_note_device(int device) {
    uint64_t bit = device >= 0 && device < DEVICES_MAX ? UINT64_C(1) << device : 0;
    if ((atomic_load_explicit(&devices_used, memory_order_relaxed) & bit) == 0)
        atomic_fetch_or(&devices_used, bit);
}

uint64_t lend_devices(void) {
    return atomic_load(&devices_used);
}

void lend_use_a_device(void) {
    uint64_t devices = lend_devices();

    if (devices != 0 && driver_find())
        (void)driver_use(__builtin_ctzll(devices));
}

int lend_wait(const struct gpupool_buffer *buffer) {
    uint64_t waited = 0;
    return lend_wait_once(buffer, &waited);
}

int lend_wait_once(const struct gpupool_buffer *buffer, uint64_t *devices) {
    uint64_t wanted = lend_devices();

    if (buffer->kind == GPUPOOL_POOL_DEVICE && buffer->device >= 0 && buffer->device < DEVICES_MAX)
        wanted = UINT64_C(1) << buffer->device;
    for (wanted &= ~*devices; wanted != 0; wanted &= wanted - 1) {
        int r = driver_wait(__builtin_ctzll(wanted));
        if (r != 0)
            return r;
        *devices |= wanted & -wanted;
    }
    return 0;
}

/* Whether kernels reach registered host memory under the host's address, as they reach cuMemAllocHost()'s. */
static bool can_lend_host(int device) {
    int yes = 0;
    return driver_real.cuDeviceGetAttribute(&yes, CUDA_ATTRIBUTE_HOST_POINTERS, device) == 0 && yes != 0;
}

/* --- memory --- */

/* gpupool_alloc() says no number. Where the daemon answers a question, it had no memory to lend. */
static int alloc_failed(struct gpupool_client *client, size_t size_bytes) {
    char text[1600];
    size_t count;

    snprintf(text, sizeof text, "%s", gpupool_error_text());
    if (gpupool_pools(client, NULL, 0, &count) < 0) {
        turn_off(gpupool_error_text());
        return NOT_OURS;
    }
    lend_say("%zu bytes are refused: %s", size_bytes, text);
    return CUDA_MEMORY_ALLOCATION;
}

/* Whether this is a further attempt of this thread at memory that was refused. PyTorch tries once while a
 * stream is captured. */
static bool is_last_attempt(enum lend_kind kind, size_t size_bytes) {
    bool is_retry = refused.size_bytes >= size_bytes && refused.kind == kind &&
                    clock_now_ns() - refused.time_ns < RETRY_NS;

    refused.size_bytes = 0;
    return is_retry || kind == LEND_HOST || !retries_now() || captures_any();
}

static void *wait_for_memory(struct gpupool_client *client, uint32_t pool, size_t size_bytes, void *stream,
                             bool is_last) {
    if (!is_last)
        return gpupool_alloc_within(client, pool, size_bytes, stream, timeout_ns, GPUPOOL_IDLE_ONLY);
    void *memory = gpupool_alloc(client, pool, size_bytes, stream);
    if (memory == NULL && !has_timeout) /* what is idle may still be on its way */
        memory = gpupool_alloc_within(client, pool, size_bytes, stream, COMING_TIMEOUT_NS, GPUPOOL_IDLE_ONLY);
    return memory;
}

static int allocate(int device, enum lend_kind kind, size_t size_bytes, void *stream, void **ret_memory) {
    uint32_t pool;
    int r;

    if (atomic_load_explicit(&state, memory_order_acquire) == OFF ||
        (kind == LEND_HOST && !can_lend_host(device)))
        return NOT_OURS;
    struct gpupool_client *client = lend_client();
    if (client == NULL)
        return NOT_OURS;
    lend_note_device(device);
    r = kind == LEND_HOST ? gpupool_host_pool(client, -1, &pool) : gpupool_device_pool(client, device, &pool);
    if (r == GPUPOOL_E_NO_POOL || r == GPUPOOL_E_NO_GPU) {
        warn("%s: such memory comes from CUDA", gpupool_error_text());
        return NOT_OURS;
    }
    if (r < 0)
        return alloc_failed(client, size_bytes);
    bool is_last = is_last_attempt(kind, size_bytes);
    void *memory = wait_for_memory(client, pool, size_bytes, stream, is_last);
    if (memory == NULL) {
        if (!is_last) {
            refused.kind = kind;
            refused.size_bytes = size_bytes;
            refused.time_ns = clock_now_ns();
        }
        return alloc_failed(client, size_bytes);
    }
    *ret_memory = memory;
    return 0;
}

/* lent: the row of memory that is lent. result: of a request. Other results are the driver's own errors. */
static void count_for_report(enum report_row lent, enum lend_kind kind, size_t size_bytes, int result) {
    if (result == 0) {
        report_add(lent, size_bytes);
        report_lent(size_bytes);
    } else if (result == NOT_OURS) {
        report_add(kind == LEND_HOST ? REPORT_NO_HOST_POOL : REPORT_NO_POOL, size_bytes);
    } else if (result == CUDA_MEMORY_ALLOCATION) {
        report_add(REPORT_REFUSED, size_bytes);
    }
}

static int request(int device, enum lend_kind kind, size_t size_bytes, void *stream, void **ret_memory) {
    bool before = lend_enter();

    if (kind == LEND_DEVICE)
        reclaim_before_wait();
    int r = allocate(device, kind, size_bytes, stream, ret_memory);
    if (kind == LEND_DEVICE)
        reclaim_after_wait();
    lend_leave(before);
    return r;
}

/* No stream: cuMemAlloc()'s memory may be used on any at once, also while one is captured. */
int lend(int device, enum lend_kind kind, size_t size_bytes, void **ret_memory) {
    int r = request(device, kind, size_bytes, GPUPOOL_NO_STREAM, ret_memory);
    count_for_report(kind == LEND_HOST ? REPORT_LENT_HOST : REPORT_LENT_DEVICE, kind, size_bytes, r);
    return r;
}

int lend_in_order(int device, size_t size_bytes, void *stream, void **ret_memory) {
    int r = request(device, LEND_DEVICE, size_bytes, stream, ret_memory);
    count_for_report(REPORT_LENT_IN_ORDER, LEND_DEVICE, size_bytes, r);
    return r;
}

/* --- what was lent --- */

int lend_find(void *memory, struct gpupool_buffer *ret_buffer) {
    bool before = lend_enter();
    int r = gpupool_lookup(memory, NULL, ret_buffer);

    lend_leave(before);
    if (r == GPUPOOL_E_STALE)
        return CUDA_INVALID_VALUE;
    return r == 0 && ret_buffer->data == memory /* not inside: only what was handed out */
               ? 0
               : NOT_OURS; /* FORKED too: in a child the driver says what it thinks of the parent's memory */
}

/* Of memory on loan that begins there; 0: there is none. */
static uint64_t size_of(void *memory) {
    struct gpupool_buffer buffer;
    return gpupool_lookup(memory, NULL, &buffer) == 0 ? buffer.size_bytes : 0;
}

int lend_free(void *memory, void *stream) {
    bool before = lend_enter();
    uint64_t size_bytes = report_is_asked() ? size_of(memory) : 0;
    int r = gpupool_free(memory, stream);

    lend_leave(before);
    if (r == 0)
        report_returned(size_bytes);
    if (r == GPUPOOL_E_CAPTURING)
        return CUDA_CAPTURE_UNSUPPORTED;
    if (r == GPUPOOL_E_STALE || r == GPUPOOL_E_INVALID)
        return CUDA_INVALID_VALUE; /* another thread freed it meanwhile */
    if (r < 0)                     /* the memory returns with the process */
        lend_say("memory at %p is kept: %s", memory, gpupool_error_text());
    return 0;
}

int lend_release(void *memory) {
    struct gpupool_buffer buffer;

    if (memory == NULL || lend_is_inside())
        return NOT_OURS;
    int r = lend_find(memory, &buffer);
    if (r == 0 && reclaim_collect(&buffer))
        return 0;
    if (r == 0)
        r = lend_wait(&buffer);
    return r == 0 ? lend_free(memory, GPUPOOL_NO_STREAM) : r;
}
