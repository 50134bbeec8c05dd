"""The study that comes with steppe: small networks on scikit-learn's digits, which need no download."""

from __future__ import annotations

from typing import Any

from .plan import Study

DIGITS: dict[str, Any] = {
    "base": {
        "data": "digits",
        "model": "mlp",
        "model_options": {"width": 64, "depth": 2},
        "fraction": 0.5,  # 600 rows: few enough that the networks differ on new ones
        "epochs": 20,
        "batch_size": 50,
        "evaluate_every": 4,
        "corruptions": ["gaussian_noise"],
        "severities": [3],
        "measure_rows": 512,  # two batches of m = 256
        "device": "cpu",
    },
    "grid": {
        "method": [
            "none",
            {"method": "sam", "rho": 0.05},
            {"method": "sam", "rho": 0.1},
            {"method": "sam", "rho": 0.2},
            {"method": "asam", "rho": 0.5},
            {"method": "gsam", "rho": 0.1},
            {"method": "trace-sam", "rho": 0.1},
            {"method": "frob-sam", "rho": 0.01, "method_options": {"strength": 0.003}},
            {"method": "agnostic-sam", "rho": 0.1, "method_options": {"held_out_rho": 0.05}},
        ],
        "lr": [0.05, 0.15],
        "seed": [0, 1],
    },
    "measures": [
        "lambda_max",
        "trace",
        "worst_l2@0.25",
        "avg_l2@0.05",
        "adaptive_worst_linf@0.01",
        "adaptive_worst_linf_normalised@0.01",
    ],
    "targets": ["test_error", "gap", "corrupted_error"],
    "groups": ["lr"],
    "admission": ["train_error <= 0.01"],  # A modern look, section 5.1
    "show": {
        "spectrum": ["best", "worst", "flattest", "sharpest"],
        "landscape": ["best", "worst", "flattest", "sharpest"],
        "ensembles": True,
    },
}


def digits() -> Study:
    """36 networks by seven methods, SAM at three radii; two minutes of CPU time in all."""
    return Study.of(DIGITS, "digits")
