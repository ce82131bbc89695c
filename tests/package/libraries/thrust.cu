/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator below Thrust's vectors and algorithms. Without a GPU the allocator alone is called, and the
 * rest is compiled. The argument "gpu" runs it. */
#include <gpupool/thrust.hpp>

#include "tests/package/cplusplus.h"

#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <cstring>

template <typename T> using vector = thrust::device_vector<T, gpupool::thrust_allocator<T>>;

static void try_vectors() {
    cudaStream_t stream;

    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "stream");
    {
        vector<int> values(1000000);
        thrust::sequence(values.begin(), values.end());
        gpupool::thrust_allocator<char> temporary(stream);
        check(cudaDeviceSynchronize() == cudaSuccess, "synchronize");
        thrust::sort(thrust::cuda::par(temporary).on(stream), values.begin(), values.end(),
                     thrust::greater<int>());
        check(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
        gpupool_buffer buffer;
        check(gpupool_lookup(thrust::raw_pointer_cast(values.data()), nullptr, &buffer) == 0,
              "memory of the pool");
        check(values[0] == 999999 && values[999999] == 0, "sorted");
        vector<int> copy = values;
        values.resize(2000000);
        check(copy[1] == 999998, "copied");
    }
    check(cudaStreamSynchronize(stream) == cudaSuccess, "synchronize");
    gpupool_client *client;
    check(gpupool_default(&client) == 0 && gpupool_trim(client, nullptr) == 0, "trim");
    check(cudaStreamDestroy(stream) == cudaSuccess, "stream");
}

static void try_it(gpupool_client *client) {
    gpupool::thrust_allocator<int> ints(nullptr, 0, client);
    gpupool::thrust_allocator<double> doubles(ints);
    gpupool_buffer buffer;

    check(gpupool::thrust_allocator<int>(doubles) == ints, "copies are equal");
    auto memory = doubles.allocate(1000);
    check(gpupool_lookup(memory.get(), nullptr, &buffer) == 0 && buffer.size_bytes >= 8000,
          "memory of the pool");
    doubles.deallocate(memory, 1000);
    check(gpupool_lookup(memory.get(), nullptr, &buffer) < 0, "which was given back");
    for (size_t count : {size_t(1) << 50, SIZE_MAX / 2}) {
        try {
            doubles.allocate(count);
            check(false, "there is no such memory");
        } catch (const std::bad_alloc &) {
        }
    }
}

int main(int argc, char **argv) {
    if (argc == 2 && std::strcmp(argv[1], "gpu") == 0)
        try_vectors();
    return run("thrust", try_it);
}
