"""The cells of a study's file: settings of `steppe train` and `steppe ensemble`, grids of values, and random draws."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from math import sqrt
from typing import Any, get_args, get_origin, get_type_hints

from .._util.names import unknown
from ..core.fields import alternatives, choices, fits, words
from ..ensembles.strategies import STRATEGIES, Ensemble, unread
from ..training.config import Config

RESERVED = {  # settings of a run or an ensemble that a study sets itself
    "out": "runs lie in the study's own folder",
    "measures": "say `measures` of the study itself",
    "measure_every": "say `measure_every` of the study itself",
    "loggers": "a study has its own store",
    "log_every": "a study stores records of epochs",
    "how": "a cell trains its members one after the other; `engine` computes several cells at once",
    "processes": "write `engine: {workers: 4}` beside `base`",
}
SQRT_LR = "sqrt(lr)"  # a value of rho: the radius of SA-SAM's section 4, from the learning rate of each run
STRATEGY = "strategy"  # the setting that makes a cell an ensemble


def mapping(value: Any, place: str, what: str, keys: Collection[str] | None = None) -> dict[str, Any]:
    """A mapping in a study's file; raises with what the place takes, or for a key that is not among these."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{place} takes {what}, not {value!r}")
    for key in value:
        if keys is not None and key not in keys:
            raise ValueError(unknown(f"key of {place}", str(key), keys))
    return {str(key): one for key, one in value.items()}


@cache
def types() -> dict[str, Any]:
    """The type of every setting of a run or an ensemble."""
    return get_type_hints(Config) | get_type_hints(Ensemble)


OF_ENSEMBLES = frozenset(f.name for f in fields(Ensemble))  # settings that runs do not have


def setting(name: str, value: Any, place: str) -> Any:
    """A checked value of a setting; whole numbers become floats where the setting is one, so that both have one key."""
    owner, _, option = name.partition(".")
    if option and owner in types() and takes(owner, dict):
        return value  # one option of a method or a model, which checks it
    if name == "rho" and value == SQRT_LR:
        return value
    if name in RESERVED:
        raise ValueError(f"{place}: {name} cannot be given here: {RESERVED[name]}")
    if name not in types():
        raise ValueError(f"{place}: {unknown('setting', str(name), (n for n in types() if n not in RESERVED))}")
    kind = types()[name]
    if not fits(value, kind):
        if choices(kind) and isinstance(value, str):
            raise ValueError(f"{place}: {unknown(f'value of {name}', value, choices(kind))}")
        raise ValueError(f"{place}: {name} takes {words(kind)}, not {value!r}{_list_hint(name, value, place)}")
    return _as_float(value, kind)


def takes(name: str, kind: type) -> bool:
    return kind in [get_origin(t) or t for t in alternatives(types()[name])]


def _list_hint(name: str, value: Any, place: str) -> str:
    """How to write a list in the place of a value, or a value in the place of a list."""
    in_base, text = place.startswith("base"), in_yaml(value)
    if takes(name, list) and not isinstance(value, list | Mapping):
        return (
            f": write `{name}: [{text}]`" if in_base else f": each value is a list itself, as in `{name}: [[{text}]]`"
        )
    if not isinstance(value, list) or takes(name, list):
        return ""
    if in_base:
        return f": to vary it over runs, write `{name}: {text}` under `grid`"
    return f": list the values without inner brackets, `{name}: {text}`"


def in_yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str).replace('"', "")


def settings(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Checked values of several settings."""
    return {str(name): setting(str(name), value, f"{place}.{name}") for name, value in values.items()}


def resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run from those of a file: `method_options.n` enters its mapping, and sqrt(lr) is a number."""
    whole = {name: value for name, value in values.items() if "." not in name}
    for name, value in values.items():
        owner, _, option = name.partition(".")
        if option:
            whole[owner] = {**whole.get(owner, {}), option: value}
    if whole.get("rho") == SQRT_LR:
        whole["rho"] = sqrt(Config(**{name: whole[name] for name in ("method", "lr") if name in whole}).lr)
    return whole


def value_at(config: Mapping[str, Any], path: str) -> Any:
    """A value of a configuration, nested ones as `method_options.n`; None if there is none."""
    if "." not in path:  # as most are
        return config.get(path)
    value: Any = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def differing(paths: Iterable[str], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The settings among these that have several values in the configurations."""
    return [p for p in paths if len({json.dumps(value_at(c, p), sort_keys=True) for c in configs}) > 1]


def shown(value: Any) -> str:
    """A value of a setting in names and tables; nothing for None."""
    if value is None or isinstance(value, str):
        return value or ""
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def config_of(values: Mapping[str, Any], place: str) -> Config:
    """The configuration of a run with these settings; errors name the place."""
    for name in values:
        if name in OF_ENSEMBLES:
            raise ValueError(
                f"{place}: {name} is a setting of an ensemble, and this is none: give its {STRATEGY} too, one of "
                f"{', '.join(STRATEGIES)}"
            )
    try:
        return Config(**values)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def plain(config: Config) -> dict[str, Any]:
    """A configuration in JSON types."""
    values: dict[str, Any] = json.loads(json.dumps(vars(config)))
    return values


def complete(values: Mapping[str, Any], place: str) -> tuple[dict[str, Any], tuple[Config, Ensemble | None]]:
    """All settings of a run, or of an ensemble if a strategy is among them, and the same as values of their classes.

    Settings that the strategy does not read are left out: ensembles of `deep` with two radii are one cell.
    """
    if STRATEGY not in values:
        config = config_of(values, place)
        return plain(config), (config, None)
    own = {name: value for name, value in values.items() if name in OF_ENSEMBLES}
    try:
        ensemble = Ensemble(**own)
        without = unread(ensemble.strategy)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error
    shared = {k: v for k, v in values.items() if k not in own and k.partition(".")[0] not in without}
    config = config_of(shared | ({"method": "none"} if "method" in without else {}), place)
    kept = {k: v for k, v in asdict(ensemble).items() if k not in without and k not in RESERVED}
    return plain(config) | kept, (config, Ensemble(**kept))


def split(values: Mapping[str, Any]) -> tuple[Config, Ensemble | None]:
    """The configuration of the run or of the members, and the settings of the ensemble if it is one."""
    own = {name: value for name, value in values.items() if name in OF_ENSEMBLES}
    config = Config(**{name: value for name, value in values.items() if name not in own})
    return config, Ensemble(**own) if own else None


@cache
def defaults(*, ensemble: bool) -> Mapping[str, Any]:
    """The defaults of all settings of a run or an ensemble; a strategy has none, because it decides on the kind."""
    return asdict(Config()) | ({k: v for k, v in asdict(Ensemble()).items() if k != STRATEGY} if ensemble else {})


def _as_float(value: Any, kind: Any) -> Any:
    if isinstance(value, list):
        return [_as_float(v, next(get_args(t)[0] for t in alternatives(kind) if get_origin(t) is list)) for v in value]
    return float(value) if type(value) is int and float in alternatives(kind) else value
