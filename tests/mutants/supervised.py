"""Supervised tasks: their begin, their end, lost tasks, and the watch of a worker."""

from tests.mutants import Fault

VERBS, RUNNING = (f"tests/supervised/test_{name}.py" for name in ("verbs", "running"))
LOST, OF_WATCH = "tests/supervised/test_lost_tasks.py", "tests/supervised/test_watch.py"
SQL = "outbox_tasks/supervised/sql"
RUN, SUPERVISOR, LOOK, WATCH = (
    f"outbox_tasks/supervised/{name}.py" for name in ("run", "supervisor", "lost_tasks", "watch")
)

FAULTS = [
    Fault(RUN, "return copy if 0 < copy.lease <= WEEK_SECONDS else None", "return copy", RUNNING,
        "A header with an endless lease begins a run."),
    Fault(RUN, "            self.following = kept\n", "            pass\n",
        "tests/supervised/test_complete.py", "After a completion that is rolled back what follows is written twice."),
    Fault(RUN, "    run.replaced = True\n", "", RUNNING, "A task that replaces itself is discarded."),
    Fault(SUPERVISOR, "if copy.of != identity:", "if False:", RUNNING, "A task of another outbox runs."),
    Fault(SUPERVISOR, "following = run.rows if state != states.RETRY else []", "following = run.rows", RUNNING,
        "A retry wakes the relay at once."),
    Fault(SUPERVISOR, "return ended or again", "return ended",
        "tests/supervised/test_running_trouble.py", "An end whose answer was lost is told as a lost lease."),
    Fault("outbox_tasks/supervised/hooks.py", "            supervised.set(None)\n", "            pass\n", RUNNING,
        "After a run the process takes the next task for that run."),
    Fault(LOOK, "self._end(name, time.monotonic() - looked)", "self._end(name, 0.0)", LOST,
        "Tasks that came after a flush count as lost."),
    Fault(LOOK, "if tokens and former and not former & tokens:", "if False:", LOST,
        "A publisher that makes our key anew hides a flush."),
    Fault(f"{SQL}/begin.sql", "coalesce(t.attempts, 0) + 1, lease.id", "coalesce(t.attempts, 0), lease.id", VERBS,
        "A quick begin counts one attempt less."),
    Fault(f"{SQL}/begin.sql", "AND r.state = 'handed over' AND set_config", "AND set_config", VERBS,
        "A second copy takes a run over."),
    Fault(f"{SQL}/begin.sql", "state = 'running', token = :token::uuid, holder = :holder::text, unheard = 0,",
        "state = 'running', token = :token::uuid, holder = :holder::text,", VERBS,
        "A task that was heard of waits as long as before the next time."),
    Fault(f"{SQL}/end.sql", "r.id = said.id AND r.token = said.token",
        "r.id = said.id", VERBS, "A run that was given up ends the task."),
    Fault(f"{SQL}/fail.sql", "'traceback', traceback, 'ran'", "'ran'", RUNNING, "A dead task has no traceback."),
    Fault(f"{SQL}/expire.sql", "CASE WHEN ran THEN 0 ELSE unheard + 1 END", "unheard + 1", VERBS,
        "A task whose worker was lost waits longer for the next one."),
    Fault(f"{SQL}/retry.sql", "since = NULL, ", "", VERBS,
        "A retry of a redriven task is as old as its redrive."),
    Fault(f"{SQL}/unknown.sql",
        "    AND r.locked_until > clock_timestamp() + :wait * 2 ^ least(r.unheard, 6) * interval '1 second'\n", "",
        VERBS, "A task that is due soon waits longer."),
    Fault(LOOK, "        self._seen[name] = tokens, now\n", "        self._seen.setdefault(name, (tokens, now))\n",
        LOST, "A second flush of the broker loses what was handed over after the first one."),
    Fault(WATCH, "        copy = copy._replace(token=str(uuid4()))  # a token in the header is that of another run\n",
        "", OF_WATCH, "A copy that comes back has the token of its former run."),
    Fault(WATCH, "                self._acts.append(act)\n                self._soon = True\n                break",
        "                break", OF_WATCH, "The end of a run is lost if the database is away."),
    Fault(WATCH, "            self._every = copy.lease / RENEWALS_A_LEASE\n            self._wanted.set()\n",
        "            self._every = copy.lease / RENEWALS_A_LEASE\n", OF_WATCH,
        "The first short lease runs out before it is renewed."),
    Fault(SUPERVISOR, "        error = error.__context__\n", "        pass\n", RUNNING + "::TestRetries",
        "A task that used up its retries does not say why it failed."),
]  # fmt: skip
