"""Weights that somebody hands in: found whatever is wrapped around them, explained where they do not fit, never run."""

from __future__ import annotations

import os
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from steppe._util.checkpoints import load_into, read_checkpoint

State = dict[str, Tensor]


def net(width: int = 5) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        OrderedDict(first=nn.Linear(3, width), norm=nn.BatchNorm1d(width), act=nn.ReLU(), head=nn.Linear(width, 2))
    )


def prefixed(prefix: str) -> Callable[[State], State]:
    return lambda state: {prefix + k: v for k, v in state.items()}


WRAPPED: Mapping[str, Callable[[State], Any]] = {
    "bare": lambda s: s,
    "state_dict": lambda s: {"state_dict": s, "epoch": 3, "arch": "net"},
    "model": lambda s: {"model": s, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}},
    "nested": lambda s: {"model": {"state_dict": s}, "epoch": 3},
    "data-parallel": prefixed("module."),
    "compiled": prefixed("_orig_mod."),
    "compiled data-parallel": prefixed("_orig_mod.module."),
    "data-parallel compiled": prefixed("module._orig_mod."),
    "lightning": lambda s: {"state_dict": prefixed("model.")(s), "pytorch-lightning_version": "2.5"},
    "own prefix": prefixed("net.backbone."),
    "with numbers": lambda s: {**s, "epoch": 3},
}


def loaded(path: Path, model: nn.Module) -> State:
    load_into(model, read_checkpoint(path), path)
    return model.state_dict()


@pytest.mark.parametrize("wrapping", WRAPPED)
def test_weights_are_found_in_what_scripts_save(tmp_path: Path, wrapping: str) -> None:
    saved, path = net().state_dict(), tmp_path / "weights.pth"
    saved["norm.running_mean"] += 0.5
    torch.save(WRAPPED[wrapping](saved), path)
    torch.manual_seed(1)
    found = loaded(path, nn.Sequential(OrderedDict(net().named_children())).apply(_scrambled))
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[k], saved[k]) for k in saved)


def _scrambled(module: nn.Module) -> None:
    for t in [*module.parameters(recurse=False), *module.buffers(recurse=False)]:
        with torch.no_grad():
            t.fill_(7)


def test_safetensors_are_read(tmp_path: Path) -> None:
    saved, path = net().state_dict(), tmp_path / "weights.safetensors"
    save_file(prefixed("module.")(saved), path)
    found = loaded(path, net().apply(_scrambled))
    assert all(torch.equal(found[k], saved[k]) for k in saved)


class Code:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, place: Path):
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


@pytest.mark.parametrize("protocol", [2, 4, "torch", "torch, old format"])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".ckpt", ".tar"])
def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path: Path, protocol: Any, suffix: str) -> None:
    path, trace = tmp_path / f"evil{suffix}", tmp_path / "trace"
    evil = {"state_dict": net().state_dict(), "hook": Code(trace)}
    if isinstance(protocol, int):
        path.write_bytes(pickle.dumps(evil, protocol))
    else:
        torch.save(evil, path, _use_new_zipfile_serialization=protocol == "torch")
    with pytest.raises(ValueError, match="evil"):
        read_checkpoint(path)
    assert not trace.exists()
    pickle.loads(pickle.dumps(Code(trace)))  # it would have left its trace
    assert trace.exists()


def test_a_pickle_by_the_name_of_safetensors_is_refused(tmp_path: Path) -> None:
    path, trace = tmp_path / "evil.safetensors", tmp_path / "trace"
    path.write_bytes(pickle.dumps(Code(trace)))
    with pytest.raises(ValueError, match=r"is no \.safetensors file"):
        read_checkpoint(path)
    assert not trace.exists()


def test_a_whole_model_is_refused_with_a_way_out(tmp_path: Path) -> None:
    torch.save(net(), tmp_path / "whole.pt")
    with pytest.raises(ValueError, match=r"save the weights alone: torch\.save\(model\.state_dict\(\)"):
        read_checkpoint(tmp_path / "whole.pt")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1, 2], "holds a list"),
        ({"epoch": 3}, "has no tensors in it, but 'epoch'"),
        ({"model": {"state_dict": {}}}, "has no tensors in it, but nothing"),
        (torch.zeros(3), "holds a Tensor"),
        ({"model": [1]}, "has no tensors in it, but 'model'"),
    ],
)
def test_other_contents_are_named(tmp_path: Path, content: Any, said: str) -> None:
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(ValueError, match=said):
        read_checkpoint(tmp_path / "odd.pt")


def test_files_that_are_no_checkpoints_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        read_checkpoint(tmp_path / "none.pt")
    (tmp_path / "code.py").write_text("1")
    with pytest.raises(ValueError, match=r"ends in \.safetensors"):
        read_checkpoint(tmp_path / "code.py")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_an_error_with_a_name_and_never_anything_else(tmp_path: Path, data: st.DataObject) -> None:
    whole = {}
    for suffix in (".pt", ".safetensors"):
        path = tmp_path / f"whole{suffix}"
        if not path.exists():
            (torch.save if suffix == ".pt" else save_file)(net().state_dict(), path)
        whole[suffix] = path.read_bytes()
    suffix = data.draw(st.sampled_from(sorted(whole)))
    content = bytearray(whole[suffix])
    content = content[: data.draw(st.integers(0, len(content)))]
    for place in data.draw(st.lists(st.integers(0, max(len(content) - 1, 0)), max_size=4)):
        if content:
            content[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path / f"damaged{suffix}"
    path.write_bytes(content)
    found: State = {}
    with suppress(ValueError):  # and nothing else
        found = read_checkpoint(path)
    assert all(isinstance(t, Tensor) for t in found.values())  # a flipped bit in a number is a number


def test_names_that_do_not_fit_are_refused_with_the_nearest(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save({k.replace("head", "haed"): v for k, v in net().state_dict().items()}, path)
    with pytest.raises(ValueError, match="does not fit") as caught:
        loaded(path, net())
    said = str(caught.value)
    assert "'haed.weight' may be 'head.weight'" in said
    assert "--model-options" in said


def test_a_buffer_that_a_class_makes_itself_may_be_in_a_file_that_says_the_same(tmp_path: Path) -> None:
    """Positions of BERT: stored by early versions of Transformers, and made by later ones."""
    model, file = net(), tmp_path / "old.pt"
    model.register_buffer("positions", torch.arange(4)[None], persistent=False)
    state = {name: t + 1 for name, t in model.state_dict().items()}
    for prefix in ("", "module."):
        torch.save(prefixed(prefix)({**state, "positions": torch.arange(4)[None]}), file)
        assert all(torch.equal(t, state[name]) for name, t in loaded(file, model).items())
    for other in (torch.arange(4), torch.arange(1, 5)[None]):
        torch.save({**state, "positions": other}, file)
        with pytest.raises(ValueError, match="unexpected: positions"):
            loaded(file, model)


def test_shapes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path, model = tmp_path / "weights.pt", net(5)
    torch.save(net(6).state_dict(), path)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"first\.weight \(6, 3\) where the model has \(5, 3\)"):
        loaded(path, model)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
