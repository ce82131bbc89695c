/* SPDX-License-Identifier: Apache-2.0 */
/* Forks before CUDA is initialised: parent and children each compute on the GPU. Then a child that is killed in the middle. */
#include <cuda_runtime.h>

#include <csignal>
#include <cstdint>
#include <sys/wait.h>
#include <unistd.h>

#include "turns.h"

#define OK(call) EXPECT((call) == cudaSuccess)

constexpr unsigned COUNT = 8u << 20;

__global__ void fill(unsigned *words, unsigned count, unsigned seed) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        words[i] = (i + seed) * 2654435761u;
}

static uint64_t compute(unsigned seed) {
    unsigned *words, host[4096];
    uint64_t sum = 0;

    for (unsigned round = 0; round < 10; round++) {
        OK(cudaMalloc(reinterpret_cast<void **>(&words), COUNT * sizeof *words));
        fill<<<COUNT / 256, 256>>>(words, COUNT, seed + round);
        OK(cudaMemcpy(host, words + round * 4096, sizeof host, cudaMemcpyDeviceToHost));
        for (unsigned value : host)
            sum = sum * 31 + value;
        OK(cudaFree(words));
    }
    return sum >> 16;
}

/* A child that writes its sum into a pipe. With is_endless it writes that it works, and goes on until it is killed. */
static pid_t begin(unsigned seed, bool is_endless, int *ret_from) {
    int ends[2];

    EXPECT(pipe(ends) == 0);
    pid_t child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
        alarm(60);
        uint64_t sum = compute(seed);
        EXPECT(write(ends[1], &sum, sizeof sum) == sizeof sum);
        while (is_endless)
            compute(seed);
        std::exit(0);
    }
    close(ends[1]);
    *ret_from = ends[0];
    return child;
}

int main() {
    uint64_t total = 0, sum;
    pid_t children[3];
    int from[3], status;

    alarm(60);
    for (unsigned i = 0; i < 3; i++)
        children[i] = begin(100 * i, i == 2, &from[i]);
    total += compute(7);
    for (unsigned i = 0; i < 3; i++) {
        EXPECT(read(from[i], &sum, sizeof sum) == sizeof sum);
        total += sum >> 8;
        if (i == 2)
            EXPECT(kill(children[i], SIGKILL) == 0);
        EXPECT(waitpid(children[i], &status, 0) == children[i]);
        EXPECT(i == 2 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    total += compute(8);
    std::printf("sum %llu\n", static_cast<unsigned long long>(total));
    return 0;
}
