# SPDX-License-Identifier: Apache-2.0
"""The programs that the benchmark runs under several allocators. Each is a class: the constructor makes the model, steps(rng)
is a generator that does one step of work before each yield. The generator decides by rng alone, so that the same seed gives
the same steps under every allocator. State between steps lives in the generator, and goes with it. DTYPE is the type of the
weights of PyTorch's programs. A class of another framework names it as FRAMEWORK, and its constructor takes that framework's module.
A step may yield what it computed, where that has the same bits in each process.

Imports of PyTorch and the others are inside functions: the driver reads the list where there is none."""
import pathlib
import sys

import frameworks  # the folder of this file is on the path

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
                best = self.model(images).softmax(dim=1).topk(5)
                del images
                yield best.values


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


class CupySignals:
    """CuPy: signals of 2 Mi to 16 Mi samples that a kernel of the program's own makes: spectrum, filter, inverse transform, sort, and a
    product with a matrix."""
    FRAMEWORK = frameworks.Cupy
    COUNTS, WIDTH, THREADS, TOLD = tuple(mega << 20 for mega in (2, 4, 6, 8, 12, 16)), 2048, 256, 64
    PLANS = 2  # of FFTs are kept, each with its memory: those of one signal
    SOURCE = """extern "C" __global__ void noise(float *out, unsigned count, unsigned seed)
    {
        unsigned i = blockIdx.x * blockDim.x + threadIdx.x, x = i ^ seed;
        x = (x ^ (x >> 16)) * 0x7feb352du;
        x = (x ^ (x >> 15)) * 0x846ca68bu;
        if (i < count)
            out[i] = (float)((x ^ (x >> 16)) >> 8) / 16777216.0f - 0.5f;
    }"""

    def __init__(self, cupy):
        self.cupy = cupy
        cupy.fft.config.set_plan_cache_size(self.PLANS)
        self.kernel = cupy.RawKernel(self.SOURCE, "noise")
        self.matrix = self.noise(self.WIDTH * self.WIDTH, 0).reshape(self.WIDTH, self.WIDTH)

    def noise(self, count, seed):
        cupy = self.cupy
        out = cupy.empty(count, dtype=cupy.float32)
        self.kernel((count // self.THREADS,), (self.THREADS,), (out, cupy.uint32(count), cupy.uint32(seed)))
        return out

    def steps(self, rng):
        cupy = self.cupy
        while True:
            count = rng.choice(self.COUNTS)
            spectrum = cupy.fft.rfft(self.noise(count, rng.getrandbits(32)))
            power = cupy.abs(spectrum)
            spectrum *= power > power.mean()
            signal = cupy.fft.irfft(spectrum, count)
            del spectrum, power
            ranked = cupy.sort(signal)[::count // self.TOLD].copy()
            rows = signal.reshape(-1, self.WIDTH) @ self.matrix
            told = cupy.concatenate([ranked, rows.sum(axis=0)])
            del signal, rows, ranked
            yield told


class JaxTraining:
    """JAX: a small decoder (15 M parameters, single precision) in training, batches of 4 or 8 texts of 256 words. Words are looked up
    by products with matrices, which have the same bits each time."""
    FRAMEWORK = frameworks.Jax
    LAYERS, WIDTH, HEADS, LENGTH, WORDS = 4, 512, 8, 256, 4096
    BATCHES, RATE = (4, 8), 0.1

    def __init__(self, jax):
        import numpy
        self.jax, self.numpy = jax, numpy
        random = numpy.random.default_rng(0)

        def weights(*shape):
            return jax.numpy.asarray(random.standard_normal(shape, dtype=numpy.float32) * shape[-2] ** -0.5)

        width = self.WIDTH
        self.parameters = {"words": weights(self.WORDS, width),
                           "layers": {"asked": weights(self.LAYERS, width, 3 * width), "told": weights(self.LAYERS, width, width),
                                      "up": weights(self.LAYERS, width, 4 * width), "down": weights(self.LAYERS, 4 * width, width)}}
        self.weights_bytes = sum(array.nbytes for array in jax.tree.leaves(self.parameters))
        self.trained = {batch: jax.jit(self.train).lower(self.parameters, self.texts(0, batch)).compile() for batch in self.BATCHES}
        # The weights that a burst begins with stay, beside those of the last step and of this one.
        self.peak_bytes = self.weights_bytes + max(
            found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
            for found in (trained.memory_analysis() for trained in self.trained.values()))

    def texts(self, seed, batch):
        return self.numpy.random.default_rng(seed).integers(self.WORDS, size=(batch, self.LENGTH + 1), dtype=self.numpy.int32)

    def loss(self, parameters, texts):
        jax, numpy = self.jax, self.jax.numpy
        one_hot = jax.nn.one_hot(texts, self.WORDS)
        is_hidden = numpy.triu(numpy.ones((self.LENGTH, self.LENGTH), bool), 1)

        def normal(x):
            return x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)

        def layer(x, weights):
            parts = (normal(x) @ weights["asked"]).reshape(*x.shape[:2], 3, self.HEADS, -1)
            query, key, value = (parts[:, :, part].swapaxes(1, 2) for part in range(3))
            scores = query @ key.swapaxes(2, 3) * query.shape[-1] ** -0.5
            seen = jax.nn.softmax(numpy.where(is_hidden, -1e9, scores)) @ value
            x = x + seen.swapaxes(1, 2).reshape(x.shape) @ weights["told"]
            return x + jax.nn.gelu(normal(x) @ weights["up"]) @ weights["down"], None

        x, _ = jax.lax.scan(layer, one_hot[:, :-1] @ parameters["words"], parameters["layers"])
        guessed = jax.nn.log_softmax(normal(x) @ parameters["words"].T)
        return -(guessed * one_hot[:, 1:]).sum(axis=-1).mean()

    def train(self, parameters, texts):
        loss, gradients = self.jax.value_and_grad(self.loss)(parameters, texts)
        return self.jax.tree.map(lambda weights, gradient: weights - self.RATE * gradient, parameters, gradients), loss

    def steps(self, rng):
        parameters = self.parameters
        while True:
            batch = rng.choice(self.BATCHES)
            parameters, loss = self.trained[batch](parameters, self.texts(rng.getrandbits(32), batch))
            self.jax.block_until_ready((parameters, loss))
            yield loss


class Buffers:
    """Weights of 8 MiB, and steps of up to 8 tensors of up to 8 MiB each: for tests of the benchmark, where there is no model."""
    DTYPE = "float32"
    WEIGHTS, LARGEST, COUNT = 8 << 20, 8 << 20, 8

    def __init__(self, module):
        self.module = module
        self.weights = self.made(self.WEIGHTS)

    def made(self, size):
        return self.module.empty(size, dtype=self.module.uint8, device=DEVICE)

    def steps(self, rng):
        while True:
            tensors = [self.made(rng.randint(1, self.LARGEST)) for _ in range(rng.randint(1, self.COUNT))]
            del tensors
            yield


class CupyBuffers(Buffers):
    """Buffers of CuPy. A step tells the sizes of its arrays."""
    FRAMEWORK = frameworks.Cupy

    def made(self, size):
        return self.module.empty(size, dtype=self.module.uint8)

    def steps(self, rng):
        while True:
            arrays = [self.made(rng.randint(1, self.LARGEST)) for _ in range(rng.randint(1, self.COUNT))]
            told = self.module.asarray([array.size for array in arrays])
            del arrays
            yield told


PROGRAMS = {"resnet_inference": ResnetInference, "resnet_training": ResnetTraining, "llama_generation": LlamaGeneration,
            "unet_sampling": UnetSampling}
PAIRS = {"empty_tensor": EmptyTensor, "no_tensor": NoTensor}
# Those that take turns on one GPU. Another one is a class as above, and a line here.
BURSTS = {"inference": ResnetInference, "training": ResnetTraining, "generation": LlamaGeneration, "sampling": UnetSampling,
          "cupy": CupySignals, "jax": JaxTraining, "buffers": Buffers, "cupy_buffers": CupyBuffers}
MIX = ("inference", "cupy", "jax")  # one of each framework
