"""The faults of tests/mutants can still be planted. `python -m tests.mutants` tries whether their tests see them."""

from __future__ import annotations

import pytest

from tests.mutants import ROOT, Fault, rooms


@pytest.mark.parametrize("room", rooms())
def test_each_fault_of_this_room_can_be_planted(room: str) -> None:
    for fault in rooms()[room]:
        assert fault.planted() != (ROOT / fault.file).read_text(), f"{fault.breaks}: it changes nothing"
        tests = [word.split("::")[0] for word in fault.tests.split() if word.startswith("tests/")]
        assert tests, f"{fault.breaks}: no test sees it"
        assert [test for test in tests if not (ROOT / test).exists()] == [], fault.breaks


def test_a_text_that_is_not_there_once_can_not_be_planted() -> None:
    with pytest.raises(ValueError, match="times, not once"):
        Fault("pyproject.toml", "no such text", "", "tests", "nothing").planted()
