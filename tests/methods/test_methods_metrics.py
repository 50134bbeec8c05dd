"""ASAM by element and by filter, and SAM-ON, against their formulas."""

from math import inf

import pytest
from oracles import sam as naive
from oracles.follow import BASES, Run, assert_follows
from problems import conv_problem, flat_parts, mlp_problem

from steppe import SAM, Ball, Elementwise, Filterwise, NormLayersOnly, SharpnessAware, build

MLP, CONV = mlp_problem(), conv_problem()
ETA = 0.05


def run(problem, method, base="sgd"):
    model = problem.fresh_model()
    return Run(problem, model, SharpnessAware(BASES[base][0](model.parameters()), method, model=model))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("everywhere", [False, True])
def test_elementwise_asam(everywhere, base):
    rule = naive.sam(0.5, scale=naive.elementwise(MLP.model, ETA, everywhere))
    assert_follows(run(MLP, SAM(Ball(0.5, Elementwise(ETA, everywhere))), base), MLP, rule, base)


@pytest.mark.parametrize("p", [1, 3, inf])
def test_elementwise_asam_in_other_norms(p):
    rho = 0.1 if p == inf else 0.5
    rule = naive.sam(rho, p, scale=naive.elementwise(MLP.model, ETA))
    assert_follows(run(MLP, SAM(Ball(rho, Elementwise(ETA), p))), MLP, rule)


def test_biases_are_scaled_only_when_asked():
    spared = run(MLP, SAM(Ball(0.5, Elementwise(ETA))))
    scaled = run(MLP, SAM(Ball(0.5, Elementwise(ETA, everywhere=True))))
    assert (spared.weights - scaled.weights).abs().max() > 1e-4


@pytest.mark.parametrize("everywhere", [False, True])
def test_filterwise_asam(everywhere):
    rule = naive.sam(0.5, scale=naive.filterwise(CONV.model, ETA, everywhere))
    followed = run(CONV, SAM(Ball(0.5, Filterwise(ETA, everywhere))))
    assert_follows(followed, CONV, rule)
    by_element = run(CONV, SAM(Ball(0.5, Elementwise(ETA, everywhere))))
    assert (followed.weights - by_element.weights).abs().max() > 1e-4


@pytest.mark.parametrize("problem", [MLP, CONV], ids=["LayerNorm", "BatchNorm"])
def test_sam_on_moves_normalisation_layers_alone(problem):
    followed = run(problem, SAM(Ball(0.4, NormLayersOnly())))
    assert_follows(followed, problem, naive.sam(0.4, scale=naive.norm_layers(problem.model)))
    for _, d in followed.visited:
        moved = {name for name, part in flat_parts(problem.model).items() if d[part].abs().max() > 0}
        assert moved == {"1.weight", "1.bias"}
        assert d.norm().item() == pytest.approx(0.4, rel=1e-12)


def test_sam_on_by_groups_is_sam_on():
    model = MLP.fresh_model()
    norms = list(model[1].parameters())
    others = [p for p in model.parameters() if all(p is not q for q in norms)]
    groups = [{"params": norms, "rho": 0.4}, {"params": others, "rho": 0.0}]
    followed = Run(MLP, model, SharpnessAware(BASES["sgd"][0](groups), SAM(), model=model))
    assert_follows(followed, MLP, naive.sam(0.4, scale=naive.norm_layers(MLP.model)))


@pytest.mark.parametrize("metric", [Elementwise(ETA), NormLayersOnly()], ids=lambda m: type(m).__name__)
def test_names_in_the_groups_serve_as_well_as_the_model(metric):
    model = MLP.fresh_model()
    names = {"0": "fc1", "1": "norm1", "3": "fc2", "5": "fc3", "7": "head"}
    named = [(f"{names[n.split('.')[0]]}.{n.split('.')[1]}", p) for n, p in model.named_parameters()]
    scale = naive.norm_layers(MLP.model) if metric == NormLayersOnly() else naive.elementwise(MLP.model, ETA)
    followed = Run(MLP, model, SharpnessAware(BASES["sgd"][0](named), SAM(Ball(0.4, metric))))
    assert_follows(followed, MLP, naive.sam(0.4, scale=scale))


@pytest.mark.parametrize("metric", [Elementwise(), Filterwise(), NormLayersOnly()], ids=lambda m: type(m).__name__)
def test_without_names_a_metric_that_needs_them_is_refused(metric):
    model = MLP.fresh_model()
    with pytest.raises(ValueError, match="model= to SharpnessAware"):
        Run(MLP, model, SharpnessAware(BASES["sgd"][0](model.parameters()), SAM(Ball(0.4, metric))))


@pytest.mark.parametrize(
    ("name", "options", "scale"),
    [
        ("asam", {"rho": 0.5, "eta": ETA}, naive.elementwise(CONV.model, ETA)),
        ("asam", {"rho": 0.5, "eta": ETA, "everywhere": True}, naive.elementwise(CONV.model, ETA, everywhere=True)),
        ("asam", {"rho": 0.5, "eta": ETA, "filterwise": True}, naive.filterwise(CONV.model, ETA)),
        ("asam", {}, naive.elementwise(CONV.model, 0.01)),
        ("sam-on", {}, naive.norm_layers(CONV.model)),
    ],
)
def test_options_by_name_reach_the_metric(name, options, scale):
    """The defaults are the papers': rho 0.5 for both, eta 0.01."""
    model = CONV.fresh_model()
    opt = build(name, BASES["sgd"][0](model.parameters()), model=model, **options)
    assert_follows(Run(CONV, model, opt), CONV, naive.sam(0.5, scale=scale))
