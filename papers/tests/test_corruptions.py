"""Corruptions against closed forms, loops over pixels, and other libraries; and their cache."""

import colorsys
from io import BytesIO
from itertools import pairwise
from math import ceil, exp

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from steppe.data import corruptions as registry
from steppe.data.corruptions import CORRUPTIONS, NAMES, Draws, corrupt, corrupted, selected
from steppe.data.dataset import Dataset
from steppe_papers.corruptions.camera import (
    _affine,
    defocus_blur,
    elastic_transform,
    enlarged,
    gaussian_blur,
    gaussian_noise,
    glass_blur,
    impulse_noise,
    motion_blur,
    pixelate,
    sampled,
    shot_noise,
    smoothed,
    speckle_noise,
    streaked,
    zoom_blur,
)
from steppe_papers.corruptions.weather import MUD, edges, equalised, fog, frost, plasma, refraction, snow, spatter

SEVERITIES = {name: one.cifar for name, one in CORRUPTIONS.items()}
CONSTANTS = {"cifar": SEVERITIES, "tiny-imagenet": {name: one.tiny_imagenet for name, one in CORRUPTIONS.items()}}


def photos(rows=6, channels=3, height=32, width=32, seed=0) -> torch.Tensor:
    """Bytes with much that is coarse and little that is fine, as photographs have."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.full((rows, channels, height, width), 0.5)
    for cells in (2, 4, 8, 16, 32):
        coarse = torch.randn(rows, channels, cells, cells, generator=draws) * 0.5 / cells**0.7
        x += torch.nn.functional.interpolate(coarse, size=(height, width), mode="bilinear")
    return (x.clamp(0, 1) * 255).round().to(torch.uint8)


def floats(*shape: int, seed=0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def draws(rows: int, *key: int) -> Draws:
    return Draws(key or (1, 2), rows)


def even(level: int, rows=40, size=32) -> torch.Tensor:
    return torch.full((rows, 3, size, size), level, dtype=torch.uint8)


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.double() - b.double()).square().mean().sqrt())


# -- what holds for all ----------------------------------------------------------------------------------------------


def test_there_are_nineteen_with_five_severities_each():
    assert len(NAMES) == len(set(NAMES)) == 19
    assert set(CORRUPTIONS) == set(NAMES)
    for constants in CONSTANTS.values():
        assert set(constants) == set(NAMES)
        assert all(len(constants[name]) == 5 for name in NAMES)
    assert selected(["fog", "all"]) == ("fog", *(name for name in NAMES if name != "fog"))
    assert selected(["main"]) == NAMES[:15]
    assert not set(selected(["main"])) & {"speckle_noise", "gaussian_blur", "spatter", "saturate"}
    with pytest.raises(ValueError, match="Did you mean 'main'"):
        selected(["mian"])


# zoom_blur has the same constants; the other three do not grow farther away with their constants
@pytest.mark.parametrize("name", [n for n in NAMES if n not in {"zoom_blur", "elastic_transform", "saturate", "frost"}])
def test_tiny_imagenets_constants_are_harsher(name):
    x = photos(12, height=64, width=64)
    mild, harsh = (
        [distance(corrupt(x, name, s, constants=c), x) for s in range(1, 6)] for c in ("cifar", "tiny-imagenet")
    )
    assert sum(harsh) > sum(mild)
    assert harsh[4] > mild[4] - 1e-6


def test_tiny_imagenets_noise_and_contrast_have_its_constants():
    flat = even(128, size=64)
    for severity, deviation in enumerate((0.04, 0.08, 0.12, 0.15), start=1):
        noisy = corrupt(flat, "gaussian_noise", severity, constants="tiny-imagenet").float()
        assert float(noisy.std()) == pytest.approx(deviation * 255, rel=0.015)
    x = photos(2, height=64, width=64)
    for severity, left in enumerate((0.4, 0.3, 0.2, 0.1, 0.05), start=1):
        out = corrupt(x, "contrast", severity, constants="tiny-imagenet").float()
        assert float(out.std((2, 3)).mean() / x.float().std((2, 3)).mean()) == pytest.approx(left, rel=0.03)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 17, 30), (1, 9, 5)])
def test_any_size_and_one_or_three_channels(name, shape):
    x = photos(3, *shape)
    before = x.clone()
    for severity in (1, 3, 5):
        out = corrupt(x, name, severity)
        assert out.dtype == torch.uint8
        assert out.shape == x.shape
        assert torch.equal(out, corrupt(x, name, severity))
    assert torch.equal(x, before)
    if name != "saturate" or shape[0] == 3:
        assert not torch.equal(corrupt(x, name, 5), x)
    else:
        assert torch.equal(corrupt(x, name, 5), x)  # grey has no saturation


@pytest.mark.parametrize("name", NAMES)
def test_a_row_does_not_depend_on_the_rows_beside_it(name, monkeypatch):
    monkeypatch.setattr(registry, "BLOCK", 4)
    x = photos(9)
    whole = corrupt(x, name, 4, seed=3)
    assert torch.equal(corrupt(x[:6], name, 4, seed=3), whole[:6])
    other = x.clone()
    other[[0, 2, 5, 8]] = 255 - other[[0, 2, 5, 8]]
    kept = [1, 3, 4, 6, 7]
    assert torch.equal(corrupt(other, name, 4, seed=3)[kept], whole[kept])


RANDOM = [
    n for n in NAMES if n.endswith("noise") or n in {"glass_blur", "motion_blur", "snow", "frost", "fog", "spatter"}
]


@pytest.mark.parametrize("name", [*RANDOM, "elastic_transform"])
def test_rows_blocks_and_seeds_have_noise_of_their_own(name, monkeypatch):
    monkeypatch.setattr(registry, "BLOCK", 2)
    x = photos(1).expand(5, -1, -1, -1)
    outs = [*corrupt(x, name, 3), *corrupt(x, name, 3, seed=1), *corrupt(x, name, 3, seed=-1)]
    pairs = [torch.equal(a, b) for i, a in enumerate(outs) for b in outs[:i]]
    assert sum(pairs) <= (5 if name == "motion_blur" else 0)  # of 105: streaks in whole pixels have few directions


# elastic_transform moves points less while it bends more, saturate takes colour away and then adds it, mud comes after
# water, glass_blur smooths less before its second round, and frost darkens as it brightens
ORDERED = [n for n in NAMES if n not in {"elastic_transform", "saturate", "spatter", "glass_blur", "frost"}]


@pytest.mark.parametrize("name", ORDERED)
def test_a_higher_severity_is_farther_away(name):
    x = photos(30)
    far = [distance(corrupt(x, name, s), x) for s in range(1, 6)]
    assert all(b > 0.98 * a for a, b in pairwise(far)), far  # motion_blur's third and fourth are near
    assert far[4] > 1.2 * far[0]


def test_messages():
    x = photos(2)
    with pytest.raises(ValueError, match="Did you mean 'gaussian_blur'"):
        corrupt(x, "gaussian_blurr", 1)
    for severity in (0, 6):
        with pytest.raises(ValueError, match="severities 1 to 5"):
            corrupt(x, "fog", severity)
    for wrong in (x.float(), x[:, :2], x[0], x[..., :3]):
        with pytest.raises(ValueError, match="takes bytes"):
            corrupt(wrong, "fog", 1)


# -- noise -----------------------------------------------------------------------------------------------------------


def test_noises_have_the_variance_of_their_formula():
    x = torch.full((40, 3, 32, 32), 102 / 255)
    n = x.numel()
    for found, deviation in (
        (gaussian_noise(x, draws(40), 0.08), 0.08),
        (speckle_noise(x, draws(40), 0.2), 0.2 * 0.4),
        (shot_noise(x, draws(40), 75), (0.4 / 75) ** 0.5),
    ):
        assert float(found.mean()) == pytest.approx(0.4, abs=5 * deviation / n**0.5)
        assert float(found.std()) == pytest.approx(deviation, rel=0.015)
    assert float(corrupt(even(128), "gaussian_noise", 2).float().std()) == pytest.approx(0.06 * 255, rel=0.015)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 255), st.sampled_from([50, 75, 100, 250, 500]), st.integers(0, 99))
def test_shot_noise_counts_photons(level, photons, seed):
    from scipy.stats import kstest, poisson

    counts = shot_noise(torch.full((4, 1, 32, 32), level / 255), draws(4, seed), photons).double().numpy() * photons
    np.testing.assert_allclose(counts, counts.round(), atol=1e-3)
    mean = photons * level / 255
    if level == 0:
        assert (counts == 0).all()
    else:
        jitter = np.random.default_rng(seed).random(
            counts.size
        )  # the randomised transform of a discrete law is uniform
        k = counts.round().ravel()
        u = poisson(mean).cdf(k - 1) + jitter * poisson(mean).pmf(k)
        assert kstest(u, "uniform").pvalue > 1e-5


def test_impulses_are_black_and_white_by_halves():
    x = torch.full((40, 3, 32, 32), 0.5)
    out = impulse_noise(x, draws(40), 0.07)
    black, white = (float((out == v).float().mean()) for v in (0, 1))
    assert black == pytest.approx(0.035, rel=0.05)
    assert white == pytest.approx(0.035, rel=0.05)
    assert ((out == 0.5) | (out == 0) | (out == 1)).all()


# -- blur ------------------------------------------------------------------------------------------------------------


def convolved(image: np.ndarray, kernel: np.ndarray, mode: str) -> np.ndarray:
    """One channel, pixel by pixel."""
    reach = len(kernel) // 2
    wide = np.pad(image.astype(np.float64), reach, mode=mode)
    out = np.zeros(image.shape)
    for i in range(image.shape[0]):
        for j in range(image.shape[1]):
            out[i, j] = (wide[i : i + len(kernel), j : j + len(kernel)] * kernel).sum()
    return out


@pytest.mark.parametrize("sigma", [0.4, 1.0])
def test_gaussian_blur_is_a_convolution(sigma):
    x = floats(2, 3, 9, 7)
    line = np.exp(-0.5 * (np.arange(-int(4 * sigma + 0.5), int(4 * sigma + 0.5) + 1) / sigma) ** 2)
    kernel = np.outer(line, line) / line.sum() ** 2
    known = np.stack([[convolved(c, kernel, "edge") for c in image] for image in x.numpy()])
    np.testing.assert_allclose(gaussian_blur(x, draws(2), sigma).numpy(), known, atol=1e-6)


@pytest.mark.parametrize(("radius", "softness"), SEVERITIES["defocus_blur"])
def test_defocus_blur_is_a_disc_with_a_soft_edge(radius, softness):
    x = floats(1, 2, 12, 9)
    grid = np.arange(-8, 9)
    disc = (grid[:, None] ** 2 + grid[None] ** 2 <= radius**2) / np.sum(
        grid[:, None] ** 2 + grid[None] ** 2 <= radius**2
    )
    line = np.array([exp(-0.5 * (i / softness) ** 2) for i in (-1, 0, 1)])
    kernel = convolved(disc, np.outer(line, line) / line.sum() ** 2, "constant")
    assert kernel.sum() == pytest.approx(1)
    wide = np.pad(x.numpy(), ((0, 0), (0, 0), (7, 7), (7, 7)), mode="reflect")
    known = np.stack([convolved(c, kernel, "reflect")[7:-7, 7:-7] for c in wide[0]])
    np.testing.assert_allclose(defocus_blur(x, draws(1), radius, softness)[0].numpy(), known, atol=1e-6)


def test_glass_blur_is_the_authors_loop():
    """Their loop over places, with what it really does: x[h, w] takes its neighbour's value, and nothing comes back."""
    x, source = floats(3, 2, 9, 8), draws(3)
    known = smoothed(x, 0.4, "nearest").numpy().copy()
    for turn in range(2):
        back = source.integers(f"moves {turn}", 2, 9, 8, low=0, high=2).numpy()
        for i, image in enumerate(known):
            for h in range(9 - 1, 1, -1):
                for w in range(8 - 1, 1, -1):
                    image[:, h, w] = image[:, h - back[i, 0, h, w], w - back[i, 1, h, w]]
    known = smoothed(torch.from_numpy(known), 0.4, "nearest")
    torch.testing.assert_close(glass_blur(x, source, 0.4, 2), known)
    for reach in (2, 3):
        known = smoothed(x, 0.4, "nearest").numpy().copy()
        for turn in range(2):
            back = source.integers(f"moves {turn}", 2, 9, 8, low=1 - reach, high=reach + 1).numpy()
            for i, image in enumerate(known):
                for h in range(9 - reach, reach, -1):
                    for w in range(8 - reach, reach, -1):
                        image[:, h, w] = image[:, h - back[i, 0, h, w], w - back[i, 1, h, w]]
        known = smoothed(torch.from_numpy(known), 0.4, "nearest")
        torch.testing.assert_close(glass_blur(x, source, 0.4, 2, reach), known)
    still = glass_blur(x, source, 1e-6, 1)
    moved = still != x
    assert 0.6 < float(moved[:, :, 2:, 2:].float().mean()) < 0.9  # three quarters come from a neighbour
    assert not moved[:, :, :2].any()


@pytest.mark.parametrize("angle", [-135.0, -60.0, -45.0, 0.0, 20.0, 45.0, 90.0])
def test_streaks_are_half_a_gaussian_in_one_direction(angle):
    x, radius, sigma = floats(2, 1, 9, 11), 3, 1.5
    weights = np.array([exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)])
    known = np.zeros(x.shape)
    for n in range(2):
        for h in range(9):
            for w in range(11):
                for i, weight in enumerate(weights / weights.sum()):
                    dy, dx = (ceil(i * f(np.deg2rad(angle)) - 0.5) for f in (np.sin, np.cos))
                    known[n, 0, h, w] += weight * float(x[n, 0, min(max(h + dy, 0), 8), min(max(w + dx, 0), 10)])
    found = streaked(x, radius, sigma, torch.full((2,), angle, dtype=torch.float64))
    np.testing.assert_allclose(found.numpy(), known, atol=1e-6)


def test_motion_stays_within_45_degrees_of_the_horizontal():
    x = torch.zeros(200, 1, 33, 33)
    x[:, :, 16, 16] = 1
    out = motion_blur(x, draws(200), 9, 2.5)
    torch.testing.assert_close(out.sum((1, 2, 3)), torch.ones(200), atol=1e-4, rtol=0)
    place = torch.arange(33.0) - 16
    right = (out * place).sum((1, 2, 3))
    down = (out * place[:, None]).sum((1, 2, 3))
    assert (down.abs() <= right.abs() + 0.2).all()
    assert float(down.max()) > 0.5
    assert float(down.min()) < -0.5


@pytest.mark.parametrize("zoom", [1.0, 1.01, 1.05, 1.25, 1.75, 2.25])
@pytest.mark.parametrize("size", [8, 32, 33])
def test_enlarging_is_scipys_zoom_of_the_middle(zoom, size):
    from scipy.ndimage import zoom as scipys

    x = floats(1, 2, size, size)
    part = ceil(size / zoom)
    top = (size - part) // 2
    known = np.stack([scipys(c[top : top + part, top : top + part], zoom, order=1) for c in x[0].numpy()])
    trim = (known.shape[1] - size) // 2
    np.testing.assert_allclose(
        enlarged(x, zoom)[0].numpy(), known[:, trim : trim + size, trim : trim + size], atol=1e-5
    )


def test_zoom_blur_counts_the_image_twice():
    x = floats(2, 3, 33, 33)
    torch.testing.assert_close(zoom_blur(x, draws(2), 0), x)
    known = (2 * x + sum(enlarged(x, z) for z in (1.01, 1.02, 1.03, 1.04, 1.05, 1.06))) / 8
    torch.testing.assert_close(zoom_blur(x, draws(2), 6), known)


# -- weather ---------------------------------------------------------------------------------------------------------


def test_plasma_is_midpoint_displacement():
    """The same displacements, place by place with remainders: every new point from its four neighbours on a torus."""
    source, n, rough = draws(2), 8, 1.75
    found = plasma(source, 8, rough)
    for row in range(2):
        grid, step, reach = np.zeros((n, n)), n, 1.0
        while step >= 2:
            half, count = step // 2, n // step
            shift = {
                kind: source.uniform(f"{kind} {step}", count, count, low=-reach, high=reach)[row].numpy()
                for kind in ("middle", "upper", "left")
            }
            at = lambda i, j: grid[i % n, j % n]  # noqa: E731
            for i in range(count):
                for j in range(count):
                    y, x = i * step, j * step
                    corners = at(y, x) + at(y, x + step) + at(y + step, x) + at(y + step, x + step)
                    grid[y + half, x + half] = corners / 4 + shift["middle"][i, j]
            for i in range(count):
                for j in range(count):
                    y, x = i * step, j * step
                    across = at(y, x) + at(y, x + step) + at(y + half, x + half) + at(y - half, x + half)
                    along = at(y, x) + at(y + step, x) + at(y + half, x + half) + at(y + half, x - half)
                    grid[y, x + half] = across / 4 + shift["upper"][i, j]
                    grid[y + half, x] = along / 4 + shift["left"][i, j]
            step, reach = half, reach / rough**2
        grid = (grid - grid.min()) / (grid.max() - grid.min())
        np.testing.assert_allclose(found[row, 0].numpy(), grid, atol=1e-5)


def test_fog_brightens_the_dark_and_keeps_the_brightest():
    x = floats(4, 3, 32, 32)
    torch.testing.assert_close(fog(x, draws(4), 0.0, 3), x)
    out = fog(torch.zeros(4, 3, 32, 32) + torch.eye(32), draws(4), 1.5, 1.75)  # brightest 1
    assert float(out.max()) <= 1 + 1e-6
    assert float(out[:, :, 0, 1:].mean()) > 0.1
    assert plasma(draws(3), 33, 2).shape == (3, 1, 64, 64)


def test_snow_without_flakes_is_a_whitened_image():
    x = floats(3, 3, 8, 8)
    none = snow(x, draws(3), mean=-9, std=0.1, size=1, low=0.5, radius=3, sigma=1, kept=0.8)
    grey = 0.299 * x[:, :1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:]
    torch.testing.assert_close(none, 0.8 * x + 0.2 * torch.maximum(x, 1.5 * grey + 0.5))
    torch.testing.assert_close(snow(x, draws(3), -9, 0.1, 1, 0.5, 3, 1, 1.0), x)
    flakes = snow(x, draws(3), 0.3, 0.3, 1.25, 0.65, 14, 12, 1.0) - x
    assert float(flakes.min()) >= -1e-6
    torch.testing.assert_close(flakes, flakes.flip(2, 3))  # they fall both ways
    torch.testing.assert_close(flakes[:, :1].expand_as(flakes), flakes, atol=1e-6, rtol=0)  # and are white


def test_frost_adds_pale_blue():
    x = floats(3, 3, 32, 32)
    torch.testing.assert_close(frost(x, draws(3), 1.0, 0.0), x)
    ice = frost(x * 0, draws(3), 1.0, 1.0)
    assert float(ice.min()) >= 0
    assert float(ice.max()) <= 1
    red, green, blue = ice.mean((0, 2, 3)).tolist()
    assert blue > green > red > 0.2
    assert float(ice[:, 2].std()) > 0.1  # a texture, not a veil


@settings(max_examples=60, deadline=None)
@given(st.tuples(*[st.integers(0, 255)] * 3), st.integers(1, 5))
def test_brightness_and_saturation_are_those_of_hsv(rgb, severity):
    x = torch.tensor(rgb, dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 4, 4).contiguous()
    h, s, v = colorsys.rgb_to_hsv(*(c / 255 for c in rgb))
    (amount,) = SEVERITIES["brightness"][severity - 1]
    known = colorsys.hsv_to_rgb(h, s, min(v + amount, 1))
    found = corrupt(x, "brightness", severity)[0, :, 0, 0]
    assert np.abs(found.numpy() - 255 * np.array(known)).max() <= 0.5 + 1e-3
    factor, added = SEVERITIES["saturate"][severity - 1]
    known = colorsys.hsv_to_rgb(h, min(s * factor + added, 1), v)
    found = corrupt(x, "saturate", severity)[0, :, 0, 0]
    assert np.abs(found.numpy() - 255 * np.array(known)).max() <= 0.5 + 1e-3


# -- digital ---------------------------------------------------------------------------------------------------------


def test_contrast_draws_each_channel_to_its_mean():
    x = photos(4)
    out, y = corrupt(x, "contrast", 3).double(), x.double()
    torch.testing.assert_close(out.mean((2, 3)), y.mean((2, 3)), atol=0.2, rtol=0)
    torch.testing.assert_close(out.std((2, 3)), 0.4 * y.std((2, 3)), atol=0.2, rtol=0)


@pytest.mark.parametrize("size", [8, 28, 32, 33])
@pytest.mark.parametrize("severity", range(1, 6))
def test_pixelate_is_pillows(size, severity):
    x = photos(3, height=size, width=size)
    left = int(size * SEVERITIES["pixelate"][severity - 1][0])
    for before, after in zip(x.permute(0, 2, 3, 1).numpy(), corrupt(x, "pixelate", severity), strict=True):
        small = Image.fromarray(before).resize((left, left), Image.Resampling.BOX)
        known = np.asarray(small.resize((size, size), Image.Resampling.BOX))
        assert np.abs(after.permute(1, 2, 0).numpy().astype(int) - known).max() <= 1  # Pillow rounds on its way
    torch.testing.assert_close(pixelate(x.float(), draws(3), 1.0), x.float())


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_pillows(channels):
    x = photos(3, channels)
    for before, after in zip(x, corrupt(x, "jpeg_compression", 3), strict=True):
        file = BytesIO()
        Image.fromarray(before.permute(1, 2, 0).numpy().squeeze()).save(file, "JPEG", quality=58)
        known = np.asarray(Image.open(file)).reshape(32, 32, channels)
        assert np.array_equal(after.permute(1, 2, 0).numpy(), known)


@pytest.mark.parametrize(("twice", "mode"), [(False, "mirror"), (True, "reflect")])
def test_sampling_is_scipys(twice, mode):
    from scipy.ndimage import map_coordinates

    x = floats(2, 2, 7, 9)
    rows, columns = torch.rand(2, 7, 9) * 12 - 3, torch.rand(2, 7, 9) * 14 - 3
    found = sampled(x, rows, columns, mirrored_twice=twice)
    for n in range(2):
        for c in range(2):
            known = map_coordinates(x[n, c].numpy(), [rows[n].numpy(), columns[n].numpy()], order=1, mode=mode)
            np.testing.assert_allclose(found[n, c].numpy(), known, atol=1e-5)


def test_elastic_moves_three_points_to_where_they_were_sent():
    height, width, reach = 30, 24, 2.0
    source = draws(5)
    rows, columns = _affine(source, height, width, reach)
    corners = np.array([[23.0, 20], [23, 4], [7, 4]])
    moved = corners + source.uniform("corners", 3, 2, low=-reach, high=reach).numpy()
    ys, xs = np.arange(height), np.arange(width)
    for n in range(5):  # an affine field is exact under bilinear interpolation, within the image
        from scipy.interpolate import RegularGridInterpolator

        for origin, axis in ((rows, 0), (columns, 1)):
            at = RegularGridInterpolator((ys, xs), origin[n].numpy(), bounds_error=False, fill_value=None)
            np.testing.assert_allclose(at(moved[n]), corners[:, axis], atol=1e-8)
    x = floats(5, 3, 30, 24)
    torch.testing.assert_close(elastic_transform(x, draws(5), 0.0, 0.0, 0.0), x, atol=1e-5, rtol=0)


def test_elastic_fields_are_smooth_noise_of_their_strength():
    """On a slope along the columns the picture shows the displacement itself."""
    slope = torch.arange(64.0).expand(1, 1, 64, 64).repeat(8, 1, 1, 1)
    bent = elastic_transform(slope, draws(8), 0.1, 0.04, 0.0)
    shift = (bent - slope)[..., 16:-16]
    sigma = 0.04 * 64  # independent uniform numbers smoothed: variance 1/3 over 4 pi sigma^2
    assert float(shift.std()) == pytest.approx(6.4 * (1 / 3 / (4 * np.pi * sigma**2)) ** 0.5, rel=0.15)


# -- spatter ---------------------------------------------------------------------------------------------------------


def test_edges_of_a_block_are_its_outline_and_weak_ones_need_a_strong_one():
    x = np.zeros((3, 20, 20), dtype=np.uint8)
    x[0, 5:15, 6:16] = 200
    found = edges(x)
    assert not found[1:].any()  # nothing leaks into the next image
    from scipy.ndimage import binary_dilation, binary_erosion

    block = x[0] > 0
    outline = binary_dilation(block) & ~binary_erosion(block, iterations=2)
    assert found[0].sum() > 30
    assert not (found[0] & ~outline).any()
    assert not edges(np.where(x > 0, 25, 0).astype(np.uint8)).any()  # a slope of at most 100 is weak
    x[2, :, 10:] = np.linspace(15, 200, 20).astype(np.uint8)[:, None]  # a step that grows from weak to strong
    assert edges(x)[2].any(1)[1:-1].all()
    x[1] = x[0] // 8  # weak, and in the place of the strong outline of the image before
    assert not edges(x)[1].any()


def test_equalising_spreads_levels_by_rank():
    x = np.random.default_rng(0).integers(0, 40, (3, 6, 7)).astype(np.uint8)
    x[2] = 9
    found = equalised(x)
    for before, after in zip(x[:2], found[:2], strict=True):
        lowest = (before == before.min()).sum()
        known = [[round(((before <= v).sum() - lowest) * 255 / (before.size - lowest)) for v in row] for row in before]
        assert np.array_equal(after, known)
    assert np.array_equal(found[2], x[2])


def test_refraction_of_each_image_is_its_own():
    x = np.zeros((3, 16, 16), dtype=np.uint8)
    x[0, 4:9, 4:9], x[2, 8:14, 2:12] = 200, 190
    together = refraction(x)
    for i in range(3):
        np.testing.assert_array_equal(together[i], refraction(x[i : i + 1])[0])
    assert not together[1].any()
    assert together[0][x[0] == 0].max() == 0  # it shines where there is liquid


def test_mud_covers_and_water_shines():
    x = floats(6, 3, 32, 32)
    muddy = spatter(x, draws(6), *SEVERITIES["spatter"][4])
    brown = torch.tensor(MUD).view(1, 3, 1, 1)
    covered = ((muddy - brown).abs().amax(1) < (x - brown).abs().amax(1) * 0.21) & (muddy != x).any(1)
    changed = (muddy != x).any(1)
    assert torch.equal(covered, changed)
    assert 0.005 < float(changed.float().mean()) < 0.3
    wet = spatter(x, draws(6), *SEVERITIES["spatter"][2]) - x
    assert float(wet.min()) >= 0
    assert float(wet.amax((1, 2, 3)).min()) == pytest.approx(0.5 * 238 / 255, abs=1e-5)
    dry = spatter(x, draws(6), 0.1, 0.01, 1, 0.69, 0.5, 0)
    assert torch.equal(dry, x)  # no drop, no division by zero


# -- whole data sets and their cache ---------------------------------------------------------------------------------


def dataset(rows=5) -> Dataset:
    return Dataset("photos", photos(rows), torch.arange(rows) % 3, ("a", "b", "c"))


@pytest.fixture
def made(monkeypatch):
    """How often images were made."""
    calls = []
    whole = registry.corrupt
    monkeypatch.setattr(registry, "corrupt", lambda *a: calls.append(a[1:]) or whole(*a))
    return calls


def test_corrupted_keeps_targets_and_caches_images(tmp_path, made):
    data = dataset()
    plain = corrupted(data, "fog", 2, seed=1)
    first, again = (corrupted(data, "fog", 2, seed=1, cache=tmp_path / "deep" / "er") for _ in range(2))
    assert len(made) == 2  # without a cache, and once with it
    for found in (plain, first, again):
        assert torch.equal(found.inputs, corrupt(data.inputs, "fog", 2, 1))
        assert torch.equal(found.targets, data.targets)
        assert found.classes == data.classes
        assert found.name == "photos-fog-2"
    (file,) = (tmp_path / "deep" / "er").iterdir()
    assert np.array_equal(np.load(file, allow_pickle=False), plain.inputs.numpy())  # anybody can read it


def test_everything_that_matters_is_in_the_key(tmp_path, made, monkeypatch):
    data = dataset()
    other = Dataset("photos", data.inputs.clone(), data.targets, data.classes)
    other.inputs[2, 1, 3, 3] += 1
    for d, name, severity, seed in (
        (data, "contrast", 1, 0), (data, "brightness", 1, 0), (data, "contrast", 2, 0), (data, "contrast", 1, 1),
        (other, "contrast", 1, 0), (dataset(4), "contrast", 1, 0),
    ):  # fmt: skip
        corrupted(d, name, severity, seed, tmp_path)
    corrupted(data, "contrast", 1, 0, tmp_path, "tiny-imagenet")
    assert len(made) == len(list(tmp_path.iterdir())) == 7
    registry._makers.cache_clear()
    monkeypatch.setattr(registry, "version", lambda library: "another release")
    corrupted(data, "contrast", 1, 0, tmp_path)
    assert len(made) == 8
    registry._makers.cache_clear()


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "other", "code"])
def test_a_damaged_cache_is_made_again(tmp_path, made, damage):
    data = dataset()
    known = corrupted(data, "snow", 3, cache=tmp_path).inputs
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    changed = bytearray(whole)
    changed[-200] ^= 1
    pickled = BytesIO()
    np.save(pickled, np.array([print], dtype=object), allow_pickle=True)
    file.write_bytes(
        {"cut": whole[:-100], "empty": b"", "flipped": bytes(changed), "other": b"x" * 999, "code": pickled.getvalue()}[
            damage
        ]
    )
    assert torch.equal(corrupted(data, "snow", 3, cache=tmp_path).inputs, known)
    assert len(made) == 2
    assert file.read_bytes() == whole
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_write_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        corrupted(dataset(), "fog", 1, cache=tmp_path)
    assert not list(tmp_path.iterdir())
