"""Lightning, Fabric, Accelerate and Transformers on two workers, against one hand-written loop on all rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import steppe

from .integration_loops import (
    CLIP,
    EPOCHS,
    GAMMA,
    MICRO,
    RHO,
    State,
    accelerate_step,
    assert_close,
    batches,
    by_hand,
    engine,
    forget,
    launched,
    lightning_nets,
    needs,
    network,
    steps_of,
)
from .pair import WORLD, Pair


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
            for pass_ in passes(opt, model=model):
                for i, (x, y) in enumerate(rows):
                    with made.no_backward_sync(model, enabled=i + 1 < len(rows)):
                        pass_.backward(cross_entropy(model(x), y) / micro)
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

    def train(method: steppe.Method, micro: int, clip: float, closures: bool = False) -> State:
        net = network()
        opt = engine(net, method, model=net if closures else None)  # `passes` receives the wrapper instead
        model, opt, schedule = made.prepare(net, opt, torch.optim.lr_scheduler.ExponentialLR(opt, GAMMA))
        for rows in steps_of(rank, micro) * EPOCHS:
            accelerate_step(made, opt, model, rows, micro, clip, closures)
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
