"""Steps that were run in a way they cannot be: the message says how instead, and nothing has moved."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from registry import copied, same
from torch import Tensor, nn

import steppe

X = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def setting(name: str, lr: float = 0.1, momentum: float = 0.9, **options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    base = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    return model, steppe.build(name, base, model=model, **options)


def by_rows(model: nn.Module, x: Tensor = X) -> Any:
    def closure(pass_: Any) -> Tensor:
        loss = model(pass_.rows(x)).square().mean()
        pass_.backward(loss)
        return loss

    return closure


def plain(model: nn.Module) -> Any:
    def closure() -> Tensor:
        loss = model(X).square().mean()
        loss.backward()
        return loss

    return closure


def refused(model: nn.Module, opt: Any, error: type[Exception], match: str, act: Any) -> None:
    """The act raises that error, and weights and optimizer are bitwise as before."""
    before = copied(model.state_dict()), copied(opt.state_dict())
    with pytest.raises(error, match=match):
        act()
    same((copied(model.state_dict()), copied(opt.state_dict())), before)


def test_a_step_without_passes() -> None:
    model, opt = setting("sam")
    model(X).sum().backward()
    refused(
        model, opt, RuntimeError, r"SAM evaluates the loss several times.*step\(closure\).*opt\.passes\(\)", opt.step
    )


def test_a_second_step_on_the_same_passes() -> None:
    model, opt = setting("sam")
    for pass_ in opt.passes():
        pass_.backward(model(X).square().mean())
    opt.step()
    refused(model, opt, RuntimeError, r"opt\.passes\(\)", opt.step)


def test_a_pass_without_backward() -> None:
    model, opt = setting("sam")

    def loop() -> None:
        for _ in opt.passes():
            model(X).square().mean().backward()  # and not pass_.backward

    refused(model, opt, RuntimeError, r"without a loss: call pass_\.backward\(loss\)", loop)


@pytest.mark.parametrize("closure", ["takes the turn", "takes nothing"])
def test_a_closure_without_backward(closure: str) -> None:
    """It returns a loss, and no parameter has a gradient: silence here would be training that never learns."""
    model, opt = setting("sam")
    forgetful = (lambda pass_: model(X).mean()) if closure == "takes the turn" else (lambda: model(X).mean())
    refused(model, opt, RuntimeError, "backward", lambda: opt.step(forgetful))


def test_a_later_pass_without_backward() -> None:
    """The first pass has reached every parameter, but SAM's gradient is the second one's: it would be zero."""
    model, opt = setting("sam")
    calls: list[int] = []

    def forgets_the_second() -> Any:
        calls.append(1)
        loss = model(X).mean()
        if len(calls) == 1:
            loss.backward()
        return loss

    refused(model, opt, RuntimeError, "backward", lambda: opt.step(forgets_the_second))
    assert len(calls) == 2


PARTIAL = ["m-sam", "agnostic-sam", "ssam-f", "esam"]
FEW = {"ssam-f": {"samples": 2}}


@pytest.mark.parametrize("name", PARTIAL)
def test_a_plain_closure_where_rows_are_chosen(name: str) -> None:
    model, opt = setting(name, **FEW.get(name, {}))
    refused(model, opt, TypeError, r"takes the pass(.|\n)*def closure\(pass_\)", lambda: opt.step(plain(model)))


@pytest.mark.parametrize("name", ["m-sam", "agnostic-sam", "ssam-f"])
def test_forgetting_the_rows(name: str) -> None:
    model, opt = setting(name, **FEW.get(name, {}))

    def loop() -> None:
        for pass_ in opt.passes():
            pass_.backward(model(X).square().mean())

    refused(model, opt, RuntimeError, r"some rows of the batch only.*pass_\.rows\(x, y\)", loop)


def test_esam_without_losses_by_row() -> None:
    model, opt = setting("esam")
    refused(model, opt, RuntimeError, r"reduction='none'.*gamma=1", lambda: opt.step(by_rows(model)))


def test_an_empty_batch() -> None:
    model, opt = setting("m-sam")
    refused(model, opt, ValueError, "batch is empty", lambda: opt.step(by_rows(model, X[:0])))


def test_tensors_of_different_lengths() -> None:
    model, opt = setting("m-sam")
    act = lambda: opt.step(lambda pass_: pass_.backward(pass_.rows(X, X[:4])[0].sum()))  # noqa: E731
    refused(model, opt, ValueError, r"one length, not \[4, 6\]", act)


def test_rows_of_nothing() -> None:
    model, opt = setting("m-sam")
    refused(model, opt, TypeError, r"pass_\.rows\(x, y\)", lambda: opt.step(lambda pass_: pass_.rows()))


@pytest.mark.parametrize(
    ("name", "options", "rows", "match"),
    [
        ("m-sam", {"parts": 4}, 3, "4 parts of a batch of 3 rows"),
        ("agnostic-sam", {}, 1, "batch of 1 rows does not split 0.7 : 0.3"),
        ("ssam-f", {"samples": 5}, 4, "row 4 is not in a batch of 4 rows"),
    ],
)
def test_a_batch_that_is_too_small(name: str, options: dict[str, Any], rows: int, match: str) -> None:
    model, opt = setting(name, **options)
    refused(model, opt, ValueError, match, lambda: opt.step(by_rows(model, X[:rows])))


def test_sharpbalance_without_a_mask() -> None:
    model, opt = setting("sharpbalance")
    refused(model, opt, ValueError, r"opt\.step\(closure, mask=sharp\)", lambda: opt.step(by_rows(model)))


@pytest.mark.parametrize(
    ("mask", "error", "match"),
    [
        (torch.ones(5, dtype=torch.bool), ValueError, "batch of 5, but this batch has 6 rows"),
        (torch.ones(6), TypeError, "1-D bool tensor, not torch.float32"),
        (torch.ones(6, 1, dtype=torch.bool), TypeError, r"shape \(6, 1\)"),
        (torch.ones(0, dtype=torch.bool), ValueError, "which rows"),
    ],
)
def test_a_wrong_mask(mask: Tensor, error: type[Exception], match: str) -> None:
    model, opt = setting("sharpbalance")
    refused(model, opt, error, match, lambda: opt.step(by_rows(model), mask=mask))


def test_held_out_data_that_nobody_gave() -> None:
    model, opt = setting("agnostic-sam", share=None)
    refused(model, opt, RuntimeError, r"held_out=closure", lambda: opt.step(by_rows(model)))


def test_a_loss_that_nobody_returned() -> None:
    model, opt = setting("trace-sam")
    act = lambda: opt.step(lambda: model(X).square().mean().backward())  # noqa: E731
    refused(model, opt, RuntimeError, "value of the loss: return it", act)


@pytest.mark.parametrize("name", ["asam", "sam-on"])
def test_names_that_nobody_told(name: str) -> None:
    model = nn.Linear(3, 1)
    opt = steppe.build(name, torch.optim.SGD(model.parameters(), lr=0.1))
    refused(model, opt, ValueError, r"by name.*model=.*named_parameters\(\)", lambda: opt.step(by_rows(model)))
    named = steppe.build(name, torch.optim.SGD(model.named_parameters(), lr=0.1))
    named.step(by_rows(model))  # the way out that the message names


def test_momentum_sam_without_momentum() -> None:
    model, opt = setting("msam", momentum=0.0)
    with pytest.raises(ValueError, match=r"momentum.*keeps none"):
        for _ in range(2):
            opt.step(by_rows(model))


MODEL = nn.Linear(3, 2)


class Bare(torch.optim.Optimizer):
    """A base that skips `Optimizer.__init__`, as wrappers do."""

    def __init__(self, inner: torch.optim.Optimizer, **attributes: Any):
        self.inner = inner
        self.__dict__.update(attributes)

    def step(self, closure: Any = None) -> None:
        self.inner.step()


def base() -> torch.optim.Optimizer:
    return torch.optim.SGD(MODEL.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("base", "method", "said"),
    [
        (base, "sam", r"the method is the string 'sam': write steppe\.build\('sam', base"),
        (base, steppe.SAM, r"the method must be an instance, not the class SAM: write SAM\(\)"),
        (base, None, r"a steppe\.Method such as steppe\.SAM\(rho=0\.05\), not NoneType"),
        (base, 0.05, r"not float 0\.05: it has no plan"),
        (lambda: MODEL.parameters(), steppe.SAM(), r"not parameters: write .*base = torch\.optim\.SGD"),
        (lambda: list(MODEL.parameters()), steppe.SAM(), r"not parameters"),
        (lambda: MODEL, steppe.SAM(), r"the base is a torch optimizer, not Linear"),
        (lambda: torch.optim.SGD, steppe.SAM(), r"base must be an optimizer instance, not the class SGD"),
        (lambda: Bare(base()), steppe.SAM(), r"Bare is a torch\.optim\.Optimizer without param_groups: call super"),
    ],
)
def test_natural_misuse_is_told_what_to_write(base: Any, method: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        steppe.SharpnessAware(base(), method)


def test_a_base_that_has_what_is_needed_need_not_have_called_init() -> None:
    inner, plain = base(), base()
    wrapped = Bare(inner, param_groups=inner.param_groups, state=inner.state, defaults=inner.defaults)
    opt, twin = steppe.SharpnessAware(wrapped, steppe.SAM()), steppe.SharpnessAware(plain, steppe.SAM())
    start = copied(MODEL.state_dict())
    ends = []
    for each in (opt, twin):
        MODEL.load_state_dict(start)
        each.step(lambda pass_: pass_.backward(MODEL(torch.ones(2, 3)).square().sum()))
        ends.append(copied(MODEL.state_dict()))
    same(*ends)
    opt.load_state_dict(opt.state_dict())


@pytest.mark.parametrize("half", ["first_step", "second_step"])
def test_halves_of_a_step_are_answered_with_passes(half: str) -> None:
    opt = steppe.sam(base())
    assert not hasattr(opt, half)
    with pytest.raises(AttributeError, match=r"for pass_ in opt\.passes\(\)"):
        getattr(opt, half)(zero_grad=True)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda p, sgd: steppe.SAM(p, sgd, lr=0.1), r"SAM was given parameters and an optimizer class"),
        (lambda p, sgd: steppe.SAM(p, sgd, rho=0.05, adaptive=True), r"SAM was given parameters"),
        (lambda p, sgd: steppe.SAM(p, base_optimizer=sgd, rho=0.05), r"SAM was given parameters"),
        (lambda p, sgd: steppe.SAM(list(p), rho=0.05), r"SAM was given parameters: write"),
        (lambda p, sgd: steppe.SAM([{"params": p}]), r"SAM was given parameters: write"),
        (lambda p, sgd: steppe.SAM(sgd), r"SAM was given an optimizer class"),
        (lambda p, sgd: steppe.sam(p, sgd, lr=0.1), r"sam was given parameters and an optimizer class"),
        (lambda p, sgd: steppe.sam(p, sgd, rho=0.05), r"sam was given parameters and an optimizer class"),
        (lambda p, sgd: steppe.SharpnessAware(p, sgd, lr=0.1), r"SharpnessAware was given parameters"),
    ],
)
def test_the_signature_of_other_libraries_is_told_what_to_write(act: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said) as caught:
        act(MODEL.parameters(), torch.optim.SGD)
    _, code, other = str(caught.value).splitlines()
    assert other == "or wrap an optimizer that has them, opt = steppe.sam(base, rho=0.05)"
    names: dict[str, Any] = {"steppe": steppe, "torch": torch, "model": MODEL, "base": base()}
    exec(code.strip(), names)  # what the error says to write
    assert names["opt"].method == steppe.method("sam")
    exec(other.partition(", ")[2], names)
    assert names["opt"].method == steppe.method("sam")


def test_methods_in_the_place_of_optimizers_are_told_what_to_write() -> None:
    written = (
        r"opt = steppe\.optimizer\(model\.parameters\(\), torch\.optim\.AdamW, method=steppe\.{}\(\.\.\.\), lr=0\.1\)"
    )
    with pytest.raises(TypeError, match=written.format("GSAM")):
        steppe.GSAM(MODEL.parameters(), torch.optim.AdamW, lr=0.1)
    with pytest.raises(TypeError, match=written.format("FrobSAM")):
        steppe.FrobSAM(MODEL.parameters(), torch.optim.AdamW, lr=0.1)  # type: ignore[arg-type, call-arg]
    with pytest.raises(
        TypeError, match=r"SAM was given an optimizer: wrap it,\n    opt = steppe\.sam\(base, rho=0\.05\)"
    ):
        steppe.SAM(base(), rho=0.1)  # type: ignore[arg-type]


def test_the_classes_that_check_their_arguments_show_their_signatures() -> None:
    assert list(inspect.signature(steppe.SharpnessAware).parameters)[:2] == ["base", "method"]
    assert list(inspect.signature(steppe.SAM).parameters) == ["rho", "steps", "decay_in_ascent"]
    assert list(inspect.signature(steppe.sam).parameters)[:3] == ["base", "rho", "p"]


def compiled_loop(model: nn.Module, opt: Any) -> Any:
    def whole() -> None:
        for pass_ in opt.passes():
            pass_.backward(model(X).square().mean())
        opt.step()

    return whole


@pytest.mark.filterwarnings("ignore")  # torch's about tracing
@pytest.mark.parametrize("what", ["step", "a function with a loop", "a function with a closure"])
def test_a_whole_step_in_torch_compile(what: str) -> None:
    model, opt = setting("sam")
    whole: dict[str, Any] = {
        "step": opt.step,
        "a function with a loop": lambda _: compiled_loop(model, opt)(),
        "a function with a closure": opt.step,
    }
    act = torch.compile(whole[what], backend="eager")
    refused(model, opt, RuntimeError, r"torch\.compile\(model\).*steppe\.capture", lambda: act(plain(model)))
    torch.compile(model, backend="eager")(X)
    opt.step(plain(torch.compile(model, backend="eager")))  # the way out


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("made", ["outside", "inside"])
@pytest.mark.parametrize("name", ["sam", "looksam", "asam"])
def test_a_first_use_in_inference_mode(name: str, made: str, scaled: bool) -> None:
    """It raises, and leaves nothing behind that a later step could trip over."""
    runs = []
    for misused in (True, False):
        model, opt = setting(name)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if scaled else None
        state = {**opt.__getstate__(), "scaler": scaler}
        with torch.inference_mode(misused and made == "inside"):
            opt.__setstate__(state)
        if misused:
            for act in (lambda: opt.step(plain(model)), compiled_loop(model, opt), opt.step):
                with torch.inference_mode():
                    refused(model, opt, RuntimeError, r"under torch\.inference_mode", act)
        for _ in range(3):
            compiled_loop(model, opt)()
            if scaler is not None:
                scaler.update()
        runs.append((copied(model.state_dict()), copied(opt.state_dict())))
    same(*runs)


def test_parameters_that_share_memory() -> None:
    one = nn.Parameter(torch.randn(4, 3))
    two, columns = nn.Parameter(one.data), [nn.Parameter(one.data[:, :1]), nn.Parameter(one.data[:, 1:])]

    def closure(*parameters: Tensor) -> Any:
        return lambda pass_: pass_.backward(torch.stack([p.square().sum() for p in parameters]).sum())

    for shared in ([one, two], [one, nn.Parameter(one.data[2:])], [one, columns[1]]):
        opt = steppe.sam(torch.optim.SGD(shared, lr=0.1))
        before = one.detach().clone()
        with pytest.raises(ValueError, match=r"share memory.*tie weights by one nn\.Parameter in both places"):
            opt.step(closure(*shared))
        assert torch.equal(one, before)
    steppe.sam(torch.optim.SGD(columns, lr=0.1)).step(closure(*columns))  # nothing in both
    late = steppe.sam(torch.optim.SGD([one, other := nn.Parameter(torch.randn(4, 3))], lr=0.1))
    late.step(closure(one, other))
    other.data = one.data
    with pytest.raises(ValueError, match="share memory"):
        late.step(closure(one, other))


class Nothing(steppe.Method):
    def plan(self, context: Any) -> Any:
        return None


class NoGradient(steppe.Method):
    def plan(self, context: Any) -> Any:
        yield steppe.Probe()


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Nothing(), r"plan of Nothing returned None and yielded no Probe: write `here = yield steppe\.Probe\(\)`"),
        (NoGradient(), r"plan of NoGradient returned None: it has to return the gradient .* `return here\.grad`"),
    ],
)
def test_a_plan_that_yields_or_returns_nothing_is_told_what_to_write(method: Any, said: str) -> None:
    w = nn.Parameter(torch.ones(2))
    opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.1), method)
    with pytest.raises(TypeError, match=said):
        opt.step(lambda pass_: pass_.backward(w.square().sum()))
    assert torch.equal(w, torch.ones(2))


def test_parameters_come_first_and_a_model_is_no_radius() -> None:
    w = nn.Parameter(torch.ones(2))
    with pytest.raises(TypeError, match=r"parameters come first: steppe\.optimizer\(model\.parameters\(\)"):
        steppe.optimizer("sam", [w], lr=0.1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"rho of sam takes a number, 0 or more, and finite, not a Sequential$"):
        steppe.sam(torch.optim.SGD([w], lr=0.1), nn.Sequential(nn.Linear(1, 1)))  # type: ignore[arg-type]


def test_a_name_of_a_package_below_is_found() -> None:
    with pytest.raises(AttributeError, match=r"There is steppe\.training\.train\.$"):
        _ = steppe.train  # type: ignore[attr-defined]
