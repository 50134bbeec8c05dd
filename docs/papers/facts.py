"""Numbers that the pages about papers quote and no table has: `python docs/papers/facts.py` writes facts.md beside it.

Each follows from committed records, from the papers' printed numbers (paper.csv of the recipes) or from a closed form.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from math import comb, floor, sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "papers/src")]

import torch  # noqa: E402  (steppe is found through the line above)

from steppe.nn import build  # noqa: E402
from steppe.studies.summary import mean_and_interval  # noqa: E402
from steppe.training.config import Config  # noqa: E402
from steppe_papers.figures import Phi, Wishart  # noqa: E402
from steppe_papers.figures.zero_loss_manifold import argmin, cube_measure  # noqa: E402
from steppe_papers.recipes.recipe import recipe  # noqa: E402

PAGE = Path(__file__).with_suffix(".md")
HEAD = """\
# Numbers behind these pages

`python docs/papers/facts.py` writes this page from the committed records; a test compares the two. It has the numbers
that [the results](results.md), [the errata](../errata.md) and [theory](../theory.md) quote and no linked table has.
"""
Run = dict[str, Any]
RATES = (0.1, 0.05)
CUBE = 0.01  # Det-SAM's half side, appendix O
WEIGHTS = sum(p.numel() for p in build("resnet18", (3, 32, 32), 10).parameters())


# -- reading ----------------------------------------------------------------------------------------------------------


def runs(study: str) -> list[Run]:
    """The final runs of a study: name of the method, seed, settings and numbers."""
    csv.field_size_limit(1 << 26)
    with (ROOT / "papers/results" / study / "records.csv").open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["stage"] in ("", "final") and row["state"] == "done"]
    for row in rows:
        config = asdict(Config()) | json.loads(row["config"])  # records leave out defaults
        row |= {"config": config, "label": label(config)}
        row |= {k: float(v) for k, v in row.items() if k and k.startswith(("target", "meta")) and v}
    return rows


def label(config: Mapping[str, Any]) -> str:
    """A method's name in the tables."""
    names = {"none": "Adam" if config["optimizer"] == "adam" else "SGD", "ssam-f": "SSAM", "frob-sam": "Frob-SAM"}
    names |= {"det-sam": "Det-SAM", "trace-sam": "Trace-SAM", "agnostic-sam": "Agnostic-SAM"}
    name = names.get(config["method"], config["method"].upper())
    if config["optimizer"] == "adam" and name == "Frob-SAM":  # Figure 1: the released code's lambda
        return f"{name} {4 * config['method_options']['strength']:g}"
    return name


def by(rows: Iterable[Run], *keys: str) -> dict[Any, list[Run]]:
    """Runs by their label, and by settings."""
    groups: dict[Any, list[Run]] = defaultdict(list)
    for row in rows:
        groups[(row["label"], *(row["config"].get(k) for k in keys)) if keys else row["label"]].append(row)
    return groups


def theory(study: str, file: str = "") -> dict[str, Any]:
    """The numbers of a study of `steppe theory`."""
    place = study if "/" in study else f"theory/{study}"
    path = ROOT / "papers/results" / place / f"{file or study}.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def span(values: Iterable[float], form: str = ".3g") -> str:
    listed = list(values)
    return f"{min(listed):{form}} to {max(listed):{form}}"


# -- studies with records ---------------------------------------------------------------------------------------------


def universal_table_2() -> list[str]:
    """Training errors, sizes of the displacements, and where the selected settings lie."""
    groups = by(runs("universal/learning-rate/short"), "lr")
    train = {
        at: [100 * r["target.train_error"] for (_, lr), of in groups.items() if lr == at for r in of] for at in RATES
    }
    accuracy = {key: 100 - 100 * fmean(r["target.test_error"] for r in of) for key, of in groups.items()}
    methods = [m for m, lr in groups if lr == RATES[0]]
    gain = [accuracy[m, RATES[1]] - accuracy[m, RATES[0]] for m in methods]
    below = {m: accuracy["SGD", RATES[1]] - accuracy[m, RATES[1]] for m in methods if m != "SGD"}
    printed = recipe("universal/table2").printed["table2", "SGD", "CIFAR10-S"].value
    above = accuracy["SGD", RATES[0]] - printed
    rho = {m: of[0]["config"]["rho"] for m, of in by(runs("universal/learning-rate/short")).items()}
    frob, det = rho["Frob-SAM"] * sqrt(WEIGHTS), rho["Det-SAM"] * CUBE * sqrt(WEIGHTS / 3)
    return [
        f"Training errors at the end, per run: {span(train[0.1], '.0f')} % at learning rate 0.1, "
        f"{span(train[0.05], '.0f')} % at 0.05.",
        f"From 0.1 to 0.05 the mean accuracies rise by {span(gain, '.1f')} points. SGD at 0.1 is {above:.1f} points "
        f"above the printed {printed}.",
        f"ResNet-18 has d = {WEIGHTS:,} weights. Norms of the displacements: Frob-SAM rho sqrt(d) = {frob:.0f}, "
        f"Det-SAM about rho c sqrt(d / 3) = {det:.0f} in the cube of half side c = {CUBE}, SSAM {rho['SSAM']:g} before "
        f"its mask, SAM {rho['SAM']:g}, Trace-SAM {rho['Trace-SAM']:g}; that of ASAM depends on the weights.",
        "Accuracy at 0.05 below SGD's, in points: "
        + ", ".join(f"{m} {below[m]:.2f}" for m in sorted(below, key=lambda m: below[m])) + ".",
        *selected_settings(),
    ]  # fmt: skip


def selected_settings() -> list[str]:
    """What universal/table2 (short) tried for each method, and what it selected."""
    final = {m: of[0]["config"] for m, of in by(runs("universal/table2/short")).items()}
    places, edges = [], 0
    entries = recipe("universal/table2").content["budgets"]["short"]["grid"]["method"]
    for entry in entries:
        ((setting, tried),) = ((k, v) for k, v in entry.items() if isinstance(v, list))
        config, name = final[entry["label"]], setting.rpartition(".")[2]
        chosen = config["method_options"][name] if "." in setting else config[name]
        edges += chosen in (min(tried), max(tried))
        lowest = " (the lowest)" if chosen == min(tried) else ""
        values = ", ".join(f"{v:g}" for v in tried)
        places.append(f"{entry['label']} {name} {chosen:g} of {values}{lowest}")
    which = f"{edges} of {len(entries)} at the edge of what was tried"
    return [f"Selected in `universal/table2` (short), {which}: {'; '.join(places)}."]


def curve(run: Run) -> list[float]:
    return [epoch["frobenius_squared"] for epoch in json.loads(run["curves"])]


def universal_figure_1() -> list[str]:
    """The end of the curves over five epochs, their differences to Adam, and how often they rise."""
    groups = by(runs("universal/fig1/paper"))
    curves = {m: {r["config"]["seed"]: curve(r) for r in of} for m, of in groups.items()}
    adam = curves["Adam"]
    lines, falls = [], []
    for method, of in curves.items():
        mean = [fmean(values) for values in zip(*of.values(), strict=True)]
        falls.append(mean[0] / mean[-1])
        rises = sum(b > a for a, b in pairwise(mean))
        value, error, *_ = mean_and_interval([fmean(c[-5:]) for c in of.values()])
        line = f"{method}: {value:.1f} ± {error:.1f}"
        if method != "Adam":
            difference, _, low, high = mean_and_interval([fmean(c[-5:]) - fmean(adam[s][-5:]) for s, c in of.items()])
            line += f", minus Adam {difference:+.1f} [{low:+.1f}, {high:+.1f}]"
        lines.append(f"{line}; the mean over seeds rises in {rises} of {len(mean) - 1} epochs.")
    first = {m: mean_and_interval([c[0] for c in of.values()])[:2] for m, of in curves.items()}
    starts = ", ".join(f"{m} {first[m][0]:.0f} ± {first[m][1]:.0f}" for m in ("Adam", "Frob-SAM 0.01"))
    of_strength_1 = falls[list(curves).index("Frob-SAM 1")]
    others = [f for m, f in zip(curves, falls, strict=True) if m != "Frob-SAM 1"]
    return [
        "||H||_F^2, mean over the last five epochs (16 to 20), three seeds:",
        *lines,
        f"After the first epoch: {starts}. From the first epoch to the last the norms fall by factors of "
        f"{min(others):.0f} to {max(others):.0f}, and rise by a factor of {1 / of_strength_1:.1f} at strength 1.",
    ]


def yardstick() -> list[str]:
    groups = by(runs("yardstick/resnet18/paper"))
    accuracies = {m: sorted(100 - 100 * r["target.test_error"] for r in of) for m, of in groups.items()}
    pairs = zip(*(sorted(groups[m], key=lambda r: r["config"]["seed"]) for m in ("SAM", "SGD")), strict=True)
    tops = [[json.loads(r["measure.lambda_max"])["value"] for r in pair] for pair in pairs]
    difference, _, low, high = mean_and_interval([a - b for a, b in tops])
    minutes = fmean(r["meta.training_seconds"] for r in groups["SAM"]) / 60
    wrong = max(r["target.train_error"] for of in groups.values() for r in of)
    return [
        "; ".join(f"{m} {', '.join(f'{a:.2f}' for a in of)} %" for m, of in accuracies.items())
        + f". The largest training error is {100 * wrong:.3f} %.",
        f"Largest Hessian eigenvalue, SAM minus SGD: {difference:+.1f} [{low:+.1f}, {high:+.1f}].",
        f"SAM: {minutes:.1f} minutes of training on average, three runs side by side: {minutes / 3:.1f} each.",
    ]


def agnostic_table_4() -> list[str]:
    """Training errors on the given labels, and the distance of SGD from the printed one."""
    groups = by(runs("agnostic/table4/short"))
    train = {m: 100 * fmean(r["target.train_error"] for r in of) for m, of in groups.items()}
    printed = recipe("agnostic/table4").printed["cifar10", "SGD", "40 %"].value
    above = 100 - 100 * fmean(r["target.test_error"] for r in groups["SGD"]) - printed
    return [
        "Mean errors on the training labels, wrong ones included: "
        + ", ".join(f"{m} {value:.1f} %" for m, value in train.items())
        + f". Test accuracy of SGD above the printed one: {above:.1f} points.",
    ]


# -- the papers' printed numbers --------------------------------------------------------------------------------------

GRAIN = 0.01  # of an accuracy in percent on 10 000 test images


def printings(deviation: float) -> set[int]:
    """A deviation in thousandths as three decimals can show it: rounded, or cut off."""
    return {floor(1000 * deviation + 0.5), floor(1000 * deviation + 1e-9)}


def printed_deviations() -> list[str]:
    """Which standard deviations of Agnostic-SAM's Tables 1, 4 and 5 two runs can have, and which three runs can."""
    cells = {}
    for table in ("table1", "table4", "table5"):
        for (part, row, column), cell in recipe(f"agnostic/{table}").printed.items():
            quoted = table == "table1" and row == "SGD"  # from Foret et al. 2021, with one significant digit
            known = table == "table5" and "Simpler" not in row  # printed in Table 1 too
            if cell.error is not None and not quoted and not known:
                cells[table, part, row, column] = round(1000 * cell.error)
    # accuracies are whole numbers of images: two runs that differ by k have the deviation k / sqrt 2, three runs with
    # gaps a and b have sqrt((a^2 + ab + b^2) / 3)
    most = range(2 * max(cells.values()) // 10)
    two = {p for k in most[1:] for p in printings(GRAIN * k / sqrt(2))}
    squares = {a * a + a * b + b * b for b in most[1:] for a in range(b + 1)}
    three = {p for square in squares for p in printings(GRAIN * sqrt(square / 3))}
    hits, others = [c for c, v in cells.items() if v in two], [c for c, v in cells.items() if v not in two]
    never = [c for c, v in cells.items() if v not in three]
    chance = 1.5 * 0.001 / (GRAIN / sqrt(2))  # rounding or cutting off reaches 1.5 thousandths per multiple
    n = len(cells)
    p = sum(comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(len(hits), n + 1))
    values = Counter(f"{cells[cell] / 1000:.3f}" for cell in never)
    return [
        f"Tables 1, 4 and 5 print {n} different standard deviations of the authors' own runs. {len(hits)} of them are "
        "a multiple of 0.01 / sqrt(2), rounded or cut off to three decimals: that of two accuracies on 10,000 images. "
        f"A number of three decimals is one with probability {chance:.2f} ({100 * chance:.0f} %), so p = {p:.0e}.",
        f"{len(never)} of these no three runs can have: {', '.join(f'{v} in {k} cells' for v, k in values.items())}. "
        "sqrt((a^2 + ab + b^2) / 3) is never near 0.7 or 1.4 for whole numbers of images a and b.",
        "The others are "
        + ", ".join(f"{cells[c] / 1000:.3f} ({c[0].replace('table', 'Table ')})" for c in others)
        + ".",
    ]


def printed_times() -> list[str]:
    times = {
        (row, column): float(cell.place.split(", ")[1].split(" ±")[0])
        for (_, row, column), cell in recipe("agnostic/table6").printed.items()
    }
    pairs = {c: (times["SAM", c], times["Agnostic-SAM (Non-overlap)", c]) for _, c in times}
    return [
        "Table 6, minutes per epoch of SAM and of Agnostic-SAM (Non-overlap): "
        + ", ".join(f"{c} {a:.2f} and {b:.2f}" for c, (a, b) in pairs.items()) + ".",
    ]  # fmt: skip


def printed_margins() -> list[str]:
    lines = []
    for table, name in (("table2", "CIFAR10-C"), ("table3", "CIFAR100-C"), ("table4", "Tiny-ImageNet-C")):
        printed = recipe(f"sharpbalance/{table}").printed
        cells = {(row, column): cell.value for (_, row, column), cell in printed.items()}
        for other in ("Deep ensemble + SAM", "Deep ensemble"):
            margins = ", ".join(f"{cells['SharpBalance', str(s)] - cells[other, str(s)]:.2f}" for s in range(1, 6))
            lines.append(f"{table.replace('table', 'Table ')}, {name}, SharpBalance minus {other}: {margins}.")
    return lines


def printed_accuracies() -> list[str]:
    cells = {(row, column): c.value for (_, row, column), c in recipe("universal/table2").printed.items()}
    columns = [c for c in dict.fromkeys(c for _, c in cells) if c.endswith("-S")]
    lines = []
    for column in columns:
        ranked = sorted(((v, r) for (r, c), v in cells.items() if c == column), reverse=True)
        lines.append(f"{column}: {', '.join(f'{r} {v:.2f}' for v, r in ranked)}.")
    return lines


# -- theory -----------------------------------------------------------------------------------------------------------


def jensen_gap() -> list[str]:
    rows = theory("sharpbalance-jensen-gap")["rows"]
    below = [100 * (1 - r["own_variance"] / r["sharpness"]) for r in rows if r["teacher"] >= 1]
    least = max(r["teacher"] for r in rows if r["printed"] < 0)
    from_on = min(r["teacher"] for r in rows if r["corrected"] < 0)
    assert all((r["printed"] < 0) == (r["teacher"] <= least) for r in rows)
    assert all((r["corrected"] < 0) == (r["teacher"] >= from_on) for r in rows)
    return [
        f"With the variance itself the bound is {span(below, '.1f')} % below for ||w*|| = 1 and more. The printed "
        f"bound is negative for ||w*|| = {least:g} and less, the corrected one for {from_on:g} and more."
    ]


def by_ascent() -> list[str]:
    late = [r for r in theory("sharpness-by-ascent")["rows"] if r["case"].startswith("late")]
    missed = ", ".join(f"{100 * r['after_50']:.2g} % (radius {r['radius']:g})" for r in late[1:])
    return [f"{late[0]['case']}: 50 steps miss {missed}; 2000 steps {100 * late[-1]['at_end']:.1f} % in the last."]


def moments() -> list[str]:
    content = theory("wishart-moments")
    (row,) = (r for r in content["by_columns"] if r["columns"] == 150)
    phi = Phi(Wishart(rows=3000, columns=150), eta=0.005, rho=0.4)
    below = 100 * (1 - row["limit_0"] / row["exact_0"])
    return [
        f"At 3000 x 150 phi(20, 0) as printed is {below:.0f} % below the exact one; phi(40, 4) is "
        f"{phi.limit(40, 4):.1f} as printed and exactly {phi.exact(40, 4):.1f}.",
        "In float64 the printed sum has lost all digits from i = "
        + str(min(r["i"] for r in content["by_power"] if abs(r["float_sum"] / r["rational"] - 1) > 1)) + " on.",
    ]  # fmt: skip


def two_bounds() -> list[str]:
    """The tightness of Theorem 1 at the figures' points, by the curve that is farthest in training."""
    above = {
        name: max(100 * (r["upper"] / r["sharpness"] - 1) for r in rows)
        for name, rows in theory("sharpbalance-figure-9")["panels"].items()
    }
    return [
        "The upper bound with exact moments is at most this much above the simulated sharpness: "
        + ", ".join(f"{value:.0f} % ({name})" for name, value in above.items()) + ".",
    ]  # fmt: skip


def explicit_bias() -> list[str]:
    content = theory("explicit-bias")
    cubes = {c["half"]: c["lowest"] for c in content["cubes"]}
    at = {half: argmin(lambda s, h=half: cube_measure(s, float(h))) for half in (2, 3, 4, 10)}  # type: ignore[misc]
    assert abs(at[10] - cubes[max(cubes)]) < 1e-2
    ends = {r["method"]: r["end"] for r in content["runs"]}
    return [
        "Least value on cubes of half side " + ", ".join(f"{h}: {s:.2f}" for h, s in at.items()) + ".",
        "Training ends at " + ", ".join(f"{s:.2f} ({m})" for m, s in ends.items()) + "; the measures are least at "
        + ", ".join(f"{s:.2f} ({m})" for m, s in content["minima"].items()) + ".",
    ]  # fmt: skip


def bound() -> list[str]:
    of_each = theory("generalisation-bound")["simulated"]
    return [
        f"{len(of_each)} x {of_each[0]['samples']} samples; the gap is "
        f"{span((r['gap'] / r['needed'] for r in of_each), '.0f')} times what 95 % of them need."
    ]


def congruence() -> list[str]:
    courses = theory("gradient-congruence")["courses"]
    first = ", ".join(f"{name} {c['cosine'][0]:.2f}" for name, c in courses.items())
    return [f"Mean cosine over the first epoch: {first}."]


def edge_of_stability() -> list[str]:
    """Five seeds: means over the last ten measurements, last values, and how far step sizes vary."""
    files = {seed: theory("edge-of-stability", f"seed-{seed}" if seed else "") for seed in range(5)}
    names = {"gd": "GD", "sam": "SAM", "sa-sgd": "SA-SGD", "sa-sam": "SA-SAM"}
    lines = ["Five seeds, one run each. The file of the study is seed 0; the others lie beside it."]
    for key, name in names.items():
        ratios = [c["ratio"][key] for c in files.values()]
        last = [c["traces"][key]["top"][-1] for c in files.values()]
        edges = [c["traces"][key]["edge"][-10:] for c in files.values()]
        varies = max(max(e) / min(e) for e in edges)
        before = [c["traces"][key]["top"][-4:] for c in files.values()]
        lines.append(
            f"{name}: lambda_max / (2 / eta) over the last ten measurements {span(ratios, '.2f')}, last lambda_max "
            f"{', '.join(f'{x:.1f}' for x in last)} ({span(last, '.1f')}). The last four differ by a factor of "
            f"{max(max(b) / min(b) for b in before):.2g} at most, the last ten step sizes by {varies:.2g}."
        )
    return lines


def dense_truth() -> list[str]:
    return list(theory("modern-look/fig7-dense", "sparse-regression")["words"][:2])


SECTIONS: Mapping[str, Callable[[], Sequence[str]]] = {
    "universal-table-2": universal_table_2,
    "universal-figure-1": universal_figure_1,
    "agnostic-table-4": agnostic_table_4,
    "yardstick": yardstick,
    "printed-deviations": printed_deviations,
    "printed-times": printed_times,
    "printed-margins": printed_margins,
    "printed-accuracies": printed_accuracies,
    "sharpbalance-jensen-gap": jensen_gap,
    "sharpbalance-figure-9": two_bounds,
    "sharpness-by-ascent": by_ascent,
    "wishart-moments": moments,
    "explicit-bias": explicit_bias,
    "generalisation-bound": bound,
    "gradient-congruence": congruence,
    "edge-of-stability": edge_of_stability,
    "dense-truth": dense_truth,
}


def facts() -> str:
    """The page."""
    return HEAD + "".join(f"\n## {name}\n\n" + "".join(f"- {line}\n" for line in of()) for name, of in SECTIONS.items())


if __name__ == "__main__":
    torch.set_num_threads(1)
    PAGE.write_text(facts(), encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
