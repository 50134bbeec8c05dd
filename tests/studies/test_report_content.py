"""What the report says, before any browser: the store's numbers, the statistics of Python, and no markup from names."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from pages import HOSTILE, MEASURES, Cell, cells, estimate, study

from steppe._util.formats import json_safe
from steppe._util.pages import embedded, plotly_source
from steppe.studies.correlate import effects, findings
from steppe.studies.report import content, html, write
from steppe.studies.report.contents import definition
from steppe.studies.store import Store
from steppe.studies.table import Table
from steppe.training.config import Config

MEGABYTE = 1_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = study(tmp_path_factory.mktemp("study") / "study.sqlite", 30)
    with Store.reading(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def made(store):
    return content(store, full=False)


def test_columns_are_the_stores(store, made) -> None:
    table = store.table()
    assert made["runs"]["names"] == [run.name for run in table.runs]
    assert [m["name"] for m in made["measures"]] == MEASURES  # in the study's order, which is not the alphabet's
    for kind, read in (("measures", table.measure), ("targets", table.target)):
        for column in made[kind]:
            expected = read(column["name"])
            for found, values in ((column["values"], expected.values), (column["errors"], expected.errors)):
                np.testing.assert_array_equal(np.array(found, dtype=float), values)  # bit for bit, None is nan
    settings = {c["name"]: c["values"] for c in made["settings"]}
    assert settings["lr"] == [run.config["lr"] for run in table.runs]
    assert set(settings) == {"augment", "lr", "method", "rho", "weight_decay"}
    assert [c["name"] for c in made["settings"]][:2] == ["method", "augment"]  # then what groups are made of
    shared = dict(made["common"])
    assert shared["batch_size"] == 128
    assert [n for n in asdict(Config()) if n in shared] == list(shared)  # as in a configuration, not by the alphabet


def test_runs_that_count_are_done_and_keep_the_rule(store, made) -> None:
    runs = store.table().runs
    expected = [run.targets["train_error"] <= 0.02 if run.state == "done" else None for run in runs]
    assert made["runs"]["admitted"] == expected
    assert expected.count(False) > 0
    assert expected.count(None) > 0  # or this test would say little


def counted(store: Store) -> Table:
    return store.table().where(lambda run: run.state == "done" and run.targets["train_error"] <= 0.02)


def test_statistics_are_those_of_correlate(store) -> None:
    """Of the runs that count; measures and targets are the study's, in its order."""
    page = content(store)
    table = counted(store)
    expected = findings(table, MEASURES, ["test_error", "gap"])
    assert page["findings"] == json_safe(expected.to_dict(), str)
    assert not {"correlations", "answers"} & set(page)  # one object has them
    swept = ["method", "augment", "lr", "rho", "weight_decay"]
    found = {(e["measure"], e["setting"]): (e["share"], e["ceiling"], e["tau_ceiling"]) for e in page["effects"]}
    numbers = {(e.measure, e.setting): (e.share, e.ceiling, e.tau_ceiling) for e in effects(table, settings=swept)}
    assert {k: json_safe(v) for k, v in numbers.items()} == {k: list(v) for k, v in found.items()}
    leader = max(numbers, key=lambda k: numbers[k][0] / numbers[k][1])
    assert f"follow {leader[1]} most" in page["followed"]


def test_texts_of_the_study_are_on_the_page(tmp_path: Path) -> None:
    with Store.open(tmp_path / "folder" / "s") as store:
        made = content(store)
        assert (made["title"], made["question"], made["notes"]) == ("folder", "", "")
        store.note("study", {"name": "file", "cells": []})
        assert content(store)["title"] == "file"
        store.note("study", {"name": "file", "title": "A title", "question": "Why?", "notes": "Because.", "cells": []})
        made = content(store)
    assert (made["title"], made["question"], made["notes"]) == ("A title", "Why?", "Because.")


def test_shares_are_marked_as_percent(made) -> None:
    assert {t["name"]: t["percent"] for t in made["targets"]} == {"test_error": True, "gap": True, "train_error": True}


def test_curves_keep_their_ends_and_their_shape(store, made) -> None:
    assert set(made["curves"]["metrics"]) == {"lr", "train_loss", "test_accuracy"}  # not epoch, not seconds
    records = store.curves(made["runs"]["keys"][0])
    drawn = made["curves"]["runs"][0]
    assert drawn["epoch"] == [r["epoch"] for r in records]
    assert drawn["train_loss"] == pytest.approx([r["train_loss"] for r in records], rel=1e-4)
    assert made["curves"]["runs"][11] is None  # it failed


def test_long_curves_are_thinned(tmp_path: Path) -> None:
    (cell,) = cells(1)
    with Store.open(tmp_path / "s") as store:
        store.add([cell])
        store.record(cell.key, curves=[{"epoch": e, "loss": 1 / e} for e in range(1, 1001)])
        drawn = content(store)["curves"]["runs"][0]
    assert len(drawn["epoch"]) == 60
    assert (drawn["epoch"][0], drawn["epoch"][-1]) == (1, 1000)
    assert drawn["loss"] == pytest.approx([1 / e for e in drawn["epoch"]], rel=1e-4)


def test_a_study_plans_what_is_shown(tmp_path: Path) -> None:
    """A cell that the study no longer has stays in the store, and not on the page; order and groups are the plan's."""
    planned = cells(3)
    with Store.open(tmp_path / "s") as store:
        store.add(planned)
        cells_now = [[planned[2].key, "last", [1, "x"]], [planned[0].key, "first", [2, "y"]]]
        store.note("study", {"name": "two of three", "groups": ["b", "a"], "cells": cells_now})
        made = content(store)
    assert made["runs"]["keys"] == [planned[2].key, planned[0].key]
    assert made["runs"]["names"] == ["last", "first"]
    assert made["runs"]["groups"] == ["b=1, a=x", "b=2, a=y"]
    assert made["title"] == "two of three"


@pytest.mark.parametrize("runs", [0, 1, 2, 3])
def test_a_study_that_has_hardly_begun_has_a_page(tmp_path: Path, runs: int) -> None:
    with Store.open(tmp_path / "new" / "study.sqlite") as store:
        store.add(cells(3))
        for cell in cells(3)[:runs]:
            store.record(cell.key, targets={"test_error": 0.1}, measures={"trace": estimate(1.0, 0.1, "unbiased")})
    page = write(tmp_path / "new" / "study.sqlite", tmp_path / "deep" / "er" / "report.html")
    text = page.read_text(encoding="utf-8")
    assert "<title>new</title>" in text  # of its folder, for want of a name
    assert [p.name for p in page.parent.iterdir()] == ["report.html"]  # nothing half-written is left


def test_a_page_is_replaced_whole(tmp_path: Path, monkeypatch) -> None:
    path = study(tmp_path / "study.sqlite", 3, extras=False)
    out = tmp_path / "report.html"
    out.write_text("before")
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        write(path, out)
    assert out.read_text() == "before"
    assert sorted(p.name for p in tmp_path.iterdir() if "tmp" in p.name) == []


def test_no_store_no_page(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no store"):
        write(tmp_path / "nothing.sqlite", tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


class Elements(HTMLParser):
    """Elements of a page, with what stands in scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.titles: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data) -> None:
        if self.tags and self.tags[-1][0] == "script":
            self.scripts[-1] += data
        elif self.tags and self.tags[-1][0] in ("title", "h1"):
            self.titles.append(data.strip())


def test_hostile_names_stay_in_the_data(tmp_path: Path) -> None:
    """Whatever a study is called, the page has the same elements; and the data come out as they went in."""
    harmless = study(tmp_path / "a.sqlite", 8, extras=False)
    hostile = study(tmp_path / "b.sqlite", 8, extras=False, hostile=True)
    pages = []
    for path in (harmless, hostile):
        with Store.reading(path) as store:
            made = content(store, full=False)
        pages.append(Elements(html(made)))
    assert [tag for tag, _ in pages[0].tags] == [tag for tag, _ in pages[1].tags]
    data = json.loads(pages[1].scripts[0])
    assert data == made
    assert data["runs"]["names"][: len(HOSTILE)] == HOSTILE
    assert set(pages[1].titles) - {""} == {HOSTILE[1]}  # as text, in the title and the heading


def test_embedded_json_has_no_markup_in_it() -> None:
    text = embedded({"a": "".join(HOSTILE)})
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"a": "".join(HOSTILE)}


def test_nothing_on_the_page_points_elsewhere(made) -> None:
    """No address in an attribute, and a policy under which only the page's own scripts run."""
    page = Elements(html(made))
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "data", "action"} & set(attributes), tag
        assert not any(name.startswith("on") for name in attributes), tag
        assert (attributes.get("href") or "#").startswith("#"), tag
    (policy,) = (a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    rules = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "unsafe" not in rules["script-src"]
    assert "connect-src" not in rules  # so that default-src holds
    assert "http" not in policy


def test_a_page_of_200_runs_is_small(tmp_path: Path) -> None:
    path = study(tmp_path / "study.sqlite", 200)
    with Store.reading(path) as store:
        text = html(content(store, full=False))
    assert len(text.encode()) < 4 * MEGABYTE


def test_every_named_measure_is_told_in_words() -> None:
    from steppe.measures.registration import MEASURES as known

    assert [name for name in known if not definition(name)] == []
    assert definition("adaptive_worst_linf_normalised@0.002") == (
        "the largest rise of the loss that ascent finds in a box around the weights, of normalised logits, "
        "in the scale of each weight, radius 0.002"
    )
    assert definition("mine") == ""


def test_without_plotly_the_page_says_how_to_get_it(monkeypatch, made) -> None:
    import sys

    plotly_source.cache_clear()
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    with pytest.raises(ImportError, match="pip install"):
        html(made)
    plotly_source.cache_clear()


def test_spectra_landscapes_and_ensembles_are_kept(tmp_path: Path) -> None:
    """As measured, to five digits; what has no number is null; of a run that the study has not, nothing."""
    from steppe.measures import Density
    from steppe.measures.curvature.lanczos import Ritz
    from steppe.measures.landscape import empty_slice
    from steppe.studies.report import keep_ensemble, keep_landscape, keep_spectrum

    one, other = cells(2)
    turned = np.array([[np.sqrt(0.75), 0.5], [0.5, -np.sqrt(0.75)]])
    density = Density([Ritz(np.array([0.0, 3.0]), turned, np.zeros(2))], 100)
    plane = empty_slice([[-1.0, 0.0, 1.0], [-2.0, 2.0]], ["a", "b"], (1.0, 1.0), [None, None])
    plane.losses[:] = [[1, 2], [3, np.inf], [5, 6.1234567]]
    with Store.open(tmp_path / "s") as store:
        store.add([one, other])
        store.note("study", {"name": "s", "cells": [[other.key, "other", []]]})
        for key in (one.key, other.key):
            keep_spectrum(store, key, density)
            keep_landscape(store, key, plane)
        keep_ensemble(store, "three", {"error": 0.1}, members=3, kind="sam")
        made = content(store)
    (spectrum,), (stored,) = made["spectra"], made["landscapes"]
    assert (stored["directions"], stored["radius"]) == ("stored", None)
    (landscape,) = stored["runs"]
    assert spectrum["run"] == landscape["run"] == 0  # the other one, which is the only one now
    area = np.trapezoid(spectrum["density"], spectrum["x"])
    assert area == pytest.approx(1.0, abs=0.05)
    assert landscape["x"] == [-1.0, 0.0, 1.0]
    assert landscape["loss"] == 1.0  # the lowest: the weights are not on the grid
    assert landscape["rises"] == [[0.0, 1.0], [2.0, None], [4.0, 5.1235]]
    assert "stopped" in landscape["note"]  # no point was marked as filled
    three = {"name": "three", "kind": "sam", "members": 3, "values": {"error": 0.1}, "errors": {}}
    assert made["ensembles"] == [three]


def test_runs_that_stand_out_come_first_and_say_how(tmp_path: Path) -> None:
    """By the study's first target and measure, among runs that count; another run's picture has no such word."""
    planned = cells(4)
    with Store.open(tmp_path / "s") as store:
        store.add(planned)
        rule = {"targets": ["test_error"], "measures": ["trace"], "admission": ["train_error <= 0.1"]}
        store.note("study", {"name": "s", "cells": [[c.key, c.name, []] for c in planned], **rule})
        rows = zip(planned, [0.3, 0.1, 0.2, 0.0], [1.0, 2.0, 3.0, 9.0], [0, 0, 0, 1], strict=True)
        for cell, error, sharp, train in rows:
            targets = {"test_error": error, "train_error": float(train), "a": -error}
            store.record(cell.key, targets=targets, measures={"trace": {"value": sharp}, "loss": {"value": -sharp}})
            store.note(f"spectrum/{cell.key}", {"x": [0.0], "density": [1.0]})
        found = content(store)["spectra"]
    said = {"worst": 0, "flattest": 0, "best": 1, "sharpest": 2}
    assert [(one["run"], one["roles"]) for one in found] == [
        (1, ["best"]), (0, ["worst", "flattest"]), (2, ["sharpest"]), (3, [])
    ]  # fmt: skip
    assert all(run == next(one["run"] for one in found if word in one["roles"]) for word, run in said.items())


def test_ensembles_are_named_placed_and_fitted(tmp_path: Path) -> None:
    """Means over members against NumPy, slopes against numpy.polyfit; one that has grown takes the old one's place."""
    config = asdict(Config())
    planned = [
        Cell(f"{rho}-{seed}", f"{rho} {seed}", config | {"method": "sam", "rho": rho, "seed": seed})
        for rho in (0.2, 0.1, 0.4)
        for seed in (0, 1, 2)
    ]
    draw = np.random.default_rng(0)
    sharp, apart = draw.lognormal(size=(3, 3)), draw.lognormal(size=3)
    with Store.open(tmp_path / "s") as store:
        store.add(planned)
        store.note("study", {"name": "s", "measures": ["trace"], "cells": [[c.key, c.name, []] for c in planned]})
        for k, cell in enumerate(planned):
            store.record(cell.key, targets={"test_error": 0.1}, measures={"trace": {"value": sharp[k // 3, k % 3]}})
        for k in (2, 0, 1):
            keys = [c.key for c in planned[3 * k : 3 * k + 3]]
            scores = {"values": {"accuracy": 0.9, "disagreement": apart[k]}, "errors": {"disagreement": 0.01}}
            store.note(f"ensemble/{k}", {"members": 3, "keys": keys, **scores})
            store.note(f"ensemble/{k} before", {"members": 2, "keys": keys[:2], **scores})
        store.note("ensemble/gone", {"members": 2, "keys": ["gone", planned[0].key], **scores})
        made = content(store)
    assert [e["name"] for e in made["ensembles"]] == ["rho=0.2", "rho=0.1", "rho=0.4"]  # all are of one method
    for e, values, far in zip(made["ensembles"], sharp, apart, strict=True):
        assert e["members"] == 3
        assert e["values"] == pytest.approx({"trace": values.mean(), "disagreement": far, "accuracy": 0.9})
        assert e["errors"] == pytest.approx({"trace": values.std(ddof=1) / np.sqrt(3), "disagreement": 0.01})
    [fitted] = made["slopes"]
    (beta, _), covariance = np.polyfit(np.log(sharp.mean(1)), np.log(apart), 1, cov="unscaled")
    residual = np.log(apart) - np.polyval(np.polyfit(np.log(sharp.mean(1)), np.log(apart), 1), np.log(sharp.mean(1)))
    assert (fitted["x"], fitted["y"], fitted["n"]) == ("trace", "disagreement", 3)
    assert fitted["slope"] == pytest.approx(beta)
    half = 12.7062 * np.sqrt(covariance[0, 0] * (residual**2).sum())  # Student's t at 97.5 %, 3 - 2 degrees of freedom
    assert (fitted["low"], fitted["high"]) == pytest.approx((beta - half, beta + half), rel=1e-4)
