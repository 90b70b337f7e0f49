"""Faults in demo and up, and in the processes and servers below them."""

from tests.mutants import Fault

LOCAL = "outbox_tasks/local/"
PROCESSES, SERVERS = LOCAL + "processes.py", LOCAL + "servers.py"
TESTS = "tests/integration/test_local.py"
CHILD, DEATH, AT_WORK = TESTS + "::TestChild", TESTS + " -k grandchildren", TESTS + " -k address"

FAULTS = [
    Fault(PROCESSES, "            os.killpg(self.pid, signal.SIGKILL)", "            os.kill(self.pid, signal.SIGKILL)",
        CHILD, "the children of a killed process live on"),
    Fault(PROCESSES, "env={**os.environ, **(env or {})}, start_new_session=True",
        "env={**os.environ, **(env or {})}, start_new_session=False", CHILD, "Ctrl-C ends all processes at once"),
    Fault(PROCESSES, "            for child in reversed(self):\n                child.stop()",
        "            for child in self:\n                child.stop()", TESTS + " -k last_started",
        "the database stops before the relay"),
    Fault(PROCESSES, "trap \\'\\' HUP INT TERM; ", "", DEATH, "a watcher ends with those whom it watches"),
    Fault(PROCESSES, 'kill -s KILL -- "-$1"', 'kill -s KILL -- "$1"', DEATH, "grandchildren outlive us"),
    Fault(SERVERS, '"--auth=scram-sha-256"', '"--auth=trust"', AT_WORK,
        "everybody on the machine may read the database"),
]  # fmt: skip
