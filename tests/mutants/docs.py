"""Pages that say what is not so."""

from __future__ import annotations

from tests.mutants import Fault

PAGES = "tests/unit/test_docs.py"
PROBLEMS = "tests/unit/test_problems.py"

FAULTS = [
    Fault(
        "docs/settings.md", "| `run_lease` | 30 |", "| `run_lease` | 60 |", PAGES,
        "The page has another default than the code.",
    ),
    Fault(
        "docs/settings.md", "| `max_age` | none |", "| `maximum_age` | none |", PAGES,
        "The page names a setting that does not exist, and leaves one out.",
    ),
    Fault(
        "docs/operate.md", "## One broker, one outbox", "## A broker of its own", PAGES,
        "Links and an error lead to a heading that is gone.",
    ),
    Fault(
        "docs/doctor.md", "| `crossed_wires` |", "| `crossed_wire` |", PROBLEMS,
        "Somebody looks for the code of a problem and does not find it.",
    ),
    Fault(
        "docs/doctor.md", "| `feed_list` ° |", "| `feed_list` |", PROBLEMS,
        "The page promises a problem to status and health that only the doctor finds.",
    ),
    Fault(
        "docs/architecture.md", "destinations · migrations · writing ", "destinations · relay · writing ", PAGES,
        "The map shows a room on another floor than the import rules.",
    ),
    Fault(
        "docs/architecture.md", "relay/drain.py) `drain`", "relay/drain.py) `emptied`", PAGES,
        "The map names a function that its file does not have.",
    ),
    Fault(
        "README.md", " -n claim@%h ", " ", PAGES,
        "Two workers of one name on a host answer for each other.",
    ),
]  # fmt: skip
