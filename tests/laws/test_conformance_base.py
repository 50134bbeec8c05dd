"""Laws that tie a method to its base optimizer: radius 0 changes nothing, and a step costs what it says."""

from __future__ import annotations

from registry import MICRO_BATCHES, RADIUS_0, RADIUS_0_BITWISE, Entry, obeying

from steppe.testing import laws


@obeying(RADIUS_0_BITWISE)
def test_radius_0_is_the_base_optimizer_bitwise(entry: Entry) -> None:
    laws.radius_0_bitwise(entry)


@obeying(RADIUS_0, only=lambda e: RADIUS_0_BITWISE in e.excused)
def test_radius_0_is_the_base_optimizer_up_to_rounding(entry: Entry) -> None:
    laws.radius_0(entry)


@obeying(only=lambda e: e.name != "none")
def test_a_radius_is_not_ignored(entry: Entry) -> None:
    laws.acts(entry)


@obeying()
def test_a_step_takes_its_declared_number_of_passes(entry: Entry) -> None:
    laws.takes_declared_passes(entry)


@obeying()
def test_closure_and_passes_agree_bitwise(entry: Entry) -> None:
    laws.closure_equals_passes(entry)


@obeying(MICRO_BATCHES)
def test_micro_batches_equal_the_full_batch(entry: Entry) -> None:
    laws.micro_batches_equal_the_batch(entry)


@obeying()
def test_step_returns_the_first_loss(entry: Entry) -> None:
    laws.returns_the_first_loss(entry)
