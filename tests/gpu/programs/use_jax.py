# SPDX-License-Identifier: Apache-2.0
"""JAX: training of a small transformer. The allocator is that of the variables XLA_PYTHON_CLIENT_... With the argument "eager" a
step also makes and frees arrays outside the compiled function."""
import os
import sys

import turns

turns.need("jax", "jaxlib")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import jax  # noqa: E402
import numpy  # noqa: E402

np = jax.numpy
WORDS, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 512, 512, 4, 8, 128, 32

try:
    GPU = jax.devices("gpu")[0]
except RuntimeError as error:
    turns.skip(f"JAX has no GPU: {error}")

random = numpy.random.default_rng(1)


def weight(*shape):
    return np.asarray(random.standard_normal(shape, dtype=numpy.float32) * shape[0] ** -0.5)


parameters = {"words": weight(WORDS, WIDTH),
              "layers": [{"qkv": weight(WIDTH, 3 * WIDTH), "out": weight(WIDTH, WIDTH), "up": weight(WIDTH, 4 * WIDTH),
                          "down": weight(4 * WIDTH, WIDTH)} for _ in range(LAYERS)]}
texts = [np.asarray(random.integers(0, WORDS, (BATCH, LENGTH + 1), dtype=numpy.int32)) for _ in range(4)]
HIDDEN = np.triu(np.ones((LENGTH, LENGTH), bool), 1)


def normal(x):
    return x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def loss_of(weights, text):
    one_hot = jax.nn.one_hot(text, WORDS)
    x = one_hot[:, :-1] @ weights["words"]
    for layer in weights["layers"]:
        query, key, value = (part.reshape(BATCH, LENGTH, HEADS, -1).swapaxes(1, 2)
                             for part in np.split(normal(x) @ layer["qkv"], 3, axis=-1))
        scores = query @ key.swapaxes(-1, -2) * (WIDTH // HEADS) ** -0.5
        seen = jax.nn.softmax(np.where(HIDDEN, -1e9, scores)) @ value
        x = x + seen.swapaxes(1, 2).reshape(BATCH, LENGTH, WIDTH) @ layer["out"]
        x = x + jax.nn.gelu(normal(x) @ layer["up"]) @ layer["down"]
    guessed = jax.nn.log_softmax(normal(x) @ weights["words"].T)
    return -(guessed * one_hot[:, 1:]).sum(axis=-1).mean()


@jax.jit
def train(weights, text):
    loss, gradients = jax.value_and_grad(loss_of)(weights, text)
    return jax.tree.map(lambda value, gradient: value - 1e-2 * gradient, weights, gradients), loss


losses = []


def step():
    global parameters
    parameters, loss = train(parameters, texts[len(losses) % len(texts)])
    if "eager" in sys.argv:  # arrays of the program beside the compiled function
        loss = loss + sum((value * value).sum() for value in jax.tree.leaves(parameters)) * 1e-9
    losses.append(float(loss))


def held():
    """Bytes that the allocator has taken. The platform allocator does not count: it has taken the arrays."""
    try:
        stats = GPU.memory_stats() or {}
    except Exception:
        stats = {}
    return stats.get("pool_bytes") or sum(array.nbytes for array in jax.live_arrays())


for _ in range(3):
    step()
turns.converse(step, held, lambda: [losses[-1], sum(losses)], steps=20)
