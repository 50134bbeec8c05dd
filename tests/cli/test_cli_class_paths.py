"""A value in a file of options or behind a flag is never taken for a class: nothing that it names is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from steppe.cli.entry import COMMANDS, ELSEWHERE, load_command

SCRIPT = """
import contextlib, io, itertools, json, sys
from pathlib import Path

found = []
sys.addaudithook(lambda event, args: found.append(args[0]) if event == "import" and "evil" in str(args[0]) else None)
from steppe.cli.entry import load_command, main

evil = [
    {"class_path": "evil.C"},
    {"class_path": "evil.C", "init_args": {"x": 1}},
    {"rho": {"class_path": "evil.C"}},
    {"rho": [{"class_path": "evil.C"}]},
    {"width": {"class_path": "evil.C", "init_args": {}}},
    [{"class_path": "evil.C"}],
    "evil.C",
    {"rho": "evil.C"},
]


def try_all(name, shared):
    takes_file = "config" in load_command(name).options()
    dry = ["--dry-run"] if "dry_run" in load_command(name).options() else []
    calls, first = 0, {}
    for option, value in itertools.product(load_command(name).options().values(), evil):
        if option.flag is None or option.name in ("json", "debug", "config", "dry_run", "out"):
            continue
        if option.name in shared and not option.is_a(dict):
            continue
        if not option.is_a(dict) and value not in (evil[0], evil[-2]):  # one mapping and one text say as much of these
            continue
        words = [name.split(), dry, [f"{option.flag}={json.dumps(value)}"]]
        asked = [sum(words, [])]
        # by other ways than its flag, one option per type: the parser treats all options of a type alike
        one_of_its_type = first.setdefault(str(option.type), option.name) == option.name
        if isinstance(value, dict) and one_of_its_type:
            asked += [sum([*words[:2], [f"{option.flag}.{k}={json.dumps(v)}"]], []) for k, v in value.items()]
        if takes_file and one_of_its_type:
            Path("options.yaml").write_text(json.dumps({option.name: value}))
            asked.append([*name.split(), *dry, "--config", "options.yaml"])
            if option.is_a(dict) or isinstance(value, dict):
                asked.append([*name.split(), *dry, "--config", "options.yaml", f"{option.flag}.x=1"])
        for one in asked:
            calls += 1
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                code = main(one)
            assert code in (0, 1, 2), one
            assert "unexpected" not in said.getvalue(), (one, said.getvalue())
    assert calls > 5
    assert not found, (name, found)


for name, same in json.loads(sys.argv[1]).items():
    try_all(name, load_command(same).options() if same else {})
"""
TAKING_VALUES = [
    name
    for name in [*COMMANDS, *ELSEWHERE]
    if any(o.is_a(dict) or o.name == "config" for o in load_command(name).options().values())
]


def test_commands_that_take_files_and_mappings_are_these() -> None:
    assert TAKING_VALUES == ["train", "compare", "measure", "landscape", "ensemble", "theory"]


@pytest.mark.slow
def test_nothing_that_a_value_names_is_imported(tmp_path: Path) -> None:
    """Options that two commands share are tried with one of them, and mappings with both."""
    (tmp_path / "evil.py").write_text("raise SystemExit('evil was imported')\n")
    same = {"ensemble": "train", "landscape": "measure"}
    command = [sys.executable, "-c", SCRIPT, json.dumps({name: same.get(name) for name in TAKING_VALUES})]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
