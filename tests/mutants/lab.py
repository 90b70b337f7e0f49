"""Faults in the soak, in the trace of moves: then they would find nothing, or something wrong."""

from tests.mutants import Fault

VERDICT, LEDGER = "lab/soak/verdict.py", "lab/soak/ledger.py"
SOAK = "tests/unit/test_soak.py"

FAULTS = [
    Fault(VERDICT, "if row.seq < latest[key]:", "if row.seq > latest[key]:", SOAK,
          "the order is judged the wrong way round"),
    Fault(VERDICT, "lost=[*forgotten, *sorted(lost)]", "lost=[*sorted(lost)]", SOAK,
          "an answered commit that is gone is no loss"),
    Fault(VERDICT, "in (SENT, DISCARDED)}", "in (DISCARDED,)}", SOAK,
          "a message that is archived and did not arrive is no loss"),
    Fault(VERDICT, "for id in repeated if not code.get(id)]", "for id in repeated if code.get(id)]", SOAK,
          "a cause is a fault"),
    Fault("lab/soak/command.py", "raise SystemExit(1 if", "raise SystemExit(0 if", SOAK, "a failed soak ends with 0"),
]  # fmt: skip
