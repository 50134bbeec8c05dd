"""Models with their data and losses, of many kinds, that measures are tested on."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from problems import each_cross_entropy
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from steppe.measures.objective import Objective, supervised

FLOAT = torch.float64
SIZES = (5, 3, 4)  # of the batches: uneven, so that a mean over batches is not the mean over rows


@dataclass
class Case:
    """A model, its data in uneven batches, and how its loss is computed from them."""

    model: nn.Module
    batches: list[Any]
    loss_fn: Callable[[Any, Any], Tensor]
    forward: Callable[[nn.Module, Any], tuple[Any, Any]] = supervised
    rows_alone: bool = True  # the output of a row does not depend on the others of its batch

    def objective(self, **options: Any) -> Objective:
        return Objective(self.model, self.loss_fn, self.batches, forward=self.forward, **options)

    def moved(self, by: list[Tensor] | None = None) -> tuple[float, list[Tensor]]:
        """The mean loss and its gradient by plain autograd on a copy in eval mode whose weights are overwritten."""
        together = [torch.utils._pytree.tree_map(lambda *parts: torch.cat(parts), *self.batches)]
        parts = zip([sum(SIZES)], together, strict=True) if self.rows_alone else zip(SIZES, self.batches, strict=True)
        loss, grads = 0.0, [torch.zeros_like(p) for p in self.model.parameters() if p.requires_grad]
        for rows, batch in parts:
            copy, share = deepcopy(self.model).eval(), rows / sum(SIZES)
            trained = [p for p in copy.parameters() if p.requires_grad]
            with torch.no_grad():
                for p, d in zip(trained, by or [], strict=by is not None):
                    p.add_(d)
            here = self.loss_fn(*self.forward(copy, batch)).mean()
            loss += share * float(here.detach())
            for total, g in zip(grads, torch.autograd.grad(here, trained), strict=True):
                total.add_(g, alpha=share)
        return loss, grads


def numbers(*shape: int) -> list[Tensor]:
    return [torch.randn(n, *shape, dtype=FLOAT) for n in SIZES]


def classes(k: int, *shape: int) -> list[Tensor]:
    return [torch.randint(0, k, (n, *shape)) for n in SIZES]


def pairs(x: list[Tensor], y: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x, y, strict=True))


def regression() -> Case:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
    return Case(model, pairs(numbers(4), numbers(2)), mse_loss)


def classification() -> Case:
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3))
    return Case(model, pairs(numbers(4), classes(3)), cross_entropy)


def one_loss_a_row() -> Case:
    return replace(classification(), loss_fn=each_cross_entropy)


def convolutions() -> Case:
    """BatchNorm with statistics of its own, and dropout, in training mode."""
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 3)
    )
    model[1].running_mean += torch.randn(3)
    model[1].running_var += torch.rand(3)
    return Case(model, pairs(numbers(2, 4, 4), classes(3)), cross_entropy)


class Tagger(nn.Module):
    """Embeds tokens and says something about each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(7, 4), nn.LSTM(4, 5, 2, batch_first=True), nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0])


def token_loss(out: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(out.flatten(0, 1), y.flatten())


def lstm() -> Case:
    return Case(Tagger(), pairs(classes(7, 6), classes(3, 6)), token_loss)


def transformer() -> Case:
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
    return Case(nn.Sequential(nn.Embedding(7, 4), layer, nn.Linear(4, 3)), lstm().batches, token_loss)


class Tied(nn.Module):
    """One matrix both reads and writes tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.middle, self.decoder = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder(self.middle(self.embedding(tokens)).tanh())


def tied() -> Case:
    return Case(Tied(), pairs(classes(7, 6), classes(7, 6)), token_loss)


def frozen() -> Case:
    case = classification()
    case.model[0].requires_grad_(False)
    return case


def weight_normalised() -> Case:
    model = nn.Sequential(weight_norm(nn.Linear(4, 6)), nn.Tanh(), weight_norm(nn.Linear(6, 3)))
    return Case(model, pairs(numbers(4), classes(3)), cross_entropy)


def spectrally_normalised() -> Case:
    """Every forward pass in training mode improves the vectors that it keeps in buffers."""
    model = nn.Sequential(spectral_norm(nn.Linear(4, 6)), nn.Tanh(), nn.Linear(6, 3))
    return Case(model, pairs(numbers(4), classes(3)), cross_entropy)


class Checkpointed(nn.Module):
    """Computes its middle again in the backward pass, with whatever weights it then has."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.last = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 6), nn.Tanh()), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        middle: Tensor = checkpoint(self.block, self.first(x), use_reentrant=False)
        return self.last(middle)


def checkpointed() -> Case:
    return Case(Checkpointed(), pairs(numbers(4), classes(3)), cross_entropy)


class Centring(nn.Module):
    """Follows the mean of its inputs in a buffer, in eval mode too, and subtracts what it has after that."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(4))
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen.mul_(0.5).add_(0.5 * x.mean(0))
        return self.layer(x - self.seen)


def writes_a_buffer() -> Case:
    return Case(Centring(), pairs(numbers(4), classes(3)), cross_entropy, rows_alone=False)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head((self.embedding(ids) * mask[..., None]).sum(1))}


def masked(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    return model(ids=batch["ids"], mask=batch["mask"])["logits"], batch["labels"]


def dictionaries() -> Case:
    parts = zip(classes(7, 6), classes(2, 6), classes(3), strict=True)
    batches = [{"ids": i, "mask": m.double(), "labels": y} for i, m, y in parts]
    return Case(Masked(), batches, cross_entropy, masked)


MAKERS: list[Callable[[], Case]] = [
    regression, classification, one_loss_a_row, convolutions, lstm, transformer, tied, frozen, weight_normalised,
    spectrally_normalised, checkpointed, writes_a_buffer, dictionaries,
]  # fmt: skip


def make(maker: Callable[[], Case], seed: int = 0) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        case = maker()
        case.model.double()
        return case
