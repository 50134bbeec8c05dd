"""Training by recorded steps is training: the same weights, records and refusals, here by a recorder on the CPU."""

from __future__ import annotations

import pytest
import torch
from again import Again
from training_runs import config

from steppe.cuda.capturable import made_capturable
from steppe.cuda.captured import Captured
from steppe.training import loop, train

WATCHED = ("train_loss", "train_accuracy", "test_loss", "passes", "skipped", "step")


def trained(settings, monkeypatch, *, recorded: bool):
    """A run with a fused base optimizer, whose steps are recorded or not."""
    made, found = loop.optimizer_of, []

    def fused(*given):
        opt = made(*given)
        assert made_capturable(opt.base, guarded=True) is None
        for group in opt.param_groups:
            group.pop("capturable", None) if type(opt.base).__name__ == "SGD" else group.update(capturable=False)
        return opt

    def capture(training):
        if recorded:
            captured = Captured(training.state.opt, training._alone, training.state.module, Again())
            training._captured = captured
            found.append(captured)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "optimizer_of", fused)
        patch.setattr(loop.Training, "capture", capture)
        run = train(settings)
    return run, found


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("sam", {}),
        ("agnostic-sam", {"held_out": 0.25}),
        ("sa-sam", {}),
        ("frob-sam", {}),
        ("sam", {"clip": 0.5, "ema": 0.9}),
    ],
)
def test_runs_of_recorded_steps_are_runs(tmp_path, monkeypatch, method, options):
    ends = []
    for recorded in (False, True):
        settings = config(tmp_path / str(recorded), method=method, model="training_runs:steady", epochs=3, **options)
        run, found = trained(settings, monkeypatch, recorded=recorded)
        if recorded:
            assert found[0].why is None
            assert found[0]._recordings
        ends.append(run)
    for a, b in zip(ends[0].records, ends[1].records, strict=True):
        assert {k: a[k] for k in WATCHED if k in a} == pytest.approx({k: b[k] for k in WATCHED if k in b}, rel=1e-5)
    a, b = (run.model().state_dict() for run in ends)
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)


def test_a_model_that_puts_other_tensors_in_place_is_trained_as_it_is(tmp_path, monkeypatch):
    with pytest.warns(UserWarning, match="other tensors in the place of its weights or statistics"):
        trained(config(tmp_path, epochs=3), monkeypatch, recorded=True)


def test_refused_steps_are_counted_and_leave_no_trace_in_the_records(tmp_path, monkeypatch):
    ends = []
    for recorded in (False, True):
        settings = config(tmp_path / str(recorded), model="training_runs:moody", on_nonfinite="skip", epochs=4)
        run, _ = trained(settings, monkeypatch, recorded=recorded)
        ends.append(run.records)
    for a, b in zip(*ends, strict=True):
        assert {k: a[k] for k in WATCHED if k in a} == pytest.approx({k: b[k] for k in WATCHED if k in b}, rel=1e-5)
