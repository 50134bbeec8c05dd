"""Vectors in chunks are vectors: the algebra equals that of one flat tensor, whatever is stacked with what."""

from __future__ import annotations

from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sites import BareSite, flat

from steppe.core import vector as many
from steppe.core.vector import STACK_BELOW, Space

shapes = st.lists(st.sampled_from([(3,), (2, 2), (1,), (4, 1, 2), ()]), min_size=1, max_size=12)


def context(shapes, seed: int, dtype: torch.dtype = torch.float64) -> BareSite:
    generator = torch.Generator().manual_seed(seed)
    return BareSite([torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes])


@given(shapes, st.integers(0, 2**31))
@settings(deadline=None, max_examples=80)
def test_the_algebra_is_that_of_flat_tensors(shapes, seed):
    at, other = context(shapes, seed), context(shapes, seed + 1)
    a, b = at.weights, at.space.vector(other.tensors)
    x, y = flat(a), flat(b)
    torch.testing.assert_close(flat(a + b), x + y)
    torch.testing.assert_close(flat(a - b), x - y)
    torch.testing.assert_close(flat(a * b), x * y)
    torch.testing.assert_close(flat(a * 2.5), x * 2.5)
    assert torch.equal(flat(a / 3), x / 3)
    assert torch.equal(flat(-a), -x)
    torch.testing.assert_close(flat(a.clone().add_(b, torch.tensor(0.3))), x + 0.3 * y)
    torch.testing.assert_close(a.dot(b), x @ y)
    for p in (1, 2, 3, inf):
        torch.testing.assert_close(a.norm(p), torch.linalg.vector_norm(x, p))
    assert all(torch.equal(s, t) for s, t in zip(a.tensors, at.tensors, strict=True))


def test_packing_and_unpacking_give_the_tensors_back_in_their_order():
    at = context([(2, 2), (3,), (2, 2), (3,), (5,)], 0)
    chunks = at.space.pack(at.tensors)
    assert sorted(tuple(c.shape) for c in chunks) == [(2, 2, 2), (2, 3), (5,)]
    assert all(torch.equal(s, t) for s, t in zip(at.space.unpack(chunks), at.tensors, strict=True))


def test_large_tensors_are_not_copied_and_small_ones_of_other_kinds_not_mixed():
    big = [torch.zeros(STACK_BELOW + 1) for _ in range(2)]
    at = BareSite([*big, torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16), torch.zeros(3)], [0, 0, 0, 0, 1])
    chunks = at.weights.chunks
    assert len(chunks) == 5
    assert chunks[0].data_ptr() == big[0].data_ptr()


def test_half_precision_sums_are_taken_in_float32():
    at = BareSite([torch.full((1 << 15,), 100.0, dtype=torch.float16)])
    assert at.weights.norm() == pytest.approx(100 * 2**7.5, rel=1e-3)
    assert at.weights.dot(at.weights) == pytest.approx(1e4 * 2**15, rel=1e-3)


def test_a_consumed_vector_says_so():
    a = context([(2,)], 0).weights
    a.norm()  # is remembered, and must not outlive the entries
    a.release()
    with pytest.raises(RuntimeError, match="clone"):
        a.norm()


def test_reading_a_gradient_copies_nothing_until_it_is_used():
    tensors = [torch.ones(3), torch.ones(3)]
    vector = Space(tensors).vector(tensors)
    assert vector.tensors[0] is tensors[0]
    vector.mul_(2.0)
    assert vector.tensors[0] is not tensors[0]
    assert tensors[0].tolist() == [1, 1, 1]


def test_lists_of_tensors_may_be_empty():
    many.copy_([], [])
    many.add_([], [])
    many.zero_([])
    many.scale_([], torch.ones(()))
    assert many.copies([]) == many.magnitudes([], 1.0) == []
    empty = Space([]).weights()
    assert empty.norm() == 0
    assert empty.tensors == []


def test_inner_products_join_what_is_small_and_follow_memory_formats():
    """Against one sum in float64 over all entries, in whatever order they lie."""
    generator = torch.Generator().manual_seed(0)

    def tensors(formats):
        shapes = [(3,), (), (4, 5), (6, 7, 3, 3), (130, 130), (64, 32, 3, 3), (8, 8, 1, 1)]
        found = [torch.randn(s, generator=generator) for s in shapes]
        return [t.contiguous(memory_format=formats) if t.ndim == 4 else t for t in found]

    for one, two in [(torch.channels_last, torch.channels_last), (torch.channels_last, torch.contiguous_format)]:
        a, b = tensors(one), tensors(two)
        space = Space(a)
        expected = sum((x.double() * y.double()).sum() for x, y in zip(a, b, strict=True))
        assert space.vector(a).dot(space.vector(b)) == pytest.approx(float(expected), abs=1e-3)


def test_a_double_factor_does_what_a_single_one_does():
    x = torch.randn(50)
    for factor in (1 / 3, 1e-40, 3.0e38):
        found = Space([x]).vector([x.clone()]).mul_(torch.tensor(factor, dtype=torch.float64)).tensors[0]
        assert torch.equal(found, x.clone().mul_(torch.tensor(factor, dtype=torch.float64)))
