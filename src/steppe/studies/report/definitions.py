"""Measures and targets in words: a short label for axes, and one sentence."""

from __future__ import annotations

from ..._util.measure_names import MeasureName

LABELS = {
    "loss": "loss on the measured rows",
    "grad_norm": "gradient norm",
    "lambda_max": "largest Hessian eigenvalue",
    "lambda_min": "smallest Hessian eigenvalue",
    "trace": "Hessian trace",
    "frobenius_squared": "squared Frobenius norm of the Hessian",
    "log_determinant": "log-determinant of the Hessian",
    "fisher_trace": "Fisher trace",
    "input_trace": "trace of the input Hessian",
    "input_curvature": "input curvature",
    "fisher_input_correlation": "rank correlation of Fisher trace and input curvature",
    "relative_flatness": "relative flatness",
    "sam_sharpness": "SAM sharpness",
    "slope_limit": "first-order sharpness",
    "curvature_limit": "second-order sharpness",
    "average_limit": "average-case limit",
    "zeroth_trace": "Hessian trace from losses",
    "zeroth_frobenius_squared": "squared Frobenius norm from losses",
    "zeroth_determinant": "determinant term from losses",
    "avg_l2": "average-case sharpness, l2 noise",
    "avg_linf": "average-case sharpness, box noise",
    "worst_l2": "worst-case sharpness, l2 ball",
    "worst_linf": "worst-case sharpness, l∞ box",
    "test_error": "test error",
    "test_loss": "test loss",
    "gap": "generalisation gap",
    "loss_gap": "gap of the losses",
    "corrupted_error": "error on corrupted rows",
    "validation_error": "validation error",
    "train_error": "training error",
    "train_loss": "training loss",
}
"""Measures and targets in a few words."""

DEFINITIONS = {
    "loss": "the mean loss on the measured training rows",
    "grad_norm": "the norm of the gradient",
    "lambda_max": "the largest eigenvalue of the Hessian, by Lanczos",
    "lambda_min": "the smallest eigenvalue of the Hessian, by Lanczos",
    "trace": "the sum of the eigenvalues of the Hessian",
    "frobenius_squared": "the sum of the squared eigenvalues of the Hessian",
    "log_determinant": "the sum of the logarithms of the larger eigenvalues of the Hessian",
    "fisher_trace": "the mean squared norm of per-row gradients",
    "input_trace": "the mean trace of the Hessian of a row's loss in its input",
    "input_curvature": "the mean sum of squared eigenvalues of a row's Hessian in its input (Garg and Roy 2023)",
    "fisher_input_correlation": "Spearman's rank correlation of a row's squared gradient norm with its input curvature",
    "relative_flatness": "the curvature of a layer in the scale of its weights (Petzka et al. 2021)",
    "sam_sharpness": "how much one step of SAM raises the loss (Foret et al. 2021)",
    "slope_limit": "worst-case sharpness for a small radius, first order: a norm of the gradient",
    "curvature_limit": "worst-case sharpness for a small radius at a minimum, second order: an eigenvalue",
    "average_limit": "average-case sharpness for a small radius: a trace",
    "zeroth_trace": "the trace from losses at random points near the weights",
    "zeroth_frobenius_squared": "the squared Frobenius norm from losses at random points near the weights",
    "zeroth_determinant": "the determinant term from losses at random points near the weights",
    "avg_l2": "the mean rise of the loss under Gaussian noise in the weights",
    "avg_linf": "the mean rise of the loss under uniform noise in a box around the weights",
    "worst_l2": "the largest rise of the loss that ascent finds in a ball around the weights",
    "worst_linf": "the largest rise of the loss that ascent finds in a box around the weights",
}
"""Measures in a sentence."""

OPTIONS = {
    "rows": "on {} rows",
    "count": "on {} rows in all",
    "m": "in batches of {}",
    "precision": "in {}",
    "start": "start {}",
    "climb": "by {}",
}
"""Options of a measure in words; others are written as they are, such as `steps 50`."""


def definition(name: str) -> str:
    """One sentence about a measure; empty for an unknown one."""
    base, marks = _parts(name)
    return ", ".join([DEFINITIONS[base], *marks]) if base else ""


def label(name: str) -> str:
    """A few words for a measure, without its radius, or a target; empty for an unknown one."""
    base, _ = _parts(name)
    if not base:
        return LABELS.get(name, "")
    words = LABELS[base].replace("Hessian", "Gauss-Newton matrix") if "gauss_newton_" in name else LABELS[base]
    adaptive = "adaptive " if name.startswith("adaptive_") else ""
    logits = ", normalised logits" if "_normalised" in name else ""
    rows = MeasureName.of(name).options.get("rows")
    return f"{adaptive}{words}{logits}{f', {rows} rows' if rows else ''}"


def _parts(name: str) -> tuple[str, list[str]]:
    """The name without prefixes, suffix and radius, which come as words; empty for an unknown measure."""
    try:
        written = MeasureName.of(name)
    except ValueError:  # a user's own name
        return "", []
    base, marks = written.base, list[str]()
    if base.endswith("_normalised"):
        base = base.removesuffix("_normalised")
        marks.append("of normalised logits")
    if base.startswith("gauss_newton_"):
        base = base.removeprefix("gauss_newton_")
        marks.append("of the Gauss-Newton matrix instead of the Hessian")
    if base.startswith("adaptive_"):
        base = base.removeprefix("adaptive_")
        marks.append("in the scale of each weight")
    marks += [f"radius {written.radius}"] if written.radius else []
    marks += [OPTIONS.get(key, f"{key} {{}}").format(value) for key, value in sorted(written.options.items())]
    return (base, marks) if base in DEFINITIONS else ("", [])
