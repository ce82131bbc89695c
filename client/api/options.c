/* SPDX-License-Identifier: Apache-2.0 */
#include "client/api/options.h"

#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/own_mapping.h"
#include "base/units.h"
#include "client/session/error.h"

#define DEFAULT_SOCKET "/run/gpupool/gpupool.sock"
#define DEFAULT_CONNECT_TIMEOUT_NS                                                                           \
    (10 * NS_PER_S) /* a CUDA context takes 0.3 s (H200), several in a row some */
#define DEFAULT_ANSWER_TIMEOUT_NS (30 * NS_PER_S) /* pinning host memory takes up to 0.7 s a 4 GiB (H200) */

/* Longer than the pauses of a worker between requests, shorter than people wait for memory. */
#define DEFAULT_DECAY_NS (10 * NS_PER_S)

/* How long gpupool_alloc() waits where neither the options nor the environment say. Longer than a pool takes
 * to grow (pinned host memory: 0.4 s a GiB at worst, H200) and others to give up what they keep idle; people
 * still wait that long to be told that there is no memory. */
#define DEFAULT_ALLOC_TIMEOUT_NS (10 * NS_PER_S)

/* A variable of the environment. NULL: it is not set, or empty. */
static const char *setting(const char *name) {
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? text : NULL;
}

/* Reads a variable that is 0 or 1. 0 or INVALID. */
static int read_switch(const char *name, bool unless_set, bool *ret_on) {
    const char *text = setting(name);

    if (text != NULL && strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return error_set(GPUPOOL_E_INVALID, "%s is '%s': not 0 or 1", name, text);
    *ret_on = text == NULL ? unless_set : *text == '1';
    return 0;
}

/* Reads $GPUPOOL_ALLOC_TIMEOUT ("250ms", "1min", "forever"), else the default. 0 or INVALID. */
static int read_alloc_timeout(uint64_t *ret_timeout_ns) {
    const char *text = setting("GPUPOOL_ALLOC_TIMEOUT");

    if (text == NULL)
        *ret_timeout_ns = DEFAULT_ALLOC_TIMEOUT_NS;
    else if (strcmp(text, "forever") == 0)
        *ret_timeout_ns = GPUPOOL_FOREVER;
    else if (units_parse_ns(text, ret_timeout_ns) < 0)
        return error_set(GPUPOOL_E_INVALID,
                         "GPUPOOL_ALLOC_TIMEOUT is '%s': not a time such as 500ms, 10s or forever", text);
    return 0;
}

/* A program may have been built with an older header (fewer members) or a newer one (whose further members
 * must say nothing, because this library does not know them). */
int options_read(const struct gpupool_options *options, struct gpupool_options *ret_options) {
    struct gpupool_options own = GPUPOOL_OPTIONS_INIT;
    bool no_cuda, dumped;

    if (options != NULL) {
        size_t size = options->struct_size;
        if (size < offsetof(struct gpupool_options, socket) + sizeof own.socket || size > 4096)
            return error_set(GPUPOOL_E_INVALID, "options.struct_size is %zu: start from GPUPOOL_OPTIONS_INIT",
                             size);
        for (size_t i = sizeof own; i < size; i++)
            if (((const unsigned char *)options)[i] != 0)
                return error_set(GPUPOOL_E_INVALID,
                                 "options: this library (%s) is too old for one that is set",
                                 GPUPOOL_VERSION);
        memcpy(&own, options, size < sizeof own ? size : sizeof own);
        if ((own.flags & ~(GPUPOOL_OPEN_NO_CUDA | GPUPOOL_OPEN_NO_CACHE | GPUPOOL_OPEN_NO_THREAD)) != 0 ||
            own.reserved != 0)
            return error_set(GPUPOOL_E_INVALID, "options.flags is 0x%x: unknown flags", own.flags);
    }
    int r = read_switch("GPUPOOL_NO_CUDA", false, &no_cuda);
    if (r < 0)
        return r;
    if (no_cuda)
        own.flags |= GPUPOOL_OPEN_NO_CUDA;
    r = read_switch("GPUPOOL_CORE_DUMP", false, &dumped);
    if (r < 0)
        return r;
    own_mapping_set_dumped(dumped);
    if (own.socket == NULL)
        own.socket = getenv("GPUPOOL_SOCKET");
    if (own.socket == NULL || *own.socket == '\0')
        own.socket = DEFAULT_SOCKET;
    if (own.client_name == NULL)
        own.client_name = setting("GPUPOOL_CLIENT_NAME");
    if (own.connect_timeout_ns == 0)
        own.connect_timeout_ns = DEFAULT_CONNECT_TIMEOUT_NS;
    if (own.answer_timeout_ns == 0)
        own.answer_timeout_ns = DEFAULT_ANSWER_TIMEOUT_NS;
    if (own.decay_ns == 0)
        own.decay_ns = DEFAULT_DECAY_NS;
    if (own.alloc_timeout_ns == 0) {
        r = read_alloc_timeout(&own.alloc_timeout_ns);
        if (r < 0)
            return r;
    }
    *ret_options = own;
    return 0;
}

/* The program has the other half of the processors for what it does itself. */
static unsigned default_copy_threads(void) {
    cpu_set_t set;
    unsigned half = sched_getaffinity(0, sizeof set, &set) == 0 ? (unsigned)CPU_COUNT(&set) / 2 : 1;
    return half < 1 ? 1 : half < COPY_THREADS_DEFAULT_MAX ? half : COPY_THREADS_DEFAULT_MAX;
}

int options_read_copying(bool with_threads, struct copy_options *ret_copying) {
    const char *threads = setting("GPUPOOL_STAGING_THREADS"), *chunk = setting("GPUPOOL_STAGING_CHUNK");
    unsigned long number = 0;
    uint64_t bytes = COPY_CHUNK_DEFAULT_BYTES;

    if (threads != NULL) {
        char *end;
        number = strtoul(threads, &end, 10);
        if (*threads < '0' || *threads > '9' || *end != '\0' || number < 1 || number > COPY_THREADS_MAX)
            return error_set(GPUPOOL_E_INVALID, "GPUPOOL_STAGING_THREADS is '%s': not a number from 1 to %u",
                             threads, COPY_THREADS_MAX);
    }
    if (chunk != NULL) {
        if (units_parse_bytes(chunk, &bytes) < 0 || bytes < COPY_CHUNK_MIN_BYTES ||
            bytes > COPY_CHUNK_MAX_BYTES)
            return error_set(GPUPOOL_E_INVALID, "GPUPOOL_STAGING_CHUNK is '%s': not a size from %s to %s",
                             chunk, BYTES_TEXT(COPY_CHUNK_MIN_BYTES), BYTES_TEXT(COPY_CHUNK_MAX_BYTES));
    }
    *ret_copying = (struct copy_options){
        .threads = !with_threads ? 1
                   : number > 0  ? (unsigned)number
                                 : default_copy_threads(),
        .chunk_bytes = bytes,
    };
    return 0;
}

int options_read_arenas(bool *ret_arenas) {
    return read_switch("GPUPOOL_ARENAS", true, ret_arenas);
}
