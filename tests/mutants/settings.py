"""Faults in the settings, in errors and in what each process makes for itself."""

from tests.mutants import Fault

SETTINGS, SHOWN, TEXT = "tests/unit/test_settings.py", "tests/unit/test_shown.py", "outbox_tasks/text.py"
INIT, PIPE, SOURCES, PLACE = (
    f"outbox_tasks/settings/{name}.py" for name in ("__init__", "pipe", "sources", "destination")
)

FAULTS = [
    Fault(SOURCES, "(project, read_file(), its_database))", "(read_file(), project, its_database))",
        "tests/integration/test_django.py::test_the_settings_of_a_project_are_enough "
        "tests/integration/test_django.py::test_a_variable_that_names_another_database_than_the_proj"
        "ect_is_found",
        "The file wins over Django's settings."),
    Fault(PIPE, "slowest + 2 * (self.statement_timeout or USUAL_STATEMENT_SECONDS)",
        "slowest + 2 * self.statement_timeout", SETTINGS,
        "Without a time limit of its own, a send's lease leaves no time for statements."),
    Fault(SOURCES, " or unknown  #", "  #", SETTINGS,
        "The value of a mistyped setting is shown: it may be a password."),
    Fault(PLACE, "    url: Url = Field(repr=False)\n    \"\"\"Where; its", "    url: Url\n    \"\"\"Where; its",
        SETTINGS, "The repr of a destination shows the password in its URL."),
    Fault("outbox_tasks/errors.py", "return without_secrets(str(fact)) if", "return str(fact) if",
        "tests/unit/test_shown.py", "An error quotes a password."),
    Fault("outbox_tasks/errors.py", "        return _rebuild, (type(self), self.facts)",
        "        return type(self), (str(self),)", "tests/unit/test_errors.py",
        "An error that a worker returns can't be read."),
    Fault("outbox_tasks/per_process.py", "                    self._abandon(value)", "                    pass",
        "tests/unit/test_per_process.py", "A child keeps the connections of its parent."),
    Fault(PIPE, "min(40.0, self.queue_lease * 2 / 3)", "max(40.0, self.queue_lease * 2 / 3)", SETTINGS,
        "After a crash a message waits as long as the longest lease of a queue."),
    Fault(INIT, 'each.model_copy(update={"singles": None})', "each", SETTINGS,
        "A destination's own dial wins over a drain by hand."),
    Fault(TEXT, "sorted(secrets, key=len, reverse=True)", "sorted(secrets, key=len)", SHOWN,
        "The rest of a long secret is shown if a short one is a part of it."),
    Fault(TEXT, '(login, last, *(other.rpartition("@")[0] for other in others))', "(login, last)", SHOWN,
        "Of several hosts only the last one's password is hidden."),
]  # fmt: skip
