"""Methods on parts of a batch against their papers: Agnostic-SAM, SharpBalance, m-SAM, and `Every`."""

import weakref

import pytest
import torch
from oracles import batches as naive
from oracles import sam as naive_sam
from oracles.flat import Landscape, plain
from oracles.follow import BASES, Run, assert_follows
from oracles.inputs import Chance
from problems import mlp_problem

from steppe import SAM, AgnosticSAM, Ball, Every, PerPart, PerWorker, Plain, SharpBalance, SharpnessAware, build

PROBLEM = mlp_problem(rows=10)
HELD_OUT = mlp_problem(rows=7, seed=20)


def start(method, base="sgd", problem=PROBLEM, seed=11):
    model = problem.fresh_model()
    return model, SharpnessAware(BASES[base][0](model.parameters()), method, model=model, seed=seed)


def run(method, base="sgd", problem=PROBLEM):
    return Run(problem, *start(method, base, problem))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("simple", [False, True])
@pytest.mark.parametrize("share", [0.7, 0.4])
def test_agnostic_sam_on_a_random_split(simple, share, base):
    model, opt = start(AgnosticSAM(0.2, 0.15, share, simple), base)
    chance = Chance(opt, model)

    def parts(land, t):
        train, held = chance.split(t, len(land), share)
        assert sorted([*train.tolist(), *held.tolist()]) == list(range(10)), "every row is in one part"
        return land.rows(train), land.rows(held)

    followed = Run(PROBLEM, model, opt)
    assert_follows(followed, PROBLEM, naive.agnostic_sam(0.2, 0.15, parts, simple), base)
    t, v = round(share * 10), 10 - round(share * 10)
    assert followed.rows == [[t, v, t] if simple else [t, v, v, t]] * 5


def test_the_split_is_a_new_one_at_every_step():
    model, opt = start(AgnosticSAM())
    splits = [tuple(sorted(Chance(opt, model).split(t, 10, 0.7)[0].tolist())) for t in range(20)]
    assert len(set(splits)) > 15
    assert {i for split in splits for i in split} == set(range(10)), "no row is left out for ever"


@pytest.mark.parametrize("simple", [False, True])
def test_agnostic_sam_on_held_out_data(simple):
    """Non-overlapping sets: the whole batch is B_t, and B_v comes from a closure of its own."""
    model, opt = start(AgnosticSAM(0.2, 0.15, share=None, simple=simple))

    def options(t):
        x, y = HELD_OUT.batches[t]

        def held_out(pass_):
            loss = PROBLEM.losses(model(x), y).mean()
            pass_.backward(loss)
            return loss.detach()

        return {"held_out": held_out}

    def parts(land, t):
        return land, Landscape(land.model, land.losses, *HELD_OUT.batches[t])

    followed = Run(PROBLEM, model, opt, options)
    assert_follows(followed, PROBLEM, naive.agnostic_sam(0.2, 0.15, parts, simple))
    assert followed.rows == [[10, 10]] * 5, "the batch itself is seen whole, at w and at the top"


@pytest.mark.parametrize("name", ["agnostic-sam", "agnostic-sam-simple"])
@pytest.mark.parametrize(("options", "later", "radii"), [
    ({}, None, (0.1, 0.05)),
    ({"rho": 0.2}, None, (0.2, 0.1)),
    ({"rho": 0.2}, 0.3, (0.3, 0.15)),  # a schedule of the radius keeps the ratio
    ({"rho": 0.2, "held_out_rho": 0.03}, None, (0.2, 0.03)),
])  # fmt: skip
def test_agnostic_sam_by_the_papers_defaults(name, options, later, radii):
    """rho_1 = 0.1 = 2 rho_2, seven rows of ten; another rho_1 keeps the ratio."""
    model = PROBLEM.fresh_model()
    opt = build(name, BASES["sgd"][0](model.parameters()), model=model, **options)
    if later is not None:
        opt.param_groups[0]["rho"] = later
    chance = Chance(opt, model)

    def parts(land, t):
        return tuple(land.rows(i) for i in chance.split(t, 10, 0.7))

    rule = naive.agnostic_sam(*radii, parts, simple=name.endswith("simple"))
    assert_follows(Run(PROBLEM, model, opt), PROBLEM, rule)


def mixed(t):
    return torch.tensor([(i * 7 + t) % 10 < 4 for i in range(10)])


def never(t):
    return torch.zeros(10, dtype=torch.bool)


def always(t):
    return torch.ones(10, dtype=torch.bool)


@pytest.mark.parametrize("base", BASES)
def test_sharpbalance(base):
    followed = Run(PROBLEM, *start(SharpBalance(SAM(0.3)), base), lambda t: {"mask": mixed(t)})
    assert_follows(followed, PROBLEM, naive.sharpbalance(0.3, mixed), base)
    assert followed.rows == [[6, 4, 4]] * 5


def test_sharpbalance_by_name_has_the_released_radius():
    model = PROBLEM.fresh_model()
    opt = build("sharpbalance", BASES["sgd"][0](model.parameters()), model=model)
    followed = Run(PROBLEM, model, opt, lambda t: {"mask": mixed(t)})
    assert_follows(followed, PROBLEM, naive.sharpbalance(0.2, mixed))


def test_sharpbalance_of_all_normal_batches_is_the_base_optimizer():
    followed = Run(PROBLEM, *start(SharpBalance(SAM(0.3))), lambda t: {"mask": never(t)})
    assert_follows(followed, PROBLEM, plain, like_plain=True)
    assert followed.rows == [[10]] * 5


def test_sharpbalance_of_all_sharp_batches_is_sam():
    followed = Run(PROBLEM, *start(SharpBalance(SAM(0.3))), lambda t: {"mask": always(t)})
    assert_follows(followed, PROBLEM, naive_sam.sam(0.3))
    assert followed.rows == [[10, 10]] * 5


def test_sharpbalance_changes_with_the_kind_of_batch():
    kinds = [mixed, never, always, mixed, never]
    followed = Run(PROBLEM, *start(SharpBalance(SAM(0.3))), lambda t: {"mask": kinds[t](t)})
    assert_follows(followed, PROBLEM, naive.sharpbalance(0.3, lambda t: kinds[t](t)))


def test_sharpbalance_without_a_mask_says_what_it_needs():
    with pytest.raises(ValueError, match="mask=sharp"):
        run(SharpBalance())


def test_sharpbalance_refuses_a_mask_over_another_batch():
    with pytest.raises(ValueError, match="batch of 9, but this batch has 10 rows"):
        Run(PROBLEM, *start(SharpBalance()), lambda t: {"mask": torch.ones(9, dtype=torch.bool)})


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("rows", "parts", "sizes"), [(12, 3, [4, 4, 4]), (11, 3, [4, 4, 3]), (11, 2, [6, 5])])
def test_m_sam_weighs_parts_by_their_rows(rows, parts, sizes, base):
    problem = mlp_problem(rows=rows)
    followed = run(PerPart(SAM(0.3), parts), base, problem)
    assert_follows(followed, problem, naive.m_sam(0.3, parts), base)
    assert followed.rows == [[n for size in sizes for n in (size, size)]] * 5


def test_m_sam_of_one_part_is_sam():
    assert_follows(run(PerPart(SAM(0.3), 1)), PROBLEM, naive_sam.sam(0.3))


def test_parts_of_parts_are_weighed_by_their_own_rows():
    followed = run(PerPart(PerPart(SAM(0.3), 2), 2))
    assert followed.rows == [[3, 3, 2, 2, 3, 3, 2, 2]] * 5
    assert_follows(followed, PROBLEM, naive.m_sam(0.3, (3, 5, 8)))


def test_parts_of_sharp_rows_are_weighed_by_their_own_rows():
    halves = torch.arange(10) < 5

    def rule(land, w, base, t):
        normal, sharp = land.rows(torch.arange(5, 10)), land.rows(torch.arange(5))
        return normal.grad(w) / 2 + naive.m_sam(0.3, (3,))(sharp, w, base, t) / 2

    followed = Run(PROBLEM, *start(SharpBalance(PerPart(SAM(0.3), 2))), lambda t: {"mask": halves})
    assert followed.rows == [[5, 3, 3, 2, 2]] * 5
    assert_follows(followed, PROBLEM, rule)


def test_a_part_keeps_no_gradient_for_the_next():
    weight = torch.nn.Parameter(torch.randn(50))
    opt = SharpnessAware(torch.optim.SGD([weight], lr=0.1), PerPart(SAM(0.3), 5))
    left, alive = [], []
    x = torch.randn(10, 50)
    for pass_ in opt.passes():
        alive.append(sum(grad() is not None for grad in left))
        pass_.backward((pass_.rows(x) @ weight).square().mean())
        left.append(weakref.ref(weight.grad))
    assert len(left) == 10
    assert max(alive) <= 2


def test_m_sam_over_a_single_worker_is_sam():
    assert_follows(run(PerWorker(SAM(0.3))), PROBLEM, naive_sam.sam(0.3))


def test_m_sam_by_name():
    model = PROBLEM.fresh_model()
    opt = build("m-sam", BASES["sgd"][0](model.parameters()), model=model, rho=0.3, parts=4)
    assert_follows(Run(PROBLEM, model, opt), PROBLEM, naive.m_sam(0.3, 4))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_every_k_steps(k):
    followed = run(Every(k, SAM(0.3)))
    assert_follows(followed, PROBLEM, naive.alternating(k, naive_sam.sam(0.3), plain))
    assert [len(places) for places in followed.visited] == [1 if t % k else 2 for t in range(5)]


def test_every_between_two_methods():
    method = Every(2, PerPart(SAM(0.3), 3), SAM(Ball(0.3, p=3)))
    assert_follows(run(method), PROBLEM, naive.alternating(2, naive.m_sam(0.3, 3), naive_sam.sam(0.3, 3)))


def test_every_between_two_radii_uses_both_or_refuses():
    """Both methods read their radius from the groups, where there is room for one."""
    try:
        followed = run(Every(2, SAM(0.3), SAM(0.05)))
    except ValueError as error:
        assert "rho" in str(error)  # noqa: PT017
    else:
        assert_follows(followed, PROBLEM, naive.alternating(2, naive_sam.sam(0.3), naive_sam.sam(0.05)))


def test_plain_is_the_base_optimizer():
    assert_follows(run(Plain()), PROBLEM, plain, like_plain=True)
