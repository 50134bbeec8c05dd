"""The page's details in a real browser: filters, links, two runs, parallel coordinates, importance, honest charts."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import asdict
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from pages import Cell, chart, close_run, study, wait_until, written

from steppe.studies.report.definitions import label
from steppe.studies.store import Store
from steppe.training.config import Config


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """144 runs: two seeds of everything."""
    folder = tmp_path_factory.mktemp("details")
    return written(folder, study(folder / "study.sqlite", 144))


@pytest.fixture(scope="module")
def small_report(tmp_path_factory):
    """The first 24 of these runs, for what does not depend on the number."""
    folder = tmp_path_factory.mktemp("small")
    return written(folder, study(folder / "study.sqlite", 24))


@pytest.fixture(scope="module")
def table(report):
    with Store.reading(report.with_name("study.sqlite")) as store:
        return store.table()


PHONE = {"width": 390, "height": 800}


@pytest.fixture
def phone(page):
    page.set_viewport_size(PHONE)
    return page


def embedded(report: Path) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', report.read_text("utf-8"))[1])


def ascii_minus(text: str) -> str:
    return text.replace("\u2212", "-").replace("\u00a0", " ")


def shown(page) -> list[int]:
    return page.evaluate("window.steppe.state.shown")


def done(run) -> bool:
    return bool(run.targets)


FILTERS = {
    "lr > 0.1": lambda r: r.config["lr"] > 0.1,
    "lr>=0.1 lr<0.4": lambda r: 0.1 <= r.config["lr"] < 0.4,
    "test_error <= 3.5%": lambda r: done(r) and r.targets["test_error"] <= 0.035,
    '"test error" <= 3.5%': lambda r: done(r) and r.targets["test_error"] <= 0.035,
    "test_error <= 0.035": lambda r: done(r) and r.targets["test_error"] <= 0.035,
    "lambda_max > 1e1 and method = sam": lambda r: (
        done(r) and r.measures["lambda_max"].value > 10 and r.config["method"] == "sam"
    ),
    "adaptive_worst_linf@0.002 < 0.01": lambda r: done(r) and r.measures["adaptive_worst_linf@0.002"].value < 0.01,
    "method != none seed = 1": lambda r: r.config["method"] != "none" and r.config["seed"] == 1,
    "METHOD = SAM": lambda r: r.config["method"] == "sam",
    'method = "trace-sam" lr ≤ .1': lambda r: r.config["method"] == "trace-sam" and r.config["lr"] <= 0.1,
    "rho = none": lambda r: r.config["rho"] is None,
    "rho != none rho > 0.1": lambda r: r.config["rho"] is not None and r.config["rho"] > 0.1,
    "weight_decay = 5e-4": lambda r: r.config["weight_decay"] == 5e-4,
    "augment = flip": lambda r: r.config["augment"] == ["flip"],
    "gap > -1": done,
    "state = failed": lambda r: not done(r),
    "decay=0.002 gsam": lambda r: "decay=0.002" in r.name and "gsam" in r.name,  # text of a name, not a column
    "flip lr = 0.2": lambda r: r.config["augment"] == ["flip"] and r.config["lr"] == 0.2,
}


def test_conditions_select_runs(page, table) -> None:
    for text, holds in FILTERS.items():
        page.locator("#search").fill(text)
        expected = [i for i, run in enumerate(table.runs) if holds(run)]
        assert 0 < len(expected) < len(table.runs)
        assert shown(page) == expected, text
        assert page.locator("#filter-problem").inner_text() == "", text
    assert page.locator("#counted").inner_text() == f"{len(expected)} of 144 runs"


WRONG = {
    "lrr > 0.1": "no setting, target or measure “lrr”. There are method",
    "lr >": "“lr >” needs a value",
    "lr > fast": "lr > needs a number, not “fast”",
    "method > sam": "the values of method are words: use = or != instead of >",
    "> 0.1": "“>” needs a name before it",
    "lr > 0.1 or lr < 0.01": "combined with “and” only",
    'method = sam "lr': "is not closed",
}


def test_wrong_conditions_say_what_is_wrong(page) -> None:
    for text, words in WRONG.items():
        page.locator("#search").fill(text)
        assert words in page.locator("#filter-problem").inner_text()
        assert page.locator("#search").get_attribute("aria-invalid") == "true"
        assert len(shown(page)) == 144  # the filter is not applied
    page.locator("#search").fill("lr > 0.1")
    assert page.locator("#filter-problem").inner_text() == ""
    assert page.locator("#search").get_attribute("aria-invalid") == "false"
    assert len(shown(page)) < 144


def test_three_for_three_percent_is_pointed_out(page) -> None:
    page.locator("#search").fill("test_error <= 3")
    hint = "test_error is a share: 3 means 300.00 %; write 3% for percent."
    assert ascii_minus(page.locator("#filter-problem").inner_text()) == hint
    assert page.locator("#search").get_attribute("aria-invalid") == "false"


def test_filters_apply_to_every_chart_of_runs(page, table) -> None:
    page.locator("#search").fill("lr > 0.1 and test_error <= 4%")
    expected = {
        i for i, r in enumerate(table.runs) if done(r) and r.config["lr"] > 0.1 and r.targets["test_error"] <= 0.04
    }
    drawn = chart(page, "scatter", "place.data.flatMap(t => t.customdata)")
    assert set(drawn) == expected
    lines = page.locator("#parallel-chart .line").evaluate_all("all => all.map(l => Number(l.dataset.run))")
    assert set(lines) == expected
    page.locator("#curves-single").check()
    drawn = chart(page, "curves", "place.data.map(t => t.customdata[0])")
    assert set(drawn) == expected


def test_links_restore_the_view_and_the_section(open_page, small_report, table) -> None:
    page = open_page(small_report)
    assert page.evaluate("location.hash") == ""  # nothing is chosen yet
    page.locator("#search").fill("lr > 0.05 and test_error <= 4%")
    page.locator('#filters select[data-setting="augment"]').select_option(label="flip")
    page.locator("#scatter-x").select_option("measures:trace")
    page.locator("#scatter-y").select_option("targets:gap")
    page.locator("#scatter-log-x").check()
    page.locator("#curves-single").check()
    page.locator("#heat-value").select_option("measures:lambda_max")
    page.locator("#details-target").select_option("gap")
    page.locator("#compare-a").select_option(table.runs[3].key)
    page.locator("#parallel-axes summary").click()
    page.get_by_label(f"axis {label('worst_l2@0.25')}", exact=True).uncheck()
    page.locator("#columns summary").click()
    page.locator("#columns").get_by_label("Fisher trace", exact=True).check()
    chosen = shown(page)
    page.locator("#parts a", has_text="Charts").click()
    page.locator("#sections a", has_text="Heat maps").click()
    page.wait_for_url(re.compile("#heat&.*filter="))  # sections and views share the address
    page.locator("#runs-table tbody tr").first.locator("th").click()
    run = page.locator("#run-name").inner_text()
    other = open_page(small_report, link=page.evaluate("location.hash"))
    assert -5 < other.locator("#heat").bounding_box()["y"] < 300
    assert shown(other) == chosen
    assert 0 < len(chosen) < 24
    assert other.locator("#run-name").inner_text() == run
    assert other.locator("#run").is_visible()
    close_run(other)
    assert other.locator("#search").input_value() == "lr > 0.05 and test_error <= 4%"
    for name, value in {
        "scatter-x": "measures:trace", "scatter-y": "targets:gap", "heat-value": "measures:lambda_max",
        "details-target": "gap", "compare-a": table.runs[3].key,
    }.items():  # fmt: skip
        assert other.locator(f"#{name}").input_value() == value
    assert other.locator("#scatter-log-x").is_checked()
    assert chart(other, "scatter", "place.layout.xaxis.type") == "log"
    assert other.locator("#curves-single").is_checked()
    assert other.locator('.axis-line[data-key="measures:worst_l2@0.25"]').count() == 0
    assert other.locator('#runs-table th[data-key="measures:fisher_trace"]').count() == 1
    other.get_by_role("button", name="Clear").click()
    wait_until(other, "!/[#&]filter/.test(location.hash)")
    left = parse_qs(other.evaluate("location.hash.slice(1)"))
    assert "filter" not in left
    assert "filter-augment" not in left
    assert left["scatter-x"] == ["measures:trace"]


def test_the_navigation_is_short_and_reaches_every_section(page) -> None:
    """Seven parts at most; each lists its sections while it is on the screen, and a link leads to each of them."""
    parts = page.locator("#parts a").all_inner_texts()
    assert parts == ["Overview", "Methods", "Measures", "Runs", "Charts", "Curvature", "About"]
    assert page.locator("#parts [aria-current=true]").inner_text() == "Overview"
    assert not page.locator("#sections").is_visible()  # this part is one section
    linked = []
    for name in parts:
        page.locator("#parts a", has_text=name).click()
        page.locator("#parts a[aria-current=true]", has_text=name).wait_for()
        hrefs = page.locator("#sections a").evaluate_all("all => all.map(link => link.hash.slice(1))")
        assert page.locator("#sections").is_visible() == (len(hrefs) > 1)
        linked += hrefs
    sections = page.locator("main > section:visible").evaluate_all("all => all.map(one => one.id)")
    assert linked == sections  # in the order of the page
    page.locator("#parts a", has_text="Charts").click()
    page.locator("#sections a", has_text="Training curves").click()
    page.locator("#sections a[href='#curves'][aria-current=true]").wait_for()
    bar = page.locator("#sections").bounding_box()
    assert page.locator("#curves-title").bounding_box()["y"] >= bar["y"] + bar["height"]  # not under the navigation


def test_the_current_section_is_visible_in_the_navigation(phone) -> None:
    page = phone
    for place, part in (("spectra", "Curvature"), ("making", "About")):
        page.locator(f"#{place}").evaluate("e => e.scrollIntoView({ behavior: 'instant' })")
        page.locator("#parts a[aria-current=true]", has_text=part).wait_for()
        for link in page.locator("nav a[aria-current=true]:visible").all():
            box = link.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize("link", ["#heat", "#heat-value=measures%3Atrace", "#filter=lr+%3E+0.1"])
def test_a_link_opens_its_fold(open_page, small_report, link) -> None:
    """That of its section, its menu or its filter, and no other; it is drawn, and on the screen if it is a section."""
    page = open_page(small_report, link=link)
    place = "runs" if "filter" in link else "heat"
    assert page.locator(".fold[open]").evaluate_all("all => all.map(one => one.parentElement.id)") == [place]
    assert page.locator("#runs-table tbody tr" if place == "runs" else "#heat-panels .panel td").count() > 0
    if link == "#heat":
        assert page.locator("#heat").bounding_box()["y"] < 600
        page.locator("#parts a", has_text="Charts").click()
        page.locator("#scatter .fold[open] .points").first.wait_for()
        page.locator("#scatter summary").first.click()  # closed again
        page.locator("#parts a", has_text="Charts").click()  # the same address: it opens all the same
        page.locator("#scatter .fold[open]").wait_for()


def test_a_hostile_address_changes_nothing(open_page, small_report) -> None:
    hostile = "#scatter-x=nothing&toString=&title=%3Cimg%20src%3Dx%3E&run=99&data=1&filter=%3Cscript%3E&constructor"
    page = open_page(small_report, link=hostile)
    assert page.locator("#scatter-x").input_value().startswith("measures:")
    assert page.locator("#search").input_value() == "<script>"
    assert page.locator("img").count() == 0
    assert not page.locator("#run").is_visible()


def test_two_runs_side_by_side(page, table) -> None:
    """Best and worst at first; settings that differ, values and errors as stored, differences with both errors."""
    order = sorted(
        (r for r in table.runs if done(r) and r.targets["train_error"] <= 0.02), key=lambda r: r.targets["test_error"]
    )
    assert page.locator("#compare-a").input_value() == order[0].key
    assert page.locator("#compare-b").input_value() == order[-1].key
    a, b = table.runs[0], table.runs[1 + 6 * 2]  # another method and lr, the same seed
    page.locator("#compare-a").select_option(a.key)
    page.locator("#compare-b").select_option(b.key)
    differ = [n for n in ("method", "augment", "rho", "lr", "weight_decay", "seed") if a.config[n] != b.config[n]]
    rows = page.locator("#compared tbody").first.locator("tr[data-name]")
    assert rows.evaluate_all("rows => rows.map(r => r.dataset.name)") == differ
    assert page.locator('#compared tr[data-name="lr"] td').all_inner_texts()[:2] == ["0.05", "0.2"]
    cells = page.locator('#compared tr[data-name="lambda_max"] td')
    values = [r.measures["lambda_max"] for r in (a, b)]
    assert [float(cells.nth(k).get_attribute("data-value")) for k in (0, 1)] == [m.value for m in values]
    assert "±" in cells.nth(0).inner_text()
    change = ascii_minus(cells.nth(2).inner_text())
    assert float(re.match(r"[-+]?[\d.]+", change)[0]) == pytest.approx(values[1].value - values[0].value, rel=2e-3)
    assert float(change.split("\u00d7")[1]) == pytest.approx(values[1].value / values[0].value, rel=5e-3)
    change = page.locator('#compared tr[data-name="test_error"] td').nth(2).inner_text()
    expected = 100 * (b.targets["test_error"] - a.targets["test_error"])
    assert f"{expected:+.2f}" in ascii_minus(change)
    assert "points" in change
    page.locator("#compare-all").check()
    assert page.locator('#compared tr[data-name="epochs"]').count() == 1
    page.get_by_role("button", name="Swap").click()
    assert page.locator("#compare-a").input_value() == b.key
    page.locator("#compare-b").select_option(b.key)
    assert "this is one run" in page.locator("#compared").inner_text()


def test_a_run_is_compared_from_its_dialog(page, table) -> None:
    page.locator('tr[data-run="5"] th').click()
    page.get_by_role("button", name="Compare with another run").click()
    assert not page.locator("#run").is_visible()
    assert page.locator("#compare-a").input_value() == table.runs[5].key
    assert page.evaluate("document.activeElement.id") == "compare-b"


def test_parallel_coordinates_place_every_value(page, table) -> None:
    """Lines pass their axes where the values are: linear between the ends, words at their marks."""
    found = page.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll('#parallel-chart .axis-line')].map(a => {
          const line = a.querySelector('line');
          return [a.dataset.key, [line.x1, line.y1, line.y2].map(v => v.baseVal.value)]; }))"""
    )
    assert list(found) == [
        "settings:method", "settings:augment", "settings:rho", "settings:lr", "settings:weight_decay",
        "measures:adaptive_worst_linf@0.002", "measures:worst_l2@0.25", "measures:lambda_max", "measures:trace",
        "targets:test_error", "targets:gap",
    ]  # fmt: skip
    x, bottom, top = found["measures:lambda_max"]
    values = {i: r.measures["lambda_max"].value for i, r in enumerate(table.runs) if done(r)}
    low, high = min(values.values()), max(values.values())
    assert high / low < 100  # so the axis is linear
    lines = page.locator("#parallel-chart .line").evaluate_all(
        "all => all.map(l => [l.dataset.run, l.getAttribute('d')])"
    )
    assert len(lines) == len(values) == 143
    for run, path in lines:
        points = {float(a): float(b) for a, b in re.findall(r"[ML]([\d.]+),([-\d.]+)", path)}
        y = points[min(points, key=lambda p: abs(p - x))]
        assert y == pytest.approx(bottom + (values[int(run)] - low) / (high - low) * (top - bottom), abs=0.1)
    assert page.locator("#parallel-chart .line.out").count() == sum(
        done(r) and r.targets["train_error"] > 0.02 for r in table.runs
    )


def test_parallel_coordinates_by_pointer_and_keyboard(page, table) -> None:
    place = page.locator("#parallel-chart")
    place.scroll_into_view_if_needed()
    place.focus()
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    assert page.locator("#parallel-readout").inner_text().startswith(table.runs[1].name + " · method sam")
    assert page.locator("#parallel-chart .line.on").get_attribute("data-run") == "1"
    page.keyboard.press("Enter")
    assert page.locator("#run-name").inner_text() == table.runs[1].name
    close_run(page)
    page.locator('.pick[data-condition="method = gsam"]').click()
    assert page.locator("#search").input_value() == "method = gsam"
    axis = page.locator('.brush[data-key="measures:trace"]').bounding_box()
    x = axis["x"] + axis["width"] / 2
    page.mouse.move(x, axis["y"] + 0.5 * axis["height"])
    page.mouse.down()
    page.mouse.move(x, axis["y"] + axis["height"] - 1)
    page.mouse.up()
    text = page.locator("#search").input_value()
    low, high = (float(v) for v in re.findall(r"trace [<>]= ([\d.]+)", text))
    assert text.startswith("method = gsam trace >= ")
    values = [r.measures["trace"].value for r in table.runs if done(r)]
    assert high == pytest.approx((min(values) + max(values)) / 2, rel=0.05)
    mine = [i for i, r in enumerate(table.runs) if done(r) and r.config["method"] == "gsam"]
    assert shown(page) == [i for i in mine if low <= table.runs[i].measures["trace"].value <= high]


def test_effects_of_settings_are_shares_of_what_the_design_allows(open_page, tmp_path) -> None:
    """A target that follows lr alone, a measure batch_size: 100 % and tau ±1, although share and tau are lower."""
    planned = [
        Cell(f"{i}", f"run {i}", asdict(Config(lr=[0.1, 0.2][i % 2], batch_size=[32, 64][i // 2 % 2], seed=i // 4)))
        for i in range(12)
    ]
    with Store.open(tmp_path / "study.sqlite") as store:
        store.add(planned)
        for i, cell in enumerate(planned):
            trace = {"trace": {"value": [3.0, 9.0][i // 2 % 2] + 0.01 * i}}
            measures = trace if i < 8 else {}
            store.record(cell.key, targets={"test_error": [0.3, 0.1][i % 2] + 0.001 * i}, measures=measures)
    file = written(tmp_path, tmp_path / "study.sqlite")
    made = embedded(file)
    for effect in (
        next(e for e in made["target_effects"] if e["setting"] == "lr"),
        next(e for e in made["effects"] if e["setting"] == "batch_size"),
    ):
        assert effect["share"] < 0.9
        assert abs(effect["tau"]) < 0.9
    page = open_page(file)
    heads = [" ".join(text.split()) for text in page.locator("#settings-matrix thead th").all_inner_texts()]
    assert heads == ["target or measure", "lr 2 values", "batch_size 2 values", "runs"]
    expected = {"test_error": ("lr", "100 % τ -1.00", "12"), "trace": ("batch_size", "100 % τ +1.00", "8")}
    for name, (setting, words, runs) in expected.items():
        row = page.locator(f'#settings-matrix tr[data-name="{name}"]')
        cells = dict(zip(["lr", "batch_size", "runs"], row.locator("td").all_inner_texts(), strict=True))
        assert ascii_minus(" ".join(cells[setting].split())) == words
        assert cells["runs"] == runs
        assert row.locator("b").count() == 1  # the setting that it follows most
        assert row.locator("b").inner_text() == "100\u00a0%"
    order = page.locator("#settings-matrix tr:not(:first-child) th").all_inner_texts()
    assert page.locator("#settings-matrix .group th").all_inner_texts() == ["targets", "measures"]
    assert len(order) == 2


def test_axes_have_labels_and_percent(page) -> None:
    titles = "['xaxis', 'yaxis'].map(a => place.layout[a].title.text)"
    page.locator("#scatter-x").select_option("measures:lambda_max")
    assert chart(page, "scatter", titles) == ["largest Hessian eigenvalue", "test error"]
    page.locator("#scatter-x").select_option("measures:adaptive_worst_linf@0.002")
    assert chart(page, "scatter", titles)[0] == label("adaptive_worst_linf@0.002")
    ticks = page.locator("#scatter-chart .yaxislayer-above text").all_text_contents()
    assert ticks
    assert all(text.endswith("%") for text in ticks)
    page.locator("#scatter-x").select_option("targets:gap")
    assert chart(page, "scatter", titles)[0] == "generalisation gap"


def test_tau_of_a_group_has_n_and_interval_or_is_not_shown(page, report) -> None:
    """In the legend and the table, as in the findings; with a filter no group has a tau."""
    key = page.locator("#scatter-key .tau")
    finding = next(
        f for f in embedded(report)["findings"]["findings"]
        if (f["measure"], f["target"], f["hypothesis"]) == ("adaptive_worst_linf@0.002", "test_error", "within groups")
    )  # fmt: skip
    by_group = [next(g for g in finding["by_group"] if g["group"] == f"augment={v}") for v in ("[]", '["flip"]')]
    expected = [f"τ {g['tau']:+.2f} ({g['low']:+.2f} to {g['high']:+.2f}), n = {g['n']}" for g in by_group]
    assert [ascii_minus(text) for text in key.all_inner_texts()] == expected
    rows = page.locator("#group-taus tbody tr")
    assert rows.locator("th").all_inner_texts() == ["all pairs", "pairs within a group", "augment=none", "augment=flip"]
    for k, g in enumerate(by_group):
        cells = [ascii_minus(text) for text in rows.nth(2 + k).locator("td.number").all_inner_texts()]
        assert cells[:2] == [f"{g['tau']:+.2f}", f"{g['low']:+.2f} to {g['high']:+.2f}"]
        assert cells[3] == str(g["n"])
    page.locator("#search").fill("lr > 0.1")
    assert key.count() == 0
    assert rows.count() == 2
    assert "without an interval" in page.locator("#scatter-taus").inner_text()


def test_curves_are_means_with_a_band_over_seeds(page, table, report) -> None:
    """The band is the standard deviation between seeds, pooled over configurations: other settings are not in it."""
    page.locator("#curves-metric").select_option("train_loss")
    drawn = chart(page, "curves", "place.data")
    methods = list(dict.fromkeys(r.config["method"] for r in table.runs))
    bands = {trace["line"]["color"]: trace for trace in drawn if trace.get("fill") == "toself"}
    lines = [trace for trace in drawn if "fill" not in trace]
    assert len(lines) == len(methods)
    with_band = 0
    curves = embedded(report)["curves"]["runs"]
    for method, line in zip(methods, lines, strict=True):
        mine = [i for i, r in enumerate(table.runs) if r.config["method"] == method and done(r)]
        epoch = 4
        assert line["y"][epoch] == pytest.approx(statistics.fmean(curves[i]["train_loss"][epoch] for i in mine))
        seeds: dict[str, list[float]] = {}
        for i in mine:
            config = table.runs[i].config
            seeds.setdefault(repr({k: v for k, v in config.items() if k != "seed"}), []).append(
                curves[i]["train_loss"][epoch]
            )
        several = [v for v in seeds.values() if len(v) > 1]
        band = bands.get(line["line"]["color"])
        assert (band is not None) == bool(several)  # no settings with two seeds, no band
        if band is None:
            continue
        with_band += 1
        freedom = sum(len(v) - 1 for v in several)
        pooled = (sum(statistics.variance(v) * (len(v) - 1) for v in several) / freedom) ** 0.5
        assert band["y"][epoch] - line["y"][epoch] == pytest.approx(pooled)
        assert line["y"][epoch] - band["y"][-1 - epoch] == pytest.approx(pooled)
    assert with_band >= 5
    page.locator("#curves-band").uncheck()
    assert chart(page, "curves", "place.data.length") == len(methods)
    page.locator("#curves-single").check()
    assert chart(page, "curves", "place.data.length") == 143


def test_every_cell_of_a_heat_map_has_n_and_error(page, table) -> None:
    page.locator("#heat-across").select_option("lr")
    page.locator("#heat-up").select_option("weight_decay")
    page.locator("#heat-panel").select_option("=method")
    page.locator("#heat-value").select_option("targets:test_error")
    cell = page.locator("#heat-panels .panel").nth(1).locator("tbody tr").nth(1).locator("td").nth(2)
    place = ("sam", 0.2, 5e-4)
    mine = [r for r in table.runs if tuple(r.config[k] for k in ("method", "lr", "weight_decay")) == place]
    values = [r.targets["test_error"] for r in mine]
    error = statistics.stdev(values) / len(values) ** 0.5
    assert float(cell.get_attribute("data-error")) == pytest.approx(error)
    text = " ".join(ascii_minus(cell.inner_text()).split())
    assert f"{100 * statistics.fmean(values):.2f} %" in text or f"± {100 * error:.2g}" in text
    assert f"n = {len(values)}" in text
    cells = page.locator("#heat-panels td[data-value]")
    assert cells.count() == cells.locator("small").count() > 40
    page.locator("#search").fill("seed = 1")  # one run per cell: its own error
    run = next(r for r in mine if r.config["seed"] == 1)
    cell = page.locator("#heat-panels .panel").nth(1).locator("tbody tr").nth(1).locator("td").nth(2)
    assert float(cell.get_attribute("data-error")) == run.target_errors["test_error"]
    assert "n = 1" in cell.inner_text()


def test_nothing_sticks_out_on_a_phone(phone) -> None:
    page = phone
    page.locator("#search").fill("no_such_column > 0.1")
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.locator(f"html[data-theme={scheme}]").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        for place in ("#compare-table .scroll", "#settings-table .scroll"):
            assert page.locator(place).evaluate("e => e.scrollWidth - e.clientWidth") <= 0, place
        title = chart(page, "scatter", "place.layout.xaxis.title.text")
        assert "<br>" in title
        ends = "document.querySelector('#scatter-chart .xtitle').getBoundingClientRect()"
        wait_until(page, f"(({{ left, right }}) => left >= 0 && right <= 390)({ends})")  # plotly resizes later


def test_what_is_for_exploring_is_not_for_paper(page) -> None:
    parts = ("runs", "compare", "parallel", "heat", "curves")
    page.emulate_media(media="print")
    page.locator("html[data-theme=light]").wait_for()
    assert not any(page.locator(f"#{part}").is_visible() for part in parts)
    page.emulate_media(media="screen")
    page.locator("#parallel").scroll_into_view_if_needed()
    wait_until(page, "document.querySelector('#parallel-chart svg')?.getBoundingClientRect().width > 1000")
