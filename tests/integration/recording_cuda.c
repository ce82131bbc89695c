/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA driver that only says, in the file that GPUPOOL_TEST_CUDA_RECORD names, where the process that loads
 * it would have looked for MPS. It has none of the driver's functions: CUDA cannot be used with it. */
#include <stdio.h>
#include <stdlib.h>

__attribute__((constructor)) static void record(void) {
    const char *path = getenv("GPUPOOL_TEST_CUDA_RECORD"), *pipes = getenv("CUDA_MPS_PIPE_DIRECTORY");
    FILE *file = path != NULL ? fopen(path, "we") : NULL;

    if (file == NULL)
        return;
    fputs(pipes != NULL ? pipes : "the default place", file);
    fclose(file);
}
