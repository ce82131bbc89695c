/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/closer.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/thread.h"

#define STOP_S 1

struct closer {
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake, end;
    int *fds; /* that wait, oldest first */
    size_t count, capacity;
    bool closing; /* a descriptor: that may take long */
    bool stopping, ended;
};

static void *closer_main(void *argument) {
    struct closer *closer = argument;

    pthread_mutex_lock(&closer->lock);
    while (!closer->stopping || closer->count > 0) {
        if (closer->count == 0) {
            pthread_cond_wait(&closer->wake, &closer->lock);
            continue;
        }
        int fd = closer->fds[0];
        closer->count--;
        memmove(closer->fds, closer->fds + 1, closer->count * sizeof *closer->fds);
        closer->closing = true;
        pthread_mutex_unlock(&closer->lock);
        close_fd(fd);
        pthread_mutex_lock(&closer->lock);
        closer->closing = false;
    }
    closer->ended = true;
    pthread_cond_signal(&closer->end);
    pthread_mutex_unlock(&closer->lock);
    return NULL;
}

static void forget(struct closer *closer) {
    free(closer->fds);
    pthread_cond_destroy(&closer->wake);
    pthread_cond_destroy(&closer->end);
    pthread_mutex_destroy(&closer->lock);
    free(closer);
}

int closer_new(struct closer **ret_closer) {
    struct closer *closer = calloc(1, sizeof *closer);
    if (closer == NULL)
        return -ENOMEM;
    pthread_mutex_init(&closer->lock, NULL);
    pthread_cond_init(&closer->wake, NULL);
    thread_condition_init(&closer->end);
    int error = thread_create(&closer->thread, NULL, closer_main, closer);
    if (error != 0) {
        forget(closer);
        return -error;
    }
    pthread_setname_np(closer->thread, "closer");
    *ret_closer = closer;
    return 0;
}

void closer_free(struct closer *closer) {
    struct timespec until;
    int error = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += STOP_S;
    pthread_mutex_lock(&closer->lock);
    closer->stopping = true;
    pthread_cond_signal(&closer->wake);
    while (!closer->ended && error == 0)
        if (closer->closing || closer->count > 0)
            error = pthread_cond_timedwait(&closer->end, &closer->lock, &until);
        else
            pthread_cond_wait(&closer->end, &closer->lock);
    bool ended = closer->ended;
    pthread_mutex_unlock(&closer->lock);
    if (!ended) {
        pthread_detach(closer->thread);
        return;
    }
    pthread_join(closer->thread, NULL);
    forget(closer);
}

static bool reserve_locked(struct closer *closer) {
    int *fds = array_room(closer->fds, closer->count, &closer->capacity, sizeof *fds);

    if (fds != NULL)
        closer->fds = fds;
    return fds != NULL;
}

void closer_close(struct closer *closer, int fd) {
    if (fd < 0)
        return;
    pthread_mutex_lock(&closer->lock);
    bool taken = reserve_locked(closer);
    if (taken)
        closer->fds[closer->count++] = fd;
    pthread_cond_signal(&closer->wake);
    pthread_mutex_unlock(&closer->lock);
    if (!taken)
        close_fd(fd);
}
