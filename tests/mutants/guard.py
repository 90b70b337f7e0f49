"""Faults of the guard."""

from tests.mutants import Fault

OPEN, CALLS, SOURCE = (f"outbox_tasks/guard/{name}.py" for name in ("transactions", "calls", "source"))
STORED, STORED_TASKS = "outbox_tasks/guard/stored.py", "tests/guard/test_stored.py"
WHEN_CALLED, IN_SOURCE = "tests/guard/test_calls.py", "tests/guard/test_source.py"

FAULTS = [
    Fault(OPEN, 'event.listen(Session, "after_flush", _written)', "pass", WHEN_CALLED,
        "A flushed change counts as none."),
    Fault(OPEN, "session.info.pop(WRITTEN, None)", "pass", WHEN_CALLED, "A session counts as changed for ever."),
    Fault(OPEN, "or session.deleted or session.dirty", "or session.deleted", WHEN_CALLED,
        "A changed field counts as none."),
    Fault(OPEN, 'connection in getattr(_django, "connections", ()):', "connection in ():",
        WHEN_CALLED, "Django's blocks are not seen."),
    Fault(OPEN, "_sessions.set((*map(ref, known), ref(session)))", "_sessions.set((ref(session),))", WHEN_CALLED,
        "A second session hides the changes of the first."),
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
    Fault(OPEN, "or state.is_update or state.is_delete", "or state.is_update", WHEN_CALLED,
        "A statement that deletes counts as no change."),
    Fault(SOURCE, "max((line for line in commits", "min((line for line in commits", IN_SOURCE,
        "What was changed before the last commit counts as open."),
    Fault(STORED, "seqs[start : start + MESSAGES_A_READ]", "seqs[start:MESSAGES_A_READ]", STORED_TASKS,
        "Only the first part of the stored tasks is read."),
    Fault(STORED, '+ (not signature.get("immutable"))', "+ 1", STORED_TASKS,
        "An immutable follower is said to get a result."),
    Fault(STORED, 'elif kind != "errbacks":', "else:", STORED_TASKS,
        "The arguments of an errback are said not to fit."),
    Fault("outbox_tasks/guard/sql/at_work.sql", "UNION ALL SELECT seq FROM :schema.outbox_runs\n", "", STORED_TASKS,
        "Tasks that were handed over are not looked at."),
    Fault("outbox_tasks/guard/sql/at_work.sql", "UNION ALL SELECT seq FROM :schema.outbox_held\n", "", STORED_TASKS,
        "Tasks that wait behind others of their key are not looked at."),
]  # fmt: skip
