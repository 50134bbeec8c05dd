"""Registries: parts by name, with those of installed packages, and without code of the working folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from steppe._util.registry import PLUGINS, Registry

MODULE = "from steppe_test_doors import PARTS\nPARTS.add('theirs', 2, __name__)\n"


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Registry[int]:
    doors = type(sys)("steppe_test_doors")
    registry: Registry[int] = Registry("number", "steppe.test_numbers")
    registry.add("ours", 1, "steppe")
    doors.PARTS = registry  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "steppe_test_doors", doors)
    return registry


def package(folder: Path, name: str) -> None:
    """A package with a plugin, as an installation leaves it."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(MODULE)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[steppe.test_numbers]\n{name} = {name}\n")


def test_an_installed_package_adds_its_parts(
    parts: Registry[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path / "context", "steppe_test_installed")
    monkeypatch.syspath_prepend(tmp_path / "context")
    assert dict(parts) == {"ours": 1, "theirs": 2}


def test_a_package_in_the_working_folder_adds_nothing(
    parts: Registry[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "steppe_test_received")
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m steppe` has it
    monkeypatch.chdir(tmp_path)
    assert dict(parts) == {"ours": 1}


def test_a_variable_names_modules_where_nothing_is_installed(
    parts: Registry[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steppe_test_named.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PLUGINS, "steppe_test_named")
    assert parts["theirs"] == 2


def test_a_package_may_have_a_module_for_each_kind(
    parts: Registry[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steppe_test_package").mkdir()
    (tmp_path / "steppe_test_package" / "__init__.py").touch()
    (tmp_path / "steppe_test_package" / "test_numbers.py").write_text(MODULE)
    (tmp_path / "steppe_test_package" / "others.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PLUGINS, "steppe_test_package")
    assert dict(parts) == {"ours": 1, "theirs": 2}


def test_a_name_is_registered_once(parts: Registry[int]) -> None:
    parts.add("ours", 1, "steppe")  # imported again
    with pytest.raises(ValueError, match="theirs registers the number 'ours', which steppe has registered"):
        parts.add("ours", 3, "theirs")
    with pytest.raises(KeyError, match=r"there is no number 'our'\. Did you mean 'ours'"):
        parts["our"]
