/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures (capture.h), and streams that end.
 */
#include "client/preload/capture.h"
#include "client/preload/driver.h"
#include "client/preload/lending.h"
#include "client/preload/ordered.h"

int gpupool_driver_cuStreamBeginCapture_v2(void *stream, int mode) {
    DRIVER_OR_FAIL(cuStreamBeginCapture_v2);
    if (lend_is_inside())
        return driver_real.cuStreamBeginCapture_v2(stream, mode);
    capture_before_begin();
    return capture_after_begin(stream, driver_real.cuStreamBeginCapture_v2(stream, mode));
}

int gpupool_driver_cuStreamBeginCapture_v2_ptsz(void *stream, int mode) {
    DRIVER_OR_FAIL(cuStreamBeginCapture_v2_ptsz);
    if (lend_is_inside())
        return driver_real.cuStreamBeginCapture_v2_ptsz(stream, mode);
    capture_before_begin();
    return capture_after_begin(driver_stream_ptsz(stream),
                               driver_real.cuStreamBeginCapture_v2_ptsz(stream, mode));
}

int gpupool_driver_cuStreamBeginCaptureToGraph(void *stream, void *graph, const void *nodes, const void *data,
                                               size_t count, int mode) {
    DRIVER_OR_FAIL(cuStreamBeginCaptureToGraph);
    if (lend_is_inside())
        return driver_real.cuStreamBeginCaptureToGraph(stream, graph, nodes, data, count, mode);
    capture_before_begin();
    return capture_after_begin(
        stream, driver_real.cuStreamBeginCaptureToGraph(stream, graph, nodes, data, count, mode));
}

int gpupool_driver_cuStreamBeginCaptureToGraph_ptsz(void *stream, void *graph, const void *nodes,
                                                    const void *data, size_t count, int mode) {
    DRIVER_OR_FAIL(cuStreamBeginCaptureToGraph_ptsz);
    if (lend_is_inside())
        return driver_real.cuStreamBeginCaptureToGraph_ptsz(stream, graph, nodes, data, count, mode);
    capture_before_begin();
    return capture_after_begin(driver_stream_ptsz(stream), driver_real.cuStreamBeginCaptureToGraph_ptsz(
                                                               stream, graph, nodes, data, count, mode));
}

int gpupool_driver_cuStreamEndCapture(void *stream, void **graph) {
    DRIVER_OR_FAIL(cuStreamEndCapture);
    return capture_after_end(stream, driver_real.cuStreamEndCapture(stream, graph));
}

int gpupool_driver_cuStreamEndCapture_ptsz(void *stream, void **graph) {
    DRIVER_OR_FAIL(cuStreamEndCapture_ptsz);
    return capture_after_end(driver_stream_ptsz(stream), driver_real.cuStreamEndCapture_ptsz(stream, graph));
}

int gpupool_driver_cuStreamDestroy_v2(void *stream) {
    DRIVER_OR_FAIL(cuStreamDestroy_v2);
    int r = ordered_destroy(stream);
    if (r == NOT_OURS)
        r = driver_real.cuStreamDestroy_v2(stream);
    if (r == 0)
        capture_forget(stream);
    return r;
}
