"""Methods by name: the registration above a class or a function states all that is known of the method."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .._util.docstrings import parameter_docs
from .._util.names import unknown
from .._util.registry import Registry, modules_of
from ..core.arguments import described, without_parameters
from ..core.fields import checked
from ..core.probe import Method

Make = TypeVar("Make", bound=Callable[..., Method])
PASSES = re.compile(r"(?P<usual>[^;]+)(?:; (?:first step|every (?P<period>.+) steps) (?P<other>[^;]+))?")


@dataclass(frozen=True)
class Registered:
    """A method by name; called with options, it makes one.

    Parameters
    ----------
    name
        The name in `steppe.build`, studies and commands.
    make
        The class, or a function, whose parameters are the options.
    does
        What the method does, in a line.
    passes
        The passes of a step in terms of the options: "1 + n", "3; first step 2" or "1; every k steps 2".
    paper
        The authors and the year.
    run
        Settings of a training run that differ with this method, such as its learning rate.
    sets_lr
        Whether the method sets the learning rate itself.
    needs_momentum
        Whether it reads the momentum of the base optimizer.
    in_run
        A function of `steps`, `per_epoch`, `batch_size` and `held_out` of a training run; returns options that follow.

    """

    name: str
    make: Callable[..., Method]
    does: str
    passes: str
    paper: str = ""
    run: Mapping[str, Any] = field(default_factory=dict)
    sets_lr: bool = False
    needs_momentum: bool = False
    in_run: Callable[..., Mapping[str, Any]] = lambda **run: {}

    def __call__(self, **options: Any) -> Method:
        return self.make(**checked(self.make, self.name, options, tensors=True))

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.make)

    @property
    def year(self) -> int:
        """The year of the paper, which orders listings; 0 without one."""
        found = re.search(r"\d{4}", self.paper)
        return int(found[0]) if found else 0

    def parameter_docs(self) -> dict[str, str]:
        """What the docstrings say of each option, and of its default; those of the class where defaults are its own."""
        options = self.__signature__.parameters
        cls = self.make if isinstance(self.make, type) else type(self.make())
        own = inspect.signature(cls).parameters
        shared = [name for name in options if name in own and own[name].default == options[name].default]
        of_class = {name: text for name, text in parameter_docs(cls).items() if name in shared}
        return dict.fromkeys(options, "") | of_class | parameter_docs(self.make)

    def passes_at(self, step: int, **options: Any) -> int:
        """The declared number of passes of a step with these options."""
        usual, period, other = self._passes(options)
        return usual if other is None or (step % period if period else step) else other

    def usual_passes(self, **options: Any) -> str:
        """The declared passes with these options, by default "2; every 391 steps 18" of SSAM-F, for example."""
        usual, period, other = self._passes(options)
        if other is None:
            return str(usual)
        return f"{usual}; every {period} steps {other}" if period else f"{usual}; first step {other}"

    def _passes(self, options: Mapping[str, Any]) -> tuple[int, int | None, int | None]:
        """The usual passes, and the period (None for the first step only) and the passes of other steps, if any."""
        parts = PASSES.fullmatch(self.passes)
        if parts is None:
            raise ValueError(f"passes of {self.name} is {self.passes!r}: write them as in '1; every k steps 2'")
        defaults = {p.name: p.default for p in self.__signature__.parameters.values()}
        names = defaults | checked(self.make, self.name, options, tensors=True)
        usual, period, other = (
            None if text is None else int(eval(text, {"__builtins__": {"len": len}}, names))
            for text in parts.group("usual", "period", "other")
        )
        assert usual is not None
        return usual, period, other


METHODS: Registry[Registered] = Registry(
    "method", "steppe.methods", modules_of(__package__), lambda one: (one.year, one.passes_at(1))
)


def register(name: str, *, does: str, passes: str, paper: str = "", **facts: Any) -> Callable[[Make], Make]:
    """A decorator that registers a class, or a function with the options as parameters, as the method of that name.

    Parameters
    ----------
    name
        The name in `steppe.build`, studies and commands.
    does
        What the method does, in a line.
    passes
        The passes of a step in terms of the options: "1 + n", "3; first step 2" or "1; every k steps 2".
    paper
        The authors and the year.
    **facts
        What a training run needs to know, as in `steppe.methods.registry.Registered`.

    Examples
    --------
    Above the class of GSAM:

    >>> described = steppe.register("gsam", does="SAM that also lowers the gap", passes="2", paper="Zhuang et al. 2022")
    >>> steppe.METHODS["gsam"].year
    2022

    """

    def add(make: Make) -> Make:
        if not isinstance(make, type):  # a class checks its arguments itself
            make = without_parameters(make)
        METHODS.add(name, Registered(name, make, does, passes, paper, **facts), make.__module__)
        return make

    return add


def method(name: str, **options: Any) -> Method:
    """The method of that name.

    Parameters
    ----------
    name
        A name from `steppe.METHODS`.
    **options
        Options of the method, checked by type and range.

    Examples
    --------
    >>> steppe.method("gsam", rho=0.1)
    GSAM(rho=0.1, alpha=0.4)

    """
    return make(name, options)


def make(name: str, options: Mapping[str, Any], also: Iterable[str] = ()) -> Method:
    """The method of that name with these options; an error about a wrong option also lists the names in `also`."""
    accepted = accepted_options(name)
    for option in options:
        if option not in accepted:
            raise ValueError(unknown(f"option of {name}", option, [*accepted, *also]))
    return METHODS[name](**options)


def accepted_options(name: str) -> list[str]:
    """The options of the method of that name; raises for what names none."""
    if not isinstance(name, str):
        raise TypeError(
            f"a method is named by a string such as 'sam', not by {described(name)}: write steppe.build('sam', base), "
            "or SharpnessAware(base, SAM()) with a method that you made; steppe.register gives one a name"
        )
    if name not in METHODS:
        raise ValueError(unknown("method", name, METHODS))
    return list(METHODS[name].__signature__.parameters)
