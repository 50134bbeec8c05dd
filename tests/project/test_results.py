"""Results as other programs read them: dictionaries, data frames, notebooks and figures."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from math import isnan, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import steppe
from steppe import Estimate, Objective
from steppe.comparison.result import result_of
from steppe.comparison.store import NAME, Record
from steppe.measures import Cost, Curvature, Results, path, random_direction, slice_1d, spectral_density
from steppe.measures.combinators import BatchEstimates, PerBatch
from steppe.measures.plotting import figure
from steppe.measures.sharpness import AverageCase
from steppe.studies import StudyResult
from steppe.training import Config, train

FOUND = Results(
    {
        "a<b>": Estimate(1.5, 0.25, 4, "unbiased", Cost(losses=2.0, seconds=0.5), "of <i>x</i>"),
        "unknown": Estimate(2.0, nan, 1, "plug-in"),
    },
    {"broken": "no & never"},
    Cost(losses=2.0, seconds=0.5),
)

RADII = Results({f"avg_l2@{radius}": Estimate(1.0, 0.1, 2, "unbiased") for radius in (1, 2)})


def objective() -> Objective:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return Objective(model, nn.functional.mse_loss, (torch.randn(8, 3), torch.randn(8, 2)))


class Cells(HTMLParser):
    """The texts of the cells, and the tags."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.rows and self.rows[-1]:
            self.rows[-1][-1] += data


def test_an_estimate_is_a_number() -> None:
    assert float(FOUND["a<b>"]) == 1.5
    assert isinstance(float(FOUND["a<b>"]), float)
    assert np.asarray([FOUND["a<b>"], FOUND["unknown"]], dtype=float).tolist() == [1.5, 2.0]


def test_dictionaries_are_json() -> None:
    text = json.dumps(FOUND.to_dict(), allow_nan=False)
    assert json.loads(text) == json.loads(FOUND.to_json()) == FOUND.to_dict()
    one = FOUND["unknown"].to_dict()
    assert (one["value"], one["stderr"], one["interval"]) == (2.0, None, [None, None])
    assert FOUND.to_dict()["estimates"]["unknown"] == one
    assert FOUND["a<b>"].to_dict()["interval"] == pytest.approx(FOUND["a<b>"].interval())


def test_a_notebook_shows_a_table_of_escaped_text() -> None:
    read = Cells()
    read.feed(FOUND._repr_html_())
    assert read.tags == {"table", "caption", "thead", "tbody", "tr", "td", "th"}
    assert read.rows[0][:3] == ["measure", "value", "error"]
    assert read.rows[1][:5] == ["a<b>", "1.5", "0.25", "4", "unbiased, of <i>x</i>"]
    assert read.rows[3][:5] == ["broken", "none", "", "", "no & never"]
    assert "<i>" not in FOUND["a<b>"]._repr_html_()


def test_a_frame_has_a_row_per_measure() -> None:
    pd = pytest.importorskip("pandas")
    frame = FOUND.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert list(frame.index) == ["a<b>", "unknown", "broken"]
    assert frame.index.name == "measure"
    assert frame.loc["a<b>", "value"] == 1.5
    assert tuple(frame.loc["a<b>", ["low", "high"]]) == FOUND["a<b>"].interval()
    assert frame.loc["a<b>", "seconds"] == 0.5
    assert isnan(frame.loc["unknown", "stderr"])
    assert isnan(frame.loc["broken", "value"])
    assert frame.loc["broken", "failure"] == "no & never"
    assert frame["value"].dtype == float


@pytest.mark.parametrize(
    ("module", "use", "said"),
    [
        (
            "pandas",
            lambda: FOUND.to_frame(),
            r"data frames need pandas, which is not installed: pip install 'steppe\[pa",
        ),
        ("plotly", lambda: RADII.plot(), "figures and pages need plotly, which is not installed"),
    ],
)
def test_a_package_that_is_missing_is_named(
    module: str, use: Callable[[], object], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)  # cannot be imported
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=said):
        use()


def test_definitions_are_drawn_over_their_radii() -> None:
    pytest.importorskip("plotly")
    found = steppe.measures.run.measure_objective(
        objective(), steppe.measures.registry.resolve_measures("avg_l2@0.2, avg_l2@0.1, worst_l2@0.1, loss")
    )
    lines = {line.name: line for line in found.plot().data}
    assert set(lines) == {"avg_l2", "worst_l2"}
    assert list(lines["avg_l2"].x) == [0.1, 0.2]
    assert list(lines["avg_l2"].y) == [float(found["avg_l2@0.1"]), float(found["avg_l2@0.2"])]


def test_batches_are_drawn_with_their_mean() -> None:
    pytest.importorskip("plotly")
    torch.manual_seed(0)
    rows = torch.randn(10, 3), torch.randn(10, 2)
    place = Objective(nn.Linear(3, 2), nn.functional.mse_loss, rows, m=4)  # batches of 4, 4 and 2 rows
    measure = PerBatch(AverageCase(0.1, n=5))
    parts = measure.parts(place)
    mean = measure.estimate(place)
    assert parts.mean() == mean
    values, line = parts.plot().data
    assert list(values.x) == [0, 1, 2]
    assert list(values.y) == [e.value for _, e in parts]
    assert list(values.error_y.array) == [e.interval()[1] - e.value for _, e in parts]
    assert list(line.y) == [mean.value] * 2
    [band] = parts.plot().layout.shapes
    assert (band.y0, band.y1) == mean.interval()
    alone = PerBatch(AverageCase(0.1, n=5)).parts(objective())  # one batch has no interval
    assert not alone.plot().layout.shapes
    with pytest.raises(ValueError, match="no batches"):
        BatchEstimates().plot()


def test_single_numbers_have_no_picture() -> None:
    with pytest.raises(ValueError, match="measure a definition at several radii"):
        FOUND.plot()


def test_slices_paths_and_densities_draw_themselves() -> None:
    pytest.importorskip("plotly")
    place = objective()
    line = slice_1d(place, random_direction(place, seed=0), span=0.5, points=5)
    assert line.plot().to_json() == figure(line).to_json()
    assert line.plot(log=True).to_json() == figure(line, log=True).to_json()
    way = path(place, {k: v + 1 for k, v in place.model.state_dict().items()}, points=3)
    assert way.plot().to_json() == figure(way).to_json()
    density = spectral_density(Curvature(place), runs=3, steps=6)
    assert density.plot().to_json() == figure(density).to_json()
    *_, curve = figure(density).data
    widths = np.diff(curve.x)
    assert float(np.sum((curve.y[1:] + curve.y[:-1]) / 2 * widths)) == pytest.approx(1, abs=1e-3)


def shown_values() -> dict[str, object]:
    """Values that a user looks at in a REPL."""
    of = objective()
    line = slice_1d(of, random_direction(of), points=3)
    other = {name: -weight for name, weight in of.model.state_dict().items()}
    return {
        "Objective": of,
        "Slice": line,
        "Path": path(of, other, points=3),
        "Density": spectral_density(Curvature(of), runs=2),
        "Results": FOUND,
        "Estimate": FOUND["a<b>"],
        "Dataset": steppe.data.load("digits").train,
    }


def test_a_repl_shows_one_line() -> None:
    for name, value in shown_values().items():
        text = repr(value)
        assert text.startswith(f"{name}(")
        assert "\n" not in text
        assert len(text) < 120, text
    assert repr(objective()) == "Objective(Linear, mse_loss, 8 samples, 1 batch)"
    assert repr(FOUND) == "Results(a<b>: 1.5, unknown: 2, broken: failed)"
    assert repr(FOUND["a<b>"]) == "Estimate(1.50 ± 0.25 (unbiased, n=4): of <i>x</i>)"


def test_runs_studies_and_comparisons_show_one_line_and_their_numbers(tmp_path: Path) -> None:
    run = train(Config(data="spirals", model_options={"width": 4, "depth": 2}, steps=1, out=str(tmp_path / "run")))
    study = StudyResult(Path("studies/rates"), 6, 5, {"lr=9": "nan"}, words=["nothing <yet>"])
    record = Record(Path(__file__).parents[2] / "docs/comparisons/digits" / NAME).current
    assert record is not None
    assert repr(run) == f"Run({tmp_path / 'run'}: sam on spirals with mlp, finished)"
    assert repr(study) == "StudyResult(studies/rates: 5 of 6 runs, 1 failed)"
    assert re.fullmatch(r"Result\(sam: [a-z ]+, asam: [a-z ]+; \d+ trials of 3 methods\)", repr(result_of(record)))
    assert f"<td>{run.result['train_loss']:.6g}</td>" in run._repr_html_()
    assert "<p>nothing &lt;yet&gt;</p>" in study._repr_html_()


def test_a_notebook_shows_the_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    plotly = pytest.importorskip("plotly.io")
    monkeypatch.setattr(plotly.renderers, "default", "plotly_mimetype")
    shown = {name: value for name, value in shown_values().items() if name in ("Slice", "Path", "Density")}
    for name, value in shown.items():
        assert "application/vnd.plotly.v1+json" in value._repr_mimebundle_(), name  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    for name, value in shown.items():
        assert value._repr_mimebundle_() == {"text/plain": repr(value)}, name  # type: ignore[attr-defined]
