"""Landscapes, spectra and figures in a real browser: a study's page, and the pages of `landscape` and `theory`."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import MEASURES, chart, study, wait_until, written
from scipy.stats import linregress
from scipy.stats import t as t_distribution

from steppe._util.pages import BLUE
from steppe.ensembles.summary import Report
from steppe.ensembles.tradeoff import ROWS, figure, slope_interval, slopes, write_page
from steppe.measures.estimate import Estimate
from steppe.measures.landscape import Slice, empty_slice
from steppe.measures.plotting import write_html
from steppe.studies.store import Store
from steppe.studies.table import Table
from steppe_papers.figures import Result, save
from steppe_papers.figures.panels import Panel, line, picture

WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six runs, with compared landscapes of three and spectra of two of them."""
    path = study(tmp_path_factory.mktemp("pictures") / "study.sqlite", 6, extras=False)
    with Store.open(path) as store:
        table = store.table()
        flat, sharp = extremes(table)
        other = next(run.key for run in table.runs if run.key not in (flat, sharp))
        for kind, radius in (("eigenvectors", 0.5), ("random", 0.8)):
            axis = [radius * k / 4 for k in range(-4, 5)]
            runs = [
                {"key": key, "x": axis, "y": axis, "rises": [[c * (a * a + b * b) for b in axis] for a in axis],
                 "loss": 0.25, "names": [f"{kind} 1", f"{kind} 2"], "own_radius": c**-0.5}
                for key, c in ((other, 1 / radius**2 / 2), (flat, 1 / radius**2 / 28), (sharp, 1 / radius**2))
            ]  # fmt: skip
            store.note(f"landscapes/{kind}/0", {"directions": kind, "radius": radius, "rise": 1.0, "runs": runs})
        for key, top in zip([flat, sharp], (10.0, 0.5), strict=True):
            nodes, weights = [[0.0, top / 2, top], [0.0, top / 3, top]], [[0.9, 0.05, 0.05], [0.8, 0.1, 0.1]]
            store.note(f"spectrum/{key}", {"nodes": nodes, "weights": weights, "dimension": 40, "title": ""})
    return written(path.parent, path)


def extremes(table: Table) -> tuple[str, str]:
    """The keys of the flattest and the sharpest run."""
    sharpness = {run.key: run.measures[MEASURES[0]].value for run in table.runs if run.state == "done"}
    return min(sharpness, key=lambda key: sharpness[key]), max(sharpness, key=lambda key: sharpness[key])


def fills(page: Any) -> list[Any]:
    return [t for t in chart(page, "landscapes", "place.data") if t["type"] == "contour"]


def test_compared_landscapes_state_their_radius_and_begin_with_flattest_and_sharpest(page: Any, report: Path) -> None:
    with Store.reading(report.with_name("study.sqlite")) as store:
        table = store.table()
    flat, sharp = extremes(table)
    names = {run.key: run.name for run in table.runs}
    caption = page.locator("#landscapes-caption")
    assert f"Radius 0.5: {names[sharp]}, the sharpest of 3 runs, rises by 1.0" in caption.inner_text()
    assert f"{names[flat]} does so at" in caption.inner_text()
    left, right = fills(page)
    assert max(map(max, right["z"])) == pytest.approx(28 * max(map(max, left["z"])), rel=1e-3)
    assert (left["zmin"], left["zmax"]) == (right["zmin"], right["zmax"]) == pytest.approx((0, 2))
    curves = [t for t in chart(page, "landscapes", "place.data") if t.get("mode") == "lines"]
    assert [max(t["y"]) for t in curves] == pytest.approx([1 / 28, 1], rel=1e-3)  # along the first direction
    page.locator("#landscape-directions").select_option("random")
    assert fills(page)[0]["x"][-1] == 0.8
    assert "filter-normalised" in caption.inner_text()
    assert len(fills(page)) == 2  # the same runs


def test_spectra_have_bands_and_their_largest_eigenvalues(page: Any) -> None:
    drawn = chart(page, "spectra", "place.data")
    assert [t["x"][0] for t in drawn if t["mode"] == "lines+markers"] == [10.0, 0.5]
    bands = [t for t in drawn if t.get("fill") == "tonexty"]
    lines = [t for t in drawn if t["mode"] == "lines" and t.get("name")]
    assert len(bands) == len(lines) == 2
    floor = 0.1 / (40 * 0.05 * math.sqrt(2 * math.pi)) / 2
    for curve, band in zip(lines, bands, strict=True):
        one = next(s for s in page.evaluate("window.steppe.state.data.spectra") if s["density"] == curve["customdata"])
        assert curve["y"] == pytest.approx([max(d, floor) for d in one["density"]], rel=1e-6)
        upper = [max(d + e, floor) for d, e in zip(one["density"], one["error"], strict=True)]
        assert band["y"] == pytest.approx(upper, rel=1e-6)
    assert "one width, 0.05" in page.locator("#spectra-caption").inner_text()


def plane(top: float) -> Slice:
    x = np.linspace(-1, 1, 5)
    empty = empty_slice([x, x], ["eigenvector 1", "eigenvector 2"], [1.0, 1.0], [0, 0])
    notes = {"radius": 1.0, "rise": 1.0, "own_radius": top**-0.5}
    return replace(empty, losses=0.5 + top * np.add.outer(x**2, x**2), filled=np.ones((5, 5), dtype=bool), notes=notes)


def panels(page: Any) -> list[tuple[float, float]]:
    """The left and upper edges of the panels, in pixels."""
    offsets = page.evaluate(
        "['xaxis', 'xaxis2'].map((key) => { const all = document.getElementById('figure')._fullLayout;"
        " return [all[key]._offset, all[key.replace('x', 'y')]._offset]; })"
    )
    return [(left, upper) for left, upper in offsets]


def two_panels() -> dict[str, Any]:
    curve = line("a curve with a rather long name", [1, 2, 3], [1, 4, 9], BLUE)
    other = line("another curve with a long name", [1, 2, 3], [9, 4, 1], BLUE)
    row = [
        Panel("first: a title that is too long for a phone, surely", "x", "y", [curve]),
        Panel("2", "x", "y", [other]),
    ]
    return picture("Two panels", *row)


def ensemble_report(name: str, rho: float, sharp: float, diverse: float, corrupted: float | None = None) -> Report:
    """An ensemble without members; `corrupted` is its diversity over all severities together."""
    scores = {"eir": Estimate(0.3, 0.1, 3, "plug-in"), "accuracy": Estimate(0.9, 0.01, 3, "plug-in")}

    def at(value: float) -> dict[str, Estimate]:
        return scores | {"der": Estimate(value, 0.02, 3, "plug-in")}

    sharpness = Estimate(sharp, 0.1, 3, "lower bound")
    together = {} if corrupted is None else at(corrupted)
    return Report(Path(name), name, rho, [], at(diverse), sharpness, {}, corrupted=together)


def widths(*, corrupted: bool = True) -> dict[str, list[Report]]:
    """Two widths, four radii: slopes 0.5 and near 0 on test rows, 1 and 0.25 on corrupted ones."""
    radii, sharp = [0.05, 0.1, 0.2, 0.4], [8.0, 4.0, 2.0, 1.0]
    power = {"width 1": (0.5, 1.0), "width 4": (0.0, 0.25)}
    noise = [1.01, 0.99, 0.99, 1.01]
    return {
        label: [
            ensemble_report(label, rho, s, 0.3 * s**clean * n, 0.4 * s**dirty if corrupted else None)
            for rho, s, n in zip(radii, sharp, noise, strict=True)
        ]
        for label, (clean, dirty) in power.items()
    }


def drawn_figure(kind: str, file: Path) -> tuple[str, str]:
    """Write a page of this kind; its heading, and some words of its caption."""
    if kind == "landscape":
        write_html([plane(0.1), plane(1.0)], file, names=["runs/flat", "runs/sharp"])
        return "Loss in a plane around runs/flat and runs/sharp", "runs/sharp rises by 1 at the end of an axis"
    if kind == "ensembles":
        write_page(widths(), file, "Sharpness and diversity of the ensembles in runs/radii", sharpness="lambda_max")
        return "Sharpness and diversity of the ensembles in runs/radii", "width 1 0.50 (0.46 to 0.54), 4 ensembles"
    save(Result({"seed": 3}, two_panels(), ["What they show, in many words."] * 8), "a-study", file)
    return "a-study: Two panels", "Seed 3."


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["landscape", "theory", "ensembles"])
def test_figures_fit_a_phone_and_follow_the_dark_scheme(open_page: Any, tmp_path: Path, kind: str) -> None:
    """Opened on a phone, then on a wide screen: panels are stacked, then side by side."""
    file = tmp_path / "figure.html"
    heading, words = drawn_figure(kind, file)
    page = open_page(file, viewport=PHONE, color_scheme="dark")
    (x1, y1), (x2, y2) = panels(page)
    assert x1 == x2
    assert y1 < y2  # stacked
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    figure = page.evaluate("document.getElementById('figure').getBoundingClientRect().width")
    assert page.evaluate("document.querySelector('#figure .main-svg').getBoundingClientRect().width") <= figure
    assert brightness(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 60
    ink = "document.getElementById('figure')._fullLayout.font.color"
    assert page.evaluate(ink) == "#eceae4"
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(WIDE)
    wait_until(page, f"{ink} === '#1d2126' && document.getElementById('figure')._fullLayout.width > 1000")
    assert brightness(page.evaluate("getComputedStyle(document.body).backgroundColor")) > 200
    (x1, y1), (x2, y2) = panels(page)
    assert x1 < x2
    assert y1 == y2  # side by side
    assert page.locator("h1").inner_text() == page.title() == heading
    assert words in page.locator("figcaption").inner_text()


def test_ensembles_of_several_widths_have_points_and_slopes_with_intervals(open_page: Any, tmp_path: Path) -> None:
    """What is drawn is what the reports have; slopes and intervals are those of scipy, on both kinds of rows."""
    series = widths()
    write_page(series, tmp_path / "figure.html", "two widths")
    page = open_page(tmp_path / "figure.html")
    drawn = page.evaluate("document.getElementById('figure').data")
    layout = page.evaluate("document.getElementById('figure')._fullLayout.annotations.map(note => note.text)")
    assert layout == ["Diversity on test rows", "Diversity on corrupted test rows", "Slopes"]
    for axis, kind in (("x", "test"), ("x2", "corrupted")):
        for label, reports in series.items():
            (points,) = (t for t in drawn if t["xaxis"] == axis and t["mode"] != "lines" and t["name"] == label)
            x = [r.sharpness.value for r in reports]
            y = [(r.scores if kind == "test" else r.corrupted)["der"].value for r in reports]
            assert (points["x"], points["y"]) == (x, pytest.approx(y))
            assert points["text"] == [f"{r.rho:g}" for r in reports]
            assert points["error_y"]["array"] == pytest.approx([0.02] * 4)
            known = linregress(np.log(x), np.log(y))
            (line,) = (t for t in drawn if t["xaxis"] == axis and t["mode"] == "lines" and t["name"] == label)
            rise = np.log(line["y"][1] / line["y"][0]) / np.log(line["x"][1] / line["x"][0])
            assert rise == pytest.approx(known.slope, abs=1e-9)
            (fitted,) = (t for t in drawn if t["xaxis"] == "x3" and t["name"] == f"{label}, {ROWS[kind]}")
            assert fitted["x"] == pytest.approx([known.slope], abs=1e-9)
            half = t_distribution.ppf(0.975, len(x) - 2) * known.stderr
            assert fitted["error_x"]["array"] == pytest.approx([half], rel=1e-6, abs=1e-9)
    ticks = page.locator("#figure .yaxislayer-above text, #figure .y3tick text").all_text_contents()
    assert {"width 1", "width 4"} <= set(ticks)
    assert {t.text_content() for t in page.locator("#figure .legendtext").all()} == set(series)


def test_without_corrupted_rows_there_is_no_panel_of_them() -> None:
    made = figure(widths(corrupted=False))
    assert [note["text"] for note in made["layout"]["annotations"]] == [
        "Diversity on test rows",
        "Slopes",
    ]
    with pytest.raises(ValueError, match="width 1 has no scores on corrupted rows"):
        slopes(widths(corrupted=False), rows="corrupted")
    two = slopes({"two": widths()["width 1"][:2]})["two"]
    assert math.isfinite(two.value)
    assert all(math.isnan(end) for end in slope_interval(two))  # two points have no interval


def brightness(rgb: str) -> float:
    return sum(float(v) for v in rgb.removeprefix("rgb(").removesuffix(")").split(",")) / 3
