#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Records what real PyTorch programs allocate, as traces that tests and benchmarks replay. Needs PyTorch with CUDA and a
GPU; run by hand, the traces are kept in the tree.

    record.py [--out DIRECTORY] [PROGRAM…]        default: $OUT/traces, or ./traces; all programs

Each program runs in a process of its own, so that PyTorch's own peak is its alone, with PyTorch's default allocator
settings. What it computes is of no interest (random weights, random data); what it allocates is what such models do.
"""
import argparse
import datetime
import os
import random
import subprocess
import sys
import time
import traceback

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import trace_file  # noqa: E402

SECONDS_MAX = 20  # a program's loop ends then
SECONDS_PROCESS_MAX = 150
ALLOCATIONS_MAX = 45_000  # …or then, so that a trace stays small
FILE_BYTES_MAX = 300_000


class Budget:
    """Says when a program has shown enough."""

    def __init__(self, torch):
        self.torch = torch
        self.end = time.monotonic() + SECONDS_MAX

    def left(self):
        allocations = self.torch.cuda.memory_stats().get("allocation.all.allocated", 0)
        return time.monotonic() < self.end and allocations < ALLOCATIONS_MAX


# --- the transformer: a decoder of about 125 M parameters, as GPT-2 small ---


def make_transformer(torch, layers=12, width=768, heads=12, vocabulary=32_768, positions=2048):
    nn, functional = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)
            self.out = nn.Linear(width, width)

        def forward(self, x, cache):
            batch, length, _ = x.shape
            q, k, v = self.qkv(x).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            if cache is not None:  # keys and values of what came before; grows with each token
                if "k" in cache:
                    k = torch.cat([cache["k"], k], dim=2)
                    v = torch.cat([cache["v"], v], dim=2)
                cache["k"], cache["v"] = k, v
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
            return self.out(y.transpose(1, 2).reshape(batch, length, width))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = Attention()
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width),
                                     nn.Dropout(0.1))

        def forward(self, x, cache=None):
            x = x + self.attention(self.norm1(x), cache)
            return x + self.mlp(self.norm2(x))

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.positions = nn.Embedding(positions, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, tokens, caches=None, offset=0):
            place = torch.arange(offset, offset + tokens.shape[1], device=tokens.device)
            x = self.tokens(tokens) + self.positions(place)
            for i, block in enumerate(self.blocks):
                x = block(x, None if caches is None else caches[i])
            if caches is not None:
                x = x[:, -1:]
            return self.head(self.norm(x))

    model = Transformer()
    model.vocabulary, model.layers = vocabulary, layers
    return model


def transformer_train(torch, rng):
    """A decoder of 12 layers in training: AdamW, bfloat16 autocast, batch 2 to 12, 64 to 1024 tokens, gradient
    clipping, an evaluation every 8 steps."""
    functional = torch.nn.functional
    model = make_transformer(torch).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    budget, steps = Budget(torch), 0

    def loss_of(batch, length):
        tokens = torch.randint(model.vocabulary, (batch, length + 1), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logits = model(tokens[:, :-1])
            return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    while budget.left():
        loss = loss_of(rng.randint(2, 12), rng.randint(64, 1024))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        if steps % 8 == 0:
            model.eval()
            with torch.no_grad():
                loss_of(16, 1024).item()
            model.train()
    return f"{steps} steps"


def transformer_infer(torch, rng):
    """The same decoder generating in half precision: up to 8 requests at a time, each with a batch of 1 to 8, a prompt
    of 16 to 1500 tokens and a cache of keys and values that grows with each token and goes when the request ends."""
    model = make_transformer(torch).half().cuda().eval()
    budget, running, done = Budget(torch), [], 0

    @torch.no_grad()
    def advance(request):
        logits = model(request["tokens"], request["caches"], request["offset"])
        request["offset"] += request["tokens"].shape[1]
        request["tokens"] = logits[:, -1].argmax(dim=-1, keepdim=True)
        request["left"] -= 1

    while budget.left():
        if len(running) < 8 and (not running or rng.random() < 0.4):
            tokens = torch.randint(model.vocabulary, (rng.randint(1, 8), rng.randint(16, 1500)), device="cuda")
            running.append({"tokens": tokens, "caches": [{} for _ in range(model.layers)], "offset": 0,
                            "left": rng.randint(4, 60)})
        for request in running:
            advance(request)
        done += sum(request["left"] <= 0 for request in running)
        running = [request for request in running if request["left"] > 0]
    return f"{done} requests"


# --- the convolutional net: ResNet-50 ---


def make_resnet50(torch, classes=1000):
    nn = torch.nn

    def convolution(inputs, outputs, size, stride=1):
        return [nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False), nn.BatchNorm2d(outputs)]

    class Bottleneck(nn.Module):
        def __init__(self, inputs, width, stride):
            super().__init__()
            outputs = 4 * width
            self.body = nn.Sequential(*convolution(inputs, width, 1), nn.ReLU(inplace=True),
                                      *convolution(width, width, 3, stride), nn.ReLU(inplace=True),
                                      *convolution(width, outputs, 1))
            self.shortcut = nn.Identity()
            if stride != 1 or inputs != outputs:
                self.shortcut = nn.Sequential(*convolution(inputs, outputs, 1, stride))
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            return self.relu(self.body(x) + self.shortcut(x))

    layers, inputs = [*convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            layers.append(Bottleneck(inputs, width, stride if i == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def convnet_train(torch, rng):
    """ResNet-50 in training: AdamW, single precision, batch 8 to 40, images of 128 to 256 pixels; the next batch is
    copied from pinned memory on a stream of its own."""
    functional = torch.nn.functional
    model = make_resnet50(torch).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    copies = torch.cuda.Stream()
    budget, steps = Budget(torch), 0

    def fetch():
        batch, pixels = rng.randint(8, 40), rng.randrange(128, 257, 32)
        images = torch.rand(batch, 3, pixels, pixels)
        labels = torch.randint(1000, (batch,))
        try:
            images, labels = images.pin_memory(), labels.pin_memory()
        except RuntimeError:
            pass  # pageable then: the allocations on the GPU are the same
        with torch.cuda.stream(copies):
            return images.to("cuda", non_blocking=True), labels.to("cuda", non_blocking=True)

    following = fetch()
    while budget.left():
        torch.cuda.current_stream().wait_stream(copies)
        images, labels = following
        images.record_stream(torch.cuda.current_stream())
        labels.record_stream(torch.cuda.current_stream())
        following = fetch()
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        if steps % 10 == 0:
            loss.item()
    return f"{steps} steps"


def convnet_infer(torch, rng):
    """ResNet-50 classifying in half precision: batches of 1 to 64 images of 96 to 384 pixels, as requests come."""
    model = make_resnet50(torch).half().cuda().eval()
    budget, steps = Budget(torch), 0

    with torch.no_grad():
        while budget.left():
            pixels = rng.randrange(96, 385, 16)
            images = torch.rand(rng.randint(1, 64), 3, pixels, pixels, dtype=torch.float16, device="cuda")
            model(images).softmax(dim=1).topk(5)
            steps += 1
            if steps % 10 == 0:
                torch.cuda.synchronize()
    return f"{steps} batches"


PROGRAMS = {function.__name__: function for function in
            (transformer_train, transformer_infer, convnet_train, convnet_infer)}


def start_history(torch):
    memory = torch.cuda.memory
    try:
        memory._record_memory_history("all", context=None, stacks="python", max_entries=4_000_000)  # no stacks
    except TypeError:  # another PyTorch's arguments
        memory._record_memory_history(max_entries=4_000_000)


def record(name, directory):
    """Runs one program in this process and writes its trace."""
    import torch

    torch.cuda.init()
    rng = random.Random(name)
    torch.manual_seed(1)
    start_history(torch)
    start = time.monotonic()
    note = "ended early"
    try:
        note = PROGRAMS[name](torch, rng)
    except Exception:  # what it did until here is a trace too
        traceback.print_exc()
    torch.cuda.synchronize()
    seconds = time.monotonic() - start
    stats = torch.cuda.memory_stats()
    traces = torch.cuda.memory._snapshot()["device_traces"]
    trace = trace_file.convert(traces[torch.cuda.current_device()])
    facts = {
        "program": name,
        "about": " ".join(PROGRAMS[name].__doc__.split()) + f" {note}.",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "gpu": torch.cuda.get_device_name(),
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "allocations": trace.allocations,
        "streams": len(trace.streams),
        "peak_live_bytes": trace.peak_live_bytes,
        "torch_peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "torch_peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "torch_peak_requested_bytes": stats.get("requested_bytes.all.peak", 0),
        "torch_peak_active_bytes": stats.get("active_bytes.all.peak", 0),
    }
    if stats.get("num_ooms", 0) or stats.get("num_alloc_retries", 0):
        facts["torch_retries"] = stats.get("num_alloc_retries", 0)
    path = os.path.join(directory, f"{name}.trace.gz")
    file_bytes = trace_file.write(path, facts, trace.lines)
    ratio = facts["torch_peak_reserved_bytes"] / max(trace.peak_live_bytes, 1)
    print(f"{name}: {note} in {seconds:.1f} s, {trace.allocations} allocations on {len(trace.streams)} streams, "
          f"peak live {trace.peak_live_bytes / 2**20:.1f} MiB, PyTorch's peak reserved "
          f"{facts['torch_peak_reserved_bytes'] / 2**20:.1f} MiB, ratio {ratio:.4f}, {file_bytes} bytes")
    if trace.peak_segment_bytes != facts["torch_peak_reserved_bytes"]:
        print(f"{name}: NOTE: the history's segments add up to {trace.peak_segment_bytes} bytes at most, which is "
              "not what PyTorch says it reserved: the history is not whole")
    if trace.unknown_frees or trace.lost_frees:
        print(f"{name}: NOTE: the history has {trace.unknown_frees} frees without an allocation, and lacks "
              f"{trace.lost_frees}")
    if file_bytes > FILE_BYTES_MAX:
        print(f"{name}: NOTE: the file is larger than {FILE_BYTES_MAX} bytes")


def main():
    parser = argparse.ArgumentParser(description="Records allocation traces of PyTorch programs.")
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "traces"))
    parser.add_argument("--here", action="store_true", help="in this process (one program)")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    arguments = parser.parse_args()
    unknown = set(arguments.programs) - set(PROGRAMS)
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    os.makedirs(arguments.out, exist_ok=True)
    if arguments.here:
        for name in arguments.programs:
            record(name, arguments.out)
        return 0
    environment = {key: value for key, value in os.environ.items()
                   if key not in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")}
    failed = 0
    for name in arguments.programs or PROGRAMS:
        command = [sys.executable, os.path.abspath(__file__), "--here", "--out", arguments.out, name]
        try:
            status = subprocess.run(command, env=environment, timeout=SECONDS_PROCESS_MAX).returncode
        except subprocess.TimeoutExpired:
            status = "too slow"
        if status != 0:
            print(f"{name}: FAILED ({status})")
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
