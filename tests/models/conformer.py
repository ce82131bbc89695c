# SPDX-License-Identifier: Apache-2.0
"""A conformer for speech: a spectrum, convolutions that shorten it, blocks of attention and convolution."""
import torch
from torch import nn
from torch.nn import functional

SAMPLES_PER_SECOND, HOP, WINDOW = 16_000, 160, 400


def spectrum(waves, bands):
    """batch, samples → batch, frames, bands."""
    window = torch.hann_window(WINDOW, device=waves.device)
    power = torch.stft(waves, 512, HOP, WINDOW, window, return_complex=True).abs().square()
    rows = torch.nn.functional.interpolate(power.transpose(1, 2), size=bands, mode="linear")
    return (rows + 1e-6).log()


class FeedForward(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1),
                         nn.Linear(4 * width, width), nn.Dropout(0.1))


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).flatten(-2))


class Convolution(nn.Module):
    def __init__(self, width, size=31):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.spread, self.join = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.along = nn.Conv1d(width, width, size, padding=size // 2, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)

    def forward(self, x):
        y = functional.glu(self.spread(self.norm(x).transpose(1, 2)), dim=1)
        return self.join(functional.silu(self.batch_norm(self.along(y)))).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.first, self.second = FeedForward(width), FeedForward(width)
        self.attention, self.convolution = Attention(width, heads), Convolution(width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x, mask):
        x = x + 0.5 * self.first(x)
        x = x + self.attention(x, mask)
        x = x + self.convolution(x)
        return self.norm(x + 0.5 * self.second(x))


class Conformer(nn.Module):
    """As constructed: 57 M parameters."""

    def __init__(self, layers=12, width=448, heads=8, bands=80, symbols=1024):
        super().__init__()
        self.bands, self.symbols = bands, symbols
        self.shorten = nn.Sequential(nn.Conv2d(1, 64, 3, 2, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, 2, padding=1),
                                     nn.ReLU())
        self.enter = nn.Linear(64 * (bands // 4), width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, symbols)

    def forward(self, waves, samples):
        """waves: batch, samples of the longest. samples: those of each. → logits, frames of each."""
        x = self.shorten(spectrum(waves, self.bands)[:, None])
        x = self.enter(x.transpose(1, 2).flatten(2))
        frames = ((samples // HOP) // 4).clamp(min=1, max=x.shape[1])
        places = torch.arange(x.shape[1], device=x.device)
        mask = (places < frames[:, None])[:, None, None]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x), frames
