"""A commented study file for a data set and a model, which `steppe study init` writes."""

from __future__ import annotations

from .._util.user_code import is_factory
from ..data.catalogue import CATALOGUE

TEMPLATE = """\
# A study trains every run below, measures how flat each trained model is, and tests whether flatter models do better.
#   steppe study run {file} --dry-run   lists the runs and checks everything, without training
#   steppe study run {file}             trains, measures, writes the report; rerun it to resume
#   steppe study status {file}          shows how far it is
# {duration}
title: {title}
question: {question}
notes: |
  Replace this text, or remove it: what you compare and why. It is shown above the results.

base:                          # settings that all runs share: steppe train --help
  data: {data}{data_comment}
  model: {model}{model_comment}
{settings}
  measure_rows: 512            # training rows that the measures use

grid:                          # every combination is a run: 4 methods x 2 learning rates x 3 seeds = 24 runs
  method:                      # steppe methods
    - none                     # the base optimizer alone, to compare with
    - {{method: sam, rho: 0.05}} # settings that belong together: none has no rho
    - {{method: sam, rho: 0.1}}
    - {{method: sam, rho: 0.2}}
  lr: {rates}
  seed: [0, 1, 2]              # repetitions of each combination

measures: [lambda_max, trace, worst_l2@0.25]   # steppe measures; name@radius sets a radius

targets: {targets}{targets_comment}
groups: [lr]                   # also correlate within runs of one learning rate
{admission}
show: {show}   # plots in the report

# engine: {{workers: 4}}         # runs at a time; defaults to the number of cores, or of GPUs
# out: {out}   # the study's folder
"""
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
    """Write the text of a study file.

    Parameters
    ----------
    file, out : str
        The file and the study's folder, for its comments.
    data, model : str
        Names as in `steppe train`.
    classes : bool
        Whether the targets of the data are classes.
    rows : int, optional
        The number of training rows, if it is known; a small set with the MLP gets settings that take seconds per run.

    Returns
    -------
    str
        YAML.

    """
    small = model == "mlp" and rows is not None and rows <= 5000
    images = data.partition("@")[0] in CATALOGUE or data.startswith("folder:")
    listed = "arguments of your factory" if is_factory(model) else f"steppe models {model}"
    settings = SMALL if small else USUAL.format(listed=listed)
    targets = "[test_error, gap]" if classes else "[test_loss, loss_gap]"
    target = "test error" if classes else "test loss"
    rule = "admission: train_error <= 0.01 # only runs that fit the training rows count; all are measured\n"
    return TEMPLATE.format(
        file=file,
        out=out,
        duration="24 small runs: a minute or two on two cores." if small else "24 runs: try `epochs: 1` first.",
        title=_scalar(f"SAM on {data}"),
        question=_scalar(f"Do flatter minima of {model} have a lower {target} on {data}?"),
        data=_scalar(data),
        data_comment=_comment(f"  data: {_scalar(data)}", "steppe data list"),
        model=_scalar(model),
        model_comment=_comment(f"  model: {_scalar(model)}", "steppe models, or your own as package.module:factory"),
        settings=settings + (AUGMENTED if images else ""),
        rates="[0.05, 0.15]" if small else "[0.05, 0.1]",
        targets=targets,
        targets_comment=_comment(f"targets: {targets}", "what the measures should predict"),
        show="[spectrum, landscape, ensembles]" if classes else "[spectrum, landscape]",
        admission="" if not classes else rule if small else f"# {rule}",
    )


def _comment(line: str, text: str) -> str:
    return f"{' ' * max(1, 31 - len(line))}# {text}"


def _scalar(text: str) -> str:
    import yaml

    return str(yaml.safe_dump(text, width=1 << 20)).partition("\n")[0]
