"""Training with captured steps gives the same weights, records and skipped steps, here by a recorder on the CPU."""

from __future__ import annotations

import pytest
import torch
from cpu_recorder import CpuRecorder
from training_runs import config

from steppe.cuda.capturable import make_capturable
from steppe.cuda.capture import CapturedStep
from steppe.training import loop, train

WATCHED = ("train_loss", "train_accuracy", "test_loss", "passes", "skipped", "step")


def trained(settings, monkeypatch, *, captured: bool):
    """A run with a fused base optimizer, whose steps are captured or not."""
    made, steps = loop.optimizer_of, []

    def fused(*given):
        opt = made(*given)
        assert make_capturable(opt.base, guarded=True) is None
        for group in opt.param_groups:
            group.pop("capturable", None) if type(opt.base).__name__ == "SGD" else group.update(capturable=False)
        return opt

    def capture(training):
        if captured:
            state = training.state
            step = CapturedStep(state.opt, training._without_mask, state.module, CpuRecorder(), lambda opt: None)
            training._captured = step
            steps.append(step)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "optimizer_of", fused)
        patch.setattr(loop.Training, "capture", capture)
        run = train(settings)
    return run, steps


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("sam", {}),
        ("agnostic-sam", {"held_out": 0.25}),
        ("sa-sam", {}),
        ("frob-sam", {}),
        ("sam", {"clip": 0.5, "ema": 0.9}),
        ("sam", {"prune": 0.6, "prune_at": 0.7}),
        ("sam", {"lr_factors": {"backbone": 0.5}, "freeze": ["1.*", "2.*"]}),
    ],
)
def test_runs_with_captured_steps_equal_eager_runs(tmp_path, monkeypatch, method, options):
    ends = []
    for captured in (False, True):
        settings = config(tmp_path / str(captured), method=method, model="training_runs:steady", epochs=3, **options)
        run, steps = trained(settings, monkeypatch, captured=captured)
        if captured:
            assert steps[0].why is None
            assert steps[0].graphs
        ends.append(run)
    for a, b in zip(ends[0].records, ends[1].records, strict=True):
        assert {k: a[k] for k in WATCHED if k in a} == pytest.approx({k: b[k] for k in WATCHED if k in b}, rel=1e-5)
    a, b = (run.model().state_dict() for run in ends)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)


def test_a_model_that_puts_other_tensors_in_place_is_trained_as_it_is(tmp_path, monkeypatch):
    with pytest.warns(UserWarning, match="other tensors in the place of its weights or statistics"):
        trained(config(tmp_path, epochs=3), monkeypatch, captured=True)


def test_refused_steps_are_counted_and_leave_no_trace_in_the_records(tmp_path, monkeypatch):
    ends = []
    for captured in (False, True):
        settings = config(tmp_path / str(captured), model="training_runs:moody", on_nonfinite="skip", epochs=4)
        run, _ = trained(settings, monkeypatch, captured=captured)
        ends.append(run.records)
    for a, b in zip(*ends, strict=True):
        assert {k: a[k] for k in WATCHED if k in a} == pytest.approx({k: b[k] for k in WATCHED if k in b}, rel=1e-5)


def test_a_compiled_run_has_the_weights_of_a_plain_one(tmp_path, monkeypatch):
    """Every pass of a step calls the compiled code; evaluation and measures do not."""
    calls, compiled = [], torch.compile

    def backend(graph, _):
        def counted(*inputs):
            calls.append(graph)
            return graph(*inputs)

        return counted

    monkeypatch.setattr(torch, "compile", lambda model, **options: compiled(model, backend=backend, **options))
    settings = {"model": "training_runs:normalised", "epochs": 2, "measures": ["lambda_max"], "measure_rows": 16}
    plain = train(config(tmp_path / "plain", **settings))
    assert not calls
    run = train(config(tmp_path / "compiled", **settings, compile=True))
    assert len(calls) == sum(record["passes"] for record in run.records)
    assert [record["test_loss"] for record in run.records] == [record["test_loss"] for record in plain.records]
    assert run.records[-1]["measures"] == plain.records[-1]["measures"]
    for name, tensor in plain.model().state_dict().items():
        assert torch.equal(run.model().state_dict()[name], tensor), name


def test_a_sharded_model_is_not_compiled(tmp_path):
    with pytest.raises(ValueError, match="compile works in one process, and fsdp is for several"):
        config(tmp_path, compile=True, fsdp=True)
