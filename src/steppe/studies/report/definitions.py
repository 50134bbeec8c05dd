"""Measures and targets in words: a short label for axes, and one sentence."""

from __future__ import annotations

from ..._util.measure_names import MeasureName

_MEASURES = {
    "loss": ("loss on the measured rows", "the mean loss on the measured training rows"),
    "grad_norm": ("gradient norm", "the norm of the gradient"),
    "lambda_max": ("largest Hessian eigenvalue", "the largest eigenvalue of the Hessian, by Lanczos"),
    "lambda_min": ("smallest Hessian eigenvalue", "the smallest eigenvalue of the Hessian, by Lanczos"),
    "trace": ("Hessian trace", "the sum of the eigenvalues of the Hessian"),
    "frobenius_squared": ("squared Frobenius norm of the Hessian", "the sum of the squared eigenvalues of the Hessian"),
    "log_determinant": (
        "log-determinant of the Hessian",
        "the sum of the logarithms of the larger eigenvalues of the Hessian",
    ),
    "fisher_trace": ("Fisher trace", "the mean squared norm of per-row gradients"),
    "input_trace": ("trace of the input Hessian", "the mean trace of the Hessian of a row's loss in its input"),
    "input_curvature": (
        "input curvature",
        "the mean sum of squared eigenvalues of the Hessian of a row's loss in its input (Garg and Roy 2023)",
    ),
    "fisher_input_correlation": (
        "rank correlation of Fisher trace and input curvature",
        "how alike the squared norm of a row's gradient and its input curvature order the rows (Spearman)",
    ),
    "relative_flatness": (
        "relative flatness",
        "the curvature of a layer in the scale of its weights (Petzka et al. 2021)",
    ),
    "sam_sharpness": ("SAM sharpness", "how much one step of SAM raises the loss (Foret et al. 2021)"),
    "slope_limit": (
        "first-order sharpness",
        "worst-case sharpness for a small radius, first order: a norm of the gradient",
    ),
    "curvature_limit": (
        "second-order sharpness",
        "worst-case sharpness for a small radius at a minimum, second order: an eigenvalue",
    ),
    "average_limit": ("average-case limit", "average-case sharpness for a small radius: a trace"),
    "zeroth_trace": ("Hessian trace from losses", "the trace from losses at random points near the weights"),
    "zeroth_frobenius_squared": (
        "squared Frobenius norm from losses",
        "the squared Frobenius norm from losses at random points near the weights",
    ),
    "zeroth_determinant": (
        "determinant term from losses",
        "the determinant term from losses at random points near the weights",
    ),
    "avg_l2": ("average-case sharpness, l2 noise", "the mean rise of the loss under Gaussian noise in the weights"),
    "avg_linf": (
        "average-case sharpness, box noise",
        "the mean rise of the loss under uniform noise in a box around the weights",
    ),
    "worst_l2": (
        "worst-case sharpness, l2 ball",
        "the largest rise of the loss that ascent finds in a ball around the weights",
    ),
    "worst_linf": (
        "worst-case sharpness, l∞ box",
        "the largest rise of the loss that ascent finds in a box around the weights",
    ),
}
"""Name: label, definition."""

OPTIONS = {
    "rows": "on {} rows",
    "count": "on {} rows in all",
    "m": "in batches of {}",
    "precision": "in {}",
    "start": "start {}",
    "climb": "by {}",
}
"""Options of a measure in words; others are written as they are, such as `steps 50`."""

_TARGETS = {
    "test_error": "test error",
    "test_loss": "test loss",
    "gap": "generalisation gap",
    "loss_gap": "gap of the losses",
    "corrupted_error": "error on corrupted rows",
    "validation_error": "validation error",
    "train_error": "training error",
    "train_loss": "training loss",
}


def definition(name: str) -> str:
    """One sentence about a measure; empty for an unknown one."""
    base, marks = _parts(name)
    return ", ".join([_MEASURES[base][1], *marks]) if base else ""


def label(name: str) -> str:
    """A few words for a measure, without its radius, or a target; empty for an unknown one."""
    if name in _TARGETS:
        return _TARGETS[name]
    base, _ = _parts(name)
    if not base:
        return ""
    words, rows = _MEASURES[base][0], MeasureName.of(name).options.get("rows")
    if "gauss_newton_" in name:
        words = words.replace("Hessian", "Gauss-Newton matrix")
    if name.startswith("adaptive_"):
        words = f"adaptive {words}"
    words = f"{words}, normalised logits" if "_normalised" in name else words
    return f"{words}, {rows} rows" if rows else words


def _parts(name: str) -> tuple[str, list[str]]:
    """The name without prefixes, suffix and radius, which come as words; empty for an unknown measure."""
    try:
        written = MeasureName.of(name)
    except ValueError:  # a user's own name
        return "", []
    base, radius, marks = written.base, written.radius, list[str]()
    if base.endswith("_normalised"):
        base = base.removesuffix("_normalised")
        marks.append("of normalised logits")
    if base.startswith("gauss_newton_"):
        base = base.removeprefix("gauss_newton_")
        marks.append("of the Gauss-Newton matrix instead of the Hessian")
    if base not in _MEASURES and base.startswith("adaptive_"):
        base = base.removeprefix("adaptive_")
        marks.append("in the scale of each weight")
    if base not in _MEASURES:
        return "", []
    if radius:
        marks.append(f"radius {radius}")
    marks += [OPTIONS.get(key, f"{key} {{}}").format(value) for key, value in sorted(written.options.items())]
    return base, marks
