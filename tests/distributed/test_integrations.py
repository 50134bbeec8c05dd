"""Lightning, Fabric, Accelerate and Transformers on two workers, against one hand-written loop on all rows."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import steppe

from .pair import WORLD, Pair

LR, MOMENTUM, GAMMA, RHO, CLIP, EPOCHS, MICRO = 0.3, 0.9, 0.8, 0.2, 0.1, 2, 2
Rows = tuple[Tensor, Tensor]
State = dict[str, Tensor]


def batches(rank: int) -> list[Rows]:
    """Five micro-batches of a worker: steps of two, and one of the remainder."""
    g = torch.Generator().manual_seed(1 + rank)
    x = torch.randn(5, 8, 5, generator=g, dtype=torch.float64)
    return list(zip(x, torch.randint(3, (5, 8), generator=g), strict=True))


def steps_of(rank: int, micro: int) -> list[list[Rows]]:
    mine = batches(rank)
    return [mine[i : i + micro] for i in range(0, len(mine), micro)]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()


def by_hand(micro: int, clip: float, own: bool = False) -> State:
    """SAM as in Foret et al. 2021; `own`: each worker perturbs along its own gradient, as in their code."""
    net = network()
    params = list(net.parameters())
    base = torch.optim.SGD(params, lr=LR, momentum=MOMENTUM)
    for number, step in enumerate([*range(len(steps_of(0, micro)))] * EPOCHS):
        base.param_groups[0]["lr"] = LR * GAMMA**number
        each = [steps_of(rank, micro)[step] for rank in range(WORLD)]
        first = [gradient(net, rows, micro, keep=rank == 0) for rank, rows in enumerate(each)]
        up = first if own else [[sum(g) / WORLD for g in zip(*first, strict=True)]] * WORLD
        tops = []
        for rows, direction in zip(each, up, strict=True):
            moved = deepcopy(net)
            norm = torch.cat([g.flatten() for g in direction]).norm()
            with torch.no_grad():
                for p, g in zip(moved.parameters(), direction, strict=True):
                    p += RHO * g / norm
            tops.append(gradient(moved, rows, micro, keep=False))
        for p, *grads in zip(params, *tops, strict=True):
            p.grad = sum(grads) / WORLD  # type: ignore[arg-type, assignment]
        if clip:
            nn.utils.clip_grad_norm_(params, clip)
        base.step()
    return net.state_dict()


def gradient(net: nn.Module, rows: list[Rows], micro: int, keep: bool) -> list[Tensor]:
    """Of one worker; `keep`: its running statistics are those of the first worker, which DDP broadcasts."""
    net = net if keep else deepcopy(net)
    loss = torch.stack([cross_entropy(net(x), y) / micro for x, y in rows]).sum()
    return list(torch.autograd.grad(loss, list(net.parameters())))


def engine(net: nn.Module, method: steppe.Method | None = None, **options: Any) -> steppe.SharpnessAware:
    base = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    return steppe.SharpnessAware(base, method or steppe.SAM(rho=RHO), **options)


def assert_close(state: State, expected: State) -> None:
    assert max(float((p - expected[name]).abs().max()) for name, p in state.items()) < 1e-12


def needs(package: str) -> None:
    """Skips the test if a package is missing; importing one takes seconds, which the workers spend already."""
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")


@contextmanager
def launched(rank: int) -> Iterator[None]:
    """The environment that torchrun sets; the process group is there already."""
    names = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD, "LOCAL_WORLD_SIZE": WORLD, "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1, "TORCHELASTIC_RUN_ID": "tests", "OMP_NUM_THREADS": 1,
    }  # fmt: skip
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in names.items()})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the other libraries
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# -- Lightning ---------------------------------------------------------------------------------------------------------


def lightning_nets() -> tuple[type, type]:
    """Classes of a function: workers of other tests do not import Lightning, which takes seconds."""
    import lightning.pytorch as pl

    from steppe.integrations.lightning import SharpnessAwareSteps, passes, step

    class Net(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, method: steppe.Method | None = None) -> None:
            super().__init__()
            self.net, self.method = network(), method

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            opt = engine(self.net, self.method)
            return [opt], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, GAMMA), "interval": "step"}]

    class Automatic(SharpnessAwareSteps, Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return cross_entropy(self.net(batch[0]), batch[1])

    class Manual(Net):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            opt = self.optimizers()
            for turn in passes(opt):
                x, y = batch
                turn.backward(cross_entropy(self.net(x), y))
            self.clip_gradients(opt, gradient_clip_val=CLIP, gradient_clip_algorithm="norm")
            step(opt)
            self.lr_schedulers().step()

    return Automatic, Manual


def lightning(rank: int, folder: Path) -> dict[str, State]:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import DDPStrategy

    from steppe.integrations.lightning import SharpnessMonitor

    automatic, manual = lightning_nets()

    def fit(module: Any, resume: str | None = None, ddp: dict[str, Any] | None = None, **options: Any) -> State:
        trainer = pl.Trainer(
            max_epochs=EPOCHS, accelerator="cpu", devices=WORLD, strategy=DDPStrategy(**(ddp or {})), logger=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
            use_distributed_sampler=False, **({"enable_checkpointing": False} | options),
        )  # fmt: skip
        assert trainer.world_size == WORLD
        trainer.fit(module, torch.utils.data.DataLoader(batches(rank), batch_size=None), ckpt_path=resume)
        found = trainer.callback_metrics
        return {**module.net.state_dict(), **({"lambda_max": found["lambda_max"]} if "lambda_max" in found else {})}

    with launched(rank):
        together = {"accumulate_grad_batches": MICRO, "gradient_clip_val": CLIP}
        save = pl.callbacks.ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
        with pytest.raises(RuntimeError, match="leave out static_graph, or do not accumulate"):
            fit(automatic(), ddp={"static_graph": True}, **together)
        return {
            "static": fit(automatic(), ddp={"static_graph": True}, gradient_clip_val=CLIP),
            "automatic": fit(automatic(), **together, enable_checkpointing=True, callbacks=[save]),
            "resumed": fit(automatic(), resume=str(folder / "epoch=0.ckpt"), **together),
            "views": fit(automatic(), ddp={"gradient_as_bucket_view": True}, **together),
            "unused": fit(automatic(), ddp={"find_unused_parameters": True}, **together),
            "own": fit(automatic(steppe.PerWorker(steppe.SAM(rho=RHO)))),
            "manual": fit(manual(), callbacks=[SharpnessMonitor(batches(0)[0], cross_entropy)]),
        }


def test_lightning(pair: Pair, tmp_path: Path) -> None:
    needs("lightning")
    first, _ = pair.run(lightning, tmp_path)
    together = by_hand(MICRO, CLIP)
    for name in ("automatic", "views", "unused"):
        assert_close(first[name], together)
    net = network()
    measured = float(first["manual"].pop("lambda_max"))  # running statistics of other workers differ
    net.load_state_dict(first["manual"])
    alone = steppe.measure(net.eval(), cross_entropy, batches(0)[0], "lambda_max", progress=False)["lambda_max"].value
    assert measured == pytest.approx(alone, rel=1e-5)
    for name in ("manual", "static"):
        assert_close(first[name], by_hand(1, CLIP))
    assert_close(first["own"], by_hand(1, 0.0, own=True))
    assert all(torch.equal(a, b) for a, b in zip(first["automatic"].values(), first["resumed"].values(), strict=True))


# -- Fabric and Accelerate ---------------------------------------------------------------------------------------------


def fabric(rank: int) -> dict[str, State]:
    from lightning.fabric import Fabric

    from steppe.integrations.lightning import passes

    def train(method: steppe.Method, micro: int, clip: float) -> State:
        made = Fabric(accelerator="cpu", devices=WORLD, strategy="ddp")
        made.launch()
        net = network()
        model, opt = made.setup(net, engine(net, method))
        schedule = torch.optim.lr_scheduler.ExponentialLR(opt, GAMMA)
        for rows in steps_of(rank, micro) * EPOCHS:
            for turn in passes(opt, model=model):
                for i, (x, y) in enumerate(rows):
                    with made.no_backward_sync(model, enabled=i + 1 < len(rows)):
                        turn.backward(cross_entropy(model(x), y) / micro)
            if clip:
                made.clip_gradients(model, opt, max_norm=clip)
            opt.step()
            schedule.step()
        return net.state_dict()

    with launched(rank):
        sam = steppe.SAM(rho=RHO)
        return {"together": train(sam, MICRO, CLIP), "own": train(steppe.PerWorker(sam), 1, 0.0)}


def accelerate(rank: int) -> dict[str, State]:
    from accelerate import Accelerator

    from steppe.integrations.accelerate import micro_batches, passes

    def train(method: steppe.Method, micro: int, clip: float, closures: bool = False) -> State:
        net = network()
        opt = engine(net, method, model=net if closures else None)  # `passes` receives the wrapper instead
        model, opt, schedule = made.prepare(net, opt, torch.optim.lr_scheduler.ExponentialLR(opt, GAMMA))
        for rows in steps_of(rank, micro) * EPOCHS:

            def closure() -> Tensor:
                opt.zero_grad()
                [(x, y)] = rows
                loss = cross_entropy(model(x), y)
                made.backward(loss)
                return loss

            if closures:
                opt.step(closure)
            else:
                for turn in passes(opt, model=model):
                    for x, y in micro_batches(rows, model):
                        turn.backward(cross_entropy(model(x), y) / micro)
                if clip:
                    made.clip_grad_norm_(model.parameters(), clip)
                opt.step()
            schedule.step()
        return net.state_dict()

    with launched(rank):
        made = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
        assert made.num_processes == WORLD
        sam = steppe.SAM(rho=RHO)
        try:
            return {
                "together": train(sam, MICRO, CLIP), "own": train(steppe.PerWorker(sam), 1, 0.0),
                "closures": train(sam, 1, 0.0, closures=True),
            }  # fmt: skip
        finally:
            forget()


def forget() -> None:
    """Accelerate keeps its state per process."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def test_fabric(pair: Pair) -> None:
    needs("lightning")
    first, _ = pair.run(fabric)
    assert_close(first["together"], by_hand(MICRO, CLIP))
    assert_close(first["own"], by_hand(1, 0.0, own=True))


def test_accelerate(pair: Pair) -> None:
    needs("accelerate")
    first, _ = pair.run(accelerate)
    assert_close(first["together"], by_hand(MICRO, CLIP))
    assert_close(first["closures"], by_hand(1, 0.0))
    assert_close(first["own"], by_hand(1, 0.0, own=True))


# -- Transformers ------------------------------------------------------------------------------------------------------


def transformers(rank: int, folder: Path) -> dict[str, State]:
    from transformers_loops import RHO, Rows, arguments, bert, token_loss
    from transformers_loops import by_hand as tokens_by_hand

    from steppe.integrations.transformers import SharpnessAwareTrainer

    def train(resume: str | None = None, **options: Any) -> State:
        made = arguments(folder, gradient_accumulation_steps=MICRO, max_grad_norm=CLIP, **options)
        assert made.world_size == WORLD
        model = bert()
        SharpnessAwareTrainer(
            model, made, train_dataset=Rows(TOKENS), method=steppe.SAM(rho=RHO), compute_loss_func=token_loss
        ).train(resume_from_checkpoint=resume)
        return model.state_dict()

    expected = bert()
    tokens_by_hand(expected, Rows(TOKENS), MICRO * WORLD, CLIP)
    with launched(rank):
        try:
            return {
                "expected": expected.state_dict(),
                "together": train(save_strategy="steps", save_steps=3),
                "resumed": train(resume=str(folder / "checkpoint-3")),
            }
        finally:
            forget()


TOKENS = 10 * 4  # ten batches: five micro-batches of each worker


@pytest.mark.slow
def test_transformers(pair: Pair, tmp_path: Path) -> None:
    needs("transformers")
    first, second = pair.run(transformers, tmp_path)
    for worker in (first, second):
        assert_close(worker["together"], first["expected"])
        assert all(torch.equal(p, worker["together"][name]) for name, p in worker["resumed"].items())
