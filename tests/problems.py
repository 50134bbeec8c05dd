"""Small float64 problems: networks on random data, and quadratic bowls whose Hessian is known."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

torch.set_num_threads(1)  # on problems this small, threads only wait for one another

Losses = Callable[[Tensor, Tensor], Tensor]  # of the model's output and the targets: one loss a row


def each_cross_entropy(out: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(out, y, reduction="none")


def each_output(out: Tensor, y: Tensor) -> Tensor:
    """For models that return their losses themselves."""
    return out


@dataclass
class Problem:
    """A model, the batches it sees one after the other, and its loss on every row."""

    model: nn.Module
    batches: list[tuple[Tensor, Tensor]]
    losses: Losses = field(default=each_cross_entropy)

    def fresh_model(self) -> nn.Module:
        return deepcopy(self.model)

    @property
    def start(self) -> Tensor:
        return flat_weights(self.model)


def flat_weights(model: nn.Module) -> Tensor:
    """All parameters, in the order of the model, as one vector."""
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def flat_parts(model: nn.Module) -> dict[str, slice]:
    """Where each parameter lies in the flat vector."""
    parts, start = {}, 0
    for name, p in model.named_parameters():
        parts[name] = slice(start, start + p.numel())
        start += p.numel()
    return parts


def mlp_problem(steps: int = 5, rows: int = 12, seed: int = 0) -> Problem:
    """A smooth network with LayerNorm and biases; two layers are alike, so that they share storage in stacks."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(5, 8), nn.LayerNorm(8), nn.Tanh(),
            nn.Linear(8, 8), nn.Tanh(),
            nn.Linear(8, 8), nn.Tanh(),
            nn.Linear(8, 3),
        ).double()  # fmt: skip
        with torch.no_grad():  # LayerNorm starts at ones and zeros, which would hide mistakes in scales
            model[1].weight.add_(0.3 * torch.randn(8, dtype=torch.float64))
            model[1].bias.add_(0.3 * torch.randn(8, dtype=torch.float64))
        batches = [(torch.randn(rows, 5, dtype=torch.float64), torch.randint(0, 3, (rows,))) for _ in range(steps)]
    return Problem(model, batches)


def conv_problem(steps: int = 5, rows: int = 6, seed: int = 1) -> Problem:
    """Two convolutions with BatchNorm in training mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Tanh(),
            nn.Conv2d(4, 3, 3), nn.Tanh(),
            nn.Flatten(), nn.Linear(12, 3),
        ).double()  # fmt: skip
        with torch.no_grad():
            model[1].weight.add_(0.3 * torch.randn(4, dtype=torch.float64))
            model[1].bias.add_(0.3 * torch.randn(4, dtype=torch.float64))
        batches = [
            (torch.randn(rows, 2, 6, 6, dtype=torch.float64), torch.randint(0, 3, (rows,))) for _ in range(steps)
        ]
    return Problem(model, batches)


class QuadraticBowl(nn.Module):
    """L = s w'Aw / 2 + c'w for each row (s, c) of the input, w in two tensors: the Hessian is the mean s times A."""

    def __init__(self, hessian: Tensor, start: Tensor):
        super().__init__()
        self.register_buffer("hessian", hessian)
        half = (len(start) + 1) // 2
        self.head = nn.Parameter(start[:half].clone())
        self.tail = nn.Parameter(start[half:].clone())

    def forward(self, x: Tensor) -> Tensor:
        w = torch.cat([self.head, self.tail])
        return x[:, 0] * (w @ self.hessian @ w) / 2 + x[:, 1:] @ w


def random_hessian(d: int, seed: int = 0, lowest: float = 0.5) -> Tensor:
    """A symmetric positive definite matrix with different eigenvalues."""
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
    return q @ torch.diag(lowest + torch.arange(d, dtype=torch.float64)) @ q.T


def random_vector(d: int, seed: int = 0) -> Tensor:
    return torch.randn(d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def bowl_problem(
    hessian: Tensor, start: Tensor, steps: int = 1, curved: Callable[[int], bool] = lambda t: True
) -> Problem:
    """The bowl w'Aw / 2, or at steps that are not `curved` a plane."""
    d = len(start)
    plane = torch.cat([torch.zeros(1, dtype=torch.float64), random_vector(d, seed=99)])
    bowl = torch.cat([torch.ones(1, dtype=torch.float64), torch.zeros(d, dtype=torch.float64)])
    batches = [((bowl if curved(t) else plane).expand(2, -1), torch.zeros(2)) for t in range(steps)]
    return Problem(QuadraticBowl(hessian, start), batches, each_output)
