"""Models by name: what can be asked for, and what is said when it cannot."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import steppe.nn
from steppe.nn import MODELS, build

NAMES = {  # a snapshot: removing or renaming one breaks somebody's configuration
    *("mlp", "resnet18", "resnet20", "resnet32", "resnet44", "resnet56", "resnet110", "wrn28-10", "wrn40-2", "vgg19"),
    *("pyramidnet101", "pyramidnet110", "pyramidnet272", "densenet121", "simple-vit", "vit-small", "diagonal"),
    *("preact-resnet18", "efficientnet-b3", "efficientnet-b4"),
}


def test_the_models_are_these() -> None:
    assert set(MODELS) == NAMES
    assert dir(steppe.nn) == ["Architecture", "MODELS", "build", "layers", "register"]


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_one_line_in_a_table_and_says_where_it_comes_from(name: str) -> None:
    about = MODELS[name].about
    assert about
    assert "\n" not in about
    assert len(about) < 70
    source = inspect.getsource(inspect.getmodule(MODELS[name].make))
    assert re.search(r"(et al\.|& \w+) 20\d\d", source)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_built_for_cifar_by_its_name(name: str) -> None:
    with torch.device("meta"):
        assert build(name, (3, 32, 32), 10).eval()(torch.empty(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(NAMES - {"vgg19", "pyramidnet272"}))
def test_digits_fit_the_models(name: str) -> None:
    with torch.device("meta"):
        assert build(name, (1, 8, 8), 10)(torch.empty(2, 1, 8, 8)).shape == (2, 10)


@pytest.mark.parametrize("name", ["mlp", "diagonal"])
@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 8, 8)])
def test_some_models_take_rows_of_any_shape(name: str, shape: tuple[int, ...]) -> None:
    assert build(name, shape, 2)(torch.randn(4, *shape)).shape == (4, 2)


def test_options_reach_the_model_and_a_list_is_as_good_as_a_tuple() -> None:
    assert build("resnet18", (3, 8, 8), 10, width=4).stem.conv.out_channels == 4
    assert len(build("densenet121", (3, 8, 8), 10, growth=2, blocks=[1, 2]).block2) == 2
    assert build("pyramidnet101", [1, 8, 8], 10, alpha=8).head.in_features == 4 * 24  # a whole number for a float
    assert MODELS["resnet32"].options == {"width": 16}
    assert MODELS["pyramidnet272"].options == {"alpha": 200.0}


def fails(saying: list[str], *args: object, **options: object) -> None:
    """An error that says all these things, in this order."""
    with pytest.raises(ValueError, match=".*".join(map(re.escape, saying))):
        build(*args, **options)


def test_unknown_names_get_the_nearest() -> None:
    fails(["no model 'resnet-18'", "Did you mean 'resnet18'", "package.module:factory"], "resnet-18", (3, 8, 8), 10)
    fails(["Did you mean 'wrn28-10'"], "wrn-28-10", (3, 8, 8), 10)
    fails(["no option of resnet18 'widht'", "'width'", "stem"], "resnet18", (3, 8, 8), 10, widht=4)
    fails(["no option of resnet32 'depth'"], "resnet32", (3, 8, 8), 10, depth=20)  # the name settles it
    fails(["no stem 'larg'", "'large'"], "resnet18", (3, 8, 8), 10, stem="larg")


@pytest.mark.parametrize("width", ["64", 6.5, True, 0, -1, None, [64]])
def test_values_of_another_kind_are_refused(width: object) -> None:
    fails(
        ["width of resnet18 is a whole number above zero, such as 64; got", repr(width)],
        "resnet18",
        (3, 8, 8),
        10,
        width=width,
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pyramidnet101", {"alpha": float("inf")}),
        ("pyramidnet101", {"alpha": "64"}),
        ("diagonal", {"scale": float("nan")}),
        ("efficientnet-b3", {"dropout": -0.1}),
        ("densenet121", {"blocks": []}),
        ("densenet121", {"blocks": 6}),
        ("densenet121", {"blocks": (6, 0)}),
        ("densenet121", {"stem": 3}),
    ],
)
def test_other_values_of_another_kind_are_refused(name: str, options: dict[str, object]) -> None:
    fails([*options, "got"], name, (3, 32, 32), 10, **options)


def test_rows_that_do_not_fit_are_refused_with_a_way_out() -> None:
    fails(["resnet18 works on images", "(64,)", "mlp"], "resnet18", (64,), 10)
    fails(["vgg19 needs images of at least 32 x 32", "8 x 8", "Enlarge", "resnet18"], "vgg19", (1, 8, 8), 10)
    fails(["at least 32 x 32"], "vgg19", (1, 40, 31), 10)
    fails(["at least 29 x 29", "28 x 28"], "densenet121", (1, 28, 28), 10, stem="large")
    fails(["at least 8 x 8"], "densenet121", (1, 7, 9), 10)
    fails(["patches of 4 x 4", "30 x 32", "one of 1, 2"], "simple-vit", (3, 30, 32), 10)
    fails(["at least 16 x 16"], "vit-small", (3, 8, 8), 10, patch=16)
    fails(["multiple of 4"], "simple-vit", (3, 8, 8), 10, width=6)
    fails(["5 heads do not divide 384"], "vit-small", (3, 8, 8), 10, heads=5)
    fails(["at least one output"], "mlp", (3,), 0)
    fails(["at least one output"], "mlp", (), 1)
    fails(["at least one output"], "mlp", (3, 0), 1)


def test_the_smallest_images_named_in_errors_do_fit() -> None:
    with torch.device("meta"):
        for name, side, options in [("vgg19", 32, {}), ("densenet121", 8, {}), ("densenet121", 29, {"stem": "large"})]:
            assert build(name, (1, side, side), 2, **options)(torch.empty(2, 1, side, side)).shape == (2, 2)


@pytest.mark.parametrize("depth", [1, 2, 30, 33])
def test_a_depth_that_does_not_divide_names_those_that_do(depth: int) -> None:
    from steppe.nn.resnet import cifar_resnet
    from steppe_papers.models.resnets import pyramidnet, wide_resnet

    with pytest.raises(ValueError, match=r"8, 14, 20"):
        cifar_resnet((3, 8, 8), 10, depth)
    with pytest.raises(ValueError, match=r"10, 16, 22"):
        wide_resnet((3, 8, 8), 10, depth, 1)
    with pytest.raises(ValueError, match=r"11, 20, 29"):
        pyramidnet((3, 8, 8), 10, depth)
    with pytest.raises(ValueError, match=r"kind of block 'basik'.*'basic'"):
        pyramidnet((3, 8, 8), 10, 20, block="basik")


# Users' own.
MODULE = """
from torch import nn

def full(shape, outputs, width=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], width), nn.Linear(width, outputs))

def anything(**options):
    model = nn.Linear(1, 1)
    model.options = options
    return model

def plain():
    return nn.Linear(2, 2)

def only_outputs(outputs):
    return nn.Linear(2, outputs)

def positional(shape, outputs, /):
    return nn.Linear(2, 2)

def needy(shape, classes, hidden):
    return nn.Linear(2, 2)

def lazy():
    from mine_helper import make
    return make()

class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.head = nn.Linear(2, outputs)

    @classmethod
    def tiny(cls):
        return cls(1)

made = nn.Linear(2, 2)
number = 3
def wrong(): return "a model"
def broken(): raise RuntimeError("inside")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "mine_helper.py").write_text("from torch import nn\ndef make(): return nn.Linear(4, 4)\n")
    package = tmp_path / "mine_package" / "deep"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text("from mine import plain as net\n")
    (tmp_path / "mine_unfinished.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    yield tmp_path
    assert sys.path == before
    for name in [m for m in sys.modules if m.startswith("mine")]:
        del sys.modules[name]


def test_a_factory_gets_what_it_takes(mine: Path) -> None:
    assert build("mine:full", (2, 3), 5)(torch.randn(4, 2, 3)).shape == (4, 5)
    assert build("mine:full", (2, 3), 5, width=7)[1].out_features == 7
    assert build("mine:anything", (2,), 5, a=1).options == {"a": 1}  # often passed on to others
    assert isinstance(build("mine:plain", (2,), 5), nn.Linear)
    assert build("mine:only_outputs", (2,), 5).out_features == 5
    assert build("mine:Net", (2,), 5).head.out_features == 5
    assert build("mine:Net.tiny", (2,), 5).head.out_features == 1
    assert isinstance(build("mine_package.deep.nets:net", (2,), 5), nn.Linear)
    assert build("mine:lazy", (2,), 5).in_features == 4  # imports of its own, when called
    assert isinstance(build("torch.nn:Identity", (2,), 5), nn.Identity)


def test_a_factory_that_cannot_be_had_is_explained(mine: Path) -> None:
    fails(["no module 'minne'", str(mine)], "minne:full", (2,), 5)
    fails(["no module 'mine_package.shallow'"], "mine_package.shallow:net", (2,), 5)
    fails(["in mine, there is no factory 'ful'", "'full'"], "mine:ful", (2,), 5)
    fails(["in Net, there is no factory 'tinny'", "'tiny'"], "mine:Net.tinny", (2,), 5)
    fails(["no option of mine:full 'widht'", "'width'"], "mine:full", (2, 3), 5, widht=3)
    fails(["mine:needy cannot be called without classes, hidden"], "mine:needy", (2,), 5)
    fails(["without classes:"], "mine:needy", (2,), 5, hidden=1)
    fails(["mine:positional cannot be called without shape, outputs"], "mine:positional", (2,), 5)
    fails(["returned a str", "torch.nn.Module"], "mine:wrong", (2,), 5)
    fails(["is a model already"], "mine:made", (2,), 5)
    fails(["no factory 'five'"], "mine:number.five", (2,), 5)
    fails(["is a int", "function or a class"], "mine:number", (2,), 5)
    for name in (":full", "mine:", "a:b:c", "./mine.py:full", "my net:full", ".mine:full", "mine:full()"):
        fails(["package.module:factory", repr(name)], name, (2,), 5)


def test_errors_of_the_users_own_code_are_left_as_they_are(mine: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        build("mine_unfinished:net", (2,), 5)
    with pytest.raises(RuntimeError, match="inside"):
        build("mine:broken", (2,), 5)


def test_looking_at_the_package_does_not_import_torch() -> None:
    code = "import steppe.nn, sys; dir(steppe.nn); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    first, own = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(first, "docs/models.md", "exec"), {})
    (tmp_path / "nets_of_the_page.py").write_text(own)
    monkeypatch.chdir(tmp_path)
    assert build("nets_of_the_page:small", (1, 8, 8), 10, width=64)(torch.randn(2, 1, 8, 8)).shape == (2, 10)
