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

from steppe.measures import random_plane, slice_2d
from steppe.studies.engines import Serial
from steppe.studies.pictures import alike, chosen
from steppe.studies.plan import Study
from steppe.studies.report import content
from steppe.studies.run import look, run
from steppe.studies.show import Show
from steppe.studies.store import Store
from steppe.studies.table import Measured, Run, Table
from steppe.training import open_run

ALL = {"spectrum": ["sharpest"], "landscape": ["best", "worst"], "ensembles": True}
PREFIXES = ("spectrum/", "landscape/", "ensemble/")


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
    assert {n for n in kept if n.startswith("landscape/")} == {f"landscape/{best}", f"landscape/{worst}"}
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
    grid, density = np.array(note["x"]), np.array(note["density"])
    room = 0.05 / 1.1 * (grid[-1] - grid[0])
    assert grid[0] + room == pytest.approx(eigenvalues[0], abs=0.02 * eigenvalues[-1])
    assert grid[-1] - room == pytest.approx(eigenvalues[-1], rel=1e-3)
    assert np.trapezoid(density, grid) == pytest.approx(1, abs=0.02)
    d = len(eigenvalues)
    spread = np.sqrt(2 * (eigenvalues**2).sum() / (d * (d + 2)) / 4)  # of the mean of v'Hv over four random directions
    assert np.trapezoid(density * grid, grid) == pytest.approx(eigenvalues.mean(), abs=4 * spread)


def test_a_landscape_has_the_losses_around_its_run(done: Study) -> None:
    """In its middle that of the weights; elsewhere that of a model whose weights were moved by hand."""
    for name, note in pictures(done).items():
        if name.startswith("landscape/"):
            trained = open_run(done.folder / "runs" / name.partition("/")[2])
            loss = trained.objective().loss()
            moved = trained.model()
            a, b = (d.vector.tensors for d in random_plane(trained.objective(), seed=0))
            losses = np.array(note["losses"])
            assert losses.shape == (21, 21)
            assert note["x"][10] == note["y"][10] == 0
            assert losses[10, 10] == pytest.approx(loss, rel=1e-4)
            with torch.no_grad():
                for p, u, v in zip(moved.parameters(), a, b, strict=True):
                    p += note["x"][3] * u + note["y"][18] * v
                [(x, y)] = trained.objective().batches
                assert losses[3, 18] == pytest.approx(float(cross_entropy(moved(x), y)), rel=1e-4)
            assert losses[3, 18] != pytest.approx(losses[18, 3], rel=1e-3)  # the axes are the right way round


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
    before, engine = pictures(done), Counting()
    run(done, engine)
    assert engine.tasks == []
    with Store.reading(done.store) as store:
        made = content(store, full=False)
    assert (len(made["spectra"]), len(made["landscapes"]), len(made["ensembles"])) == (1, len(before) - 3, 2)
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
    assert [n.partition("/")[0] for n in pictures(study)] == ["landscape"]
    engine = Counting()
    found = run(study, engine)
    assert (engine.tasks, found.failures) == ([], {})  # it would fail again; and the run itself did not
    run(study, engine, again=True)
    assert {n.partition("/")[0] for n in pictures(study)} == {"landscape", "spectrum"}


def test_a_picture_that_is_stopped_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A landscape keeps what it has when it is stopped, and is not whole then."""
    study = tiny(tmp_path / "stopped", grid={"seed": [0]}, measures=["loss"], show="landscape")

    def tick(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("steppe.measures.landscape.slice_2d", lambda *a, **how: slice_2d(*a, **how | {"tick": tick}))
        assert run(study, Serial()).stopped == "stopped while it was drawn"
    assert not pictures(study)
    assert not run(study, Serial()).stopped
    assert len(pictures(study)) == 1


def made(key: str, seed: int, error: float | None, sharp: float | None, **config: Any) -> Run:
    targets = {} if error is None else {"e": error}
    measures = {} if sharp is None else {"m": Measured(sharp)}
    return Run(key, key, {"seed": seed, **config}, {}, "done", targets, measures)


def test_who_stands_out_and_who_goes_together() -> None:
    nan = float("nan")
    rows = [("a", 0, 0.2, nan), ("b", 1, 0.2, 3.0), ("c", 2, 0.1, 2.0), ("d", 3, None, 1.0), ("e", 4, 0.2, None)]
    table = Table([made(*row) for row in rows])
    assert chosen(table, "e", "m") == {"c": ["best"], "a": ["worst"], "d": ["flattest"], "b": ["sharpest"]}
    assert list(chosen(table, "e", "m")) == ["c", "a", "d", "b"]
    assert chosen(table, "e", None) == {"c": ["best"], "a": ["worst"]}
    assert chosen(Table([]), "e", "m") == {}
    one = Table([made("a", 0, 0.1, 1.0)])
    assert chosen(one, "e", "m") == {"a": ["best", "worst", "flattest", "sharpest"]}
    runs = [made("a", 0, 0.1, 1.0, lr=1), made("b", 0, 0.1, 1.0, lr=2), made("c", 1, 0.1, 1.0, lr=1)]
    assert [[r.key for r in those] for those in alike(runs)] == [["a", "c"]]
    assert alike([made("a", 0, 0.1, 1.0), made("b", 0, 0.1, 1.0)]) == []  # nobody knows how these differ


def test_what_may_be_asked_for() -> None:
    assert Show.of([]) == Show()
    assert Show.of("spectrum") == Show.of({"spectrum": None}) == Show(("best", "worst"))
    assert Show.of(["landscape", "ensembles"]) == Show((), ("best", "worst"), True)
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
