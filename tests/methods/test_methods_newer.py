"""WSAM, Friendly-SAM, VaSSO and SAMPa against their papers' boxes, rewritten here, and against pytorch_optimizer."""

from __future__ import annotations

import pytest
import torch
from oracles import sam as naive_sam
from oracles.flat import SGD, AdamW, Base, Landscape, Rule
from oracles.follow import BASES, Run, assert_follows
from oracles.relatives import unit
from problems import mlp_problem
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from steppe import WSAM, FriendlySAM, PerPart, PerWorker, SAMPa, SharpnessAware, VaSSO

PROBLEM = mlp_problem(steps=7)
bases = pytest.mark.parametrize("base", BASES)


def run(method, base="sgd"):
    model = PROBLEM.fresh_model()
    return Run(PROBLEM, model, SharpnessAware(BASES[base][0](model.parameters()), method, model=model))


def steps(rule: Rule, base: Base, after=lambda w, land, t: w) -> Tensor:
    """The weights after every step; `after` changes them once the base has stepped."""
    model, w, found = PROBLEM.fresh_model(), PROBLEM.start, []
    for t, (x, y) in enumerate(PROBLEM.batches):
        land = Landscape(model, PROBLEM.losses, x, y)
        before = w
        w = base.step(w, rule(land, w, base, t)) + after(before, land, t)
        found.append(w)
    return torch.stack(found)


@bases
@pytest.mark.parametrize("gamma", [0.3, 0.8])
def test_coupled_wsam_is_sam_with_a_weight(gamma, base):
    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        """(1 - 2 gamma) / (1 - gamma) L(w) + gamma / (1 - gamma) L(w + d), which is how the paper writes its loss."""
        g = land.grad(w)
        top = land.grad(w + 0.3 * unit(g))
        return (1 - 2 * gamma) / (1 - gamma) * g + gamma / (1 - gamma) * top

    assert_follows(run(WSAM(0.3, gamma, decouple=False), base), PROBLEM, rule, base)


def test_coupled_wsam_of_equal_shares_is_sam():
    assert_follows(run(WSAM(0.3, 0.5, decouple=False)), PROBLEM, naive_sam.sam(0.3))


@bases
@pytest.mark.parametrize("gamma", [0.3, 0.8])
def test_decoupled_wsam_moves_by_the_sharpness_beside_the_base(gamma, base):
    made = BASES[base][1]()

    def beside(w: Tensor, land: Landscape, t: int) -> Tensor:
        g = land.grad(w)
        return -made.lr * gamma / (1 - gamma) * (land.grad(w + 0.3 * unit(g)) - g)

    expected = steps(lambda land, w, base, t: land.grad(w), made, beside)
    found = run(WSAM(0.3, gamma), base).weights
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)
    coupled = run(WSAM(0.3, gamma, decouple=False), base).weights
    assert (found - coupled).abs().max() > 1e-4


def test_what_moves_beside_the_base_adds_up_over_micro_batches():
    """As their gradients do; a step that is dropped moves nothing."""
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), WSAM(0.3, 0.7))
    twin = PROBLEM.fresh_model()
    flat = lambda: torch.cat([p.detach().reshape(-1) for p in model.parameters()])  # noqa: E731
    start, total = flat(), torch.zeros_like(flat())
    for x, y in PROBLEM.batches[:3]:
        for pass_ in opt.passes(accumulate=True):
            pass_.backward(PROBLEM.losses(model(x), y).mean() / 3)
        land = Landscape(twin, PROBLEM.losses, x, y)
        g = land.grad(start) / 3
        total -= 0.1 * (g + 0.7 / 0.3 * (land.grad(start + 0.3 * unit(g)) / 3 - g))
    opt.step()
    torch.testing.assert_close(flat(), start + total, rtol=1e-9, atol=1e-12)
    before = flat()
    for pass_ in opt.passes():
        pass_.backward(PROBLEM.losses(model(x), y).mean())
    opt.zero_grad()
    assert torch.equal(flat(), before)


@pytest.mark.parametrize("combinator", [lambda m: PerPart(m, 2), PerWorker, steppe.SharpBalance])
def test_parts_of_a_batch_cannot_move_the_weights_on_their_own(combinator):
    model = PROBLEM.fresh_model()
    x, y = PROBLEM.batches[0]
    mask = torch.arange(len(x)) % 2 == 0
    for decouple in (True, False):
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), combinator(WSAM(0.3, 0.7, decouple)))

        def step(opt=opt):
            for pass_ in opt.passes(mask=mask):
                a, b = pass_.rows(x, y)
                pass_.backward(PROBLEM.losses(model(a), b).mean())
            opt.step()

        if decouple:
            with pytest.raises(ValueError, match="decouple=False"):
                step()
        else:
            step()


def test_a_base_that_makes_its_weights_of_others_cannot_be_moved_beside():
    class Averaging(torch.optim.SGD):
        def eval(self) -> None: ...

    model = PROBLEM.fresh_model()
    opt = SharpnessAware(Averaging(model.parameters(), lr=0.1), WSAM(0.3, 0.7))
    x, y = PROBLEM.batches[0]
    with pytest.raises(ValueError, match=r"Averaging makes the weights of others.*decouple=False"):
        opt.step(lambda pass_: pass_.backward(PROBLEM.losses(model(x), y).mean()))
    opt = SharpnessAware(Averaging(model.parameters(), lr=0.1), WSAM(0.3, 0.7, decouple=False))
    opt.step(lambda pass_: pass_.backward(PROBLEM.losses(model(x), y).mean()))


class Friendly:
    """d = g - sigma m, m = lambda m + (1 - lambda) g, and at first d = m = g."""

    def __init__(self, rho: float, sigma: float, lam: float):
        self.rho, self.sigma, self.lam = rho, sigma, lam

    def __call__(self, land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        g = land.grad(w)
        if t == 0:
            self.m, d = g, g
        else:
            d = g - self.sigma * self.m
            self.m = self.lam * self.m + (1 - self.lam) * g
        return land.grad(w + self.rho * unit(d))


@bases
@pytest.mark.parametrize(("sigma", "decay"), [(1.0, 0.9), (0.4, 0.6), (1.0, 0.0)])
def test_friendly_sam(sigma, decay, base):
    assert_follows(run(FriendlySAM(0.3, sigma, decay), base), PROBLEM, Friendly(0.3, sigma, decay), base)


def test_friendly_sam_at_sigma_1_is_the_papers_order_too():
    """Whose mean has the current gradient in it: g - m' = lambda (g - m)."""

    class Paper(Friendly):
        def __call__(self, land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
            g = land.grad(w)
            self.m = self.lam * self.m + (1 - self.lam) * g if t else g
            return land.grad(w + self.rho * unit(g - self.m if t else g))

    assert_follows(run(FriendlySAM(0.3, 1.0, 0.8)), PROBLEM, Paper(0.3, 1.0, 0.8))


def test_friendly_sam_that_subtracts_nothing_is_sam():
    assert_follows(run(FriendlySAM(0.3, sigma=0.0)), PROBLEM, naive_sam.sam(0.3))


class Vasso:
    """d = (1 - theta) d + theta g, and at first d = g."""

    def __init__(self, rho: float, theta: float):
        self.rho, self.theta = rho, theta

    def __call__(self, land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        g = land.grad(w)
        self.d = (1 - self.theta) * self.d + self.theta * g if t else g
        return land.grad(w + self.rho * unit(self.d))


@bases
@pytest.mark.parametrize("theta", [0.9, 0.3])
def test_vasso(theta, base):
    assert_follows(run(VaSSO(0.3, theta), base), PROBLEM, Vasso(0.3, theta), base)


def test_vasso_of_the_current_gradient_alone_is_sam():
    assert_follows(run(VaSSO(0.3, 1.0)), PROBLEM, naive_sam.sam(0.3))


class Sampa:
    """x~ = x + rho g(y) / |g(y)|; y' = x - lr g(y); x moves along (1 - lambda) g(x~) + lambda g(y'); at first y = x."""

    def __init__(self, rho: float, lam: float):
        self.rho, self.lam = rho, lam

    def __call__(self, land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        at_y = self.at_y if t else land.grad(w)
        top = land.grad(w + self.rho * unit(at_y))
        self.at_y = land.grad(w - base.lr * at_y)
        return (1 - self.lam) * top + self.lam * self.at_y


@bases
@pytest.mark.parametrize("ahead", [0.2, 0.0, 1.0])
def test_sampa(ahead, base):
    followed = run(SAMPa(0.3, ahead), base)
    assert_follows(followed, PROBLEM, Sampa(0.3, ahead), base)
    assert [len(places) for places in followed.visited] == [3] + [2] * 6


# -- another library ----------------------------------------------------------------------------------


FLOAT32_NORMS = {"rtol": 0, "atol": 1e-7}  # theirs


def theirs_and_ours(make_theirs, method) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x, y = torch.randn(5, 8, 4, dtype=torch.float64), torch.randint(3, (5, 8))
    ends = []
    for ours in (False, True):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
        opt = (
            SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), method)
            if ours
            else make_theirs(model)
        )
        for a, b in zip(x, y, strict=True):

            def closure(a=a, b=b):
                opt.zero_grad()
                loss = F.cross_entropy(model(a), b)
                loss.backward()
                return loss

            if not ours:
                closure()  # theirs starts from the gradient that is there
            opt.step(closure)
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    return ends[0], ends[1]


@pytest.mark.parametrize("decouple", [True, False])
def test_pytorch_optimizers_wsam(decouple):
    other = pytest.importorskip("pytorch_optimizer")
    sgd = {"base_optimizer": torch.optim.SGD, "lr": 0.1, "momentum": 0.9}
    made = lambda m: other.WSAM(m, m.parameters(), rho=0.3, gamma=0.7, decouple=decouple, **sgd)  # noqa: E731
    torch.testing.assert_close(*theirs_and_ours(made, WSAM(0.3, 0.7, decouple)), **FLOAT32_NORMS)


@pytest.mark.parametrize(("sigma", "decay"), [(1.0, 0.9), (0.5, 0.6)])
def test_pytorch_optimizers_friendly_sam(sigma, decay):
    other = pytest.importorskip("pytorch_optimizer")
    sgd = {"base_optimizer": torch.optim.SGD, "lr": 0.1, "momentum": 0.9}
    made = lambda m: other.FriendlySAM(m.parameters(), rho=0.3, sigma=sigma, lmbda=decay, **sgd)  # noqa: E731
    torch.testing.assert_close(*theirs_and_ours(made, FriendlySAM(0.3, sigma, decay)), **FLOAT32_NORMS)


def test_bases_of_this_page_are_these() -> None:
    """The naive ones have the learning rate that SAMPa and WSAM read."""
    assert {type(made()) for _, made in BASES.values()} == {SGD, AdamW}
