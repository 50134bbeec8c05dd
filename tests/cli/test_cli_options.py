"""Commands, flags, files: what can be asked for, what goes before what, and how a wrong name is answered."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.cli import main
from steppe.cli.entry import COMMANDS, ELSEWHERE, load_command
from steppe.cli.options import Parsed, parse
from steppe.cli.output import UsageError
from steppe.training.config import Config

ROOT = Path(__file__).parents[2]

EVERY = [*COMMANDS, *ELSEWHERE]
ALWAYS = "--json --debug"
ENGINE = "--engine --address --workers --retries --again --trust"
ON = "--split --rows --batch --seed --precision --device --weights --model --model-options --data --data-root "
ON += "--normalise --trust --config"
RUN = (  # what a run takes
    "--data --data-root --model --model-options --init --freeze --method --rho --method-options --optimizer --lr "
    "--lr-factors --momentum --nesterov --weight-decay --epochs --steps --batch-size --schedule --milestones "
    "--decay --warmup --fraction --per-class --labels --label-noise --validation --held-out --augment "
    "--label-smoothing --sharp-rows --prune --prune-at --clip --ema --swa --swa-every --precision --on-nonfinite "
    "--evaluate-every --corruptions --severities --measures --measure-every --measure-rows --seed --data-seed "
    "--device --threads --capture --compile --channels-last --fsdp --checkpoint-every --log-every --loggers --out "
    "--progress --dry-run --config"
)
SNAPSHOT = {  # what people type: removing or renaming a flag breaks somebody's script
    "train": RUN,
    "compare": "FILE --data --model --methods --train --budget --worth --tuning --trials --once --fix --space --base "
    "--halving --axis --seed --yes --dry-run --out --measures --workers --engine --address --data-root --progress",
    "compare status": "FOLDER",
    "compare report": "FOLDER",
    "compare resume": "FOLDER --budget --workers --data-root --trust --progress",
    "measure": f"RUN|CHECKPOINT --measures --out --dry-run {ON}",
    "landscape": f"RUN|CHECKPOINT --compare --out --axes --directions --span --rise --points --view --log {ON}",
    "ensemble": "--members --seeds --strategy --member-radii --exchange-at --exchange-every --share --named --rest "
    f"--how --processes --repeats --radii --sharpness --diversity --average --plot {RUN}",
    "reproduce": f"NAME --budget --out --records --report --data-root --dry-run {ENGINE} --progress --list",
    "theory": "NAME --out --quick --seed --sizes",
    "study init": "FILE --data --model",
    "study run": f"STUDY --out --budget {ENGINE} --progress --part --dry-run",
    "study status": "STUDY --out --budget",
    "study report": "STUDY --out --budget --page --export",
    "study add-measure": f"MEASURE --study --out {ENGINE} --progress",
    "report serve": "STUDY --out --budget",
    "data get": "NAME --data-root --mirror",
    "data check": "PATH",
    "data list": "--data-root",
    "methods": "METHOD",
    "measures": "MEASURE",
    "models": "MODEL",
    "loggers": "",
    "doctor": "--data-root",
}


def values(name: str, *words: str) -> dict[str, Any]:
    asked = parse(load_command(name), words)
    assert isinstance(asked, Parsed)
    return dict(asked.values)


def test_commands_and_flags_are_these() -> None:
    found = {n: [o.flag or o.metavar for o in load_command(n).options().values()] for n in EVERY}
    assert found == {name: f"{flags} {ALWAYS}".split() for name, flags in SNAPSHOT.items()}


@pytest.mark.parametrize("name", EVERY)
def test_every_option_is_explained(name: str) -> None:
    options = load_command(name).options().values()
    for option in options:
        assert len(option.help) > 3, option.name
    page = parse(load_command(name), ["--help"])
    assert isinstance(page, str)
    assert all((o.flag or o.metavar) in page for o in options)


def test_defaults_are_those_of_the_configuration() -> None:
    asked = parse(load_command("train"), [])
    assert isinstance(asked, Parsed)
    assert asked.of(Config) == Config()
    assert set(asked.sources.values()) == {"default"}


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--data_root", "x"], "data_root", "x"),
        (["--data-root=--odd"], "data_root", "--odd"),
        (["--lr", "1e-3"], "lr", 1e-3),
        (["--weight-decay=0"], "weight_decay", 0.0),
        (["--rho", "null"], "rho", None),
        (["--lr", ".5"], "lr", 0.5),
        (["--epochs", "010"], "epochs", 10),
        (["--model-options.width", "'16'"], "model_options", {"width": "16"}),
        (["--seed", "-3"], "seed", -3),
        (["--augment", "crop,flip"], "augment", ["crop", "flip"]),
        (["--augment", "[crop]"], "augment", ["crop"]),
        (["--augment", ""], "augment", []),
        (["--loggers", "123"], "loggers", ["123"]),
        (["--severities", "1,3"], "severities", [1, 3]),
        (["--milestones", "0.5,0.9"], "milestones", [0.5, 0.9]),
        (["--milestones+", "0.9"], "milestones", [0.5, 0.75, 0.9]),
        (["--nesterov"], "nesterov", True),
        (["--nesterov=true"], "nesterov", True),
        (["--nesterov", "--no-nesterov"], "nesterov", False),
        (["--nesterov=false"], "nesterov", False),
        (["--no-progress"], "progress", False),
        (["--model-options", '{"width": 16}'], "model_options", {"width": 16}),
        (
            ["--model-options.width", "16", "--model_options.head_width=x"],
            "model_options",
            {"width": 16, "head_width": "x"},
        ),
        (["--model", "null"], "model", "null"),
    ],
)
def test_flags_are_read(words: list[str], name: str, value: Any) -> None:
    found = values("train", *words)[name]
    assert found == value
    assert type(found) is type(value)


def test_arguments_without_a_flag_may_stand_anywhere() -> None:
    assert values("measure", "a", "--rows", "5", "b")["what"] == ["a", "b"]
    assert values("measure", "--", "--odd")["what"] == ["--odd"]
    assert values("methods")["method"] is None
    assert values("methods", "sam")["method"] == "sam"


GIVEN = {
    "lr": st.floats(0.001, 10.0),
    "epochs": st.integers(1, 1000),
    "optimizer": st.sampled_from(["sgd", "adam", "adamw"]),
    "rho": st.none() | st.floats(0, 1),
    "augment": st.lists(st.sampled_from(["crop", "flip", "mixup"])),
    "nesterov": st.booleans(),
    "model_options": st.dictionaries(st.sampled_from(["width", "depth"]), st.integers(1, 64)),
}
some = st.fixed_dictionaries({}, optional=GIVEN)


@settings(max_examples=40, deadline=None)
@given(in_file=some, by_flag=some)
def test_flags_go_before_the_file_and_the_file_before_defaults(
    tmp_path_factory: pytest.TempPathFactory, in_file: dict[str, Any], by_flag: dict[str, Any]
) -> None:
    file = tmp_path_factory.mktemp("file") / "options.yaml"
    file.write_text(yaml.safe_dump(in_file))
    words = ["--config", str(file)]
    for key, value in by_flag.items():
        typed = value if isinstance(value, str) else json.dumps(value)
        switch = {True: f"--{key}", False: f"--no-{key}"}
        words.append(switch[value] if isinstance(value, bool) else f"--{key}={typed}")
    asked = parse(load_command("train"), words)
    assert isinstance(asked, Parsed)
    options = load_command("train").options()
    defaults = {f.name: options[f.name].default for f in fields(Config)}
    for key in defaults:
        wanted = by_flag.get(key, in_file.get(key, defaults[key]))
        if key == "model_options" and key in by_flag:
            wanted = {**in_file.get(key, {}), **by_flag[key]}
        assert asked.values[key] == wanted, key
        assert asked.sources[key] == ("flag" if key in by_flag else str(file) if key in in_file else "default")


@pytest.mark.parametrize("command", ["train", "ensemble"])
@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("depth=2", {"width": 16, "act": "relu", "depth": 2}),
        ("width=8", {"width": 8, "act": "relu"}),
        ('{"width": 8, "act": null}', {"width": 8, "act": None}),
        ("width=", {"act": "relu"}),
        ("act=,depth=2", {"width": 16, "depth": 2}),
        ("{}", {"width": 16, "act": "relu"}),
    ],
)
def test_a_mapping_changes_the_files_entry_by_entry(
    tmp_path: Path, command: str, words: str, wanted: dict[str, Any]
) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("model-options: {width: 16, act: relu}\nlr: 1e-3\n")
    found = values(command, "--config", str(file), "--model-options", words)
    assert found["model_options"] == wanted
    assert found["lr"] == 1e-3


def test_pieces_of_a_mapping_are_added_in_their_order(tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("model-options: {width: 16}\n")
    words = ["--model-options.depth", "2", "--model-options", "act=relu,width=", "--model_options.dims=[1,2]"]
    found = values("train", "--config", str(file), *words, "--model-options.a.b=3")
    assert found["model_options"] == {"depth": 2, "act": "relu", "dims": [1, 2], "a.b": 3}
    with pytest.raises(UsageError, match=r"--model-options widht= takes an entry out, and .* Did you mean 'width'"):
        values("train", "--config", str(file), "--model-options", "widht=")


def test_an_entry_goes_before_the_files_in_mappings_of_the_same_settings(tmp_path: Path) -> None:
    file = tmp_path / "compare.yaml"
    file.write_text(
        "space: {lr: 0.1..1}\nfix: {epochs: 4}\nbase: {batch_size: 64, model_options.width: 8, warmup: 0}\n"
    )
    asked = values("compare", str(file), "--fix", "lr=0.2,warmup=0.1", "--base", '{"model_options": {"depth": 1}}')
    assert asked["space"] == {}
    assert asked["fix"] == {"epochs": 4, "lr": 0.2, "warmup": 0.1}
    assert asked["base"] == {"batch_size": 64, "model_options": {"depth": 1}}
    asked = values("compare", str(file), "--space", "epochs=2/4", "--base.model_options.depth=1")
    assert asked["space"] == {"lr": "0.1..1", "epochs": "2/4"}
    assert asked["fix"] == {}
    assert asked["base"] == {"batch_size": 64, "model_options.width": 8, "warmup": 0, "model_options.depth": 1}


def test_help_shows_what_the_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("lr: 0.25\n")
    page = parse(load_command("train"), ["--help", "--config", "mine.yaml"])
    assert isinstance(page, str)
    assert "(from mine.yaml: 0.25)" in " ".join(page.split())
    assert "(default: 0.0005)" in page  # weight decay
    assert re.search(r"--seed N .*\n.*\(default: 0\)", page)  # 0 is a value, unlike None and an empty list
    assert "default: null" not in page
    assert "default: )" not in page


def test_a_runs_own_file_is_a_file_of_options(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("steppe: 0.1.0\nconfig:\n  lr: 0.3\n  method: asam\nsteps: 30\n")
    found = values("train", "--config", str(file))
    assert (found["lr"], found["method"], found["steps"]) == (0.3, "asam", None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--lrr", "3"], "no option '--lrr'. Did you mean '--lr'"),
        (["--epoch=3"], "Did you mean '--epochs'"),
        (["-e", "3"], "no option '-e'"),
        (["--lr.x", "3"], "no option '--lr.x'"),
        (["--lr", "x"], "--lr takes a number, not 'x'"),
        (["--lr=-.5"], "lr is -0.5, and has to be a number, 0 or more"),
        (["--rho="], "--rho takes a number or null (None), not ''"),
        (["--lr"], "--lr takes a number, and no value follows it"),
        (["--lr", "--epochs", "3"], "--lr takes a number, and no value follows it"),
        (["--epochs", "2.5"], "--epochs takes a whole number, not '2.5'"),
        (["--rho", "x"], "--rho takes a number or null (None), not 'x'"),
        (["--optimizer", "sdg"], "no value of --optimizer 'sdg'. Did you mean 'sgd'"),
        (["--severities", "a,b"], "--severities takes a list"),
        (["--model-options", "3"], "--model-options takes a mapping"),
        (["--nesterov=3"], "--nesterov takes no value"),
        (["crop"], "crop"),
        (["--lr", "-1"], "lr is -1.0, and has to be a number, 0 or more"),
    ],
)
def test_wrong_flags_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *words]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert "Traceback" not in told.err
    assert not told.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lrr: 1", "there is no option 'lrr'. Did you mean 'lr'"),
        ("lr: abc", "lr takes a number, not 'abc'"),
        ("lr: '0.1'", "lr takes a number, not '0.1'"),
        ("model_options: {a: 1, a: 2}", "'a' appears 2 times"),
        ("optimizer: sdg", "Did you mean 'sgd'"),
        ("epochs: true", "epochs takes a whole number"),
        ("augment: crop", "augment takes a list"),
        ("lr: 1\nlr: 2", "'lr' appears 2 times"),
        ("lr: [1", "is not YAML in line"),
        ("lr: 1\nout: a: b\n", 'is not YAML in line 2: a text with a colon and a space needs quotes: out: "a: b"'),
        ("lr: 1\n  out: a", "is not YAML in line 2: mapping values are not allowed"),
        ("- lr", "and this is a list"),
        ("just words", "and this is a str"),
        ("a: &a [1]\nlr: *a", "aliases"),
        ("json: true", "there is no option 'json'"),
        ("config: other.yaml", "there is no option 'config'"),
        ("lr: !!python/object/apply:os.system ['exit 1']", "is not YAML"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(text)
    assert main(["train", "--config", str(file)]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "wrong.yaml" in told


def test_other_things_than_files_of_options_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_bytes(b" " * (1 << 23))
    for name, code, said in [("bytes", 2, "UTF-8"), ("large", 2, "bytes"), (".", 2, "folder"), ("none", 1, "no file")]:
        assert main(["train", "--config", str(tmp_path / name)]) == code
        assert said in capsys.readouterr().err


def test_a_value_without_a_message_of_its_own_is_still_refused(tmp_path: Path) -> None:
    file = tmp_path / "deep.yaml"
    file.write_text("milestones: [[1]]\n")
    with pytest.raises(UsageError, match="milestones"):
        parse(load_command("train"), ["--config", str(file)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tarin"], "no command 'tarin'. Did you mean 'train'"),
        (["data", "lst"], "no command of `steppe data` 'lst'. Did you mean 'list'"),
        (["--json"], "no command '--json'"),
        (["measure", "--rows", "0", "x"], "--rows is 0, and has to be a whole number, 1 or more"),
        (["measure"], "name what to measure"),
        (["landscape"], "not of 0"),
        (["landscape", "a", "b", "c"], "not of 3"),
        (["landscape", "a", "--out", "x.png"], ".html, .json, .npz"),
        (["landscape", "a", "b", "--compare", "--out", "x.npz"], "--out takes .html or .json"),
        (["landscape", "a", "--rise", "0"], "--rise is 0.0, and has to be a number, more than 0, and finite"),
        (["landscape", "a", "--axes", "3"], "--axes is 3, and has to be a whole number, from 1 to 2"),
        (["data", "get"], "name the data sets"),
        (["data", "get", "cifar"], "Did you mean 'cifar10'"),
        (["data", "check"], "name the folders"),
    ],
)
def test_wrong_commands_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_pages_and_the_version_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["--help"], ["-h"], ["help"]):
        assert main(words) == 0
        page = capsys.readouterr().out
        assert all(re.search(rf"^  {name}\b", page, flags=re.MULTILINE) for name in EVERY)
    assert main(["data"]) == 0
    assert "check" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert re.fullmatch(r"steppe \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_help_and_wrong_flags_need_no_torch() -> None:
    script = (
        "import sys; from steppe.cli import main\n"
        "assert [main(w.split()) for w in ('--help', 'train --help', 'measure --help', 'data --help')] == [0] * 4\n"
        "assert main(['train', '--lrr', '3']) == 2\n"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, check=False).returncode == 0


def test_help_takes_half_a_second_at_most() -> None:
    """About 0.1 s of two cores of an x86 CPU: processor time, because other processes take the clock's."""

    def seconds(*words: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "steppe", *words], capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert median(seconds("--help") for _ in range(3)) < 0.5
    assert median(seconds("train", "--help") for _ in range(3)) < 0.5


def test_lines_on_the_page_are_commands_that_exist() -> None:
    page = (ROOT / "docs/commands.md").read_text().replace("\\\n", "")
    lines = re.findall(r"^(?:torchrun .* )?steppe (.+)$", page, flags=re.MULTILINE)
    lines += re.findall(r"`steppe (train [^`]+)`", page)
    examples = [line.removeprefix("steppe ") for name in EVERY for line in load_command(name).examples]
    assert len(lines) >= 10
    for line in [*lines, *examples]:
        words = re.sub(r"--config \S+|(?<=^compare )\S+\.yaml", "", line).split()  # files that a reader has
        name = next(n for n in (" ".join(words[:2]), words[0]) if n in EVERY)
        parse(load_command(name), words[len(name.split()) :])
    assert {f"steppe {name}" for name in EVERY} <= set(re.findall(r"`(steppe [a-z -]+?)`", page))
