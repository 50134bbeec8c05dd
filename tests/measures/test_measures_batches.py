"""Data in every shape that people have it: the same rows give the same loss and gradient."""

from __future__ import annotations

import re
import weakref
from collections import Counter, UserDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import FLOAT, classification, dictionaries, make
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from steppe.measures.batches import as_batches, row, rows_of, take_rows
from steppe.measures.objective import Objective

SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=6)


def network() -> nn.Module:
    return make(classification).model


MODEL = network()


def table(rows: int = 11) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(rows, 4, dtype=FLOAT, generator=random)
    return x, torch.randint(0, 3, (rows,), generator=random)


def cut(tensors: Sequence[Tensor], sizes: Sequence[int]) -> list[tuple[Tensor, ...]]:
    return list(zip(*(t.split(list(sizes)) for t in tensors), strict=True))


def agree(a: Objective, b: Objective) -> None:
    """The same function, as far as two points tell."""
    for at in (None, a.draw(0).normal() * 0.3):
        one, two = a.gradient(at), b.gradient(at)
        assert one[0] == pytest.approx(two[0], rel=1e-12)
        assert a.loss(at) == pytest.approx(one[0], rel=1e-12)
        torch.testing.assert_close(one[1].tensors, two[1].tensors, rtol=1e-12, atol=1e-12)


# -- every shape is the same data -------------------------------------------------------------------------


class Lazy(Sequence[Any]):
    """Makes batches when they are asked for, and knows how many of them anybody still holds."""

    def __init__(self, batches: Sequence[Any]):
        self.source, self.reads, self.most = batches, Counter[int](), 0
        self._held: weakref.WeakSet[Tensor] = weakref.WeakSet()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, i: Any) -> Any:
        if not 0 <= i < len(self.source):
            raise IndexError(i)
        batch = tuple(t.clone() for t in self.source[i])
        self.reads[i] += 1
        self._held.add(batch[0])
        self.most = max(self.most, len(self._held))
        return batch


class Pair(NamedTuple):
    inputs: Tensor
    targets: Tensor


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(zip(*table(), strict=True))


SHAPES: dict[str, Callable[[], Any]] = {
    "a pair of tensors": table,
    "a named pair": lambda: Pair(*table()),
    "a list of batches": lambda: cut(table(), [5, 4, 2]),
    "batches as lists": lambda: [list(b) for b in cut(table(), [5, 4, 2])],
    "a tuple of batches": lambda: tuple(cut(table(), [6, 5])),
    "a lazy sequence": lambda: Lazy(cut(table(), [5, 4, 2])),
    "a generator": lambda: (b for b in cut(table(), [5, 4, 2])),
    "a loader": lambda: DataLoader(TensorDataset(*table()), batch_size=4),
    "a shuffled loader": lambda: DataLoader(TensorDataset(*table()), batch_size=4, shuffle=True),
    "a loader of a stream": lambda: DataLoader(Stream(), batch_size=3),
}


@pytest.mark.sampled(16)
@pytest.mark.parametrize("m", [None, 1, 3, 4, 11, 50])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_rows_are_the_same_function(shape: str, m: int | None) -> None:
    whole = Objective(network(), cross_entropy, table())
    objective = Objective(network(), cross_entropy, SHAPES[shape](), m=m)
    agree(objective, whole)
    assert objective.rows == 11
    if m is not None:
        assert list(objective.sizes) == [min(m, 11 - i) for i in range(0, 11, m)]


@pytest.mark.parametrize("m", [None, 2, 5, 12])
def test_dictionaries_too(m: int | None) -> None:
    case = make(dictionaries)
    loss, grad = case.objective(m=m).gradient()
    expected, expected_grad = case.moved()
    assert loss == pytest.approx(expected, rel=1e-12)
    torch.testing.assert_close(grad.tensors, expected_grad, rtol=1e-11, atol=1e-12)
    assert len(case.objective(m=m).batches) == {None: 3, 2: 6, 5: 3, 12: 1}[m]


def test_one_dictionary_is_one_batch() -> None:
    case = make(dictionaries)
    together = {key: torch.cat([b[key] for b in case.batches]) for key in case.batches[0]}
    agree(Objective(case.model, case.loss_fn, together, forward=case.forward), case.objective())


def test_other_mappings_are_batches_too() -> None:
    """Such as what tokenisers return, which is a UserDict."""
    case = make(dictionaries)
    data = [UserDict(b) for b in case.batches]
    for m in (None, 5):
        agree(Objective(case.model, case.loss_fn, data, forward=case.forward, m=m), case.objective())


def test_a_bare_tensor_is_one_batch() -> None:
    """For models that need no targets: an autoencoder, a language model on tokens."""
    x, _ = table()
    model = nn.Linear(4, 4, dtype=FLOAT)
    objective = Objective(model, nn.functional.mse_loss, x, forward=lambda m, x: (m(x), x))
    assert len(objective.batches) == 1
    assert objective.loss() == pytest.approx(nn.functional.mse_loss(model(x), x).item(), rel=1e-12)
    assert len(Objective(model, nn.functional.mse_loss, x, forward=lambda m, x: (m(x), x), m=4).batches) == 3


def test_sequences_of_unequal_length_count_once_each() -> None:
    """A packed batch has as many rows as sequences, not as tokens."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, x = nn.LSTM(2, 3, dtype=FLOAT), [torch.randn(n, 2, dtype=FLOAT) for n in (5, 4, 1)]
    y = torch.tensor([0, 2, 1])

    def last(model: nn.Module, batch: tuple[PackedSequence, Tensor]) -> tuple[Tensor, Tensor]:
        return model(batch[0])[1][0][0], batch[1]

    parts = [(pack_sequence(x[:1]), y[:1]), (pack_sequence(x[1:]), y[1:])]
    together = Objective(model, cross_entropy, [(pack_sequence(x), y)], forward=last)
    agree(Objective(model, cross_entropy, parts, forward=last), together)


def test_numbers_without_rows_may_come_first() -> None:
    """The rows are those of the first tensor that has any."""
    x, y = table()
    data = [{"scale": torch.tensor(2.0, dtype=FLOAT), "x": a, "y": b} for a, b in cut((x, y), [5, 6])]
    model, forward = network(), lambda m, b: (m(b["x"] * b["scale"]), b["y"])
    for m in (None, 4):
        agree(Objective(model, cross_entropy, data, forward=forward, m=m), Objective(model, cross_entropy, (x * 2, y)))


# -- reading ----------------------------------------------------------------------------------------------


class Counted(Dataset[Any]):
    def __init__(self) -> None:
        self.reads = Counter[int]()

    def __len__(self) -> int:
        return 11

    def __getitem__(self, i: int) -> Any:
        self.reads[i] += 1
        x, y = table()
        return x[i] + 0.1 * torch.rand(4, dtype=FLOAT), y[i]  # augmented: other numbers at every reading


def test_a_loader_is_read_once() -> None:
    data = Counted()
    objective = Objective(network(), cross_entropy, DataLoader(data, batch_size=4, shuffle=True))
    at = objective.draw(0).normal()
    first = objective.loss(at)
    objective.gradient()
    assert [one.loss() for _, one in objective.each()] == [one.loss() for _, one in objective.each()]
    assert objective.loss(at) == first
    assert data.reads == Counter(range(11))


def test_a_sequence_stays_lazy_and_is_let_go() -> None:
    data = Lazy(cut(table(11), [4, 3, 2, 2]))
    objective = Objective(network(), cross_entropy, data)
    assert sum(data.reads.values()) == 0
    objective.loss()
    for _, one in objective.each():
        one.gradient()
    assert data.most <= 2  # one in use while the next is fetched
    before = data.reads.total()
    objective.gradient()
    assert data.reads.total() - before == 4


def test_a_sequence_that_is_other_data_at_every_reading_is_refused() -> None:
    class Augmented(Lazy):
        def __getitem__(self, i: Any) -> Any:
            x, y = super().__getitem__(i)
            return x + 0.1 * torch.randn_like(x), y

    with pytest.raises(ValueError, match="not a function of the weights"):
        Objective(network(), cross_entropy, Augmented(cut(table(), [5, 6]))).loss()


# -- cutting anew -----------------------------------------------------------------------------------------


def numbered(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Batches with rows in tensors at two depths, and with things that are no rows."""
    order = torch.arange(sum(sizes)).split(list(sizes))
    return [{"a": i, "deep": [i.double()[:, None] * 10, "text"], "t": torch.tensor(3.0), "n": 7} for i in order]


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 30))
def test_cutting_keeps_every_row_in_order(sizes: list[int], m: int) -> None:
    found = as_batches(numbered(sizes), m)
    rows = [rows_of(b) for b in found]
    assert all(n == m for n in rows[:-1])
    assert 1 <= rows[-1] <= m
    assert torch.cat([b["a"] for b in found]).tolist() == list(range(sum(sizes)))
    for b in found:
        assert torch.equal(b["deep"][0][:, 0], b["a"] * 10.0)
        assert (b["deep"][1], float(b["t"]), b["n"]) == ("text", 3.0, 7)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 30))
def test_cutting_twice_is_cutting_once(sizes: list[int], m: int) -> None:
    once = as_batches(numbered(sizes), m)
    assert [b["a"].tolist() for b in as_batches(once, m)] == [b["a"].tolist() for b in once]


@settings(max_examples=60, deadline=None)
@given(SIZES, st.integers(1, 30))
def test_weights_by_rows_make_the_cut_invisible(sizes: list[int], m: int) -> None:
    data = table(sum(sizes))
    whole = Objective(MODEL, cross_entropy, data)
    assert Objective(MODEL, cross_entropy, cut(data, sizes)).loss() == pytest.approx(whole.loss(), rel=1e-12)
    loss, grad = Objective(MODEL, cross_entropy, cut(data, sizes), m=m).gradient()
    assert loss == pytest.approx(whole.loss(), rel=1e-12)
    torch.testing.assert_close(grad.tensors, whole.gradient()[1].tensors, rtol=1e-12, atol=1e-12)


def test_lists_with_one_entry_a_row_are_cut_along() -> None:
    """Such as the file names that a loader collects into a list."""
    x, y = table(7)
    names = list("abcdefg")
    data = [(x[:4], y[:4], names[:4]), (x[4:], y[4:], names[4:])]
    assert [list(b[2]) for b in as_batches(data, 3)] == [["a", "b", "c"], ["d", "e", "f"], ["g"]]


@pytest.mark.parametrize("m", [0, -2])
def test_batches_of_no_rows_are_refused(m: int) -> None:
    with pytest.raises(ValueError, match=rf"m >= 1, not {m}"):
        as_batches(table(), m)


def test_a_row_is_a_batch_of_one() -> None:
    batch = numbered([5])[0]
    assert rows_of(row(batch, 3)) == 1
    assert row(batch, 3)["a"].tolist() == [3]
    assert row(batch, 3)["deep"][0].tolist() == [[30.0]]
    assert take_rows(batch, slice(1, 3))["a"].tolist() == [1, 2]


# -- data that cannot be measured on ----------------------------------------------------------------------

EMPTY = (torch.zeros(0, 4, dtype=FLOAT), torch.zeros(0, dtype=torch.long))

WRONG: dict[str, tuple[Any, type[Exception], str]] = {
    "an empty list": ([], ValueError, "no batches"),
    "a loader of nothing": (DataLoader(TensorDataset(*table(3)), 4, drop_last=True), ValueError, "no batches"),
    "an empty generator": ((b for b in []), ValueError, "no batches"),
    "tensors without rows": (EMPTY, ValueError, "empty.*drop it"),
    "a first batch without rows": ([EMPTY, table()], ValueError, "empty.*drop it"),
    "a last batch without rows": ([table(), EMPTY], ValueError, "empty.*drop it"),
    "nothing": (None, TypeError, "not NoneType"),
    "a number": (3, TypeError, "not int"),
    "a data set": (TensorDataset(*table()), TypeError, "not TensorDataset"),
    "texts": ([("a", "b")], TypeError, "at least one tensor"),
    "arrays": (tuple(np.asarray(t) for t in table()), TypeError, "at least one tensor"),
    "numbers without rows": ((torch.tensor(1.0), torch.tensor(2.0)), TypeError, "one entry per row"),
}


@pytest.mark.parametrize("m", [None, 4])
@pytest.mark.parametrize("kind", WRONG)
def test_wrong_data_is_refused_with_what_was_found(kind: str, m: int | None) -> None:
    data, error, message = WRONG[kind]
    with pytest.raises(error, match=message):
        Objective(network(), cross_entropy, data, m=m).loss()


@pytest.mark.parametrize("kind", ["a mapping", "tensors in a list", "two rows", "three tensors"])
def test_a_batch_that_is_no_pair_needs_a_forward(kind: str) -> None:
    x, y = table()
    data = {"a mapping": {"x": x, "y": y}, "tensors in a list": [x, y], "two rows": [x[:2]], "three tensors": (x, x, y)}
    with pytest.raises((TypeError, ValueError), match=re.escape("forward=")):
        Objective(network(), cross_entropy, data[kind]).loss()
