"""Slices of a loss: closed forms on bowls, directions against naive loops, files, stopping, resuming, pictures."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import QuadraticBowl, conv_problem, each_output, flat_weights, mlp_problem, random_hessian, random_vector
from snapshots import assert_untouched
from torch import nn

from steppe.measures import plotting
from steppe.measures.directions import FILTERS, LAYERS, UNSCALED, Direction, Normalised, random_direction, random_plane
from steppe.measures.directions import towards as direction_towards
from steppe.measures.landscape import Slice, coordinates, empty_slice, slice_1d, slice_2d, slice_along
from steppe.measures.objective import Objective
from steppe.measures.plotting import caption

D = 7
ROWS = torch.cat([random_vector(5, seed=3).abs()[:, None], random_vector(5 * D, seed=4).view(5, D)], 1)
BATCHES = [(ROWS[:2], torch.zeros(2)), (ROWS[2:], torch.zeros(3))]


def bowl(seed: int = 0) -> tuple[Objective, torch.Tensor, torch.Tensor]:
    """An objective on batches of 2 and 3 rows, its Hessian and its gradient at 0."""
    hessian = random_hessian(D, seed)
    objective = Objective(QuadraticBowl(hessian, random_vector(D, seed=seed + 1)), each_output, BATCHES)
    return objective, ROWS[:, 0].mean() * hessian, ROWS[:, 1:].mean(0)


def vector(objective: Objective, entries: torch.Tensor):
    sizes = [p.numel() for p in objective.params.values()]
    parts = zip(entries.split(sizes), objective.params.values(), strict=True)
    return objective.space.vector([x.view_as(p) for x, p in parts])


def network(problem) -> Objective:
    return Objective(problem.model, problem.losses, problem.batches)


def stop_after(n: int):
    def tick(done: int, total: int) -> None:
        if done == n:
            raise KeyboardInterrupt

    return tick


# --- values on a grid


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 10.0), st.integers(2, 6))
def test_a_line_through_a_bowl_is_its_parabola(seed, span, points):
    objective, hessian, slope = bowl(seed % 7)
    w, d = flat_weights(objective.model), random_vector(D, seed)
    got = slice_1d(objective, vector(objective, d), span, points)
    for x, loss in zip(got.axes[0], got.losses, strict=True):
        at = w + x * d
        assert loss == pytest.approx(float(at @ hessian @ at / 2 + slope @ at), rel=1e-10, abs=1e-10)
    assert got.losses.dtype == np.float64
    assert got.complete
    assert got.lengths == pytest.approx((float(d.norm()),))


def test_a_plane_through_a_bowl_has_every_point_in_its_place():
    """More columns than rows and other spans: a transposed or shifted grid cannot pass."""
    objective, hessian, slope = bowl()
    w, a, b = flat_weights(objective.model), random_vector(D, 20), random_vector(D, 21)
    got = slice_2d(objective, vector(objective, a), vector(objective, b), span=(0.7, 0.3), points=(5, 4))
    assert got.losses.shape == (5, 4)
    assert got.axes[0].tolist() == pytest.approx([-0.7, -0.35, 0, 0.35, 0.7])
    assert got.axes[1].tolist() == pytest.approx([-0.3, -0.1, 0.1, 0.3])
    want = np.zeros((5, 4))
    for i, x in enumerate([-0.7, -0.35, 0, 0.35, 0.7]):
        for j, y in enumerate([-0.3, -0.1, 0.1, 0.3]):
            at = w + x * a + y * b
            want[i, j] = at @ hessian @ at / 2 + slope @ at
    np.testing.assert_allclose(got.losses, want, rtol=1e-12)
    assert got.cosine == pytest.approx(float(a @ b / a.norm() / b.norm()))
    assert got.lengths == pytest.approx((float(a.norm()), float(b.norm())))


def test_along_an_eigenvector_the_loss_curves_by_its_eigenvalue():
    objective, hessian, _ = bowl()
    values, vectors = torch.linalg.eigh(hessian)
    top = Direction(vector(objective, vectors[:, -1]), "top eigenvector")
    got = slice_along(objective, [top], [[-2.0, 0.0, 2.0]])
    assert (got.losses[0] - 2 * got.losses[1] + got.losses[2]) / 4 == pytest.approx(float(values[-1]), rel=1e-10)
    assert got.names == ("top eigenvector",)
    assert got.seeds == (None,)


@given(st.floats(1e-6, 1e6), st.integers(2, 200))
def test_coordinates_are_mirrored_bit_for_bit_and_end_at_the_span(span, points):
    x = coordinates(span, points)
    assert len(x) == points
    assert (x[0], x[-1]) == (-span, span)
    assert (x == -x[::-1]).all()
    assert points % 2 == 0 or x[points // 2] == 0
    np.testing.assert_allclose(np.diff(x), 2 * span / (points - 1), rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_in_the_middle_is_the_loss_itself_bit_for_bit(dtype):
    problem = mlp_problem(2)
    batches = [(x.to(dtype), y) for x, y in problem.batches]
    objective = Objective(problem.model.to(dtype), problem.losses, batches)
    a, b = random_plane(objective)
    assert slice_1d(objective, a, 0.3, 31).losses[15] == objective.loss()
    assert slice_2d(objective, a, b, (0.3, 0.7), (3, 5)).losses[1, 2] == objective.loss()


def test_in_the_middle_even_the_sign_of_zero_is_that_of_the_weights():
    model = Roots(lambda s: torch.signbit(s).double())
    with torch.no_grad():
        model.w.fill_(-0.0)
    objective = Objective(model, each_output, (torch.ones(3, dtype=torch.float64), torch.zeros(3)))
    direction = objective.space.vector([torch.ones(2, 2, dtype=torch.float64)])
    assert slice_1d(objective, direction, points=3).losses.tolist() == [1, objective.loss(), 0]
    assert objective.loss() == 1


def test_the_cost_is_one_loss_a_point():
    objective, *_ = bowl()
    got = slice_2d(objective, *random_plane(objective, scaling=UNSCALED), points=(3, 4))
    assert got.cost.losses == pytest.approx(12)
    assert got.cost.gradients == 0
    assert 0 < got.cost.seconds < 60


class Roots(nn.Module):
    """The loss is a function of the weights' greatest entry, such as one that is no number for some."""

    def __init__(self, function):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2, 2, dtype=torch.float64))
        self.function = function

    def forward(self, x):
        return x * self.function(self.w.amax() * 4)


@pytest.mark.parametrize(("function", "name"), [(torch.sqrt, "nan"), (lambda s: 1 / s.clamp(min=0), "inf")])
def test_losses_that_are_no_number_stay_visible(function, name):
    objective = Objective(Roots(function), each_output, (torch.ones(3, dtype=torch.float64), torch.zeros(3)))
    direction = objective.space.vector([torch.ones(2, 2, dtype=torch.float64)])
    got = slice_along(objective, [direction], [[-3.0, -2.0, 0.0, 1.0]])
    assert got.nonfinite == 2
    assert got.complete
    assert [str(x) for x in got.losses[:2]] == [name] * 2
    assert np.isfinite(got.losses[2:]).all()
    told = json.loads(got.to_json())
    assert told["losses"][:2] == [name] * 2
    assert told["losses"][2:] == got.losses[2:].tolist()
    assert got.lowest == ((2,) if name == "nan" else (3,))


# --- directions


def naive(objective: Objective, raw, each: str, one_dim: str) -> list[torch.Tensor]:
    """Filter by filter, entry by entry."""
    out = []
    for d, w in zip(raw.tensors, objective.weights.tensors, strict=True):
        result = torch.zeros_like(d)
        if w.ndim > 1 and each == "filter":
            for k in range(len(w)):
                result[k] = d[k] * (sum(float(v) ** 2 for v in w[k].flatten()) ** 0.5)
                result[k] /= sum(float(v) ** 2 for v in d[k].flatten()) ** 0.5
        elif w.ndim > 1 or one_dim == "whole":
            result = d * (w.flatten().dot(w.flatten()) / d.flatten().dot(d.flatten())) ** 0.5
        out.append(result)
    return out


@pytest.mark.parametrize("one_dim", ["zero", "whole"])
@pytest.mark.parametrize("each", ["filter", "layer"])
@pytest.mark.parametrize("problem", [mlp_problem, conv_problem])
def test_directions_have_the_norms_of_the_weights(problem, each, one_dim):
    objective = network(problem(1))
    raw = random_direction(objective, 5, 1, UNSCALED).vector
    got = random_direction(objective, 5, 1, Normalised(each, one_dim)).vector
    for g, w in zip(got.tensors, naive(objective, raw, each, one_dim), strict=True):
        torch.testing.assert_close(g, w, rtol=1e-12, atol=1e-14)


def test_scalars_and_dead_filters_are_harmless():
    model = nn.Linear(3, 2, bias=False).double()
    model.scale = nn.Parameter(torch.tensor(-0.25, dtype=torch.float64))
    with torch.no_grad():
        model.weight[0] = 0
    objective = Objective(model, lambda out, y: (out * model.scale).sum(1), (torch.ones(2, 3).double(), torch.ones(2)))
    length = float(model.weight.detach().norm())
    for scaling in (Normalised("filter", "whole"), Normalised("layer", "whole")):
        found = dict(zip(objective.params, random_direction(objective, scaling=scaling).vector.tensors, strict=True))
        assert abs(float(found["scale"])) == pytest.approx(0.25)
        assert float(found["weight"].norm()) == pytest.approx(length)
        assert (float(found["weight"][0].norm()) == 0) is (scaling.each == "filter")
    nothing = FILTERS(objective.space.zeros(), objective.weights)
    assert float(nothing.norm()) == 0


def test_a_direction_is_a_function_of_its_seed_and_number():
    objective = network(mlp_problem(1))
    one = random_direction(objective, 3, 1)
    torch.manual_seed(99)
    again, other, third = (random_direction(objective, *key) for key in ((3, 1), (3, 2), (4, 1)))
    assert all(torch.equal(x, y) for x, y in zip(one.vector.tensors, again.vector.tensors, strict=True))
    assert not torch.equal(one.vector.tensors[0], other.vector.tensors[0])
    assert not torch.equal(one.vector.tensors[0], third.vector.tensors[0])
    assert one.name != other.name != third.name
    assert (one.seed, third.seed) == (3, 4)
    a, b = random_plane(objective, 3)
    assert torch.equal(b.vector.tensors[0], one.vector.tensors[0])
    assert not torch.equal(a.vector.tensors[0], b.vector.tensors[0])


def test_random_directions_are_gaussian_and_nearly_orthogonal_by_themselves():
    model = nn.Linear(200, 100).double()
    objective = Objective(model, nn.functional.mse_loss, (torch.randn(2, 200).double(), torch.randn(2, 100).double()))
    a, b = random_plane(objective, scaling=UNSCALED)
    entries = torch.cat([t.flatten() for t in a.vector.tensors])
    assert abs(float(entries.mean())) < 5 / len(entries) ** 0.5
    assert float(entries.var()) == pytest.approx(1, abs=0.05)
    assert float(entries.pow(4).mean()) == pytest.approx(3, abs=0.3)
    assert abs(slice_2d(objective, a, b, points=(2, 2)).cosine) < 5 / len(entries) ** 0.5


@pytest.mark.parametrize("scaling", [FILTERS, LAYERS, Normalised("filter", "whole"), Normalised("layer", "whole")])
def test_a_normalised_direction_is_one_filter_length_long(scaling):
    objective = network(conv_problem(1))
    direction = random_direction(objective, scaling=scaling).vector
    assert scaling.distance(direction * 0.3, objective.weights) == pytest.approx(0.3)


def test_vectors_of_another_objective_or_precision_are_taken():
    problem = mlp_problem(1)
    objective, twin = network(problem), Objective(problem.model, problem.losses, problem.batches)
    direction = random_direction(twin).vector
    want = slice_1d(objective, random_direction(objective), points=3).losses
    assert np.array_equal(slice_1d(objective, direction, points=3).losses, want)
    single = Objective(problem.fresh_model().float(), problem.losses, [(x.float(), y) for x, y in problem.batches])
    np.testing.assert_allclose(slice_1d(single, direction, points=3).losses, want, rtol=1e-4)


def test_directions_that_lead_nowhere_are_refused():
    objective = network(mlp_problem(1))
    with pytest.raises(ValueError, match=r"length 0.0, which has to be finite"):
        slice_1d(objective, objective.space.zeros())
    biases = replace(objective, only=["*.bias"])
    with pytest.raises(ValueError, match='one_dim="whole"'):
        slice_1d(biases, random_direction(biases))
    with pytest.raises(ValueError, match=r"length nan"):
        slice_1d(objective, objective.weights * float("nan"))
    with pytest.raises(ValueError, match=r"has 5 tensors and does not fit the 10"):
        slice_1d(objective, random_direction(biases, scaling=UNSCALED))
    with pytest.raises(ValueError, match="positive span"):
        slice_1d(objective, random_direction(objective), span=0.0)
    with pytest.raises(ValueError, match="2 or more points"):
        slice_1d(objective, random_direction(objective), points=1)
    with pytest.raises(ValueError, match="finite coordinates"):
        slice_along(objective, [random_direction(objective)], [[0.0, float("nan")]])
    with pytest.raises(ValueError, match="1 and 2"):
        slice_along(objective, [random_direction(objective)], [[0.0], [1.0]])


def test_towards_a_checkpoint_coordinate_one_is_the_checkpoint():
    problem = mlp_problem(2)
    objective, other = network(problem), mlp_problem(1, seed=5).model
    there = Objective(other, problem.losses, problem.batches).loss()
    towards = direction_towards(objective, other.state_dict(), "seed 5")
    got = slice_along(objective, [towards], [[0.0, 1.0]])
    assert got.losses.tolist() == pytest.approx([objective.loss(), there], rel=1e-12)
    assert got.names == ("towards seed 5",)
    scaled = direction_towards(objective, other.state_dict(), scaling=LAYERS)
    assert LAYERS.distance(scaled.vector, objective.weights) == pytest.approx(1)
    assert "layer-normalised" in scaled.name


# --- the model is left as it was


class Trouble(Exception):
    pass


@pytest.mark.parametrize("end", ["done", "interrupted", "failed"])
def test_the_model_is_untouched(end):
    problem = conv_problem(2)
    model = problem.model.train()
    problem.losses(model(problem.batches[0][0]), problem.batches[0][1]).mean().backward()
    objective = network(problem)

    def fail(done, total):
        raise Trouble

    tick = {"done": None, "interrupted": stop_after(4), "failed": fail}[end]
    with assert_untouched(model):
        try:
            got = slice_2d(objective, *random_plane(objective, 1), points=(3, 4), tick=tick)
            assert got.complete is (end == "done")
        except Trouble:
            assert end == "failed"


# --- stopping, resuming, files


def test_stopped_and_resumed_is_bitwise_uninterrupted(tmp_path):
    objective = network(mlp_problem(2))
    plane = random_plane(objective, 2)
    ticks = []
    whole = slice_2d(objective, *plane, points=(4, 3), tick=lambda done, total: ticks.append((done, total)))
    assert ticks == [(k, 12) for k in range(1, 13)]
    part = slice_2d(objective, *plane, points=(4, 3), tick=stop_after(5))
    assert not part.complete
    assert part.filled.ravel().tolist() == [True] * 5 + [False] * 7
    assert np.isnan(part.losses.ravel()[5:]).all()
    assert np.array_equal(part.losses.ravel()[:5], whole.losses.ravel()[:5])
    assert json.loads(part.to_json())["losses"][-1] == [None] * 3
    part.save(tmp_path / "part.npz")
    before = part.losses.tobytes(), part.filled.tobytes()
    assert slice_2d(objective, *plane, points=(4, 3), resume=part).losses.tobytes() == whole.losses.tobytes()
    assert before == (part.losses.tobytes(), part.filled.tobytes())  # what was resumed is not written into
    again = slice_2d(objective, *plane, points=(4, 3), resume=Slice.load(tmp_path / "part.npz"), tick=stop_after(9))
    assert int(again.filled.sum()) == 9
    end = slice_2d(objective, *plane, points=(4, 3), resume=again)
    assert end.complete
    assert end.losses.tobytes() == whole.losses.tobytes()
    assert end.cost.losses == pytest.approx(12 + 2)  # each time one point is looked at again
    assert end.cost.seconds > again.cost.seconds > part.cost.seconds > 0


def test_resuming_something_else_is_refused():
    objective = network(mlp_problem(1))
    direction = random_direction(objective)
    part = slice_1d(objective, direction, points=9, tick=stop_after(5))  # the middle included, where any way agrees
    with pytest.raises(ValueError, match="another grid"):
        slice_1d(objective, direction, points=7, resume=part)
    with pytest.raises(ValueError, match="random direction 0 of seed 1"):
        slice_1d(objective, random_direction(objective, 1), points=9, resume=part)
    with pytest.raises(ValueError, match="is along"):
        slice_1d(objective, Direction(direction.vector * 2, direction.name), points=9, resume=part)
    with pytest.raises(ValueError, match="are not those"):  # as long, under the same name, and another way
        slice_1d(objective, Direction(direction.vector * -1, direction.name), points=9, resume=part)
    with pytest.raises(ValueError, match="are not those"):
        slice_1d(network(mlp_problem(1, rows=7)), direction, points=9, resume=part)


def slices_alike(a: Slice, b: Slice) -> bool:
    arrays = zip([*a.axes, a.losses, a.filled], [*b.axes, b.losses, b.filled], strict=True)
    return all(x.tobytes() == y.tobytes() and x.dtype == y.dtype and x.shape == y.shape for x, y in arrays) and (
        (a.names, a.lengths, a.seeds, a.cosine, a.cost, a.notes)
        == (b.names, b.lengths, b.seeds, b.cosine, b.cost, b.notes)
    )


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(width=64), min_size=6, max_size=6),
    st.lists(st.booleans(), min_size=6, max_size=6),
    st.text(max_size=20),
    st.integers(0, 2**62),
)
def test_a_file_gives_back_every_bit(tmp_path_factory, losses, filled, name, seed):
    path = tmp_path_factory.getbasetemp() / "slice"
    empty = empty_slice([[0.1, 1 / 3], [-1.0, 0.0, 5e-324]], [name, "β"], [1 / 3, 1e300], [seed, None])
    one = replace(empty, losses=np.array(losses).reshape(2, 3), filled=np.array(filled).reshape(2, 3), cosine=1 / 7)
    one = replace(one, notes={"model": name})
    one.save(path)
    assert slices_alike(Slice.load(path), one)
    json.loads(one.to_json(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    objective, *_ = bowl()
    first = slice_1d(objective, random_direction(objective, scaling=UNSCALED), points=3)
    path = tmp_path / "slice.npz"
    first.save(path)

    def half(file, **arrays):
        file.write(b"PK")
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", half)
        with pytest.raises(OSError, match="disk full"):
            replace(first, cosine=0.5).save(path)
    assert slices_alike(Slice.load(path), first)
    assert [f.name for f in tmp_path.iterdir()] == ["slice.npz"]


def test_files_that_hold_something_else_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", losses=np.zeros(3))
    with pytest.raises(ValueError, match=r"other.npz holds no slice"):
        Slice.load(tmp_path / "other.npz")
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(ValueError, match=r"array.npy is not an .npz"):
        Slice.load(tmp_path / "array.npy")
    objective, *_ = bowl()
    evil = slice_1d(objective, random_direction(objective, scaling=UNSCALED), points=3)
    evil.save(tmp_path / "good.npz")
    with zipfile.ZipFile(tmp_path / "good.npz") as good, zipfile.ZipFile(tmp_path / "evil.npz", "w") as bad:
        for entry in good.namelist():
            if entry != "losses.npy":
                bad.writestr(entry, good.read(entry))
        with bad.open("losses.npy", "w") as file:
            np.lib.format.write_array(file, np.array([print], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        Slice.load(tmp_path / "evil.npz")


def test_workers_agree_and_do_not_go_on_without_one_another():
    problem = mlp_problem(1)
    alone = slice_1d(network(problem), random_direction(network(problem)), points=3)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        objective = Objective(problem.model, problem.losses, problem.batches, group=dist.group.WORLD)
        direction = random_direction(objective)
        assert np.array_equal(slice_1d(objective, direction, points=3).losses, alone.losses)
        with pytest.raises(KeyboardInterrupt):
            slice_1d(objective, direction, points=3, tick=stop_after(1))
    finally:
        dist.destroy_process_group()


# --- pictures


def plane(losses=None, filled=None) -> Slice:
    x, y = np.linspace(-2, 2, 5), np.linspace(-1, 1, 3)
    z = 0.001 + 10 * (x[:, None] - 1) ** 2 + y[None, :] ** 2 + 0.3 * x[:, None] if losses is None else losses
    empty = empty_slice([x, y], ["one way", "another way"], [1.5, 2.5], [3, None])
    return replace(empty, losses=z, filled=np.isfinite(z) if filled is None else filled, cosine=0.125)


def traces(fig, kind: str) -> list:
    return [t for t in fig.data if t.type == kind]


def test_contours_show_the_rise_the_right_way_round():
    pytest.importorskip("plotly")
    data = plane()
    fig = plotting.figure(data)
    fill, *lines = traces(fig, "contour")
    rise = data.losses - data.losses[2, 1]  # above the loss in the middle
    for trace, z in [(fill, fill.z), *((t, t.z) for t in lines)]:
        assert np.array_equal(trace.x, data.axes[0])
        assert np.array_equal(trace.y, data.axes[1])
        z = np.array(z)
        assert z.shape == (3, 5)  # plotly's rows are y
        assert all(z[j, i] == rise[i, j] for i in range(5) for j in range(3))
    assert np.array_equal(np.array(fill.customdata)[..., 1], data.losses.T)  # the loss itself, under the pointer
    assert (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax) == (rise.min(), rise.max())
    at = [t.contours.start for t in lines]
    assert at == [level for level in plotting.levels(rise.min(), rise.max()) if level != 0]
    assert all(t.contours.end == t.contours.start for t in lines)
    centre, lowest = traces(fig, "scatter")
    assert (centre.x[0], centre.y[0]) == (0, 0)
    assert (lowest.x[0], lowest.y[0]) == (1, 0)
    assert f"{data.losses[3, 1]:.6g}" in lowest.name
    assert "one way" in fig.layout.xaxis.title.text
    assert "another way" in fig.layout.yaxis.title.text
    assert (fig.layout.yaxis.scaleanchor, fig.layout.yaxis.constrain) == ("x", "domain")  # equal units on both axes


def test_on_request_the_scale_is_logarithmic_over_four_decades():
    pytest.importorskip("plotly")
    x = np.linspace(-1, 1, 5)
    empty = empty_slice([x, x], ["a", "b"], [1.0, 1.0], [None, None])
    data = replace(empty, losses=3 + 50 * np.add.outer(x**8, x**2), filled=np.ones((5, 5), dtype=bool))
    fig = plotting.figure(data, log=True)
    fill, *lines = traces(fig, "contour")
    rise = (data.losses - 3).T
    np.testing.assert_allclose(fill.z, np.log10(np.maximum(rise, 0.01)), rtol=1e-12)  # the largest rise is 100
    assert (fig.layout.coloraxis.cmin, fig.layout.coloraxis.cmax) == pytest.approx((-2, 2))
    np.testing.assert_allclose(10.0 ** np.array(fig.layout.coloraxis.colorbar.tickvals), plotting.levels(0.01, 100))
    assert [t.contours.start for t in lines] == plotting.levels(0.01, 100)
    assert plotting.figure(data, "surface", log=True).layout.scene.zaxis.type == "log"
    assert plotting.figure(data, "surface").layout.scene.zaxis.type is None


def test_a_surface_shows_the_rise_the_right_way_round():
    pytest.importorskip("plotly")
    data = plane()
    fig = plotting.figure(data, "surface")
    (surface,) = fig.data
    assert np.array_equal(surface.x, data.axes[0])
    assert np.array_equal(surface.y, data.axes[1])
    assert np.array_equal(surface.z, (data.losses - data.losses[2, 1]).T)
    assert np.array_equal(surface.customdata, data.losses.T)
    with pytest.raises(ValueError, match="'heatmap'"):
        plotting.figure(data, "heatmap")


def test_without_the_weights_on_the_grid_the_rise_is_above_the_lowest_point():
    data = plane(losses=np.linspace(-1, 1, 15).reshape(5, 3))
    assert data.centre == (2, 1)
    assert data.baseline == data.losses[2, 1]
    beside = replace(data, axes=(data.axes[0] + 0.1, data.axes[1]))
    assert (beside.centre, beside.baseline) == (None, -1)
    assert beside.excess.min() == 0
    assert "rise above the lowest loss of the grid, -1" in caption(beside)
    broken = data.losses.copy()
    broken[2, 1] = np.nan
    assert replace(data, losses=broken).baseline == -1


def test_planes_that_are_compared_have_one_scale_and_one_colour_bar():
    pytest.importorskip("plotly")
    steep, flat = plane(), plane(losses=plane().losses / 28)
    fig = json.loads(plotting.figure([flat, steep]).to_json())
    fills = [t for t in fig["data"] if t["type"] == "contour" and t.get("coloraxis")]
    assert [t["coloraxis"] for t in fills] == ["coloraxis"] * 2
    assert [t["xaxis"] for t in fills] == ["x", "x2"]
    assert fig["layout"]["coloraxis"]["cmax"] == steep.excess.max()
    assert fig["layout"]["coloraxis"]["cmin"] == steep.excess.min()
    by_panel = {n: [t["contours"]["start"] for t in fig["data"] if t.get("xaxis") == n and "contours" in t and
                    not t.get("coloraxis")] for n in ("x", "x2")}  # fmt: skip
    assert by_panel["x"] == by_panel["x2"]
    scenes = json.loads(plotting.figure([flat, steep], "surface").to_json())["layout"]
    assert scenes["scene"]["zaxis"]["range"] == scenes["scene2"]["zaxis"]["range"]
    with pytest.raises(ValueError, match="cannot be compared"):
        plotting.figure([flat, replace(flat, axes=flat.axes[:1], losses=flat.losses[:, 1])])


def test_points_without_a_number_are_marked_and_counted():
    pytest.importorskip("plotly")
    losses = plane().losses.copy()
    losses[4, 0], losses[0, 1:] = np.inf, np.nan
    filled = np.ones((5, 3), dtype=bool)
    filled[0, 2] = False
    data = plane(losses, filled)
    fig = plotting.figure(data)
    bad = next(t for t in traces(fig, "scatter") if t.name == "infinite or not a number")
    assert sorted(zip(bad.x, bad.y, strict=True)) == [(-2, 0), (2, -1)]
    assert np.isfinite(np.array(traces(fig, "contour")[1].z)).sum() == 12
    told = fig.layout.annotations[0].text.replace("<br>", " ")
    assert "2 losses infinite or not a number" in told
    assert "stopped early, after 14 points" in told
    with pytest.raises(ValueError, match="nothing to draw"):
        plotting.figure(plane(np.full((5, 3), np.inf), filled))


@pytest.mark.parametrize("log", [False, True])
def test_a_line_is_drawn_as_it_is(log):
    pytest.importorskip("plotly")
    x = np.linspace(-1, 1, 5)
    losses = np.array([3.0, 2, np.inf, 1, 20])
    data = replace(empty_slice([x], ["a way"], [2.0], [None]), losses=losses, filled=np.ones(5, dtype=bool))
    fig = plotting.figure(data, log=log)
    curve = fig.data[0]
    assert curve.mode == "lines+markers"
    assert np.array_equal(curve.x, x)
    lowest = 19e-4 if log else 0  # the end of the scale
    assert np.array(curve.y) == pytest.approx([2, 1, np.nan, lowest, 19], nan_ok=True)
    assert np.array_equal(curve.customdata, [3, 2, np.nan, 1, 20], equal_nan=True)
    assert fig.layout.yaxis.type == ("log" if log else None)
    assert [s.x0 for s in fig.layout.shapes] == [0]
    assert [t.x[0] for t in fig.data[1:]] == [0.5]  # the lowest point; the weights have no finite loss


@given(st.floats(-1e6, 1e6), st.floats(1e-9, 1e9))
def test_levels_are_few_round_numbers_inside_the_range(low, width):
    high = low + width
    found = plotting.levels(low, high)
    assert len(found) <= plotting.MOST
    assert found == sorted(set(found))
    slack = 1e-9 * max(abs(low), abs(high))
    assert all(low - slack <= v <= high + slack for v in found)
    if width > 1e-10 * abs(low):
        assert len(found) >= 1
        assert all(float(s) == pytest.approx(v, rel=1e-6) for s, v in zip(plotting.texts(found)[0], found, strict=True))


def test_levels_by_hand():
    assert plotting.levels(0.003, 7) == [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5]
    assert plotting.levels(1e-6, 900) == [1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 10, 100]
    assert plotting.levels(2.2995, 2.3) == pytest.approx([2.29955 + 0.00005 * k for k in range(9)])
    assert plotting.levels(1.0, 1.0) == []
    assert plotting.texts([1e-5, 0.5, 1000]) == (["1e-5", "0.5", "1000"], 4)
    assert plotting.texts([2.29955])[0] == ["2.29955"]


def test_the_caption_says_what_was_done():
    objective = network(mlp_problem(1))
    data = slice_2d(objective, *random_plane(objective, seed=17), points=(2, 3))
    told = caption(data)
    assert "2 by 3 points, 6 passes" in told
    assert "random direction 0 of seed 17, filter-normalised" in told
    assert f"y = 1 is a distance of {data.lengths[1]:.4g} along random direction 1 of seed 17" in told
    assert f"cosine between the two {data.cosine:.3f}" in told


def test_a_page_needs_no_network_and_names_its_runs(tmp_path):
    pytest.importorskip("plotly")
    plotting.write_html(plane(), tmp_path / "page.html", "surface")
    page = (tmp_path / "page.html").read_text()
    assert "<title>Loss over a plane through the weights</title>" in page
    assert len(page) > 1_000_000  # plotly.js itself
    assert "<script src=" not in page
    assert "default-src &#39;none&#39;" in page
    plotting.write_html([plane(), plane()], tmp_path / "page.html", names=["runs/<a>", "runs/b"])
    page = (tmp_path / "page.html").read_text()
    assert "<title>Loss in a plane around runs/&lt;a&gt; and runs/b</title>" in page
    assert "<a>" not in page
    assert [f.name for f in tmp_path.iterdir()] == ["page.html"]


def test_without_plotly_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "plotly.graph_objects", None)
    with pytest.raises(ImportError, match=r"pip install 'steppe\[study\]'"):
        plotting.figure(plane())
