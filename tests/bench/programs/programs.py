# SPDX-License-Identifier: Apache-2.0
"""The programs that the benchmark runs under several allocators. Each is a class: the constructor makes the model, steps(rng)
is a generator that does one step of work before each yield. The generator decides by rng alone, so that the same seed gives
the same steps under every allocator. State between steps lives in the generator, and goes with it. DTYPE is the type of the
weights.

Imports of PyTorch are inside functions: the driver reads the list where there is none."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

DEVICE = "cuda"


class ResnetInference:
    """ResNet-50, half precision: batches of 1 to 64 images of 96 to 384 pixels."""
    STEPS_MAX = 160
    DTYPE = "float16"

    def __init__(self, torch):
        from models.resnet import resnet50
        self.torch, self.model = torch, resnet50().half().to(DEVICE).eval()

    def steps(self, rng):
        torch = self.torch
        with torch.no_grad():
            while True:
                pixels = rng.randrange(96, 385, 16)
                images = torch.rand(rng.randint(1, 64), 3, pixels, pixels, dtype=torch.float16, device=DEVICE)
                self.model(images).softmax(dim=1).topk(5)
                del images
                yield


class ResnetTraining:
    """ResNet-50 in training, single precision, AdamW: batches of 8 to 64 images of 224 pixels."""
    STEPS_MAX = 80
    DTYPE = "float32"

    def __init__(self, torch):
        from models.resnet import resnet50
        self.torch, self.model = torch, resnet50().to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def steps(self, rng):
        torch = self.torch
        while True:
            batch = rng.randint(8, 64)
            images = torch.rand(batch, 3, 224, 224, device=DEVICE)
            labels = torch.randint(1000, (batch,), device=DEVICE)
            torch.nn.functional.cross_entropy(self.model(images), labels).backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            del images, labels
            yield


class LlamaGeneration:
    """A decoder of Llama's kind (1.1 G parameters, bfloat16) that generates: batches of 1 to 16 prompts of 32 to 1,024
    tokens, 16 to 48 tokens each. A step is a prompt, or a token for the whole batch."""
    STEPS_MAX = 200
    DTYPE = "bfloat16"

    def __init__(self, torch):
        from models import llama
        self.torch, self.llama, self.model = torch, llama, llama.Llama().bfloat16().to(DEVICE).eval()

    def steps(self, rng):
        torch = self.torch
        with torch.no_grad():
            while True:
                length = rng.randint(32, 1024)
                tokens = torch.randint(self.model.vocabulary, (rng.randint(1, 16), length), device=DEVICE)
                cache = self.llama.Cache(len(self.model.layers))
                positions = torch.arange(length, device=DEVICE).expand_as(tokens)
                for _ in range(rng.randint(16, 48)):
                    logits = self.model(tokens, positions, cache.attend, last=(slice(None), slice(-1, None)))
                    tokens = logits.argmax(dim=-1)
                    positions = positions[:, -1:] + 1
                    del logits
                    yield


class UnetSampling:
    """A diffusion UNet (345 M parameters, half precision) that samples: 1 to 4 pictures of 256 to 1,024 pixels a side at a time,
    4 steps each, with guidance. A step is one of denoising."""
    STEPS_MAX = 60
    DTYPE = "float16"

    def __init__(self, torch):
        from models import unet
        self.torch, self.unet, self.model = torch, unet, unet.UNet().half().to(DEVICE).eval()

    def steps(self, rng):
        torch, count = self.torch, 4
        with torch.no_grad():
            while True:
                batch, height, width = rng.randint(1, 4), rng.randrange(32, 129, 8), rng.randrange(32, 129, 8)
                latents = torch.randn(batch, 4, height, width, dtype=torch.float16, device=DEVICE)
                context = torch.randn(batch, 77, 768, dtype=torch.float16, device=DEVICE)
                for i in range(count):
                    latents = self.unet.denoise(self.model, latents, context, 1 - i / count, 1 - (i + 1) / count)
                    yield


class EmptyTensor:
    """torch.empty() of 4 KiB and its end, PAIRS times a step."""
    STEPS_MAX = 200
    PAIRS = 2000
    BYTES = 4096

    def __init__(self, torch):
        self.torch = torch

    def steps(self, rng):
        torch, size = self.torch, self.BYTES
        while True:
            for _ in range(self.PAIRS):
                torch.empty(size, dtype=torch.uint8, device=DEVICE)
            yield


class NoTensor(EmptyTensor):
    """torch.empty() of 0 bytes, for which PyTorch's own allocator is not called: a tensor without memory."""
    BYTES = 0


class Buffers:
    """Weights of 8 MiB, and steps of up to 8 tensors of up to 8 MiB each: for tests of the benchmark, where there is no model."""
    DTYPE = "float32"
    WEIGHTS, LARGEST, COUNT = 8 << 20, 8 << 20, 8

    def __init__(self, torch):
        self.torch = torch
        self.weights = torch.empty(self.WEIGHTS, dtype=torch.uint8, device=DEVICE)

    def steps(self, rng):
        while True:
            tensors = [self.torch.empty(rng.randint(1, self.LARGEST), dtype=self.torch.uint8, device=DEVICE)
                       for _ in range(rng.randint(1, self.COUNT))]
            del tensors
            yield


PROGRAMS = {"resnet_inference": ResnetInference, "resnet_training": ResnetTraining, "llama_generation": LlamaGeneration,
            "unet_sampling": UnetSampling}
PAIRS = {"empty_tensor": EmptyTensor, "no_tensor": NoTensor}
# Those that take turns on one GPU. Another one is a class as above, and a line here.
BURSTS = {"inference": ResnetInference, "training": ResnetTraining, "generation": LlamaGeneration, "sampling": UnetSampling,
          "buffers": Buffers}
