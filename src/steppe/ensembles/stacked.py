"""All members at once on one device: their weights stacked, and every pass of all of them one forward and backward.

Members stay runs with checkpoints and records of their own. They go pass by pass in step, and what they ask for is
answered for all of them together by `torch.func`. Where the method allows it (`shareable`) their methods and optimizers
are one too, on stacked weights; where not, only the model's work is shared. The stack always has the same shape,
whoever is in it: kernels sum in another order where shapes differ, and a member that was stopped at another step than
the others has to end bitwise the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..training.config import Config
from ..training.entry import begin
from ..training.evaluate import autocast
from ..training.loop import Asking, Seen, Training
from ..training.stopping import listening
from ..training.supply import Rows
from .members import tell_scores
from .padding import padded
from .settings import Ensemble
from .shareable import alike, shareable
from .together import Together

Begun = tuple[Training, Asking]


@contextmanager
def stacked(ensemble: Ensemble, progress: bool | None) -> Iterator[Callable[[Sequence[Config], int | None], None]]:
    """All members at once in this process."""

    def reach(configs: Sequence[Config], until: int | None) -> None:
        with ExitStack() as stack:
            wish = stack.enter_context(listening())
            shown = [progress, *[False] * (len(configs) - 1)]
            begun = [begin(stack, c, wish, show, until) for c, show in zip(configs, shown, strict=True)]
            _drive(begun, stack)
        for config in configs:
            if until is not None:
                tell_scores(config, until)

    yield reach


def _drive(begun: Sequence[Begun | None], stack: ExitStack) -> None:
    """Trains all of them in step; one that fails or is stopped leaves the others to go on, and is told of then."""
    for found in begun:
        if found is None:
            continue
        if found[0].workers.count > 1:
            raise ValueError("stacked members train in one process: leave torchrun, or take members in sequence")
        stack.enter_context(closing(found[1]))
    troubles = [error for group in _groups(begun) for error in _in_step(group)]
    if troubles:
        raise troubles[0]


def _groups(begun: Sequence[Begun | None]) -> Sequence[Sequence[Begun | None]]:
    """Runs that one plan and one optimizer can serve, and the rest of them; members of an ensemble are all alike."""
    kinds: list[list[Begun]] = []
    for found in begun:
        if found is not None:
            like = next((k for k in kinds if alike(k[0][0].config, found[0].config)), None)
            kinds.append([found]) if like is None else like.append(found)
    if len(kinds) < 2:
        return [begun] if kinds else []
    apart = [found for k in kinds if len(k) == 1 or not shareable(k[0][0]) for found in k]
    return [k for k in kinds if k[0] not in apart] + ([apart] if apart else [])


def _in_step(begun: Sequence[Begun | None]) -> list[Exception]:
    """Trains a group of runs pass by pass, and returns what went wrong."""
    live = {i: found for i, found in enumerate(begun) if found is not None}
    first = next(iter(live.values()))[0]
    same = all(alike(first.config, training.config) for training, _ in live.values())
    trainings = [found[0] if found is not None else None for found in begun]
    together = Together(trainings) if same and shareable(first) else None
    asked: dict[int, Rows] = {}
    answers: dict[int, Any] = dict.fromkeys(live)
    troubles: list[Exception] = []
    checked = False
    while True:
        for i, answer in answers.items():
            try:
                asked[i] = live[i][1].send(answer)
            except StopIteration:
                del live[i]
            except Exception as error:
                troubles.append(error)
                del live[i]
        if not asked:
            return troubles
        if not checked:
            _refuse_movement(first.trainee.bare, next(iter(asked.values()))[0])
            checked = True
        taken = {i: live[i][0].course.taken(live[i][0].position) for i in asked}
        behind = [i for i in asked if taken[i] == min(taken.values())]  # the others wait for them
        if together is not None:
            part = min(together.seats[i].part for i in behind)
            answers = together.answer(behind, {i: asked.pop(i) for i in behind if together.seats[i].part == part})
        else:
            there = [i if i in asked else next(iter(asked)) for i in range(len(begun))]  # a place is never empty
            found = _seen([live[i][0] for i in there], [asked[i] for i in there])
            answers = {i: found[i] for i in asked}
            asked = {}


def _seen(trainings: Sequence[Training], asked: Sequence[Rows]) -> list[Seen]:
    """What every model gives on its own rows, with the losses of the rows and their gradient."""
    models = [t.trainee.bare for t in trainings]
    x, y, weights, sizes = padded(asked, max(t.config.batch_size for t in trainings))
    own = [dict(m.named_parameters()) for m in models]
    with torch.no_grad():
        stacks = {k: torch.stack([p[k] for p in own]) for k in own[0]}
        buffers = [dict(m.named_buffers()) for m in models]
        still = {k: torch.stack([b[k] for b in buffers]) for k in buffers[0]}
    moving = {k: t.requires_grad_() for k, t in stacks.items() if own[0][k].requires_grad}
    first = trainings[0]
    with autocast(first.config, first.device):
        output = vmap(lambda p, b, rows: functional_call(models[0], (p, b), (rows,)))(stacks, still, x)
    losses = first.loss(output.flatten(0, 1), y.flatten(0, 1)).view(weights.shape)
    grads = torch.autograd.grad((losses * weights).sum(), list(moving.values()), materialize_grads=True)
    each = zip(*(g.unbind(0) for g in grads), strict=True)
    known: Any = _Known.apply  # without types
    found = []
    for i, (n, mine) in enumerate(zip(sizes, each, strict=True)):
        params = [own[i][k] for k in moving]
        found.append((output[i, :n].detach(), known(losses[i, :n].detach(), mine, *params)))
    return found


class _Known(torch.autograd.Function):
    """Losses, one a row, of whose mean the gradient is known already."""

    @staticmethod
    def forward(ctx: Any, losses: Tensor, grads: Sequence[Tensor], *params: Tensor) -> Tensor:
        ctx.grads = grads
        return losses.clone()

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> Any:
        return None, None, *ctx.grads  # the engine takes the mean of losses that are one a row


def _refuse_movement(model: nn.Module, x: Tensor) -> None:
    """Raises if a forward pass draws random numbers or moves buffers, as dropout and BatchNorm do."""
    copy = deepcopy(model)
    with torch.no_grad():
        before = {k: b.clone() for k, b in copy.named_buffers()}
        outputs = []
        for seed in (0, 1):
            with torch.random.fork_rng(devices=[x.device] if x.device.type == "cuda" else []):
                torch.manual_seed(seed)
                outputs.append(copy(x))
        moved = [k for k, b in copy.named_buffers() if not torch.equal(b, before[k])]
    if moved or not torch.equal(*outputs):
        why = f"{moved[0]} moves in a forward pass" if moved else "it draws random numbers, as dropout does"
        raise ValueError(f"members with this model cannot be stacked: {why}. Take them in sequence or in processes")
