// SPDX-License-Identifier: Apache-2.0
// A C++ program of libtorch: it trains a small model.
#include <torch/torch.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "turns.h"

int main(int argc, char **argv) {
    if (!torch::cuda::is_available())
        skip("libtorch has no GPU");
    torch::manual_seed(1);
    torch::nn::Sequential model(torch::nn::Linear(1024, 4096), torch::nn::GELU(), torch::nn::Linear(4096, 1024));
    model->to(torch::kCUDA);
    torch::optim::SGD rate(model->parameters(), 1e-2);
    auto inputs = torch::randn({256, 1024}).to(torch::kCUDA);
    double total = 0;

    auto step = [&] {
        rate.zero_grad();
        auto loss = model->forward(inputs).square().mean();
        loss.backward();
        rate.step();
        total += loss.item<double>();
    };
    auto held = [] {
        auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
        return stats.reserved_bytes[0].current; /* 0: of blocks of all sizes */
    };
    for (int i = 0; i < 3; i++)
        step();
    return converse(argc, argv, step, held, [&] { return total; });
}
