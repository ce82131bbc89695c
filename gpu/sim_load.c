/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads the simulated GPU, libgpupool-sim.so.0, when the first caller wants it. Programs on real GPUs never
 * do.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include "gpu/gpu.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int (*sim_open)(const struct gpu_sim_options *options, const struct gpu **ret_gpu);
static char reason[512];

/* The library lies beside the one that wants it, where the loader looks, or where it was installed. */
static void load(void) {
    void *library = dlopen(GPUPOOL_SIM_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        library = dlopen(GPUPOOL_SIM_PATH, RTLD_NOW | RTLD_LOCAL);
    if (library != NULL)
        *(void **)&sim_open = dlsym(library, "gpu_sim_open");
    if (sim_open == NULL) {
        const char *error = dlerror();
        snprintf(reason, sizeof reason, "%s",
                 error != NULL ? error : GPUPOOL_SIM_LIBRARY " is not of this version");
    }
}

int gpu_sim(const struct gpu_sim_options *options, const struct gpu **ret_gpu) {
    pthread_once(&once, load);
    return sim_open == NULL ? GPU_ERROR_INSUFFICIENT_DRIVER : sim_open(options, ret_gpu);
}

const char *gpu_sim_missing(void) {
    return reason[0] == '\0' ? NULL : reason;
}
