"""The report in a real browser: it works, by pointer and by keyboard, and shows what the store has and nothing else."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from pages import HOSTILE, MEASURES, Cell, Watched, Window, chart, close_run, pdf_text, study, written

from steppe._util.numbers import number, with_error
from steppe.studies.report.definitions import label
from steppe.studies.statistics.kendall import tau_a
from steppe.studies.statistics.sentences import amount, p_words, tau_words
from steppe.studies.store import Store
from steppe.training.config import Config

FOREST_HEADS = ["τ", "95 % interval", "corrected p", "runs / configurations", "detectable τ"]
SIGNS = {"predicts": "✓", "better": "✓", "predicts the opposite": "✕", "worse": "✕"}
SIGNS |= {"weaker than 0.5": "=", "no relevant difference": "=", "cannot tell": "?"}


def reported(folder: Path, n: int, **how) -> Path:
    return written(folder, study(folder / "study.sqlite", n, **how))


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return reported(tmp_path_factory.mktemp("report"), 30)


@pytest.fixture(scope="module")
def report_200(tmp_path_factory):
    return reported(tmp_path_factory.mktemp("report"), 200)


@pytest.fixture(scope="module")
def window_200(chromium, report_200, tmp_path_factory):
    """The page of 200 runs in a process of its own, and the milliseconds until it could be used."""
    for left in (2, 1, 0):  # the fastest of three: other processes may be busy
        window = Window(chromium, tmp_path_factory.mktemp("window"))  # a new process, which has compiled nothing
        watched = Watched(window)
        watched.visit(report_200)
        load = watched.page.evaluate("performance.getEntriesByName('interactive')[0].startTime")
        if load < 2000 or not left:
            break
        window.close()
    yield watched, load
    window.close()


@pytest.fixture
def page_200(window_200):
    watched, _ = window_200
    yield watched.page
    watched.reset()
    watched.check_quiet()


def opened_once(window, file):
    """A page for the tests of one study, which leave alone what the others look at."""
    watched = Watched(window)
    yield watched.visit(file)
    watched.check_quiet()
    watched.page.close()


@pytest.fixture(scope="module")
def bare(window, tmp_path_factory):
    """Five runs without pictures; measures over decades; the test loss is recorded once a run."""
    folder = tmp_path_factory.mktemp("bare")
    planned = [Cell(f"{i}", f"run {i}", asdict(Config(seed=i))) for i in range(5)]
    with Store.open(folder / "study.sqlite") as store:
        store.add(planned)
        for i, cell in enumerate(planned):
            values = {"lambda_max": 100.0 ** (i / 4), "trace": 99.0 ** (i / 4), "fisher_trace": 1000.0 * i}
            measures = {name: {"value": value} for name, value in values.items()}
            records = [{"epoch": e, "train_loss": 1 / e} for e in range(1, 6)]
            records[-1]["test_loss"] = 0.5
            targets = {"test_loss": 10.0**-i, "test_error": 0.1 * i}
            store.record(cell.key, targets=targets, measures=measures, curves=records)
    yield from opened_once(window, written(folder, folder / "study.sqlite"))


ENSEMBLES = [1.0, 2.0, 4.0, 9.0], [0.03, 0.05, 0.02, 0.07]  # sharpness and diversity


@pytest.fixture(scope="module")
def decided(window, tmp_path_factory):
    """A study with a relation, its opposite and a warning; and ensembles."""
    folder = tmp_path_factory.mktemp("decided")
    planned = [
        Cell(f"{i}", f"run {i}", asdict(Config(method=["none", "sam"][i % 2], lr=0.01 * (1 + i // 2))))
        for i in range(48)
    ]
    with Store.open(folder / "study.sqlite") as store:
        store.add(planned)
        for i, cell in enumerate(planned):
            error = 0.1 + 0.002 * i - 0.05 * (i % 2)
            measures = {"trace": {"value": error}, "lambda_max": {"value": -error}, "loss": {"value": (i * 29) % 48}}
            store.record(cell.key, targets={"test_error": error, "train_error": 0.02 * (i % 2)}, measures=measures)
        store.note("study", {"name": "s", "targets": ["test_error"], "cells": [[c.key, c.name, []] for c in planned]})
        for k, (sharp, diverse) in enumerate(zip(*ENSEMBLES, strict=True)):
            values = {"sharpness": sharp, "diversity": diverse}
            note = {"name": f"e{k}", "kind": "sam", "members": 3, "values": values, "errors": {"diversity": 0.01}}
            store.note(f"ensemble/{k}", note)
    yield from opened_once(window, written(folder, folder / "study.sqlite"))


@pytest.fixture(scope="module")
def table(report):
    with Store.reading(report.with_name("study.sqlite")) as store:
        return store.table()


def filter_by(page, setting: str, value: str) -> None:
    page.locator(f'#filters select[data-setting="{setting}"]').select_option(label=value)


def names(page) -> list[str]:
    return page.locator("#runs-table tbody th.name").all_text_contents()


def values(page, key: str) -> list[float]:
    cells = page.locator(f'#runs-table tbody td[data-key="{key}"]')
    return cells.evaluate_all("cells => cells.map(c => c.dataset.value === undefined ? NaN : Number(c.dataset.value))")


def same(found: list[float], expected: list[float]) -> bool:
    return len(found) == len(expected) and all(
        a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(found, expected, strict=True)
    )


def test_numbers_on_the_page_are_the_stores(page, table) -> None:
    assert names(page) == [run.name for run in table.runs]
    for name in ("test_error", "gap"):
        assert same(values(page, f"targets:{name}"), table.target(name).values.tolist())
    assert same(values(page, "measures:lambda_max"), table.measure("lambda_max").values.tolist())
    shown = page.locator('tr[data-run="0"] td[data-key="targets:test_error"]').inner_text()
    first = table.runs[0]
    error = with_error(100 * first.targets["test_error"], 100 * first.target_errors["test_error"])
    assert ascii_minus(shown) == f"{error} %"
    shown = page.locator('tr[data-run="0"] td[data-key="targets:gap"]').inner_text()
    assert ascii_minus(shown) == amount("gap", first.targets["gap"])  # it has no error


def test_heads_sort_up_down_and_back(page, table) -> None:
    head = page.locator('#runs-table th[data-key="targets:test_error"]')
    plan = names(page)
    found = []
    for expected in ("ascending", "descending", "none"):
        head.locator("button").click()
        assert head.get_attribute("aria-sort") == expected
        found.append(values(page, "targets:test_error"))
    there = sorted(run.targets["test_error"] for run in table.runs if run.targets)
    assert found[0][:-1] == there
    assert found[1][:-1] == there[::-1]
    assert math.isnan(found[0][-1])  # what is missing is last, both ways
    assert math.isnan(found[1][-1])
    assert names(page) == plan
    assert page.evaluate("document.activeElement.textContent") == "test error"  # focus stays where it was


def test_filters_hold_everywhere(page, table) -> None:
    filter_by(page, "method", "sam")
    mine = [run for run in table.runs if run.config["method"] == "sam"]
    assert names(page) == [run.name for run in mine]
    assert page.locator("#counted").inner_text() == f"{len(mine)} of 30 runs"
    there = [run for run in mine if run.targets]
    both = [(run.measures["adaptive_worst_linf@0.002"].value, run.targets["test_error"]) for run in there]
    assert points(page) == sorted(both)
    counted = [pair for pair, run in zip(both, there, strict=True) if run.targets["train_error"] <= 0.02]
    assert first_tau(page) == pytest.approx(tau_a(*zip(*counted, strict=True)))
    assert page.locator("#heat-panels h3").all_text_contents() == ["sam"]
    page.locator("#curves-single").check()
    assert chart(page, "curves", "place.data.length") == len(there)
    page.locator("#search").fill("lr=0.2 seed")
    assert names(page) == [run.name for run in mine if run.config["lr"] == 0.2]
    page.locator("#search").fill("no such run")
    assert page.locator("#runs-table tbody").inner_text() == "No run matches these filters."
    page.get_by_role("button", name="Clear").click()
    assert len(names(page)) == 30


def points(page) -> list[tuple[float, float]]:
    found = chart(page, "scatter", "place.data.flatMap(t => t.x.map((x, k) => [x, t.y[k]]))")
    return sorted((x, y) for x, y in found)


def first_tau(page) -> float:
    return float(page.locator("#group-taus tbody td.number").first.get_attribute("data-value"))


def test_tau_on_the_page_is_pythons(page, table) -> None:
    """On numbers with ties and gaps, in groups and without; and unfiltered, the page's own and the store's agree."""
    x = [3, 1, 2, 2, 5, 1, 4, 4, 0, 2.5]
    y = [1, 1, 2, 3, 4, 0, 4, 2, 0, 2.0]
    groups = list("aabbabbaab")
    from steppe.studies.statistics.kendall import pairs

    ask = "([x, y, g]) => window.steppe.tau(x, y, g).tau"
    assert page.evaluate(ask, [x, y, None]) == pytest.approx(tau_a(x, y), abs=1e-15)
    assert page.evaluate(ask, [x, y, groups]) == pytest.approx(pairs(x, y, groups).tau_a, abs=1e-15)
    assert page.evaluate(ask, [[*x, None], [*y, 3], None]) == pytest.approx(tau_a(x, y), abs=1e-15)
    assert math.isnan(page.evaluate(ask, [[1], [2], None]))
    counted = table.where(lambda run: run.state == "done" and run.targets["train_error"] <= 0.02)
    for measure in MEASURES:
        page.locator("#scatter-x").select_option(f"measures:{measure}")
        expected = tau_a(counted.measure(measure).values, counted.target("test_error").values)
        assert first_tau(page) == pytest.approx(expected, abs=1e-12)


def test_groups_have_their_tau_and_interval(page) -> None:
    labels = page.locator("#group-taus tbody th").all_text_contents()
    assert labels == ["all pairs", "pairs within a group", "augment=none", "augment=flip"]  # as planned
    assert page.locator("#group-taus .span").count() == 4


def test_axes_colours_and_shapes_are_chosen(page, table) -> None:
    page.locator("#scatter-x").select_option("settings:lr")  # the learning-rate effect: any number may be an axis
    page.locator("#scatter-y").select_option("measures:trace")
    page.locator("#scatter-colour").select_option("=lr")
    page.locator("#scatter-shape").select_option("=method")
    there = [run for run in table.runs if run.targets]
    assert points(page) == sorted((run.config["lr"], run.measures["trace"].value) for run in there)
    marks = chart(page, "scatter", "place.data.flatMap(t => t.marker.symbol)")
    assert len({mark.removesuffix("-open") for mark in marks}) == 6
    colours = chart(page, "scatter", "place.data.map(t => t.marker.color)")
    assert len(set(colours)) == 4
    errors = chart(page, "scatter", "place.data.flatMap(t => t.error_y.array)")
    assert sorted(errors) == sorted(run.measures["trace"].stderr for run in there)
    page.locator("#scatter-errors").uncheck()
    assert not chart(page, "scatter", "place.data.some(t => t.error_y.visible)")


def test_pointing_at_a_run_names_it(page, table) -> None:
    place = page.locator("#scatter-chart")
    chart(page, "scatter", "true")  # wait until it is drawn with the current settings
    box = place.locator(".points path").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("#scatter-readout:not(:empty)").wait_for()
    name = page.locator("#scatter-readout").inner_text().split(" · ")[0]
    run = next(run for run in table.runs if run.name == name)
    error = with_error(100 * run.targets["test_error"], 100 * run.target_errors["test_error"])
    assert f"test error {error} %" in ascii_minus(page.locator("#scatter-readout").inner_text())
    assert name in place.locator(".hoverlayer").text_content()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert page.locator("#run-name").inner_text() == name


def test_heat_maps_are_means_of_the_store(page, table) -> None:
    page.locator("#heat-value").select_option("measures:lambda_max")
    page.locator("#heat-across").select_option("lr")
    page.locator("#heat-up").select_option("weight_decay")
    page.locator("#heat-panel").select_option("=method")
    panels = page.locator("#heat-panels .panel")
    assert panels.locator("h3").all_text_contents() == list(dict.fromkeys(run.config["method"] for run in table.runs))
    seen = 0
    for k in range(panels.count()):
        method = panels.nth(k).locator("h3").inner_text()
        columns = panels.nth(k).locator("thead th").all_text_contents()[1:]
        for row in panels.nth(k).locator("tbody tr").all():
            decay = row.locator("th").inner_text()
            for lr, cell in zip(columns, row.locator("td").all(), strict=True):
                place = (method, float(lr), float(decay))
                those = [r for r in table.runs if tuple(r.config[k] for k in ("method", "lr", "weight_decay")) == place]
                mine = [run.measures["lambda_max"].value for run in those if run.measures]
                found = cell.get_attribute("data-value")
                assert (found is None) == (not mine)
                if mine:
                    assert float(found) == pytest.approx(sum(mine) / len(mine))
                    seen += len(mine)
    assert seen == 29


def test_the_whole_page_by_keyboard(page) -> None:
    """Tab reaches the table's heads; arrows walk, Enter sorts and opens, Escape closes and goes back."""
    page.locator("#clear").evaluate("e => document.getElementById('search').focus()")
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('thead') !== null"):
            break
    assert page.evaluate("document.activeElement.textContent") == "run"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "test error"
    page.keyboard.press("Enter")
    assert page.locator('#runs-table th[data-key="targets:test_error"]').get_attribute("aria-sort") == "ascending"
    best = names(page)[1]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle + document.activeElement.tagName")
    assert outline == "solidTR"  # focus can be seen
    page.keyboard.press("Enter")
    assert page.locator("dialog h2").inner_text() == best
    close_run(page)
    assert page.evaluate("document.activeElement.querySelector('th').textContent") == best
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.textContent") == "test error"


def test_the_chart_by_keyboard(page) -> None:
    page.locator("#scatter-chart").focus()
    told = []
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        told.append(page.locator("#scatter-readout").inner_text())
    assert len(set(told)) == 3
    page.keyboard.press("Enter")
    assert page.locator("dialog h2").inner_text() == told[-1].split(" · ")[0]
    close_run(page)
    assert page.evaluate("document.activeElement.id") == "scatter-chart"


def test_one_run_shows_all_its_numbers(page, table) -> None:
    page.locator('tr[data-run="3"] th').click()
    text = page.locator("dialog").inner_text()
    run = table.runs[3]
    for name, measured in run.measures.items():
        assert label(name) in text
        assert measured.kind in text
    found = page.locator("dialog td[data-value]").evaluate_all("cells => cells.map(c => Number(c.dataset.value))")
    assert sorted(found) == sorted(m.value for m in run.measures.values())
    page.get_by_role("button", name="Close").click()
    page.locator('tr[data-run="11"] th').click()
    assert "the loss is not finite after step 180" in page.locator("dialog").inner_text()


def test_columns_come_and_go(page) -> None:
    assert page.locator('#runs-table th[data-key="measures:fisher_trace"]').count() == 0
    page.locator("#columns summary").click()
    page.get_by_label("Fisher trace", exact=True).check()
    page.get_by_label("generalisation gap", exact=True).uncheck()
    heads = page.locator("#runs-table thead th").all_text_contents()
    assert "Fisher trace" in heads
    assert "generalisation gap" not in heads


def test_the_table_is_saved_as_it_is_shown(page, table) -> None:
    filter_by(page, "method", "asam")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))
    mine = [run for run in table.runs if run.config["method"] == "asam"]
    assert [float(row["test_error"]) for row in rows] == [run.targets["test_error"] for run in mine]
    assert [float(row["trace standard error"]) for row in rows] == [run.measures["trace"].stderr for run in mine]


def test_dark_and_light(page) -> None:
    """As the system has it, and as it is switched to, charts too; the choice is kept for the next visit."""
    page.emulate_media(color_scheme="dark")
    page.locator("html[data-theme=dark]").wait_for()
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    text = "place.layout.font.color"
    light_text = chart(page, "scatter", text)
    page.get_by_role("radio", name="Light").click()
    assert page.evaluate(background) != dark
    assert chart(page, "scatter", text) != light_text
    page.keyboard.press("ArrowRight")
    assert page.evaluate(background) == dark
    assert page.get_by_role("radio", name="Dark").get_attribute("aria-checked") == "true"
    page.emulate_media(color_scheme="light")
    assert page.evaluate(background) == dark
    assert page.evaluate("localStorage.getItem('steppe-theme')") == "dark"


def contrast(page, selector: str) -> float:
    return page.evaluate(
        """selector => {
          const rgb = text => text.match(/[\\d.]+/g)
            .map((v, k) => Number(v) * (k < 3 && text.startsWith('color(') ? 255 : 1));
          const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
          const light = c => [0.2126, 0.7152, 0.0722].reduce((sum, w, k) => sum + w * linear(c[k] / 255), 0);
          const one = document.querySelector(selector);
          let under = one;
          while (under && (rgb(getComputedStyle(under).backgroundColor)[3] ?? 1) === 0) under = under.parentElement;
          const a = light(rgb(getComputedStyle(one).color)) + 0.05;
          const b = light(rgb(getComputedStyle(under).backgroundColor)) + 0.05;
          return Math.max(a / b, b / a);
        }""",
        selector,
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_are_readable(page, scheme) -> None:
    """WCAG AA: 4.5 to 1 for text."""
    page.emulate_media(color_scheme=scheme)
    page.locator(f"html[data-theme={scheme}]").wait_for()
    for selector in (
        ".lead",
        ".kicker",
        ".facts",
        ".notes p",
        "#parts a",
        ".explained summary",
        ".reason td",
        ".warnings li",
        ".error",
        ".state.failed",
        "figcaption",
        ".key .quiet",
        ".verdict-word",
        ".note",
    ):
        assert contrast(page, selector) >= 4.5, selector
    for value in page.locator(".panel td").evaluate_all("cells => cells.map(c => c.dataset.value).filter(Boolean)"):
        assert contrast(page, f'.panel td[data-value="{value}"]') >= 4.5


def test_on_a_phone_nothing_sticks_out(page) -> None:
    """No sideways scrolling; the overview's tables are stacked, and names of runs are whole."""
    wide = "those => those.filter(e => e.scrollWidth > e.clientWidth).length"
    for width in (320, 360, 390):
        page.set_viewport_size({"width": width, "height": 740})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator("#forest .scroll, #contest .scroll").evaluate_all(wide) == 0
        assert page.locator("#runs-table th.name").evaluate_all(wide) == 0
        heads = page.locator("#forest tr[data-measure] td.number").evaluate_all(
            "cells => cells.map(c => getComputedStyle(c, '::before').content)"
        )
        assert set(heads) == {f'"{head}"' for head in FOREST_HEADS}


def test_on_paper(page) -> None:
    """Light, whole tables, no controls, charts that fit; and the screen as it was afterwards."""
    page.emulate_media(color_scheme="dark")
    page.locator("html[data-theme=dark]").wait_for()
    before = chart(page, "scatter", "place.layout.font.color")
    assert page.locator(".chart[data-stale]").count() > 0  # far from the screen
    page.emulate_media(media="print")
    page.locator("html[data-theme=light]").wait_for()
    assert page.locator(".chart[data-stale]:visible").count() == 0
    inks = "all => all.map(place => place.layout.font.color)"
    assert before not in page.locator(".js-plotly-plot").evaluate_all(inks)
    assert not page.locator("#filters").is_visible()
    assert page.locator("#scatter-chart svg.main-svg").first.bounding_box()["width"] <= 700
    assert len(page.pdf()) > 50_000
    assert page.locator("#forest-hypothesis").count() == 1
    page.emulate_media(media="screen")
    page.locator("html[data-theme=dark]").wait_for()
    assert chart(page, "scatter", "place.layout.font.color") == before
    page.locator("#scatter-chart").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#scatter-readout").inner_text()


def test_paper_has_the_findings_on_six_pages(open_page, report_200) -> None:
    """Tables of findings, opened for paper and closed again; what is for exploring only if a reader has opened it."""
    page = open_page(report_200, folds=False)
    page.emulate_media(media="print")
    page.locator("html[data-theme=light] #contest .fold[open]").wait_for()
    pages = re.findall(rb"/Type\s*/Page[^s]", page.pdf(format="A4"))
    assert 1 <= len(pages) <= 6
    for shown in ("contest", "forest", "settings", "making"):
        assert page.locator(f"#{shown}").is_visible(), shown
    for left_out in ("runs", "compare", "scatter", "parallel", "heat", "curves", "spectra", "landscapes"):
        assert not page.locator(f"#{left_out}").is_visible(), left_out
    page.emulate_media(media="screen")
    page.locator("#contest .fold:not([open])").wait_for()
    assert page.locator(".fold[open]").count() == 0


def test_200_runs_are_quick_and_turn_pages(page_200, window_200, report_200) -> None:
    assert report_200.stat().st_size < 4_000_000
    assert window_200[1] < 2000
    filtered = page_200.evaluate(
        """() => { const box = document.getElementById('search');
          return ['lr > 0.1', 'method = sam', ''].map(text => { const from = performance.now();
            box.value = text; box.dispatchEvent(new Event('input')); return performance.now() - from; }); }"""
    )
    assert min(filtered) < 1000
    assert len(names(page_200)) == 50
    first = names(page_200)
    page_200.get_by_role("button", name="Next").click()
    assert not set(names(page_200)) & set(first)


def letters(text: str) -> str:
    """Without blanks and signs of direction, which a chart's label may take out."""
    return "".join(c for c in text if not c.isspace() and c not in "\u202e")


def test_hostile_names_are_text(open_page, tmp_path) -> None:
    """In tables, the dialog, charts, menus, the filter and the title; nothing of them runs, nothing is asked for."""
    page = open_page(reported(tmp_path, 8, hostile=True))
    assert names(page)[: len(HOSTILE)] == HOSTILE
    keys = page.evaluate("window.steppe.state.data.runs.keys")
    assert page.title() == HOSTILE[1]
    assert [page.locator(f"#{name}").text_content() for name in ("study", "title")] == [HOSTILE[1], HOSTILE[0]]
    for k, name in enumerate(HOSTILE):  # place by place, because charts are drawn again when they come near
        page.locator(f'tr[data-run="{k}"] th').click()
        assert page.locator("#run-name").text_content() == name
        close_run(page)
    for k, name in enumerate(HOSTILE):
        page.locator("#compare-a").select_option(keys[k])
        assert page.locator("#compared thead th").nth(1).text_content() == f"A {name}"
    for k, name in enumerate(HOSTILE):
        point = f"""{{ const curve = place.data.findIndex(t => t.customdata.includes({k}));
          const point = place.data[curve].customdata.indexOf({k});
          window.Plotly.Fx.unhover(place);
          window.Plotly.Fx.hover(place, [{{ curveNumber: curve, pointNumber: point }}]); }}"""
        chart(page, "scatter", point)
        label = page.locator("#scatter-chart .hoverlayer").text_content()
        assert letters(name)[:40] in letters(label)  # tags and entities among them
        assert page.locator("#scatter-chart .hoverlayer a").count() == 0
    page.locator("#parallel-chart").focus()
    for name in HOSTILE:
        page.keyboard.press("ArrowRight")
        assert letters(name)[:40] in letters(page.locator("#parallel-readout").text_content())
    page.locator("#landscape-run").scroll_into_view_if_needed()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    saved = list(csv.reader(io.StringIO(Path(download.value.path()).read_bytes().decode())))
    assert saved[1][0] == HOSTILE[0]
    assert saved[4][0] == "'" + HOSTILE[3]  # a spreadsheet does not run it
    page.locator("#search").fill('"<script>"')
    assert names(page) == HOSTILE[:1]
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0


def test_sections_are_there_when_the_study_has_them(bare, page) -> None:
    for section in ("spectra", "landscapes", "ensembles"):
        assert page.locator(f"#{section}").is_visible()
        assert chart(page, section, "place.data.length") > 0
        assert not bare.locator(f"#{section}").is_visible()
    assert "Curvature" in page.locator("#parts").inner_text()
    assert "Curvature" not in bare.locator("#parts").inner_text()


def test_landscapes_are_the_right_way_round(page) -> None:
    """rises[i][j] is at x[i], y[j]: plotly draws rows upwards."""
    drawn = chart(page, "landscapes", "place.data[0]")
    k = int(page.locator("#landscape-run").input_value())
    x, y, rise = drawn["x"][3], drawn["y"][12], drawn["z"][12][3]
    steep = page.evaluate(f"window.steppe.state.data.landscapes[0].runs[{k}].run") + 1
    assert rise == pytest.approx(steep * x * x + 0.6 * y * y + 0.4 * x * y, abs=1e-4)


def fills(page) -> list:
    return [t for t in chart(page, "landscapes", "place.data") if t["type"] == "contour"]


def test_two_landscapes_stand_side_by_side_on_one_scale(page) -> None:
    runs = page.evaluate("window.steppe.state.data.landscapes[0].runs.map((one) => one.run)")
    flat, sharp = str(runs.index(0)), str(runs.index(3))
    page.locator("#landscape-run").select_option(flat)
    page.locator("#landscape-beside").select_option(sharp)
    for log in (False, True):
        page.locator("#landscape-log").set_checked(log)
        one, other = fills(page)
        found = [[v for row in drawn["z"] for v in row] for drawn in (one, other)]
        assert max(found[1]) > max(found[0])  # run 3 is the sharper one
        ends = (max(map(max, found)) - 4 if log else 0, max(map(max, found)))
        for drawn in (one, other):
            assert (drawn["zmin"], drawn["zmax"]) == pytest.approx(ends, abs=1e-6)
            assert drawn["contours"] == one["contours"]
            assert min(map(min, drawn["z"])) == pytest.approx(ends[0], abs=1e-6)  # in the middle
    page.locator("#landscape-beside").select_option("")
    assert len(fills(page)) == 1
    assert "as it was stored" in page.locator("#landscapes-caption").inner_text()


def test_ensembles_have_their_errors_and_a_fitted_line(decided) -> None:
    """Bars are the errors that were kept; the line goes through the middle of the points, on logarithms."""
    page = decided
    x, y = ENSEMBLES
    points, line = chart(page, "ensembles", "place.data")
    assert (points["x"], points["y"]) == (x, y)
    assert points["error_y"]["array"] == [0.01] * 4
    assert not points["error_x"]["visible"]
    slope, level = np.polyfit(np.log(x), np.log(y), 1)
    assert line["y"] == pytest.approx(np.exp(level + slope * np.log(line["x"])).tolist())
    assert line["x"] == [1.0, 9.0]
    assert f"slope sam {slope:.2f}" in page.locator("#ensembles-caption").inner_text().replace("\u2212", "-")


def test_a_curve_of_one_point_is_seen(bare) -> None:
    """What is recorded once a run is no curve: the page begins with what is, and draws the other as points."""
    assert bare.locator("#curves-metric").input_value() == "train_loss"
    bare.locator("#curves-metric").select_option("test_loss")
    bare.locator("#curves-single").check()
    assert chart(bare, "curves", "place.data.map(t => t.mode)") == ["markers"] * 5


def test_axes_are_logarithmic_where_values_span_decades(bare) -> None:
    """Two decades and all positive; less, or a value of zero, is linear. The tick changes it."""
    page = bare

    def types() -> list[str]:
        return chart(page, "scatter", "['xaxis', 'yaxis'].map(a => place.layout[a].type)")

    page.locator("#scatter-y").select_option("targets:test_loss")
    for measure, expected in {"lambda_max": "log", "trace": "linear", "fisher_trace": "linear"}.items():
        page.locator("#scatter-x").select_option(f"measures:{measure}")
        assert types() == [expected, "log"]
        assert page.locator("#scatter-log-x").is_checked() == (expected == "log")
    page.locator("#scatter-log-y").uncheck()
    assert types() == ["linear", "linear"]
    page.locator("#scatter-y").select_option("targets:test_error")
    assert types() == ["linear", "linear"]


def test_words_are_in_the_studys_order_and_numbers_in_their_own(page, table) -> None:
    methods = list(dict.fromkeys(run.config["method"] for run in table.runs))
    assert methods != sorted(methods)  # or this test would say little
    key = page.locator("#scatter-key div").first.locator("li").all_text_contents()
    counted = [r for r in table.runs if r.state == "done" and r.targets["train_error"] <= 0.02]
    assert key == [
        f"{m}{sum(r.config['method'] == m for r in counted)}" for m in methods
    ]  # and no tau without interval
    lrs = page.locator('#filters select[data-setting="lr"] option').all_text_contents()[1:]
    assert lrs == sorted(lrs, key=float)


def test_numbers_are_written_as_python_does(page) -> None:
    """The same digits: of ties such as 0.125, of sizes that need an exponent, and of values with errors."""
    draw = np.random.default_rng(0)
    sizes = (10.0 ** draw.uniform(-9, 9, 200) * draw.choice([-1, 1], 200)).tolist()
    values = [0.0, 0.125, -0.125, 0.375, 0.0045, 0.005, -0.996, 1.0, 46.4, 999.96, 9999.7, 12345.0, 1e6, 1e-4, *sizes]
    ask = """values => values.map(x => { const s = window.steppe;
      return [s.digits(x), s.digits(x, 2), s.tauWords(x), s.percent(x), s.chance(Math.abs(x))]; })"""
    for x, texts in zip(values, page.evaluate(ask, values), strict=True):
        expected = [number(x), number(x, 2), tau_words(x), amount("test_error", x), p_words(abs(x)).removeprefix("p ")]
        assert [ascii_minus(text) for text in texts] == [text.removeprefix("= ") for text in expected]
    pairs = [[x, abs(x) * e] for x, e in zip(sizes, 10.0 ** draw.uniform(-7, 2, 200), strict=True)]
    pairs += [[46.4, 14.0], [0.0, 0.5], [-0.001, 0.4], [99.96, 0.0996]]
    ask = (
        "pairs => pairs.map(p => { const [a, v, e, b] = window.steppe.uncertain(...p); return `${a}${v} ± ${e}${b}`; })"
    )
    for (x, error), shown in zip(pairs, page.evaluate(ask, pairs), strict=True):
        assert ascii_minus(shown) == with_error(x, error)


def ascii_minus(text: str) -> str:
    return text.replace("\u2212", "-").replace("\u00a0", " ")


def interval(low, high, write) -> str:
    return "none" if low is None else f"{write(low)} to {write(high)}"


def p_cell(p) -> str:
    return "\u2013" if p is None else p_words(p).removeprefix("p ").removeprefix("= ")


def in_words(text: str) -> str:
    """A sentence of the findings as the page writes it: with labels, and a capital at its start."""
    for name in sorted([*MEASURES, "loss", "test_error", "train_error", "gap"], key=len, reverse=True):
        alone = rf"(?<!training )(?<![\w@.-]){re.escape(name)}(?![\w@-])"
        text = re.sub(alone, lambda _, n=name: label(n), text)
    return text[0].upper() + text[1:]


def embedded_findings(report) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', report.read_text("utf-8"))[1])["findings"]


def rows_of(page, selector: str) -> list[list[str]]:
    """The cells of a table's rows as they are seen, the picture left out."""
    found = page.locator(selector).evaluate_all("rows => rows.map(r => [...r.cells].map(c => c.innerText))")
    return [[ascii_minus(" ".join(cell.split())) for cell in [*row[:2], *row[3:]]] for row in found]


@pytest.mark.parametrize("size", [(1280, 900, 2_300), (390, 844, 3_600)], ids=["desktop", "phone"])
def test_the_page_answers_first(open_page, report, size) -> None:
    """Question, answers (methods first), the picture and doubts; everything else is closed, and not drawn yet."""
    width, height, longest = size
    page = open_page(report, folds=False, viewport={"width": width, "height": height})
    found = embedded_findings(report)
    assert page.locator("#study").inner_text() == "Digits: six methods, four learning rates"
    assert page.locator("#title").inner_text() == "Do flatter runs err less?"
    answers = [in_words(found[name]) for name in ("method_sentence", "sentence")]
    assert [ascii_minus(text) for text in page.locator("#answers p").all_inner_texts()] == answers
    order = (
        "study",
        "title",
        "answers",
        "facts",
        "picture",
        "warnings",
        "notes",
        "contest",
        "forest",
        "settings",
        "runs",
    )
    tops = [page.locator(f"#{name}").bounding_box()["y"] for name in order]
    assert tops == sorted(tops)
    if width > 1000:
        assert page.locator("#picture-methods tbody tr").first.bounding_box()["y"] < 600  # on the first screen
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate("document.documentElement.scrollHeight") < longest
    assert page.locator(".fold[open]").count() == 0
    for lazy in ("#runs-table", "#compared", "#parallel-chart svg", ".panel", ".js-plotly-plot", "#making-measures"):
        assert page.locator(lazy).count() == 0, lazy
    for fold, drawn in (("runs", "#runs-table"), ("scatter", "#scatter-chart .points"), ("heat", ".panel")):
        page.locator(f"#{fold} summary").first.click()
        page.locator(drawn).first.wait_for()
    page.locator("#notes summary").click()
    assert page.locator("#notes p").all_inner_texts() == ["Two thousand rows.", "Six methods,\none network."]


def test_the_picture_shows_the_first_target(page, report) -> None:
    mine = [c for c in embedded_findings(report)["comparisons"] if c["pairs"] and c["target"] == "test_error"]
    rows = page.locator("#picture-methods tbody tr")
    assert rows.locator("th").all_inner_texts() == [c["contender"] for c in mine]
    assert rows.locator(".verdict-word").all_inner_texts() == [f"{SIGNS[c['verdict']]} {c['verdict']}" for c in mine]
    for text, c in zip(rows.locator("td.number").all_inner_texts(), mine, strict=True):
        assert ascii_minus(text).startswith(f"{100 * c['difference']:+.2f}")
    dots = rows.locator("circle.dot").evaluate_all("dots => dots.map(d => parseFloat(d.getAttribute('cx')) - 50)")
    differences = np.array([c["difference"] for c in mine])
    assert np.array(dots) / dots[0] == pytest.approx(differences / differences[0])  # on one linear scale


def test_without_a_comparison_measures_are_the_picture(bare) -> None:
    assert bare.locator("#title").inner_text() == "Do flatter runs have a lower test error?"  # it has no title
    assert bare.locator("#picture-methods").count() == 0
    assert bare.locator("#picture-measures tbody tr").count() == 3
    assert bare.locator("#answers p").count() == 1


def test_people_read_words_and_point_at_identifiers(page) -> None:
    """No identifier is a label: each is a title, stands in its row of the definitions, or is what a filter takes."""
    page.evaluate("document.querySelectorAll('.id, #filter-help, .pairs').forEach(e => { e.hidden = true; })")
    text = page.locator("main").inner_text()
    page.evaluate("document.querySelectorAll('.id, #filter-help, .pairs').forEach(e => { e.hidden = false; })")
    assert [name for name in [*MEASURES, "test_error"] if "_" in name and name in text] == []
    rows = page.locator("#forest tr[data-measure] th .term")
    titles = rows.evaluate_all("all => all.map(one => [one.title, one.innerText])")
    assert len(titles) == 12
    assert all(label(name) == words for name, words in titles)
    assert set(page.locator("#making-measures .id").all_inner_texts()) == set(MEASURES)


def test_the_forest_plot_shows_every_finding(page, report) -> None:
    """Every measure and target by each hypothesis, with the object's verdicts and numbers; points are in place."""
    findings = embedded_findings(report)["findings"]
    hypotheses = page.locator("#forest-hypothesis option").evaluate_all("all => all.map(o => o.value)")
    assert hypotheses == ["strong", "within groups", "weak"]
    for hypothesis in hypotheses:
        page.locator("#forest-hypothesis").select_option(hypothesis)
        mine = [f for f in findings if f["hypothesis"] == hypothesis]
        assert len(mine) == 12
        expected = []
        for f in mine:
            detectable = f["smallest_detectable_tau"]
            expected.append([
                label(f["measure"]), f"{SIGNS[f['verdict']]} {f['verdict']}", tau_words(f["tau"]),
                interval(f["low"], f["high"], tau_words), p_cell(f["p_corrected"]), f"{f['n']} / {f['configurations']}",
                "none" if detectable is None else f"{detectable:.2f}",
            ])  # fmt: skip
        assert rows_of(page, "#forest tr[data-measure]") == expected
        dots = page.locator("#forest .dot").evaluate_all("dots => dots.map(d => parseFloat(d.getAttribute('cx')))")
        assert dots == pytest.approx([50 + 50 * f["tau"] for f in mine])
        assert page.locator("#forest .group th").evaluate_all("all => all.map(c => c.firstChild.data)") == [
            "test error", "generalisation gap"
        ]  # fmt: skip
        assert page.evaluate("document.activeElement.id") == "forest-hypothesis"
        over = page.locator("#forest .scroll, #contest .scroll").evaluate_all(
            "all => all.map(e => e.scrollWidth - e.clientWidth)"
        )
        assert over == [0, 0]  # whole on a desktop


def pool(c) -> str:
    return f"{c['pairs']} pairs of {c['configurations']} configurations"


def test_methods_are_compared_with_numbers_costs_and_warnings(page, report) -> None:
    found = embedded_findings(report)
    compared = [c for c in found["comparisons"] if c["pairs"]]
    assert compared
    pools = {pool(c) for c in compared}
    expected = []
    for c in compared:
        points, low, high = (
            None if c[k] is None else amount(c["target"], c[k], signed=True) for k in ("difference", "low", "high")
        )
        means = [amount(c["target"], c[k]) for k in ("mean", "reference_mean")]
        detectable = c["smallest_detectable_difference"]
        expected.append([
            c["contender"], f"{SIGNS[c['verdict']]} {c['verdict']}{' ⚠' * bool(c['warning'])}",
            f"{points} {means[0]} against {means[1]}",
            "none" if low is None else f"{low.removesuffix(' points')} to {high.removesuffix(' points')}",
            f"{c['wins']} / {c['losses']} / {c['ties']}" + f" {pool(c)}" * (len(pools) > 1),
            p_cell(c["p_corrected"]), "none" if detectable is None else number(100 * detectable, 3),
            f"{number(c['passes'])} passes ({number(c['passes'] / c['reference_passes'], 3)}x) "
            f"{number(c['seconds'], 3)} s ({number(c['seconds'] / c['reference_seconds'], 3)}x)",
        ])  # fmt: skip
    shown = [[cell.replace("\ufe0e", "") for cell in row] for row in rows_of(page, "#contest tr[data-contender]")]
    assert shown == [[re.sub(r"\b1 (pair|configuration)s", r"1 \1", cell) for cell in row] for row in expected]
    warnings = {c["warning"] for c in compared if c["warning"]}
    told = page.locator("#warnings li").all_inner_texts()
    for words in warnings:
        assert sum(in_words(words) in text for text in told) == 1
    dear = {c["contender"] for c in compared if abs(c["passes"] / c["reference_passes"] - 1) > 0.1}
    (cost,) = (text for text in told if "Cost is not equal" in text)
    assert dear
    assert all(name in cost for name in dear)


def test_a_verdict_for_every_kind(decided) -> None:
    """A relation, its opposite, and a warning: words, signs and reasons as in the object."""
    page = decided
    verdicts = {row[0]: row[1] for row in rows_of(page, "#forest tr[data-measure]")}
    expected = {"trace": "✓ predicts", "lambda_max": "✕ predicts the opposite", "loss": "= weaker than 0.5"}
    assert verdicts == {label(name): verdict for name, verdict in expected.items()}
    assert page.locator("#forest svg.good").count() == page.locator("#forest svg.bad").count() == 1
    assert rows_of(page, "#contest tr[data-contender]")[0][1].replace("\ufe0e", "") == "✓ better ⚠"
    assert "sam" in page.locator("#warnings").inner_text()


def test_every_row_says_why(page, report) -> None:
    """Below its numbers: the reason of its verdict, and what is left of the relation within factors."""
    found = embedded_findings(report)
    reasons = [ascii_minus(text) for text in page.locator("#forest .reason").all_inner_texts()]
    mine = [f for f in found["findings"] if f["hypothesis"] == "strong"]
    for text, f in zip(reasons, mine, strict=True):
        assert text.strip().startswith(f["why"])
        for one in f["confounding"]["within"]:
            if one["low"] is not None:
                assert f"within {one['setting']} {tau_words(one['tau'])}" in text
    compared = [c for c in found["comparisons"] if c["pairs"]]
    for text, c in zip(page.locator("#contest .reason").all_inner_texts(), compared, strict=True):
        assert text.strip().startswith(c["why"])


A4 = 680  # CSS pixels between margins of 15 mm


@pytest.mark.slow
def test_on_a4_everything_is_whole_and_large_enough(page_200, report_200) -> None:
    """No table or chart wider than the paper, which a browser would shrink; text of 8 pt or more; all findings."""
    file, page = report_200, page_200
    page.set_viewport_size({"width": A4, "height": 960})
    page.emulate_media(media="print")
    page.locator("html[data-theme=light]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == A4
    small = page.evaluate(
        """() => [...document.querySelectorAll('main *')]
          .filter(e => e.offsetParent && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
          .filter(e => parseFloat(getComputedStyle(e).fontSize) < 10.6)
          .map(e => e.outerHTML.slice(0, 80))"""
    )
    assert small == []
    text = pdf_text(page.pdf(format="A4"))
    found = embedded_findings(file)
    with Store.reading(file.with_name("study.sqlite")) as store:
        run_names = [run.name for run in store.table().runs]
    for words in (found["sentence"], found["method_sentence"]):
        assert ascii_minus("".join(in_words(words).split())) in ascii_minus(text)
    # rows of runs are for the screen; the first four have spectra, which name them where a reader opened their fold
    assert not any("".join(name.split()) in text for name in run_names[4:])
    for f in found["findings"]:  # all hypotheses, not the chosen one alone
        line = (
            label(f["measure"]),
            SIGNS[f["verdict"]],
            f["verdict"],
            tau_words(f["tau"]),
            interval(f["low"], f["high"], tau_words),
        )
        assert ascii_minus("".join("".join(line).split())) in ascii_minus(text)


def test_nothing_runs_that_the_page_did_not_bring(page, shared_page) -> None:
    """The policy holds: an inserted script does not run, and nothing is asked for."""
    page.evaluate(
        """() => { const made = document.createElement('script');
          made.textContent = 'window.hacked = 1'; document.body.append(made); made.remove(); }"""
    )
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'asked', () => 'refused')") == "refused"
    assert shared_page.messages  # the browser tells of both, and of nothing else
    assert all("Content Security Policy" in line for line in shared_page.messages)
    shared_page.messages.clear()
