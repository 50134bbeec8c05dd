"""A commented study file for a data set and a model, from template.yaml; `steppe study init` writes it."""

from __future__ import annotations

from importlib.resources import files

from .._util.user_code import is_factory
from ..data.catalogue import DATASETS

SMALL = """\
  model_options: {width: 64, depth: 2}
  epochs: 20
  batch_size: 50
  device: cpu                  # these runs are too small for a GPU"""
USUAL = """\
  # model_options: {{}}          # options of the model: {listed}
  epochs: 30                   # long enough that the training error is near 0
  batch_size: 128"""
AUGMENTED = "\n  augment: [crop, flip]        # [] for none"


def study_text(file: str, out: str, data: str, model: str, *, classes: bool = True, rows: int | None = None) -> str:
    """The YAML of a study of some data and model; comments name the file and the study's folder.

    `classes` says whether the targets of the data are classes. With few training rows and the MLP, runs take seconds.
    """
    small = model == "mlp" and rows is not None and rows <= 5000
    name = data.partition("@")[0]
    images = data.startswith("folder:") or (name in DATASETS and bool(DATASETS[name].layouts))
    listed = "arguments of your factory" if is_factory(model) else f"steppe models {model}"
    settings = SMALL if small else USUAL.format(listed=listed)
    targets = "[test_error, gap]" if classes else "[test_loss, loss_gap]"
    target = "test error" if classes else "test loss"
    rule = "admission: train_error <= 0.01 # only runs that fit the training rows count; all are measured\n"
    template = (files(__package__) / "template.yaml").read_text(encoding="utf-8")
    return template.format(
        file=file,
        out=out,
        duration="30 small runs: a minute or two on two cores." if small else "30 runs: try `epochs: 1` first.",
        title=_scalar(f"SAM on {data}"),
        question=_scalar(f"Do flatter minima of {model} have a lower {target} on {data}?"),
        data=_scalar(data),
        data_comment=_comment(f"  data: {_scalar(data)}", "steppe data list"),
        model=_scalar(model),
        model_comment=_comment(f"  model: {_scalar(model)}", "steppe models, or your own as package.module:factory"),
        settings=settings + (AUGMENTED if images else ""),
        rates="[0.03, 0.3]",
        targets=targets,
        targets_comment=_comment(f"targets: {targets}", "what the measures should predict"),
        show="[spectrum, landscape]",
        admission="" if not classes else rule if small else f"# {rule}",
    )


def _comment(line: str, text: str) -> str:
    return f"{' ' * max(1, 31 - len(line))}# {text}"


def _scalar(text: str) -> str:
    import yaml

    return str(yaml.safe_dump(text, width=1 << 20)).partition("\n")[0]
