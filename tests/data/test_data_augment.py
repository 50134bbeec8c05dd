"""Augmentation of batches against loops over images, and against Pillow."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch import Generator

from steppe.data.augment import (
    AUGMENTATIONS,
    MARGIN,
    OPERATIONS,
    PIPELINES,
    apply_operation,
    augmentation,
    beta,
    colour_jitter,
    crop,
    crop_reflect,
    flip,
    mixup,
    randaugment,
    random_boxes,
    resized_crop,
)


def batch(rows=64, channels=3, height=9, width=11, dtype=torch.uint8, seed=0):
    draws = Generator().manual_seed(seed)
    x = torch.randint(0, 256, (rows, channels, height, width), generator=draws, dtype=torch.uint8)
    return x.to(dtype), torch.randint(0, 10, (rows,), generator=draws)


def seeded(seed=0):
    return Generator().manual_seed(seed)


# -- crop and flip ---------------------------------------------------------------------------------------------------


def places(image: np.ndarray, wide: np.ndarray) -> list[tuple[int, int]]:
    """Where a window of `wide` equals the image, by looking everywhere."""
    height, width = image.shape[-2:]
    span = range(2 * MARGIN + 1)
    return [(t, s) for t in span for s in span if np.array_equal(wide[:, t : t + height, s : s + width], image)]


@pytest.mark.parametrize(("how", "mode"), [(crop, "constant"), (crop_reflect, "reflect")])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_every_crop_is_a_window_of_its_own_padded_image(how, mode, dtype):
    x, y = batch(dtype=dtype)
    out, targets = how(x, y, seeded())
    assert out.dtype == dtype
    assert torch.equal(targets, y)
    found = []
    for before, after in zip(x.numpy(), out.numpy(), strict=True):
        wide = np.pad(before, ((0, 0), (MARGIN, MARGIN), (MARGIN, MARGIN)), mode=mode)
        found.append(places(after, wide))
    assert all(len(places) == 1 for places in found)
    assert len({p[0] for p in found}) > 30  # of 81, with 64 images


def test_crops_are_even_over_all_places():
    x = torch.zeros(81 * 200, 1, 9, 9, dtype=torch.uint8)
    x[:, 0, 4, 4] = 1  # the centre marks the place
    out = crop(x, torch.zeros(len(x)), seeded())[0]
    counts = out.float().sum((0, 1)).flatten()
    assert float(counts.sum()) == len(x)
    assert float((counts - 200).square().sum() / 200) < 140  # chi-square with 80 degrees of freedom


def test_flip_exchanges_sides_of_every_second_image():
    x, y = batch(rows=2000, channels=1, height=2, width=3)
    out, targets = flip(x, y, seeded())
    same = [np.array_equal(a, b) for a, b in zip(x.numpy(), out.numpy(), strict=True)]
    turned = [np.array_equal(a[..., ::-1], b) for a, b in zip(x.numpy(), out.numpy(), strict=True)]
    assert all(s or t for s, t in zip(same, turned, strict=True))
    assert 900 < sum(turned) < 1100
    assert torch.equal(targets, y)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(sorted([*AUGMENTATIONS, *PIPELINES])), max_size=4), st.integers(0, 2**40))
def test_augmentations_are_functions_of_the_generators_seed(names, seed):
    x, y = batch(rows=8)
    before = x.clone(), y.clone()
    once, again, other = (augmentation(names, 10)(x, y, seeded(s)) for s in (seed, seed, seed + 1))
    assert torch.equal(once[0], again[0])
    assert torch.equal(once[1], again[1])
    assert torch.equal(x, before[0])  # the data set itself is not touched
    assert torch.equal(y, before[1])
    if "crop" in names:
        assert not torch.equal(once[0], other[0])


def test_named_augmentations_come_one_after_the_other():
    x, y = batch()
    draws = seeded(3)
    by_hand = flip(*crop(x, y, draws), draws)
    assert torch.equal(augmentation(["crop", "flip"])(x, y, seeded(3))[0], by_hand[0])
    assert augmentation([])(x, y, seeded())[0] is x


def test_augmentation_says_what_is_wrong():
    with pytest.raises(ValueError, match="Did you mean 'crop'"):
        augmentation(["crops"])
    with pytest.raises(ValueError, match="classes=10"):
        augmentation(["mixup"])
    for name in ("crop", "crop-reflect", "flip", "randaugment", "resized-crop", "colour-jitter"):
        with pytest.raises(ValueError, match=f"{name} takes images"):
            augmentation([name])(torch.zeros(4, 7), torch.zeros(4), seeded())
    with pytest.raises(ValueError, match="4x5"):
        crop_reflect(torch.zeros(1, 1, 4, 5), torch.zeros(1), seeded())


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_is_its_augmentations(name):
    x, y = batch(rows=6)
    one, listed = (augmentation(names)(x, y, seeded(2))[0] for names in ([name], PIPELINES[name]))
    assert torch.equal(one, listed)
    assert not torch.equal(one, x)


# -- random resized crops --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(9, 11), (32, 32), (12, 5)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_resized_crop_is_pillows_box_image_by_image(size, dtype):
    x, y = batch(rows=60, height=size[0], width=size[1], dtype=dtype)
    out, targets = resized_crop(x, y, seeded(5))
    assert torch.equal(targets, y)
    assert out.dtype == dtype
    boxes = torch.stack(random_boxes(60, *size, seeded(5), torch.device("cpu"))).long().T.tolist()
    for before, after, (top, left, tall, wide) in zip(x, out, boxes, strict=True):
        cut = before[:, top : top + tall, left : left + wide].float()
        assert cut.shape[1:] == (tall, wide)
        for channel, resized in zip(cut, after, strict=True):  # Pillow's floats are not rounded
            by_hand = Image.fromarray(channel.numpy()).resize(size[::-1], Image.Resampling.BILINEAR)
            np.testing.assert_allclose(
                resized.float().numpy(), np.asarray(by_hand), atol=0.51 if dtype == torch.uint8 else 0.01
            )


def test_boxes_have_the_law_of_szegedys_crops():
    """Against a loop over images that draws until a box fits, as torchvision's get_params does."""
    from scipy.stats import ks_2samp

    rng = np.random.default_rng(0)

    def by_loop(height, width):
        for _ in range(10):
            area = height * width * rng.uniform(0.08, 1)
            ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = round(np.sqrt(area * ratio)), round(np.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return rng.integers(0, height - h + 1), rng.integers(0, width - w + 1), h, w
        return None

    height, width = 40, 30
    ours = torch.stack(random_boxes(4000, height, width, seeded(1), torch.device("cpu"))).numpy()
    theirs = np.array([box for box in (by_loop(height, width) for _ in range(4000)) if box]).T
    for mine, other in zip(ours, theirs, strict=True):
        assert ks_2samp(mine, other).pvalue > 1e-3
    top, left, tall, wide = ours
    assert min(top.min(), left.min()) >= 0
    assert max((top + tall).max() - height, (left + wide).max() - width) <= 0


def test_where_no_box_fits_the_largest_in_the_middle_is_taken():
    top, left, tall, wide = random_boxes(500, 4, 400, seeded(), torch.device("cpu"))
    centre = (tall == 4) & (wide == 5) & (left == 197)  # 4 * 4 / 3 pixels wide
    assert centre.float().mean() > 0.9  # an area of 8 % is 32 x 4
    assert (top + tall <= 4).all()
    _, _, tall, wide = random_boxes(500, 400, 4, seeded(), torch.device("cpu"))
    assert ((tall == 5) & (wide == 4)).float().mean() > 0.9


# -- colour jitter ---------------------------------------------------------------------------------------------------


def jittered(image: np.ndarray, order: list[int], factors: list[float]) -> np.ndarray:
    """One image, one change after the other; the formulas of Pillow's ImageEnhance on floats."""

    def luma(x):
        return np.broadcast_to(x @ np.array([0.299, 0.587, 0.114]), (3, *x.shape[:2])).transpose(1, 2, 0)

    x = image.transpose(1, 2, 0).astype(np.float64)
    for change in order:
        shade = [np.zeros_like(x), np.full_like(x, luma(x).mean()), luma(x)][change]
        x = np.clip(shade + factors[change] * (x - shade), 0, 255)
    return x.transpose(2, 0, 1)


@pytest.mark.parametrize("reach", [(0.4, 0.4, 0.4), (0.8, 0.3, 0.0), (0.0, 0.0, 0.0)])
def test_colour_jitter_is_a_loop_over_images(reach):
    x, y = batch(rows=48)
    out, targets = colour_jitter(*reach)(x, y, seeded(4))
    assert torch.equal(targets, y)
    draws = seeded(4)
    order = torch.rand(48, 3, generator=draws).argsort(1)
    factors = 1 + torch.tensor(reach) * (2 * torch.rand(48, 3, generator=draws) - 1)
    assert len({tuple(o) for o in order.tolist()}) == 6
    for before, after, o, f in zip(x.numpy(), out.numpy(), order.tolist(), factors.tolist(), strict=True):
        np.testing.assert_allclose(after, jittered(before, o, f), atol=0.51)
    if not any(reach):
        assert torch.equal(out, x)


def test_one_channel_has_brightness_and_contrast_and_no_saturation():
    x, y = batch(channels=1)
    assert torch.equal(colour_jitter(0, 0, 0.4)(x, y, seeded())[0], x)
    assert not torch.equal(colour_jitter()(x, y, seeded())[0], x)


# -- mixup -----------------------------------------------------------------------------------------------------------


def test_mixup_mixes_inputs_and_labels_alike():
    """From the soft labels alone the share and the partner can be told; inputs must follow them."""
    x, y = batch(rows=10)
    y = torch.arange(10)  # each row a class of its own: labels name the partner
    for seed in range(20):
        mixed, soft = mixup(10)(x, y, seeded(seed))
        assert soft.shape == (10, 10)
        torch.testing.assert_close(soft.sum(1), torch.ones(10))
        share = None
        for i in range(10):
            partners = [j for j in range(10) if j != i and soft[i, j] > 0]
            assert len(partners) <= 1
            partner = partners[0] if partners else i
            if partners:
                share = float(soft[i, i]) if share is None else share
                assert float(soft[i, i]) == pytest.approx(share, abs=1e-6)  # one share a batch
            wanted = float(soft[i, i]) * x[i].numpy() + (1 - float(soft[i, i])) * x[partner].numpy()
            np.testing.assert_allclose(mixed[i].numpy(), wanted, atol=1e-3)


def test_mixup_takes_soft_labels_and_numbers_as_they_are():
    x, y = torch.randn(6, 3), torch.randn(6, 1)
    mixed, targets = mixup(1)(torch.cat([x, y], 1), y, seeded())
    torch.testing.assert_close(mixed[:, 3:], targets)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 1.0, 2.0])
def test_shares_have_the_beta_distribution(alpha):
    from scipy.stats import beta as known
    from scipy.stats import kstest

    draws = seeded(1)
    shares = torch.cat([beta(alpha, draws, torch.device("cpu")) for _ in range(4000)]).double().numpy()
    assert kstest(shares, known(alpha, alpha).cdf).pvalue > 1e-3


def test_shares_of_one_half_follow_the_arcsine_law():
    for seed in range(50):
        u = float(torch.rand(1, generator=seeded(seed)))
        share = float(beta(0.5, seeded(seed), torch.device("cpu")))
        assert share == pytest.approx(np.sin(np.pi * u / 2) ** 2, abs=2e-6)


# -- RandAugment -----------------------------------------------------------------------------------------------------


def one(x: torch.Tensor, name: str, strength: float) -> np.ndarray:
    """An operation on every image, as bytes with channels last."""
    op = torch.full((len(x),), OPERATIONS.index(name))
    out = apply_operation(x.float(), op, torch.full((len(x),), strength))
    return out.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()


def by_pillow(x: torch.Tensor, what) -> np.ndarray:
    return np.stack([np.asarray(what(Image.fromarray(i))) for i in x.permute(0, 2, 3, 1).numpy()])


def photos(rows=5, size=16):
    """Smooth images, so that rounding a place by a hair is a small error."""
    x, _ = batch(rows, 3, size, size, seed=4)
    return torch.nn.functional.avg_pool2d(x.float(), 5, 1, 2).mul(1.6).clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize(
    ("name", "enhance"),
    [
        ("brightness", ImageEnhance.Brightness),
        ("contrast", ImageEnhance.Contrast),
        ("colour", ImageEnhance.Color),
        ("sharpness", ImageEnhance.Sharpness),
    ],
)
@pytest.mark.parametrize("strength", [-0.8, -0.3, 0.3, 0.8])
def test_blends_are_pillows(name, enhance, strength):
    x = photos()
    known = by_pillow(x, lambda i: enhance(i).enhance(1 + 0.9 * strength))
    assert np.abs(one(x, name, strength).astype(int) - known).max() <= 2  # Pillow rounds on its way


def test_levels_are_pillows():
    x = photos()
    assert np.array_equal(one(x, "solarize", 0.4), by_pillow(x, lambda i: ImageOps.solarize(i, 256 * 0.6)))
    assert np.array_equal(one(x, "posterize", -0.5), by_pillow(x, lambda i: ImageOps.posterize(i, 6)))
    assert np.abs(one(x, "autocontrast", 0.4).astype(int) - by_pillow(x, ImageOps.autocontrast)).max() <= 1


GREY = (128, 128, 128)


@pytest.mark.parametrize(
    ("name", "strength", "inverse"),
    [
        ("shear_x", 0.5, (1, 0.15, -0.15 * 8, 0, 1, 0)),
        ("shear_y", -0.5, (1, 0, 0, -0.15, 1, 0.15 * 12)),
        ("translate_x", 0.5, (1, 0, 0.5 * 0.45 * 24, 0, 1, 0)),
        ("translate_y", -0.5, (1, 0, 0, 0, 1, -0.5 * 0.45 * 16)),
    ],
)
def test_moves_are_pillows(name, strength, inverse):
    x = batch(5, 3, 16, 24)[0]
    known = by_pillow(x, lambda i: i.transform((24, 16), Image.Transform.AFFINE, inverse, fillcolor=GREY))
    assert (one(x, name, strength) != known).any(-1).mean() < 0.02  # but for places half way between pixels
    assert (known != x.permute(0, 2, 3, 1).numpy()).any(-1).mean() > 0.2


def test_rotation_is_pillows():
    x = batch(5, 3, 16, 24)[0]
    known = by_pillow(x, lambda i: i.rotate(15, fillcolor=GREY))
    found = [(one(x, "rotate", s) != known).any(-1).mean() for s in (-0.5, 0.5)]
    assert min(found) < 0.03
    assert max(found) > 0.3


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_each_image_gets_its_own_operation(name, channels):
    """A batch of different operations equals each image alone; strength 0 changes nothing but autocontrast."""
    x = batch(len(OPERATIONS), channels, 12, 10)[0].float()
    op, strength = torch.arange(len(OPERATIONS)), torch.linspace(-1, 1, len(OPERATIONS))
    i = OPERATIONS.index(name)
    together = apply_operation(x, op, strength)
    alone = apply_operation(x[i : i + 1], op[i : i + 1], strength[i : i + 1])
    torch.testing.assert_close(together[i : i + 1], alone)
    still = apply_operation(x[i : i + 1], op[i : i + 1], torch.zeros(1))
    assert torch.allclose(still, x[i : i + 1], atol=1e-3) or name == "autocontrast"
    if name == "identity" or (name == "colour" and channels == 1):
        assert torch.allclose(alone, x[i : i + 1], atol=1e-3)


def test_randaugment_keeps_bytes_and_uses_every_operation():
    x, y = batch(400, 3, 8, 8)
    out, targets = randaugment()(x, y, seeded())
    assert out.dtype == torch.uint8
    assert targets is y
    unchanged = (out == x).flatten(1).all(1).float().mean()
    assert 0 < float(unchanged) < 0.2  # two identities, or next to nothing
