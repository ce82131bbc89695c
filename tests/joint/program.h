/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_JOINT_PROGRAM_H
#define TESTS_JOINT_PROGRAM_H
/*
 * The threads of the clients' programs. They keep to the contract of gpupool.h: work on a buffer is
 * enqueued on the stream that it was acquired on, or behind that; a release names the stream of the last
 * work; streams that are captured keep the buffers that their work uses.
 */
#include <pthread.h>

#include "tests/joint/world.h"

struct program_thread {
    struct joint_client *client;
    unsigned number;
    pthread_t thread;
};

/* --- buffers.c */

/* Around each call of the library: the validators run when no thread is inside. */
void program_enter(struct joint_client *client);
void program_leave(struct joint_client *client);
/* A call returned an error that it may return in this world. */
void program_check_error(const struct joint_client *client, int r);
/* A place for a buffer; NULL: there is none. */
struct held *program_find_room(struct joint_client *client);
/* A buffer that no thread works on; NULL: there is none. */
struct held *program_pick(struct joint_client *client);
/* A stream of the pool's device. */
void *program_pick_stream(struct joint_client *client, uint32_t pool);
/* A stream that work on the buffer may be enqueued on without more. */
void *program_stream_of(struct joint_client *client, struct held *held);
void program_work(struct program_thread *own);
void program_release(struct joint_client *client, struct held *held);
void program_release_any(struct program_thread *own);
void program_shrink(struct program_thread *own);
void program_trim(struct program_thread *own);
void program_capture(struct program_thread *own);
/* A stream ends as gpupool_trim() says, and another one takes its place. */
void program_renew_stream(struct program_thread *own);

/* --- acquires.c */

void program_acquire(struct program_thread *own, bool is_mild);

/* --- sharing.c */

/* A buffer is shared, attached, written again, or asked for. */
void program_share_any(struct program_thread *own);

/* --- steps.c */

/* The steps of a thread, until it has made all of them. */
void program_run_steps(struct program_thread *own);

#endif
