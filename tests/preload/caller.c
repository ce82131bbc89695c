/* SPDX-License-Identifier: Apache-2.0 */
/* A library that a program loads when it runs, and that brings a CUDA runtime along, as a Python module does.
 */
#include "tests/preload/fake_cudart.h"

#define EXPORT __attribute__((visibility("default")))

EXPORT int caller_malloc(void **memory, size_t size_bytes);
EXPORT int caller_free(void *memory);
EXPORT int caller_last_error(void);
EXPORT int caller_begin_capture(size_t stream);
EXPORT int caller_begin_capture_to_graph(size_t stream);
EXPORT int caller_begin_capture_per_thread(void);
EXPORT int caller_end_capture(size_t stream);
EXPORT int caller_end_capture_per_thread(void);
EXPORT int caller_destroy(size_t stream);
EXPORT void caller_counts(struct driver_counts *ret_counts);
EXPORT int caller_runtime(void);

int caller_malloc(void **memory, size_t size_bytes) {
    return cudaMalloc(memory, size_bytes);
}

int caller_free(void *memory) {
    return cudaFree(memory);
}

int caller_last_error(void) {
    return cudaGetLastError();
}

int caller_begin_capture(size_t stream) {
    return cudaStreamBeginCapture((void *)stream, 0); /* NOLINT(performance-no-int-to-ptr) */
}

int caller_begin_capture_to_graph(size_t stream) {
    return cudaStreamBeginCaptureToGraph((void *)stream, NULL, NULL, NULL, 0, 0); /* NOLINT */
}

int caller_begin_capture_per_thread(void) {
    return cudaStreamBeginCapture_ptsz(NULL, 0);
}

int caller_end_capture(size_t stream) {
    void *graph;
    return cudaStreamEndCapture((void *)stream, &graph); /* NOLINT(performance-no-int-to-ptr) */
}

int caller_end_capture_per_thread(void) {
    void *graph;
    return cudaStreamEndCapture_ptsz(NULL, &graph);
}

int caller_destroy(size_t stream) {
    return cudaStreamDestroy((void *)stream); /* NOLINT(performance-no-int-to-ptr) */
}

void caller_counts(struct driver_counts *ret_counts) {
    *ret_counts = fake_driver_counts();
}

int caller_runtime(void) {
    return fake_runtime();
}
