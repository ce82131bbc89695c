/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The descriptor of a channel: a thread sleeps in the caller's place, and writes an eventfd when it wakes up.
 *
 *   idle --a call has had nothing--> armed --a word has changed--> written --the next call--> idle
 *                                    armed --the next call--> idle
 *
 * It begins as written: no call has had nothing yet. While it is armed the page says that this place sleeps. The
 * thread's work is told by a number: it writes for the arming that it slept for alone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/thread.h"
#include "client/api/client.h"
#include "client/objects/channel/channel.h"
#include "client/session/error.h"

struct watch {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    int fd;
    bool is_ending, is_armed, is_written;
    uint64_t number;            /* of the arming, counted up; one more when it ends */
    _Atomic uint64_t ending;    /* a word of its own among those that the thread sleeps on */
    struct channel_sleep sleep; /* of the present arming */
};

static void write_once(struct watch *watch) {
    const uint64_t one = 1;

    watch->is_written = true;
    (void)!write(watch->fd, &one, sizeof one);
}

static void *watch_run(void *argument) {
    struct watch *watch = argument;
    uint64_t served = 0;

    pthread_mutex_lock(&watch->lock);
    while (!watch->is_ending) {
        if (!watch->is_armed || watch->is_written || watch->number == served) {
            pthread_cond_wait(&watch->changed, &watch->lock);
            continue;
        }
        struct channel_sleep sleep = watch->sleep;
        uint64_t number = watch->number;
        /* The last word is this object's: the end of the arming changes it. */
        sleep.words[sleep.count].word = &watch->ending;
        sleep.words[sleep.count++].expected = (uint32_t)atomic_load(&watch->ending);
        pthread_mutex_unlock(&watch->lock);
        (void)word_wait(&sleep, NS_FOREVER);
        pthread_mutex_lock(&watch->lock);
        bool has_changed = false;
        for (unsigned i = 0; i + 1 < sleep.count; i++)
            has_changed |= (uint32_t)atomic_load(sleep.words[i].word) != sleep.words[i].expected;
        if (watch->is_armed && watch->number == number && has_changed) {
            served = number;
            write_once(watch);
        }
    }
    pthread_mutex_unlock(&watch->lock);
    return NULL;
}

/* Announces sleep, and tells the words. */
static void sleep_begin(struct gpupool_channel *channel, struct channel_sleep *ret_sleep) {
    if (channel->is_producer)
        sender_sleep_begin(&channel->sender, ret_sleep);
    else
        receiver_sleep_begin(&channel->receiver, ret_sleep);
}

static void sleep_end(struct gpupool_channel *channel) {
    if (channel->is_producer)
        sender_sleep_end(&channel->sender);
    else
        receiver_sleep_end(&channel->receiver);
}

/* Whether something is to be had after all. Takes nothing that cannot be given back. */
static bool has_something(struct gpupool_channel *channel) {
    if (!channel->is_producer)
        return channel->has_waiting ||
               atomic_load(&channel->pages.view.producer->head) >= channel->receiver.received ||
               channel_state_word(&channel->pages.view, PROTO_CHANNEL_PRODUCER) != channel->told;
    struct sender_loan loan;
    enum sender_result result = sender_find_slot(&channel->sender, &loan);
    if (result == SENDER_OK)
        sender_give_back(&channel->sender, loan.slot, (struct channel_fence){0});
    return result != SENDER_FULL;
}

void watch_arm_locked(struct gpupool_channel *channel) {
    struct watch *watch = channel->watch;

    if (watch == NULL)
        return;
    pthread_mutex_lock(&watch->lock);
    sleep_begin(channel, &watch->sleep);
    watch->is_armed = true;
    watch->number++;
    if (has_something(channel))
        write_once(watch);
    else
        pthread_cond_signal(&watch->changed);
    pthread_mutex_unlock(&watch->lock);
}

void watch_disarm_locked(struct gpupool_channel *channel) {
    struct watch *watch = channel->watch;
    uint64_t count;

    if (watch == NULL)
        return;
    pthread_mutex_lock(&watch->lock);
    if (watch->is_armed) {
        sleep_end(channel);
        watch->is_armed = false;
        atomic_fetch_add(&watch->ending, 1);
        word_wake(&watch->ending);
    }
    if (watch->is_written)
        (void)!read(watch->fd, &count, sizeof count);
    watch->is_written = false;
    pthread_mutex_unlock(&watch->lock);
}

void watch_end(struct watch *watch, bool is_child) {
    if (watch == NULL)
        return;
    if (!is_child) {
        pthread_mutex_lock(&watch->lock);
        watch->is_ending = true;
        atomic_fetch_add(&watch->ending, 1);
        word_wake(&watch->ending);
        pthread_cond_signal(&watch->changed);
        pthread_mutex_unlock(&watch->lock);
        pthread_join(watch->thread, NULL);
        close_fd(watch->fd);
    }
    free(watch);
}

/* Returns NULL with an errno's number in *ret_error. */
static struct watch *watch_new(int *ret_error) {
    struct watch *watch = calloc(1, sizeof *watch);

    *ret_error = ENOMEM;
    if (watch == NULL)
        return NULL;
    pthread_mutex_init(&watch->lock, NULL);
    pthread_cond_init(&watch->changed, NULL);
    watch->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *ret_error = watch->fd < 0 ? errno : thread_create(&watch->thread, NULL, watch_run, watch);
    if (*ret_error != 0) {
        close_fd(watch->fd);
        free(watch);
        return NULL;
    }
    write_once(watch);
    return watch;
}

int gpupool_channel_fd(struct gpupool_channel *channel) {
    int error = 0,
        r = channel_enter(channel, channel != NULL && channel->is_producer, NULL, "gpupool_channel_fd");

    if (r < 0)
        return r;
    pthread_mutex_lock(&channel->lock);
    if (channel->watch == NULL)
        channel->watch = watch_new(&error);
    int fd = channel->watch != NULL ? channel->watch->fd : -1;
    pthread_mutex_unlock(&channel->lock);
    if (fd < 0)
        return error_set(error == ENOMEM ? GPUPOOL_E_NO_MEMORY : GPUPOOL_E_DRIVER,
                         "channel '%s': a descriptor to watch: %s (%s)", channel->name,
                         strerrorname_np(error), strerrordesc_np(error));
    (void)error_end(0);
    return fd;
}
