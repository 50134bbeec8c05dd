"""Every code block of every page runs, in the order of the page, in one folder per page, on small data.

Networks, rows and epochs are reduced when configurations and studies are created, so blocks run as they are printed.
A block that needs minutes or a GPU starts with `# not run in the tests: why`. A block whose first line is a file name,
such as `# run.yaml`, is written to that file.
"""

from __future__ import annotations

import re
import shlex
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import interval_sam
import one_pass_scaler
import pytest
import torch
import two_call_sam
from data_files import write_cifar_binary
from safetensors.torch import save_file
from tiers import slow_unless

import steppe
from steppe.cli import main
from steppe.cli.landscape import Look
from steppe.cli.subjects import On
from steppe.ensembles.strategies import Ensemble
from steppe.measures.combinators import OnData
from steppe.measures.worst_case import WorstCase
from steppe.nn import build
from steppe.studies.grid import defaults
from steppe.studies.plan import Study, digits
from steppe.studies.run import run
from steppe.training.config import Config
from steppe.training.loggers import LOGGERS
from steppe_papers.figures import Protocol

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
MARK = re.compile(r"(?:#!.*\n)?# not run in the tests: \S.+")
LONG = {"commands.md", "ensembles.md"}  # their commands are tested one by one too
NOT_RUN = {
    "README.md": 1,
    "CONTRIBUTING.md": 2,
    "integrations.md": 10,
    "llm.md": 1,
    "compare.md": 6,
    "speed.md": 1,
    "studies.md": 2,
}  # number of marked blocks per page
NARROW = 2  # width of the ResNets that replace those of the pages
SHOWN = ("text", "diff")  # output, and changes: test_readme runs CONTRIBUTING's diff


class Block(NamedTuple):
    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        found = re.match(r"# ([\w-]+\.(?:py|yaml))\n", self.text)
        return found[1] if found else None

    @property
    def marked(self) -> bool:
        return bool(MARK.match(self.text))


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [Block(b[1], b[2], text.count("\n", 0, b.start()) + 1) for b in found]


# small data


def cut(given: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce a study to MLPs, two values of one setting of its grid, one value of the others, and no plots."""
    grid, two = {}, 2
    for name, values in given.get("grid", {}).items():
        grid[name] = values[:two] if isinstance(values, list) else two  # a number of fresh seeds
        two = 1
    measures = given.get("measures", ["loss"])
    few = dict(list(measures.items())[:1]) if isinstance(measures, Mapping) else measures[:1]
    base = {**given.get("base", {}), "model": "mlp", "model_options": {"width": 8, "depth": 1}}
    return {**given, "base": base, "grid": grid, "measures": few, "show": [], "engine": "serial", "admission": []}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for ensemble in (False, True):
        defaults(ensemble=ensemble)  # they are cached: the reduced ones would stay

    def at_most(settings: type, limits: Mapping[str, Any]) -> None:
        check = settings.__init__  # type: ignore[misc]

        def check_and_cut(self: Any, *args: Any, **values: Any) -> None:
            check(self, *args, **values)  # the printed value is valid
            for name, limit in limits.items():
                value = getattr(self, name)
                if value and (isinstance(limit, list) or value > limit):
                    object.__setattr__(self, name, limit)
            if getattr(self, "model", None) == "resnet18":
                object.__setattr__(self, "model_options", {"width": NARROW})

        monkeypatch.setattr(settings, "__init__", check_and_cut)

    runs = {"epochs": 2, "fraction": 0.1, "batch_size": 20, "measure_rows": 4, "evaluate_every": 2}
    at_most(Config, runs | {"corruptions": ["contrast"], "severities": [1]})
    at_most(Ensemble, {"members": 2})
    at_most(On, {"rows": 4, "batch": 4})
    at_most(OnData, {"count": 10})
    at_most(WorstCase, {"steps": 4})
    at_most(Look, {"points": 3})
    at_most(Protocol, {"matrices": 2})
    of = Study.of.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(Study, "of", classmethod(lambda cls, given, name, *budget: of(cls, cut(given), name, *budget)))


@pytest.fixture(scope="session")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that pages assume: images and a file of weights."""
    folder = tmp_path_factory.mktemp("stock")
    write_cifar_binary(folder / "data" / "cifar-10-batches-bin", "cifar10", rows=40)
    torch.manual_seed(0)
    save_file(build("resnet18", (3, 32, 32), 10, width=NARROW).state_dict(), folder / "weights.safetensors")
    return folder


@pytest.fixture
def here(stock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: None) -> Iterator[Path]:
    shutil.copytree(stock, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "nets", raising=False)  # another test may have a module of this name
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == tmp_path:
            del sys.modules[name]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


# running blocks


def run_shell(text: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["torchrun"]:
            assert words[1:5] == ["--no-python", "--nproc-per-node", "2", "steppe"]
            words = words[4:]  # one process: tests/distributed has several
        if words:
            assert words[0] == "steppe", f"{place}: {line}: mark the block, or run steppe"
            code = main(words[1:])
            assert code == 0, f"{place}: {line}\n{capsys.readouterr().err}"


@pytest.fixture(autouse=True)
def own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page registers ends with its test."""
    registries: list[Any] = [steppe.METHODS, steppe.MEASURES, steppe.data.DATASETS, steppe.nn.MODELS, LOGGERS]
    for registry in registries:
        list(registry)  # loads it
        for name in ("_parts", "_homes"):
            monkeypatch.setattr(registry, name, dict(getattr(registry, name)))


@pytest.mark.parametrize("page", slow_unless(lambda p: p.name not in LONG, PAGES), ids=lambda p: p.name)
def test_every_block_runs(
    page: Path, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if page.name == "guides.md" and torch.__version__ < (2, 7):
        pytest.skip("it has a model in FSDP2, which does not work on a CPU before torch 2.7")
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "__main__"}
    found = [b for b in blocks(page) if b.language not in SHOWN]
    for block in found:
        if block.file:
            (here / block.file).write_text(block.text)
    if page.name == "report.md":
        run(digits(), progress=False)
    if page.name == "guides.md":  # what torchrun sets for one process
        torchrun = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
        for name, value in torchrun.items():
            monkeypatch.setenv(name, value)
    with warnings.catch_warnings():
        if page.name == "coming_from.md":
            pytest.importorskip("pytorch_optimizer", reason="an earlier .venv: `make test` installs it")
            monkeypatch.setitem(sys.modules, "sam", two_call_sam)
            for name in ("composer", "composer.algorithms", "composer.algorithms.sam"):
                monkeypatch.setitem(sys.modules, name, interval_sam)
            for name in ("timm", "timm.utils"):
                monkeypatch.setitem(sys.modules, name, one_pass_scaler)
            warnings.simplefilter("ignore")  # of the other libraries
        warnings.filterwarnings("ignore", message="cifar10 under data has")  # far fewer rows than published
        for block in found:
            place = f"{page.name}:{block.line}"
            if block.marked:
                continue
            if block.language == "python":
                exec(compile(block.text, place, "exec"), names)
            elif block.language == "sh":
                run_shell(block.text, place, capsys)
            else:
                assert block.language == "yaml", f"{place}: the language of a block is python, sh, yaml, text or diff"
                assert block.file, f"{place}: a YAML block starts with the name of its file"


def test_only_blocks_that_cannot_run_are_marked_and_none_is_skipped() -> None:
    marked = {page.name: sum(b.marked for b in blocks(page)) for page in PAGES}
    assert {name: n for name, n in marked.items() if n} == NOT_RUN
    assert sum(len(blocks(page)) for page in PAGES) > 25
    for page in PAGES:
        assert page.read_text().count("\n```") == 2 * len(blocks(page)), page  # the pattern matches every block


def test_what_marked_blocks_name_exists() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.marked:
                targets = re.findall(r"^make ([\w-]+)", block.text, flags=re.MULTILINE)
                files = re.findall(r"\b(?:tests|benchmarks)/[\w/]+\.py\b", block.text)
                assert targets or files, f"{page.name}:{block.line}"
                assert all((ROOT / file).exists() for file in files), files
                for target in targets:
                    words = ["make", "--dry-run", "--always-make", target]
                    assert subprocess.run(words, cwd=ROOT, capture_output=True, check=False).returncode == 0, target
