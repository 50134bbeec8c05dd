"""The report in a real browser: it works, by pointer and by keyboard, and shows what the store has and nothing else."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from pages import HOSTILE, browser, cells, study

from steppe.studies.report import content, html
from steppe.studies.statistics.kendall import tau_a
from steppe.studies.store import Store

WIDE = {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def chromium():
    with browser() as launched:
        yield launched


def reported(folder: Path, n: int, **how) -> Path:
    """A report with fewer draws than usual for its intervals, which these tests do not look at."""
    with Store.reading(study(folder / "study.sqlite", n, **how)) as store:
        text = html(content(store, full=False))
    (folder / "report.html").write_text(text, encoding="utf-8")
    return folder / "report.html"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return reported(tmp_path_factory.mktemp("report"), 30)


@pytest.fixture(scope="module")
def table(report):
    with Store.reading(report.with_name("study.sqlite")) as store:
        return store.table()


class Watched:
    """A page of which everything is heard: what it asks for, what it says on the console, and errors."""

    def __init__(self, launched, file: Path, **how) -> None:
        self.context = launched.new_context(offline=True, **({"viewport": WIDE, "color_scheme": "light"} | how))
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.asked: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("html[data-ready=yes]")

    def quiet(self) -> bool:
        elsewhere = [url for url in self.asked[1:] if not url.startswith(("data:", "blob:"))]
        return not elsewhere and not self.said


@pytest.fixture
def open_page(chromium):
    opened: list[Watched] = []

    def opening(file: Path, **how) -> Watched:
        opened.append(Watched(chromium, file, **how))
        return opened[-1]

    yield opening
    for one in opened:
        one.context.close()
        assert one.quiet(), (one.asked[1:], one.said)


@pytest.fixture
def page(open_page, report):
    return open_page(report).page


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
    value, error = (float(part) for part in shown.split("±"))
    first = table.runs[0]
    assert value == pytest.approx(first.targets["test_error"], abs=1e-5)
    assert error == pytest.approx(first.target_errors["test_error"], rel=0.05)


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
    assert page.evaluate("document.activeElement.textContent") == "test_error"  # focus stays where it was


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
    assert page.evaluate("document.getElementById('curves-chart').data.length") == len(there)
    page.locator("#search").fill("lr=0.2 seed")
    assert names(page) == [run.name for run in mine if run.config["lr"] == 0.2]
    page.locator("#search").fill("no such run")
    assert page.locator("#runs-table tbody").inner_text() == "No run matches these filters."
    page.get_by_role("button", name="Clear").click()
    assert len(names(page)) == 30


def points(page) -> list[tuple[float, float]]:
    found = page.evaluate("document.getElementById('scatter-chart').data.flatMap(t => t.x.map((x, k) => [x, t.y[k]]))")
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
    rows = page.locator("#tau-table tbody tr")
    for k in range(rows.count()):
        measure = rows.nth(k).get_attribute("data-measure")
        stated = float(rows.nth(k).locator("td.number").first.get_attribute("data-value"))
        page.locator("#scatter-x").select_option(f"measures:{measure}")
        assert first_tau(page) == pytest.approx(stated, abs=1e-12)
        counted = table.where(lambda run: run.state == "done" and run.targets["train_error"] <= 0.02)
        assert stated == pytest.approx(tau_a(counted.measure(measure).values, counted.target("test_error").values))


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
    marks = page.evaluate("document.getElementById('scatter-chart').data.flatMap(t => t.marker.symbol)")
    assert len({mark.removesuffix("-open") for mark in marks}) == 6
    colours = page.evaluate("document.getElementById('scatter-chart').data.map(t => t.marker.color)")
    assert len(set(colours)) == 4
    errors = page.evaluate("document.getElementById('scatter-chart').data.flatMap(t => t.error_y.array)")
    assert sorted(errors) == sorted(run.measures["trace"].stderr for run in there)
    page.locator("#scatter-errors").uncheck()
    assert not page.evaluate("document.getElementById('scatter-chart').data.some(t => t.error_y.visible)")


def test_pointing_at_a_run_names_it(page, table) -> None:
    chart = page.locator("#scatter-chart")
    chart.scroll_into_view_if_needed()
    box = chart.locator(".points path").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator("#scatter-readout:not(:empty)").wait_for()
    name = page.locator("#scatter-readout").inner_text().split(" · ")[0]
    run = next(run for run in table.runs if run.name == name)
    assert f"test_error {run.targets['test_error']:.4g}" in page.locator("#scatter-readout").inner_text()
    assert name in chart.locator(".hoverlayer").text_content()
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
    assert page.evaluate("document.activeElement.textContent") == "test_error"
    page.keyboard.press("Enter")
    assert page.locator('#runs-table th[data-key="targets:test_error"]').get_attribute("aria-sort") == "ascending"
    best = names(page)[1]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle + document.activeElement.tagName")
    assert outline == "solidTR"  # focus can be seen
    page.keyboard.press("Enter")
    assert page.locator("dialog h2").inner_text() == best
    page.keyboard.press("Escape")
    assert not page.locator("dialog").is_visible()
    assert page.evaluate("document.activeElement.querySelector('th').textContent") == best
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.textContent") == "test_error"


def test_the_chart_by_keyboard(page) -> None:
    page.locator("#scatter-chart").focus()
    told = []
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        told.append(page.locator("#scatter-readout").inner_text())
    assert len(set(told)) == 3
    page.keyboard.press("Enter")
    assert page.locator("dialog h2").inner_text() == told[-1].split(" · ")[0]
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.id") == "scatter-chart"


def test_one_run_shows_all_its_numbers(page, table) -> None:
    page.locator('tr[data-run="3"] th').click()
    text = page.locator("dialog").inner_text()
    run = table.runs[3]
    for name, measured in run.measures.items():
        assert name in text
        assert measured.kind in text
    found = page.locator("dialog td[data-value]").evaluate_all("cells => cells.map(c => Number(c.dataset.value))")
    assert sorted(found) == sorted(m.value for m in run.measures.values())
    page.get_by_role("button", name="Close").click()
    page.locator('tr[data-run="11"] th').click()
    assert "the loss is not finite after step 180" in page.locator("dialog").inner_text()


def test_columns_come_and_go(page) -> None:
    assert page.locator('#runs-table th[data-key="measures:fisher_trace"]').count() == 0
    page.locator("#columns summary").click()
    page.get_by_label("fisher_trace", exact=True).check()
    page.get_by_label("gap", exact=True).uncheck()
    heads = page.locator("#runs-table thead th").all_text_contents()
    assert "fisher_trace" in heads
    assert "gap" not in heads


def test_the_table_is_saved_as_it_is_shown(page, table) -> None:
    filter_by(page, "method", "asam")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))
    mine = [run for run in table.runs if run.config["method"] == "asam"]
    assert [float(row["test_error"]) for row in rows] == [run.targets["test_error"] for run in mine]
    assert [float(row["trace standard error"]) for row in rows] == [run.measures["trace"].stderr for run in mine]


def test_dark_and_light(open_page, report) -> None:
    """As the system has it, and as it is switched to, charts too; the choice outlives a reload."""
    watched = open_page(report, color_scheme="dark")
    page = watched.page
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    text = "document.getElementById('scatter-chart').layout.font.color"
    light_text = page.evaluate(text)
    page.get_by_role("radio", name="Light").click()
    assert page.evaluate(background) != dark
    assert page.evaluate(text) != light_text
    page.keyboard.press("ArrowRight")
    assert page.evaluate(background) == dark
    assert page.get_by_role("radio", name="Dark").get_attribute("aria-checked") == "true"
    page.emulate_media(color_scheme="light")
    assert page.evaluate(background) == dark


def contrast(page, selector: str) -> float:
    return page.evaluate(
        """selector => {
          const rgb = text => text.match(/[\\d.]+/g).map(Number);
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
def test_words_are_readable(open_page, report, scheme) -> None:
    """WCAG AA: 4.5 to 1 for text."""
    page = open_page(report, color_scheme=scheme).page
    for selector in (".lead", ".facts", ".answer h3", ".error", ".state.failed", "figcaption", ".key .tau"):
        assert contrast(page, selector) >= 4.5, selector
    for value in page.locator(".panel td").evaluate_all("cells => cells.map(c => c.dataset.value).filter(Boolean)"):
        assert contrast(page, f'.panel td[data-value="{value}"]') >= 4.5


@pytest.mark.parametrize("width", [320, 360])
def test_on_a_phone_nothing_sticks_out(open_page, report, width) -> None:
    page = open_page(report, viewport={"width": width, "height": 740}).page
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_on_paper(open_page, report) -> None:
    """Light, whole tables, no controls, charts that fit; and the screen as it was afterwards."""
    page = open_page(report, color_scheme="dark").page
    before = page.evaluate("document.getElementById('scatter-chart').layout.font.color")
    page.emulate_media(media="print")
    page.locator("html[data-theme=light]").wait_for()
    assert not page.locator("#filters").is_visible()
    assert page.locator("#scatter-chart svg.main-svg").first.bounding_box()["width"] <= 700
    assert page.evaluate("document.getElementById('scatter-chart').layout.font.color") != before
    assert len(page.pdf()) > 50_000
    page.emulate_media(media="screen")
    page.locator("html[data-theme=dark]").wait_for()
    assert page.evaluate("document.getElementById('scatter-chart').layout.font.color") == before
    page.locator("#scatter-chart").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#scatter-readout").inner_text()


def test_200_runs_turn_pages_and_print_whole(open_page, tmp_path) -> None:
    file = reported(tmp_path, 200)
    assert file.stat().st_size < 6_000_000
    page = open_page(file).page
    assert len(names(page)) == 50
    first = names(page)
    page.get_by_role("button", name="Next").click()
    assert not set(names(page)) & set(first)
    page.emulate_media(media="print")
    page.locator("#runs-table tbody tr").nth(199).wait_for(state="attached")


def letters(text: str) -> str:
    """Without blanks and signs of direction, which a chart's label may take out."""
    return "".join(c for c in text if not c.isspace() and c not in "\u202e")


def test_hostile_names_are_text(open_page, tmp_path) -> None:
    """In the table, the dialog, the chart, the menus and the title; nothing of them runs, nothing is asked for."""
    page = open_page(reported(tmp_path, 30, hostile=True)).page
    assert names(page)[: len(HOSTILE)] == HOSTILE
    assert page.title() == HOSTILE[1]
    assert page.locator("#title").text_content() == HOSTILE[1]
    for k, name in enumerate(HOSTILE):
        page.locator(f'tr[data-run="{k}"] th').click()
        assert page.locator("#run-name").text_content() == name
        page.keyboard.press("Escape")
        page.evaluate(
            """k => { const place = document.getElementById('scatter-chart');
              const curve = place.data.findIndex(t => t.customdata.includes(k));
              const point = place.data[curve].customdata.indexOf(k);
              window.Plotly.Fx.hover(place, [{ curveNumber: curve, pointNumber: point }]); }""",
            k,
        )
        label = page.locator("#scatter-chart .hoverlayer").text_content()
        assert letters(name)[:40] in letters(label)  # tags and entities among them
        assert page.locator("#scatter-chart .hoverlayer a").count() == 0
    page.locator("#landscape-run").scroll_into_view_if_needed()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    saved = list(csv.reader(io.StringIO(Path(download.value.path()).read_bytes().decode())))
    assert saved[1][0] == HOSTILE[0]
    assert saved[4][0] == "'" + HOSTILE[3]  # a spreadsheet does not run it
    assert unquote(page.url).endswith("report.html")


def test_sections_are_there_when_the_study_has_them(open_page, tmp_path, page) -> None:
    for section in ("spectra", "landscapes", "ensembles"):
        assert page.locator(f"#{section}").is_visible()
        assert page.evaluate(f"document.getElementById('{section}-chart').data.length") > 0
    bare = open_page(reported(tmp_path, 6, extras=False)).page
    for section in ("spectra", "landscapes", "ensembles"):
        assert not bare.locator(f"#{section}").is_visible()
    assert "Spectra" not in bare.locator("#sections").inner_text()


def test_landscapes_are_the_right_way_round(page) -> None:
    """losses[i][j] is at x[i], y[j]: plotly draws rows upwards."""
    page.locator("#landscape-log").uncheck()
    drawn = page.evaluate("document.getElementById('landscapes-chart').data[0]")
    x, y, loss = drawn["x"][3], drawn["y"][12], drawn["z"][12][3]
    assert loss == pytest.approx(0.02 + x * x + 0.6 * y * y + 0.4 * x * y)


def test_two_landscapes_stand_side_by_side_on_one_scale(page) -> None:
    page.locator("#landscape-run").select_option("3")
    one, _, other, _ = page.evaluate("document.getElementById('landscapes-chart').data")
    found = [[v for row in drawn["z"] for v in row] for drawn in (one, other)]
    assert max(found[0]) > max(found[1])  # run 3 is the sharper one
    for drawn in (one, other):
        assert (drawn["zmin"], drawn["zmax"]) == pytest.approx((min(map(min, found)), max(map(max, found))))
    page.locator("#landscape-beside").select_option("")
    assert page.evaluate("document.getElementById('landscapes-chart').data.length") == 2


def test_ensembles_have_their_errors_and_a_fitted_line(open_page, tmp_path) -> None:
    """Bars are the errors that were kept; the line goes through the middle of the points, on logarithms."""
    path = study(tmp_path / "study.sqlite", 6, extras=False)
    x, y = [1.0, 2.0, 4.0, 9.0], [0.03, 0.05, 0.02, 0.07]
    with Store.open(path) as store:
        for k in range(4):
            values = {"sharpness": x[k], "diversity": y[k]}
            note = {"name": f"e{k}", "kind": "sam", "members": 3, "values": values, "errors": {"diversity": 0.01}}
            store.note(f"ensemble/{k}", note)
        text = html(content(store, full=False))
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    page = open_page(tmp_path / "report.html").page
    points, line = page.evaluate("document.getElementById('ensembles-chart').data")
    assert (points["x"], points["y"]) == (x, y)
    assert points["error_y"]["array"] == [0.01] * 4
    assert not points["error_x"]["visible"]
    slope, level = np.polyfit(np.log(x), np.log(y), 1)
    assert line["y"] == pytest.approx(np.exp(level + slope * np.log(line["x"])).tolist())
    assert line["x"] == [1.0, 9.0]
    assert f"slope sam {slope:.2f}" in page.locator("#ensembles-caption").inner_text().replace("\u2212", "-")


def test_a_curve_of_one_point_is_seen(open_page, tmp_path) -> None:
    """What is recorded once a run is no curve: the page begins with what is, and draws the other as points."""
    path = tmp_path / "study.sqlite"
    with Store.open(path) as store:
        store.add(cells(2))
        for cell in cells(2):
            records = [{"epoch": e, "train_loss": 1 / e} for e in range(1, 6)]
            records[-1]["test_loss"] = 0.5
            store.record(cell.key, targets={"test_error": 0.1}, curves=records)
        text = html(content(store, full=False))
    (tmp_path / "report.html").write_text(text, encoding="utf-8")
    page = open_page(tmp_path / "report.html").page
    assert page.locator("#curves-metric").input_value() == "train_loss"
    page.locator("#curves-metric").select_option("test_loss")
    page.locator("#curves-single").check()
    assert page.evaluate("document.getElementById('curves-chart').data.map(t => t.mode)") == ["markers"] * 2


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


def test_numbers_are_rounded_as_python_does(page) -> None:
    """The terminal and the page say the same of tau = 0.125, which lies in the middle."""
    for x in (0.125, -0.125, 0.375, 0.005, 0.0449, -0.996, 0.0, 1.0):
        assert page.evaluate("x => window.steppe.signed(x)", x).replace("\u2212", "-") == f"{x:+.2f}"


def test_nothing_runs_that_the_page_did_not_bring(open_page, report) -> None:
    """The policy holds: an inserted script does not run, and nothing is asked for."""
    watched = open_page(report)
    page = watched.page
    page.evaluate(
        """() => { const made = document.createElement('script');
          made.textContent = 'window.hacked = 1'; document.body.append(made); }"""
    )
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'asked', () => 'refused')") == "refused"
    assert watched.said  # the browser tells of both, and of nothing else
    assert all("Content Security Policy" in line for line in watched.said)
    watched.said.clear()
