"""A comparison before its trials: methods, space, rules; and each trial as a function of them and its number."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import inf
from statistics import fmean
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from .._util.names import unknown
from ..core.laws import Law, LogUniform, as_plain, law_of, point
from ..methods.registry import METHODS, make
from .halving import rung_of
from .sequential import LOOKS, Rules

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ..optim.engine import SharpnessAware

Axis = Literal["passes", "epochs", "seconds"]
Kind = Literal["trial", "again", "fresh"]
Key = tuple[str, str, int, int]  # of a trial: kind, method, index, repeat
TUNING = 8
EPOCHS = "epochs"  # the shared setting that the cost of a method divides
DECADES = 1.0  # of a method's own radius, to either side of its default
STEPS = 120  # over which the passes of a step are averaged: a multiple of the usual periods


@dataclass(frozen=True)
class Trial:
    """One run of a comparison: what a `train` function needs to know.

    Parameters
    ----------
    method
        The method by name.
    index
        The number of the trial. Trials of all methods with one number share settings and seed.
    seed
        The seed of everything random: initial weights, order of rows, label noise.
    settings
        The shared settings of the space, such as lr; `trial["lr"]` is one of them.
    options
        The method's own settings, such as rho.
    cost
        What an epoch costs, in those of one pass per step; `epochs` accounts for it.
    kind
        "trial"; "again" and "fresh" are further seeds of a selected configuration.
    repeat
        Which of these seeds it is.
    limit
        The error on validation rows at the rung above which a trial stops, with halving.
    counted
        Steps and forward passes so far, of the optimizer that the trial built.
    curve
        What `report` noted.

    Examples
    --------
    >>> def train(trial):
    ...     torch.manual_seed(trial.seed)
    ...     model = nn.Linear(2, 2)
    ...     opt = trial.optimizer(model, momentum=0.9)
    ...     ...  # trial.epochs epochs of opt.step(closure)
    >>> trial = steppe.comparison.Trial("sam", 0, 1, {"lr": 0.1, "epochs": 30}, {"rho": 0.05}, cost=2)
    >>> trial["lr"], trial.epochs
    (0.1, 15)

    """

    method: str
    index: int
    seed: int
    settings: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    cost: float = 1.0
    kind: Kind = "trial"
    limit: float = inf
    counted: dict[str, int] = field(default_factory=lambda: {"steps": 0, "forwards": 0}, compare=False, repr=False)
    curve: list[dict[str, float]] = field(default_factory=list, compare=False, repr=False)
    repeat: int = 0
    began: float = field(init=False, default_factory=perf_counter, compare=False, repr=False)
    # the settings that `train` has read, and "method" if it has asked for that
    asked: set[str] = field(init=False, default_factory=set, compare=False, repr=False)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("method", "settings"):
            super().__getattribute__("asked").update({"method"} if name == "method" else found)
        return found

    def __getattr__(self, name: str) -> Any:
        known = list(vars(self).get("settings", ()))  # none while it is unpickled
        raise AttributeError(f"a trial has no {name!r}: its settings are trial['lr'] and so on, here {known}")

    def __getitem__(self, name: str) -> Any:
        settings = vars(self)["settings"]
        if name not in settings:
            raise KeyError(f"the space has no setting {name!r}, but {', '.join(settings)}")
        self.asked.add(name)
        return settings[name]

    @property
    def key(self) -> Key:
        """What no other trial of a comparison has: kind, method, number and repeat."""
        of = vars(self)  # reading the method from here is no sign that `train` has asked for it
        return of["kind"], of["method"], of["index"], of["repeat"]

    @property
    def epochs(self) -> int:
        """The epochs that the method has at the cost of `trial["epochs"]` epochs of one pass: a whole number."""
        return max(1, round(float(self["epochs"]) / self.cost))

    def report(self, validation_error: float, epoch: int = 0) -> None:
        """Note the validation error so far, a share from 0 to 1, for the learning curve of the page.

        Parameters
        ----------
        validation_error
            The error.
        epoch
            After how many epochs; halving needs it.

        """
        forwards, seconds = float(self.counted["forwards"]), perf_counter() - self.began
        point = {"epoch": float(epoch), "forwards": forwards, "seconds": seconds}
        self.curve.append(point | {"validation_error": float(validation_error)})

    @property
    def rung(self) -> float | None:
        """The error that was reported first after a third of the epochs."""
        reached = (p["validation_error"] for p in self.curve if p["epoch"] >= rung_of(self.epochs, 1))
        return next(reached, None)

    def should_prune(self) -> bool:
        """Whether halving stops this trial: what the model classifies now may be returned, and ranks behind the rest.

        Examples
        --------
        >>> trial = steppe.comparison.Trial("sam", 9, 1, {"epochs": 6}, limit=0.2)
        >>> for epoch in range(1, 7):
        ...     trial.report(0.5 - 0.01 * epoch, epoch)
        ...     if trial.should_prune():
        ...         break
        >>> epoch
        2

        """
        return self.rung is not None and self.rung > self.limit

    def optimizer(self, model: nn.Module, base: type[Optimizer] | None = None, **options: Any) -> SharpnessAware:
        """Build the trial's method around a base optimizer, with the trial's lr, weight_decay and momentum.

        Parameters
        ----------
        model
            The model to train.
        base
            The class of the base optimizer; SGD by default.
        **options
            Its other options.

        """
        from torch.optim import SGD

        from ..optim.build import build

        base = SGD if base is None else base
        known = inspect.signature(base).parameters
        given = {k: self[k] for k in vars(self)["settings"] if k in known and k != "params"}
        built = base(model.parameters(), **{**options, **given})
        opt = build(self.method, built, model=model, seed=self.seed, **self.options)
        self._count(model, built)
        return opt

    def _count(self, model: nn.Module, base: Optimizer) -> None:
        from torch import is_grad_enabled

        def forward(module: nn.Module, inputs: Any) -> None:
            self.counted["forwards"] += is_grad_enabled() and module.training

        def step(*_: Any) -> None:
            self.counted["steps"] += 1

        model.register_forward_pre_hook(forward)
        base.register_step_post_hook(step)


@dataclass(frozen=True)
class Design:
    """What a comparison is about; whatever is here may not change after its first look.

    Parameters
    ----------
    families
        The reference and its contenders, and later the contenders that were added after a look, family by family.
    space
        The laws of the shared settings.
    own
        The laws of each method's own settings.
    rules
        Tuning effort, N_max, the smallest difference that matters, the level. `most` 0 is found from the budget.
    seed
        The seed of points and trials.
    axis
        Equal passes, equal epochs, or equal seconds on this machine.
    costs
        With equal seconds, the seconds of each method's epoch in those of the reference.
    halving
        Stop trials at a rung, method by method.
    points
        Settings of the trials from elsewhere, such as an optimizer of hyperparameters, in place of random ones; then
        the comparison is descriptive.
    task
        What is trained, in plain values: data, model and fixed settings, or the name of a `train` function.
    number
        Counts the comparisons of a folder, each with points of its own.

    """

    families: tuple[tuple[str, ...], ...]
    space: Mapping[str, Law]
    own: Mapping[str, Mapping[str, Law]]
    tuning: int = TUNING
    most: int = 0
    worth: float | None = None
    alpha: float = 0.05
    once: bool = False
    seed: int = 0
    axis: Axis = "passes"
    costs: Mapping[str, float] = field(default_factory=dict)
    halving: bool = False
    points: Sequence[Mapping[str, Any]] = ()
    task: Mapping[str, Any] = field(default_factory=dict)
    number: int = 1

    def __post_init__(self) -> None:
        known = {*self.space, *(name for m, laws in self.own.items() for k in laws for name in (k, f"{m}.{k}"))}
        for name in dict.fromkeys(name for values in self.points for name in values):
            if name not in known:
                raise ValueError(f"points have {unknown('setting of the space', name, known)}")
        if len(self.methods) < 2:
            raise ValueError(f"a comparison has two methods or more, the reference first, not {list(self.methods)}")
        if len(set(self.methods)) < len(self.methods):
            raise ValueError(f"methods are {', '.join(self.methods)}: name each once")
        self.with_most(self.most or LOOKS[0] * self.tuning)  # checks the rules
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed is {self.seed}, and has to be a whole number from 0 to {(1 << 32) - 1}")
        for name in self.methods:
            make(name, {k: law.at(0.5) for k, law in self.own.get(name, {}).items()})

    @staticmethod
    def most_of(trials: int | None) -> int:
        """Return N_max as asked for, 0 if it is to be found from the budget."""
        if trials is not None and trials < 1:
            raise ValueError(f"trials is the most trials per method, 1 or more, not {trials}")
        return trials or 0

    def with_most(self, most: int) -> Rules:
        """Return the rules with this number of trials per method."""
        return Rules(self.tuning, most, self.worth, self.alpha, self.once)

    @cached_property
    def methods(self) -> tuple[str, ...]:
        return tuple(name for family in self.families for name in family)

    @property
    def first(self) -> int:
        """The trials of a method of which none stops early: those of the first look."""
        return LOOKS[0] * self.tuning

    @property
    def reference(self) -> str:
        return self.methods[0]

    def passes(self, method: str, options: Mapping[str, Any] | None = None) -> float:
        """The mean passes per step, with these settings of the method or at the middle of its own."""
        if options is None:
            options = {k: law.at(0.5) for k, law in self.own.get(method, {}).items()}
        return _passes(method, tuple((k, v) for k, v in options.items() if k != "rho"))

    def quantiles(self, index: int) -> Sequence[float]:
        """The quantiles of a trial: those of the shared settings, and then those of the methods' own."""
        return self._point(index)[1]

    def trial(self, method: str, index: int, kind: Kind = "trial", repeat: int = 0) -> Trial:
        """Return a trial, or with another kind a repetition of it with a seed of its own."""
        seed, z = self._point(index)
        if kind != "trial":
            seed = point(self._key, (1 << 32) + 16 * index + repeat + 8 * (kind == "fresh"), 0)[0]
        given = self.points[index] if self.points else {}
        settings = {name: given.get(name, law.at(u)) for (name, law), u in zip(self.space.items(), z, strict=False)}
        rest = zip(self.own.get(method, {}).items(), z[len(self.space) :], strict=False)
        options = {name: given.get(f"{method}.{name}", given.get(name, law.at(u))) for (name, law), u in rest}
        return Trial(method, index, seed, settings, options, self.cost(method, options), kind, repeat=repeat)

    def cost(self, method: str, options: Mapping[str, Any] | None = None) -> float:
        """What an epoch of a method costs on the axis of the comparison, by which its epochs are divided."""
        return self.passes(method, options) if self.axis == "passes" else self.costs.get(method, 1.0)

    @property
    def _key(self) -> int:
        return self.seed + ((self.number - 1) << 32)

    def _point(self, index: int) -> tuple[int, Sequence[float]]:
        own = max((len(laws) for laws in self.own.values()), default=0)
        return point(self._key, index, len(self.space) + own)

    def plain(self) -> dict[str, Any]:
        """Return the design as plain values."""
        values = {**vars(self), "families": [list(f) for f in self.families]}
        values.pop("methods", None)  # cached
        values["space"] = {k: as_plain(law) for k, law in self.space.items()}
        values["own"] = {m: {k: as_plain(law) for k, law in laws.items()} for m, laws in self.own.items()}
        values["points"] = [dict(point) for point in self.points]
        return values | {"task": dict(self.task), "costs": dict(self.costs)}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Design:
        """Return the design that `plain` wrote."""
        space = {k: law_of(v) for k, v in values["space"].items()}
        own = {m: {k: law_of(v) for k, v in laws.items()} for m, laws in values["own"].items()}
        return cls(**{**values, "families": tuple(tuple(f) for f in values["families"]), "space": space, "own": own})

    def added(self, other: Design) -> tuple[str, ...]:
        """Return the methods that another design adds, if it differs by nothing else."""
        new = tuple(m for m in other.methods if m not in self.methods)
        same = replace(other, families=self.families, most=self.most, number=self.number, costs=self.costs)
        same = replace(same, own={m: laws for m, laws in other.own.items() if m not in new})
        kept = tuple(m for m in other.methods if m in self.methods) == self.methods
        return new if kept and same.plain() == self.plain() else ()


def divided(
    methods: Sequence[str], space: Mapping[str, Any], fixed: Mapping[str, Any] | None = None
) -> tuple[dict[str, Law], dict[str, dict[str, Law]]]:
    """Divide a space into shared settings and the methods' own; radii that are not named get two decades.

    Parameters
    ----------
    methods
        Names, the reference first.
    space
        Laws or values by the names of shared settings such as `lr`, of options of any method such as `rho`, or of
        options of one such as `sam.rho`.
    fixed
        Values in the same form, which replace laws.

    """
    shared, own = dict[str, Law](), {name: dict[str, Law]() for name in methods}
    options = {name: _options(name) for name in methods}
    for name, value in {**space, **(fixed or {})}.items():
        method, dot, option = name.rpartition(".")
        law = law_of(value)
        if dot:
            if method not in own:
                raise ValueError(f"{name} is a setting of {method!r}, which is not compared: {', '.join(methods)} are")
            own[method][option] = law
        elif any(name in known for known in options.values()):
            if of := [f"{m}.{name}" for m in methods if name in (fixed or {}) and f"{m}.{name}" in space]:
                raise ValueError(f"{name} is fixed, and {of[0]} is in the space: keep one of them")
            for each in methods:
                if name in options[each]:
                    own[each].setdefault(name, law) if name not in (fixed or {}) else own[each].update({name: law})
        else:
            shared[name] = law
    for name in methods:
        radius = options[name].get("rho")
        if isinstance(radius, float) and radius > 0 and "rho" not in own[name]:
            own[name] = {"rho": LogUniform(radius / 10**DECADES, radius * 10**DECADES), **own[name]}
    return shared, {name: laws for name, laws in own.items() if laws}


@cache
def _passes(method: str, options: tuple[tuple[str, Any], ...]) -> float:
    return fmean(METHODS[method].passes_at(step, **dict(options)) for step in range(STEPS))


def _options(name: str) -> dict[str, Any]:
    """The options of a method with their defaults; options that are settings of training stay shared."""
    make(name, {})  # raises for unknown names
    return {k: p.default for k, p in inspect.signature(METHODS[name]).parameters.items() if k != "steps"}
