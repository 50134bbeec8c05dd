"""One step of all members at once: their weights are the rows of one tensor, moved by one plan and one optimizer.

The members' models, states of optimizers and so checkpoints look into that tensor. Their loops go on as ever, each with
rows, sums, records and files of its own; only what a loop takes for its optimizer is a `Seat`. Base optimizers that a
configuration can ask for go entry by entry: one of them on all rows does what each would do on its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..chunk import Chunk
from ..many import copy_
from ..optim.sam import Plain
from ..probe import Plan, Reading
from ..replays import Replays
from ..roles import roles_of
from ..training.loop import Seen, Training
from ..training.supply import Rows
from ..training.trainee import Trainee
from .counts import Counts
from .memberwise import AllMembers, Places, Vectors
from .padding import padded
from .pass_of_all import PassOfAll
from .seat import BY_METHOD, Seat
from .shareable import method_of


class Together:
    """All members in the rows of one tensor; a place that nobody has holds another's weights, and nobody looks at it.

    Members that are ahead of the others, or have failed, keep their rows as they are while the others step.
    `replays`: what records and replays their passes; by default what their configuration asks for.
    """

    def __init__(self, trainings: Sequence[Training | None], replays: Replays | None = None):
        self._first = first = next(t for t in trainings if t is not None)
        self._method, model = method_of(first.trainee.opt), first.trainee.bare
        models = [(t or first).trainee.bare for t in trainings]
        tensors = [dict(m.named_parameters()) | dict(m.named_buffers()) for m in models]
        self._names = [k for k, p in model.named_parameters() if p.requires_grad]
        roles, own = roles_of(model, first.trainee.opt.param_groups), tensors[0]
        chunks = [Chunk((i,), 0, roles[id(own[k])], None, own[k].shape) for i, k in enumerate(self._names)]
        self._places = Places(chunks)
        with torch.no_grad():
            still = {k: torch.stack([t[k] for t in tensors]) for k in own if k not in self._names}
            self._rows = torch.nn.Parameter(torch.stack([_row(t[k] for k in self._names) for t in tensors]))
        self._pass = PassOfAll(first, self._names, self._places, still, replays)
        self._counts = {i: Counts(t.trainee.sums) for i, t in enumerate(trainings) if t is not None}
        self.seats = {i: self._seated(t, i) for i, t in enumerate(trainings) if t is not None}
        self._base = self._one_for_all()
        self._members: list[int] = []  # of the step under way
        self._held: dict[int, Seen] = {}  # answers for the end of the step
        self._plan: Plan | None = None

    @property
    def replays(self) -> Replays | None:
        """What has recorded the passes; None where nothing is recorded."""
        return self._pass.replays

    def _seated(self, training: Training, i: int) -> Seat:
        """Has a member look into its row."""
        before = training.trainee
        own = dict(before.bare.named_parameters())
        for name, part in zip(self._names, self._places.cut(self._rows.detach()), strict=True):
            own[name].data = part[i]
        seat = Seat(before.opt)
        optimizer: Any = seat  # does what the loop asks of its optimizer
        sums: Any = self._counts[i]
        training.trainee = now = Trainee(before.model, optimizer, before.averages, before.workers)
        now.sums, now.passes, now.skipped, now.seconds = sums, before.passes, before.skipped, before.seconds
        return seat

    def _one_for_all(self) -> Any:
        """The members' base optimizer on the rows, with the states that they have come to."""
        seat = next(iter(self.seats.values()))
        kind: Any = type(seat.opt.base)
        base = kind([self._rows], lr=0.0)
        base.param_groups[0].update({k: v for k, v in seat.param_groups[0].items() if k != "params"})
        states = {i: self._states(s) for i, s in self.seats.items()}
        for name in dict.fromkeys(k for parts in states.values() for part in parts for k in part):
            found = {i: [part[name] for part in parts] for i, parts in states.items() if name in parts[0]}
            like = next(iter(found.values()))[0]
            if like.ndim:
                rows = torch.zeros_like(self._rows)
                for i, tensors in found.items():
                    rows[i] = _row(tensors)
                base.state[self._rows][name] = rows.detach()
            else:
                base.state[self._rows][name] = like.clone()
        self._look_into(base)
        return base

    def _states(self, seat: Seat) -> list[dict[str, Tensor]]:
        states = [seat.opt.state.get(p, {}) for p in seat.param_groups[0]["params"]]
        return [{k: t for k, t in s.items() if isinstance(t, Tensor)} for s in states]

    def _look_into(self, base: Any) -> None:
        """Has the members' optimizers find their states in the rows; numbers of steps stay their own."""
        for name, t in base.state[self._rows].items():
            if not isinstance(t, Tensor):
                continue
            parts = self._places.cut(t) if t.ndim else []
            for i, seat in self.seats.items():
                for k, p in enumerate(seat.param_groups[0]["params"]):
                    state = seat.opt.state[p]
                    state[name] = parts[k][i] if t.ndim else state.get(name, torch.zeros_like(t)).clone()

    def answer(self, members: Sequence[int], asked: Mapping[int, Rows]) -> dict[int, Seen]:
        """Sees to a pass of those who ask, of all who take this step; answers whom it can."""
        some = next(iter(asked))
        if self._plan is None:
            self._start(members, some)
        rows = [asked.get(i, asked[some]) for i in range(len(self._rows))]
        x, y, weights, sizes = padded(rows, self._first.config.batch_size)
        here = self._rows.detach()
        at: Any = self._probe.at
        passed = self._pass(here if at is None else here + at.rows, x, y, weights)
        found = {i: (passed.output[i, : sizes[i]], passed.losses[i, : sizes[i]]) for i in asked}
        if passed.counts is not None:
            for i in asked:
                self._counts[i].last = passed.counts[i]
        return self._went_on(Vectors(self._places, passed.grad), passed.means, found)

    def _start(self, members: Sequence[int], some: int) -> None:
        """Sets out on a part of a step."""
        part = self.seats[some].part
        if not self._members:
            self._members, self._health = list(members), self._rows.new_zeros(len(self._rows))
            self._total: Tensor | None = None
        groups = [self.seats.get(i, self.seats[some]).param_groups[0] for i in range(len(self._rows))]
        site: Any = AllMembers(Vectors(self._places, self._rows.detach()), groups, some)
        self._plan = (self._method if part == BY_METHOD else Plain()).plan(site)
        self._probe = next(self._plan)

    @torch.no_grad()
    def _went_on(self, grad: Vectors, means: Tensor, found: dict[int, Seen]) -> dict[int, Seen]:
        """Takes the plan to its next pass, or ends the part, and after the last one the step."""
        assert self._plan is not None
        if self._first.config.on_nonfinite == "raise":
            seen = self._health + means + grad.norm()
            if len(found) < len(means):
                mine = torch.tensor([i in found for i in range(len(means))]).to(means.device, non_blocking=True)
                seen = torch.where(mine, seen, self._health)
            self._health = seen
        gradient: Any = grad
        try:
            self._probe = self._plan.send(Reading(gradient, means, lambda x: x))
            over = False
        except StopIteration as done:
            over, direction = True, done.value
        for i in found:
            self.seats[i].next = None if over else self._probe
        if not over:
            return found
        self._plan = None
        self._add(direction.rows, found)
        if any(self.seats[i].further for i in self._members):
            self._held |= {i: seen for i, seen in found.items() if not self.seats[i].further}
            return {i: seen for i, seen in found.items() if i not in self._held}
        self._step()
        found, self._held, self._members = self._held | found, {}, []
        return found

    def _add(self, direction: Tensor, found: Mapping[int, Seen]) -> None:
        """Counts what a part of the step came to by its rows' share of each batch."""
        shares = [s.shares[s.part] if i in found else 0.0 for i, s in self._seats_in_order()]
        if min(shares) < 1:
            column = torch.tensor(shares).to(direction, non_blocking=True).unsqueeze(1)
            direction = (column * direction).masked_fill(column <= 0, 0.0)  # nobody's rows may be anything
        self._total = direction if self._total is None else self._total + direction

    def _seats_in_order(self) -> list[tuple[int, Seat]]:
        some = next(iter(self.seats.values()))
        return [(i, self.seats.get(i, some)) for i in range(len(self._rows))]

    def _step(self) -> None:
        """Moves the rows of those who take the step."""
        assert self._total is not None
        some, clip = self.seats[self._members[0]], self._first.config.clip
        if self._first.config.on_nonfinite == "raise":
            fine = self._health.isfinite().tolist()
            for i in self._members:
                self.seats[i].trouble = not fine[i]
        if clip is not None:  # as torch's clip_grad_norm_ does
            norms = torch.linalg.vector_norm(self._total, dim=1, keepdim=True)
            self._total.mul_((clip / (norms + 1e-6)).clamp(max=1.0))
        state = self._base.state[self._rows]
        fresh = not state
        for name, t in self._states(some)[0].items():
            if not t.ndim:
                state[name].copy_(t)
        others = torch.tensor([i for i in range(len(self._rows)) if i not in self._members], dtype=torch.int64)
        there = others.to(self._rows.device, non_blocking=True) if len(others) else others
        kept = [(t, t[there]) for t in (self._rows, *state.values()) if len(others) and t.ndim]
        self._base.param_groups[0]["lr"] = some.param_groups[0]["lr"]
        self._rows.grad = self._total
        self._base.step()
        self._rows.grad = None
        for t, rows in kept:
            t[there] = rows
        if fresh:
            self._look_into(self._base)
        self._count_steps()

    def _count_steps(self) -> None:
        for name, t in self._base.state[self._rows].items():
            if isinstance(t, Tensor) and not t.ndim:
                seats = [self.seats[i] for i in self._members]
                own = [s.opt.state[p][name] for s in seats for p in s.param_groups[0]["params"]]
                copy_(own, [t] * len(own))


def _row(tensors: Any) -> Tensor:
    return torch.cat([t.detach().flatten() for t in tensors])
