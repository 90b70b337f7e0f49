"""Faults in the soak, in the trace of moves, and in the benches: then they would find nothing, or something wrong."""

from tests.mutants import Fault

VERDICT, LEDGER, PLAN = (f"lab/soak/{name}.py" for name in ("verdict", "ledger", "plan"))
SOAK = "tests/unit/test_soak.py"
TRANSITIONS = "tests/integration/test_transitions.py"

FAULTS = [
    Fault(VERDICT, "if count > 1}", "if count > 2}", SOAK, "a message that comes twice is not repeated"),
    Fault(VERDICT, "if row.seq < latest[key]:", "if row.seq > latest[key]:", SOAK,
          "the order is judged the wrong way round"),
    Fault(VERDICT, "key = (row.destination, row.key)", "key = ('', row.key)", SOAK,
          "two destinations share their keys"),
    Fault(VERDICT, "lost=[*forgotten, *sorted(lost)]", "lost=[*sorted(lost)]", SOAK,
          "an answered commit that is gone is no loss"),
    Fault(VERDICT, "in (SENT, DISCARDED)}", "in (DISCARDED,)}", SOAK,
          "a message that is archived and did not arrive is no loss"),
    Fault(VERDICT, "[id for id in counts if id not in written]", "[]", SOAK, "what was rolled back may arrive"),
    Fault(VERDICT, "if not message.hopeless]", "if message.hopeless]", SOAK,
          "a dead letter that could be delivered is as planned"),
    Fault(VERDICT, "for id in repeated if not code.get(id)]", "for id in repeated if code.get(id)]", SOAK,
          "a cause is a fault"),
    Fault(VERDICT, "            *self.remarks,\n", "", SOAK, "what was found on the way is not told"),
    Fault(VERDICT, "bisect_right(times, fault.ended)) ==", "bisect_right(times, fault.began)) ==", SOAK,
          "recovery counts from the begin"),
    Fault(LEDGER, "if len(id) == 36:", "if id:", SOAK, "a note that was cut off counts"),
    Fault(PLAN, "remaining = remaining or chance", "remaining = chance", SOAK,
          "a kind of fault comes twice before all came once"),
    Fault(PLAN, "random.Random(seed)", "random.Random(seed + int(seconds))", SOAK, "a longer run has other faults"),
    Fault("lab/soak/command.py", "raise SystemExit(1 if", "raise SystemExit(0 if", SOAK, "a failed soak ends with 0"),
    Fault("lab/soak/report.py", "{one_line(text)}", "{text}", SOAK, "a text of others is obeyed by the terminal"),
    Fault("lab/trace.py", "            if move in MOVES:", "            if True:", TRANSITIONS,
          "each move of a message is allowed"),
    Fault("bench/report.py", "shown(max(value))", "shown(min(value))", "tests/unit/test_bench.py",
          "a spread is told as one value"),
]  # fmt: skip
