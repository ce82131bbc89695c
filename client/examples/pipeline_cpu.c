/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps on a simulated GPU. Its streams copy by themselves, as a GPU's do; it runs no kernels, so the
 * calling thread waits for the stream and computes in its place. That is why each stream of the pipeline has
 * a thread. Times on a simulated GPU show that the program works, not how much time a GPU would gain.
 */
#include <stdlib.h>
#include <time.h>

#include <gpupool/gpupool.h>

#include "pipeline.h"

static struct {
    struct gpupool_client *client;
    uint64_t *marks_ns;
} cpu;

static int cpu_open(struct gpupool_client *client, size_t marks) {
    cpu.client = client;
    cpu.marks_ns = calloc(marks, sizeof *cpu.marks_ns);
    return cpu.marks_ns != NULL ? 0 : fail("no memory for %zu marks", marks);
}

static void cpu_close(void) {
    free(cpu.marks_ns);
    cpu.marks_ns = NULL;
}

static int cpu_copy(void *to, const void *from, uint64_t size_bytes, void *stream) {
    return gpupool_copy(cpu.client, 0, to, from, size_bytes, stream) < 0 ? fail_gpupool("copying") : 0;
}

static int cpu_synchronize(void *stream) {
    return gpupool_stream_synchronize(cpu.client, 0, stream) < 0 ? fail_gpupool("waiting for a stream") : 0;
}

static int cpu_compute(uint32_t *words, uint64_t count, uint32_t loops, void *stream) {
    int r = cpu_synchronize(stream);
    for (uint64_t i = 0; r == 0 && i < count; i++)
        words[i] = pipeline_work(words[i], loops);
    return r;
}

static int cpu_mark(size_t number, void *stream) {
    int r = cpu_synchronize(stream);
    cpu.marks_ns[number] = now_ns();
    return r;
}

static int cpu_elapsed(size_t number, uint64_t *ret_ns) {
    *ret_ns = cpu.marks_ns[number] - cpu.marks_ns[0];
    return 0;
}

const struct gpu_steps steps_on_cpu = {
    .name = "sim",
    .open = cpu_open,
    .close = cpu_close,
    .copy = cpu_copy,
    .compute = cpu_compute,
    .mark = cpu_mark,
    .synchronize = cpu_synchronize,
    .elapsed = cpu_elapsed,
};
