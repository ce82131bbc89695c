# SPDX-License-Identifier: Apache-2.0
"""A diffusion model's UNet: residual blocks with time embeddings, self- and cross-attention, skip connections."""
import math

import torch
from torch import nn
from torch.nn import functional


def time_embedding(steps, width):
    frequencies = torch.exp(-math.log(10_000) * torch.arange(width // 2, device=steps.device) / (width // 2))
    angles = steps.float()[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, time_width):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time_width, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        y = self.first(functional.silu(self.norm1(x)))
        y = y + self.time(functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.second(functional.silu(self.norm2(y)))


class Attention(nn.Module):
    def __init__(self, width, context_width, heads):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(context_width, 2 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x, context):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for y in (self.q(x), *self.kv(context).chunk(2, dim=-1)))
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class Transformer(nn.Module):
    def __init__(self, width, context_width, heads=8):
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own, self.cross = Attention(width, width, heads), Attention(width, context_width, heads)
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, image, context):
        x = self.norm(image).flatten(2).transpose(1, 2)
        y = self.norms[0](x)
        x = x + self.own(y, y)
        x = x + self.cross(self.norms[1](x), context)
        y, gate = self.up(self.norms[2](x)).chunk(2, dim=-1)
        x = x + self.down(y * functional.gelu(gate))
        return image + x.transpose(1, 2).unflatten(2, image.shape[2:])


class Stage(nn.Module):
    """A residual block, and attention behind it where the resolution is low enough."""

    def __init__(self, inputs, outputs, time_width, context_width, attends):
        super().__init__()
        self.residual = Residual(inputs, outputs, time_width)
        self.attention = Transformer(outputs, context_width) if attends else None

    def forward(self, x, time, context):
        x = self.residual(x, time)
        return x if self.attention is None else self.attention(x, context)


class UNet(nn.Module):
    """As constructed: 345 M parameters. Images are latents of 4 channels, an eighth as wide as the picture; their sides are
    multiples of 8."""

    def __init__(self, widths=(256, 512, 768, 768), blocks=2, context_width=768):
        super().__init__()
        self.width, time_width, last = widths[0], 4 * widths[0], len(widths) - 1
        self.time = nn.Sequential(nn.Linear(self.width, time_width), nn.SiLU(), nn.Linear(time_width, time_width))
        self.first = nn.Conv2d(4, self.width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        now, skips = self.width, [self.width]

        def stage(inputs, outputs, attends):
            return Stage(inputs, outputs, time_width, context_width, attends)

        for level, width in enumerate(widths):
            for _ in range(blocks):
                self.down.append(stage(now, width, level < last))
                now = width
                skips.append(now)
            if level < last:
                self.down.append(nn.Conv2d(now, now, 3, 2, padding=1))
                skips.append(now)
        self.middle = nn.ModuleList([stage(now, now, True), stage(now, now, False)])
        for level, width in reversed(list(enumerate(widths))):
            for i in range(blocks + 1):
                self.up.append(stage(now + skips.pop(), width, level < last))
                now = width
            if level > 0:
                self.up.append(nn.Conv2d(now, now, 3, padding=1))
        self.norm, self.last = nn.GroupNorm(32, now), nn.Conv2d(now, 4, 3, padding=1)

    def forward(self, image, steps, context):
        time = self.time(time_embedding(steps, self.width).to(image.dtype))
        x = self.first(image)
        skips = [x]
        for part in self.down:
            x = part(x, time, context) if isinstance(part, Stage) else part(x)
            skips.append(x)
        for part in self.middle:
            x = part(x, time, context)
        for part in self.up:
            if isinstance(part, Stage):
                x = part(torch.cat([x, skips.pop()], dim=1), time, context)
            else:
                x = part(functional.interpolate(x, scale_factor=2.0))
        return self.last(functional.silu(self.norm(x)))


def denoise(model, latents, context, noise, less):
    """A step of sampling, from one share of noise (1 is all) to a smaller one, with guidance: each picture is computed with
    its context and without."""
    contexts = torch.cat([context, torch.zeros_like(context)])
    time = torch.full((2 * latents.shape[0],), int(1000 * noise), device=latents.device)
    guided, free = model(torch.cat([latents, latents]), time, contexts).chunk(2)
    return latents - (noise - less) * (free + 5.0 * (guided - free))
