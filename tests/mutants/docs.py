"""Pages that say what is not so."""

from tests.mutants import Fault

PAGES = "tests/unit/test_docs.py"
PROBLEMS = "tests/unit/test_problems.py"

FAULTS = [
    Fault("docs/settings.md", "| `run_lease` | 30 |", "| `run_lease` | 60 |", PAGES,
        "The page has another default than the code."),
    Fault("docs/doctor.md", "| `crossed_wires` |", "| `crossed_wire` |", PROBLEMS,
        "Somebody looks for the code of a problem and does not find it."),
    Fault("docs/architecture.md", "destinations · migrations · writing ", "destinations · relay · writing ", PAGES,
        "The map shows a room on another floor than the import rules."),
    Fault("README.md", " -n claim@%h ", " ", PAGES, "Two workers of one name on a host answer for each other."),
]  # fmt: skip
