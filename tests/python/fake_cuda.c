/* SPDX-License-Identifier: Apache-2.0 */
/* A driver without devices, of which every call succeeds and does nothing. With it test_cuda_core.py makes
 * real objects of cuda.core where there is no GPU. */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuGetProcAddress_v2(const char *name, void **ret_function, int version, uint64_t flags,
                               int *ret_status);

static int do_nothing(void) {
    return 0;
}

/* Streams and buffers of cuda.core want a context to be current. */
static int get_context(void **ret_context) {
    static char context;
    *ret_context = &context;
    return 0;
}

int cuGetProcAddress_v2(const char *name, void **ret_function, int version, uint64_t flags, int *ret_status) {
    (void)version;
    (void)flags;
    if (strcmp(name, "cuGetProcAddress") == 0)
        *ret_function = (void *)cuGetProcAddress_v2;
    else
        *ret_function = strcmp(name, "cuCtxGetCurrent") == 0 ? (void *)get_context : (void *)do_nothing;
    if (ret_status != NULL)
        *ret_status = 0;
    return 0;
}
