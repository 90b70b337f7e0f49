"""Faults in the tasks, and in what a worker does after trouble."""

from tests.mutants import Fault

WORKER = "outbox_tasks/worker/"
BASE, CHECKS = WORKER + "base_task.py", WORKER + "message_checks.py"
UNIT = "tests/unit/test_worker.py"
TASKS = "tests/integration/test_tasks.py"
ATTACKS = "tests/unit/test_attacks.py"
CROSSED = "tests/integration/test_crossed_wires.py"
INSTALL = "tests/unit/test_install.py"

FAULTS = [
    Fault(BASE, 'headers[WAIT] = options["countdown"]', "pass", TASKS + "::TestPublish",
          "a retry waits by the clock of another host"),
    Fault(BASE, "if self.once and queue_length(producer, self.home):", "if queue_length(producer, self.home) > 99:",
          TASKS, "claims pile up"),
    Fault(CHECKS, "timedelta(seconds=wait)).isoformat()", "timedelta(seconds=-wait)).isoformat()", UNIT,
          "no retry waits"),
    Fault(CHECKS, "_need(not any(embedded.values()), ", "_need(True, ", ATTACKS,
          "a forged claim calls any task"),
    Fault(WORKER + "requests.py", "        state.revoked.discard(self.id)\n", "", TASKS + "::TestPublish",
          "a message whose id was revoked once is refused for good"),
    Fault(WORKER + "publish_task.py", "        max_retries=None,", "        max_retries=3,", INSTALL,
          "Celery gives up before the database does"),
    Fault(WORKER + "publish_task.py", "if more or (published is not None and published.more):",
          "if published is not None and published.more:", TASKS + "::TestPublish", "what found no room waits for beat"),
    Fault(WORKER + "claim_task.py", "                resources.database_was_away = True\n", "                pass\n",
          TASKS + "::TestClaim", "after the second crash of the database no message says that it may be repeated"),
    Fault(WORKER + "start_checks.py", "        resources.crossed = True\n", "",
          CROSSED, "the page goes on to say that wires are crossed"),
    Fault(WORKER + "drain_task.py", "    served = {CLAIM_QUEUE, PUBLISH_QUEUE, DRAIN_QUEUE} & resources",
          "    served = {CLAIM_QUEUE, PUBLISH_QUEUE, DRAIN_QUEUE} or resources", TASKS + "::TestDrain",
          "a drain makes room for tasks that others serve"),
    Fault(WORKER + "schedule.py", '            "last_run_at": LONG_AGO,\n', "", "tests/unit/test_schedule.py",
          "where beat restarts often nothing is maintained"),
    Fault(WORKER + "schedule.py", "        scheduler.populate_heap()  #", "        pass  #",
          "tests/unit/test_schedule.py", "after the clock was set back beat waits for an hour"),
    Fault(WORKER + "drain_task.py", "_worker_stops() or task_waits()", "task_waits()", TASKS + "::TestDrain",
          "a worker that is told to stop drains on"),
    Fault(WORKER + "resources.py", "            except BrokerUnreachable:\n                return False\n",
          "            except BrokerUnreachable:\n                self._tasks_may_wait = False\n",
          TASKS + "::test_after_an_outage_of_the_broker_a_task_may_wait_in_a_worker_again",
          "after one outage of the broker no retry waits in a worker"),
    Fault(WORKER + "start_checks.py", "with suppress(DatabaseUnavailable):", "with suppress(KeyError):", CROSSED,
          "while the database is away nobody hears of crossed wires"),
]  # fmt: skip
