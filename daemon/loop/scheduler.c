/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/loop/scheduler.h"

#include <errno.h>
#include <stdlib.h>

static void rank_init(struct turn_rank *rank, uint64_t served) {
    list_init(&rank->link);
    rank->served = served;
}

static bool rank_waits(const struct turn_rank *rank) {
    return !list_is_empty(&rank->link);
}

static uint64_t served_at(const struct list *link) {
    return container_of(link, struct turn_rank, link)->served;
}

/* Enters a wait queue behind all whose last turn is longer ago. A rank that was served just now belongs at
 * the end, one that is seldom served at the front: the search goes from both ends, a step at a time. */
static void rank_enter(struct list *queue, struct turn_rank *rank) {
    struct list *front = queue->next, *back = queue->previous;

    for (;;) {
        if (back == queue || served_at(back) <= rank->served) {
            list_insert_before(back->next, &rank->link);
            return;
        }
        if (served_at(front) > rank->served) {
            list_insert_before(front, &rank->link);
            return;
        }
        back = back->previous;
        front = front->next;
    }
}

void scheduler_init(struct scheduler *scheduler) {
    *scheduler = (struct scheduler){0};
    list_init(&scheduler->waiting);
    for (unsigned i = 0; i < SCHEDULER_USER_CHAINS; i++)
        list_init(&scheduler->users[i]);
    for (unsigned i = 0; i < SCHEDULER_PROCESS_CHAINS; i++)
        list_init(&scheduler->processes[i]);
}

static struct turn_user *find_user(struct scheduler *scheduler, uint64_t key) {
    struct list *chain = &scheduler->users[key % SCHEDULER_USER_CHAINS];

    list_for_each_entry(struct turn_user, user, chain, chain) {
        if (user->key == key)
            return user;
    }
    struct turn_user *user = calloc(1, sizeof *user);
    if (user == NULL)
        return NULL;
    rank_init(&user->rank, scheduler->last);
    user->key = key;
    list_init(&user->waiting);
    list_append(chain, &user->chain);
    return user;
}

static void user_drop(struct turn_user *user) {
    if (user->n_processes > 0)
        return;
    list_remove(&user->rank.link);
    list_remove(&user->chain);
    free(user);
}

static struct turn_process *find_process(struct scheduler *scheduler, uint64_t key, pid_t pid) {
    struct list *chain = &scheduler->processes[(key + (unsigned)pid) % SCHEDULER_PROCESS_CHAINS];

    list_for_each_entry(struct turn_process, process, chain, chain) {
        if (process->pid == pid && process->user->key == key)
            return process;
    }
    struct turn_user *user = find_user(scheduler, key);
    struct turn_process *process = user == NULL ? NULL : calloc(1, sizeof *process);
    if (process == NULL) {
        if (user != NULL)
            user_drop(user);
        return NULL;
    }
    rank_init(&process->rank, scheduler->last);
    process->user = user;
    user->n_processes++;
    process->pid = pid;
    list_init(&process->waiting);
    list_append(chain, &process->chain);
    return process;
}

int turn_join(struct turn *turn, struct scheduler *scheduler, uint64_t user, pid_t pid,
              void (*serve)(struct turn *turn)) {
    struct turn_process *process = find_process(scheduler, user, pid);
    if (process == NULL)
        return -ENOMEM;
    process->n_turns++;
    *turn = (struct turn){.scheduler = scheduler, .process = process, .serve = serve};
    list_init(&turn->link);
    return 0;
}

/* Takes a turn out of its wait queue. Its process and user stay in theirs while they have other turns that
 * wait. */
static void turn_stop_waiting(struct turn *turn) {
    struct turn_process *process = turn->process;

    turn->scheduler->n_waiting -= turn_is_waiting(turn);
    list_remove(&turn->link);
    if (list_is_empty(&process->waiting))
        list_remove(&process->rank.link);
    if (list_is_empty(&process->user->waiting))
        list_remove(&process->user->rank.link);
}

void turn_leave(struct turn *turn) {
    struct turn_process *process = turn->process;

    if (process == NULL)
        return;
    turn_stop_waiting(turn);
    turn->process = NULL;
    if (--process->n_turns > 0)
        return;
    process->user->n_processes--;
    user_drop(process->user);
    list_remove(&process->chain);
    free(process);
}

void turn_wait(struct turn *turn) {
    struct turn_process *process = turn->process;

    if (turn_is_waiting(turn))
        return;
    list_append(&process->waiting, &turn->link);
    turn->scheduler->n_waiting++;
    if (!rank_waits(&process->rank))
        rank_enter(&process->user->waiting, &process->rank);
    if (!rank_waits(&process->user->rank))
        rank_enter(&turn->scheduler->waiting, &process->user->rank);
}

bool turn_is_waiting(const struct turn *turn) {
    return turn->process != NULL && !list_is_empty(&turn->link);
}

/* The rank has had a turn: it goes behind all others, if it still waits. */
static void rank_serve(struct list *queue, struct turn_rank *rank, uint64_t now) {
    rank->served = now;
    if (rank_waits(rank)) {
        list_remove(&rank->link);
        list_append(queue, &rank->link);
    }
}

/* The user with the next turn. The listeners let others pass. */
static struct turn_user *next_user(struct scheduler *scheduler) {
    struct turn_user *first = list_first(&scheduler->waiting, struct turn_user, rank.link);
    struct list *second = first->rank.link.next;

    if (first->key == SCHEDULER_LISTENERS && second != &scheduler->waiting &&
        scheduler->n_passes < SCHEDULER_PASSES_MAX) {
        scheduler->n_passes++;
        return container_of(second, struct turn_user, rank.link);
    }
    if (first->key == SCHEDULER_LISTENERS)
        scheduler->n_passes = 0;
    return first;
}

struct turn *scheduler_next(struct scheduler *scheduler) {
    if (list_is_empty(&scheduler->waiting))
        return NULL;
    struct turn_user *user = next_user(scheduler);
    struct turn_process *process = list_first(&user->waiting, struct turn_process, rank.link);
    struct turn *turn = list_first(&process->waiting, struct turn, link);

    turn_stop_waiting(turn);
    scheduler->last++;
    rank_serve(&user->waiting, &process->rank, scheduler->last);
    rank_serve(&scheduler->waiting, &user->rank, scheduler->last);
    return turn;
}

bool scheduler_is_idle(const struct scheduler *scheduler) {
    return list_is_empty(&scheduler->waiting);
}
