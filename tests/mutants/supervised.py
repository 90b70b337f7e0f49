"""Supervised tasks: their begin, their end, lost tasks, and the watch of a worker."""

from tests.mutants import Fault

VERBS, RUNNING = (f"tests/supervised/test_{name}.py" for name in ("verbs", "running"))
LOST, OF_WATCH = "tests/supervised/test_lost_tasks.py", "tests/supervised/test_watch.py"
SQL = "outbox_tasks/supervised/sql"
RUN, SUPERVISOR, LOOK, WATCH = (
    f"outbox_tasks/supervised/{name}.py" for name in ("run", "supervisor", "lost_tasks", "watch")
)

FAULTS = [
    Fault(RUN, "            self.following = kept\n", "            pass\n",
        "tests/supervised/test_complete.py", "After a completion that is rolled back what follows is written twice."),
    Fault(RUN, "    run.replaced = True\n", "", RUNNING, "A task that replaces itself is discarded."),
    Fault(SUPERVISOR, "if copy.of != runs.identity:", "if False:", RUNNING, "A task of another outbox runs."),
    Fault(SUPERVISOR, "following = run.rows if state != states.RETRY else []", "following = run.rows", RUNNING,
        "A retry wakes the relay at once."),
    Fault("outbox_tasks/supervised/hooks.py", "            supervised.set(None)\n", "            pass\n", RUNNING,
        "After a run the process takes the next task for that run."),
    Fault(LOOK, "self._end(name, time.monotonic() - looked)", "self._end(name, 0.0)", LOST,
        "Tasks that came after a flush count as lost."),
    Fault(LOOK, "elif not former & tokens:", "elif False:", LOST,
        "A publisher that makes our key anew hides a flush."),
    Fault(f"{SQL}/begin.sql", "AND r.state = 'handed over' AND set_config", "AND set_config", VERBS,
        "A second copy takes a run over."),
    Fault(f"{SQL}/begin.sql", "state = 'running', token = :token::uuid, holder = :holder::text, unheard = 0,",
        "state = 'running', token = :token::uuid, holder = :holder::text,", VERBS,
        "A task that was heard of waits as long as before the next time."),
    Fault(f"{SQL}/end.sql", "r.id = said.id AND r.token = said.token",
        "r.id = said.id", VERBS, "A run that was given up ends the task."),
    Fault(f"{SQL}/expire.sql", "CASE WHEN ran THEN 0 ELSE unheard + 1 END", "unheard + 1", VERBS,
        "A task whose worker was lost waits longer for the next one."),
    Fault(f"{SQL}/unknown.sql",
        "    AND r.locked_until > clock_timestamp() + :wait * 2 ^ least(r.unheard, 6) * interval '1 second'\n", "",
        VERBS, "A task that is due soon waits longer."),
    Fault(WATCH, "        copy = copy._replace(token=str(uuid4()))  # a token in the header is that of another run\n",
        "", OF_WATCH, "A copy that comes back has the token of its former run."),
    Fault(WATCH, "                self._acts.append(act)\n                self._soon = True\n                break",
        "                break", OF_WATCH, "The end of a run is lost if the database is away."),
    Fault("outbox_tasks/supervised/hooks.py", "if run is not None and run.request is sender.request:",
        "if run is not None:", RUNNING, "A task that the running one calls ends the run."),
    Fault(f"{SQL}/completed.sql", ":committed::boolean AND EXISTS", "EXISTS", VERBS,
        "A run that was given up completes the task a second time."),
    Fault(f"{SQL}/expire.sql", "ELSE coalesce(t.code, excluded.code) END", "ELSE excluded.code END", VERBS,
        "The error of a lost worker is forgotten when nobody begins the task again."),
    Fault(f"{SQL}/retry.sql", "due = least(back.due, k.due)", "due = back.due", VERBS,
        "A redriven task waits for the retry of a later one of its key."),
    Fault(f"{SQL}/unknown.sql", " AND r.state = 'handed over'", "", VERBS,
        "A worker that does not know a task ends the lease of its run elsewhere."),
]  # fmt: skip
