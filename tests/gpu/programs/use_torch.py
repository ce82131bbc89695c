# SPDX-License-Identifier: Apache-2.0
"""PyTorch. use_torch.py graph: a CUDA graph of a training step. conv: convolutions by cuDNN, forward and backward. compiled: a model
by torch.compile(mode="reduce-overhead")."""
import sys

import turns

turns.need("torch")
import torch  # noqa: E402

if not torch.cuda.is_available():
    turns.skip("PyTorch has no GPU")
torch.manual_seed(1)
torch.use_deterministic_algorithms(True, warn_only=True)
torch.backends.cudnn.benchmark = False
generator = torch.Generator().manual_seed(2)
sums = [0.0]


def graph():
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
    rate = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(256, 1024, generator=generator).cuda()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            rate.zero_grad(set_to_none=True)
            model(inputs).square().mean().backward()
            rate.step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    rate.zero_grad(set_to_none=True)
    with torch.cuda.graph(captured):
        loss = model(inputs).square().mean()
        loss.backward()
        rate.step()

    def step():
        captured.replay()
        sums[0] += loss.item()
    step.kept = (captured, model, rate, inputs, loss)
    return step


def conv():
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 64, 7, stride=2), torch.nn.ReLU(), torch.nn.Conv2d(64, 128, 3), torch.nn.ReLU(),
                                torch.nn.Conv2d(128, 128, 3), torch.nn.AvgPool2d(8)).cuda()
    inputs = torch.randn(32, 3, 224, 224, generator=generator).cuda()

    def step():
        model.zero_grad(set_to_none=True)
        loss = model(inputs).square().mean()
        loss.backward()
        sums[0] += loss.item() + sum(float(value.grad.abs().sum()) for value in model.parameters()) * 1e-3
    return step


def compiled():
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)).cuda()
    inputs = torch.randn(128, 512, generator=generator).cuda()
    try:
        fast = torch.compile(model, mode="reduce-overhead")
        with torch.no_grad():
            fast(inputs)
    except Exception as error:
        turns.skip(f"torch.compile: {type(error).__name__}: {error}")

    def step():
        with torch.no_grad():
            torch.compiler.cudagraph_mark_step_begin()
            sums[0] += fast(inputs).double().sum().item()
    return step


step = {"graph": graph, "conv": conv, "compiled": compiled}[sys.argv[1]]()
for _ in range(3):
    step()
turns.converse(step, torch.cuda.memory_reserved, lambda: sums)
