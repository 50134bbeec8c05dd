"""Every reference model has the parameters, the feature maps and the multiplications that are published for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from steppe.nn import MODELS, build
from steppe.nn.layers import Mean, convolution, sequence, stem_for
from steppe_papers.models.resnets import KINDS, pyramid, pyramidnet, wide_resnet

CIFAR, IMAGENET = (3, 32, 32), (3, 224, 224)


def parameters(make: Callable[[], nn.Module]) -> int:
    with torch.device("meta"):  # shapes without numbers: no memory and no time
        return sum(p.numel() for p in make().parameters())


def multiplications(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> float:
    """Multiply-adds of convolutions and matrix products on one row, in thousand millions."""
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        make().eval()(torch.empty(1, *shape))
    return counter.get_total_flops() / 2e9


# The published numbers. torchvision: `num_params` of its weights' metadata; imgclsmob: the tables of its README.
EXACT = {
    "resnet18, CIFAR-10 (the number usually quoted)": (11_173_962, "resnet18", CIFAR, 10, {}),
    "resnet18, torchvision": (11_689_512, "resnet18", IMAGENET, 1000, {"stem": "large"}),
    "efficientnet_b3, torchvision": (12_233_232, "efficientnet-b3", IMAGENET, 1000, {}),
    "efficientnet_b4, torchvision": (19_341_616, "efficientnet-b4", IMAGENET, 1000, {}),
    "efficientnet_b0, torchvision": (5_288_548, "efficientnet-b3", IMAGENET, 1000, {"width": 1.0, "depth": 1}),
    "densenet121, torchvision": (7_978_856, "densenet121", IMAGENET, 1000, {"stem": "large"}),
    "vgg19_bn, torchvision, without its three large linear layers": (
        143_678_248 - (25_088 + 1) * 4096 - (4096 + 1) * 4096 - (4096 + 1) * 1000 + (512 + 1) * 10,
        *("vgg19", CIFAR, 10, {}),
    ),
    "vit-small/16, timm's deit_small_patch16_224": (22_050_664, "vit-small", IMAGENET, 1000, {"patch": 16}),
    "wrn28-10, imgclsmob": (36_479_194, "wrn28-10", CIFAR, 10, {}),
    "wrn28-10 on CIFAR-100, imgclsmob": (36_536_884, "wrn28-10", CIFAR, 100, {}),
    "pyramidnet110, imgclsmob": (1_772_706, "pyramidnet110", CIFAR, 10, {}),
    "pyramidnet110 on CIFAR-100, imgclsmob": (1_778_556, "pyramidnet110", CIFAR, 100, {}),
    "pyramidnet110 a=84, imgclsmob": (3_904_446, "pyramidnet110", CIFAR, 10, {"alpha": 84}),
    "pyramidnet110 a=270, imgclsmob": (28_485_477, "pyramidnet110", CIFAR, 10, {"alpha": 270}),
    "pyramidnet272 a=200, imgclsmob": (26_210_842, "pyramidnet272", CIFAR, 10, {}),
}


@pytest.mark.parametrize("case", EXACT)
def test_parameters_are_the_published_number(case: str) -> None:
    number, name, shape, outputs, options = EXACT[case]
    assert parameters(lambda: build(name, shape, outputs, **options)) == number


@pytest.mark.parametrize(
    ("depth", "alpha", "number"), [(164, 270, 27_216_021), (200, 240, 26_752_702), (236, 220, 26_969_046)]
)
def test_bottleneck_pyramids_have_imgclsmobs_numbers(depth: int, alpha: float, number: int) -> None:
    assert parameters(lambda: pyramidnet(CIFAR, 10, depth, alpha, "bottleneck")) == number


def test_the_pyramid_of_imagenet_has_its_authors_number() -> None:
    """PyramidNet-101 with alpha = 360: 42.5 M in its authors' README, 42,455,070 in imgclsmob's."""

    def make() -> nn.Module:
        stages, last = pyramid(64, 360, (3, 4, 23, 3), KINDS["bottleneck"])
        stem = stem_for("large", nn.Identity(), 3, 64)
        return sequence(stem=stem, **stages, norm=nn.BatchNorm2d(last), pool=Mean(2, 3), head=nn.Linear(last, 1000))

    assert parameters(make) == 42_455_070


@pytest.mark.parametrize(
    ("name", "millions"),
    # He et al. 2016, Table 6; Zagoruyko & Komodakis 2016, Tables 4 and 5
    [
        *[("resnet20", 0.27), ("resnet32", 0.46), ("resnet44", 0.66), ("resnet56", 0.85), ("resnet110", 1.7)],
        *[("wrn28-10", 36.5), ("wrn40-2", 2.2)],
    ],
)
def test_parameters_round_to_the_papers_number(name: str, millions: float) -> None:
    digits = len(str(millions).partition(".")[2])
    assert round(parameters(lambda: build(name, CIFAR, 10)) / 1e6, digits) == millions


def test_the_table_of_the_documentation_is_true() -> None:
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    table = dict(re.findall(r"^\| `([\w-]+)` \| ([\d,]+) \|", text, re.MULTILINE))
    assert sorted(table) == sorted(MODELS)
    for name, number in table.items():
        assert f"{parameters(lambda name=name: build(name, CIFAR, 10)):,}" == number, name


# By hand, from the papers' tables: what a layer costs, written without the code that builds it.
def conv(inputs: int, outputs: int, size: int = 3) -> int:
    return inputs * outputs * size**2


def norm(channels: int) -> int:
    return 2 * channels


def linear(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


@pytest.mark.parametrize("width", [4, 16, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_resnet18_by_hand(width: int, channels: int) -> None:
    number = conv(channels, width) + norm(width) + 4 * (conv(width, width) + norm(width))
    for w in (2 * width, 4 * width, 8 * width):
        number += conv(w // 2, w) + 3 * conv(w, w) + 4 * norm(w)  # two blocks
        number += conv(w // 2, w, 1) + norm(w)  # a projection
    assert parameters(lambda: build("resnet18", (channels, 8, 8), 7, width=width)) == number + linear(8 * width, 7)


@pytest.mark.parametrize("width", [4, 64])
def test_preactivation_resnet18_by_hand(width: int) -> None:
    number = conv(3, width) + 4 * (norm(width) + conv(width, width))
    for w in (2 * width, 4 * width, 8 * width):
        number += norm(w // 2) + conv(w // 2, w) + 3 * (norm(w) + conv(w, w)) + conv(w // 2, w, 1)
    number += norm(8 * width) + linear(8 * width, 10)
    assert parameters(lambda: build("preact-resnet18", CIFAR, 10, width=width)) == number


@pytest.mark.parametrize("depth", [20, 32, 44, 56, 110])
def test_cifar_resnets_by_hand(depth: int) -> None:
    n = (depth - 2) // 6
    number = conv(3, 16) + norm(16) + 2 * n * (conv(16, 16) + norm(16))
    for w in (32, 64):  # shortcuts have no parameters
        number += conv(w // 2, w) + (2 * n - 1) * conv(w, w) + 2 * n * norm(w)
    assert parameters(lambda: build(f"resnet{depth}", CIFAR, 10)) == number + linear(64, 10)


@pytest.mark.parametrize(("depth", "k"), [(28, 10), (40, 2), (16, 4), (10, 1)])
def test_wide_resnets_by_hand(depth: int, k: int) -> None:
    n, number, inputs = (depth - 4) // 6, conv(3, 16), 16
    for w in (16 * k, 32 * k, 64 * k):
        number += norm(inputs) + conv(inputs, w) + norm(w) + conv(w, w)
        number += (n - 1) * 2 * (norm(w) + conv(w, w))
        number += conv(inputs, w, 1) if inputs != w else 0
        inputs = w
    assert parameters(lambda: wide_resnet(CIFAR, 10, depth, k)) == number + norm(inputs) + linear(inputs, 10)


def test_densenet_by_hand() -> None:
    growth, number, channels = 32, conv(3, 64), 64
    for block, layers in enumerate((6, 12, 24, 16)):
        for _ in range(layers):
            number += norm(channels) + conv(channels, 128, 1) + norm(128) + conv(128, growth)
            channels += growth
        if block < 3:
            number += norm(channels) + conv(channels, channels // 2, 1)
            channels //= 2
    assert channels == 1024  # Huang et al. 2017, Table 1: what DenseNet-121 ends with
    assert parameters(lambda: build("densenet121", CIFAR, 10)) == number + norm(1024) + linear(1024, 10) == 6_956_298


def test_pyramid_101_by_hand() -> None:
    number, inputs = conv(3, 16) + norm(16), 16
    for k in range(1, 34):  # 11 bottlenecks a stage
        w = round(16 + 64 * k / 33)
        number += norm(inputs) + conv(inputs, w, 1) + norm(w) + conv(w, w) + norm(w) + conv(w, 4 * w, 1) + norm(4 * w)
        inputs = 4 * w
    assert inputs == 4 * (16 + 64)
    assert parameters(lambda: build("pyramidnet101", CIFAR, 10)) == number + norm(inputs) + linear(inputs, 10)


def test_simple_vit_by_hand() -> None:
    attention = norm(512) + 512 * 3 * 1024 + 1024 * 512  # 16 heads of 64, without biases
    block = attention + norm(512) + linear(512, 1024) + linear(1024, 512)
    number = linear(4 * 4 * 3, 512) + 6 * block + norm(512) + linear(512, 10)
    assert parameters(lambda: build("simple-vit", CIFAR, 10)) == number


def test_mlp_and_diagonal_by_hand() -> None:
    # 784 - 128 x 6 - 10 on MNIST; the released code uses one of its layers twice, and so has 128 * 129 fewer
    assert parameters(lambda: build("mlp", (1, 28, 28), 10)) == linear(784, 128) + 5 * linear(128, 128) + 1290
    assert parameters(lambda: build("diagonal", (200,), 1)) == 400  # w = (u, v) in R^2d


@pytest.mark.parametrize(
    ("name", "options", "published"),
    # torchvision's `_ops`, which counts what we count; VGG without its large linear layers
    [
        ("resnet18", {"stem": "large"}, 1.814),
        ("densenet121", {"stem": "large"}, 2.834),
        ("vgg19", {}, 19.632 - (25_088 * 4096 + 4096 * 4096 + 4096 * 1000 - 512 * 1000) / 1e9),
        ("vit-small", {"patch": 16}, 4.6),  # Touvron et al. 2021, with two digits
    ],
)
def test_multiplications_on_imagenet_are_the_published_ones(
    name: str, options: dict[str, object], published: float
) -> None:
    ours = multiplications(lambda: build(name, IMAGENET, 1000, **options), IMAGENET)
    assert ours == pytest.approx(published, abs=0.05 if name == "vit-small" else 0.0006)


def test_multiplications_of_efficientnet_b4_are_torchvisions() -> None:
    """At 380 x 380 pixels, the size of its weights."""
    ours = multiplications(lambda: build("efficientnet-b4", (3, 380, 380), 1000), (3, 380, 380))
    assert ours == pytest.approx(4.394, abs=0.0006)


@pytest.mark.parametrize(
    ("name", "options", "published"),
    # imgclsmob counts norms and additions too: a little more than products alone
    [("wrn28-10", {}, 5.24698), ("pyramidnet272", {}, 4.54136)],
)
def test_multiplications_on_cifar_are_the_published_ones(
    name: str, options: dict[str, object], published: float
) -> None:
    ours = multiplications(lambda: build(name, CIFAR, 10, **options), CIFAR)
    assert 0.985 * published < ours < published


STAGES = {  # the architecture tables of the papers: channels and pixels a side after each stage
    "resnet18": [(64, 32), (128, 16), (256, 8), (512, 4)],
    "preact-resnet18": [(64, 32), (128, 16), (256, 8), (512, 4)],
    # Table 1 of Tan & Le 2019, on 32 pixels instead of 224, with 1.4 times the channels
    "efficientnet-b4": [(24, 16), (32, 8), (56, 4), (112, 2), (160, 2), (272, 1), (448, 1)],
    "resnet32": [(16, 32), (32, 16), (64, 8)],
    "wrn28-10": [(160, 32), (320, 16), (640, 8)],
    "pyramidnet110": [(32, 32), (48, 16), (64, 8)],
}


@pytest.mark.parametrize("name", STAGES)
def test_feature_maps_after_each_stage(name: str) -> None:
    seen: list[tuple[int, ...]] = []
    with torch.device("meta"):
        model, rows = build(name, CIFAR, 10).eval(), torch.empty(1, *CIFAR)
    for child, module in model.named_children():
        rows = module(rows)
        if child.startswith("stage"):
            seen.append(tuple(rows.shape[1:]))
    assert seen == [(channels, side, side) for channels, side in STAGES[name]]


def test_feature_maps_of_densenet_on_imagenet() -> None:
    seen = []
    with torch.device("meta"):
        model, rows = build("densenet121", IMAGENET, 1000, stem="large").eval(), torch.empty(1, *IMAGENET)
    for child, module in model.named_children():
        rows = module(rows)
        if child.startswith("block"):
            seen.append(tuple(rows.shape[1:]))
    assert seen == [(256, 56, 56), (512, 28, 28), (1024, 14, 14), (1024, 7, 7)]  # Table 1


def test_vgg_halves_after_2_2_4_4_4_convolutions() -> None:
    with torch.device("meta"):
        kinds = [type(m) for m in build("vgg19", CIFAR, 10)]
    blocks = [[]]
    for kind in kinds:
        blocks[-1].append(kind)
        if kind is nn.MaxPool2d:
            blocks.append([])
    assert [block.count(nn.Conv2d) for block in blocks] == [2, 2, 4, 4, 4, 0]


def test_a_padded_convolution_has_no_bias_and_keeps_the_size() -> None:
    for size in (1, 3, 7):
        layer = convolution(2, 5, size)
        assert layer.bias is None
        assert layer(torch.zeros(1, 2, 9, 9)).shape == (1, 5, 9, 9)
