"""Landscapes, spectra and figures in a real browser: a study's page, and the pages of `landscape` and `theory`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import MEASURES, browser, study

from steppe.measures.landscape import Slice, empty_slice
from steppe.measures.plotting import write_html
from steppe.studies.report import write
from steppe.studies.store import Store
from steppe.theory import Result, save
from steppe.theory.panels import BLUE, Panel, line, picture

PHONE = {"width": 390, "height": 800}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as launched:
        yield launched


def opened(launched: Any, file: Path, **how: Any) -> Any:
    page = launched.new_context(offline=True, **({"viewport": {"width": 1280, "height": 900}} | how)).new_page()
    page.set_default_timeout(20_000)
    page.on("pageerror", lambda error: pytest.fail(str(error)))
    page.goto(file.as_uri())
    page.wait_for_selector("html[data-ready=yes]")
    return page


def fills(page: Any) -> list[Any]:
    return [t for t in page.evaluate("document.getElementById('landscapes-chart').data") if t["type"] == "contour"]


def test_compared_landscapes_state_their_radius_and_begin_with_flattest_and_sharpest(
    chromium: Any, tmp_path: Path
) -> None:
    path = study(tmp_path / "study.sqlite", 6, extras=False)
    with Store.open(path) as store:
        table = store.table()
        sharpness = {run.key: run.measures[MEASURES[0]].value for run in table.runs if run.state == "done"}
        flat, sharp = min(sharpness, key=sharpness.get), max(sharpness, key=sharpness.get)
        other = next(run.key for run in table.runs if run.key not in (flat, sharp))
        for kind, radius in (("eigenvectors", 0.5), ("random", 0.8)):
            axis = [radius * k / 4 for k in range(-4, 5)]
            runs = [
                {"key": key, "x": axis, "y": axis, "rises": [[c * (a * a + b * b) for b in axis] for a in axis],
                 "loss": 0.25, "names": [f"{kind} 1", f"{kind} 2"], "own_radius": c**-0.5}
                for key, c in ((other, 1 / radius**2 / 2), (flat, 1 / radius**2 / 28), (sharp, 1 / radius**2))
            ]  # fmt: skip
            store.note(f"landscapes/{kind}/0", {"directions": kind, "radius": radius, "rise": 1.0, "runs": runs})
    names = {run.key: run.name for run in table.runs}
    page = opened(chromium, write(path, tmp_path / "report.html"))
    caption = page.locator("#landscapes-caption")
    assert f"Radius 0.5: {names[sharp]}, the sharpest of 3 runs, rises by 1.0" in caption.inner_text()
    assert f"{names[flat]} does so at" in caption.inner_text()
    left, right = fills(page)
    assert max(map(max, right["z"])) == pytest.approx(28 * max(map(max, left["z"])), rel=1e-3)
    assert (left["zmin"], left["zmax"]) == (right["zmin"], right["zmax"]) == pytest.approx((0, 2))
    curves = [t for t in page.evaluate("document.getElementById('landscapes-chart').data") if t.get("mode") == "lines"]
    assert [max(t["y"]) for t in curves] == pytest.approx([1 / 28, 1], rel=1e-3)  # along the first direction
    page.locator("#landscape-directions").select_option("random")
    assert fills(page)[0]["x"][-1] == 0.8
    assert "filter-normalised" in caption.inner_text()
    assert len(fills(page)) == 2  # the same runs


def test_spectra_have_bands_and_their_largest_eigenvalues(chromium: Any, tmp_path: Path) -> None:
    path = study(tmp_path / "study.sqlite", 6, extras=False)
    with Store.open(path) as store:
        keys = [run.key for run in store.table().runs][:2]
        for key, top in zip(keys, (10.0, 0.5), strict=True):
            nodes, weights = [[0.0, top / 2, top], [0.0, top / 3, top]], [[0.9, 0.05, 0.05], [0.8, 0.1, 0.1]]
            note = {"nodes": nodes, "weights": weights, "dimension": 40, "title": ""}
            store.note(f"spectrum/{key}", note)
    page = opened(chromium, write(path, tmp_path / "report.html"))
    drawn = page.evaluate("document.getElementById('spectra-chart').data")
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
    return picture("Two panels", "What they show, in many words. " * 8, *row)


@pytest.mark.parametrize("kind", ["landscape", "theory"])
def test_figures_fit_a_phone_and_follow_the_dark_scheme(chromium: Any, tmp_path: Path, kind: str) -> None:
    file = tmp_path / "figure.html"
    if kind == "landscape":
        write_html([plane(0.1), plane(1.0)], file, names=["runs/flat", "runs/sharp"])
    else:
        save(Result({"seed": 3}, two_panels(), ["words"]), "a-study", file)
    wide = opened(chromium, file, color_scheme="light")
    (x1, y1), (x2, y2) = panels(wide)
    assert x1 < x2
    assert y1 == y2  # side by side
    heading = wide.locator("h1").inner_text()
    assert wide.title() == heading
    assert heading == {
        "landscape": "Loss in a plane around runs/flat and runs/sharp", "theory": "a-study: Two panels"
    }[kind]  # fmt: skip
    said = wide.locator("figcaption").inner_text()
    assert ("runs/sharp rises by 1 at the end of an axis" if kind == "landscape" else "Seed 3.") in said
    phone = opened(chromium, file, viewport=PHONE, color_scheme="dark")
    (x1, y1), (x2, y2) = panels(phone)
    assert x1 == x2
    assert y1 < y2  # stacked
    assert phone.evaluate("document.documentElement.scrollWidth") <= 390
    figure = phone.evaluate("document.getElementById('figure').getBoundingClientRect().width")
    assert phone.evaluate("document.querySelector('#figure .main-svg').getBoundingClientRect().width") <= figure
    paper = [page.evaluate("getComputedStyle(document.body).backgroundColor") for page in (wide, phone)]
    assert brightness(paper[0]) > 200
    assert brightness(paper[1]) < 60
    assert phone.evaluate("document.getElementById('figure')._fullLayout.font.color") == "#eceae4"
    phone.emulate_media(color_scheme="light")
    phone.wait_for_timeout(500)
    assert phone.evaluate("document.getElementById('figure')._fullLayout.font.color") == "#1d2126"


def brightness(rgb: str) -> float:
    return sum(float(v) for v in rgb.removeprefix("rgb(").removesuffix(")").split(",")) / 3
