"""Tables of the docs, made from registrations: `python docs/tables.py` writes them, a test says if they are old.

A table stands between `<!-- NAME: docs/tables.py -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import steppe
from steppe._util.extras import install_line
from steppe.cli.listings import describe_model
from steppe.comparison.result import result_of
from steppe.comparison.store import NAME, Record
from steppe.core.triple import TRIPLES
from steppe.data.registry import OWN
from steppe.optim.build import function_name, signature_of
from steppe.training import LOGGERS

ROOT = Path(__file__).parents[1]
PAGES = tuple(
    f"docs/{name}.md" for name in ("methods", "speed", "data", "loggers", "measures", "models", "compare", "statistics")
)
STUB = ROOT / "src/steppe/optim/by_name.pyi"
OPTIONAL = {"sharpbalance": " In ensembles, steps are captured until rows are exchanged"}


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|\n" for line in lines)


def written(value: Any) -> str:
    """A value as a user writes it, without arguments that are defaults."""
    if any(value is triple for triple in TRIPLES.values()):
        return next(name for name, one in vars(steppe.core.triple).items() if one is value)
    if not is_dataclass(value):
        return repr(value)
    said, named = [], False
    for number, f in enumerate(fields(value)):
        usual = f.default_factory() if f.default_factory is not MISSING else f.default
        mine = getattr(value, f.name)
        if mine == usual and not (isinstance(value, steppe.Ball) and not number):
            named = True
        else:
            said.append(f"{f.name}={written(mine)}" if named else written(mine))
    return f"{type(value).__name__}({', '.join(said)})"


def made_by(name: str) -> str:
    """The expression that makes a method with its defaults."""
    make, method = steppe.METHODS[name].make, steppe.method(name)
    if getattr(steppe, make.__name__, None) is make:
        return f"{make.__name__}()"
    usual = not any(f.default is MISSING and f.default_factory is MISSING for f in fields(method))
    return f"{type(method).__name__}()" if usual and type(method)() == method else written(method)


def methods() -> str:
    heads = ("name", "method", "what it does", "passes per step", "paper")
    rows = steppe.METHODS.items()
    return table(heads, ((f"`{n}`", f"`{made_by(n)}`", m.does, m.usual_passes(), m.paper) for n, m in rows))


def captured() -> str:
    """Methods by how their steps are captured as CUDA graphs."""
    groups: dict[str, list[str]] = {}
    for name in steppe.METHODS:
        patterns = [steppe.method(name).pattern(step) for step in range(1, 1000)]
        kinds = set(patterns) - {None}
        if not kinds:
            text = "no: the host decides something at every step." + OPTIONAL.get(name, "")
        elif None in patterns:
            text = "all steps except those that renew the mask"
        elif len(kinds) > 1:
            text = f"one graph for each of the {len(kinds)} kinds of steps"
        elif steppe.METHODS[name].sets_lr:
            text = "every step but the first; the step size is computed on the GPU and stays there"
        else:
            text = "every step"
        groups.setdefault(text, []).append(f"`{name}`")
    return table(("methods", "captured"), ((", ".join(names), text) for text, names in groups.items()))


def measures() -> str:
    """Measures with their variants, which differ in the name alone."""
    groups: dict[str, list[steppe.measures.registration.Registered]] = {}
    for one in steppe.MEASURES.values():
        groups.setdefault(one.does, []).append(one)
    rows = []
    for does, same in groups.items():
        papers = "; ".join(dict.fromkeys(one.paper for one in same if one.paper))
        names = ", ".join(f"`{one.name}`" for one in same)
        rows.append((names, does.replace("|", "\\|"), same[0].kind, same[0].cost, papers))
    return table(("name", "is", "kind", "cost", "paper"), rows)


def models() -> str:
    """Models with their numbers of parameters as built, beside those that are published."""
    rows = map(describe_model, steppe.nn.MODELS)
    cells = ((f"`{r['name']}`", f"{r['parameters']:,}", r["paper"], r["published"] or "none") for r in rows)
    return table(("name", "parameters", "source", "published number"), cells)


def data() -> str:
    """Data sets, and where `steppe data get` puts their files or readers look for them first."""
    rows = []
    for name, one in steppe.data.DATASETS.items():
        places = [f"`{place}`" for layout in one.layouts for place in layout.places[:1]]
        where = ", ".join(places).replace("`.`", "the root") or "part of steppe, or generated"
        shape = " x ".join(map(str, one.shape))
        counts = " + ".join(f"{count:,}" for count in one.rows or ())
        rows.append((f"`{name}`", one.title, counts, shape, str(one.classes or ""), where))
    rows += [(f"`{form}`", text, "", "", "", "PATH") for form, text in OWN.items()]
    return table(("name", "what it is", "rows", "shape", "classes", "location under `--data-root`"), rows)


def loggers() -> str:
    """Loggers, and what to install for them."""
    rows = ((f"`{n}`", one.does, f"`{install_line(one.extra)}`" if one.extra else "") for n, one in LOGGERS.items())
    return table(("name", "store", "install"), [*rows, ("`package.module:factory`", "your own", "")])


def verdicts() -> str:
    """The lowest and the highest row of every column that has a bar, of the latest simulation of studies' verdicts."""
    *_, record = sorted((ROOT / "benchmarks/results").glob("verdicts_cpu_*.md"))
    bars = {
        "any false verdict, %": ("studies with any false verdict", "at most 5 %"),
        "covered at 0, %": ("intervals that cover a true tau of 0", "95 %"),
        "covered there, %": ("intervals that cover a true tau of about 0.5", "95 %"),
        "covered, %": ("intervals that cover the true difference", "95 %"),
        'says "predicts", %': ("`predicts` at the smallest detectable tau", "80 %"),
    }
    rows = []
    for section in record.read_text(encoding="utf-8").split("\n## ")[1:]:
        heads, _, *lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
        for number, head in enumerate(heads):
            if head in bars:
                cells = sorted((line[number].strip("*† ") for line in lines), key=lambda cell: float(cell.split()[0]))
                part = section.partition("\n")[0].split(" (")[0].split(" at ")[0]
                rows.append((part, *bars[head], str(len(lines)), f"{cells[0]} to {cells[-1]}"))
    return table(("part", "share", "stated", "designs", "simulated, %"), rows)


def answer(name: str) -> str:
    """What a comparison says, from its record."""
    current = Record(ROOT / "docs/comparisons" / name / NAME).current
    assert current is not None
    sentences = (re.sub(r"--[a-z]+ \d+", r"`\g<0>`", sentence) for sentence in result_of(current).sentences)
    return "\n>\n".join(f"> {sentence}" for sentence in sentences) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods,
    "captured": captured,
    "measures": measures,
    "models": models,
    "data": data,
    "loggers": loggers,
    "verdicts": verdicts,
    **{f.stem: partial(answer, f.stem) for f in sorted((ROOT / "docs/comparisons").glob("*.yaml"))},
}


def stub() -> str:
    """The signatures of `steppe.sam`, `steppe.asam` and so on, for type checkers and editors."""
    lines = [
        "# written by docs/tables.py from the registrations of the methods",
        "from collections.abc import Callable, Mapping",
        "from typing import Any, Literal",
        "",
        "from torch import nn",
        "from torch.optim import SGD, Optimizer",
        "from torch.optim.optimizer import ParamsT",
        "",
        "from ..core.ball import Ascent",
        "from ..core.probe import Method",
        "from ..core.triple import Triple",
        "from .engine import SharpnessAware",
        "",
        "def optimizer(",
        "    params: ParamsT,",
        "    base: Callable[..., Optimizer] | str = SGD,",
        '    method: str | Method = "sam",',
        "    options: dict[str, Any] | None = None,",
        "    **more: Any,",
        ") -> SharpnessAware: ...",
    ]
    for _, registered in sorted(steppe.METHODS.items()):
        parts, starred = [], False
        for p in signature_of(registered).parameters.values():
            parts += ["*"] if p.kind is p.KEYWORD_ONLY and not starred else []
            starred |= p.kind is p.KEYWORD_ONLY
            parts.append(
                f"{p.name}: {spelled(p.annotation)}" + ("" if p.default is p.empty else f" = {quoted(p.default)}")
            )
        lines += [f"def {function_name(registered)}(", *(f"    {part}," for part in parts), ") -> SharpnessAware: ..."]
    return "\n".join([*lines, ""])


def quoted(default: Any) -> str:
    return json.dumps(default) if isinstance(default, str) else repr(default)


def spelled(annotation: Any) -> str:
    """A type as it is written in the stub."""
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(spelled, get_args(annotation)))
    if isinstance(annotation, type) and not get_args(annotation):
        return {"NoneType": "None", "Module": "nn.Module"}.get(annotation.__name__, annotation.__name__)
    return str(annotation).replace("typing.", "").replace("collections.abc.", "").replace("'", '"')


def current(page: Path) -> str:
    """The page with its tables as they are made now."""

    def fresh(found: re.Match[str]) -> str:
        return f"<!-- {found[1]}: docs/tables.py -->\n\n{TABLES[found[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- ([\w-]+): docs/tables.py -->\n.*?<!-- end -->", fresh, page.read_text(), flags=re.DOTALL)


if __name__ == "__main__":
    STUB.write_text(stub())
    for page in PAGES:
        (ROOT / page).write_text(current(ROOT / page))
