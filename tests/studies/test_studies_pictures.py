"""Pictures of a study's runs: made when all is measured, of the right runs, right, and not twice."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles.curvature import hessian
from studies_cells import Counting, tiny
from torch.nn.functional import cross_entropy

from steppe.measures import random_plane
from steppe.measures.comparison import radius_of_rise
from steppe.measures.landscape import slice_along
from steppe.studies.engines import Serial
from steppe.studies.pictures import roles_of, seed_ensembles
from steppe.studies.plan import Study
from steppe.studies.protocol import Show
from steppe.studies.report import content
from steppe.studies.run import look, run
from steppe.studies.store import Store
from steppe.studies.table import Measured, Run, Table
from steppe.training import open_run

ALL = {"spectrum": ["sharpest"], "landscape": ["best", "worst"], "ensembles": True}
PREFIXES = ("spectrum/", "landscape/", "landscapes/", "ensemble/")


def pictures(study: Study) -> dict[str, Any]:
    with Store.reading(study.store) as store:
        return {name: note for name, note in store.notes().items() if name.startswith(PREFIXES)}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Study:
    study = tiny(tmp_path_factory.mktemp("pictures") / "done", show=ALL, targets=["test_error"])
    assert run(study, Serial()).done == 4
    return study


def test_pictures_are_of_the_runs_that_stand_out(done: Study) -> None:
    runs = look(done)[1].runs
    errors, sharp = [r.targets["test_error"] for r in runs], [r.measures["lambda_max"].value for r in runs]
    best, worst, sharpest = (runs[int(i)].key for i in (np.argmin(errors), np.argmax(errors), np.argmax(sharp)))
    kept = pictures(done)
    compared = {n.split("/")[1]: {run["key"] for run in v["runs"]} for n, v in kept.items() if "landscapes/" in n}
    assert compared == {"eigenvectors": {best, worst}, "random": {best, worst}}
    assert {n for n in kept if n.startswith("spectrum/")} == {f"spectrum/{sharpest}"}
    by_seeds = [{r.key for r in runs if r.config["method"] == method} for method in ("none", "sam")]
    assert sorted(map(sorted, (kept[n]["keys"] for n in kept if n.startswith("ensemble/")))) == sorted(
        map(sorted, by_seeds)
    )


def test_a_spectrum_is_that_of_the_hessian(done: Study) -> None:
    """Against all eigenvalues, of the Hessian that autograd gives: their range, and their mean."""
    [(name, note)] = [(n, v) for n, v in pictures(done).items() if n.startswith("spectrum/")]
    trained = open_run(done.folder / "runs" / name.partition("/")[2])
    model, objective = trained.model().double(), trained.objective()
    [(x, y)] = objective.batches
    x = x.double()
    names, shapes = zip(*((n, p.shape) for n, p in model.named_parameters()), strict=True)
    w = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([s.numel() for s in shapes])
        values = {n: part.view(s) for n, part, s in zip(names, parts, shapes, strict=True)}
        return cross_entropy(torch.func.functional_call(model, values, (x,)), y)

    eigenvalues = torch.linalg.eigvalsh(hessian(loss, w)).numpy()
    rules = [(np.array(x), np.array(w)) for x, w in zip(note["nodes"], note["weights"], strict=True)]
    assert len(rules) == 4
    assert min(x.min() for x, _ in rules) == pytest.approx(eigenvalues[0], abs=0.02 * eigenvalues[-1])
    assert max(x.max() for x, _ in rules) == pytest.approx(eigenvalues[-1], rel=1e-3)
    assert [w.sum() for _, w in rules] == pytest.approx([1] * 4, abs=1e-3)
    d = note["dimension"]
    assert d == len(eigenvalues)
    spread = np.sqrt(2 * (eigenvalues**2).sum() / (d * (d + 2)) / 4)  # of the mean of v'Hv over four random directions
    assert np.mean([x @ w for x, w in rules]) == pytest.approx(eigenvalues.mean(), abs=4 * spread)


def test_landscapes_have_the_losses_around_their_runs_at_one_radius(done: Study) -> None:
    """In the middle that of the weights; elsewhere that of a model whose weights were moved by hand."""
    note = next(v for n, v in pictures(done).items() if n.startswith("landscapes/random/"))
    radii, ends = [], []
    for one in note["runs"]:
        trained = open_run(done.folder / "runs" / one["key"])
        objective = trained.objective()
        assert one["loss"] == pytest.approx(objective.loss(), rel=1e-6)
        moved = trained.model()
        directions = random_plane(objective, seed=0)
        a, b = (d.vector.tensors for d in directions)
        rises = np.array(one["rises"])
        assert rises.shape == (21, 21)
        assert one["x"][10] == one["y"][10] == rises[10, 10] == 0
        assert one["x"][-1] == one["y"][-1] == pytest.approx(note["radius"], rel=1e-4)
        with torch.no_grad():
            for p, u, v in zip(moved.parameters(), a, b, strict=True):
                p += one["x"][3] * u + one["y"][18] * v
            [(x, y)] = objective.batches
            assert one["loss"] + rises[3, 18] == pytest.approx(float(cross_entropy(moved(x), y)), rel=1e-3)
        assert rises[3, 18] != pytest.approx(rises[18, 3], rel=1e-3)  # the axes are the right way round
        radii.append(radius_of_rise(objective, directions))
        assert one["own_radius"] == pytest.approx(radii[-1], rel=1e-3)
        ends.append(max(rises[0, 10], rises[-1, 10], rises[10, 0], rises[10, -1]))
    assert max(ends) == ends[int(np.argmin(radii))] == pytest.approx(note["rise"], rel=1e-3)
    assert note["radius"] == pytest.approx(min(radii), rel=1e-3)


def test_landscapes_along_eigenvectors_curve_by_the_measured_eigenvalue(done: Study) -> None:
    note = next(v for n, v in pictures(done).items() if n.startswith("landscapes/eigenvectors/"))
    sharp = {run.key: run.measures["lambda_max"].value for run in look(done)[1].runs}
    for one in note["runs"]:
        assert f"(eigenvalue {sharp[one['key']]:.3g}"[:-1] in one["names"][0]


def test_spectra_have_one_width_and_an_old_one_is_drawn_again(tmp_path: Path) -> None:
    """Densities on one grid: they integrate to 1, with the mean and the variance of the smoothed spectrum."""
    study = tiny(
        tmp_path / "two", grid={"seed": [0, 1]}, measures=["lambda_max"], show={"spectrum": ["flattest", "sharpest"]}
    )
    run(study, Serial())
    stored = {n.partition("/")[2]: v for n, v in pictures(study).items()}
    with Store.reading(study.store) as store:
        made = content(store, full=False)
    one, other = made["spectra"]
    assert (one["x"], one["width"]) == (other["x"], other["width"])
    everything = np.concatenate([nodes for v in stored.values() for nodes in v["nodes"]])
    assert one["width"] == pytest.approx(0.005 * np.ptp(everything))
    for drawn in made["spectra"]:
        note = stored[made["runs"]["keys"][drawn["run"]]]
        rules = [(np.array(nodes), np.array(w)) for nodes, w in zip(note["nodes"], note["weights"], strict=True)]
        x, density, width = np.array(drawn["x"]), np.array(drawn["density"]), drawn["width"]
        mean, square = (float(np.mean([nodes**k @ w for nodes, w in rules])) for k in (1, 2))
        assert np.trapezoid(density, x) == pytest.approx(1, abs=1e-3)
        assert np.trapezoid(density * x, x) == pytest.approx(mean, rel=1e-2)
        assert np.trapezoid(density * x**2, x) == pytest.approx(square + width**2, rel=1e-2)
        assert drawn["lambda_max"] == max(nodes.max() for nodes, _ in rules)
        each = [np.exp(-0.5 * ((x[:, None] - n) / width) ** 2) @ w / (width * np.sqrt(2 * np.pi)) for n, w in rules]
        error = np.std(each, axis=0, ddof=1) / 2
        np.testing.assert_allclose(drawn["error"], error, rtol=1e-2, atol=1e-3 * error.max())  # x has five digits
    key = next(iter(stored))
    old = {"x": [0.0, 1.0], "density": [1.0, 1.0], "error": [0.1, 0.1], "title": ""}
    with Store.open(study.store) as store:
        store.note(f"spectrum/{key}", old)
        shown = next(s for s in content(store, full=False)["spectra"] if s["width"] is None)
        assert {k: shown[k] for k in old} == old  # as it was
    engine = Counting()
    run(study, engine)
    assert [list(task.pictures) for task in engine.tasks] == [[f"spectrum/{key}"]]
    assert "nodes" in pictures(study)[f"spectrum/{key}"]


def test_landscapes_of_a_study_from_before_are_shown_and_new_ones_are_made(tmp_path: Path) -> None:
    study = tiny(tmp_path / "old", grid={"seed": [0, 1]}, measures=["lambda_max"], show="landscape")
    run(tiny(tmp_path / "old", grid={"seed": [0, 1]}, measures=["lambda_max"]), Serial())
    keys = [r.key for r in look(study)[1].runs]
    axis = [-1.0, 0.0, 1.0]
    with Store.open(study.store) as store:
        for key, top in zip(keys, (1.0, 4.0), strict=True):
            losses = [[0.5 + top * x * x + y * y for y in axis] for x in axis]
            note = {"x": axis, "y": axis, "losses": losses, "names": ["a", "b"], "title": "", "note": ""}
            store.note(f"landscape/{key}", note)
        [only] = content(store, full=False)["landscapes"]
    assert (only["directions"], only["radius"]) == ("stored", None)
    assert {one["loss"] for one in only["runs"]} == {0.5}
    assert sorted(one["rises"][0][1] for one in only["runs"]) == [1, 4]
    run(study, Serial())
    with Store.reading(study.store) as store:
        sets = content(store, full=False)["landscapes"]
    assert [one["directions"] for one in sets] == ["eigenvectors", "random", "stored"]
    assert [sorted(one["run"] for one in s["runs"]) for s in sets] == [[0, 1]] * 3


def test_an_ensemble_is_scored_by_what_its_members_say(done: Study) -> None:
    for note in pictures(done).values():
        if "keys" not in note:
            continue
        guesses, output = [], 0
        for key in note["keys"]:
            trained = open_run(done.folder / "runs" / key)
            rows = trained.data().test
            with torch.no_grad():
                said = trained.model()(trained.task.standard(rows.inputs))
            guesses.append(said.argmax(1))
            output = output + said
        pairs = [float((a != b).double().mean()) for a, b in combinations(guesses, 2)]
        assert note["values"]["disagreement"] == pytest.approx(np.mean(pairs))
        right = float((output.argmax(1) == rows.targets).double().mean())
        assert note["values"]["accuracy"] == pytest.approx(right)
        assert note["members"] == 2


def test_what_is_kept_is_not_made_again(done: Study) -> None:
    engine = Counting()
    run(done, engine)
    assert engine.tasks == []
    with Store.reading(done.store) as store:
        made = content(store, full=False)
    assert (len(made["spectra"]), len(made["landscapes"]), len(made["ensembles"])) == (1, 2, 2)
    assert {e["kind"] for e in made["ensembles"]} == {"none", "sam"}


def test_more_runs_and_more_wishes_make_only_what_is_new(tmp_path: Path) -> None:
    seeds = {"grid": {"seed": [0, 1]}, "measures": ["loss"]}
    run(tiny(tmp_path / "grows", **seeds), Serial())
    assert not pictures(tiny(tmp_path / "grows", **seeds))  # nobody asked for any
    asked, engine = tiny(tmp_path / "grows", **seeds, show="ensembles"), Counting()
    run(asked, engine)
    assert [(len(t.members), list(t.measures)) for t in engine.tasks] == [(2, [])]
    grown = tiny(tmp_path / "grows", **seeds | {"grid": {"seed": [0, 1, 2]}}, show=["ensembles"])
    engine = Counting()
    run(grown, engine)
    assert [len(t.members) for t in engine.tasks] == [0, 3]  # a run, and the ensemble with it
    with Store.reading(grown.store) as store:
        assert [e["members"] for e in content(store, full=False)["ensembles"]] == [3]


def test_a_picture_that_fails_leaves_the_others_and_is_tried_again_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = tiny(
        tmp_path / "fails", grid={"seed": [0, 1]}, measures=["loss"], show={"spectrum": "best", "landscape": "best"}
    )
    with monkeypatch.context() as patch:
        patch.setattr("steppe.measures.curvature.lanczos.spectral_density", lambda *_: 1 / 0)
        assert run(study, Serial()).done == 2
    assert {n.partition("/")[0] for n in pictures(study)} == {"landscapes"}
    engine = Counting()
    found = run(study, engine)
    assert (engine.tasks, found.failures) == ([], {})  # it would fail again; and the run itself did not
    run(study, engine, again=True)
    assert {n.partition("/")[0] for n in pictures(study)} == {"landscapes", "spectrum"}


def test_a_picture_that_is_stopped_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A landscape keeps what it has when it is stopped, and is not whole then."""
    study = tiny(tmp_path / "stopped", grid={"seed": [0]}, measures=["loss"], show="landscape")

    def tick(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(
            "steppe.measures.comparison.slice_along", lambda *a, **how: slice_along(*a, **how | {"tick": tick})
        )
        assert run(study, Serial()).stopped == "stopped while it was drawn"
    assert not pictures(study)
    assert not run(study, Serial()).stopped
    assert len(pictures(study)) == 2


def made(key: str, seed: int, error: float | None, sharp: float | None, **config: Any) -> Run:
    targets = {} if error is None else {"e": error}
    measures = {} if sharp is None else {"m": Measured(sharp)}
    return Run(key, key, {"seed": seed, **config}, {}, "done", targets, measures)


def test_who_stands_out_and_who_goes_together() -> None:
    nan = float("nan")
    rows = [("a", 0, 0.2, nan), ("b", 1, 0.2, 3.0), ("c", 2, 0.1, 2.0), ("d", 3, None, 1.0), ("e", 4, 0.2, None)]
    table = Table([made(*row) for row in rows])
    assert roles_of(table, "e", "m") == {"c": ["best"], "a": ["worst"], "d": ["flattest"], "b": ["sharpest"]}
    assert list(roles_of(table, "e", "m")) == ["c", "a", "d", "b"]
    assert roles_of(table, "e", None) == {"c": ["best"], "a": ["worst"]}
    assert roles_of(Table([]), "e", "m") == {}
    one = Table([made("a", 0, 0.1, 1.0)])
    assert roles_of(one, "e", "m") == {"a": ["best", "worst", "flattest", "sharpest"]}
    runs = [made("a", 0, 0.1, 1.0, lr=1), made("b", 0, 0.1, 1.0, lr=2), made("c", 1, 0.1, 1.0, lr=1)]
    assert [[r.key for r in those] for those in seed_ensembles(runs)] == [["a", "c"]]
    assert seed_ensembles([made("a", 0, 0.1, 1.0), made("b", 0, 0.1, 1.0)]) == []  # nobody knows how these differ


def test_what_may_be_asked_for() -> None:
    assert Show.of([]) == Show()
    assert Show.of("spectrum") == Show.of({"spectrum": None}) == Show(("best", "worst"))
    assert Show.of(["landscape", "ensembles"]) == Show((), ("flattest", "sharpest"), True)
    assert Show.of({"spectrum": "flattest", "ensembles": False}) == Show(("flattest",))
    assert Show.of({"landscape": False}) == Show()
    assert Show(("best", "worst"), (), True).words() == ["spectrum of best, worst", "ensembles"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["spectra"], "show: there is no picture 'spectra'. Did you mean 'spectrum'"),
        (3, "show takes a list of spectrum, landscape, ensembles, or a mapping of them, not 3"),
        ({"spectrum": ["bests"]}, "show.spectrum: there is no choice of runs 'bests'. Did you mean 'best'"),
        ({"landscape": 2}, "show.landscape takes a list of best, worst, flattest, sharpest, not 2"),
        ({"ensembles": "yes"}, "show.ensembles takes true or false, not 'yes'"),
    ],
)
def test_wrong_show_sections_are_refused(given: Any, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Study.of({"show": given}, "s")
