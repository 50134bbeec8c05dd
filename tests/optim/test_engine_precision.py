"""Half precision, sparse and complex parameters, and bases that cannot be a base."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from registry import Entry, Run, copied, obeying, same
from torch import Tensor, nn

import steppe

HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@obeying()
def test_half_precision_stays_finite_and_comes_back_exactly(entry: Entry, dtype: torch.dtype) -> None:
    run = Run(entry, dtype=dtype, dropout=0.0)
    run.step(0)
    before = {k: v.detach().clone() for k, v in run.model.named_parameters()}
    for pass_ in run.opt.passes(**run.extras(1)):
        pass_.backward(run.loss(pass_, 1))
    same(dict(run.model.named_parameters()), before)
    run.opt.step()
    assert all(p.dtype == dtype and p.isfinite().all() for p in run.model.parameters())


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_no_drift_at_lr_0(dtype: torch.dtype) -> None:
    """A displacement that is subtracted again drifts by 1e-3 in bf16; a copy does not."""
    torch.manual_seed(0)
    model = nn.Linear(32, 32).to(dtype)
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.5)
    before = copied(model.state_dict())
    for i in range(100):
        x = torch.randn(4, 32, generator=torch.Generator().manual_seed(i)).to(dtype)
        opt.step(lambda pass_: pass_.backward(model(x).float().square().mean()))
    same(copied(model.state_dict()), before)


@pytest.mark.parametrize("method", [steppe.SAM(0.05), steppe.SAM(steppe.Ball(0.05, steppe.Elementwise(1.0, True)))])
@pytest.mark.parametrize("size", [300.0, 1e-6])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_norms_neither_overflow_nor_vanish(dtype: torch.dtype, size: float, method: Any) -> None:
    """512 x 512 gradients of 300 have norm 153600, above float16's 65504; those of 1e-6 have squares below it."""
    w = nn.Parameter(torch.zeros(512, 512, dtype=dtype))
    opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.0), method)
    radii: list[float] = []

    def closure(pass_: Any) -> None:
        radii.append(float(w.detach().double().norm()))
        pass_.backward((w.float() * size).sum())

    opt.step(closure)
    assert radii[0] == 0.0
    assert radii[1] == pytest.approx(0.05, rel=1e-2)


def test_mixed_precision_parameters_share_one_ball() -> None:
    """Norm layers kept in float32 beside bf16 matrices: one norm over both, each displaced in its own dtype."""
    half = nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))
    full = nn.Parameter(torch.zeros(8, dtype=torch.float32))
    opt = steppe.sam(torch.optim.SGD([half, full], lr=0.0), rho=1.0)
    places: list[Tensor] = []

    def closure(pass_: Any) -> None:
        places.append(torch.cat([half.detach().float(), full.detach()]))
        pass_.backward((3 * half.float() + 4 * full).sum())

    opt.step(closure)
    expected = torch.tensor([0.6] * 8 + [0.8] * 8) / 8**0.5
    torch.testing.assert_close(places[1], expected, rtol=1e-2, atol=0)
    torch.testing.assert_close(places[1][8:], expected[8:])


@pytest.mark.parametrize("name", ["sam", "asam", "ssam-d", "gsam", "frob-sam", "rsam"])
def test_the_memory_format_does_not_matter(name: str) -> None:
    """channels_last and transposed parameters have other strides than their gradients may have."""
    ends = []
    for other in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 3, 3), nn.Flatten(), nn.Linear(27, 2)).double()
        if other:
            model.to(memory_format=torch.channels_last)
            model[3].weight = nn.Parameter(model[3].weight.detach().t().contiguous().t())
        x = torch.randn(4, 2, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        opt = steppe.build(name, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model=model)
        for _ in range(2):
            opt.step(lambda pass_: (pass_.backward(loss := model(x).square().mean()), loss)[1])
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, float("inf")])
def test_scalars_and_empty_tensors_are_parameters_too(p: float) -> None:
    number, nothing = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.empty(0, 3))
    opt = steppe.build("sam", torch.optim.SGD([number, nothing], lr=0.5), rho=0.1, p=p)
    opt.step(lambda pass_: pass_.backward(number.square() / 2 + nothing.sum()))
    assert float(number.detach()) == pytest.approx(2.0 - 0.5 * 2.1)


def coarse(dtype: torch.dtype, **options: Any) -> tuple[nn.Module, Any, Any]:
    """A layer whose weights are up to 1, and a closure in which SAM displaces each of them by 0.05 / sqrt(n)."""
    torch.manual_seed(0)
    model = nn.Linear(40, 30, bias=False)
    nn.init.uniform_(model.weight, 0.0, 1.0)
    model = model.to(dtype)
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.05, **options)
    return model, opt, lambda pass_: pass_.backward(model.weight.float().sum())


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32, torch.float64], ids=str)
def test_the_displacement_that_is_recorded_is_the_one_after_rounding(dtype: torch.dtype) -> None:
    model, opt, closure = coarse(dtype, record=True)
    opt.rounding_checked = True
    there: list[Tensor] = []
    opt.step(lambda pass_: (there.append(model.weight.detach().double().clone()), closure(pass_)))
    length = float((there[1] - there[0]).norm())
    assert opt.last.read()["displacement"] == pytest.approx(length, rel=1e-3)
    assert (abs(length - 0.05) > 0.005) == (dtype == torch.bfloat16)


def test_a_displacement_that_rounding_changes_is_told_once() -> None:
    model, opt, closure = coarse(torch.bfloat16)
    before = copied(model.state_dict())
    opt.param_groups[0]["rho"] = 0.0
    opt.step(closure)  # nothing was asked
    opt.param_groups[0]["rho"] = 0.05
    said = r"weights are bfloat16, which rounds a displacement of length 0.05 to 0.\d+ and moves \d+% of them: keep"
    with pytest.warns(UserWarning, match=said) as heard:
        for _ in range(3):
            for pass_ in opt.passes():
                closure(pass_)
            opt.step()
    assert [w.filename for w in heard] == [__file__]
    same(copied(model.state_dict()), before)
    _, finer, closure = coarse(torch.float16)
    finer.step(closure)  # warnings are errors


class Words(nn.Module):
    """A bag of words with sparse or dense embedding gradients; word 0 is padding, masked after the lookup."""

    def __init__(self, sparse: bool):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(12, 4, sparse=sparse).double()

    def forward(self, words: Tensor) -> Tensor:
        return (self.table(words) * (words > 0).unsqueeze(-1)).sum(1).square().mean(1)


WORDS = torch.tensor([[1, 2, 2], [5, 0, 0], [7, 1, 9]])


@pytest.mark.sampled(24)
@obeying(only=lambda e: e.name != "msam")  # torch's momentum is another one for sparse gradients
def test_sparse_gradients_under_sgd_equal_dense_ones(entry: Entry) -> None:
    """Each step looks up other words; a method may remember those of an earlier step."""
    ends = []
    for sparse in (True, False):
        model = Words(sparse)
        opt = steppe.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), entry.method(), model=model)

        def closure(pass_: Any) -> Tensor:
            losses = model(pass_.rows(words))
            pass_.backward(losses if entry.unreduced else losses.mean())
            return losses.detach().mean()

        for i in range(4):
            words = (WORDS + i) % 12
            opt.step(closure, held_out=closure, mask=torch.tensor([True, False, True]) if entry.masked else None)
        assert model.table.weight.grad.is_sparse is sparse
        ends.append(model.table.weight.detach().clone())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["none", "sam"])
def test_radius_0_under_sparse_adam_is_sparse_adam(name: str) -> None:
    """Rows that were looked up stay in the gradient even where it is zero there: their moments decay too."""
    ours, alone = Words(sparse=True), Words(sparse=True)
    options = {"rho": 0.0} if name == "sam" else {}
    opt = steppe.build(name, torch.optim.SparseAdam(list(ours.parameters()), lr=0.1), **options)
    plain = torch.optim.SparseAdam(list(alone.parameters()), lr=0.1)
    for words in (WORDS, torch.tensor([[1, 3, 9]]), torch.tensor([[2, 0, 0]]), WORDS * (WORDS != 5)):
        mask = words.clone()
        if words.shape[0] == 1:
            mask = words * (words != 1)  # word 1 is looked up, and its gradient is zero

        def loss_of(model: Words) -> Tensor:
            return (model.table(words) * (mask > 0).unsqueeze(-1)).sum(1).square().mean()

        opt.step(lambda pass_: pass_.backward(loss_of(ours)))
        plain.zero_grad()
        loss_of(alone).backward()
        plain.step()
    torch.testing.assert_close(ours.table.weight, alone.table.weight, rtol=1e-12, atol=1e-14)


def test_sparse_adam_with_a_radius_moves_only_rows_that_were_looked_up() -> None:
    model = Words(sparse=True)
    before = model.table.weight.detach().clone()
    opt = steppe.sam(torch.optim.SparseAdam(list(model.parameters()), lr=0.1), rho=0.5)
    opt.step(lambda pass_: pass_.backward(model(WORDS)))
    moved = (model.table.weight.detach() != before).any(1).nonzero().flatten().tolist()
    assert moved == [1, 2, 5, 7, 9]


def test_a_sparse_table_that_the_last_pass_did_not_reach() -> None:
    """Its gradient of earlier passes still reaches the base optimizer, and still sparse."""
    model = Words(sparse=True)
    scale = nn.Parameter(torch.ones((), dtype=torch.float64))
    adam = torch.optim.SparseAdam(list(model.parameters()), lr=0.1)
    opt = steppe.build("trace-sam", adam, n=1, rho=0.1)
    before = model.table.weight.detach().clone()
    for number, pass_ in enumerate(opt.passes()):
        pass_.backward(model(WORDS) if number == 0 else scale * model.table.weight.detach().sum())
    opt.step()
    assert model.table.weight.isfinite().all()
    assert torch.equal(model.table.weight[3], before[3])


def test_complex_parameters_are_refused() -> None:
    w = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"complex.*view_as_real"):
        steppe.sam(torch.optim.SGD([w], lr=0.1)).step(lambda pass_: pass_.backward(w.abs().sum()))
    assert torch.equal(w.detach(), torch.ones_like(w))


def test_lbfgs_is_refused() -> None:
    with pytest.raises(TypeError, match=r"LBFGS cannot be the base.*SGD"):
        steppe.sam(torch.optim.LBFGS([nn.Parameter(torch.ones(2))]))


def test_a_wrapper_is_no_base() -> None:
    inner = steppe.sam(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1))
    with pytest.raises(TypeError, match="SharpnessAware cannot be the base"):
        steppe.sam(inner)


def test_a_model_converted_between_steps() -> None:
    """`model.double()` changes parameters in place: what was prepared for the old dtype may not be used again."""
    x = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    reports = []
    for first in (torch.float32, torch.float64):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).double()
        start = copied(model.state_dict())
        model.to(first)
        opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.0), rho=0.5, record=True)
        opt.step(lambda pass_: pass_.backward(model(x.to(first)).square().mean()))
        model.double().load_state_dict(start)
        opt.step(lambda pass_: pass_.backward(model(x).square().mean()))
        same(copied(model.state_dict()), start)
        reports.append(opt.last.read())
    assert reports[0] == pytest.approx(reports[1], rel=1e-12)
