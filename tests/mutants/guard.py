"""Faults of the guard."""

from tests.mutants import Fault

OPEN, CALLS, SOURCE = (f"outbox_tasks/guard/{name}.py" for name in ("transactions", "calls", "source"))
STORED, STORED_TASKS = "outbox_tasks/guard/stored.py", "tests/guard/test_stored.py"
WHEN_CALLED, IN_SOURCE = "tests/guard/test_calls.py", "tests/guard/test_source.py"

FAULTS = [
    Fault(OPEN, 'event.listen(Session, "after_flush", _written)', "pass", WHEN_CALLED,
        "A flushed change counts as none."),
    Fault(OPEN, "session.info.pop(WRITTEN, None)", "pass", WHEN_CALLED, "A session counts as changed for ever."),
    Fault("outbox_tasks/writing/internals.py", "and not (blocks and blocks[-1]._from_testcase)", "",
        WHEN_CALLED + " tests/unit/test_internals.py", "Every call in a TestCase is refused."),
    Fault(CALLS, "            warned.add(site)\n", "", WHEN_CALLED, "A loop warns a thousand times."),
    Fault(SOURCE, "if not isinstance(node, (*FUNCTIONS, ast.Lambda)):", "if True:", IN_SOURCE,
        "A function that runs later counts as inside."),
    Fault(SOURCE, "commit_before < line < node.lineno", "line < node.lineno", IN_SOURCE,
        "A change that is committed counts as open."),
    Fault(STORED, "configured is None or configured.scheme", "configured.scheme", STORED_TASKS,
        "A destination that is gone stops the check."),
    Fault(STORED, "        except (ValueError, TypeError, KeyError, AttributeError):", "        except KeyError:",
        STORED_TASKS, "A payload that is no task stops the check."),
    Fault("outbox_tasks/guard/sql/at_work.sql", "UNION ALL SELECT seq FROM :schema.outbox_waiting\n", "", STORED_TASKS,
        "Scheduled tasks are not looked at."),
    Fault("outbox_tasks/guard/sql/at_work.sql", "UNION ALL SELECT seq FROM :schema.outbox_runs\n", "", STORED_TASKS,
        "Tasks that were handed over are not looked at."),
]  # fmt: skip
