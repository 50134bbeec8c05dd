"""Wide residual networks (Zagoruyko & Komodakis 2016): few layers, many channels, norms before convolutions."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from .layers import Mean, convolution, he_, image, sequence, units


class WideBlock(nn.Module):
    """Norm, ReLU and convolution, twice; where the shape changes the shortcut shares the first norm and ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), convolution(inputs, outputs, 3, stride)
        self.norm2, self.conv2 = nn.BatchNorm2d(outputs), convolution(outputs, outputs)
        changes = (inputs, stride) != (outputs, 1)
        self.shortcut = convolution(inputs, outputs, 1, stride) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        active = relu(self.norm1(x))
        y: Tensor = self.conv2(relu(self.norm2(self.conv1(active))))
        return y + (x if self.shortcut is None else self.shortcut(active))


def wide_resnet(shape: tuple[int, ...], outputs: int, depth: int = 28, width: int = 10) -> nn.Module:
    """WRN-depth-width: three stages of (depth - 4) / 6 blocks with 16, 32 and 64 times `width` channels."""
    channels, _, _ = image(shape, f"wrn{depth}-{width}")
    blocks = units(depth, "a wide ResNet", layers=2, others=4)  # three shortcuts and the stem are the other four
    inputs = 16
    layers: dict[str, nn.Module] = {"stem": convolution(channels, inputs)}
    for i in range(3):
        wide, stride = 16 * width * 2**i, 1 if i == 0 else 2
        first = WideBlock(inputs, wide, stride)
        layers[f"stage{i + 1}"] = nn.Sequential(first, *(WideBlock(wide, wide, 1) for _ in range(blocks - 1)))
        inputs = wide
    layers |= {"norm": nn.BatchNorm2d(inputs), "relu": nn.ReLU(), "pool": Mean(2, 3)}
    return he_(sequence(**layers, head=nn.Linear(inputs, outputs)))
