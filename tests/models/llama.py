# SPDX-License-Identifier: Apache-2.0
"""A decoder of Llama's kind: RMSNorm, rotary positions, SwiGLU, grouped-query attention. Attention itself is the caller's
(`attend`), because a contiguous cache and a paged one do it differently."""
import torch
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


def rotate(x, cosine, sine):
    """x: …, heads, head width; cosine and sine: …, 1, head width / 2."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)


class Layer(nn.Module):
    def __init__(self, width, heads, kv_heads, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.norm1, self.norm2 = Norm(width), Norm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head_width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cosine, sine, attend):
        """attend(q, k, v): from and to …, heads, head width."""
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (-1, self.head_width))
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        y = attend(rotate(q, cosine, sine), rotate(k, cosine, sine), v)
        x = x + self.out(y.flatten(-2))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


class Llama(nn.Module):
    """As constructed: 1.1 G parameters, about Llama 3.2 1B's shape."""

    def __init__(self, layers=16, width=2048, heads=32, kv_heads=8, hidden=8192, vocabulary=32_000):
        super().__init__()
        self.kv_heads, self.head_width, self.vocabulary = kv_heads, width // heads, vocabulary
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = Norm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, positions, attend, last=None):
        """tokens and positions have the same shape. attend(layer number, q, k, v). last: an index of the places whose
        logits are wanted; all without it."""
        half = self.head_width // 2
        frequencies = 500_000.0 ** (-torch.arange(half, device=tokens.device, dtype=torch.float32) / half)
        angles = (positions.float().unsqueeze(-1) * frequencies).unsqueeze(-2)
        x = self.tokens(tokens)
        cosine, sine = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, cosine, sine, lambda q, k, v, i=i: attend(i, q, k, v))
        if last is not None:
            x = x[last]
        return self.head(self.norm(x))


class Cache:
    """Keys and values of a batch of equal lengths, contiguous: with each token they move to larger tensors."""

    def __init__(self, layers):
        self.keys, self.values = [None] * layers, [None] * layers

    def attend(self, layer, q, k, v):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # batch, heads, length, head width
        if self.keys[layer] is not None:
            k = torch.cat([self.keys[layer], k], dim=2)
            v = torch.cat([self.values[layer], v], dim=2)
        self.keys[layer], self.values[layer] = k, v
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)
        return y.transpose(1, 2)
