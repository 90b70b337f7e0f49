"""Faults in demo and up, and in the processes and servers below them."""

from tests.mutants import Fault

LOCAL = "outbox_tasks/local/"
PROCESSES, SERVERS, CLUSTER, WATCHER, REPORT = (
    LOCAL + "processes.py", LOCAL + "servers.py", LOCAL + "cluster.py", LOCAL + "watcher.py", LOCAL + "demo_report.py",
)  # fmt: skip
TESTS = "tests/integration/test_local.py"
CHILD, GROUP, DEATH = TESTS + "::TestChild", TESTS + "::TestGroup", TESTS + "::TestDeathOfTheParent"
AT_WORK = TESTS + "::TestServers"
DEMO = "tests/acceptance/test_demo.py::test_a_verdict_says_what_is_wrong_and_what_could_not_be_shown"
READ = "tests/acceptance/test_demo.py::test_people_read_what_happened_and_the_verdict"

FAULTS = [
    Fault(
        PROCESSES,
        "        self._ended = True  # the",
        "        # the",
        CHILD,
        "a group that may be somebody else's by now is signalled again",
    ),
    Fault(
        PROCESSES,
        "            os.killpg(self.pid, signal.SIGKILL)",
        "            os.kill(self.pid, signal.SIGKILL)",
        CHILD,
        "the children of a killed process live on",
    ),
    Fault(PROCESSES, "            self._asked = True\n", "", CHILD, "a process is asked twice to stop"),
    Fault(
        PROCESSES,
        "            self.send_signal(self.stop_signal)",
        "            self.send_signal(signal.SIGTERM)",
        CHILD,
        "PostgreSQL waits for its clients before it stops",
    ),
    Fault(PROCESSES, "start_new_session=True", "start_new_session=False", CHILD, "Ctrl-C ends all processes at once"),
    Fault(
        PROCESSES, "                self._read_up_to += len(line)\n", "", CHILD, "up shows each line again and again"
    ),
    Fault(
        PROCESSES,
        '                if not line.endswith(b"\\n"):  # the rest is still to come\n                    break\n',
        "",
        CHILD,
        "up shows half of a line",
    ),
    Fault(
        PROCESSES,
        "os.open(path, flags, 0o600)",
        "os.open(path, flags, 0o644)",
        CHILD,
        "everybody on the machine reads the logs",
    ),
    Fault(
        PROCESSES,
        "if not alive or time.monotonic() > deadline",
        "if time.monotonic() > deadline",
        CHILD,
        "who waits for a process that has ended waits for minutes",
    ),
    Fault(
        PROCESSES,
        "            weakref.finalize(child, path.unlink, missing_ok=True)",
        "            pass",
        CHILD,
        "each child leaves a file behind",
    ),
    Fault(
        PROCESSES,
        "            for child in reversed(self):\n                child.stop()",
        "            for child in self:\n                child.stop()",
        GROUP,
        "the database stops before the relay",
    ),
    Fault(
        PROCESSES,
        "            signal.signal(number, action)\n",
        "            pass\n",
        TESTS + " -k ctrl_c",
        "signals go on to interrupt who comes after",
    ),
    Fault(WATCHER, "trap '' HUP INT TERM; ", "", DEATH, "a watcher ends with those whom it watches"),
    Fault(
        WATCHER,
        'kill -s "$2" -- "-$1"; sleep 3; kill -s KILL -- "-$1"',
        'kill -s "$2" -- "$1"',
        DEATH,
        "grandchildren outlive us",
    ),
    Fault(
        SERVERS, "free_port(remembered)", "free_port()", AT_WORK, "a server in a given directory moves to another port"
    ),
    Fault(
        SERVERS,
        "port = self._port or free_port",
        "port = free_port",
        AT_WORK + "::test_a_server_that_is_started_again_waits_for_its_own_address",
        "clients don't find a server that was started again",
    ),
    Fault(
        SERVERS,
        "            if self._temporary is not None:\n                self._temporary.cleanup()",
        "            if False:\n                pass",
        AT_WORK,
        "each server leaves its data behind",
    ),
    Fault(
        CLUSTER,
        '"--auth=scram-sha-256"',
        '"--auth=trust"',
        AT_WORK + "::test_postgresql_is_durable_and_asks_for_a_password",
        "everybody on the machine may read the database",
    ),
    Fault(
        CLUSTER,
        "                pid_file.unlink(missing_ok=True)",
        "                return",
        AT_WORK,
        "a cluster whose server was killed in a container does not start again",
    ),
    Fault(
        REPORT,
        "if cause == UNSETTLED",
        "if cause",
        READ,
        "repetitions after a lost answer count as the killed worker's",
    ),
    Fault(
        REPORT, "sum(cause is None for cause in causes.values())", "0", DEMO, "repetitions without a cause are not told"
    ),
    Fault(REPORT, " - dead - unfinished)", ")", DEMO, "what is still on its way counts as lost"),
    Fault(
        REPORT,
        "not unfinished and dead != {shop.undeliverable}",
        "dead != {shop.undeliverable}",
        DEMO,
        "a busy machine counts as a broken promise",
    ),
    Fault(
        REPORT, "first = dict(reversed(arrivals))", "first = dict(arrivals)", READ, "a repetition counts as the arrival"
    ),
]
