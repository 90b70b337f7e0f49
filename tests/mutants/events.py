"""Faults of typed events."""

from tests.mutants import Fault

EVENT, DIFF = "outbox_tasks/events/event.py", "outbox_tasks/events/diff.py"
DOCUMENTS, COMMAND = "outbox_tasks/events/documents.py", "outbox_tasks/events/command.py"
PUBLISH, DIFFS, COMMANDS = "tests/events/test_publish.py", "tests/events/test_diff.py", "tests/events/test_command.py"

FAULTS = [
    Fault("outbox_tasks/outbox.py", "return self._writer.write(session, map(self._fitted, each_message(messages)))",
        "return self._writer.write(session, each_message(messages))", PUBLISH, "Many messages are not checked."),
    Fault(EVENT, 'by_alias=True, warnings="error")', "by_alias=True, warnings=False)", PUBLISH,
        "An instance that was made unchecked is stored."),
    Fault(EVENT, "by_alias=True", "by_alias=False", PUBLISH, "The stored JSON has other names than the schema."),
    Fault(DOCUMENTS, '"address": None', '"address": settings.destinations[destination].url', COMMANDS,
        "The document shows a password."),
    Fault(DIFF, "before.keys() | after.keys()", "before.keys() & after.keys()", DIFFS,
        "An event that is gone is not noticed."),
    Fault(DIFF, "elif name not in before and name in needed:", "elif name not in before and False:", DIFFS,
        "A required field that is new counts as optional."),
    Fault(COMMAND, "        raise SystemExit(1)", "        pass", COMMANDS, "The gate lets changes pass that break."),
    Fault(COMMAND, 'name or "outbox")', "name)", COMMANDS, "A module without the name of its outbox is refused."),
]  # fmt: skip
