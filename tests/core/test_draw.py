"""Random vectors depend on their key and their coordinates alone, and have the law they claim."""

from __future__ import annotations

import pytest
import torch
from sites import BareSite, flat

from steppe.core import draw as module
from steppe.core.draw import permutation, seed_of


def context(dtype: torch.dtype = torch.float64) -> BareSite:
    return BareSite([torch.zeros(40, 50, dtype=dtype), torch.zeros(7, dtype=dtype), torch.zeros(40, 50, dtype=dtype)])


@pytest.mark.parametrize("kind", ["normal", "signs", "uniform"])
def test_a_draw_is_a_function_of_its_key(kind):
    def entries(*key: int) -> torch.Tensor:
        return flat(getattr(context().draw(*key), kind)(*((-1.0, 3.0) if kind == "uniform" else ())))

    torch.manual_seed(1)
    first = entries(0, 5, 2)
    torch.manual_seed(2)
    assert torch.equal(first, entries(0, 5, 2))
    for key in [(1, 5, 2), (0, 6, 2), (0, 5, 3)]:
        assert (entries(*key) - first).abs().max() > 0.1
    halves = first[:2000], first[2007:]
    assert not torch.equal(*halves), "two tensors of one shape must not get the same entries"


def test_entries_have_the_law_they_claim():
    n = 4007
    normal, signs = flat(context().draw(1).normal()), flat(context().draw(2).signs())
    uniform = flat(context().draw(3).uniform(-1, 3))
    assert abs(normal.mean()) < 5 / n**0.5
    assert abs(normal.var() - 1) < 5 * (2 / n) ** 0.5
    assert abs((normal**4).mean() - 3) < 5 * (96 / n) ** 0.5
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert abs(signs.mean()) < 5 / n**0.5
    assert uniform.min() >= -1
    assert uniform.max() <= 3
    assert abs(uniform.mean() - 1) < 5 * (4 / 3 / n) ** 0.5


def test_any_range_of_the_stream_is_the_same_however_it_is_read(monkeypatch):
    monkeypatch.setattr(module, "BLOCK", 64)
    stream = module._Stream(torch.device("cpu"), torch.float64, 1000, (7,), lambda x, g: x.normal_(generator=g))
    whole = stream.read(0, 1000)
    for start, stop in [(0, 64), (10, 20), (63, 65), (500, 1000), (960, 1000), (5, 5)]:
        assert torch.equal(stream.read(start, stop), whole[start:stop])
    assert len(set(whole.tolist())) == 1000


def test_draws_come_in_the_dtype_of_the_weights():
    assert {t.dtype for t in context(torch.bfloat16).draw(0).normal().tensors} == {torch.bfloat16}


def test_seeds_and_permutations_do_not_collide():
    seeds = {seed_of(a, b) for a in range(50) for b in range(50)}
    assert len(seeds) == 2500
    assert sorted(permutation(10, 3, 4).tolist()) == list(range(10))
    assert not torch.equal(permutation(100, 3, 4), permutation(100, 3, 5))
