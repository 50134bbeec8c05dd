"""Arguments that a user gives by mistake: one error that says what was given, and what to write."""

from __future__ import annotations

import os
import subprocess
import sys
from math import nan
from typing import Any

import pytest
import torch
from torch import nn

import steppe
from steppe import SAM, Ball, Objective, SharpnessAware, measure
from steppe._util.registry import PLUGINS, declared
from steppe.measures import AverageCase, CurvatureLimit, Loss, OneStep, SlopeLimit, WorstCase
from steppe.training import Config

MODEL = nn.Linear(3, 2)
CROSS_ENTROPY = nn.CrossEntropyLoss()
DATA = [(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 0, 1]))]


def base() -> torch.optim.Optimizer:
    return torch.optim.SGD(MODEL.parameters(), lr=0.1)


NUMBER = r"rho of SAM takes a number, 0 or more, and finite, or a neighbourhood such as Ball\(0\.1\), not "

WRONG: list[tuple[Any, type[Exception], str]] = [
    (lambda: SharpnessAware(base(), "samm"), TypeError, r"the string 'samm': write steppe\.build.*mean 'sam'"),
    (lambda: SharpnessAware(SAM(), base()), TypeError, r"not SAM\(.*the method comes second: .*Aware\(base, method"),
    (lambda: SharpnessAware(base(), base()), TypeError, r"such as steppe\.SAM\(rho=0\.05\), not SGD: it has no plan"),
    (lambda: SharpnessAware(base(), Ball(0.1)), TypeError, r"is a neighbourhood, .*: write SAM\(Ball\("),
    (lambda: SharpnessAware(base(), steppe.TraceSAM), TypeError, r"the function TraceSAM: call it, TraceSAM\(\)"),
    (lambda: SharpnessAware(base(), SAM(), seed="a"), ValueError, "seed of SharpnessAware takes a whole number, not"),
    (lambda: steppe.build(base(), "sam"), TypeError, r"a string such as 'sam', not by SGD: write steppe\.build\('sam'"),
    (lambda: steppe.build(SAM(), base()), TypeError, r"not by SAM\(.*SharpnessAware\(base, SAM\(\)\)"),
    (lambda: steppe.method(SAM), TypeError, "not by the class SAM"),
    (lambda: steppe.sam(MODEL.parameters(), lr=0.1), TypeError, "a torch optimizer, not parameters"),
    (lambda: SAM(rho="a"), ValueError, NUMBER + "'a'"),
    (lambda: SAM(rho=-1), ValueError, NUMBER + "-1"),
    (lambda: SAM(nan), ValueError, NUMBER + "nan"),
    (lambda: SAM(Ball), ValueError, NUMBER + "<class"),
    (lambda: Ball(nan), ValueError, "rho of Ball is a number, 0 or more, not nan"),
    (lambda: Ball("a"), ValueError, "rho of Ball is a number, 0 or more, not 'a'"),
    (lambda: Ball(0.1, p="2"), ValueError, "p of Ball takes a number, 1 or more, inf included, not '2'"),
    (lambda: Ball(0.1, "elementwise"), TypeError, r"a value such as Elementwise\(\), .* not str 'elementwise'"),
    (lambda: Ball(0.1, steppe.Elementwise), TypeError, r"metric of Ball .* Elementwise: write Elementwise\(\)"),
    (lambda: steppe.Elementwise(eta=-1), ValueError, "eta of Elementwise takes a number, 0 or more, .* not -1"),
    (lambda: steppe.Filterwise(eta="a"), ValueError, "eta of Filterwise takes a number, 0 or more, .* not 'a'"),
    (lambda: steppe.GSAM(alpha="a"), ValueError, "alpha of GSAM takes a number"),
    (lambda: steppe.LookSAM(k=2.5), ValueError, "k of LookSAM takes a whole number, 1 or more, not 2.5"),
    (lambda: steppe.MomentumSAM(-1), ValueError, "rho of MomentumSAM takes"),
    (lambda: steppe.RSAM(sigma=-1), ValueError, "sigma of RSAM takes"),
    (lambda: steppe.AgnosticSAM(share=2), ValueError, "share of AgnosticSAM takes"),
    (lambda: steppe.SASAM(damping=0), ValueError, "damping of SASAM takes a number, more than 0"),
    (lambda: steppe.SASGD(delta="a"), ValueError, "delta of SASGD takes a number"),
    (lambda: steppe.FisherSparseSAM(sparsity=2), ValueError, "sparsity of FisherSparseSAM takes"),
    (lambda: steppe.DynamicSparseSAM(drop=2), ValueError, "drop of DynamicSparseSAM takes"),
    (lambda: steppe.UniversalSAM("tracee"), ValueError, "triple of UniversalSAM: .*mean 'trace'"),
    (lambda: steppe.TraceSAM(n=0), ValueError, "n of UniversalSAM takes a whole number, 1 or more, not 0"),
    (lambda: steppe.PerPart(SAM, 2), TypeError, r"method of PerPart must be .* class SAM: write SAM\(\)"),
    (lambda: steppe.PerWorker("sam"), TypeError, r"method of PerWorker is the string 'sam': write steppe\.method\("),
    (lambda: steppe.Every(SAM(), 2), ValueError, r"k of Every takes a whole number, 1 or more, not SAM\("),
    (lambda: steppe.SharpBalance(0.2), TypeError, "method of SharpBalance is a steppe.Method such as .*not float 0.2"),
    (lambda: measure(MODEL, nn.CrossEntropyLoss, DATA), TypeError, r"loss_fn must be .* class .* CrossEntropyLoss\(\)"),
    (lambda: Objective(MODEL, nn.CrossEntropyLoss, DATA), TypeError, "loss_fn must be .* class CrossEntropyLoss"),
    (lambda: measure(CROSS_ENTROPY, MODEL, DATA), TypeError, "the model is a loss, CrossEntropyLoss: check the order"),
    (lambda: measure(MODEL, DATA, CROSS_ENTROPY), TypeError, "loss_fn is a function .*, not list of 1: check"),
    (lambda: measure(DATA, MODEL, CROSS_ENTROPY), TypeError, r"torch\.nn\.Module, not list of 1: check the order"),
    (lambda: Objective(nn.Linear, CROSS_ENTROPY, DATA), TypeError, "the model must be .* class Linear"),
    (lambda: measure(MODEL, CROSS_ENTROPY, DATA, rows=3), TypeError, "no argument of Objective 'rows'.*There are:"),
    (lambda: measure(MODEL, CROSS_ENTROPY, DATA, Loss()), TypeError, r"not Loss\(\).*pass a mapping"),
    (lambda: measure(MODEL, CROSS_ENTROPY, DATA, Loss), TypeError, "not the class Loss: pass a mapping"),
    (lambda: measure(MODEL, CROSS_ENTROPY, DATA, {"a": Loss}), TypeError, r"the measure 'a' .* .* Loss\(\)"),
    (lambda: measure(MODEL, CROSS_ENTROPY, DATA, {"a": "loss"}), TypeError, "not str 'loss'; names are given"),
    (lambda: Loss().estimate(MODEL), TypeError, r"an objective, not a model: write Objective\(model, loss_fn, data\)"),
    (lambda: WorstCase(0.1), TypeError, r"ball of WorstCase is a neighbourhood such as Ball\(0\.1\), not float 0\.1"),
    (lambda: OneStep(Ball), TypeError, r"ball of OneStep must be .* class Ball: write Ball\(\)"),
    (lambda: SlopeLimit(0.1), TypeError, "ball of SlopeLimit is a neighbourhood"),
    (lambda: CurvatureLimit(0.1), TypeError, "ball of CurvatureLimit is a neighbourhood"),
    (lambda: AverageCase(-1), ValueError, "rho of AverageCase takes a number, 0 or more, and finite, not -1"),
    (lambda: Config(method="samm"), ValueError, "no method 'samm'. Did you mean 'sam'"),
    (lambda: steppe.sharpnessaware, AttributeError, "no attribute 'sharpnessaware'. Did you mean 'SharpnessAware'"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "error", "said"), WRONG, ids=range(len(WRONG)))
def test_a_natural_mistake_is_told_what_to_write(write: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said) as caught:
        write()
    assert "\n" not in str(caught.value)


def test_a_functional_may_be_given_by_name() -> None:
    assert steppe.UniversalSAM("trace") == steppe.TraceSAM()


def test_a_configuration_knows_the_names_of_methods_without_torch() -> None:
    code = (
        "import sys, steppe.training as t\n"
        "try: t.Config(method='samm')\n"
        "except ValueError: assert 'torch' not in sys.modules\n"
        "else: raise SystemExit('no error')"
    )
    alone = {name: value for name, value in os.environ.items() if name != PLUGINS}  # those are imported to be asked
    subprocess.run([sys.executable, "-c", code], check=True, env=alone)
    assert set(declared("steppe.methods")) == set(steppe.METHODS)
