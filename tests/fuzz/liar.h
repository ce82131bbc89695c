/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FUZZ_LIAR_H
#define TESTS_FUZZ_LIAR_H
/*
 * A false daemon for the client library, without a thread: it is called where the library would wait for the
 * real one (connect, ppoll and recvmsg on its socket), looks at what was asked, and answers as the input
 * says: well, with a message in which something is changed, with bytes, with too many or the wrong
 * descriptors, late, not at all. At the input's end it hangs up.
 *
 * Requests of the library have to be well-formed, whatever it was told before.
 */
#include <stdbool.h>

#include "gpu/gpu.h"
#include "tests/fuzz/fuzz.h"

#define LIAR_PATH         "/false"
#define LIAR_POOL_HOST    1u
#define LIAR_POOL_DEVICE  2u
#define LIAR_SEGMENT_SIZE (UINT64_C(4) << 20)

/* Begins to answer from the input, for one client. uuid and handle: device memory of another process, as
 * large as a segment. */
void liar_begin(struct input *input, const struct gpu_uuid *uuid, const struct gpu_ipc_handle *handle);

/* Closes what it holds. */
void liar_end(void);

/* Says that others need what the client keeps idle, as the input says. */
void liar_ask_reclaim(void);

#endif
