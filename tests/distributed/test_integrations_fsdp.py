"""FSDP2 inside Accelerate, Transformers, Lightning and Fabric: two workers against one hand-written loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
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
from .problems import shard, weights

PER_WORKER = "the method needs each worker's own gradient, and FSDP2 keeps none"


def same(a: State, b: State) -> bool:
    return all(torch.equal(p, b[name]) for name, p in a.items())


# -- Accelerate --------------------------------------------------------------------------------------------------------


def sharding_accelerator() -> Any:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    forget()
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="size_based_wrap", min_num_params=1, cpu_ram_efficient_loading=False
    )
    made = Accelerator(cpu=True, step_scheduler_with_optimizer=False, fsdp_plugin=plugin)
    assert made.num_processes == WORLD
    shards(made, plugin)
    return made


def shards(accelerator: Any, plugin: Any) -> None:
    """Accelerate's FSDP2: on CPUs it ignores the plugin and takes DDP, so its state is set by hand."""
    from accelerate.state import PartialState
    from accelerate.utils import DistributedType

    accelerator.state.fsdp_plugin = plugin
    accelerator.state.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP
    assert accelerator.is_fsdp2


def accelerate(rank: int, folder: Path) -> dict[str, State]:

    def train(
        micro: int, clip: float, closures: bool = False, method: Any = None, save: int = 0, resume: int = 0
    ) -> State:
        made, net = sharding_accelerator(), network()
        opt = engine(net, method, model=net if closures else None)
        schedule = torch.optim.lr_scheduler.ExponentialLR(opt, GAMMA)
        model, opt, schedule = made.prepare(net, opt, schedule)
        assert all(isinstance(p, DTensor) for p in model.parameters())
        if resume:
            made.load_state(str(folder))
        for number, rows in enumerate(steps_of(rank, micro) * EPOCHS):
            if number < resume:
                continue

            accelerate_step(made, opt, model, rows, micro, clip, closures)
            schedule.step()
            if number + 1 == save:
                made.save_state(str(folder))
        return weights(model)

    with launched(rank):
        try:
            with pytest.raises(RuntimeError, match=PER_WORKER):
                train(1, 0.0, method=steppe.PerWorker(steppe.SAM(rho=RHO)))
            return {
                "together": train(MICRO, CLIP),
                "closures": train(1, 0.0, closures=True),
                "saved": train(MICRO, CLIP, method=steppe.LookSAM(rho=RHO, k=3), save=2),
                "resumed": train(MICRO, CLIP, method=steppe.LookSAM(rho=RHO, k=3), resume=2),
            }
        finally:
            forget()


def test_sharded_accelerate(pair: Pair, tmp_path: Path) -> None:
    needs("accelerate")
    for worker in pair.run(accelerate, tmp_path):
        assert_close(worker["together"], by_hand(MICRO, CLIP))
        assert_close(worker["closures"], by_hand(1, 0.0))
        assert same(worker["saved"], worker["resumed"])


# -- Lightning and Fabric ----------------------------------------------------------------------------------------------


def fabric(rank: int) -> dict[str, State]:
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import ModelParallelStrategy

    from steppe.integrations.lightning import passes

    def train(micro: int, clip: float, method: Any = None) -> State:
        strategy = ModelParallelStrategy(
            lambda model, mesh: shard(model, mesh["data_parallel"]), data_parallel_size=WORLD, tensor_parallel_size=1
        )
        made = Fabric(accelerator="cpu", devices=WORLD, strategy=strategy)
        made.launch()
        model = made.setup_module(network())
        opt = made.setup_optimizers(engine(model, method))
        schedule = torch.optim.lr_scheduler.ExponentialLR(opt, GAMMA)
        for rows in steps_of(rank, micro) * EPOCHS:
            for pass_ in passes(opt, model=model):
                for x, y in rows:
                    pass_.backward(cross_entropy(model(x), y) / micro)
            if clip:
                made.clip_gradients(model, opt, max_norm=clip)
            opt.step()
            schedule.step()
        return weights(model._forward_module)

    with launched(rank):
        with pytest.raises(RuntimeError, match=PER_WORKER):
            train(1, 0.0, steppe.PerWorker(steppe.SAM(rho=RHO)))
        return {"together": train(MICRO, CLIP)}


def test_sharded_fabric(pair: Pair) -> None:
    needs("lightning")
    for worker in pair.run(fabric):
        assert_close(worker["together"], by_hand(MICRO, CLIP))


def lightning(rank: int, folder: Path) -> dict[str, State]:
    import lightning.pytorch as pl
    from lightning.pytorch.strategies import ModelParallelStrategy

    from steppe.integrations.lightning import SharpnessMonitor

    def sharded(kind: type) -> type:
        def configure_model(self: Any) -> None:
            if not any(isinstance(p, DTensor) for p in self.net.parameters()):
                shard(self.net, self.device_mesh["data_parallel"])

        return type(kind.__name__, (kind,), {"configure_model": configure_model})

    automatic, manual = map(sharded, lightning_nets())

    def fit(module: Any, resume: str | None = None, **options: Any) -> State:
        trainer = pl.Trainer(
            max_epochs=EPOCHS, accelerator="cpu", devices=WORLD, logger=False, default_root_dir=folder,
            strategy=ModelParallelStrategy(data_parallel_size=WORLD, tensor_parallel_size=1),
            enable_progress_bar=False, enable_model_summary=False,
            use_distributed_sampler=False, **({"enable_checkpointing": False} | options),
        )  # fmt: skip
        assert trainer.world_size == WORLD
        trainer.fit(module, torch.utils.data.DataLoader(batches(rank), batch_size=None), ckpt_path=resume)
        return weights(module.net)

    with launched(rank):
        together = {"accumulate_grad_batches": MICRO, "gradient_clip_val": CLIP}
        save = pl.callbacks.ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)
        with pytest.raises(RuntimeError, match=PER_WORKER):
            fit(automatic(steppe.PerWorker(steppe.SAM(rho=RHO))))
        with pytest.raises(ValueError, match=r"the model is sharded \(FSDP2\)"):
            fit(automatic(), callbacks=[SharpnessMonitor(batches(0)[0], cross_entropy)])
        return {
            "automatic": fit(automatic(), **together),
            "manual": fit(manual()),
            "saved": fit(
                automatic(steppe.LookSAM(rho=RHO, k=3)), **together, enable_checkpointing=True, callbacks=[save]
            ),
            "resumed": fit(automatic(steppe.LookSAM(rho=RHO, k=3)), resume=str(folder / "epoch=0.ckpt"), **together),
        }


def test_sharded_lightning(pair: Pair, tmp_path: Path) -> None:
    needs("lightning")
    for worker in pair.run(lightning, tmp_path):
        assert_close(worker["automatic"], by_hand(MICRO, CLIP))
        assert_close(worker["manual"], by_hand(1, CLIP))
        assert same(worker["saved"], worker["resumed"])


# -- Transformers ------------------------------------------------------------------------------------------------------


def transformers(rank: int, folder: Path) -> dict[str, State]:
    from accelerate import FullyShardedDataParallelPlugin
    from transformers_loops import RHO, Rows, arguments, bert, token_loss
    from transformers_loops import by_hand as tokens_by_hand

    from steppe.integrations.transformers import SharpnessAwareTrainer

    class Sharding(SharpnessAwareTrainer):
        def create_accelerator_and_postprocess(self) -> None:
            super().create_accelerator_and_postprocess()
            shards(self.accelerator, FullyShardedDataParallelPlugin(**self.args.fsdp_plugin_args))
            self.is_fsdp_enabled = True

    def train(method: steppe.Method, resume: str | None = None, **options: Any) -> State:
        forget()
        made = arguments(
            folder, gradient_accumulation_steps=MICRO, max_grad_norm=CLIP, fsdp=True,
            fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}, **options,
        )  # fmt: skip
        model = bert()
        trainer = Sharding(model, made, train_dataset=Rows(TOKENS), method=method, compute_loss_func=token_loss)
        trainer.train(resume_from_checkpoint=resume)
        assert all(isinstance(p, DTensor) for p in trainer.model.parameters())
        return weights(trainer.model)

    expected = bert()
    tokens_by_hand(expected, Rows(TOKENS), MICRO * WORLD, CLIP)
    with launched(rank):
        try:
            with pytest.raises(RuntimeError, match=PER_WORKER):
                train(steppe.PerWorker(steppe.SAM(rho=RHO)))
            return {
                "expected": expected.state_dict(),
                "together": train(steppe.SAM(rho=RHO)),
                "saved": train(steppe.LookSAM(rho=RHO, k=3), save_strategy="steps", save_steps=3),
                "resumed": train(steppe.LookSAM(rho=RHO, k=3), resume=str(folder / "checkpoint-3")),
            }
        finally:
            forget()


TOKENS = 10 * 4  # ten batches: five micro-batches of each worker


@pytest.mark.slow
def test_sharded_transformers(pair: Pair, tmp_path: Path) -> None:
    needs("transformers")
    for worker in pair.run(transformers, tmp_path):
        assert_close(worker["together"], worker["expected"])
        assert same(worker["saved"], worker["resumed"])
