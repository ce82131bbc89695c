/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_SESSION_WORD_WAIT_H
#define CLIENT_SESSION_WORD_WAIT_H
/*
 * Sleep on words of a channel's pages, and the waking of sleepers. The system call futex_waitv() (Linux 5.16)
 * sleeps on several words at once. On an older kernel a process sleeps on the first word alone, for
 * WORD_WAIT_SLICE_NS at a time, and looks at all words in between. A page that is mapped to read only will do
 * for both.
 *
 * Thread-safe.
 */
#include <stdint.h>

#include "client/core/channel.h"

/* A change of another word than the first is seen that late on an older kernel. */
#define WORD_WAIT_SLICE_NS UINT64_C(10000000)

/* Sleeps while all words have their expected values; at most until deadline_ns (CLOCK_MONOTONIC; UINT64_MAX:
 * without end). It may return early: the caller looks for itself what there is to do. Returns 0, -ETIMEDOUT
 * at the deadline, -EINTR after a signal, or another negative errno. */
int word_wait(const struct channel_sleep *sleep, uint64_t deadline_ns);

/* Wakes all sleepers on a word. */
void word_wake(const _Atomic uint64_t *word);

#endif
