/* SPDX-License-Identifier: Apache-2.0 */
/* Thrust, cuBLAS and cuFFT, each with memory of its own beside that of the program. */
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cufft.h>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/transform.h>

#include "turns.h"

constexpr int SIDE = 1024, POINTS = 1 << 20;

struct scatter_keys {
    __device__ unsigned operator()(unsigned i) const { return i * 2654435761u; }
};

int main(int argc, char **argv) {
    thrust::device_vector<float> left(SIDE * SIDE), right(SIDE * SIDE), product(SIDE * SIDE);
    thrust::device_vector<cufftComplex> signal(POINTS);
    cublasHandle_t blas;
    cufftHandle fft;
    cudaStream_t stream;
    double total = 0;

    EXPECT(cudaStreamCreate(&stream) == cudaSuccess);
    EXPECT(cublasCreate(&blas) == CUBLAS_STATUS_SUCCESS && cublasSetStream(blas, stream) == CUBLAS_STATUS_SUCCESS);
    EXPECT(cufftPlan1d(&fft, POINTS, CUFFT_C2C, 1) == CUFFT_SUCCESS && cufftSetStream(fft, stream) == CUFFT_SUCCESS);
    thrust::fill(left.begin(), left.end(), 0.5f);
    thrust::fill(right.begin(), right.end(), 0.25f);
    thrust::fill(signal.begin(), signal.end(), cufftComplex{1.0f, 0.5f});
    auto step = [&] {
        const float one = 1.0f, none = 0.0f;
        thrust::device_vector<unsigned> keys(4 << 20); /* made and freed in the step, as is the sort's own */
        thrust::sequence(keys.begin(), keys.end());
        thrust::transform(keys.begin(), keys.end(), keys.begin(), scatter_keys());
        thrust::sort(keys.begin(), keys.end());
        total += keys[keys.size() / 3];
        EXPECT(cublasSgemm(blas, CUBLAS_OP_N, CUBLAS_OP_N, SIDE, SIDE, SIDE, &one, thrust::raw_pointer_cast(left.data()), SIDE,
                          thrust::raw_pointer_cast(right.data()), SIDE, &none, thrust::raw_pointer_cast(product.data()),
                          SIDE) == CUBLAS_STATUS_SUCCESS);
        cufftComplex *points = thrust::raw_pointer_cast(signal.data());
        EXPECT(cufftExecC2C(fft, points, points, CUFFT_FORWARD) == CUFFT_SUCCESS);
        EXPECT(cufftExecC2C(fft, points, points, CUFFT_INVERSE) == CUFFT_SUCCESS);
        EXPECT(cudaStreamSynchronize(stream) == cudaSuccess);
        thrust::fill(signal.begin(), signal.end(), cufftComplex{1.0f, 0.5f});
        total += thrust::reduce(product.begin(), product.end()) / SIDE;
        EXPECT(cudaDeviceSynchronize() == cudaSuccess);
    };
    for (int i = 0; i < 3; i++)
        step();
    int status = converse(
        argc, argv, step, [&] { return 3 * sizeof(float) * SIDE * SIDE + sizeof(cufftComplex) * POINTS; },
        [&] { return total; });
    EXPECT(cufftDestroy(fft) == CUFFT_SUCCESS && cublasDestroy(blas) == CUBLAS_STATUS_SUCCESS);
    return status;
}
