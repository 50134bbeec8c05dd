"""The statistics of studies: does sharpness predict generalisation in a pool of runs?"""

from .statistics.by_setting import Effect, Environments, Granulated, effects, environments, granulated
from .statistics.findings import Correlation, benjamini_hochberg, correlation, correlations, holm
from .statistics.hypotheses import Answer, strong, weak
from .statistics.kendall import tau_a, tau_b
from .statistics.tau import Chance, Tau, kendall

__all__ = [
    "Answer", "Chance", "Correlation", "Effect", "Environments", "Granulated", "Tau", "benjamini_hochberg",
    "correlation", "correlations", "effects", "environments", "granulated", "holm", "kendall", "strong", "tau_a",
    "tau_b", "weak",
]  # fmt: skip
