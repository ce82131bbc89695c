/* SPDX-License-Identifier: Apache-2.0 */
/* The hooks as their libraries call them: by addresses that went through text (ONNX Runtime) or integers
 * (CuPy), with failures of CuPy's hook as exceptions. */
#include <gpupool/hooks.h>

#include "cplusplus.h"

#include <cstdint>
#include <vector>

typedef void *(*ort_alloc)(size_t size);
typedef void (*ort_free)(void *memory);
typedef void (*ort_empty_cache)();
typedef void *(*cupy_malloc)(void *param, size_t size, int device);
typedef void (*cupy_free)(void *param, void *memory, int device);

template <typename Function> static Function by_text(Function function) {
    std::string text = std::to_string(reinterpret_cast<uintptr_t>(function));
    return reinterpret_cast<Function>(static_cast<uintptr_t>(std::stoull(text)));
}

static std::string thrown_by(cupy_malloc allocate, void *stream, size_t size, int device) {
    try {
        allocate(stream, size, device);
    } catch (const std::runtime_error &error) {
        return error.what();
    }
    throw std::runtime_error("nothing was thrown");
}

static void try_onnxruntime(gpupool_client *client, void *stream) {
    ort_alloc allocate = by_text(gpupool_onnxruntime_alloc);
    ort_free release = by_text(gpupool_onnxruntime_free);
    ort_empty_cache empty_cache = by_text(gpupool_onnxruntime_empty_cache);

    for (void *named : {GPUPOOL_NO_STREAM, stream, static_cast<void *>(nullptr)}) {
        std::vector<void *> tensors;
        check(gpupool_onnxruntime_use_stream(0, named) == 0, "use a stream");
        for (size_t size = 1; size < 10000000; size *= 3) {
            tensors.push_back(allocate(size));
            check(tensors.back() != nullptr && reinterpret_cast<uintptr_t>(tensors.back()) % 512 == 0,
                  "tensor");
            check(gpupool_set(client, 0, tensors.back(), 1, size, stream) == 0, "set");
        }
        check(gpupool_stream_synchronize(client, 0, stream) == 0, "synchronize");
        for (void *tensor : tensors)
            release(tensor);
        empty_cache();
    }
    check(allocate(size_t(1) << 50) == nullptr, "no room is NULL");
    check(gpupool_error_number() == GPUPOOL_E_TOO_LARGE, "and the reason is told");
}

static void try_cupy(gpupool_client *client, void *stream) {
    cupy_malloc allocate = gpupool_cupy_malloc;
    cupy_free release = gpupool_cupy_free;

    for (void *param : {GPUPOOL_NO_STREAM, stream, static_cast<void *>(nullptr)}) {
        void *array = allocate(param, 100000, 0);
        check(gpupool_set(client, 0, array, 1, 100000, param == stream ? stream : nullptr) == 0, "set");
        release(param, array, 0);
        check(thrown_by(allocate, param, size_t(1) << 50, 0).find("Ti") != std::string::npos ||
                  thrown_by(allocate, param, size_t(1) << 50, 0).find("Pi") != std::string::npos,
              "the text has the size");
        check(thrown_by(allocate, param, 512, 63).find("63") != std::string::npos, "the text has the device");
    }
    check(thrown_by(allocate, GPUPOOL_PER_THREAD, 512, 0).find("per-thread") != std::string::npos,
          "the per-thread stream is refused");
    void *pinned = gpupool_cupy_malloc_pinned(4096);
    check(pinned != nullptr, "pinned memory");
    static_cast<char *>(pinned)[4095] = 1;
    gpupool_cupy_free_pinned(pinned);
}

/* The hooks use the default client. */
static void try_it(gpupool_client *) {
    gpupool_client *client = nullptr;
    void *stream = nullptr;

    check(gpupool_default(&client) == 0, "default client");
    check(gpupool_stream_create(client, 0, &stream) == 0, "stream");
    try_onnxruntime(client, stream);
    try_cupy(client, stream);
    check(gpupool_stream_synchronize(client, 0, nullptr) == 0, "synchronize");
    check(gpupool_stream_destroy(client, 0, stream) == 0, "stream");
    gpupool_close(client);
}

int main() {
    return run("hooks", try_it);
}
