"""Law: a run that is saved, rebuilt and continued is bitwise the run that was never interrupted."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from registry import ENTRIES, STATEFUL, Entry, Run, obeying, same
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import steppe
from steppe.testing import laws

STEPS, SAVED_AFTER = 5, 3  # odd and even steps on both sides: methods that act every k-th step do both


BY_NAME = {e.name: e for e in ENTRIES}


def trained(entry: Entry, base: str, steps: int) -> Run:
    run = Run(entry, base)
    for i in range(steps):
        run.step(i)
    return run


@cache
def uninterrupted(name: str, base: str) -> dict[str, Any]:
    """Where a run of all steps ends."""
    return trained(BY_NAME[name], base, STEPS).everything()


def continued(run: Run) -> Run:
    for i in range(SAVED_AFTER, STEPS):
        run.step(i)
    return run


@pytest.mark.parametrize("base", STATEFUL)
@obeying()
def test_a_file_read_back_safely(entry: Entry, base: str) -> None:
    laws.resumes(entry, base)


@obeying()
def test_safetensors(entry: Entry, tmp_path: Path) -> None:
    """Tensors go into the safetensors file, plain options into JSON."""
    saved = trained(entry, "adamw", SAVED_AFTER)
    state = saved.opt.state_dict()
    tensors = {f"{i}|{name}": t.contiguous() for i, slots in state["state"].items() for name, t in slots.items()}
    save_file({**tensors, **{f"model|{k}": v for k, v in saved.model.state_dict().items()}}, tmp_path / "c.safetensors")
    (tmp_path / "groups.json").write_text(json.dumps(state["param_groups"]))
    flat = load_file(tmp_path / "c.safetensors")
    model = {k.removeprefix("model|"): flat.pop(k) for k in list(flat) if k.startswith("model|")}
    nested: dict[int, dict[str, torch.Tensor]] = {}
    for key, tensor in flat.items():
        index, name = key.split("|")
        nested.setdefault(int(index), {})[name] = tensor
    optimizer = {"state": nested, "param_groups": json.loads((tmp_path / "groups.json").read_text())}
    run = Run(entry, "adamw")
    run.model.load_state_dict(model)
    run.opt.load_state_dict(optimizer)
    whole = uninterrupted(entry.name, "adamw")
    same(continued(run).weights(), whole["model"])
    same(run.opt.state_dict()["state"], whole["optimizer"]["state"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process is what is meant here
@obeying()
def test_distributed_checkpoint(entry: Entry, tmp_path: Path) -> None:
    through_a_distributed_checkpoint(entry, "adamw", tmp_path)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@obeying(only=lambda e: e.name in ("sam", "sa-sam", "looksam", "ssam-d"))
def test_distributed_checkpoint_of_memory_alone(entry: Entry, tmp_path: Path) -> None:
    """The base keeps no state: what is there is the method's own, if it has any."""
    through_a_distributed_checkpoint(entry, "bare", tmp_path)


# one process, without a warning; torch 2.6 has no such option and warns
ALONE = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}


def through_a_distributed_checkpoint(entry: Entry, base: str, tmp_path: Path) -> None:
    """Saved by parameter names, and loaded into an optimizer whose state DCP creates by a step at lr = 0."""
    saved = trained(entry, base, SAVED_AFTER)
    dcp.save(
        {"model": saved.model.state_dict(), "optimizer": get_optimizer_state_dict(saved.model, saved.opt)},
        checkpoint_id=tmp_path / "dcp",
        **ALONE,
    )
    run = Run(entry, base)
    before = run.weights()
    state = {"model": run.model.state_dict(), "optimizer": get_optimizer_state_dict(run.model, run.opt)}
    same(run.weights(), before)  # creating the state moved nothing
    dcp.load(state, checkpoint_id=tmp_path / "dcp", **ALONE)
    run.model.load_state_dict(state["model"])
    set_optimizer_state_dict(run.model, run.opt, state["optimizer"])
    assert run.opt.param_groups[0]["lr"] == saved.opt.param_groups[0]["lr"]
    same(continued(run).weights(), uninterrupted(entry.name, base)["model"])


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
@obeying()
def test_a_copy_goes_on_by_itself(entry: Entry, clone: Any) -> None:
    """The copy trains its own model and leaves the original alone."""
    run = trained(entry, "adamw", SAVED_AFTER)
    before = run.everything()
    twin = Run(entry, "adamw")
    twin.model, twin.opt = clone((run.model, run.opt))
    assert twin.opt.base.param_groups[0]["params"][0] is next(twin.model.parameters())
    continued(twin)
    same(run.everything(), before)
    same(twin.everything(), uninterrupted(entry.name, "adamw"))


def test_every_method_is_in_the_registry() -> None:
    """A method without an entry would escape every law."""
    assert {e.registered.name for e in ENTRIES if e.registered} == set(steppe.METHODS)
    combinators = {steppe.Every, steppe.PerPart, steppe.PerWorker}
    assert combinators <= {type(e.method()) for e in ENTRIES}
