/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CACHE_ANSWERING_H
#define CLIENT_CACHE_ANSWERING_H
/*
 * The answers of a client to the daemon's questions for idle memory. Each question has a number, which the
 * daemon counts up in the session's page. An answer is about one pool, and names the newest question whose
 * number was read before anything was looked for: what became idle later is the next question's.
 *
 * The library answers when it has given back what its caches keep. Where the program has a callback for the
 * questions, the library's answer is PENDING until the program has answered too, with gpupool_reclaimed(), in
 * the callback or later. The one of both that comes last tells the daemon.
 *
 * Each cache has one. Any thread may call its functions; the lock is held while an answer is sent, so that
 * the daemon hears them in order.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "proto/proto.h"

struct cache;

struct pool_answer {
    uint64_t by_library, by_program; /* the newest questions that each of them has answered; 0: none */
    enum proto_reclaim of_library, of_program; /* what they said */
    uint64_t kept_bytes;                       /* that the program keeps, by its last word */
};

struct answering {
    pthread_mutex_t lock;                      /* guards pools */
    _Atomic uint64_t pools_asked;              /* bit id - 1: the daemon asked for idle memory of it before */
    _Atomic uint64_t asked;                    /* the newest question that the program was told of; 0: none */
    struct pool_answer pools[PROTO_POOLS_MAX]; /* by id - 1 */
};

void answering_init(struct answering *answering);
void answering_deinit(struct answering *answering);

/* The daemon asked: tells the program, gives back what is idle in the pools that are asked for, and answers.
 * 0, or what the connection says. */
int answering_answer(struct cache *cache);

/* As answering_answer(), without the program's callback and without an answer: only gives back what the
 * library keeps of the pools that are asked for. */
void answering_give_back(struct cache *cache);

/* The program has answered, of one pool, or of all that were asked for (0). DONE: gives back what it has
 * released to the library before. 0, or what the connection says. */
int answering_tell(struct cache *cache, uint32_t pool, enum proto_reclaim outcome, uint64_t kept_bytes);

#endif
