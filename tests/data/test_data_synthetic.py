"""Data sets that need no download, against what is known of each."""

from math import pi

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import mse_loss

from steppe.data.built_in import digits, spirals, teacher, teacher_student

# -- digits ----------------------------------------------------------------------------------------------------------


def test_digits_are_scikit_learns_stretched_to_bytes():
    from sklearn.datasets import load_digits

    data, splits = load_digits(), digits()
    assert splits.train.inputs.dtype == torch.uint8
    assert splits.train.inputs.shape == (1200, 1, 8, 8)
    assert splits.test.inputs.shape == (597, 1, 8, 8)
    assert splits.train.classes == tuple("0123456789")
    both = torch.cat([splits.train.inputs, splits.test.inputs]).squeeze(1)
    labels = torch.cat([splits.train.targets, splits.test.targets])
    levels = (both.double() * 16 / 255).round().long()
    assert len(both.unique()) == len(levels.unique()) == 17  # no two levels met
    assert int(both.max()) == 255
    found = sorted((*x.flatten().tolist(), y) for x, y in zip(levels, labels.tolist(), strict=True))
    known = sorted(
        (*x.astype(int).flatten().tolist(), y) for x, y in zip(data.images, data.target.tolist(), strict=True)
    )
    assert found == known  # every row once, with its own label


def test_digits_are_always_in_the_same_order():
    """Whatever is published of them holds for the same rows: 1797 shuffled by torch with seed 0."""
    from sklearn.datasets import load_digits

    data, order = load_digits(), torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(data.data, dtype=torch.float32)[order] / 16, torch.tensor(data.target)[order]
    small = digits(600)
    for part, rows in ((small.train, slice(600)), (small.test, slice(600, None))):
        assert torch.equal(part.targets, y[rows])
        assert (part.inputs.flatten(1).float() / 255 - x[rows]).abs().max() <= 0.5 / 255 + 1e-6
    assert torch.equal(digits().train.inputs[:600], small.train.inputs)


@pytest.mark.parametrize("rows", [0, 1797, 5000])
def test_digits_refuse_a_split_with_an_empty_side(rows):
    with pytest.raises(ValueError, match="between 1 and 1796"):
        digits(rows)


# -- spirals ---------------------------------------------------------------------------------------------------------


def arm_distance(points: torch.Tensor, label: int, turns: float) -> torch.Tensor:
    """How far each point's radius is from the nearest crossing of a class's spiral with its ray."""
    angle = torch.atan2(points[:, 1], points[:, 0]) - pi * label
    radius = points.norm(dim=1)
    laps = (radius * turns - angle / (2 * pi)).round()  # radius = (angle + 2 pi lap) / (2 pi turns)
    return (radius - (angle / (2 * pi) + laps) / turns).abs()


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 300), st.floats(0.5, 3), st.integers(-3, 10**9))
def test_spirals_lie_on_their_curves(rows, turns, seed):
    found = spirals(rows, 7, turns, seed=seed)
    for part, n in ((found.train, rows), (found.test, 7)):
        assert part.inputs.shape == (n, 2)
        assert int((part.targets == 0).sum()) - int((part.targets == 1).sum()) in (0, 1)
        for label in (0, 1):
            own = part.inputs[part.targets == label].double()
            assert (arm_distance(own, label, turns) < 1e-5).all()
            far = own[own.norm(dim=1) > 0.2]
            assert (arm_distance(far, 1 - label, turns) > 0.4 / turns).all()  # half a pitch away, and no nearer
        assert part.inputs.norm(dim=1).max() <= 1 + 1e-6


def test_spirals_are_even_along_the_curve_and_beyond_any_line():
    part = spirals(20000, 10).train
    from scipy.stats import kstest

    assert kstest(part.inputs.double().norm(dim=1).square(), "uniform").pvalue > 1e-3
    ones = torch.cat([part.inputs, torch.ones(len(part), 1)], 1)
    line = torch.linalg.lstsq(ones, part.targets[:, None].float() * 2 - 1).solution
    right = ((ones @ line).squeeze(1) > 0) == part.targets.bool()
    assert right.float().mean() < 0.75


def test_noise_of_spirals_has_its_deviation_and_seeds_differ():
    clean, noisy = spirals(20000, 10, seed=3).train, spirals(20000, 10, noise=0.1, seed=3).train
    assert float((noisy.inputs - clean.inputs).std()) == pytest.approx(0.1, rel=0.02)
    assert torch.equal(spirals(seed=3).train.inputs, spirals(seed=3).train.inputs)
    assert not torch.equal(spirals(seed=3).train.inputs, spirals(seed=4).train.inputs)
    assert not torch.equal(spirals(100, 100).train.inputs, spirals(100, 100).test.inputs)


# -- teacher and student ---------------------------------------------------------------------------------------------


def test_teacher_reaches_loss_zero_and_so_does_a_wider_student():
    splits = teacher_student(50, 60, inputs=5, hidden=4, seed=2)
    w1, b1, w2, b2 = teacher(5, 4, 2).parameters()
    for part, n in ((splits.train, 50), (splits.test, 60)):
        assert part.inputs.shape == (n, 5)
        assert part.targets.shape == (n, 1)
        assert part.classes == ()
        by_hand = np.maximum(part.inputs.numpy() @ w1.numpy().T + b1.numpy(), 0) @ w2.numpy().T + b2.numpy()
        np.testing.assert_allclose(part.targets.numpy(), by_hand, atol=1e-5)
    wide = nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 1)).requires_grad_(False)
    wide[2].weight.zero_()
    wide[0].weight[:4], wide[0].bias[:4], wide[2].weight[:, :4], wide[2].bias[:] = w1, b1, w2, b2
    assert float(mse_loss(wide(splits.test.inputs), splits.test.targets)) < 1e-10
    assert float(splits.train.targets.var()) > 0.01  # not a constant


def test_teacher_follows_from_its_seed_alone():
    torch.manual_seed(0)
    first = teacher(seed=1)
    torch.manual_seed(123)
    again = teacher(seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first[0].weight, teacher(seed=2)[0].weight)
    assert not any(p.requires_grad for p in first.parameters())


def test_making_data_does_not_move_the_global_generator():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for make in (spirals, teacher_student, digits):
        make()
    assert torch.equal(torch.get_rng_state(), before)
