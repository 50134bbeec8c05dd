"""Builds both sdists, the wheels from them, and uses these in an empty environment: `make test-wheel`.

    python3 tests/check_wheel.py --folder FOLDER

First without extras: README's code, listings, and every other command, which names the extra that it needs. Then
with `steppe[study]`: the commands and the built-in study. Then with steppe-papers: its commands. At last the examples
that need other packages. Needs the standard library only.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from shutil import copy, rmtree

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LATER = (  # examples that need packages beyond `study`
    "compare_lightning.py",
    "compare_optuna_points.py",
    "compare_transformers.py",
    "kfac_of_curvlinops.py",
    "llm_lora.py",
    "optuna_rho.py",
    "ray_rho.py",
)
EXTRA_OF = dict.fromkeys(("compare", "landscape", "study", "report"), "study")  # other commands: train
NO_EXTRA = ("methods", "measures", "models", "doctor")
PAPERS = ("reproduce", "theory")  # commands of steppe-papers
LIMIT = 3600  # seconds for one command; the built-in study takes 80 on two idle cores


class Environment:
    """A virtual environment, and an empty folder in which its programs run without any path to the source."""

    def __init__(self, folder: Path, python: str) -> None:
        self.bin, self.place = folder / "venv/bin", folder / "empty"
        for old in (folder / "venv", self.place):
            rmtree(old, ignore_errors=True)
        self.place.mkdir(parents=True)
        check([python, "-m", "venv", folder / "venv"], "an empty environment")

    def install(self, *wanted: str) -> None:
        words = [self.bin / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        check([*words, "-c", ROOT / "constraints.txt", *wanted], f"pip install {' '.join(map(short, wanted))}")

    def steppe(self, words: str, code: int = 0) -> str:
        return check([self.bin / "steppe", *words.split()], f"steppe {words}", cwd=self.place, code=code)

    def python(self, file: Path, name: str) -> str:
        copy(file, self.place / "script.py")
        return check([self.bin / "python", "-W", "error", "script.py"], name, cwd=self.place)


def short(wanted: str) -> str:
    return re.sub(r"^.*/(steppe(?:_papers)?)-[^\[]*", r"\1", wanted)


def check(words: Sequence[str | Path], name: str, cwd: Path | None = None, code: int = 0) -> str:
    """Run a command, print how long it took, and end if its exit code is another one; return its output."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {"OMP_NUM_THREADS": "1"} | {k: v for k, v in os.environ.items() if k not in hidden}
    start = time.monotonic()
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    print(f"{time.monotonic() - start:6.1f} s  {name}", flush=True)
    if done.returncode != code:
        sys.exit(f"{name}: exit code {done.returncode}, not {code}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout + done.stderr


def expect(true: object, otherwise: str) -> None:
    if not true:
        sys.exit(otherwise)


def built(folder: Path, builder: Path, project: str = "", package: str = "steppe") -> Path:
    """The wheel of a project, made from its sdist; each has every file that it should, and no other."""
    target, source = folder / f"dist-{package}", f"{project}src/"
    rmtree(target, ignore_errors=True)
    check([builder, "-m", "build", "--outdir", target, ROOT / project], f"sdist of {package}, and wheel from it")
    [sdist], [wheel] = target.glob("*.tar.gz"), target.glob("*.whl")
    with tarfile.open(sdist) as file:
        inside = {name.partition("/")[2] for name in file.getnames()}
    same(inside - {"PKG-INFO", ".gitignore"}, of_git(project) - {".gitignore"}, f"the sdist of {package}")
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if ".dist-info/" not in name}
        [about] = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
        relative = re.findall(r"\]\((?!https?:)[^)]*\)", file.read(about).decode())
        expect(not relative, f"the page on a package index has links that lead nowhere: {relative[:5]}")
    records = {f"{package}/results/{name}" for name in of_git(f"{project}results/")}  # those of steppe-papers
    same(inside, {f"{package}/{name}" for name in of_git(f"{source}{package}/")} | records, f"the wheel of {package}")
    return wheel


def of_git(folder: str) -> set[str]:
    """The files below a folder that are tracked, or new and not ignored, relative to it."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", folder or "."]
    listed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name.removeprefix(folder) for name in listed if (ROOT / name).exists()}


def same(found: set[str], wanted: set[str], what: str) -> None:
    expect(found == wanted, f"{what} and git's files differ: {sorted(found ^ wanted)[:10]}")


def commands() -> list[str]:
    """The commands of `steppe`, read from the source without importing it."""
    tree = ast.parse((ROOT / "src/steppe/cli/entry.py").read_text(encoding="utf-8"))
    [table] = [
        node.value for node in tree.body if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "COMMANDS"
    ]
    return list(ast.literal_eval(table))  # type: ignore[arg-type]


def run_readme(env: Environment, folder: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    for name, code in {"README's first block": blocks[0], "README's blocks in order": "\n".join(blocks)}.items():
        (folder / "readme.py").write_text(code, encoding="utf-8")
        env.python(folder / "readme.py", name)


def without_extras(env: Environment, folder: Path) -> None:
    (folder / "where.py").write_text("import steppe\nprint(steppe.__file__)\n", encoding="utf-8")
    where = env.python(folder / "where.py", "import steppe").strip()
    expect(str(env.bin.parent) in where, f"steppe was imported from {where}, not from the environment")
    run_readme(env, folder)
    env.steppe("--help")
    expect("pip install 'steppe[train]'" in env.steppe("doctor"), "the doctor does not name the extra `train`")
    for command in commands():
        if command in NO_EXTRA:
            env.steppe(command)
            continue
        said = env.steppe(command, code=1)
        line = f"which is not installed: pip install 'steppe[{EXTRA_OF.get(command.split()[0], 'train')}]'\n"
        expect(said.endswith(line) and said.count("\n") == 1, f"steppe {command} said: {said}")
    says_what_to_install(env)
    for example in EXAMPLES:
        if example.name not in LATER:
            env.python(example, f"examples/{example.name}")


def says_what_to_install(env: Environment) -> None:
    """Of the commands of steppe-papers, which is not there yet."""
    for command in PAPERS:
        hinted = re.search(rf"^  {command} +\(pip install steppe-papers\)$", env.steppe("--help"), re.M)
        expect(hinted, f"steppe --help does not say how to install {command}")
        said = env.steppe(command, code=1)
        one = said.endswith(": pip install steppe-papers\n") and said.count("\n") == 1
        expect(one, f"steppe {command} said: {said}")


def with_papers(env: Environment) -> None:
    expect("(pip install" not in env.steppe("--help"), "steppe-papers is installed, and --help says to install it")
    env.steppe("reproduce --list")
    env.steppe("reproduce universal/table2 --budget short --report")  # the records come with the package
    env.steppe("theory wishart-moments --quick")
    said = env.steppe("reproduce universal/table2 --dry-run", code=1)
    expect("steppe data get cifar10" in said, f"a recipe without its data said: {said}")


def with_study(env: Environment) -> None:
    expect("missing" in env.steppe("doctor"), "the doctor names no missing package")
    for words in ("data list", "methods", "measures", "models"):
        env.steppe(words)
    env.steppe("train --data digits --model mlp --method sam --epochs 2 --seed 0 --out runs/sam")
    env.steppe("measure runs/sam --measures loss,lambda_max")
    env.steppe("landscape runs/sam --points 5 --out landscape.html")
    env.steppe("ensemble --data digits --model mlp --members 2 --epochs 2 --strategy deep --out runs/two")
    expect("runs are included" in env.steppe("study run"), "the built-in study did not count 80 runs")
    expect((env.place / "studies/digits/report.html").is_file(), "the built-in study wrote no page")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="for wheels and the environment (two gigabytes)")
    parser.add_argument("--python", default=sys.executable, help="of the environment")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    expect(ROOT not in folder.parents or folder.name.startswith(".venv"), f"{folder} is inside the source")
    check([options.python, "-m", "venv", folder / "build"], "an environment that builds")
    builder = folder / "build/bin/python"
    check([builder, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "build"], "pip install build")
    wheel, papers = built(folder, builder), built(folder, builder, "papers/", "steppe_papers")
    env = Environment(folder, options.python)
    env.install(str(wheel))
    without_extras(env, folder)
    env.install(f"{wheel}[study]")
    with_study(env)
    says_what_to_install(env)
    env.install(str(papers))
    with_papers(env)
    env.install(f"{wheel}[study,lightning,ray,transformers]", "optuna", "peft", "trl")
    env.install("--no-deps", "-r", str(ROOT / "requirements-oracles.txt"))
    for name in LATER:
        env.python(ROOT / "examples" / name, f"examples/{name}")
    print("the wheels work")


if __name__ == "__main__":
    main()
