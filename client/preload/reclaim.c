/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/reclaim.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/thread.h"
#include "client/preload/capture.h"
#include "client/preload/driver.h"
#include "client/preload/lending.h"
#include "client/preload/python.h"

/* Python's main thread, if it runs the program, comes to the work within microseconds, or when the
 * interpreter's lock changes hands (5 ms by default), which python_press() brings about. */
#define MAIN_THREAD_NS (1 * NS_PER_MS)
/* A wait for device memory that is served by growth is over by then. */
#define SHORT_WAIT_NS (5 * NS_PER_MS)
/* Caches of some gigabytes are emptied in less. The daemon learns by then that it takes longer. */
#define BUSY_NS (100 * NS_PER_MS)
/* The daemon repeats its request every 100 ms while memory is wanted. */
#define LAPSE_NS (1 * NS_PER_S)

/* Memory that PyTorch freed and that is still on loan. */
struct collected {
    struct collected *next;
    struct gpupool_buffer buffer;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* under the lock */
static bool runs;         /* the reclaimer */
static uint64_t asks;     /* requests of the daemon so far */
static uint64_t served;   /* the last one that a round was for */
static uint64_t told;     /* the last one that was answered */
static uint64_t asked_ns; /* when the last one came */
static struct collected *list;

static atomic_uint waiting; /* threads that wait for device memory */
static _Thread_local bool collects;

void reclaim_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&changed, NULL);
    runs = collects = false;
    asks = served = told = 0;
    list = NULL; /* the parent's; a few bytes are lost */
    atomic_store(&waiting, 0);
    captures_after_fork();
    python_after_fork();
}

static void wait_until(uint64_t time_ns) {
    struct timespec time = {(time_t)(time_ns / NS_PER_S), (long)(time_ns % NS_PER_S)};
    (void)pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &time);
}

void reclaim_changed(void) {
    pthread_mutex_lock(&lock);
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void reclaim_before_wait(void) {
    atomic_fetch_add(&waiting, 1);
}

void reclaim_after_wait(void) {
    if (atomic_fetch_sub(&waiting, 1) == 1)
        reclaim_changed();
}

/* --- what is collected --- */

struct reclaim_collecting reclaim_collect_begin(bool own_thread) {
    struct reclaim_collecting collecting = {.mode = CUDA_CAPTURE_RELAXED};

    if (own_thread)
        lend_use_a_device();
    /* PyTorch asks for the state of events, which is not allowed beside a capture that begins meanwhile
     * unless the thread says so. */
    collecting.exchanged = driver_find() && driver_exchange_mode(&collecting.mode);
    collects = true;
    return collecting;
}

void reclaim_collect_end(struct reclaim_collecting collecting) {
    collects = false;
    if (collecting.exchanged)
        (void)driver_exchange_mode(&collecting.mode);
}

bool reclaim_collect(const struct gpupool_buffer *buffer) {
    struct collected *collected = collects ? malloc(sizeof *collected) : NULL;

    if (collected == NULL)
        return false;
    *collected = (struct collected){.buffer = *buffer};
    pthread_mutex_lock(&lock);
    collected->next = list;
    list = collected;
    pthread_mutex_unlock(&lock);
    return true;
}

/* Frees the list. False: a stream is being captured, and the list is as it was. */
static bool free_collected(struct collected **from, uint64_t *ret_bytes) {
    uint64_t devices = 0;
    int r = 0;

    if (!captures_hold_off())
        return false;
    for (const struct collected *each = *from; each != NULL && r == 0; each = each->next)
        r = lend_wait_once(&each->buffer, &devices);
    captures_admit();
    *ret_bytes = 0;
    for (struct collected *each; (each = *from) != NULL;) {
        *from = each->next;
        if (r == 0 && lend_free(each->buffer.data, GPUPOOL_NO_STREAM) == 0)
            *ret_bytes += each->buffer.capacity_bytes;
        free(each);
    }
    if (r != 0)
        lend_say("the device failed (%d): memory that was to go back is kept", r);
    return true;
}

/* --- the reclaimer --- */

/* Tells the daemon. kept_bytes: of each device; NULL: not known. Under the lock, which is given up meanwhile.
 */
static void tell(enum gpupool_reclaim_outcome outcome, const uint64_t *kept_bytes) {
    struct gpupool_client *client = lend_client_if_open();
    uint32_t pool;

    told = asks;
    pthread_mutex_unlock(&lock);
    bool before = lend_enter();
    if (client != NULL)
        (void)gpupool_reclaimed(client, 0, outcome, 0);
    for (int device = 0; client != NULL && kept_bytes != NULL && device < PYTHON_DEVICES_MAX; device++)
        if (kept_bytes[device] > 0 && gpupool_device_pool(client, device, &pool) == 0)
            (void)gpupool_reclaimed(client, pool, outcome, kept_bytes[device]);
    lend_leave(before);
    pthread_mutex_lock(&lock);
}

/* Waits until caches may be emptied. False: they are not to be. Under the lock. */
static bool wait_until_allowed(void) {
    while (captures_any()) {
        if (told != asks)
            tell(GPUPOOL_RECLAIM_CAPTURING, NULL);
        else if (clock_now_ns() < asked_ns + LAPSE_NS)
            wait_until(asked_ns + LAPSE_NS);
        else
            return false;
    }
    while (atomic_load(&waiting) > 0 && clock_now_ns() < asked_ns + SHORT_WAIT_NS)
        wait_until(asked_ns + SHORT_WAIT_NS);
    if (atomic_load(&waiting) == 0)
        return true;
    tell(GPUPOOL_RECLAIM_WAITS, NULL);
    return false;
}

/* Waits until Python has done the work. Under the lock. */
static void wait_for_python(uint64_t ret_kept_bytes[PYTHON_DEVICES_MAX]) {
    uint64_t begin_ns = clock_now_ns();

    while (!python_is_over(ret_kept_bytes)) {
        uint64_t now = clock_now_ns();
        bool is_pressed = now >= begin_ns + MAIN_THREAD_NS, is_busy = now >= begin_ns + BUSY_NS;
        if (is_pressed)
            python_press();
        if (is_busy && told != asks)
            tell(atomic_load(&waiting) > 0 ? GPUPOOL_RECLAIM_WAITS : GPUPOOL_RECLAIM_BUSY, NULL);
        else
            wait_until(is_busy ? now + BUSY_NS : begin_ns + (is_pressed ? BUSY_NS : MAIN_THREAD_NS));
    }
}

/* One round. Under the lock. */
static void serve(void) {
    uint64_t freed_bytes = 0, kept_bytes[PYTHON_DEVICES_MAX] = {0};

    if (!wait_until_allowed()) {
        served = told;
        return;
    }
    served = asks; /* a request that comes from here on has a round of its own */
    if (python_begin())
        wait_for_python(kept_bytes);
    struct collected *collected = list;
    list = NULL;
    pthread_mutex_unlock(&lock);
    while (collected != NULL && !free_collected(&collected, &freed_bytes)) {
        pthread_mutex_lock(&lock);
        if (captures_any() && told != asks)
            tell(GPUPOOL_RECLAIM_CAPTURING, NULL);
        else if (captures_any())
            wait_until(clock_now_ns() + LAPSE_NS);
        pthread_mutex_unlock(&lock);
    }
    lend_say("others need memory: %llu bytes of caches are freed", (unsigned long long)freed_bytes);
    pthread_mutex_lock(&lock);
    if (freed_bytes > 0 || served == asks)
        tell(freed_bytes > 0 ? GPUPOOL_RECLAIM_DONE : GPUPOOL_RECLAIM_NOTHING, kept_bytes);
    told = served; /* what came meanwhile is answered by the next round */
}

static void *reclaimer(void *argument) {
    lend_use_a_device();
    pthread_mutex_lock(&lock);
    while (served != asks)
        serve();
    runs = false;
    pthread_mutex_unlock(&lock);
    return argument;
}

bool reclaim_start_thread(void *(*function)(void *)) {
    pthread_t thread;

    if (thread_create(&thread, NULL, function, NULL) != 0)
        return false;
    pthread_detach(thread);
    return true;
}

void reclaim_asked(void *argument) {
    (void)argument;
    pthread_mutex_lock(&lock);
    asks++;
    asked_ns = clock_now_ns();
    if (!runs)
        runs = reclaim_start_thread(reclaimer);
    else
        pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}
