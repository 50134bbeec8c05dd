"""The precision of a measurement is its own: neither what is set around it gets in, nor what it sets gets out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from steppe.measures import Estimate, Measure, Objective, measure
from steppe.measures.curvature.operator import Curvature
from steppe.measures.estimate import exact
from steppe.measures.session import Precision, computing_in

new = pytest.mark.skipif(not hasattr(torch._C, "_set_fp32_precision_setter"), reason="torch 2.9 and later")
KEYS = [("generic", "all"), *((b, op) for b in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn"))]
OLD: dict[str, Callable[[], Any]] = {
    "matmul": lambda: torch.backends.cuda.matmul.allow_tf32,
    "cudnn": lambda: torch.backends.cudnn.allow_tf32,
    "float32_matmul_precision": torch.get_float32_matmul_precision,
}


def get(*key: str) -> str:
    value: str = torch._C._get_fp32_precision_getter(*key)
    return value


def put(*key: str) -> None:
    torch._C._set_fp32_precision_setter(*key)


def said() -> dict[Any, Any]:
    """What every setting says; old ones refuse to say anything where they contradict new ones."""
    found: dict[Any, Any] = {key: get(*key) for key in KEYS} if hasattr(torch._C, "_set_fp32_precision_setter") else {}
    for name, read in OLD.items():
        try:
            found[name] = read()
        except RuntimeError:
            found[name] = "a contradiction"
    return found


def everything() -> list[dict[Any, Any]]:
    """What settings say now, and would say if the ones above them were others."""
    seen, before = [said()], get("generic", "all")
    for value in ("ieee", "tf32", "none"):
        put("generic", "all", value)
        seen.append(said())
    put("generic", "all", before)
    return seen


@pytest.fixture
def _as_before() -> Iterator[None]:
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    kept = {key: get(*key) for key in KEYS} if hasattr(torch._C, "_set_fp32_precision_setter") else {}
    yield
    for key in kept:
        put(*key, "none")
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn
    for key in (k for k in kept if k[1] == "matmul"):
        put(*key, kept[key])


def objective(**options: Any) -> Objective:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    return Objective(model, cross_entropy, (torch.randn(32, 6), torch.arange(32) % 3), **options)


SETTINGS: list[tuple[Any, ...]] = [
    *((*key, value) for key in KEYS for value in ("tf32", "ieee", "none")),
    *(("old", name, value) for name in ("matmul", "cudnn") for value in (True, False)),
    *(("old", "float32_matmul_precision", value) for value in ("highest", "high", "medium")),
]


def make(setting: tuple[Any, ...]) -> None:
    if setting[0] != "old":
        put(*setting)
    elif setting[1] == "float32_matmul_precision":
        torch.set_float32_matmul_precision(setting[2])
    else:
        place: Any = torch.backends.cuda.matmul if setting[1] == "matmul" else torch.backends.cudnn
        place.allow_tf32 = setting[2]


@new
@pytest.mark.usefixtures("_as_before")
def test_the_settings_of_a_fresh_process_come_back() -> None:
    """Where convolutions round although nobody set anything: that they still follow a general setting must stay."""
    before = everything()
    for precision, conv in (("float32", "ieee"), ("tf32", "tf32"), ("bf16", "ieee")):
        with computing_in(precision):  # type: ignore[arg-type]
            assert get("cuda", "conv") == get("cuda", "rnn") == get("cuda", "matmul") == conv
        assert everything() == before


@new
@pytest.mark.usefixtures("_as_before")
@settings(deadline=None, max_examples=150)
@given(
    made=st.lists(st.sampled_from(SETTINGS), max_size=5),
    asked=st.lists(st.sampled_from(["float32", "tf32", "bf16"]), min_size=1, max_size=3),
)
def test_whatever_a_user_has_set_holds_again_afterwards(made: list[tuple[Any, ...]], asked: list[Precision]) -> None:
    for setting in made:
        make(setting)
    before = everything()

    def nest(deep: int) -> None:
        if deep == len(asked):
            raise KeyError
        wanted = "tf32" if asked[deep] == "tf32" else "ieee"
        with computing_in(asked[deep], ["cpu"]):
            assert {get("cuda", op) for op in ("matmul", "conv", "rnn")} == {wanted}
            assert {get("mkldnn", op) for op in ("matmul", "conv", "rnn")} == {"ieee"}
            assert torch.backends.cuda.matmul.allow_tf32 == (wanted == "tf32")  # torch.compile reads it
            try:
                nest(deep + 1)
            finally:
                assert {get("cuda", op) for op in ("matmul", "conv", "rnn")} == {wanted}

    with pytest.raises(KeyError):
        nest(0)
    assert everything() == before


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("old", ["highest", "high", "medium"])
def test_the_old_settings_alone(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in versions before 2.9, which have no others."""
    from steppe.measures import session as switches

    monkeypatch.setattr(switches, "_SET", None)
    for cudnn in (True, False):
        torch.set_float32_matmul_precision(old)
        torch.backends.cudnn.allow_tf32 = cudnn
        for wanted in ("float32", "tf32"):
            with computing_in(wanted):  # type: ignore[arg-type]
                assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is (wanted == "tf32")
            assert torch.get_float32_matmul_precision() == old
            assert torch.backends.cudnn.allow_tf32 is cudnn


@new
@pytest.mark.usefixtures("_as_before")
def test_threads_that_measure_at_once_leave_what_they_found() -> None:
    torch.set_float32_matmul_precision("high")
    before, seen = everything(), []

    def work() -> None:
        for _ in range(30):
            with computing_in("float32"):
                seen.append(get("cuda", "conv"))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 120
    assert set(seen) == {"ieee"}
    assert everything() == before


def test_an_autocast_around_a_measurement_does_not_get_in() -> None:
    dtypes = []

    def loss(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        dtypes.append(out.dtype)
        return cross_entropy(out, y)

    plain = objective()
    asked = Objective(plain.model, loss, plain.batches)
    v = asked.draw(1).normal()
    expected = plain.loss(), Curvature(plain).product(v)
    with torch.autocast("cpu", torch.bfloat16):
        assert asked.loss() == expected[0]
        found = Curvature(asked).product(v)
        measure(plain.model, loss, plain.batches, ["lambda_max"], progress=False)
        assert torch.is_autocast_enabled("cpu")
    assert all(torch.equal(a, b) for a, b in zip(found.tensors, expected[1].tensors, strict=True))
    assert set(dtypes) == {torch.float32}


def test_bf16_is_asked_for_and_rounds() -> None:
    """To 8 bits: by more than float32 and by less than would be useless. In between the block everything is float32."""
    full, rough = objective(), objective(precision="bf16")
    assert 1e-6 < abs(rough.loss() / full.loss() - 1) < 1e-2
    v = full.draw(1).normal()
    one, two = Curvature(full).product(v), Curvature(rough).product(v)
    assert all(t.dtype is torch.float32 for t in two.tensors)
    assert 1e-4 < float((one - two).norm()) / float(one.norm()) < 0.1
    found = measure(full.model, cross_entropy, full.batches, ["lambda_max"], progress=False, precision="bf16")
    exact = measure(full.model, cross_entropy, full.batches, ["lambda_max"], progress=False)
    assert 1e-5 < abs(found["lambda_max"].value / exact["lambda_max"].value - 1) < 0.1
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.usefixtures("_as_before")
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_what_a_measure_makes_of_losses_is_in_full_precision(precision: Precision) -> None:
    """Projections onto a basis must not round, whatever the passes may do and whatever is set around them."""

    class Projection(Measure):
        def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
            objective.loss()
            product = torch.ones(2, 2) @ torch.ones(2, 2)
            yield exact(float(product.dtype is torch.float32 and not torch.backends.cuda.matmul.allow_tf32))

    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.autocast("cpu", torch.bfloat16):
        assert Projection().estimate(objective(precision=precision)).value


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_double_precision_stays(precision: Precision) -> None:
    single = objective()
    batches = [(x.double(), y) for x, y in single.batches]
    plain, other = (
        Objective(single.model.double(), cross_entropy, batches, precision=p) for p in ("float32", precision)
    )
    v = plain.draw(1).normal()
    assert plain.loss() == other.loss()
    one, two = Curvature(plain).product(v), Curvature(other).product(v)
    assert all(torch.equal(a, b) for a, b in zip(one.tensors, two.tensors, strict=True))


@new
@pytest.mark.usefixtures("_as_before")
def test_a_loss_that_raises_leaves_the_settings_alone() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    before = everything()

    def fails(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        assert get("cuda", "matmul") == "ieee"
        raise LookupError("planted")

    asked = objective()
    with pytest.raises(LookupError):
        Objective(asked.model, fails, asked.batches).loss()
    assert everything() == before


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one of .*'float32', 'tf32', 'bf16'.*, not 'half'"):
        objective(precision="half").loss()
