"""Orthonormal bases against plain matrices, and vectors as flat tensors in the order of the parameters."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import F64, rotation
from problems import mlp_problem, random_vector
from torch import Tensor
from torch.nn.utils import parameters_to_vector

from steppe.core.basis import GROWTH, Basis, flat, unflat
from steppe.core.vector import Space, Vector

SHAPES = [(2, 3), (4,), (2, 3), (), (4,), (1, 5)]  # some alike, which a space stacks, so that chunks are out of order
SIZE = 6 + 4 + 6 + 1 + 4 + 5


def space(dtype: torch.dtype = F64) -> Space:
    return Space([torch.zeros(shape, dtype=dtype) for shape in SHAPES])


def vector(where: Space, entries: Tensor) -> Vector:
    """With memory of its own: unflat shares that of the entries."""
    return unflat(where, entries.clone())


def add(basis: Basis, v: Vector) -> Vector:
    """What is left of a vector, times 1 / its length, as the basis adds it."""
    unit = basis.normalise(basis.orthogonalise(v)[1])
    basis.append()
    return unit


def filled(where: Space, rows: Tensor) -> Basis:
    basis = Basis(where)
    for row in rows:
        add(basis, unflat(where, row))
    return basis


def close(a: Tensor, b: Tensor, tolerance: float = 1e-14) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# -- flat tensors -------------------------------------------------------------------------------------------


def test_flat_is_in_the_order_of_the_parameters() -> None:
    model = mlp_problem().model
    params = list(model.parameters())
    where = Space([p.detach() for p in params])
    assert any(c.stacked for c in where.chunks)  # else this could not be wrong
    assert torch.equal(flat(where.weights()), parameters_to_vector(params).detach())
    packed = where.weights().clone()
    assert torch.equal(flat(packed), parameters_to_vector(params).detach())


def test_unflat_undoes_flat() -> None:
    entries = random_vector(SIZE)
    v = unflat(space(), entries)
    assert [t.shape for t in v.tensors] == [torch.Size(s) for s in SHAPES]
    assert torch.equal(flat(v), entries)
    assert torch.equal(v.tensors[1], entries[6:10])
    assert torch.equal(v.tensors[3], entries[16])


def test_unflat_takes_the_dtype_of_the_parameters() -> None:
    assert all(t.dtype is torch.float32 for t in unflat(space(torch.float32), random_vector(SIZE)).tensors)


# -- bases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, GROWTH, GROWTH + 1, SIZE])
def test_a_basis_is_a_matrix(count: int) -> None:
    where, q = space(), rotation(SIZE)[:count]
    basis, v = filled(where, q), random_vector(SIZE, seed=1)
    assert len(basis) == count
    close(basis.coefficients(unflat(where, v), 0, count), q @ v)
    c = random_vector(count, seed=2)
    close(flat(basis.combined(c)), c @ q)
    for first in {0, count // 2, count}:
        close(basis.coefficients(unflat(where, v), first, count), (q @ v)[first:])
        close(flat(basis.combined(c[:first])), c[:first] @ q[:first])


@pytest.mark.parametrize("count", [0, 7])
def test_orthogonalising_takes_off_the_projection(count: int) -> None:
    where, q, v = space(), rotation(SIZE)[:count], random_vector(SIZE, seed=1)
    basis = filled(where, q)
    removed, length = basis.orthogonalise(unflat(where, v))
    close(removed, q @ v)
    left = v - (q @ v) @ q
    assert length == pytest.approx(float(left.norm()), rel=1e-14)
    close(flat(basis.normalise(length)), left / left.norm())


@pytest.mark.parametrize("count", [3, GROWTH, GROWTH + 3])
def test_the_first_pass_may_take_the_last_vectors_alone(count: int) -> None:
    """As an image in the Lanczos process has rounding errors only along the others."""
    where, q = space(), rotation(SIZE)
    v = random_vector(SIZE - count + 2, seed=1) @ q[count - 2 :] + 1e-12 * random_vector(count, seed=2) @ q[:count]
    basis = filled(where, q[:count])
    removed, length = basis.orthogonalise(unflat(where, v), count - 2)
    close(removed, q[:count] @ v)
    assert float(basis.coefficients(basis.normalise(length), 0, count).abs().max()) < 1e-15


def test_the_next_vector_is_known_before_it_is_added() -> None:
    where, q, v = space(), rotation(SIZE), random_vector(SIZE, seed=1)
    basis = filled(where, q[:GROWTH])
    unit = basis.normalise(basis.orthogonalise(unflat(where, q[-1]))[1])
    close(basis.coefficients(unflat(where, v), GROWTH - 1, GROWTH + 1), q[[GROWTH - 1, -1]] @ v)
    close(flat(unit), q[-1])
    assert len(basis) == GROWTH


def test_what_is_added_is_copied() -> None:
    where = space()
    basis, v = Basis(where), vector(where, rotation(SIZE)[0])
    add(basis, v)
    v.mul_(0.0)
    assert float(flat(basis.combined(torch.ones(1, dtype=F64))).norm()) == pytest.approx(1.0)


def test_orthogonalising_is_accurate_where_hardly_anything_is_left() -> None:
    """One pass of Gram-Schmidt would leave 1e-16 / 1e-10 of the length along the basis."""
    where, q = space(), rotation(SIZE)
    basis = filled(where, q[:20])
    _, length = basis.orthogonalise(unflat(where, random_vector(20) @ q[:20] + 1e-10 * q[-1]))
    assert float(basis.coefficients(basis.normalise(length), 0, 20).abs().max()) < 1e-14


@pytest.mark.parametrize("length", [1e-25, 1e25])
def test_lengths_whose_squares_leave_float32(length: float) -> None:
    where = space(torch.float32)
    basis = Basis(where)
    v = random_vector(SIZE) * length
    assert basis.orthogonalise(unflat(where, v))[1] == pytest.approx(float(v.norm()), rel=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_lower_precisions(dtype: torch.dtype, tolerance: float) -> None:
    """Vectors have the parameters' type, the basis at least float32."""
    where, q, v = space(dtype), rotation(SIZE)[:9], random_vector(SIZE, seed=1)
    basis = filled(where, q)
    removed, length = basis.orthogonalise(unflat(where, v))
    left = basis.normalise(length)
    assert all(t.dtype is dtype for t in left.tensors)
    close(removed, q @ v, 4 * tolerance)
    close(length * flat(left).double(), v - (q @ v) @ q, 8 * tolerance)
    # products take the rounded vector, so the basis has that one
    basis.append()
    assert torch.equal(flat(basis.combined(torch.eye(10, dtype=F64)[9])), flat(left))


def test_types_may_be_mixed() -> None:
    where = Space([torch.zeros(3), torch.zeros(4, dtype=F64)])
    q, v = rotation(7)[:3], random_vector(7)
    basis = filled(where, q)
    _, length = basis.orthogonalise(unflat(where, v))
    left = basis.normalise(length)
    assert [t.dtype for t in left.tensors] == [torch.float32, F64]
    together = torch.cat([t.double() for t in left.tensors])
    close(length * together, v - (q @ v) @ q, 1e-6)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 10_000), count=st.integers(0, SIZE - 1), length=st.floats(1e-6, 1e6))
def test_a_projection_splits_the_length_and_leaves_nothing_to_remove(seed: int, count: int, length: float) -> None:
    where = space()
    basis, v = filled(where, rotation(SIZE, seed)[:count]), unflat(where, length * random_vector(SIZE, seed))
    whole = float(v.norm())
    removed, rest = basis.orthogonalise(v)
    assert float(removed.norm()) ** 2 + rest**2 == pytest.approx(whole**2)
    before = flat(basis.normalise(rest)).clone()
    again, rest = basis.orthogonalise(unflat(where, before))
    assert float(again.norm()) <= 1e-14
    close(flat(basis.normalise(rest)), before, 1e-14)


def test_a_basis_of_a_vector_that_owns_chunks() -> None:
    """Vectors that were computed exist as chunks, those of gradients as tensors; both are the same vector."""
    where, q = space(), rotation(SIZE)
    by_tensors = unflat(where, q[0])
    by_chunks = Vector(where, [x.clone() for x in by_tensors.chunks])
    one, two = Basis(where), Basis(where)
    add(one, by_tensors)
    add(two, by_chunks)
    v = unflat(where, q[1] + q[0])
    assert torch.equal(one.coefficients(v, 0, 1), two.coefficients(v, 0, 1))
