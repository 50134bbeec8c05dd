"""The statistics of studies: does sharpness predict generalisation in a pool of runs, and which method won?"""

from .statistics.by_setting import Effect, Environments, Granulated, effects, environments, granulated
from .statistics.comparisons import Comparison
from .statistics.findings import Findings, findings, holm
from .statistics.kendall import tau_a, tau_b
from .statistics.predictions import Finding, GroupTau

__all__ = [
    "Comparison", "Effect", "Environments", "Finding", "Findings", "Granulated", "GroupTau", "effects", "environments",
    "findings", "granulated", "holm", "tau_a", "tau_b",
]  # fmt: skip
