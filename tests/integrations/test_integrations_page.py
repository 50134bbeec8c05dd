"""The table of docs/integrations.md names tests that exist, in the column of their library."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
CONSTRUCTORS = "integrations/test_integrations_constructors.py"
FILES = {
    "Transformers": [
        "integrations/test_integrations_transformers.py",
        "integrations/test_integrations_trl.py",
        "data/test_tokens.py",
        CONSTRUCTORS,
    ],
    "Lightning, Fabric": [
        "integrations/test_integrations_lightning.py",
        "integrations/test_integrations_lightning_more.py",
        CONSTRUCTORS,
    ],
    "Accelerate": ["integrations/test_integrations_accelerate.py"],
}
ON_TWO_WORKERS = ("distributed/test_integrations.py", "distributed/test_integrations_fsdp.py")


def names_in(*files: str) -> set[str]:
    texts = ((TESTS / file).read_text() for file in files)
    return {name for text in texts for name in re.findall(r"^def (test_\w+)", text, flags=re.MULTILINE)}


def test_every_test_of_the_table_exists_and_none_is_left_out() -> None:
    page = (TESTS.parent / "docs" / "integrations.md").read_text()
    lines = page.partition("## What is tested")[2].splitlines()
    header, _, *rows = [
        [cell.strip() for cell in re.split(r"\s*\|\s*", line)[1:-1]] for line in lines if line[:1] == "|"
    ]
    assert header[1:] == list(FILES)
    assert len(rows) > 15
    named: dict[str, set[str]] = {}
    for column, library in enumerate(FILES, start=1):
        named[library] = {name for row in rows for name in re.findall(r"`(test_\w+)`", row[column])}
        there = names_in(*FILES[library], *ON_TWO_WORKERS)
        assert named[library] <= there, named[library] - there
    everywhere = set.union(*named.values())
    files = [file for one in FILES.values() for file in one if file not in ("data/test_tokens.py", CONSTRUCTORS)]
    unnamed = names_in(*files, *ON_TWO_WORKERS) - everywhere
    assert unnamed == {"test_a_training_step_of_a_parent_class_is_enough"}, unnamed  # about classes of Python
