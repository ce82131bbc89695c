/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_PRELOAD_CAPTURE_H
#define CLIENT_PRELOAD_CAPTURE_H
/*
 * The streams of the process that are being captured into a graph, in any thread. A wait for the device while
 * one is captured invalidates the capture, so what waits for the device on its own account asks here first.
 *
 * A stream is noted when its capture has begun, and forgotten when the capture has ended or the stream is
 * destroyed. A capture that was invalidated ends with cuStreamEndCapture() as well. No capture begins between
 * captures_hold_off() and captures_admit(). A forked child begins without captures. Thread-safe.
 */
#include <stdbool.h>

/* Before and after the driver's own cuStreamBeginCapture() and its like. stream: never NULL for the
 * per-thread stream. result: what the driver said; returned. */
void capture_before_begin(void);
int capture_after_begin(void *stream, int result);

/* After the driver's own cuStreamEndCapture(). Returns the result. */
int capture_after_end(void *stream, int result);

/* The stream was destroyed. */
void capture_forget(void *stream);

/* Whether any stream is being captured. */
bool captures_any(void);

/* Keeps captures from beginning until captures_admit(). False: a stream is being captured; nothing is held
 * off. */
bool captures_hold_off(void);
void captures_admit(void);

void captures_after_fork(void);

#endif
