"""Many tensors end to end in one memory: rooms against plain arithmetic, and bases against numpy's factorisation."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import F64
from torch import Tensor, nn

from steppe.basis import Basis, flat, unflat
from steppe.many import flag_nonfinite_
from steppe.optim.replicas import Replicas
from steppe.optim.trouble import Trouble
from steppe.room import ALIGNED, Room
from steppe.vector import Space, Vector

WIDTHS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
SIZES = st.lists(st.integers(1, 5), max_size=4)  # hardly ever a multiple of 16


def permuted(shape: Sequence[int], order: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Dense in memory, in another order than its dimensions."""
    back = sorted(range(len(order)), key=order.__getitem__)
    return torch.empty([shape[i] for i in order], dtype=dtype).permute(back)


@st.composite
def several(draw: Any, dtypes: Sequence[torch.dtype] = (*WIDTHS, torch.int64)) -> list[Tensor]:
    """Dense tensors of several types, shapes and orders in memory."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        shape = draw(SIZES)
        found.append(permuted(shape, draw(st.permutations(range(len(shape)))), draw(st.sampled_from(dtypes))))
    return found


def filled(tensors: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Other tensors of the same kinds, with numbers of very different sizes."""
    g = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(t.shape, generator=g, dtype=F64) * 10 ** float(i % 3) for i, t in enumerate(tensors)]
    return [torch.empty_like(t).copy_(x) for t, x in zip(tensors, drawn, strict=True)]


ALONE = Replicas(None, [])


def bits(t: Tensor) -> Tensor:
    """The memory of a tensor's entries, for which a nan equals itself and -0 is not 0."""
    return t.contiguous().view(WIDTHS.get(t.dtype, t.dtype))


def length(tensors: Sequence[Tensor]) -> float:
    """The Euclidean norm, in exact sums of doubles."""
    return math.sqrt(math.fsum(float(x) ** 2 for t in tensors for x in t.reshape(-1).tolist()))


# -- copies -------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(like=several(), seed=st.integers(0, 1000), aligned=st.sampled_from([1, 4, ALIGNED]))
def test_copies_are_bitwise_and_of_the_same_kind(like: list[Tensor], seed: int, aligned: int) -> None:
    room, given_ = Room(like, aligned), filled(like, seed)
    copied = room.copies(given_)
    for a, b, t in zip(copied, given_, like, strict=True):
        assert (a.dtype, a.shape, a.stride()) == (t.dtype, t.shape, t.stride())
        assert torch.equal(bits(a), bits(b))
        assert a.storage_offset() % aligned == 0
    again = room.copies(filled(like, seed + 1))  # the same memory, and no two tensors in one place
    assert [t.data_ptr() for t in again] == [t.data_ptr() for t in copied]
    for a, b in zip(again, filled(like, seed + 1), strict=True):
        assert torch.equal(bits(a), bits(b))


def test_copies_of_numbers_that_equal_nothing() -> None:
    odd = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-45, 3e38])
    (copied,) = Room([odd]).copies([odd])
    assert torch.equal(bits(copied), bits(odd))


def test_what_is_copied_may_lie_otherwise_in_memory() -> None:
    """Gradients do, and weights after model.to(memory_format=...)."""
    like = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    given_ = torch.randn(2, 3, 4, 5)
    (copied,) = Room([like]).copies([given_])
    assert torch.equal(copied, given_)
    assert copied.is_contiguous(memory_format=torch.channels_last)


def test_memory_is_asked_for_when_it_is_needed() -> None:
    room = Room([torch.ones(3)])
    assert not room.made
    room.flag_(torch.zeros(()), [torch.ones(3)])
    assert not room.made
    room.copies([torch.ones(3)])
    assert room.made


# -- norms --------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(like=several(tuple(WIDTHS)), seed=st.integers(0, 1000), before=st.sampled_from([math.inf, math.nan, 7.0]))
def test_norms_count_every_entry_once_and_nothing_else(like: list[Tensor], seed: int, before: float) -> None:
    room, given_ = Room(like), filled(like, seed)
    room.copies([torch.full_like(t, before) for t in like])
    found = room.norm(given_, torch.float64)
    assert found.shape == ()
    assert found.dtype is torch.float64
    assert float(found) == pytest.approx(length(given_), rel=1e-12)
    if all(t.dtype is not F64 for t in like):  # a space that holds doubles asks for a norm in double precision
        assert float(room.norm(given_, torch.float32)) == pytest.approx(length(given_), rel=1e-5)


def test_norms_in_more_than_half_precision() -> None:
    """The square of 300 overflows in half precision, and that of 1e-4 is 0."""
    large, small = torch.full((40,), 300.0, dtype=torch.float16), torch.full((40,), 1e-4, dtype=torch.float16)
    for t in (large, small):
        assert float(Room([t]).norm([t], torch.float32)) == pytest.approx(length([t]), rel=1e-5)


def test_a_vector_asks_the_room_unless_it_is_taken() -> None:
    space = Space([torch.zeros(3), torch.zeros(5)])
    room = space.room = Room(space.weights().chunks)
    v = space.vector([torch.full((3,), 2.0), torch.full((5,), 1.0)])
    assert float(v.norm()) == pytest.approx(math.sqrt(17))
    assert room.made
    kept = room.copies([torch.full((3,), 8.0), torch.full((5,), 9.0)])
    room.taken = True
    w = space.vector([torch.full((3,), 1.0), torch.full((5,), 0.0)])
    assert float(w.norm()) == pytest.approx(math.sqrt(3))
    assert [set(t.tolist()) for t in kept] == [{8.0}, {9.0}]


# -- finite numbers -----------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=80)
@given(data=st.data(), bad=st.sampled_from([math.nan, math.inf, -math.inf]), seed=st.integers(0, 1000))
def test_one_entry_that_is_not_finite_is_found_wherever_it_is(data: st.DataObject, bad: float, seed: int) -> None:
    tensors = filled(data.draw(several([torch.float32])), seed)
    room = Room(tensors)
    before = [bits(t).clone() for t in tensors]
    flag = torch.zeros(())
    room.flag_(flag, tensors)
    assert float(flag) == 0.0
    assert all(torch.equal(bits(t), b) for t, b in zip(tensors, before, strict=True))
    which = data.draw(st.integers(0, len(tensors) - 1))
    at = data.draw(st.integers(0, tensors[which].numel() - 1))
    tensors[which][np.unravel_index(at, tensors[which].shape)] = bad
    before = [bits(t).clone() for t in tensors]
    room.flag_(flag, tensors)
    assert float(flag) == 1.0
    assert all(torch.equal(bits(t), b) for t, b in zip(tensors, before, strict=True))
    room.flag_(flag, filled(tensors, seed))
    assert float(flag) == 1.0  # once raised it stays up


def test_what_is_finite_stays_as_it_is_to_the_last_bit() -> None:
    odd = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1.17e-38, 3.4e38, -3.4e38, 1 / 3])
    before = bits(odd).clone()
    flag = torch.zeros(())
    flag_nonfinite_(flag, [odd], torch.ones(()))
    assert float(flag) == 0.0
    assert torch.equal(bits(odd), before)


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_trouble_is_a_number_that_is_not_finite(dtype: torch.dtype, made: bool, taken: bool) -> None:
    space = Space([torch.zeros(3, dtype=dtype), torch.zeros(2, 5, dtype=dtype)])
    space.room = Room(space.weights().chunks)
    if made:
        space.room.copies(space.weights().chunks)
    space.room.taken = taken
    for bad in (1.0, math.nan, math.inf):
        tensors = [torch.ones(3, dtype=dtype), torch.ones(2, 5, dtype=dtype)]
        tensors[1][1, 4] = bad
        for loss in (torch.tensor(2.0), torch.tensor(bad), torch.tensor(bad, dtype=torch.float64), None):
            value = copy.deepcopy(loss)
            for flag in (None, torch.zeros(())):
                good = space.vector([torch.ones_like(t) for t in tensors])
                both, alone = Trouble(space, flag), Trouble(space)
                both.see(loss, space.vector(tensors))
                both.see(torch.tensor(1.0), good)
                alone.see(loss, good)
                assert (float(both.total([], ALONE)) == 0) == math.isfinite(bad)
                assert (float(alone.total([], ALONE)) == 0) == (loss is None or math.isfinite(loss))
            assert loss is None or torch.equal(bits(loss), bits(value))


@pytest.mark.parametrize("later", ["taken", "free"])
def test_a_norm_does_not_depend_on_what_the_room_was_used_for_before(later: str) -> None:
    """A run that is taken up again has a room that was never used, and has to go on to the last bit."""
    for seed in range(40):
        found = []
        for used in (False, True):
            g = torch.Generator().manual_seed(seed)
            space = Space([torch.zeros(301), torch.zeros(17, 19), torch.zeros(5)])
            space.room = Room(space.weights().chunks)
            if used:
                space.room.copies(space.weights().chunks)
            v = space.vector([torch.randn(p.shape, generator=g) for p in space.params])
            Trouble(space).see(None, v)
            space.room.copies(space.weights().chunks)
            space.room.taken = later == "taken"
            found.append(float(v.norm()))
        assert found[0] == found[1]


# -- who gets room ------------------------------------------------------------------------------------------


class Special(Tensor):
    """A tensor that may not be what its memory says."""


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)


FIT: dict[str, Tensor] = {
    "contiguous": torch.zeros(3, 5),
    "a parameter": nn.Parameter(torch.zeros(3)),
    "a number": torch.zeros(()),
    "channels last": torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": torch.zeros(3, 5).t(),
    "a row of a matrix": torch.zeros(3, 5)[1],
    "sizes of 1": torch.zeros(1, 5, 1).transpose(0, 2),
}
UNFIT: dict[str, Tensor] = {
    "with gaps": torch.zeros(6)[::2],
    "a column": torch.zeros(3, 5)[:, 1],
    "expanded": torch.zeros(1).expand(4),
    "an entry twice, another never": torch.zeros(4).as_strided((2, 2), (0, 3)),
    "empty": torch.zeros(0, 3),
    "a class of its own": torch.zeros(3).as_subclass(Special),
}


@pytest.mark.parametrize("tensor", FIT.values(), ids=FIT.keys())
def test_dense_tensors_get_room(as_on_a_gpu: None, tensor: Tensor) -> None:
    assert Room.for_copies_of([torch.zeros(2), tensor]) is not None


@pytest.mark.parametrize("tensor", UNFIT.values(), ids=UNFIT.keys())
def test_others_get_none(as_on_a_gpu: None, tensor: Tensor) -> None:
    assert Room.for_copies_of([torch.zeros(2), tensor]) is None


def test_nothing_gets_no_room(as_on_a_gpu: None) -> None:
    assert Room.for_copies_of([]) is None


def test_a_cpu_gets_none() -> None:
    assert all(Room.for_copies_of([t]) is None for t in FIT.values())


# -- bases --------------------------------------------------------------------------------------------------

SHAPES = [(7, 11), (13,), (7, 11), (), (5, 4, 3)]
COUNT = 77 + 13 + 77 + 1 + 60


def mixed() -> Space:
    kinds = [torch.float32, F64, F64, torch.float32, torch.float32]
    return Space([torch.zeros(shape, dtype=dtype) for shape, dtype in zip(SHAPES, kinds, strict=True)])


def orthonormalised(space: Space, rows: np.ndarray) -> Basis:
    """As Lanczos does it: each row less what is there, normalised, added."""
    basis = Basis(space)
    for row in rows:
        v = unflat(space, torch.from_numpy(row.copy()))
        basis.remove_(v)
        basis.append(v.mul_(1 / v.norm()))
    return basis


def matrix(basis: Basis) -> np.ndarray:
    eye = torch.eye(len(basis), dtype=F64)
    return np.stack([torch.cat([t.reshape(-1).double() for t in basis.combined(e).tensors]).numpy() for e in eye])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (F64, 1e-13)])
def test_thirty_vectors_stay_orthogonal_and_are_those_of_a_factorisation(dtype: torch.dtype, tolerance: float) -> None:
    space = Space([torch.zeros(shape, dtype=dtype) for shape in SHAPES])
    rows = np.random.default_rng(0).standard_normal((30, COUNT))
    rows[1:] += 300 * rows[:1]  # all but parallel: one pass of Gram-Schmidt loses the orthogonality
    basis = orthonormalised(space, rows)
    q = matrix(basis)
    assert np.abs(q @ q.T - np.eye(30)).max() < tolerance
    exact, r = np.linalg.qr(rows.T)
    exact = exact.T * np.sign(np.diag(r))[:, None]  # whose diagonal Gram-Schmidt makes positive
    assert np.abs(q - exact).max() < 300 * tolerance  # as far as the rounded rows say


def test_types_may_be_mixed_in_a_projection() -> None:
    space = mixed()
    rows = np.random.default_rng(1).standard_normal((10, COUNT))
    basis = orthonormalised(space, rows)
    q = matrix(basis)
    assert np.abs(q @ q.T - np.eye(10)).max() < 1e-6  # rounded to single precision in some places
    v = np.random.default_rng(2).standard_normal(COUNT)
    found = basis.coefficients(unflat(space, torch.from_numpy(v.copy())))
    assert found.dtype is F64
    np.testing.assert_allclose(found.numpy(), q @ v, rtol=0, atol=1e-5)
    projected = basis.combined(found)
    assert [t.dtype for t in projected.tensors] == [t.dtype for t in space.params]
    whole = torch.cat([t.reshape(-1).double() for t in projected.tensors]).numpy()
    np.testing.assert_allclose(whole, (q @ v) @ q, rtol=0, atol=1e-5)
    np.testing.assert_allclose(basis.coefficients(projected).numpy(), q @ v, rtol=0, atol=1e-5)  # twice is once
    few = basis.coefficients(unflat(space, torch.from_numpy(v.copy())), first=4)
    np.testing.assert_allclose(few.numpy(), (q @ v)[:4], rtol=0, atol=1e-5)


def test_double_precision_is_not_lost_among_single_ones() -> None:
    """1 + 1e-12 in a place of double precision survives, which a matrix in single precision would round."""
    space = Space([torch.zeros(3), torch.zeros(2, dtype=F64)])
    v = Vector(space, [torch.zeros(3), torch.tensor([1.0, 1e-12], dtype=F64)])
    basis = Basis(space)
    basis.append(v)
    back = basis.combined(torch.tensor([1 + 1e-12], dtype=F64))
    assert float(back.tensors[1][0]) == 1 + 1e-12
    assert float(basis.coefficients(v)) == pytest.approx(1.0, abs=1e-15)


def test_what_is_combined_shares_nothing_with_the_weights_or_the_basis() -> None:
    space = Space([torch.ones(3), torch.ones(2, 2)])
    basis = Basis(space)
    basis.append(space.vector([torch.full((3,), 0.6), torch.full((2, 2), 0.4)]))
    first = basis.combined(torch.ones(1))
    expected = flat(first).clone()
    first.mul_(0.0)
    assert all(bool((p == 1).all()) for p in space.params)
    torch.testing.assert_close(flat(basis.combined(torch.ones(1))), expected, rtol=0, atol=0)


def test_channels_last_weights_keep_their_entries_in_order() -> None:
    p = torch.zeros(2, 3, 2, 2).to(memory_format=torch.channels_last)
    space, g = Space([p, torch.zeros(5)]), torch.Generator().manual_seed(0)
    v = space.vector([torch.randn(2, 3, 2, 2, generator=g).to(memory_format=torch.channels_last), torch.zeros(5)])
    basis = Basis(space)
    basis.append(v)
    torch.testing.assert_close(basis.combined(torch.ones(1)).tensors[0], v.tensors[0], rtol=0, atol=0)
    assert float(basis.coefficients(space.vector([v.tensors[0].contiguous(), torch.zeros(5)]))) == pytest.approx(
        float(v.norm()) ** 2, rel=1e-6
    )
