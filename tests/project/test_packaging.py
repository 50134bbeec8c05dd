"""What is said twice of the packages is the same: in pyproject.toml, the conda recipe, CITATION.cff, the changelog."""

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

import steppe

ROOT = Path(__file__).resolve().parents[2]
OF_CONDA = {"torch": "pytorch"}


def project(folder: str = "") -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))


def recipe() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "conda/recipe.yaml").read_text(encoding="utf-8"))


def outputs() -> dict[str, dict[str, Any]]:
    return {output["package"]["name"]: output for output in recipe()["outputs"]}


def conda_names(requirements: list[str]) -> set[str]:
    """Requirements of pip as conda writes them: other names, and a space before the version."""
    parts = [re.fullmatch(r"([^<>=]+)(.*)", requirement).groups() for requirement in requirements]  # type: ignore[union-attr]
    return {f"{OF_CONDA.get(name, name)} {version}" for name, version in parts}


def test_one_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    papers = (ROOT / "papers/src/steppe_papers/__init__.py").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    [of_papers] = re.findall(r'^__version__ = "(.+)"$', papers, re.M)
    newest = re.findall(r"^## \[(.+?)\]", changelog, re.M)[0]
    assert {recipe()["context"]["version"], citation, of_papers, newest} == {steppe.__version__}


def test_conda_has_the_requirements_of_pip() -> None:
    ours, python = project()["project"], "python >=${{ python_min }}"
    run = {name: set(output["requirements"]["run"]) for name, output in outputs().items()}
    assert run["steppe"] == {python} | conda_names(ours["dependencies"])
    train, (_, *study) = (ours["optional-dependencies"][extra] for extra in ("train", "study"))
    version = "==${{ version }}"
    assert run["steppe-study"] == {f"steppe {version}"} | conda_names(train + study)
    assert project("papers")["project"]["dependencies"] == ["steppe[study]"]
    assert run["steppe-papers"] == {python, f"steppe-study {version}"}


def test_conda_builds_as_pip_does() -> None:
    for name, folder in {"steppe": "", "steppe-papers": "papers"}.items():
        about, host = project(folder), set(outputs()[name]["requirements"]["host"])
        assert host == {"python ${{ python_min }}.*", "pip"} | conda_names(about["build-system"]["requires"])
        assert outputs()[name]["about"]["summary"] == about["project"]["description"]
    variants = yaml.safe_load((ROOT / "conda/variants.yaml").read_text(encoding="utf-8"))
    assert [f">={oldest}" for oldest in variants["python_min"]] == [project()["project"]["requires-python"]]
    scripts = [f"{name} = {entry}" for name, entry in project()["project"]["scripts"].items()]
    assert outputs()["steppe"]["build"]["python"]["entry_points"] == scripts


def test_both_packages_name_their_licence_and_pythons() -> None:
    ours, papers = project()["project"], project("papers")["project"]
    for field in ("license", "license-files", "authors", "requires-python"):
        assert ours[field] == papers[field]
    pythons = [{c for c in about["classifiers"] if "Python ::" in c} for about in (ours, papers)]
    assert pythons[0] == pythons[1]
    assert (ROOT / "LICENSE").read_bytes() == (ROOT / "papers/LICENSE").read_bytes()
