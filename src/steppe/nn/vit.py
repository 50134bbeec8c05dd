"""Vision transformers (Dosovitskiy et al. 2021): the patches of an image are tokens of a transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import Mean, image, sequence
from .registry import register


class Patches(nn.Module):
    """Embeds every patch of the image as a token, by a convolution with the size of a patch as stride."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.conv(x)
        return tokens.flatten(2).mT


class SinusoidalPositions(nn.Module):
    """Adds a fixed sinusoidal embedding of its column and its row to each token (Beyer et al. 2022)."""

    positions: Tensor

    def __init__(self, rows: int, columns: int, width: int) -> None:
        super().__init__()
        frequencies = 10_000 ** -torch.linspace(0, 1, width // 4, dtype=torch.float64)
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        x, y = x.reshape(-1, 1) * frequencies, y.reshape(-1, 1) * frequencies
        positions = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).float()
        self.register_buffer("positions", positions, persistent=False)  # the shape determines them

    def forward(self, x: Tensor) -> Tensor:
        return x + self.positions


class LearnedPositions(nn.Module):
    """Prepends a learned class token and adds a learned position to each token."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions


class ClassToken(nn.Module):
    """Selects the class token, which is the first."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class Attention(nn.Module):
    """Multi-head self-attention in plain operations: torch's fused attention has no second derivative."""

    def __init__(self, width: int, heads: int, head_width: int, bias: bool) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.queries_keys_values = nn.Linear(width, 3 * heads * head_width, bias)
        self.out = nn.Linear(heads * head_width, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        split = self.queries_keys_values(x).unflatten(-1, (3, self.heads, self.head_width))
        queries, keys, values = split.permute(2, 0, 3, 1, 4)  # each (images, heads, tokens, head_width)
        weights = (queries @ keys.mT * self.head_width**-0.5).softmax(-1)
        mixed: Tensor = self.out((weights @ values).transpose(1, 2).flatten(2))
        return mixed


class TransformerBlock(nn.Module):
    """Attention and a two-layer perceptron with GELUs, both with a norm before and a residual connection."""

    def __init__(self, width: int, heads: int, head_width: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, head_width, bias)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = sequence(linear1=nn.Linear(width, hidden), gelu=nn.GELU(), linear2=nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = self.mlp(self.norm2(x))
        return x + y


def _grid(shape: tuple[int, ...], patch: int, model: str) -> tuple[int, int, int]:
    channels, height, width = image(shape, model, at_least=patch)
    if height % patch or width % patch:
        valid = [p for p in range(1, min(height, width) + 1) if height % p == 0 and width % p == 0]
        raise ValueError(
            f"{model} splits images into patches of {patch} x {patch} pixels, and {height} x {width} does not divide "
            f"into them. Set patch to one of {', '.join(map(str, valid))}."
        )
    return channels, height // patch, width // patch


@register(
    "simple-vit",
    "SimpleViT: fixed positions, mean of the tokens, patches of 4 x 4",
    paper="Beyer et al. 2022, as Andriushchenko et al. 2023 trained it",
)
def simple_vit(
    shape: tuple[int, ...],
    outputs: int,
    patch: int = 4,  # all defaults: released code of Andriushchenko et al. 2023, CIFAR-10
    width: int = 512,
    depth: int = 6,
    heads: int = 16,
    head_width: int = 64,
    hidden: int = 1024,
) -> nn.Module:
    """SimpleViT (Beyer et al. 2022, as in vit-pytorch): fixed positions, mean of all tokens, torch's initialisation.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    patch
        The side of a patch in pixels.
    width, depth
        The width of a token and the number of blocks.
    heads, head_width
        The number of attention heads and the width of each.
    hidden
        The hidden units of the perceptrons.

    """
    channels, rows, columns = _grid(shape, patch, "simple-vit")
    if width % 4 or width < 8:
        raise ValueError(f"simple-vit needs a width that is a multiple of 4 and at least 8; got {width}")
    blocks = {f"block{i + 1}": TransformerBlock(width, heads, head_width, hidden, False) for i in range(depth)}
    return sequence(
        patches=Patches(channels, width, patch),
        positions=SinusoidalPositions(rows, columns, width),
        **blocks,
        pool=Mean(1),
        norm=nn.LayerNorm(width),
        head=nn.Linear(width, outputs),
    )


@register(
    "vit-small",
    "ViT-Small: class token, learned positions, patches of 4 x 4",
    paper="Dosovitskiy et al. 2021, Touvron et al. 2021",
    published="with `patch=16`, 224 x 224 and 1000 classes 22,050,664 (timm)",
)
def vit_small(
    shape: tuple[int, ...],
    outputs: int,
    patch: int = 4,  # for 32 x 32 images; ViT-S/16 on 224 x 224 has patch = 16
    width: int = 384,
    depth: int = 12,
    heads: int = 6,
) -> nn.Module:
    """ViT-Small (Touvron et al. 2021, Table 1), with a class token and learned positions.

    Parameters
    ----------
    shape, outputs
        The shape of a row and the number of outputs.
    patch
        The side of a patch in pixels.
    width, depth, heads
        The width of a token, the number of blocks and the number of attention heads.

    """
    channels, rows, columns = _grid(shape, patch, "vit-small")
    if width % heads:
        raise ValueError(f"vit-small needs a width that its heads divide: {heads} heads do not divide {width}")
    blocks = {f"block{i + 1}": TransformerBlock(width, heads, width // heads, 4 * width, True) for i in range(depth)}
    model = sequence(
        patches=Patches(channels, width, patch),
        positions=LearnedPositions(rows * columns, width),
        **blocks,
        norm=nn.LayerNorm(width),
        pool=ClassToken(),
        head=nn.Linear(width, outputs),
    )
    return _initialise_(model)


@torch.no_grad()
def _initialise_(model: nn.Module) -> nn.Module:
    """Initialises as the code of Dosovitskiy et al.: Xavier's method, LeCun's for patches, and a head of zeros."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
        elif name == "head":
            nn.init.zeros_(module.weight)
        elif isinstance(module, nn.Linear):  # queries, keys and values are three matrices in one
            for part in module.weight.chunk(3 if name.endswith("queries_keys_values") else 1):
                nn.init.xavier_uniform_(part)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model
