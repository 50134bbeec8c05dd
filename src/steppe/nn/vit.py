"""Vision transformers: an image cut into patches, each a token that attends to all (Dosovitskiy et al. 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layers import Mean, image, sequence


class Patches(nn.Module):
    """Every patch of the image as a token: one linear map for all of them, written as a convolution."""

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, patch, stride=patch)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.conv(x)
        return tokens.flatten(2).mT


class WavePositions(nn.Module):
    """Adds to each token fixed waves of its column and its row (Beyer et al. 2022)."""

    positions: Tensor

    def __init__(self, rows: int, columns: int, width: int) -> None:
        super().__init__()
        waves = 10_000 ** -torch.linspace(0, 1, width // 4, dtype=torch.float64)
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        x, y = x.reshape(-1, 1) * waves, y.reshape(-1, 1) * waves
        positions = torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).float()
        self.register_buffer("positions", positions, persistent=False)  # known from the shape: no need to store them

    def forward(self, x: Tensor) -> Tensor:
        return x + self.positions


class LearnedPositions(nn.Module):
    """Puts a learned token, which will carry the class, before the others and adds a learned position to each."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + tokens, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.token.expand(len(x), -1, -1), x], dim=1) + self.positions


class First(nn.Module):
    """The first token alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class Attention(nn.Module):
    """Every token becomes a mean of all tokens' values, weighted by how its query fits their keys.

    Written out, because torch's fused attention has no second derivative and curvature needs one.
    """

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
    """Attention between tokens, then a layer of GELUs on each token, both added to what came in."""

    def __init__(self, width: int, heads: int, head_width: int, hidden: int, bias: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, head_width, bias)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = sequence(linear1=nn.Linear(width, hidden), gelu=nn.GELU(), linear2=nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        refined: Tensor = self.mlp(self.norm2(x))
        return x + refined


def _grid(shape: tuple[int, ...], patch: int, model: str) -> tuple[int, int, int]:
    channels, height, width = image(shape, model, at_least=patch)
    if height % patch or width % patch:
        fitting = [p for p in range(1, min(height, width) + 1) if height % p == 0 and width % p == 0]
        raise ValueError(
            f"{model} cuts images into patches of {patch} x {patch} pixels, and {height} x {width} does not divide "
            f"into them. Set patch to one of {', '.join(map(str, fitting))}."
        )
    return channels, height // patch, width // patch


def simple_vit(
    shape: tuple[int, ...],
    outputs: int,
    patch: int = 4,  # this and what follows: as Andriushchenko et al. 2023 trained it on CIFAR-10 (released code)
    width: int = 512,
    depth: int = 6,
    heads: int = 16,
    head_width: int = 64,
    hidden: int = 1024,
) -> nn.Module:
    """SimpleViT (Beyer et al. 2022, in the form of vit-pytorch): fixed positions, and the mean of all tokens.

    Its weights start as torch draws them, as in vit-pytorch.
    """
    channels, rows, columns = _grid(shape, patch, "simple-vit")
    if width % 4 or width < 8:
        raise ValueError(f"simple-vit needs a width that is a multiple of 4, at least 8, for its waves; got {width}")
    blocks = {f"block{i + 1}": TransformerBlock(width, heads, head_width, hidden, False) for i in range(depth)}
    return sequence(
        patches=Patches(channels, width, patch),
        positions=WavePositions(rows, columns, width),
        **blocks,
        pool=Mean(1),
        norm=nn.LayerNorm(width),
        head=nn.Linear(width, outputs),
    )


def vit_small(
    shape: tuple[int, ...],
    outputs: int,
    patch: int = 4,  # for 32 x 32 images; ViT-S/16 on 224 x 224 has patch = 16
    width: int = 384,
    depth: int = 12,
    heads: int = 6,
) -> nn.Module:
    """ViT-Small (Touvron et al. 2021, Table 1): a class token, learned positions, 12 blocks of width 384, 6 heads."""
    channels, rows, columns = _grid(shape, patch, "vit-small")
    if width % heads:
        raise ValueError(f"vit-small divides its width among its heads: {width} does not divide by {heads}")
    blocks = {f"block{i + 1}": TransformerBlock(width, heads, width // heads, 4 * width, True) for i in range(depth)}
    model = sequence(
        patches=Patches(channels, width, patch),
        positions=LearnedPositions(rows * columns, width),
        **blocks,
        norm=nn.LayerNorm(width),
        pool=First(),
        head=nn.Linear(width, outputs),
    )
    return _as_released_(model)


@torch.no_grad()
def _as_released_(model: nn.Module) -> nn.Module:
    """First weights as in the code of Dosovitskiy et al.: Xavier's, LeCun's for patches, and a head of zeros."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
        elif name == "head":
            nn.init.zeros_(module.weight)
        elif isinstance(module, nn.Linear):  # queries, keys and values are three maps in one matrix
            for part in module.weight.chunk(3 if name.endswith("queries_keys_values") else 1):
                nn.init.xavier_uniform_(part)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
    return model
