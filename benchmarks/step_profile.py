"""What a reader of one SAM step has to go through: calls, files and changes of file, beside the size of the source.

Takes one `opt.step(closure)` of SAM around SGD on the CPU, on an MLP with one hidden layer and BatchNorm, after five
steps of warm-up, and records the Python calls of functions that lie in steppe (a generator that goes on is a call). A
change of file is a call in another file than the call before it; the first call, from the caller's file, is one.

The rest is read from the source without running it. The longest import chain goes from the module that defines
`SharpnessAware` along imports at the top of modules. Private torch names are dotted names from `torch` with a leading
underscore in some part, and private attributes, other than of `self`, that modules or optimizers have, or that
occur in the source of torch and in no class of steppe.

    PYTHONPATH=src python benchmarks/step_profile.py [--names]
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import sys
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from types import FrameType

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import Optimizer

import steppe

WARM_UP = 5


def step_calls(root: Path) -> list[str]:
    """The file, below `root`, of every call of one SAM step, in their order."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = steppe.SharpnessAware(base, steppe.SAM(rho=0.05), model=model)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    for _ in range(WARM_UP):
        opt.step(closure)
    prefix, files = f"{root}/", []

    def note(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            files.append(frame.f_code.co_filename.removeprefix(prefix))

    sys.setprofile(note)
    try:
        opt.step(closure)
    finally:
        sys.setprofile(None)
    return files


def changes(files: list[str]) -> int:
    return sum(a != b for a, b in pairwise(["", *files]))


def sources(root: Path) -> dict[str, Path]:
    """The files of a package by the names of their modules."""
    names = {f: ".".join([root.name, *f.relative_to(root).with_suffix("").parts]) for f in sorted(root.rglob("*.py"))}
    return {name.removesuffix(".__init__"): f for f, name in names.items()}


def imports(module: str, files: Mapping[str, Path]) -> set[str]:
    """The modules of the package that a module imports at its top."""
    imported: set[str] = set()
    package = module if files[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.parse(files[module].read_text()).body:
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            target = ".".join([*above, *([node.module] if node.module else [])])
            imported |= {m for a in node.names for m in (target, f"{target}.{a.name}") if m in files}
        elif isinstance(node, ast.Import):
            imported |= {a.name for a in node.names if a.name in files}
    return imported - {module}


def longest_chain(start: str, files: Mapping[str, Path]) -> list[str]:
    """The modules along the deepest path of imports from `start`; a cycle of imports is an error."""
    graph = {m: imports(m, files) for m in files}
    chains: dict[str, list[str]] = {}
    for module in TopologicalSorter(graph).static_order():
        chains[module] = [module, *max((chains[m] for m in sorted(graph[module])), key=len, default=[])]
    return chains[start]


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _imported(tree: ast.Module) -> dict[str, str]:
    """What names of other packages stand for in a module."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {a.asname or a.name.partition(".")[0]: a.name if a.asname else a.name.partition(".")[0]
                      for a in node.names}  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return names


def _defined(tree: ast.Module) -> Iterator[str]:
    """The attributes that classes of a module define: methods, fields, and what methods assign to `self`."""
    for cls in ast.walk(tree):
        for node in ast.walk(cls) if isinstance(cls, ast.ClassDef) else ():
            match node:
                case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                    yield name
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    yield name


def _reached(tree: ast.Module, imported: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Attributes in a module: what they are reached from ("" where that is unknown) and their dotted names."""
    yield from ((name, name) for name in imported.values())
    for node in ast.walk(tree):
        match node:
            case ast.Attribute():
                parts, value = [node.attr], node.value
                while isinstance(value, ast.Attribute):
                    parts, value = [value.attr, *parts], value.value
                first = value.id if isinstance(value, ast.Name) else ""
                if first in imported:
                    yield imported[first], ".".join([imported[first], *parts])
                elif first not in ("self", "cls") or len(parts) > 1:
                    yield "", parts[-1]
            case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, ast.Constant(str(name)), *_]):
                yield "", name
            case ast.Call(func=ast.Name(id="attrgetter"), args=[ast.Constant(str(name))]):
                yield "", name


def private_torch_names(files: Mapping[str, Path]) -> list[str]:
    """Private names of torch that the source uses, each once and in its longest form."""
    trees = [ast.parse(f.read_text()) for f in files.values()]
    own = {name for tree in trees for name in _defined(tree)} - {*dir(nn.Module()), *dir(Optimizer)}
    dotted, attributes = set(), set()
    for tree in trees:
        for start, name in _reached(tree, _imported(tree)):
            if start.partition(".")[0] == "torch" and any(map(is_private, name.split("."))):
                dotted.add(name)
            elif not start and is_private(name) and name not in own:
                attributes.add(name)
    longest = {name for name in dotted if not any(other.startswith(f"{name}.") for other in dotted)}
    attributes -= {part for name in longest for part in name.split(".")}
    return sorted(longest) + sorted(attributes & _words_of_torch())


def _words_of_torch() -> set[str]:
    """Every word with a leading underscore in the Python source of torch."""
    texts = (f.read_text(errors="ignore") for f in Path(torch.__file__).parent.rglob("*.py*") if f.suffix != ".pyc")
    return {word for text in texts for word in re.findall(r"\b_[a-zA-Z]\w*", text)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true", help="also list the import chain and the private torch names")
    options = parser.parse_args()
    torch.set_num_threads(1)
    root = Path(steppe.__file__).parent
    files = sources(root)
    calls, lines = step_calls(root), {f: len(f.read_text().splitlines()) for f in files.values()}
    chain = longest_chain(steppe.SharpnessAware.__module__, files)
    largest = max(lines, key=lambda f: lines[f])
    private = private_torch_names(files)
    loose = [f for f in files.values() if f.parent == root and f.stem not in ("__init__", "__main__")]
    rows = {
        "calls of a CPU SAM step": len(calls),
        "files that it touches": len(set(calls)),
        "changes of file": changes(calls),
        "longest import chain, modules": len(chain),
        "modules at the root": len(loose),
        "files": len(files),
        "lines": sum(lines.values()),
        "median file, lines": f"{statistics.median(lines.values()):g}",
        "largest file, lines": f"{lines[largest]} ({largest.relative_to(root).as_posix()})",
        "private torch names": len(private),
    }
    print("| what | number |\n|---|---|")
    for what, number in rows.items():
        print(f"| {what} | {number} |")
    print("\nFiles of the step, with their calls:", ", ".join(f"{f} {calls.count(f)}" for f in dict.fromkeys(calls)))
    if options.names:
        print("\nImport chain:", " > ".join(chain))
        print("\nPrivate torch names:", ", ".join(private))


if __name__ == "__main__":
    main()
