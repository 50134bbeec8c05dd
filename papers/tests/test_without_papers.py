"""Without steppe-papers its commands say how to install it, and with it they are commands like the others."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import steppe
from steppe.cli.entry import ELSEWHERE

SOURCE = Path(steppe.__file__).parents[1]


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """An environment in which no package adds to steppe, and in which steppe-papers cannot be imported."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata as m\n"
        "import sys\n"
        "all_of = m.entry_points\n"
        "class Fewer:\n"
        "    def select(self, **k):\n"
        "        return [] if str(k.get('group')).startswith('steppe.') else all_of(**k)\n"
        "m.entry_points = lambda **k: Fewer().select(**k) if k else Fewer()\n"
        "sys.modules['steppe_papers'] = None\n"  # an import raises ModuleNotFoundError
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("STEPPE_PLUGINS", "PYTHONSAFEPATH")}
    return environment | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(SOURCE)])}


def steppe_says(environment: dict[str, str], *words: str, code: int = 0) -> str:
    line = [sys.executable, "-m", "steppe", *words]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_the_help_and_one_error_say_what_to_install(alone: dict[str, str]) -> None:
    page = steppe_says(alone, "--help")
    for name in ELSEWHERE:
        assert re.search(rf"^  {name} +\(pip install steppe-papers\)$", page, re.MULTILINE)
        said = steppe_says(alone, name, code=1)
        assert said == f"steppe: `steppe {name}` is a command of steppe-papers: pip install steppe-papers\n"
    assert "Did you mean 'reproduce'" in steppe_says(alone, "reproduc", code=2)


def test_it_is_hidden_there(alone: dict[str, str]) -> None:
    line = [sys.executable, "-c", "import steppe_papers"]
    assert "ModuleNotFoundError" in subprocess.run(line, env=alone, capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize(("words", "shown"), [("theory", "wishart-moments"), ("reproduce --list", "agnostic/table4")])
def test_with_it_they_work(words: str, shown: str) -> None:
    """Through the entry points of the installed package."""
    assert shown in steppe_says(dict(os.environ), *words.split())


def test_no_other_command_needs_it(alone: dict[str, str]) -> None:
    assert "sam" in steppe_says(alone, "methods")
    assert "cifar10" in steppe_says(alone, "data", "list")


def test_corruptions_of_the_papers_say_where_they_come_from(alone: dict[str, str], tmp_path: Path) -> None:
    words = ["--data", "digits", "--corruptions", "fog", "--device", "cpu", "--out", str(tmp_path / "run")]
    said = steppe_says(alone, "train", *words, code=1)
    assert "there is no corruption 'fog'" in said
    assert "pip install steppe-papers" in said
    assert not (tmp_path / "run").exists()


def test_data_sets_of_the_papers_say_where_they_come_from(alone: dict[str, str]) -> None:
    said = steppe_says(alone, "train", "--data", "flowers102", code=2)
    assert "there is no data set 'flowers102'" in said
    assert "(flowers102, stanford-cars, oxford-pets, sparse-regression, ...) come with steppe-papers" in said


def test_a_command_of_another_package_is_one_of_steppe(alone: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "of_mine.py").write_text(
        "from steppe.extend import Output, command\n"
        "@command('greet')\n"
        "def greet() -> Output:\n"
        '    """Greet."""\n'
        "    return Output({'said': 'hello'}, ['hello'])\n"
    )
    environment = alone | {"STEPPE_PLUGINS": "of_mine"}
    assert re.search(r"^  greet +Greet\.$", steppe_says(environment, "--help"), re.MULTILINE)
    assert steppe_says(environment, "greet") == "hello\n"
    # a module of its own: one rewritten within a second, at the same length, may be read from its old bytecode
    (tmp_path / "of_yours.py").write_text((tmp_path / "of_mine.py").read_text().replace("'greet'", "'train'"))
    taken = alone | {"STEPPE_PLUGINS": "of_yours"}
    assert "registers the command 'train'" in steppe_says(taken, "train", "--dry-run", code=1)
