"""The squared norm of every row's gradient in one layer, from the layer's input and the gradient at its output.

Each formula is exact. A row's gradient of a matrix is a sum of outer products over positions; its norm follows from
that sum, or from the inner products of the factors (Goodfellow 2015, Li et al. 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# Numbers held at once where every row needs a matrix: a few MiB fit a CPU's cache, a GPU is fast on large batches.
HELD = 2**21, 2**26  # on a CPU and elsewhere
# A convolution with one group per row reaches about two thirds of the speed of a matrix product.
CONVOLUTION = 1.5


def squares(x: Tensor) -> Tensor:
    """The sum of squares of every row."""
    norms: Tensor = torch.linalg.vector_norm(x.flatten(1), dim=1)
    return norms.square()


def wide(x: Tensor) -> Tensor:
    """Convert half precision to single precision, because squares would overflow."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def features(layer: Any, x: Tensor) -> Tensor:
    """(rows, features, positions) from a tensor whose last dimension, or those of a layer norm, are the features."""
    x = x.flatten(x.ndim - len(getattr(layer, "normalized_shape", (1,))))
    return (x.unsqueeze(1) if x.ndim == 2 else x.flatten(1, -2)).mT


def channels(layer: Any, x: Tensor) -> Tensor:
    """(rows, channels, positions) from a tensor whose second dimension is the channels."""
    return x.unsqueeze(2) if x.ndim == 2 else x.flatten(2)


def of_matrices(a: Tensor, g: Tensor) -> Tensor:
    """The squared norm of sum_t g_t a_t^T for every row of (rows, features, positions t)."""
    (n, p, t), d = a.shape, g.shape[1]
    if t == 1:
        return squares(a) * squares(g)
    if t * (p + d) < p * d:
        return of_few_positions(a, g)
    held = split(n, p * d, a.device)
    return torch.cat([squares(y @ x.mT) for x, y in zip(torch.split(a, held), torch.split(g, held), strict=True)])


def of_few_positions(a: Tensor, g: Tensor) -> Tensor:
    """The same from inner products between positions, sum_ts (a_t . a_s)(g_t . g_s)."""
    held = split(len(a), a.shape[2] ** 2, a.device)
    sums = [
        torch.linalg.vecdot((x.mT @ x).flatten(1), (y.mT @ y).flatten(1))
        for x, y in zip(torch.split(a, held), torch.split(g, held), strict=True)
    ]
    return torch.cat(sums).clamp_min(0)  # rounding can make the sum negative


def split(n: int, each: int, device: torch.device) -> int:
    """How many of n rows to process at once if each of them holds `each` numbers."""
    return max(1, min(n, HELD[device.type != "cpu"] // max(1, each)))


def of_convolution(layer: Any, a: Tensor, g: Tensor) -> Tensor:
    """Convolutions of any dimension, groups, stride, dilation and padding, transposed or not."""
    padding = layer.padding
    if layer.transposed:  # it shares its weights with the convolution from its output to its input
        a, g = functional.pad(g, _both_sides(padding)), a
        for i, (size, step, apart) in enumerate(_windows(layer)):  # that convolution does not reach output_padding
            a = a.narrow(2 + i, 0, (g.shape[2 + i] - 1) * step + (size - 1) * apart + 1)
        padding = (0,) * len(padding)
    elif layer.padding_mode != "zeros" or isinstance(padding, str):
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        a = functional.pad(a, layer._reversed_padding_repeated_twice, mode=mode)
        padding = (0,) * len(layer.kernel_size)
    p, d, t = layer.weight[0].numel(), len(layer.weight) // layer.groups, g[0, 0].numel()
    if t * (p + d) < CONVOLUTION * p * d or a.device.type != "cpu":
        one = _of_patches
        held = split(len(a), layer.groups * max(p * t, min(t * t, p * d)), a.device)
    else:
        one = _of_folded
        held = split(len(a), layer.weight.numel(), a.device)
    pairs = zip(torch.split(a, held), torch.split(g, held), strict=True)
    return torch.cat([one(layer, x, y, padding) for x, y in pairs])


def _of_folded(layer: Any, a: Tensor, g: Tensor, padding: tuple[int, ...]) -> Tensor:
    """The weight gradient of one convolution with the rows as groups holds every row's gradient."""
    n = len(a)
    shape = (n * len(layer.weight), *layer.weight.shape[1:])
    _, grads, _ = torch.ops.aten.convolution_backward(
        g.reshape(1, -1, *g.shape[2:]),
        a.reshape(1, -1, *a.shape[2:]),
        g.new_empty(()).expand(shape),  # the gradient does not depend on the weights
        None, layer.stride, padding, layer.dilation, False, [0] * len(padding), n * layer.groups, [False, True, False],
    )  # fmt: skip
    return squares(grads.reshape(n, -1))


def _of_patches(layer: Any, a: Tensor, g: Tensor, padding: tuple[int, ...]) -> Tensor:
    """A convolution as a matrix on patches: fast for few patches, and on GPUs."""
    n, k = len(a), len(padding)
    a = functional.pad(a, _both_sides(padding))
    a = a.reshape(n, layer.groups, -1, *a.shape[2:])
    for i, (size, step, apart) in enumerate(_windows(layer)):
        a = a.unfold(3 + i, (size - 1) * apart + 1, step)[..., ::apart]
    positions, kernel = range(3, 3 + k), range(3 + k, 3 + 2 * k)
    patches = a.permute(0, 1, 2, *kernel, *positions).reshape(n * layer.groups, -1, g[0, 0].numel())
    norms = of_few_positions if a.device.type == "cpu" else of_matrices
    return norms(patches, g.reshape(n * layer.groups, -1, patches.shape[2])).view(n, -1).sum(1)


def _both_sides(padding: tuple[int, ...]) -> list[int]:
    return [p for both in reversed(padding) for p in (both, both)]


def _windows(layer: Any) -> Iterator[tuple[int, int, int]]:
    """Kernel size, stride and dilation of every dimension."""
    return zip(layer.kernel_size, layer.stride, layer.dilation, strict=True)


def of_embedding(layer: Any, tokens: Tensor, g: Tensor) -> Tensor:
    """A token that occurs several times in a row has the sum of their gradients."""
    n, tokens, g = len(tokens), tokens.flatten(), g.flatten(0, -2)
    if layer.padding_idx is not None:
        g = g * (tokens != layer.padding_idx).unsqueeze(1)
    row = torch.arange(n, device=g.device).repeat_interleave(len(tokens) // n)
    places, place = torch.unique(row * layer.num_embeddings + tokens, return_inverse=True)
    sums = g.new_zeros(len(places), g.shape[1]).index_add_(0, place, g)
    return g.new_zeros(n).index_add_(0, places // layer.num_embeddings, squares(sums))


@dataclass(frozen=True)
class LayerRule:
    """The per-row squared gradient norms of one kind of layer."""

    spread: Callable[[Any, Tensor], Tensor]  # (layer, output) to (rows, entries of the bias, positions)
    weight: Callable[[Any, Tensor, Tensor], Tensor]  # (layer, input, gradient at the output) to one norm per row

    def bias(self, layer: nn.Module, g: Tensor) -> Tensor:
        entries = self.spread(layer, g)
        return squares(entries if entries.shape[2] == 1 else entries.sum(2))


def _normalisation(spread: Callable[[Any, Tensor], Tensor], normalised: Callable[[Any, Tensor], Tensor]) -> LayerRule:
    """The rule of a layer whose weight multiplies a normalised input."""

    def weight(layer: Any, a: Tensor, g: Tensor) -> Tensor:
        return squares(torch.linalg.vecdot(spread(layer, g), spread(layer, normalised(layer, a))))

    return LayerRule(spread, weight)


def _normalised_instances(layer: Any, x: Tensor) -> Tensor:
    if layer.training or layer.running_mean is None:
        return functional.instance_norm(x, eps=layer.eps)
    return functional.instance_norm(x, layer.running_mean, layer.running_var, use_input_stats=False, eps=layer.eps)


LAYER_RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: LayerRule(features, lambda layer, a, g: of_matrices(features(layer, a), features(layer, g))),
    nn.Embedding: LayerRule(features, of_embedding),
    nn.LayerNorm: _normalisation(features, lambda m, x: functional.layer_norm(x, m.normalized_shape, eps=m.eps)),
    nn.RMSNorm: _normalisation(features, lambda m, x: functional.rms_norm(x, m.normalized_shape, eps=m.eps)),
    nn.GroupNorm: _normalisation(channels, lambda m, x: functional.group_norm(x, m.num_groups, eps=m.eps)),
    **dict.fromkeys(
        (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        LayerRule(channels, of_convolution),
    ),
    **dict.fromkeys(
        (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
        _normalisation(channels, lambda m, x: functional.batch_norm(x, m.running_mean, m.running_var, eps=m.eps)),
    ),
    **dict.fromkeys(
        (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _normalisation(channels, _normalised_instances)
    ),
}
