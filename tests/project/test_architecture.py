"""Habits of the code base that a reviewer would otherwise have to remember."""

from __future__ import annotations

import ast
import inspect
import re
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

import steppe

ROOT = Path(steppe.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MODULES = {".".join(f.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): f for f in FILES}

PUBLIC = {  # a snapshot: removing or renaming one breaks somebody's script
    "ASAM", "AgnosticSAM", "Ball", "DETERMINANT", "DETERMINANT_RELEASED", "DetSAM", "Draw", "DynamicSparseSAM",
    "FriendlySAM", "SAMPa", "VaSSO", "WSAM", "BSAM", "AdamAscentSAM",
    "ESAM", "Elementwise", "Estimate", "Every", "FROBENIUS", "Filterwise", "FisherSparseSAM", "FrobSAM", "GSAM",
    "Hypercube", "LogUniform", "LookSAM", "MEASURES", "METHODS", "Measure", "Method", "MomentumSAM", "NormLayersOnly",
    "Objective", "PerPart", "PerWorker", "Plain", "Plan", "PointMass", "Probe", "RSAM", "RadiusFollowsLR", "Reading",
    "SAM", "SAMON", "SASAM", "SASGD", "SharpBalance", "SharpnessAware", "Space", "TRACE", "TraceSAM", "Triple",
    "UniversalSAM", "Vector", "build", "capture", "compare", "contiguous_", "exponential", "gaussian", "measure",
    "method", "objective", "optimizer", "rademacher", "register", "sphere",
    # one for each method, which wraps an optimizer
    "agnostic_sam", "agnostic_sam_simple", "asam", "det_sam", "esam", "frob_sam", "gsam", "looksam", "m_sam", "msam",
    "none", "rsam", "sa_sam", "sa_sgd", "sam", "sam_on", "sharpbalance", "ssam_d", "ssam_f", "trace_sam",
    "universal_sam", "friendly_sam", "sampa", "vasso", "wsam", "bsam", "adam_ascent_sam",
}  # fmt: skip

PUBLIC_MEASURES = {
    "AutoPGD", "AverageCase", "AverageLimit", "Cost", "Curvature", "CurvatureLimit", "DEFINITIONS", "Dense", "Density",
    "Direction", "Eigenvalue", "Estimate", "FILTERS", "FisherTrace", "FrobeniusSquared", "GradientNorm", "LAYERS",
    "FisherInputCorrelation", "InputCurvature",
    "LogDeterminant", "Loss", "MEASURES", "Measure", "NormalisedLogits", "NotFinite", "Objective", "OnNormalisedLogits",
    "OnData", "OneStep", "Path", "PerBatch", "PowerAscent", "ProjectedAscent", "RADII", "RelativeFlatness", "Results",
    "SecondOrder", "ShiftedLogDeterminant", "Slice", "SlopeLimit", "AscentResult", "Sweep", "Trace", "UNSCALED",
    "WorstCase",
    "ZerothOrder", "box", "diagonal", "distance", "eigenvectors", "figure", "fisher_traces",
    "gauss_newton", "input_curvatures", "empirical_fisher",
    "hessian", "hutchinson",
    "measure", "measure_by_name", "path", "random_direction", "random_plane", "register", "share", "slice_1d",
    "slice_2d", "slice_along", "spectral_density", "towards", "write_html",
}  # fmt: skip


def imports(module: str) -> set[str]:
    """The modules of the package that a module imports when it is itself imported."""
    found: set[str] = set()
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.parse(MODULES[module].read_text()).body:
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            target = ".".join([*above, *([node.module] if node.module else [])])
            found |= {m for a in node.names for m in (target, f"{target}.{a.name}") if m in MODULES}
        elif isinstance(node, ast.Import):
            found |= {a.name for a in node.names if a.name in MODULES}
    return found - {module}


def test_public_names_are_these() -> None:
    names = [n for n in dir(steppe) if not n.startswith("_") and not isinstance(getattr(steppe, n), ModuleType)]
    assert set(names) == PUBLIC
    listed = [n for n in dir(steppe.measures) if not n.startswith("_")]
    names = [n for n in listed if not isinstance(getattr(steppe.measures, n), ModuleType)]
    assert set(names) == PUBLIC_MEASURES


def test_no_package_offers_a_name_that_is_one_of_its_modules() -> None:
    """An import of such a module puts it in the name's place, and `from package import name` has the module."""
    stubs = sorted(ROOT.rglob("__init__.pyi"))
    assert len(stubs) > 5
    for stub in stubs:
        package = ".".join(stub.parent.relative_to(ROOT.parent).parts)
        lines = [n for n in ast.parse(stub.read_text()).body if isinstance(n, ast.ImportFrom)]
        taken = {a.name for line in lines if line.module for a in line.names if f"{package}.{a.name}" in MODULES}
        assert not taken, package


def test_foreach_is_called_in_one_module() -> None:
    spellers = {f.relative_to(ROOT).as_posix() for f in FILES if "torch._foreach" in f.read_text()}
    assert spellers == {"core/vector.py"}


@pytest.mark.parametrize("word", [".item()", ".tolist()", ".numpy()", ".cpu()"])
def test_no_step_waits_for_the_device(word: str) -> None:
    """What is read on the host is made on the host: such tensors are named below, with nothing else."""
    # draws of a CPU generator; which rows of a mask are set; the Lanczos basis, which no step has
    on_the_host = {".tolist()": {"esam.py", "basis.py"}, ".cpu()": {"rows.py", "basis.py"}}
    files = [f for folder in ("core", "methods", "optim") for f in (ROOT / folder).glob("*.py")]
    waiting = {f.name for f in files if word in f.read_text()}
    assert waiting <= on_the_host.get(word, set())


LAYERS = (
    "_util", "core", "methods", "optim", "cuda", "data", "nn", "measures", "training", "ensembles", "studies",
    "comparison", "integrations", "testing", "cli", "extend",
)  # fmt: skip


def all_imports(module: str) -> set[str]:
    """The packages of steppe that a module imports at any time, in functions too."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            target = [*above, *(node.module.split(".") if node.module else [])]
            found |= {target[1]} if len(target) > 1 else {a.name for a in node.names}
    return found & set(LAYERS)


def test_imports_point_down() -> None:
    """From one layer to those before it, when a module is imported and later; without cycles within a layer."""
    graph = {m: imports(m) for m in MODULES if m != "steppe"}
    assert any(graph.values())  # the reader above found something
    list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert {f.parent.name for f in ROOT.glob("*/__init__.py")} == set(LAYERS)
    for module in MODULES:
        layer = module.split(".")[1] if "." in module else None
        if layer in LAYERS:
            above = LAYERS[LAYERS.index(layer) + 1 :]
            assert not all_imports(module) & set(above), module


def test_no_module_stands_alone_at_the_root() -> None:
    assert {f.name for f in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_nothing_concrete_is_inherited_from() -> None:
    """Classes of the package are abstract (a Protocol) or final."""
    heirs = []
    for module in MODULES:
        for node in ast.walk(ast.parse(MODULES[module].read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            try:
                home = __import__(module, fromlist=["_"])
            except ModuleNotFoundError:  # an integration whose extra is not installed
                if module.startswith("steppe.integrations."):
                    continue
                raise
            cls = getattr(home, node.name, None)
            for base in cls.__bases__ if inspect.isclass(cls) else ():
                if base.__module__.startswith("steppe") and not getattr(base, "_is_protocol", False):
                    heirs.append(f"{module}.{node.name}({base.__name__})")
    assert not heirs


def test_files_read_in_one_sitting() -> None:
    long = {f.relative_to(ROOT).as_posix(): n for f in FILES if (n := len(f.read_text().splitlines())) > 400}
    assert not long


@pytest.mark.parametrize("name", sorted(steppe.METHODS))
def test_every_method_says_where_it_comes_from(name: str) -> None:
    """A year or a paper in the docstring or beside the defaults of its class, its function or its file."""
    method = steppe.method(name)
    sources = [inspect.getsource(type(method)), inspect.getsource(steppe.METHODS[name].make)]
    sources.append(inspect.getmodule(type(method)).__doc__ or "")
    assert type(method).__doc__
    if name != "none":
        assert re.search(r"\b20\d\d\b|paper|[Ss]ection|Algorithm", "\n".join(sources))


@pytest.mark.parametrize("name", sorted(steppe.METHODS))
def test_every_method_is_buildable_by_its_defaults(name: str) -> None:
    """And keeps the protocol: options, slots."""
    method = steppe.method(name)
    assert all(isinstance(k, str) for k in method.options())
    assert isinstance(method.slots, tuple)
