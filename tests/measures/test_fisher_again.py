"""Traces that are asked for again: what was found out before is not found out anew, and no change is overlooked."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace

import pytest
import torch
from cpu_recorder import CpuRecorder
from snapshots import assert_untouched
from torch import nn
from torch.nn.functional import cross_entropy

from steppe.cuda.graphs import GraphCache
from steppe.measures import fisher, functional, ghost, session
from steppe.measures.fisher import FisherTrace, fisher_traces
from steppe.measures.objective import Objective
from steppe.measures.session import session as measurement_mode

ROWS = 4
CALLS = 3  # a warm-up, a capture, a replay


class Centred(nn.Module):
    """Subtracts the mean of all rows, if it is told to."""

    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.mixes = mixes

    def forward(self, x):
        return x - x.mean(0) if self.mixes else x


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often Python does what is dear."""
    calls: Counter[str] = Counter()

    def count(module, name: str) -> None:
        true = getattr(module, name)

        def counting(*args, **kwargs):
            calls[name] += 1
            return true(*args, **kwargs)

        monkeypatch.setattr(module, name, counting)

    count(fisher, "row_by_row")
    count(ghost, "_layers")
    count(session, "preserved_rng")
    return calls


def network(mixes: bool = False) -> nn.Sequential:
    square = nn.Linear(3, 3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), Centred(mixes), square, nn.Tanh(),
        nn.Dropout(0.5), nn.Linear(3, 2),
    ).double()  # fmt: skip


def objective(model: nn.Module, **options) -> Objective:
    rows = (torch.randn(ROWS, 1, 5, 5, dtype=torch.float64), torch.randint(0, 2, (ROWS,)))
    return Objective(model, cross_entropy, rows, **options)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Objective:
    """An objective whose traces are replayed already."""
    monkeypatch.setattr(functional, "CAPTURED", {"cpu", "cuda"})
    asked = objective(network(), replays=GraphCache(CpuRecorder()))
    for _ in range(CALLS):
        fisher_traces(asked)
    assert asked.replays.count == 1
    assert asked.replays.why is None
    return asked


def by_rows(asked: Objective) -> torch.Tensor:
    """The same from a new objective, of which nothing is known or recorded, by another way."""
    return fisher_traces(Objective(asked.model, asked.loss_fn, asked.batches), "rows")


def test_a_replay_costs_one_look_at_the_model(recorded, counted):
    with assert_untouched(recorded.model):
        found = [fisher_traces(recorded) for _ in range(3)]
    assert counted == {"preserved_rng": 3}  # no layers, no row by itself, the generators' states once a call
    assert FisherTrace().estimate(recorded).note == "by ghost"
    assert counted["preserved_rng"] == 4
    for traces in found:
        torch.testing.assert_close(traces, by_rows(recorded))


def moved_in_place(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)


def loaded(model):
    model.load_state_dict({k: v * 2 if v.is_floating_point() else v for k, v in model.state_dict().items()})


def statistics_moved(model):
    model[1].running_mean.add_(1)
    model[1].running_var.mul_(3)


def statistics_elsewhere(model):
    model[1].running_mean = torch.ones(3, dtype=torch.float64)


def data_elsewhere(model):
    model[0].weight.data = model[0].weight.data * 2


def transposed(model):
    """In the same memory, and of the same shape."""
    model[5].weight.data = model[5].weight.data.t()


def cast(model):
    model.float().double()
    moved_in_place(model)


def layer_replaced(model):
    model[6] = nn.Sigmoid()


def hooked(model):
    model[5].register_forward_hook(lambda module, args, out: out * 3)


def hooked_before(model):
    model[5].register_forward_pre_hook(lambda module, args: (args[0] * 3,))


def hooked_backwards(model):
    model[6].register_full_backward_hook(lambda module, into, out: (into[0] * 2,))


def forward_replaced(model):
    model[6].forward = lambda x: x * 2


def another_class(model):
    model[6].__class__ = nn.Sigmoid


def in_training(model):
    model.train()


def in_eval_mode(model):
    model.eval()


def partly_in_training(model):
    model.eval()
    model[1].train()
    model[7].train()


CHANGES = [
    moved_in_place, loaded, statistics_moved, statistics_elsewhere, data_elsewhere, transposed, cast, layer_replaced,
    hooked, hooked_before, hooked_backwards, forward_replaced, another_class, in_training, in_eval_mode,
    partly_in_training,
]  # fmt: skip
ONLY_MODES = [in_training, in_eval_mode, partly_in_training]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_model_is_seen(change, recorded):
    before = fisher_traces(recorded)
    change(recorded.model)
    with assert_untouched(recorded.model):
        found = [fisher_traces(recorded, "ghost") for _ in range(CALLS)]
    for traces in found:
        torch.testing.assert_close(traces, by_rows(recorded))
    assert torch.allclose(before, found[0]) == (change in ONLY_MODES)


@pytest.mark.parametrize("change", [moved_in_place, loaded, statistics_moved, *ONLY_MODES])
def test_what_happens_in_place_is_replayed(change, recorded, counted):
    change(recorded.model)
    fisher_traces(recorded)
    assert counted == {"preserved_rng": 1}


def test_weights_that_stay_are_looked_at_as_they_lie(monkeypatch):
    monkeypatch.setattr(functional, "CAPTURED", {"cpu", "cuda"})
    model = network()
    model[5].weight.requires_grad_(False)
    asked = objective(model, replays=GraphCache(CpuRecorder()))
    for change in (in_eval_mode, transposed, transposed):
        change(model)
        for _ in range(CALLS):
            torch.testing.assert_close(fisher_traces(asked, "ghost"), by_rows(asked))


HOOKS = {
    "register_forward_hook": lambda factor: lambda module, args, out: out * factor,
    "register_forward_pre_hook": lambda factor: lambda module, args: (args[0] * factor,),
    "register_full_backward_hook": lambda factor: lambda module, into, out: (into[0] * factor,),
    "register_full_backward_pre_hook": lambda factor: lambda module, out: (out[0] * factor,),
}


@pytest.mark.parametrize("register", HOOKS)
def test_hooks_that_come_and_go(register, recorded):
    """A function that is gone may leave its place in memory to the next one."""
    for factor in (2, 3, 4):
        handle = getattr(recorded.model[6], register)(HOOKS[register](factor))
        for _ in range(CALLS):
            torch.testing.assert_close(fisher_traces(recorded, "ghost"), by_rows(recorded))
        handle.remove()
        del handle
    torch.testing.assert_close(fisher_traces(recorded, "ghost"), by_rows(recorded))


@pytest.mark.parametrize(
    "other",
    [
        {"loss_fn": lambda out, y: 2 * cross_entropy(out, y)},
        {"forward": lambda model, batch: (2 * model(batch[0]), batch[1])},
    ],
)
def test_another_function_of_the_same_model_is_another_recording(other, recorded):
    """Although both are kept together."""
    asked = replace(recorded, **other)
    assert asked.replays is recorded.replays
    for _ in range(CALLS):
        torch.testing.assert_close(fisher_traces(asked, "ghost"), fisher_traces(asked, "rows"))
        torch.testing.assert_close(fisher_traces(recorded, "ghost"), by_rows(recorded))


def test_hooks_of_all_modules_are_seen(recorded):
    for register, hook in (
        (nn.modules.module.register_module_forward_hook, lambda m, args, out: out * 2 if type(m) is nn.Tanh else None),
        (
            nn.modules.module.register_module_forward_pre_hook,
            lambda m, args: args[0] * 2 if type(m) is nn.Tanh else None,
        ),
    ):
        handle = register(hook)
        try:
            torch.testing.assert_close(fisher_traces(recorded, "ghost"), by_rows(recorded))
        finally:
            handle.remove()


@pytest.mark.parametrize("replays", [False, True])
def test_a_parameter_that_was_replaced_is_not_the_objectives(replays, request):
    """An objective is a function of the parameters that it found, whichever way it is asked."""
    asked = request.getfixturevalue("recorded") if replays else objective(network())
    expected = fisher_traces(asked, "rows")
    asked.model[5].weight = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))
    for _ in range(CALLS):
        for way in ("ghost", "vmap", "rows", None):
            torch.testing.assert_close(fisher_traces(asked, way), expected)


# --- a row by itself


def test_a_row_by_itself_is_looked_at_once_for_every_way(counted):
    asked = objective(network(), m=2)
    for _ in range(3):
        fisher_traces(asked)
    assert counted["row_by_row"] == 1
    for _ in range(3):
        fisher_traces(asked, "vmap")
        fisher_traces(asked, "ghost")
        FisherTrace().estimate(asked)
    assert counted["row_by_row"] == 2


@pytest.mark.parametrize("change", [moved_in_place, loaded, statistics_moved, data_elsewhere, transposed, *ONLY_MODES])
def test_weights_and_modes_say_nothing_about_rows(change, counted):
    asked = objective(network())
    fisher_traces(asked)
    change(asked.model)
    fisher_traces(asked)
    assert counted["row_by_row"] == 1


@pytest.mark.parametrize("change", [layer_replaced, hooked, forward_replaced, another_class])
def test_another_model_is_looked_at_again(change, counted):
    asked = objective(network())
    fisher_traces(asked)
    change(asked.model)
    for _ in range(2):
        fisher_traces(asked)
    assert counted["row_by_row"] == 2


def test_other_objectives_are_looked_at_for_themselves(counted):
    asked = objective(network())
    fisher_traces(asked)
    for other in (
        replace(asked, loss_fn=lambda out, y: cross_entropy(out, y)),
        replace(asked, model=network()),
        replace(asked, forward=lambda model, batch: (model(batch[0]), batch[1])),
    ):
        counted.clear()
        for _ in range(2):
            fisher_traces(other)
        assert counted["row_by_row"] == 1


@pytest.mark.parametrize("replays", [False, True])
def test_a_model_that_mixes_rows_is_refused_every_time(replays, monkeypatch):
    if replays:
        monkeypatch.setattr(functional, "CAPTURED", {"cpu", "cuda"})
    asked = objective(network(mixes=True), replays=GraphCache(CpuRecorder() if replays else None))
    for _ in range(CALLS + 1):
        with pytest.raises(ValueError, match=r"ghost gives row \d another gradient of"):
            fisher_traces(asked, "ghost")
        torch.testing.assert_close(fisher_traces(asked), by_rows(asked))


def mixing_by_attribute(model):
    model[4].mixes = True


def mixing_by_layer(model):
    model[4] = Centred(mixes=True)


def mixing_by_hook(model):
    model[5].register_forward_pre_hook(lambda module, args: (args[0] - args[0].mean(0),))


@pytest.mark.parametrize("change", [mixing_by_attribute, mixing_by_layer, mixing_by_hook])
def test_a_model_that_begins_to_mix_rows_is_refused(change):
    asked = objective(network())
    fisher_traces(asked)
    change(asked.model)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"ghost gives row \d another gradient of"):
            fisher_traces(asked, "ghost")
        torch.testing.assert_close(fisher_traces(asked), by_rows(asked))


@pytest.mark.parametrize("nothing", [0.0, float("nan")])
def test_rows_without_a_gradient_prove_nothing(nothing):
    weight = torch.full((ROWS,), nothing, dtype=torch.float64)
    rows = (torch.randn(ROWS, 1, 5, 5, dtype=torch.float64), torch.randint(0, 2, (ROWS,)), weight)

    def loss(out, target):
        return cross_entropy(out, target[0], reduction="none") * target[1]

    asked = Objective(
        network(mixes=True), loss, rows, forward=lambda model, batch: (model(batch[0]), batch[1:]), trusted=True
    )
    fisher_traces(asked, "ghost")
    weight.fill_(1)
    with pytest.raises(ValueError, match="another gradient"):
        fisher_traces(asked, "ghost")


# --- a model that is left as it was


def test_modes_are_put_back_whatever_happens_to_them_inside():
    model = network().train()
    model[1].eval()
    for statistics in ("running", "batch"):
        with assert_untouched(model), measurement_mode(model, statistics):
            assert [m.training for m in model.modules()] == [
                statistics == "batch" and isinstance(m, nn.BatchNorm2d) for m in model.modules()
            ]
            model[0].train()
            model[8].train()
        with assert_untouched(model), pytest.raises(KeyError), measurement_mode(model, statistics):
            model[8].train()
            raise KeyError


def test_modes_of_scripted_models_are_put_back():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scripting is old
        model = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.9)))
    x = torch.ones(99, 2)
    with measurement_mode(model):
        assert not any(m.training for m in model.modules())
        assert torch.equal(model(x), model(x))
    assert all(m.training for m in model.modules())
    assert not torch.equal(model(x), model(x))


def test_tensors_that_are_plain_attributes_are_put_back():
    model = network()
    model[4].last = last = torch.ones(2)
    with measurement_mode(model):
        model[4].last = torch.zeros(2)
    assert model[4].last is last
