"""Does a measure predict a target? Three hypotheses, each a mean of signs over pairs of runs, with a verdict.

- strong: over all pairs of runs (Andriushchenko et al. 2023, section 3.1: sharpness is highly correlated with
  generalisation). tau is their Eq. 4.
- within groups: over pairs of runs in the same group, for studies with groups (their Figure 5).
- weak: over pairs of one of the flattest runs and one other run (section 3.1: the flattest models generalise well). tau
  is then the share of such pairs in which the flat run has the lower target minus the share in which it has the higher
  one (Cliff 1993).

Positive values mean that flatter runs have a lower target.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import Literal, get_args

from .confounding import Confounding

Hypothesis = Literal["strong", "within groups", "weak"]
Verdict = Literal["predicts", "predicts the opposite", "weaker than 0.5", "cannot tell"]
HYPOTHESES: tuple[Hypothesis, ...] = get_args(Hypothesis)

# At 0.5 three of four pairs are in order. The paper names no number for "highly correlated"; it calls 0.30 low.
RELEVANT = 0.5
LEVEL = 0.05  # the chance that a study shows any false verdict


@dataclass(frozen=True)
class GroupTau:
    """tau in one group of runs, with its interval; descriptive, without a verdict."""

    group: str
    n: int
    configurations: int
    tau: float
    low: float
    high: float


@dataclass(frozen=True)
class Finding:
    """One measure against one target by one hypothesis.

    Attributes
    ----------
    measure, target : str
        Names.
    hypothesis : {"strong", "within groups", "weak"}
        Which pairs of runs are compared.
    verdict : {"predicts", "predicts the opposite", "weaker than 0.5", "cannot tell"}
        The conclusion.
    why, sentence : str
        The reason in a few words, and the finding in a sentence.
    tau, low, high : float
        The mean sign over these pairs and its 95 % interval; nan without one.
    attainable : float
        The largest tau that these values allow: pairs that are tied count zero.
    bound : float
        Half of that: what "weaker than 0.5" excludes.
    p, p_corrected : float
        The p-value of no relation, and the same corrected for all tests of the study.
    p_weaker, p_weaker_corrected : float
        The p-value of a tau of half the attainable one or more, in either direction, and the same corrected.
    smallest_detectable_tau : float
        The tau that this pool shows with 80 % power at the corrected level; nan if it shows none.
    n, missing, configurations, pairs : int
        Runs with both values, runs without, configurations, and pairs that are compared.
    levels, sample : int, str
        The smallest number of levels, and what they are, such as 4 of "method"; configurations if the name is empty.
    rows : float
        The standard error that the test rows add; nan if the study stores no rows of this target.
    flattest : int
        Number of the flattest runs, for the weak hypothesis.
    mean_flattest, mean_rest : float
        Means of the target over them and over the others.
    by_group : tuple of GroupTau
        Each group by itself, for pairs within groups.
    needed : int
        Levels of `sample` that would show half of the attainable tau with 80 % power; 0 if it is not known.
    seconds : float
        Mean training time of a run; nan if it is not stored.
    confounding : Confounding
        For the strong hypothesis: tau within the levels of each factor, per setting, and given the training loss.

    Examples
    --------
    >>> runs = [
    ...     steppe.studies.Run(
    ...         f"key {i}", f"run {i}", {"lr": i / 10}, {}, "done", {"test_error": i / 100},
    ...         {"trace": steppe.studies.Measured(2.0 * i)},
    ...     )
    ...     for i in range(7)
    ... ]
    >>> found = steppe.studies.correlate.findings(steppe.studies.Table(runs))
    >>> finding = found.of("trace", "test_error")
    >>> finding.tau, finding.pairs, round(finding.p, 5), finding.verdict  # p is 2 / 7!
    (1.0, 21, 0.0004, 'predicts')

    """

    measure: str
    target: str
    hypothesis: Hypothesis
    tau: float
    low: float
    high: float
    n: int
    missing: int
    configurations: int
    pairs: int
    attainable: float = 1.0
    bound: float = RELEVANT
    levels: int = 0
    sample: str = ""
    rows: float = nan
    flattest: int = 0
    mean_flattest: float = nan
    mean_rest: float = nan
    by_group: tuple[GroupTau, ...] = ()
    confounding: Confounding = Confounding()  # noqa: RUF009, a frozen value
    p: float = nan
    p_corrected: float = nan
    p_weaker: float = nan
    p_weaker_corrected: float = nan
    smallest_detectable_tau: float = nan
    needed: int = 0
    seconds: float = nan
    verdict: Verdict = "cannot tell"
    why: str = ""
    sentence: str = ""
