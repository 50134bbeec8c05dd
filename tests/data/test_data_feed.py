"""The feed as a function of (seed, epoch, step), and the numbers that a model sees."""

import numpy as np
import pytest
import torch
from host_syncs import host_syncs
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from steppe.data.augment import AUGMENTATIONS, Augmentations, augmentation
from steppe.data.dataset import Dataset
from steppe.data.feed import BatchStream, batches
from steppe.data.pixels import Standard

ALL = ["resized-crop", "colour-jitter", "crop", "flip", "randaugment", "mixup"]


def numbered(rows: int) -> Dataset:
    return Dataset("rows", torch.arange(rows).view(-1, 1), torch.arange(rows))


def photos(rows=40, channels=3, size=8, seed=0) -> Dataset:
    draws = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (rows, channels, size, size), generator=draws, dtype=torch.uint8)
    return Dataset("photos", x, torch.randint(0, 10, (rows,), generator=draws), tuple("0123456789"))


def same(a, b) -> bool:
    return all(torch.equal(p, q) for one, other in zip(a, b, strict=True) for p, q in zip(one, other, strict=True))


# -- order -----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(-2, 2**40), st.integers(0, 1000))
def test_an_epoch_is_whole_batches_of_different_rows(rows, size, seed, epoch):
    data = numbered(rows)
    if size > rows:
        with pytest.raises(ValueError, match=f"from 1 to {rows}"):
            BatchStream(data, size, seed)
        return
    feed = BatchStream(data, size, seed)
    found = list(feed.epoch(epoch))
    assert len(found) == len(feed) == rows // size
    assert all(len(x) == size and torch.equal(x.squeeze(1), y) for x, y in found)
    seen = torch.cat([y for _, y in found]).tolist()
    assert len(set(seen)) == len(seen) == size * (rows // size)
    assert same(found, feed.epoch(epoch))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 6), st.integers(0, 2**40), st.integers(0, 50))
def test_going_on_in_the_middle_gives_what_would_have_come(start, seed, epoch):
    feed = BatchStream(photos(), 6, seed, augmentation(ALL, 10), Standard((0.5,) * 3, (0.2,) * 3))
    for ahead in (1, 12, 24, 2048):  # batches one by one, in twos, in fours (the last two alone), and all together
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("steppe.data.feed.AHEAD", ahead)
            whole = list(feed.epoch(epoch))
            torch.manual_seed(seed % 1000)
            torch.rand(3)
            list(BatchStream(photos(), 6, seed + 1, augmentation(ALL, 10)).epoch(0))  # whatever ran before
            assert len(whole) == 6
            assert same(whole[start:], feed.epoch(epoch, start=start))


def test_epochs_and_seeds_have_other_orders_and_rows_are_left_out_evenly():
    data = numbered(10)
    orders = {
        (s, e): tuple(torch.cat([y for _, y in BatchStream(data, 3, s).epoch(e)]).tolist())
        for s in range(2)
        for e in range(300)
    }
    assert len(set(orders.values())) > 590
    left_out = torch.bincount(torch.tensor([45 - sum(o) for o in orders.values()]), minlength=10)  # 9 of 10 rows come
    assert left_out.min() > 35
    assert left_out.max() < 85


def test_the_order_of_rows_is_fixed_for_ever():
    """A run that goes on with a later release goes on with the same rows: these numbers may not change."""
    assert torch.cat([y for _, y in BatchStream(numbered(8), 4, seed=1).epoch(2)]).tolist() == [6, 4, 3, 7, 1, 5, 0, 2]


def test_augmentation_changes_with_step_epoch_and_seed():
    same_row = Dataset("one", torch.arange(256, dtype=torch.uint8).repeat(8, 1).view(8, 1, 16, 16), torch.zeros(8))
    outs = [
        x
        for seed in range(2)
        for epoch in range(2)
        for x, _ in BatchStream(same_row, 4, seed, augmentation(["crop", "flip"])).epoch(epoch)
    ]
    assert len(outs) == 8
    assert all(not torch.equal(a, b) for i, a in enumerate(outs) for b in outs[:i])


@pytest.mark.parametrize("ahead", [1, 20, 2048])
def test_batches_made_together_are_those_made_alone(ahead, monkeypatch):
    """But for their draws: the same rows, each cropped from its own image, and mixed within its own batch."""
    monkeypatch.setattr("steppe.data.feed.AHEAD", ahead)
    data = Dataset(
        "own", torch.arange(1, 41, dtype=torch.uint8).view(40, 1, 1, 1).expand(40, 1, 9, 9), torch.arange(40)
    )
    plain = [y for _, y in BatchStream(data, 10, 3).epoch(1)]
    for (x, y), rows in zip(BatchStream(data, 10, 3, augmentation(["crop", "flip"])).epoch(1), plain, strict=True):
        assert torch.equal(y, rows)
        assert torch.equal(x.amax((1, 2, 3)).long(), rows + 1)
    for (x, soft), rows in zip(BatchStream(data, 10, 3, augmentation(["mixup"], 40)).epoch(1), plain, strict=True):
        others = torch.ones(40, dtype=torch.bool).index_fill(0, rows, False)
        assert float(soft[:, others].sum()) == 0
        torch.testing.assert_close(x[:, 0, 4, 4], soft @ torch.arange(1.0, 41.0))


def test_mixup_draws_anew_for_every_batch_made_together():
    data = Dataset("own", torch.zeros(40, 1), torch.arange(40))
    softs = [soft.max(1).values.min() for _, soft in BatchStream(data, 10, 3, augmentation(["mixup"], 40)).epoch(0)]
    assert len({round(float(s), 4) for s in softs}) == 4


# -- several processes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [[], ["crop", "flip"], ALL])
@pytest.mark.parametrize("world", [2, 3, 6])
def test_processes_share_the_batches_of_one(names, world):
    augment = augmentation(names, 10) if names else None
    alone = list(BatchStream(photos(), 12, 5, augment).epoch(3))
    parts = [list(BatchStream(photos(), 12, 5, augment, rank=r, world=world).epoch(3)) for r in range(world)]
    for step, (x, y) in enumerate(alone):
        assert torch.equal(torch.cat([p[step][0] for p in parts]), x)
        assert torch.equal(torch.cat([p[step][1] for p in parts]), y)
        assert all(len(p[step][0]) == 12 // world for p in parts)


def test_unequal_shares_are_refused():
    with pytest.raises(ValueError, match="multiple of the number of processes"):
        BatchStream(photos(), 10, rank=0, world=4)
    with pytest.raises(ValueError, match="process 2 of 2"):
        BatchStream(photos(), 10, rank=2, world=2)


@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 4))
def test_evaluation_sees_every_row_once_and_in_order(rows, size, world):
    data = numbered(rows)
    alone = list(batches(data, size))
    assert torch.cat([y for _, y in alone]).tolist() == list(range(rows))
    assert all(len(y) == size for _, y in alone[:-1])
    shared = [int(i) for r in range(world) for _, y in batches(data, size, rank=r, world=world) for i in y]
    assert sorted(shared) == list(range(rows))


def test_evaluation_is_standardised_too():
    data, standard = photos(), Standard.of(photos())
    x = torch.cat([x for x, _ in batches(data, 7, standard)])
    torch.testing.assert_close(x, standard(data.inputs))


# -- cost ------------------------------------------------------------------------------------------------------------


class Calls(TorchDispatchMode):
    """The kernels that would be launched, by name: views launch none."""

    VIEWS = (
        "view",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "unbind",
        "unfold",
        "detach",
        "alias",
        "permute",
        "empty",
    )

    def __init__(self):
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").split(".")[0].strip("_")
        if name not in self.VIEWS:
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("names", [["crop", "flip"], *([name] for name in sorted(AUGMENTATIONS))])
def test_a_batch_is_a_few_kernels_and_never_waits_for_the_device(names, monkeypatch):
    monkeypatch.setattr("steppe.data.feed.AHEAD", 1)  # otherwise it is fewer still
    data = photos()
    feed = BatchStream(data, 8, 0, augmentation(names, 10), Standard.of(data)).epoch(0)
    next(feed)  # what is made once
    with Calls() as calls:
        next(feed)
    waiting = {"local_scalar_dense", "item", "nonzero", "masked_select", "unique2", "equal"}
    assert not waiting & set(calls.names), calls.names
    assert len(calls.names) <= (14 if "crop" in names else 150), calls.names


def test_large_images_are_not_prepared_far_ahead(monkeypatch):
    data, seen = photos(), []

    def watched(images, targets, draws):
        seen.append(len(images))
        return images, targets

    augment = Augmentations((watched,))
    list(BatchStream(data, 4, 0, augment).epoch(0))
    assert seen == [40]  # small images: all at once
    seen.clear()
    monkeypatch.setattr("steppe.data.feed.MOST_AHEAD", 3 * 8 * 8 * 9)
    list(BatchStream(data, 4, 0, augment).epoch(0))
    assert seen == [8] * 5  # two batches of four, which are at most nine images
    seen.clear()
    monkeypatch.setattr("steppe.data.feed.MOST_AHEAD", 1)
    list(BatchStream(data, 4, 0, augment).epoch(0))
    assert seen == [4] * 10  # never less than a batch


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gets_the_same_rows_without_waiting():
    data = photos()
    feed = BatchStream(data.to("cuda"), 8, 0, augmentation(ALL, 10), Standard.of(data)).epoch(0)
    next(feed)
    with host_syncs() as seen:
        list(feed)
    assert not seen
    plain = [y.cpu() for _, y in BatchStream(data.to("cuda"), 8, 0).epoch(4)]
    assert all(torch.equal(a, b) for a, (_, b) in zip(plain, BatchStream(data, 8, 0).epoch(4), strict=True))


# -- pixels ----------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(1, 9), st.sampled_from([1, 3]), st.integers(0, 99))
def test_standard_is_numpys_mean_and_deviation(rows, channels, seed):
    data = photos(rows, channels, 5, seed)
    standard, x = Standard.of(data), data.inputs.numpy() / 255.0
    np.testing.assert_allclose(standard.mean, x.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(standard.std, x.std((0, 2, 3)), rtol=1e-9)
    by_hand = (x - x.mean((0, 2, 3), keepdims=True)) / x.std((0, 2, 3), keepdims=True)
    out = standard(data.inputs)
    assert out.dtype == torch.float32
    np.testing.assert_allclose(out.numpy(), by_hand, atol=2e-6)
    torch.testing.assert_close(standard(data.inputs.float()), out)  # mixup makes floats of bytes


def test_standard_counts_in_blocks(monkeypatch):
    data = photos(50)
    whole = Standard.of(data)
    monkeypatch.setattr("steppe.data.pixels.BLOCK", 3 * 64)
    assert Standard.of(data) == whole


def test_numbers_pass_as_they_are():
    data = Dataset("numbers", torch.randn(5, 3), torch.randn(5, 1))
    assert Standard.of(data) == Standard()
    assert Standard()(data.inputs) is data.inputs
    ids = torch.arange(3)
    assert Standard()(ids) is ids  # token ids
    assert Standard()(ids.to(torch.uint8)).dtype == torch.float32


def test_a_channel_of_one_colour_stays_finite():
    data = Dataset("flat", torch.full((2, 1, 2, 2), 51, dtype=torch.uint8), torch.zeros(2))
    assert Standard.of(data) == Standard((0.2,), (1.0,))
    assert float(Standard.of(data)(data.inputs).abs().max()) < 1e-6


def test_standard_refuses_other_channels():
    with pytest.raises(ValueError, match="means of 3 channels, and images have 1"):
        Standard((0.5,) * 3, (1.0,) * 3)(torch.zeros(1, 1, 2, 2))
