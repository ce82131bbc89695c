/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CLIENT_CTL_GREET_H
#define CLIENT_CTL_GREET_H
/*
 * One greeting at the daemon's data socket, as a client would begin: does a daemon answer there, may this
 * user borrow, and what GPU does it serve? The session ends with the call.
 */
#include <stddef.h>
#include <stdint.h>

#include "proto/proto.h"

/* Returns 0; a positive PROTO_E_… with the daemon's text in *ret_text (PROTO_TEXT_MAX + 1 bytes); -EBADMSG
 * where what answers is not gpupoold; -ECONNRESET where it hung up; -ETIMEDOUT, -ENAMETOOLONG or what
 * connect(2) said. deadline_ns: CLOCK_MONOTONIC. */
int greet(const char *path, uint64_t deadline_ns, enum proto_gpu_kind *ret_gpu, char *ret_text);

#endif
