"""Faults in demo and up, and in the processes and servers below them."""

from tests.mutants import Fault

LOCAL = "outbox_tasks/local/"
PROCESSES, SERVERS = LOCAL + "processes.py", LOCAL + "servers.py"
TESTS = "tests/integration/test_local.py"
CHILD, AT_WORK = TESTS + "::TestChild", TESTS + " -k address"

FAULTS = [
    Fault(PROCESSES, "            os.killpg(self.pid, signal.SIGKILL)", "            os.kill(self.pid, signal.SIGKILL)",
        CHILD, "the children of a killed process live on"),
    Fault(PROCESSES, "env={**os.environ, **(env or {})}, start_new_session=True",
        "env={**os.environ, **(env or {})}, start_new_session=False", CHILD, "Ctrl-C ends all processes at once"),
    Fault(SERVERS, '"--auth=scram-sha-256"', '"--auth=trust"', AT_WORK,
        "everybody on the machine may read the database"),
]  # fmt: skip
