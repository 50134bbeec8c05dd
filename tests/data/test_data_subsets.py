"""Parts of data sets and wrong labels: laws that hold for every data set."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.data.dataset import Dataset, Splits
from steppe.data.subsets import first, per_class, set_aside, split, symmetric_noise


def numbered(labels, classes=None) -> Dataset:
    """Rows that know their own number."""
    targets = torch.tensor(labels)
    return Dataset(
        "rows", torch.arange(len(targets)).view(-1, 1), targets, tuple(map(str, range(classes or max(labels) + 1)))
    )


LABELS = st.lists(st.integers(0, 4), min_size=2, max_size=80)
FRACTIONS = st.floats(0.01, 0.99)


def numbers(part: Dataset) -> list[int]:
    return part.inputs.squeeze(1).tolist()


# -- subsets ---------------------------------------------------------------------------------------------------------


def test_first_tenth_of_cifars_size_is_5000_rows():
    data = Dataset("x", torch.zeros(50000, 1), torch.zeros(50000))
    assert len(first(data, 0.1)) == 5000
    assert len(first(Dataset("x", torch.zeros(100, 1), torch.zeros(100)), 0.29)) == 29  # 0.29 * 100 is below 29


@pytest.mark.parametrize("fraction", [0, -0.5, 1.5, 0.01, float("nan")])
def test_first_refuses_what_is_no_row(fraction):
    with pytest.raises(ValueError, match="no row of 10"):
        first(numbered([0, 1] * 5), fraction)


@given(LABELS, FRACTIONS)
def test_first_keeps_the_beginning(labels, fraction):
    data = numbered(labels)
    n = round(fraction * len(labels))
    if n:
        assert numbers(first(data, fraction)) == list(range(n))


@given(LABELS, st.integers(1, 10))
def test_per_class_takes_the_first_of_each(labels, n):
    data = numbered(labels, 5)
    seen: dict[int, list[int]] = {c: [] for c in range(5)}
    for i, label in enumerate(labels):
        seen[label].append(i)
    if min(map(len, seen.values())) < n:
        with pytest.raises(ValueError, match=f"{n} rows per class"):
            per_class(data, n)
    else:
        part = per_class(data, n)
        assert numbers(part) == sorted(i for rows in seen.values() for i in rows[:n])
        assert part.targets.tolist() == [labels[i] for i in numbers(part)]


def test_per_class_needs_classes():
    with pytest.raises(ValueError, match="not classes"):
        per_class(Dataset("x", torch.zeros(3, 1), torch.zeros(3)), 1)


@given(LABELS, FRACTIONS, st.integers(0, 5))
def test_split_is_a_partition_in_proportion(labels, fraction, seed):
    data = numbered(labels)
    n = round(fraction * len(labels))
    if n in (0, len(labels)):
        with pytest.raises(ValueError, match="rows"):
            split(data, fraction, seed)
        return
    rest, part = split(data, fraction, seed)
    assert sorted(numbers(rest) + numbers(part)) == list(range(len(labels)))
    assert numbers(part) == sorted(numbers(part))
    assert numbers(rest) == sorted(numbers(rest))
    assert len(part) == n
    assert part.targets.tolist() == [labels[i] for i in numbers(part)]
    for label in set(labels):
        assert abs(part.targets.tolist().count(label) - labels.count(label) * n / len(labels)) < 1


def test_split_is_random_and_follows_its_seed():
    data = numbered([0, 1] * 500)
    parts = [numbers(split(data, 0.3, seed)[1]) for seed in range(200)]
    assert parts[0] == numbers(split(data, 0.3, 0)[1])
    assert len(set(map(tuple, parts))) == 200
    often = torch.bincount(torch.tensor(parts).flatten(), minlength=1000) / 200
    assert float(often.mean()) == pytest.approx(0.3)
    assert float(often.std()) == pytest.approx((0.3 * 0.7 / 200) ** 0.5, rel=0.15)  # every row has the same chance


def test_split_of_numbers_is_a_plain_random_part():
    data = Dataset("x", torch.arange(10).view(-1, 1), torch.rand(10))
    rest, part = split(data, 0.4, 1)
    assert sorted(numbers(rest) + numbers(part)) == list(range(10))
    assert len(part) == 4


def test_parts_set_aside_are_fractions_of_all_training_rows():
    train, test = numbered([0, 1, 2, 3] * 50), numbered([0, 1])
    found = set_aside(Splits(train, test), validation=0.1, held_out=0.25, seed=3)
    assert [len(found.train), len(found.validation), len(found.held_out)] == [130, 20, 50]
    assert found.test is test
    every = numbers(found.train) + numbers(found.validation) + numbers(found.held_out)
    assert sorted(every) == list(range(200))
    alone = set_aside(Splits(train, test), validation=0.1, seed=3)
    assert numbers(alone.validation) == numbers(found.validation)
    assert alone.held_out is None
    assert set_aside(Splits(train, test)).train is train
    with pytest.raises(ValueError, match="leave no rows"):
        set_aside(Splits(train, test), validation=0.5, held_out=0.5)


# -- label noise -----------------------------------------------------------------------------------------------------


def images(rows: int, classes: int = 10, seed: int = 0) -> Dataset:
    draws = torch.Generator().manual_seed(seed)
    inputs = torch.randint(0, 256, (rows, 1, 3, 3), generator=draws, dtype=torch.uint8)
    return Dataset(
        "images", inputs, torch.randint(0, classes, (rows,), generator=draws), tuple(map(str, range(classes)))
    )


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(2, 12), st.floats(0, 1), st.integers(-5, 2**40))
def test_exactly_that_many_labels_are_wrong(rows, classes, fraction, seed):
    data = images(rows, classes)
    noisy = symmetric_noise(data, fraction, seed)
    assert int((noisy.targets != data.targets).sum()) == round(fraction * rows)
    assert int(noisy.targets.min()) >= 0
    assert int(noisy.targets.max()) < classes
    assert noisy.inputs is data.inputs
    assert torch.equal(noisy.targets, symmetric_noise(data, fraction, seed).targets)


def test_wrong_labels_are_even_over_the_other_classes_and_rows():
    data = images(30000, 5)
    noisy = symmetric_noise(data, 0.4)
    table = torch.zeros(5, 5)
    table.index_put_((data.targets, noisy.targets), torch.ones(len(data)), accumulate=True)
    share = table / table.sum(1, keepdim=True)
    wanted = torch.full((5, 5), 0.1) + torch.eye(5) * 0.5  # 60 % stay, 10 % go to each other class
    assert (share - wanted).abs().max() < 0.015
    wrong = (data.targets != noisy.targets).float()
    assert float(wrong[:15000].mean()) == pytest.approx(0.4, abs=0.015)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.floats(0, 1))
def test_noise_follows_the_row_and_not_its_place(seed, fraction):
    data = images(60)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
    after, before = symmetric_noise(data, fraction, seed).rows(order), symmetric_noise(data.rows(order), fraction, seed)
    assert torch.equal(after.targets, before.targets)


def test_a_subset_gets_the_labels_of_the_whole():
    data = images(1000)
    whole, part = first(symmetric_noise(data, 0.4, 7), 0.5), symmetric_noise(first(data, 0.5), 0.4, 7)
    clean = first(data, 0.5).targets
    both = (whole.targets != clean) & (part.targets != clean)
    assert int(both.sum()) > 180  # almost the same rows: the exact share is the whole's or the part's
    assert torch.equal(whole.targets[both], part.targets[both])


def test_equal_rows_are_not_all_wrong_together():
    same = Dataset("same", torch.zeros(1000, 2), torch.zeros(1000, dtype=torch.int64), ("a", "b", "c"))
    counts = torch.bincount(symmetric_noise(same, 0.5).targets, minlength=3).tolist()
    assert counts[0] == 500
    assert 200 < counts[1] < 300


def test_seeds_give_other_noise():
    data = images(500)
    a, b = (symmetric_noise(data, 0.5, seed).targets for seed in (0, 1))
    assert 0.4 < float(((a != data.targets) == (b != data.targets)).float().mean()) < 0.6


def test_label_noise_says_what_it_needs():
    with pytest.raises(ValueError, match="two classes"):
        symmetric_noise(Dataset("x", torch.zeros(3, 1), torch.zeros(3)), 0.1)
    with pytest.raises(ValueError, match="from 0 to 1"):
        symmetric_noise(images(5), 1.2)
