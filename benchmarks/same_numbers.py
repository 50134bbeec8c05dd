"""Two commits of steppe compute the same numbers: losses and gradients of all methods, measures, and a study on digits.

`write` computes them on the CPU with one thread, by public names alone, so that it runs on the source of any commit:

    PYTHONPATH=src python benchmarks/same_numbers.py write FILE.json

- methods: for every name in `steppe.METHODS`, and for more options of some, the loss of every step, `p.grad` and the
  weights and buffers at the end: on an MLP with BatchNorm and dropout by closures around SGD, and on a conv net in two
  parameter groups by `passes()` around AdamW, with the report of the last step; by closures also at a tiny loss.
- measures: all of `steppe.MEASURES` (the twelve definitions among them), other searches, spectra, traces, densities,
  Fisher traces of rows and (phi, psi, mu) measures, on a conv net with BatchNorm and on an attention layer.
- study: `steppe study run` of 14 networks on digits: the numbers of every epoch and every run, and the findings.

    python benchmarks/same_numbers.py compare A.json B.json

prints a table of groups and exits with code 1 if a number is missing in one of the files or differs by more than
1e-12 (1e-5 where it was computed in float32). Differences of a tensor, or of an estimate and its error, are relative to
its largest entry. Two files compare where torch and the machine are the same.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import steppe
from steppe import measures as m

Values = list[float] | str
Group = dict[str, Values]

SOURCE = Path(steppe.__file__).parent.parent
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}
DTYPES = {"float64": torch.float64, "float32": torch.float32}
STEPS, ROWS, CLASSES = 6, 12, 3
TINY = 1e-14  # times a loss: squares of gradients are near the smallest float32

# options under which methods act on problems this small, and in which they differ; others have their defaults
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "sam": [
        {"rho": 0.5},
        {"rho": 0.5, "p": 1.0},
        {"rho": 0.5, "p": 3.0},
        {"rho": 0.05, "p": inf},
        {"rho": 0.5, "steps": 3, "decay_in_ascent": True},
        {"rho": 0.5, "normalized": False},
    ],
    "asam": [{"rho": 1.0}, {"rho": 1.0, "filterwise": True, "everywhere": True}],
    "universal-sam": [{"triple": "determinant", "rho": 1.0, "n": 3, "strength": 0.1}, {"rho": 0.5, "n": 2}],
    "trace-sam": [{"rho": 0.1, "n": 2}],
    "frob-sam": [{"rho": 0.1, "n": 2, "strength": 0.1}],
    "det-sam": [{"strength": 0.1}],
    "agnostic-sam": [{"rho": 0.5, "held_out_rho": 0.2}, {"rho": 0.5, "held_out_rho": 0.2, "share": None}],
    "agnostic-sam-simple": [{"rho": 0.5, "held_out_rho": 0.2}],
    "sharpbalance": [{"rho": 0.5}],
    "ssam-f": [{"rho": 0.5, "samples": 3, "every": 2}],
    "ssam-d": [{"rho": 0.5, "every": 2, "steps": 10}],
    "gsam": [{"rho": 0.5}],
    "looksam": [{"rho": 0.5, "k": 3}],
    "rsam": [{"rho": 0.5}],
    "esam": [{"rho": 0.5}, {"rho": 0.5, "gamma": 1.0}],
    "msam": [{"rho": 0.5}],
    "m-sam": [{"rho": 0.5, "parts": 3}],
}
SINGLE_ROWS = ("ssam-f",)  # BatchNorm has no statistics of one row
OWN_STEP_SIZE = ("sa-sam", "sa-sgd")  # which is the larger, the smaller the loss
TWO_RADII = ("sam", "asam", "gsam", "looksam")  # tried with another radius in the second parameter group

STUDY = """
base: {data: digits, model: mlp, model_options: {width: 32, depth: 2}, fraction: 0.25, epochs: 8, batch_size: 50,
       corruptions: [gaussian_noise], severities: [3], measure_rows: 128, device: cpu}
grid:
  method:
    - none
    - {method: sam, rho: 0.1, ema: 0.9, swa: 0.5}
    - {method: gsam, rho: 0.1, label_smoothing: 0.1, clip: 0.2}
    - {method: asam, rho: 0.5, schedule: multistep, warmup: 0.2}
    - {method: agnostic-sam, rho: 0.1, label_noise: 0.1, validation: 0.1}
    - {method: trace-sam, rho: 0.1, augment: [crop, mixup]}
    - {method: sharpbalance, rho: 0.1, optimizer: adamw}
  lr: [0.05, 0.2]
measures: [lambda_max, trace, avg_l2@0.05, adaptive_worst_linf@0.01]
targets: [test_error, gap, corrupted_error]
groups: [lr]
"""
TIMES = ("seconds", "images_per_second")  # what no two runs have in common


def values(x: Any) -> Values:
    """What is kept of a tensor, a vector, an estimate, a number or a sequence of them."""
    if isinstance(x, Tensor):
        return x.detach().double().reshape(-1).tolist()
    if isinstance(x, steppe.Vector):
        return [value for tensor in x.tensors for value in values(tensor)]
    if isinstance(x, steppe.Estimate):
        return [x.value, x.stderr]
    return list(map(float, np.ravel(x)))


# methods


class Dense(nn.Module):
    """Layers of one shape and of others, normalisation after layers without a bias, dropout."""

    def __init__(self, norm: type[nn.Module]):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8, bias=False), norm(8)
        self.hidden = nn.ModuleList([nn.Linear(8, 8) for _ in range(2)])
        self.head, self.dropout = nn.Linear(8, CLASSES), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        for layer in self.hidden:
            x = self.dropout(torch.tanh(layer(x)))
        return self.head(x)


def conv_net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.Softplus(),
        nn.Conv2d(4, 3, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(12, CLASSES),
    )  # fmt: skip


class Attention(nn.Module):
    """Five tokens of four features, one layer of attention, LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(4, 2, batch_first=True), nn.LayerNorm(4)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


def made(make: Callable[[], nn.Module], dtype: torch.dtype) -> nn.Module:
    """A fresh model from fixed draws, with normalisation layers away from ones and zeros."""
    torch.manual_seed(0)
    model = make()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.LayerNorm):
                module.weight.add_(0.3 * torch.randn_like(module.weight))
                module.bias.add_(0.3 * torch.randn_like(module.bias))
    return model.to(dtype)


def batch(number: int, shape: tuple[int, ...], dtype: torch.dtype, rows: int = ROWS) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1000 + number)
    x = torch.randn(rows, *shape, generator=g, dtype=torch.float64)
    return x.to(dtype), torch.randint(CLASSES, (rows,), generator=g)


def cases() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every method with its options: a label, its name and these."""
    for name in steppe.METHODS:
        for options in OPTIONS.get(name, [{}]):
            yield " ".join([name, *(f"{k}={v}" for k, v in options.items())]), name, options


def trained(
    name: str, options: Mapping[str, Any], dtype: torch.dtype, by: str, scale: float
) -> Iterator[tuple[str, Values]]:
    """A few steps of a method, by closures on an MLP or by `passes()` on a conv net; the loss is scaled."""
    norm = nn.LayerNorm if name in SINGLE_ROWS else nn.BatchNorm1d
    model = made(lambda: Dense(norm), dtype) if by == "closure" else made(conv_net, dtype)
    if name in SINGLE_ROWS and by == "passes":
        model[1] = nn.GroupNorm(2, 4, dtype=dtype)
    shape = (6,) if by == "closure" else (2, 6, 6)
    if by == "closure":
        base: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    else:
        front, back = model[:3].named_parameters("front"), model[3:].named_parameters("back")
        groups = [{"params": list(front)}, {"params": list(back), "weight_decay": 0.1}]
        base = torch.optim.AdamW(groups, lr=0.01)
    opt = steppe.build(name, base, model=model, seed=3, record=by == "passes", **options)
    if by == "passes" and name in TWO_RADII:
        opt.param_groups[1]["rho"] = 0.7 * opt.param_groups[1]["rho"]
    reduction = "none" if name == "esam" and options.get("gamma", 0.5) < 1 else "mean"

    for step in range(STEPS):
        torch.manual_seed(step)
        extra = {"mask": torch.arange(ROWS) % 3 == step % 3} if name == "sharpbalance" else {}

        def closure(pass_: Any, step: int = step) -> Tensor:
            data = batch(step + 500, shape, dtype) if pass_.held_out else pass_.rows(*batch(step, shape, dtype))
            loss = scale * cross_entropy(model(data[0]), data[1], reduction=reduction)
            pass_.backward(loss)
            return loss.detach().mean()

        if by == "closure":
            yield f"step {step}, loss", values(opt.step(closure, held_out=closure, **extra))
        else:
            yield f"step {step}, losses", values([closure(pass_) for pass_ in opt.passes(**extra)])
            opt.step()
        if step in (0, STEPS - 1):
            for p_name, p in model.named_parameters():
                yield f"step {step}, gradient of {p_name}", values(p.grad)
    for k, v in model.state_dict().items():
        yield f"{k} at the end", values(v)
    if by == "passes":
        yield "report", values([x for x in opt.last.read().values() if isinstance(x, int | float)])


def methods(dtype: torch.dtype) -> Group:
    return {
        f"{label}, by {by}, loss times {scale:g}: {what}": x
        for label, name, options in cases()
        for by, scale in (("closure", 1.0), ("passes", 1.0), ("closure", TINY))
        if scale == 1 or name not in OWN_STEP_SIZE
        for what, x in trained(name, options, dtype, by, scale)
    }


# measures


def objectives(dtype: torch.dtype) -> dict[str, m.Objective]:
    """A conv net whose BatchNorm has seen data, and an attention layer, each on batches of different sizes."""
    conv = made(conv_net, dtype)
    for i in range(3):
        conv(batch(100 + i, (2, 6, 6), dtype)[0])
    made_of = {"conv": (conv, (2, 6, 6)), "attention": (made(Attention, dtype), (5, 4))}
    return {
        name: m.Objective(model, cross_entropy, [batch(i, shape, dtype, rows) for i, rows in enumerate((10, 10, 7))])
        for name, (model, shape) in made_of.items()
    }


def searched() -> dict[str, m.Measure]:
    """Measures that `MEASURES` does not name."""
    ball, box = steppe.Ball(0.3), steppe.Ball(0.02, steppe.Elementwise(0.01), inf)
    climbs = {"power": m.PowerAscent(), "auto-pgd": m.AutoPGD(), "projected": m.ProjectedAscent()}
    selected: dict[str, m.Measure] = {
        f"worst in {shape}, {name}": m.WorstCase(b, steps=10, starts=3, climb=climb)
        for name, climb in climbs.items()
        for shape, b in (("l2", ball), ("adaptive linf", box))
    }
    selected |= {f"sharpness of one step, p={p}": m.OneStep(steppe.Ball(0.1, p=p)) for p in (1.0, 3.0)}
    for name, form in (("hessian", m.hessian), ("gauss-newton", m.gauss_newton)):
        selected |= {f"{name}, eigenvalue {k}": m.Eigenvalue(k, form=form) for k in (2, 3, 4)}
        selected |= {f"{name}, eigenvalue {k}, dense": m.Eigenvalue(k, form=form, by=m.Dense) for k in (1, 2, 3)}
        selected |= {f"{name}, trace, dense": m.Trace(form=form, by=m.Dense)}
        selected |= {f"{name}, squared norm, dense": m.FrobeniusSquared(form=form, by=m.Dense)}
    selected["second eigenvalue from the bottom"] = m.Eigenvalue(2, "bottom")
    selected["log-determinant"] = m.LogDeterminant(0.05, runs=3)
    selected["shifted log-determinant"] = m.ShiftedLogDeterminant(5.0, runs=3, steps=20)
    return selected


def triples() -> dict[str, m.Measure]:
    """(phi, psi, mu) measures, of draws so far away that differences of losses and logarithms keep their digits."""
    named = {"trace": steppe.TRACE, "frobenius": steppe.FROBENIUS, "exponential": steppe.exponential(0.05)}
    uphill = getattr(steppe, "uphill", None) or import_module("steppe.core.triple").uphill  # older versions: the first
    laws = {"rademacher": steppe.rademacher, "uphill": uphill, "gaussian": steppe.gaussian}
    for name, t in {"determinant": steppe.DETERMINANT, "determinant, released": steppe.DETERMINANT_RELEASED}.items():
        named[name] = steppe.Triple(t.phi, t.psi, (steppe.Hypercube(0.5),), logs=True)
    named |= {f"trace, {name}": steppe.Triple(steppe.TRACE.phi, steppe.TRACE.psi, (law,)) for name, law in laws.items()}
    selected: dict[str, m.Measure] = {f"{name}, second order": m.SecondOrder(t, 30) for name, t in named.items()}
    selected |= {f"{name}, zeroth order": m.ZerothOrder(t, 0.3, 30) for name, t in named.items()}
    return selected


def estimates(o: m.Objective, plan: Iterable[str] | Mapping[str, m.Measure]) -> Iterator[tuple[str, Values]]:
    results = m.measure(o.model, o.loss_fn, o.batches, plan, seed=1, progress=False)
    if results.failures:
        raise RuntimeError(f"not measured: {dict(results.failures)}")
    for name, e in results.items():
        yield name, values(e)
        yield f"{name}, kind and n", f"{e.kind}, {e.n}"


def spectrum(o: m.Objective) -> Iterator[tuple[str, Values]]:
    curvature = m.Curvature(o)
    density = m.spectral_density(curvature, runs=3, steps=20, seed=1)
    yield "density", values(density.curve(np.linspace(-1.0, 3.0, 41), 0.1))
    yield "density, ends", values([density.smallest, density.largest])
    for k in (1, 2):
        yield f"density, moment {k}", values(density.moment(k))
    for name, x in zip(("diagonal", "its error"), m.diagonal(curvature, 10, seed=1), strict=True):
        yield name, values(x)
    yield "product", values(curvature.product(o.gradient()[1]))
    yield "adaptive product", values(m.Curvature(o, metric=steppe.Elementwise(0.01)).product(o.gradient()[1]))


def rest(o: m.Objective) -> Iterator[tuple[str, Values]]:
    yield "loss", values(o.loss())
    yield "gradient", values(o.gradient()[1])
    for way in ("rows", "vmap", None):
        yield f"Fisher traces of rows, way {way}", values(m.fisher_traces(o, way))
    for number, e in m.PerBatch(m.WorstCase(steppe.Ball(0.1))).parts(o):
        yield f"worst case of batch {number}", values(e)


def measured(dtype: torch.dtype) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    names = [name for name in steppe.MEASURES if not name.startswith(("zeroth_", "log_"))]  # below, with other options
    parts: dict[str, Callable[[m.Objective], Iterator[tuple[str, Values]]]] = {
        "twelve definitions": lambda o: estimates(o, list(m.DEFINITIONS)),
        "measures by name": lambda o: estimates(o, [name for name in names if name not in m.DEFINITIONS]),
        "searches and eigenvalues": lambda o: estimates(o, searched()),
        "(phi, psi, mu) measures": lambda o: estimates(o, triples()),
        "density, diagonal, products": spectrum,
        "losses, gradients, Fisher": rest,
    }
    for part, numbers in parts.items():
        groups[part] = {f"{net}: {name}": x for net, o in objectives(dtype).items() for name, x in numbers(o)}
    return groups


# a study


def command(*words: str, folder: str) -> str:
    """What a command of the steppe that is imported here prints."""
    line, env = [sys.executable, "-m", "steppe", *words], os.environ | {"PYTHONPATH": str(SOURCE)}
    papers = SOURCE.parent / "papers" / "src"  # of a clone: the study's corruptions may be of steppe-papers
    if papers.exists():
        env |= {"PYTHONPATH": f"{SOURCE}{os.pathsep}{papers}", "STEPPE_PLUGINS": "steppe_papers"}
    done = subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"steppe {' '.join(words)} failed: {done.stderr}")
    return done.stdout


def numbers_in(x: Any, path: str) -> Iterator[tuple[str, Values]]:
    """The numbers and verdicts of nested JSON by their paths; other texts are prose."""
    if isinstance(x, dict):
        for k, v in x.items():
            if k == "verdict":
                yield f"{path}, {k}", v
            else:
                yield from numbers_in(v, f"{path}, {k}")
    elif isinstance(x, int | float):
        yield path, [float(x)]


def study() -> dict[str, Group]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "study.yaml").write_text(STUDY)
        report = json.loads(command("study", "run", "study.yaml", "--engine", "serial", "--json", folder=folder))
        command("study", "report", "study.yaml", "--export", "runs.csv", folder=folder)
        with Path(folder, "runs.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        epochs = {row["key"]: next(Path(folder).rglob(f"{row['key']}/metrics.jsonl")).read_text() for row in rows}
    runs: Group = {}
    for row in rows:
        name = f"{row['config.method']}, lr {row['config.lr']}"
        runs[f"{name}: key"] = row["key"]
        numbers = {k: v for k, v in row.items() if k.startswith(("target.", "measure.", "meta.")) and v}
        for record in map(json.loads, epochs[row["key"]].splitlines()):
            numbers |= {f"epoch {record['epoch']}, {k}": v for k, v in record.items() if isinstance(v, int | float)}
        runs |= {f"{name}: {k}": [float(v)] for k, v in numbers.items() if not k.endswith(TIMES)}
    findings: Group = {}
    for row in report["findings"]["findings"]:
        findings |= dict(numbers_in(row, f"{row['measure']} and {row['target']}, {row['hypothesis']}"))
    findings |= {name: [float(report[name])] for name in ("planned", "done", "admitted")}
    return {"study, runs, float32": runs, "study, findings, float64": findings}


# files


def write(path: Path) -> None:
    torch.set_num_threads(1)
    numbers: dict[str, Group] = {}
    for name, dtype in DTYPES.items():
        numbers[f"methods, {name}"] = methods(dtype)
        numbers |= {f"{part}, {name}": group for part, group in measured(dtype).items()}
    about = {"torch": torch.__version__, "python": platform.python_version(), "machine": platform.machine()}
    path.write_text(json.dumps({"about": about, "numbers": numbers | study()}))


def difference(a: Values, b: Values) -> float:
    """0 if bitwise equal, else the largest difference relative to the largest number; inf if nothing compares."""
    if isinstance(a, str) or isinstance(b, str) or len(a) != len(b):
        return 0.0 if a == b else inf
    x, y = np.array(a), np.array(b)
    if x.tobytes() == y.tobytes():
        return 0.0
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    if not np.isfinite([x[~same], y[~same]]).all():
        return inf
    finite = np.concatenate([x, y])[np.isfinite([*x, *y])]
    largest = np.abs(np.where(same, 0.0, x - y)).max(initial=0.0) / (np.abs(finite).max(initial=0.0) or 1.0)
    return max(float(largest), sys.float_info.min)  # -0.0 for 0.0 is a difference too


def compare(one: Mapping[str, Group], other: Mapping[str, Group]) -> tuple[list[str], bool]:
    """The lines of a table, and whether all numbers are there and within the tolerance."""
    head = ("group", "numbers", "bitwise equal", "missing", "largest difference", "where", "")
    lines, fine = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"], True
    for group in dict.fromkeys([*one, *other]):
        a, b = one.get(group, {}), other.get(group, {})
        off = {name: difference(a[name], b[name]) for name in a if name in b}
        missing = sorted(a.keys() ^ b.keys())
        tolerance = TOLERANCE[group.rpartition(", ")[2]]
        worst = max(off, key=lambda name: off[name], default="")
        ok = not missing and bool(off) and off[worst] <= tolerance
        fine &= ok
        where = worst if off and off[worst] else ""
        cells = [group, len(off), sum(not d for d in off.values()), len(missing), f"{off.get(worst, inf):.1e}", where]
        lines.append(f"| {' | '.join(map(str, cells))} | {'' if ok else f'more than {tolerance:g}, or missing'} |")
        lines += [f"  missing in one file: {name}" for name in missing[:5]]
        beyond = sorted((name for name in off if off[name] > tolerance), key=lambda name: -off[name])
        lines += [f"  {off[name]:.1e} in {name}" for name in beyond[:20]]
        lines += [f"  and {len(beyond) - 20} more"] if len(beyond) > 20 else []
    return lines, fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write").add_argument("file", type=Path)
    two = commands.add_parser("compare")
    two.add_argument("one", type=Path)
    two.add_argument("other", type=Path)
    options = parser.parse_args()
    if options.command == "write":
        write(options.file)
        return 0
    one, other = (json.loads(path.read_text()) for path in (options.one, options.other))
    if one["about"] != other["about"]:
        print(f"computed by different versions: {one['about']} and {other['about']}")
    lines, fine = compare(one["numbers"], other["numbers"])
    print("\n".join(lines))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
