/* SPDX-License-Identifier: Apache-2.0 */
#include "client/preload/capture.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "client/preload/driver.h"
#include "client/preload/reclaim.h"

struct capture {
    struct capture *next;
    void *stream;
    pthread_t thread; /* for CUDA_STREAM_PER_THREAD, which is another stream in each thread */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* held while a capture begins, and off */
static struct capture *all;                              /* under the lock */
static atomic_uint count;                                /* of all; and captures that could not be noted */

void captures_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    all = NULL; /* the parent's; a few bytes are lost */
    atomic_store(&count, 0);
}

/* Where the entry of a stream hangs; *link is NULL: there is none. Under the lock. */
static struct capture **find(void *stream) {
    struct capture **link = &all;
    while (*link != NULL && ((*link)->stream != stream || (stream == CUDA_STREAM_PER_THREAD &&
                                                           !pthread_equal((*link)->thread, pthread_self()))))
        link = &(*link)->next;
    return link;
}

void capture_before_begin(void) {
    pthread_mutex_lock(&lock);
}

int capture_after_begin(void *stream, int result) {
    if (result == 0 && *find(stream) == NULL) {
        struct capture *capture = malloc(sizeof *capture);
        if (capture != NULL) {
            *capture = (struct capture){.next = all, .stream = stream, .thread = pthread_self()};
            all = capture;
        }
        atomic_fetch_add(&count, 1); /* without memory for an entry: for good, which is on the safe side */
    }
    pthread_mutex_unlock(&lock);
    return result;
}

void capture_forget(void *stream) {
    if (atomic_load(&count) == 0)
        return;
    pthread_mutex_lock(&lock);
    struct capture **link = find(stream), *capture = *link;
    if (capture != NULL) {
        *link = capture->next;
        atomic_fetch_sub(&count, 1);
    }
    pthread_mutex_unlock(&lock);
    free(capture);
    reclaim_changed();
}

/* A capture that another thread should have ended goes on, and the call fails. */
int capture_after_end(void *stream, int result) {
    int status = CUDA_CAPTURE_NONE;

    if (result != 0 && driver_real.cuStreamIsCapturing != NULL &&
        driver_real.cuStreamIsCapturing(stream, &status) == 0 && status != CUDA_CAPTURE_NONE)
        return result;
    capture_forget(stream);
    return result;
}

bool captures_any(void) {
    return atomic_load(&count) > 0;
}

bool captures_hold_off(void) {
    pthread_mutex_lock(&lock);
    if (!captures_any())
        return true;
    pthread_mutex_unlock(&lock);
    return false;
}

void captures_admit(void) {
    pthread_mutex_unlock(&lock);
}
