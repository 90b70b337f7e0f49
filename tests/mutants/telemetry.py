"""Faults in what workers count, log and tell."""

from tests.mutants import Fault

ROOM = "outbox_tasks/telemetry"
ALERTS = "tests/integration/test_alerts.py"
LOGS = "tests/unit/test_shown.py"
COMPARE = "outbox_tasks/database/sql/alert/compare.sql"

FAULTS = [
    Fault(f"{ROOM}/counters.py", "settled.connect(self._count_settled, sender=app,", "settled.connect("
          "self._count_settled, sender=None,", "tests/integration/test_counters.py",
          "the sends of another app count as the relay's"),
    Fault(f"{ROOM}/alerts.py", "build_opener(_NoRedirect)", "build_opener()", ALERTS,
          "alerts follow a webhook to where it says"),
    Fault(f"{ROOM}/alerts.py", "reason.replace(basic, STARS) if basic else reason", "reason", ALERTS,
          "the log shows the login of a webhook"),
    Fault(COMPARE, "excluded.how_many >= 2 * a.told_how_many", "excluded.how_many >= 2 * a.how_many", ALERTS,
          "a problem that grows slowly is never told again"),
    Fault(COMPARE, "FROM found WHERE NOT found.is_root AND", "FROM found WHERE found.is_root AND", ALERTS,
          "a problem is over when another one explains it"),
    Fault("outbox_tasks/database/sql/alert/posted.sql", " AND a.told_at <= :told_at::timestamptz", "", ALERTS,
          "what was told during a post is not posted"),
    Fault(f"{ROOM}/logs.py", "safe = copy.copy(record)", "safe = record", LOGS,
          "other handlers of a record lose its arguments"),
    Fault(f"{ROOM}/logs.py", 'line["exception"] = without_secrets(self.formatException(record.exc_info))',
          'line["exception"] = self.formatException(record.exc_info)', LOGS, "a traceback shows a password"),
]  # fmt: skip
