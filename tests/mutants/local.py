"""Faults in demo and up, and in the processes and servers below them."""

from tests.mutants import Fault

LOCAL = "outbox_tasks/local/"
PROCESSES, SERVERS, REPORT = LOCAL + "processes.py", LOCAL + "servers.py", LOCAL + "demo_report.py"
TESTS = "tests/integration/test_local.py"
CHILD, DEATH, AT_WORK = TESTS + "::TestChild", TESTS + " -k grandchildren", TESTS + " -k address"
DEMO = "tests/acceptance/test_demo.py::test_a_verdict_says_what_is_wrong_and_what_could_not_be_shown"

FAULTS = [
    Fault(PROCESSES, "        self._ended = True  # the", "        # the", CHILD,
        "a group that may be somebody else's by now is signalled again"),
    Fault(PROCESSES, "            os.killpg(self.pid, signal.SIGKILL)", "            os.kill(self.pid, signal.SIGKILL)",
        CHILD, "the children of a killed process live on"),
    Fault(PROCESSES, "env={**os.environ, **(env or {})}, start_new_session=True",
        "env={**os.environ, **(env or {})}, start_new_session=False", CHILD, "Ctrl-C ends all processes at once"),
    Fault(PROCESSES, "log.touch(0o600)", "log.touch()", CHILD, "everybody on the machine reads the logs"),
    Fault(PROCESSES, "            for child in reversed(self):\n                child.stop()",
        "            for child in self:\n                child.stop()", TESTS + " -k last_started",
        "the database stops before the relay"),
    Fault(PROCESSES, "            signal.signal(number, action)\n", "            pass\n", TESTS + " -k ctrl_c",
        "signals go on to interrupt who comes after"),
    Fault(PROCESSES, "trap \\'\\' HUP INT TERM; ", "", DEATH, "a watcher ends with those whom it watches"),
    Fault(PROCESSES, 'kill -s KILL -- "-$1"', 'kill -s KILL -- "$1"', DEATH, "grandchildren outlive us"),
    Fault(SERVERS, '"--auth=scram-sha-256"', '"--auth=trust"', AT_WORK,
        "everybody on the machine may read the database"),
    Fault(REPORT, 'sum(messages.get(id, ("", None))[1] is None for', 'sum(False for', DEMO,
        "repetitions without a cause are not told"),
]  # fmt: skip
