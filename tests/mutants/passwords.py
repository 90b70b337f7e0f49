"""Faults in passwords that change: where they come from, who asks for them, and what a refusal means."""

from tests.mutants import Fault

PASSWORD, LOGIN, SHARED = (
    "outbox_tasks/settings/password.py",
    "outbox_tasks/broker/login.py",
    "outbox_tasks/relay/publishers.py",
)
UNIT, HERE, SITES = (f"tests/{room}/test_passwords.py" for room in ("unit", "integration", "contract"))
SERVERS = "tests/integration/test_problems_servers.py"

FAULTS = [
    Fault(PASSWORD, "return _checked(self.file.read_text()), 0.0",
        "return _checked(self.file.read_text()), self.seconds", UNIT, "A new file is not read for a minute."),
    Fault(PASSWORD, "return f\"the command {shlex.split(self.command)[0]}\"", "return f\"the command {self.command}\"",
        UNIT, "An error shows the secrets in a command's arguments."),
    Fault(LOGIN, "raise amqp.RecoverableConnectionError(str(refused)) from refused", "raise", HERE,
        "RabbitMQ's refusal of an old password ends a worker."),
    Fault(LOGIN, "            self.client.password = password.ask_anew()\n", "", HERE, "RabbitMQ's guest signs in."),
    Fault(SHARED, "        password.forget()\n", "", SITES, "A webhook's old token is sent again."),
    Fault("outbox_tasks/worker/install.py",
        "        app.add_defaults({\"broker_password\": settings.broker_password})\n",
        "        pass\n", HERE, "The workers of an application's app don't ask for the broker's password."),
    Fault("outbox_tasks/operating/problems/destinations.py", "                destination.password.ask_anew()\n",
        "                pass\n", SERVERS, "The doctor does not see that a password can't be had."),
]  # fmt: skip
