"""Distances and paths between checkpoints: closed forms, exact ends, buffers, state dicts that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import QuadraticBowl, conv_problem, each_output, flat_weights, mlp_problem, random_hessian, random_vector
from snapshots import assert_untouched
from torch import nn

from steppe.measures import plotting
from steppe.measures.directions import LAYERS, Normalised, matched, weights_from_state
from steppe.measures.estimate import NotFinite
from steppe.measures.landscape import empty_slice, slice_1d
from steppe.measures.objective import Objective
from steppe.measures.paths import Path, distance, path


class Function(nn.Module):
    """Any function of one weight as a loss."""

    def __init__(self, function, start: float):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start], dtype=torch.float64))
        self.function = function

    def forward(self, x):
        return self.function(self.w).expand(len(x))


def line(function, start: float) -> Objective:
    return Objective(Function(function, start), each_output, (torch.zeros(2, 1), torch.zeros(2)))


def well(w):
    return (w**2 - 1) ** 2


def at(w: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([w], dtype=torch.float64)}


def trained_like(seed: int) -> nn.Module:
    """The conv net with other weights, and statistics that data have gone into."""
    problem = conv_problem(3, seed=seed)
    model = problem.model.train()
    with torch.no_grad():
        for x, _ in problem.batches:
            model(x * seed + 1)
    return model


def stop_after(n: int):
    def tick(done: int, total: int) -> None:
        if done == n:
            raise KeyboardInterrupt

    return tick


# --- barriers


def test_the_barrier_of_a_double_well_is_its_hill():
    found = path(line(well, -1.0), at(1.0), points=21)
    np.testing.assert_allclose(found.losses, ((2 * found.t - 1) ** 2 - 1) ** 2, atol=1e-14)
    barrier = found.barrier()
    assert barrier.value == pytest.approx(1)
    assert found.top == 0.5
    assert (barrier.kind, barrier.n, barrier.complete) == ("lower bound", 1, True)
    assert np.isnan(barrier.stderr)
    assert "t = 0.5" in barrier.note
    assert barrier.cost.losses == pytest.approx(21)


@settings(max_examples=20, deadline=None)
@given(st.floats(-2, 2), st.floats(-2, 2))
def test_a_barrier_is_above_the_line_between_the_ends_and_never_below_zero(a, b):
    """From a slope, where the mean of the ends or their maximum would give something else."""
    found = path(line(well, a), at(b), points=11)
    t = np.linspace(0, 1, 11)
    losses = ((a + t * (b - a)) ** 2 - 1) ** 2
    excess = losses - (1 - t) * losses[0] - t * losses[-1]
    assert found.barrier().value == pytest.approx(max(excess.max(), 0), abs=1e-12)
    assert found.barrier().value >= 0
    assert found.excess() == pytest.approx(excess, abs=1e-12)


def test_a_finer_grid_never_finds_a_lower_barrier():
    heights = [path(line(lambda w: torch.sin(5 * w), 0.1), at(3.0), points=n).barrier().value for n in (3, 5, 9, 17)]
    assert heights == sorted(heights)
    assert heights[0] < heights[-1]


def test_in_a_bowl_the_path_hangs_below_its_ends():
    hessian, w, v = random_hessian(6), random_vector(6, 1), random_vector(6, 2)
    row = torch.cat([torch.ones(1), torch.zeros(6)]).double().expand(2, -1)
    objective = Objective(QuadraticBowl(hessian, w), each_output, (row, torch.zeros(2)))
    found = path(objective, QuadraticBowl(hessian, v).state_dict(), points=7)
    d = v - w
    np.testing.assert_allclose(found.excess(), -found.t * (1 - found.t) * float(d @ hessian @ d) / 2, rtol=1e-9)
    assert found.barrier().value == 0
    assert found.top in (0, 1)
    assert found.along.lengths == pytest.approx((float(d.norm()),))


def test_there_is_no_barrier_where_the_loss_is_not_finite():
    found = path(line(torch.sqrt, 1.0), at(-1.0), points=5)
    assert found.along.nonfinite == 2
    assert np.isnan(found.losses[3:]).all()
    with pytest.raises(NotFinite, match=r"at t = 0.75, 1"):
        found.barrier()
    pole = path(line(lambda w: 1 / w.abs(), 1.0), at(-1.0), points=5)
    assert pole.losses[2] == np.inf
    with pytest.raises(NotFinite, match=r"at t = 0.5"):
        pole.barrier()


# --- the two ends, and buffers


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_ends_are_the_losses_of_the_two_checkpoints_bit_for_bit(dtype):
    a, b = (trained_like(seed).to(dtype) for seed in (1, 2))
    problem = conv_problem(2)
    batches = [(x.to(dtype), y) for x, y in problem.batches]
    here, there = (Objective(m, problem.losses, batches) for m in (a, b))
    found = path(here, b.state_dict(), points=3)
    assert found.losses[0] == here.loss()
    assert found.losses[-1] == there.loss()
    assert found.buffers == "interpolated"
    assert found.kept == ()


@pytest.mark.parametrize("buffers", ["interpolated", "own"])
def test_a_path_is_what_a_naive_loop_over_loaded_state_dicts_gives(buffers):
    a, b = trained_like(1), trained_like(2)
    problem = conv_problem(2)
    objective = Objective(a, problem.losses, problem.batches)
    found = path(objective, b.state_dict(), points=5, buffers=buffers)
    floating = {n for n, _ in a.named_buffers() if "running" in n}
    assert floating
    for t, loss in zip(found.t, found.losses, strict=True):
        model, mixed = trained_like(1), {}
        for name, mine in a.state_dict().items():
            move = name not in dict(a.named_buffers()) or (buffers == "interpolated" and name in floating)
            mixed[name] = mine + t * (b.state_dict()[name] - mine) if move else mine
        model.load_state_dict(mixed)
        model.eval()
        with torch.no_grad():
            want = torch.cat([problem.losses(model(x), y) for x, y in problem.batches]).mean()
        assert loss == pytest.approx(float(want), rel=1e-12)
    assert found.kept == (() if buffers == "interpolated" else tuple(sorted(floating)))
    assert found.buffers == buffers


def test_integer_buffers_are_kept():
    class Counted(nn.Module):
        def __init__(self, count: int, w: float):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([w], dtype=torch.float64))
            self.register_buffer("count", torch.tensor(count))

        def forward(self, x):
            return (self.w * self.count).expand(len(x))

    objective = Objective(Counted(3, 1.0), each_output, (torch.zeros(2, 1), torch.zeros(2)))
    found = path(objective, Counted(7, 2.0).state_dict(), points=3)
    assert found.losses.tolist() == [3.0, 4.5, 6.0]


def test_what_does_not_move_is_named():
    problem = mlp_problem(1)
    other = mlp_problem(1, seed=4).model.state_dict()
    some = Objective(problem.model, problem.losses, problem.batches, only=["0.*", "7.*"])
    found = path(some, other, points=3)
    assert found.kept == tuple(n for n in other if n.split(".")[0] not in ("0", "7"))
    mixed = {**problem.model.state_dict(), **{n: other[n] for n in some.params}}
    twin = problem.fresh_model()
    twin.load_state_dict(mixed)
    assert found.losses[-1] == Objective(twin, problem.losses, problem.batches).loss()


def test_statistics_of_the_batch_need_no_buffers():
    a, b = trained_like(1), trained_like(2)
    problem = conv_problem(2)
    objective = Objective(a, problem.losses, problem.batches, statistics="batch")
    one, two = (path(objective, b.state_dict(), points=3, buffers=how).losses for how in ("interpolated", "own"))
    assert np.array_equal(one, two)


def test_losses_that_look_at_the_model_see_it_where_it_is():
    problem = mlp_problem(1)
    model, other = problem.model, mlp_problem(1, seed=4).model

    def decayed(out, y):
        return problem.losses(out, y) + sum(p.square().sum() for p in model.parameters())

    found = path(Objective(model, decayed, problem.batches), other.state_dict(), points=3)
    squares = float(flat_weights(other).square().sum())
    assert found.losses[-1] == pytest.approx(Objective(other, problem.losses, problem.batches).loss() + squares)


class Trouble(Exception):
    pass


@pytest.mark.parametrize("end", ["done", "interrupted", "failed"])
def test_both_models_are_untouched(end):
    a, b = trained_like(1), trained_like(2)
    problem = conv_problem(2)
    problem.losses(a(problem.batches[0][0]), problem.batches[0][1]).mean().backward()
    objective = Objective(a, problem.losses, problem.batches)

    def fail(done, total):
        raise Trouble

    tick = {"done": None, "interrupted": stop_after(2), "failed": fail}[end]
    with assert_untouched(a, b):
        try:
            assert path(objective, b.state_dict(), points=4, tick=tick).complete is (end == "done")
        except Trouble:
            assert end == "failed"
        distance(objective, a.state_dict(), b.state_dict())


# --- stopping, resuming, files


def test_stopped_and_resumed_is_bitwise_uninterrupted(tmp_path):
    a, b = trained_like(1), trained_like(2)
    problem = conv_problem(1)
    objective = Objective(a, problem.losses, problem.batches)
    whole = path(objective, b.state_dict(), points=6)
    part = path(objective, b.state_dict(), points=6, tick=stop_after(3))
    assert part.along.filled.tolist() == [True, True, False, False, False, True]  # the ends come first
    assert part.barrier().complete is False
    assert part.barrier().value == pytest.approx(max(0.0, whole.excess()[1]))
    part.save(tmp_path / "part.npz")
    end = path(objective, b.state_dict(), points=6, resume=Path.load(tmp_path / "part.npz"))
    assert end.losses.tobytes() == whole.losses.tobytes()
    assert end.barrier().value == whole.barrier().value
    assert (end.buffers, end.kept, end.complete) == (whole.buffers, whole.kept, True)
    assert json.loads(end.to_json())["notes"] == {"buffers": "interpolated", "kept": []}
    with pytest.raises(ValueError, match="interpolated buffers, not own"):
        path(objective, b.state_dict(), points=6, resume=part, buffers="own")
    with pytest.raises(ValueError, match="the path was stopped before both"):
        path(objective, b.state_dict(), points=6, tick=stop_after(1)).barrier()
    slice_1d(objective, objective.weights, points=2).save(tmp_path / "slice.npz")
    with pytest.raises(ValueError, match=r"holds a slice and no path"):
        Path.load(tmp_path / "slice.npz")


def test_wrong_requests_are_refused():
    objective = line(well, 0.5)
    with pytest.raises(ValueError, match="2 or more points, not 1"):
        path(objective, at(1.0), points=1)
    with pytest.raises(ValueError, match="not 'mine'"):
        path(objective, at(1.0), buffers="mine")


# --- distances


def naive_distance(a: dict, b: dict, each: str, one_dim: str) -> float:
    ratios = []
    for name, x in a.items():
        parts = list(zip(x, b[name], strict=True)) if x.ndim > 1 and each == "filter" else [(x, b[name])]
        ratios += (
            [float(((v - u).norm() / u.norm()) ** 2) for u, v in parts] if x.ndim > 1 or one_dim == "whole" else []
        )
    return (sum(ratios) / len(ratios)) ** 0.5


@pytest.mark.parametrize("one_dim", ["zero", "whole"])
@pytest.mark.parametrize("each", ["filter", "layer"])
def test_distances_against_a_naive_loop(each, one_dim):
    problem = mlp_problem(1)
    objective = Objective(problem.model, problem.losses, problem.batches)
    a, b, o = (mlp_problem(1, seed=k).model for k in (0, 1, 2))
    x, y, z = (flat_weights(m) for m in (a, b, o))
    got = distance(objective, a.state_dict(), b.state_dict(), o.state_dict(), Normalised(each, one_dim))
    assert got.l2 == pytest.approx(float((y - x).norm()))
    assert got.relative == pytest.approx(float((y - x).norm() / x.norm()))
    assert got.normalised == pytest.approx(naive_distance(a.state_dict(), b.state_dict(), each, one_dim))
    assert got.cosine == pytest.approx(float((x - z) @ (y - z) / (x - z).norm() / (y - z).norm()))
    assert distance(objective, a.state_dict(), b.state_dict()).cosine is None


def test_distances_of_vectors_and_of_the_same_place():
    problem = mlp_problem(1)
    objective = Objective(problem.model, problem.losses, problem.batches)
    w, state = objective.weights, problem.model.state_dict()
    twice = distance(objective.space, w, w * 2.0, objective.space.zeros(), LAYERS)
    assert (twice.relative, twice.normalised, twice.cosine) == pytest.approx((1, 1, 1))
    same = distance(objective, state, w, origin=w)
    assert (same.l2, same.relative, same.normalised) == (0, 0, 0)
    assert np.isnan(same.cosine)
    zero = objective.space.zeros()
    assert distance(objective, zero, w).relative == distance(objective, zero, w).normalised == np.inf
    assert distance(objective, zero, zero) == replace(same, cosine=None)
    with pytest.raises(TypeError, match="a space has no parameter names"):
        distance(objective.space, state, w)


# --- state dicts


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.module = nn.Linear(3, 3)  # named like a wrapper's child
        self.out = nn.Linear(3, 3)
        self.out.weight = self.module.weight
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def test_prefixes_of_wrappers_are_read_over():
    model, other = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    state = other.state_dict()
    for wrap in ("", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "module.module."):
        found = matched(model, {wrap + k: v for k, v in state.items()})
        assert found.keys() == state.keys()
        assert all(found[k] is state[k] for k in state)
    inner = {k.replace("0.", "0._orig_mod.", 1): v for k, v in state.items()}  # one layer compiled
    assert matched(model, inner).keys() == state.keys()
    model[0] = torch.compile(model[0], backend="eager")
    assert set(matched(model, {"module." + k: v for k, v in state.items()})) == set(model.state_dict())
    parallel = nn.DataParallel(other)
    assert set(matched(other, parallel.state_dict())) == set(state)


def test_a_model_of_which_all_is_named_like_a_wrapper_is_not_unwrapped():
    model = nn.Module()
    model.module = nn.Linear(2, 3)
    state = model.state_dict()
    assert matched(model, state).keys() == state.keys()
    assert matched(model, {"module." + k: v for k, v in state.items()}).keys() == state.keys()
    with pytest.raises(ValueError, match=r"missing: module.bias$"):
        matched(model, {"module.weight": state["module.weight"]})


def test_a_child_named_like_a_wrapper_and_tied_weights_keep_their_names():
    model, other = Tied(), Tied()
    assert "module.weight" in matched(model, other.state_dict())
    assert matched(model, {"module." + k: v for k, v in other.state_dict().items()}).keys() == model.state_dict().keys()
    once = {k: v for k, v in other.state_dict().items() if k != "out.weight"}  # as safetensors saves tied weights
    found = matched(model, once)
    assert found["out.weight"] is found["module.weight"]
    x = torch.randn(4, 3)
    objective = Objective(model, nn.functional.mse_loss, (x, x), forward=lambda m, b: (m.out(m.module(b[0])), b[1]))
    twin = Objective(other, nn.functional.mse_loss, (x, x), forward=objective.forward)
    again = {k: v for k, v in other.state_dict().items() if k != "module.weight"}
    for state in (once, again, other.state_dict()):
        assert path(objective, state, points=2).losses[-1] == twin.loss()


def test_state_dicts_that_do_not_fit_are_refused_by_name():
    model = nn.Linear(2, 3)
    good = model.state_dict()
    with pytest.raises(ValueError, match=r"missing: bias$"):
        matched(model, {"weight": good["weight"]})
    with pytest.raises(ValueError, match=r"unexpected: extra$"):
        matched(model, {**good, "extra": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"of another shape: weight \(3, 3\) where the model has \(3, 2\)$"):
        matched(model, {**good, "weight": torch.zeros(3, 3)})
    with pytest.raises(ValueError, match=r"missing: weight, bias; unexpected: epoch, net. Did you mean .* under 'net'"):
        matched(model, {"epoch": 3, "net": good})
    with pytest.raises(ValueError, match="and 5 more"):
        matched(mlp_problem(1).model, {})
    with pytest.raises(TypeError, match="not a Linear"):
        matched(model, nn.Linear(2, 3))
    with pytest.raises(ValueError, match="missing: w"):
        path(line(well, 0.0), {})


def test_other_precisions_are_taken_and_order_does_not_matter():
    problem = mlp_problem(1)
    objective = Objective(problem.model, problem.losses, problem.batches)
    half = {k: v.to(torch.float16) for k, v in reversed(problem.model.state_dict().items())}
    found = weights_from_state(objective, half)
    for x, p in zip(found.tensors, objective.params.values(), strict=True):
        assert x.dtype == p.dtype
        torch.testing.assert_close(x, p.detach(), rtol=1e-3, atol=1e-3)


# --- pictures


def test_a_path_is_drawn_with_its_barrier():
    pytest.importorskip("plotly")
    found = path(line(lambda w: well(w) + 0.5 * w, -1.0), at(1.2), points=4, name="the other one")
    fig = plotting.figure(found)
    curve, ends, barrier = fig.data
    assert np.array_equal(curve.x, found.t)
    assert np.array_equal(curve.y, found.losses)
    assert (list(ends.x), list(ends.y)) == ([0, 1], [found.losses[0], found.losses[-1]])
    k = int(np.argmax(found.excess()))
    assert found.t[k] == 1 / 3  # where the line between the ends is not at their mean
    assert list(barrier.x) == [found.t[k]] * 2
    assert barrier.y[1] == pytest.approx(found.losses[k])
    assert barrier.y[1] - barrier.y[0] == pytest.approx(found.barrier().value)
    assert fig.layout.xaxis.title.text.endswith("1 is the other one")
    assert "4 points, 4 passes; t = 1 is a distance of 2.2 towards the other one" in plotting.caption(found)


def test_a_path_with_holes_is_drawn_without_a_barrier():
    pytest.importorskip("plotly")
    found = path(line(torch.sqrt, 1.0), at(-1.0), points=5)
    assert [t.name for t in plotting.figure(found).data] == ["loss"]
    stopped = path(line(well, -1.0), at(1.0), points=5, tick=stop_after(1))
    assert [t.name for t in plotting.figure(stopped).data] == ["loss"]
    kept = Path(
        replace(empty_slice([[0, 1]], ["x"], [1.0], [None]), notes={"buffers": "own", "kept": ["bn.running_mean"]})
    )
    assert "buffers kept; 1 tensors that differ kept, such as bn.running_mean" in plotting.caption(kept)
