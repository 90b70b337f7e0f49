"""Faults of the guard."""

from tests.mutants import Fault

OPEN, CALLS, SOURCE = (f"outbox_tasks/guard/{name}.py" for name in ("transactions", "calls", "source"))
STORED, STORED_TASKS = "outbox_tasks/guard/stored.py", "tests/guard/test_stored.py"
WHEN_CALLED, IN_SOURCE = "tests/guard/test_calls.py", "tests/guard/test_source.py"

FAULTS = [
    Fault(
        OPEN, 'event.listen(Session, "after_flush", _flushed)', "pass", WHEN_CALLED, "A flushed change counts as none."
    ),
    Fault(OPEN, 'event.listen(Session, "do_orm_execute", _executes)', "pass", WHEN_CALLED, "An INSERT counts as none."),
    Fault(OPEN, "session.info.pop(WRITTEN, None)", "pass", WHEN_CALLED, "A session counts as changed for ever."),
    Fault(
        OPEN,
        "or session.deleted or session.dirty",
        "or session.deleted",
        WHEN_CALLED,
        "A changed field counts as none.",
    ),
    Fault(OPEN, "or session.deleted or", "or", WHEN_CALLED, "A deletion that is not flushed counts as none."),
    Fault(OPEN, "is_text or state.is_insert", "state.is_insert", WHEN_CALLED, "SQL as text counts as reading."),
    Fault(OPEN, "_has_changes(session):", "True:", WHEN_CALLED, "A session that has read is reported."),
    Fault(OPEN, "connection_created.connect(_connected)", "pass", WHEN_CALLED, "Django's blocks are not seen."),
    Fault(
        "outbox_tasks/writing/internals.py",
        "and not (blocks and blocks[-1]._from_testcase)",
        "",
        WHEN_CALLED + " tests/unit/test_internals.py",
        "Every call in a TestCase is refused.",
    ),
    Fault(CALLS, "is None or current() is not None:", "is None:", WHEN_CALLED, "What is meant is refused."),
    Fault(CALLS, "            self._warned.add(site)\n", "", WHEN_CALLED, "A loop warns a thousand times."),
    Fault(CALLS, "self.app.conf.task_always_eager:", "False:", WHEN_CALLED, "An eager app is not looked at."),
    Fault(
        CALLS,
        "    frame: FrameType | None = sys._getframe(1)\n    while frame is not None and",
        "    frame: FrameType | None = sys._getframe(1)\n    while False and",
        WHEN_CALLED,
        "It names its own line.",
    ),
    Fault(
        SOURCE,
        "        self._inside = any(_name(decorator)",
        "        self._inside = self._inside or any(_name(decorator)",
        IN_SOURCE,
        "A function that runs later counts as inside.",
    ),
    Fault(
        SOURCE,
        'return "outbox" not in ast.unparse(node.func.value).lower()',
        "return True",
        IN_SOURCE,
        "The outbox's own calls are reported.",
    ),
    Fault(
        SOURCE,
        "commit_before < line < node.lineno",
        "line < node.lineno",
        IN_SOURCE,
        "A change that is committed counts as open.",
    ),
    Fault(
        SOURCE,
        "commits += [block.end",
        "_ = [block.end",
        IN_SOURCE,
        "What follows a block is not reported.",
    ),
    Fault(SOURCE, 'inner.name.startswith(".")', "False", IN_SOURCE, "Hidden directories are read."),
    Fault(
        STORED,
        "                if task.typing:\n",
        "                if True:\n",
        STORED_TASKS,
        "A task without typing is reported.",
    ),
    Fault(STORED, '+ (not signature.get("immutable"))', "", STORED_TASKS, "A follower lacks its result."),
    Fault(
        STORED,
        "configured is None or configured.scheme",
        "configured.scheme",
        STORED_TASKS,
        "A destination that is gone stops the check.",
    ),
    Fault(STORED, "] = count + 1, first", "] = 1, first", STORED_TASKS, "Each reason counts once."),
    Fault(
        STORED,
        "        except (ValueError, TypeError, KeyError, AttributeError):",
        "        except KeyError:",
        STORED_TASKS,
        "A payload that is no task stops the check.",
    ),
    Fault(STORED, "for app in reversed(apps):", "for app in apps[:1]:", STORED_TASKS, "A second app is not asked."),
    Fault(
        "outbox_tasks/guard/sql/at_work.sql",
        "UNION ALL SELECT seq FROM :schema.outbox_dead\n",
        "",
        STORED_TASKS,
        "Dead letters are not looked at.",
    ),
    Fault(
        "outbox_tasks/guard/sql/at_work.sql",
        "UNION ALL SELECT seq FROM :schema.outbox_waiting\n",
        "",
        STORED_TASKS,
        "Scheduled tasks are not looked at.",
    ),
]
