"""What a block computes, against its formula written out by hand, and what its weights are at first."""

from __future__ import annotations

from math import cos, exp, sin, sqrt

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, scaled_dot_product_attention

from steppe.nn import build
from steppe.nn.mlp import mlp
from steppe.nn.resnet import Block, padded, projected
from steppe.nn.vit import Attention, LearnedPositions, Patches, SinusoidalPositions, TransformerBlock
from steppe_papers.models.convnets import DenseLayer, InvertedResidual, StochasticDepth, transition
from steppe_papers.models.resnets import KINDS, PyramidBlock, WideBlock, pyramid


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def normed(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """A batch norm with the statistics that it has by heart."""
    layer.eval()

    def column(v: Tensor) -> Tensor:
        return v.view(1, -1, 1, 1)

    scaled = (x - column(layer.running_mean)) / column(layer.running_var + layer.eps).sqrt()
    return scaled * column(layer.weight) + column(layer.bias)


def awake(module: nn.Module) -> nn.Module:
    """With statistics and scales of norms that would show if one of them were left out."""
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_()
            m.running_var.uniform_(0.5, 2)
            nn.init.normal_(m.weight, mean=1, std=0.3)
            nn.init.normal_(m.bias)
    return module.eval()


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("shortcut", [padded, projected])
def test_a_residual_block_is_its_formula(stride: int, shortcut) -> None:
    block, x = awake(Block(3, 5, stride, shortcut)), torch.randn(2, 3, 7, 6)
    y = normed(block.norm1, conv2d(x, block.conv1.weight, stride=stride, padding=1)).clamp(min=0)
    y = normed(block.norm2, conv2d(y, block.conv2.weight, padding=1))
    if shortcut is padded:
        carried = torch.zeros_like(y)
        carried[:, :3] = x[:, :, ::stride, ::stride]
    else:
        carried = normed(block.shortcut.norm, conv2d(x, block.shortcut.conv.weight, stride=stride))
    torch.testing.assert_close(block(x), (y + carried).clamp(min=0))


@pytest.mark.parametrize("shortcut", [padded, projected])
def test_where_the_shape_stays_the_input_is_carried_as_it_is(shortcut) -> None:
    block = Block(4, 4, 1, shortcut).eval()
    assert not list(block.shortcut.parameters())
    nn.init.zeros_(block.norm2.weight)
    x = torch.rand(2, 4, 5, 5)  # not below zero: the last ReLU leaves it
    torch.testing.assert_close(block(x), x, rtol=0, atol=0)


@pytest.mark.parametrize(("inputs", "outputs", "stride"), [(3, 5, 1), (3, 5, 2), (4, 4, 2), (4, 4, 1)])
def test_a_wide_block_is_its_formula(inputs: int, outputs: int, stride: int) -> None:
    block, x = awake(WideBlock(inputs, outputs, stride)), torch.randn(2, inputs, 7, 6)
    active = normed(block.norm1, x).clamp(min=0)
    y = normed(block.norm2, conv2d(active, block.conv1.weight, stride=stride, padding=1)).clamp(min=0)
    y = conv2d(y, block.conv2.weight, padding=1)
    carried = x if (inputs, stride) == (outputs, 1) else conv2d(active, block.shortcut.weight, stride=stride)
    torch.testing.assert_close(block(x), y + carried)


@pytest.mark.parametrize(
    ("outputs", "expansion", "size", "stride"), [(8, 6, 3, 1), (8, 1, 5, 1), (5, 6, 5, 2), (8, 4, 3, 2)]
)
def test_an_inverted_residual_is_its_formula(outputs: int, expansion: int, size: int, stride: int) -> None:
    block, x = awake(InvertedResidual(8, outputs, expansion, size, stride, 0.5)), torch.randn(2, 8, 7, 6)
    layers, y = block.branch, x
    if expansion > 1:
        y = silu(normed(layers.norm1, conv2d(y, layers.conv1.weight)))
    channels = [  # each channel has its own kernel
        conv2d(y[:, [c]], layers.conv2.weight[[c]], stride=stride, padding=size // 2) for c in range(8 * expansion)
    ]
    y = silu(normed(layers.norm2, torch.cat(channels, 1)))
    squeeze = layers.excitation
    gate = y.mean((2, 3)) @ squeeze.reduce.weight.flatten(1).T + squeeze.reduce.bias
    assert gate.shape[1] == 2  # a quarter of the input channels, not of the expanded ones
    gate = 1 / (1 + (-(silu(gate) @ squeeze.expand.weight.flatten(1).T + squeeze.expand.bias)).exp())
    y = normed(layers.norm3, conv2d(y * gate[:, :, None, None], layers.conv3.weight))
    torch.testing.assert_close(block(x), y + x if (outputs, stride) == (8, 1) else y)


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def test_stochastic_depth_drops_rows_and_keeps_the_mean() -> None:
    layer, x = StochasticDepth(0.25), torch.ones(4000, 2, 3, 3)
    out = layer(x).flatten(1)
    assert set(out.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
    assert (out == out[:, :1]).all()  # a whole row at a time
    assert out.mean().item() == pytest.approx(1, abs=5 * sqrt(0.25 / 0.75 / 4000))
    assert layer.eval()(x) is x


def test_efficientnets_drop_blocks_with_a_probability_that_grows() -> None:
    with torch.device("meta"):
        model = build("efficientnet-b4", (3, 32, 32), 10)
    blocks = [b for name, stage in model.named_children() if name.startswith("stage") for b in stage]
    assert len(blocks) == 2 + 4 + 4 + 6 + 6 + 8 + 2  # 1.8 times Table 1, rounded up
    for i, block in enumerate(blocks):
        assert block.drop is None or block.drop.probability == pytest.approx(0.2 * i / 32)
    assert model.dropout.p == 0.4


@pytest.mark.parametrize("stride", [1, 2])
def test_a_basic_pyramid_block_is_its_formula(stride: int) -> None:
    block, x = awake(PyramidBlock(3, 5, stride, KINDS["basic"])), torch.randn(2, 3, 8, 6)
    layers = block.branch
    y = conv2d(normed(layers.norm1, x), layers.conv1.weight, stride=stride, padding=1)  # no ReLU before it
    y = normed(layers.norm3, conv2d(normed(layers.norm2, y).clamp(min=0), layers.conv2.weight, padding=1))
    y[:, :3] += avg_pool2d(x, stride)
    torch.testing.assert_close(block(x), y)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_bottleneck_of_a_pyramid_is_its_formula(stride: int) -> None:
    block, x = awake(PyramidBlock(3, 4, stride, KINDS["bottleneck"])), torch.randn(2, 3, 8, 6)
    layers = block.branch
    y = conv2d(normed(layers.norm1, x), layers.conv1.weight)
    y = conv2d(normed(layers.norm2, y).clamp(min=0), layers.conv2.weight, stride=stride, padding=1)
    y = normed(layers.norm4, conv2d(normed(layers.norm3, y).clamp(min=0), layers.conv3.weight))
    assert y.shape[1] == 16
    y[:, :3] += avg_pool2d(x, stride)
    torch.testing.assert_close(block(x), y)


def test_a_pyramid_grows_evenly_and_halves_at_the_start_of_later_stages() -> None:
    stages, last = pyramid(16, 48, (18, 18, 18), KINDS["basic"])
    blocks = [b for stage in stages.values() for b in stage]
    assert [b.stride for b in blocks] == [1] * 18 + [2] + [1] * 17 + [2] + [1] * 17
    widths = [b.branch.conv1.out_channels for b in blocks]
    assert last == widths[-1] == 16 + 48
    assert all(abs(w - (16 + 48 * k / 54)) <= 0.5 for k, w in enumerate(widths, start=1))


def test_a_dense_layer_appends_to_what_it_got() -> None:
    layer, x = awake(DenseLayer(5, 3)), torch.randn(2, 5, 6, 6)
    y = conv2d(normed(layer.norm1, x).clamp(min=0), layer.conv1.weight)
    assert y.shape[1] == 12  # four times the growth
    y = conv2d(normed(layer.norm2, y).clamp(min=0), layer.conv2.weight, padding=1)
    torch.testing.assert_close(layer(x), torch.cat([x, y], 1))


def test_a_transition_halves_channels_and_sides() -> None:
    layers, x = awake(transition(6)), torch.randn(2, 6, 8, 8)
    y = conv2d(normed(layers.norm, x).clamp(min=0), layers.conv.weight)
    torch.testing.assert_close(layers(x), avg_pool2d(y, 2))
    assert layers(x).shape == (2, 3, 4, 4)


def test_the_mlp_is_six_layers_of_relus_and_a_linear_one() -> None:
    model, x = mlp((2, 3), 4, width=5), torch.randn(7, 2, 3)
    matrices = [p for n, p in model.named_parameters() if n.endswith("weight")]
    offsets = [p for n, p in model.named_parameters() if n.endswith("bias")]
    assert [tuple(m.shape) for m in matrices] == [(5, 6), *[(5, 5)] * 5, (4, 5)]
    y = x.reshape(7, 6)
    for matrix, offset in zip(matrices[:-1], offsets[:-1], strict=True):
        y = (y @ matrix.T + offset).clamp(min=0)
    torch.testing.assert_close(model(x), y @ matrices[-1].T + offsets[-1])


def test_patches_are_cut_row_by_row() -> None:
    layer, x = Patches(3, 5, 4), torch.randn(2, 3, 8, 12)
    tokens = layer(x)
    assert tokens.shape == (2, 6, 5)
    for token, (row, column) in enumerate((r, c) for r in range(2) for c in range(3)):
        patch = x[:, :, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4].reshape(2, -1)
        torch.testing.assert_close(tokens[:, token], patch @ layer.conv.weight.reshape(5, -1).T + layer.conv.bias)


def test_attention_is_torchs() -> None:
    layer, x = Attention(6, heads=3, head_width=4, bias=True), torch.randn(2, 5, 6)
    weight, bias = layer.queries_keys_values.weight, layer.queries_keys_values.bias
    q, k, v = (
        (x @ weight[12 * i : 12 * i + 12].T + bias[12 * i : 12 * i + 12]).view(2, 5, 3, 4).transpose(1, 2)
        for i in range(3)
    )
    mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 12)
    torch.testing.assert_close(layer(x), mixed @ layer.out.weight.T + layer.out.bias)


def test_attention_of_one_token_by_hand() -> None:
    """Two tokens, one head of width 1: a sigmoid of the difference of the two fits."""
    layer = Attention(1, 1, 1, bias=False)
    with torch.no_grad():
        layer.queries_keys_values.weight.copy_(torch.tensor([[1.0], [2.0], [3.0]]))
        layer.out.weight.fill_(1.0)
    first, _ = layer(torch.tensor([[[0.5], [-1.0]]]))[0, :, 0].tolist()
    share = 1 / (1 + exp(0.5 * 2 * (-1.0 - 0.5)))
    assert first == pytest.approx(share * 3 * 0.5 + (1 - share) * 3 * -1.0)


def test_a_transformer_block_adds_attention_and_then_gelus() -> None:
    block, x = TransformerBlock(4, 2, 3, 5, bias=True), torch.randn(2, 3, 4)

    def layer_norm(v: Tensor) -> Tensor:
        return (v - v.mean(-1, keepdim=True)) / (v.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()

    y = x + block.attention(layer_norm(x))
    hidden = layer_norm(y) @ block.mlp.linear1.weight.T + block.mlp.linear1.bias
    active = hidden * 0.5 * (1 + (hidden / sqrt(2)).erf())
    torch.testing.assert_close(block(x), y + active @ block.mlp.linear2.weight.T + block.mlp.linear2.bias)


def test_blocks_do_not_know_the_order_of_tokens() -> None:
    block, x, order = TransformerBlock(4, 2, 3, 5, bias=True), torch.randn(2, 6, 4), torch.randperm(6)
    torch.testing.assert_close(block(x)[:, order], block(x[:, order]))


def test_fixed_positions_are_waves_of_column_and_row() -> None:
    """Beyer et al. 2022: sin x, cos x, sin y, cos y at frequencies from 1 down to 1 / 10 000."""
    layer = SinusoidalPositions(2, 3, 12)
    for token, (row, column) in enumerate((r, c) for r in range(2) for c in range(3)):
        waves = [10_000 ** -(i / 2) for i in range(3)]
        expected = [f(place * w) for place in (column, row) for f in (sin, cos) for w in waves]
        torch.testing.assert_close(layer.positions[token], torch.tensor(expected))
    assert not list(layer.parameters())
    assert not layer.state_dict()
    torch.testing.assert_close(layer(torch.ones(1, 6, 12))[0], 1 + layer.positions)


def test_learned_positions_put_the_class_token_first() -> None:
    layer, x = LearnedPositions(3, 4), torch.randn(2, 3, 4)
    nn.init.normal_(layer.token)
    for row, out in zip(x, layer(x), strict=True):
        torch.testing.assert_close(out, torch.cat([layer.token[0], row]) + layer.positions[0])


def test_the_class_is_read_from_the_class_token_alone() -> None:
    model = build("vit-small", (1, 8, 8), 3, width=12, heads=2, depth=1)
    nn.init.normal_(model.head.weight)
    tokens = torch.randn(2, 5, 12)
    other = tokens.clone()
    other[:, 1:] += 1
    tail = nn.Sequential(model.norm, model.pool, model.head)
    torch.testing.assert_close(tail(tokens), tail(other), rtol=0, atol=0)


# How the parts are put together.
SIZES = {
    "resnet18": {"width": 2},
    "resnet20": {"width": 2},
    "wrn40-2": {},
    "pyramidnet101": {"alpha": 3},
    "densenet121": {"growth": 2, "blocks": (1, 1)},
}


@pytest.mark.parametrize("name", SIZES)
def test_classes_are_read_from_the_mean_over_all_pixels(name: str) -> None:
    model = awake(build(name, (1, 8, 8), 3, **SIZES[name]))
    x = torch.randn(2, model.head.in_features, 5, 4)
    before_activation = not name.startswith("resnet")  # blocks that end without norm and ReLU: these come at the end
    y = normed(model.norm, x).clamp(min=0) if before_activation else x
    expected = y.flatten(2).sum(2) / 20 @ model.head.weight.T + model.head.bias
    tail = model[-4:] if before_activation else model[-2:]
    torch.testing.assert_close(tail(x), expected)
    stages = [n for n, _ in model.named_children() if n not in {"norm", "relu", "pool", "head"}]
    assert stages[0] == "stem"
    assert all(n.startswith(("stage", "block", "transition")) for n in stages[1:])


def test_simple_vit_reads_classes_from_the_mean_over_all_tokens() -> None:
    model, tokens = build("simple-vit", (1, 8, 8), 3, width=8, depth=1), torch.randn(2, 4, 8)
    mean = tokens.sum(1) / 4
    normal = (mean - mean.mean(-1, keepdim=True)) / (mean.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(model[-3:](tokens), normal @ model.head.weight.T + model.head.bias)


@pytest.mark.parametrize("name", SIZES)
def test_stems_for_small_images(name: str) -> None:
    stem, x = awake(build(name, (1, 8, 8), 3, **SIZES[name]).stem), torch.randn(2, 1, 6, 6)
    conv = stem if isinstance(stem, nn.Conv2d) else stem.conv
    y = conv2d(x, conv.weight, padding=1)
    if conv is not stem:
        y = normed(stem.norm, y)
    if name.startswith("resnet"):
        y = y.clamp(min=0)
    assert conv.weight.shape[2:] == (3, 3)
    torch.testing.assert_close(stem(x), y)


@pytest.mark.parametrize("name", ["resnet18", "densenet121"])
def test_the_stem_for_large_images(name: str) -> None:
    stem, x = awake(build(name, (1, 40, 40), 3, **SIZES[name], stem="large").stem), torch.randn(2, 1, 40, 40)
    y = normed(stem.norm, conv2d(x, stem.conv.weight, stride=2, padding=3)).clamp(min=0)
    highest = (
        nn.functional.unfold(y, 3, padding=1, stride=2).unflatten(1, (-1, 9)).amax(2)
    )  # zeros around: ReLU's floor
    torch.testing.assert_close(stem(x), highest.unflatten(2, (10, 10)))


def test_vgg_is_its_formula() -> None:
    model, x = awake(build("vgg19", (1, 32, 32), 3, width=2)), torch.randn(2, 1, 32, 32)
    y = x
    for stage, count in enumerate((2, 2, 4, 4, 4), start=1):
        for i in range(1, count + 1):
            conv, norm = (model.get_submodule(f"{kind}{stage}_{i}") for kind in ("conv", "norm"))
            y = normed(norm, conv2d(y, conv.weight, conv.bias, padding=1)).clamp(min=0)
        y = torch.stack([y[:, :, a::2, b::2] for a in (0, 1) for b in (0, 1)]).amax(0)
    assert y.shape == (2, 16, 1, 1)
    torch.testing.assert_close(model(x), y[:, :, 0, 0] @ model.head.weight.T + model.head.bias)


# What weights are at first.
@pytest.mark.parametrize(
    "name", ["resnet18", "resnet20", "wrn40-2", "pyramidnet101", "densenet121", "vgg19", "efficientnet-b3"]
)
def test_convolutions_start_with_hes_variance(name: str) -> None:
    for module in build(name, (3, 32, 32), 10).modules():
        if isinstance(module, nn.Conv2d):
            out, _, *size = module.weight.shape
            z = module.weight.flatten() / sqrt(2 / (out // module.groups * size[0] * size[1]))
            assert abs(z.mean()) < 5 / sqrt(len(z))
            assert abs((z**2).mean() - 1) < 5 * sqrt(2 / len(z))  # five standard errors of a variance
            assert module.bias is None or not module.bias.any()
        elif isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
            assert not module.bias.any()
        elif isinstance(module, nn.Linear):
            bound = module.in_features**-0.5  # torch's own
            assert 0.9 * bound < module.weight.abs().max() <= bound
            assert not module.bias.any()


def test_a_vision_transformer_starts_as_released() -> None:
    model = build("vit-small", (3, 32, 32), 10, depth=2)
    assert not model.head.weight.any()  # so that it starts by predicting nothing
    assert not model(torch.randn(2, 3, 32, 32)).any()
    assert not model.positions.token.any()
    assert model.positions.positions.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.patches.conv.weight.std().item() == pytest.approx(48**-0.5, rel=0.05)
    for block in (model.block1, model.block2):
        bound = sqrt(6 / (384 + 384))  # Xavier's, of each of queries, keys and values alone
        for part in block.attention.queries_keys_values.weight.chunk(3):
            assert 0.99 * bound < part.abs().max() <= bound
        bound = sqrt(6 / (384 + 1536))
        for linear in (block.mlp.linear1, block.mlp.linear2):
            assert 0.99 * bound < linear.weight.abs().max() <= bound
            assert not linear.bias.any()


def test_a_diagonal_network_starts_at_its_scale() -> None:
    model = build("diagonal", (1000,), 2, scale=0.3)
    for weight in (model.u, model.v):
        assert weight.shape == (2, 1000)
        assert weight.std().item() == pytest.approx(0.3, rel=0.1)
    x = torch.randn(3, 1000)
    torch.testing.assert_close(model(x)[:, 1], (x * model.u[1] * model.v[1]).sum(1))
