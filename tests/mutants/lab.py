"""Faults in the soak, in the trace of moves: then they would find nothing, or something wrong."""

from tests.mutants import Fault

VERDICT = "lab/soak/verdict.py"
SOAK = "tests/unit/test_soak.py"

FAULTS = [
    Fault(VERDICT, "if row.seq < latest[key]:", "if row.seq > latest[key]:", SOAK,
          "the order is judged the wrong way round"),
    Fault(VERDICT, "lost=[*forgotten, *sorted(lost)]", "lost=[*sorted(lost)]", SOAK,
          "an answered commit that is gone is no loss"),
    Fault("lab/soak/command.py", "raise SystemExit(1 if", "raise SystemExit(0 if", SOAK, "a failed soak ends with 0"),
]  # fmt: skip
