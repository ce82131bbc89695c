/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_API_REQUESTS_H
#define CLIENT_API_REQUESTS_H
/*
 * The open requests of a client: acquires that were begun and not ended (gpupool_acquire_begin()). A request
 * is a miss (client/cache/miss.h) that no thread waits for.
 *
 *     begin ──▶ ASKING ⇄ a step ──▶ COMPLETE ──end──▶ gone
 *
 * While a request is ASKING, the daemon has its question (session/submit.h). The *runner* takes the answer
 * and makes the next step; it completes all requests of the client, one after the other. The runner is a
 * thread of the library, which starts with the first request that has to ask the daemon and ends with the
 * client. In a client with GPUPOOL_OPEN_NO_THREAD it is the thread that is in gpupool_dispatch() or
 * gpupool_acquire_end(), one at a time.
 *
 * Programs have a request's number, and no pointer: a thread may cancel a request that another one is just
 * ending. A number is a slot of the table and the slot's generation, and is not used again.
 *
 * A step is one thread's: that of begin until the first question has gone out, the runner's afterwards. All
 * else is under the lock. Lock order: the requests', then the connection's, or the purger's epoll.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/cache/miss.h"
#include "client/include/gpupool/gpupool.h"
#include "client/session/error.h"

struct open_request {
    uint64_t number;
    /* what was asked for */
    uint32_t pool, flags;
    uint64_t size_bytes;
    void *stream;
    uint64_t end_ns; /* of the steps that wait for the daemon (call_time.h) */
    /* the steps' */
    struct miss miss;
    /* under the lock */
    uint64_t question_id; /* of the question that the daemon has; 0: it has none */
    bool is_cancelled;
    bool is_ending;   /* a thread is in gpupool_acquire_end() */
    bool is_complete; /* then the outcome is below, and stays */
    int fd;           /* an eventfd, made when it is first asked for; -1 */
    int result;
    struct gpupool_buffer buffer;
    char text[ERROR_TEXT_SIZE];
};

struct request_slot {
    struct open_request *request; /* NULL: free */
    uint32_t generation;          /* of the request that is or was here */
    uint32_t next_free;           /* the slot's number plus 1; 0: none */
};

struct requests {
    pthread_mutex_t lock;
    struct request_slot *slots;
    uint32_t n_slots, first_free; /* as next_free */
    uint32_t n_asking;
    pthread_cond_t changed; /* a request is complete, or there is no runner any more */
    bool has_runner;
    bool has_thread, stops; /* the runner is the library's thread, which is to end */
    pthread_t thread;
    int wake_fd; /* an eventfd that wakes the runner; -1: no request had to ask yet */
};

void requests_init(struct requests *requests);

/* Frees what requests_close() left. */
void requests_deinit(struct requests *requests);

/* Cancels the open requests, completes them and frees them. Waits for no room. No call is under way. */
void requests_close(struct gpupool_client *client);

/* Frees the requests in a forked child, where locks and descriptors are the parent's. */
void requests_forget(struct requests *requests);

/* Does what is due, without waiting, unless another thread is the runner. For gpupool_dispatch(). */
void requests_dispatch(struct gpupool_client *client);

/* Enters a new request, ASKING and without a question, and has it make its first steps. On failure there is
 * no request. 0, or what buffer_begin_acquire() says, NO_MEMORY. */
int requests_begin(struct gpupool_client *client, uint32_t pool, uint64_t size_bytes, void *stream,
                   uint64_t timeout_ns, uint32_t flags, uint64_t *ret_number);

/* Whether a request is complete. False: also if there is no such request. */
bool requests_is_complete(struct gpupool_client *client, uint64_t number);

/* The descriptor of a request, or STALE, NO_MEMORY. */
int requests_fd(struct gpupool_client *client, uint64_t number);

/* Cancels a request. 0 or STALE. */
int requests_cancel(struct gpupool_client *client, uint64_t number);

/* Waits until a request is complete, and takes it out of the table: it is the caller's to free. 0 or STALE.
 */
int requests_end(struct gpupool_client *client, uint64_t number, struct open_request **ret_request);

/* Frees a request that was taken. Accepts NULL. */
void open_request_free(struct open_request *request);

static inline void open_request_freep(struct open_request **request) {
    open_request_free(*request);
}

#endif
