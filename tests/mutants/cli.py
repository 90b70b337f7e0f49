"""Faults of the commands."""

from tests.mutants import Fault

CLI = "outbox_tasks/cli"
COMMANDS = "tests/integration/test_cli.py"
MEND = "tests/integration/test_mend_cli.py"

FAULTS = [
    Fault(f"{CLI}/health.py", "if (worker is not None and serve) or (port is not None and not serve):",
        "if worker is not None and serve:", f"{COMMANDS}::test_options_that_do_not_go_together_are_bad_usage",
        "A port is given, and nothing listens there."),
    Fault(f"{CLI}/doctor.py", "    return all(row.over_at is not None for row in rows)",
        "    return any(row.over_at is not None for row in rows)", "tests/integration/test_alerts.py::TestTheCommand",
        "An open alert beside one that is over gives exit code 0."),
    Fault(f"{CLI}/doctor.py", 'answer({"posted": place, "answer": status}, f"{place} accepted',
        'answer({"posted": place, "answer": status}, f"{settings.alert_webhook} accepted',
        "tests/integration/test_alerts.py::TestTheCommand", "The test of a webhook prints its secret address."),
    Fault(f"{CLI}/shared/acts.py", "    if done.stopped or done.error or ids:\n",
        "    if done.stopped or done.error:\n", f"{MEND}::TestActs",
        "A script does not learn that a message was not there."),
    Fault(f"{CLI}/shared/acts.py", "    if not (ids or filtered):\n", "    if not (ids or filtered or limit):\n",
        f"{MEND}::TestActs", "A redrive without ids and filters takes all messages."),
    Fault(f"{CLI}/shared/options.py", "        if self.dry_run or empty:\n", "        if empty:\n", f"{MEND}::TestActs",
        "A dry run changes messages."),
    Fault(f"{CLI}/shared/store.py", "    return Settings() if app_and_settings is None else app_and_settings[1]",
        "    return Settings()", f"{COMMANDS}::test_through_an_app_a_command_has_its_settings_and_its_broker",
        "Through an application's Celery app, a command looks at another outbox."),
    Fault(f"{CLI}/shared/store.py", "if destination is not None and destination not in settings.destinations:",
        "if destination is not None and not settings.destinations:",
        f"{COMMANDS}::test_a_name_that_nobody_knows_is_bad_usage", "A mistyped destination is paused."),
    Fault(f"{CLI}/shared/output.py", "    if sys.stdout.isatty():\n", "    if not sys.stdout.isatty():\n",
        f"{MEND}::TestShow", "A payload that goes into a file is changed."),
    Fault(f"{CLI}/shared/output.py", "    return Text(one_line(str(text)), style)", "    return Text(str(text), style)",
        "tests/integration/test_terminal.py", "A terminal obeys what a writer has written."),
    Fault(f"{CLI}/drain.py", "failed = drained.steps[Step.DEAD] or drained.steps[Step.OUTAGE]",
        "failed = drained.steps[Step.OUTAGE]", "tests/integration/test_drain.py",
        "cron does not report that messages are dead."),
]  # fmt: skip
