"""Faults in the soak's verdict: then it would find nothing."""

from tests.mutants import Fault

VERDICT = "lab/soak/verdict.py"
TESTS = "tests/unit/test_soak.py"

FAULTS = [
    Fault(VERDICT, "if count > 1}", "if count > 2}", TESTS, "a message that comes twice is not repeated"),
    Fault(
        VERDICT, "if row.seq < latest[key]:", "if row.seq > latest[key]:", TESTS, "order is judged the wrong way round"
    ),
]
