"""Faults in passwords that change: where they come from, who asks for them, and what a refusal means."""

from tests.mutants import Fault

PASSWORD, LOGIN, SHARED = (
    "outbox_tasks/settings/password.py",
    "outbox_tasks/broker/login.py",
    "outbox_tasks/relay/publishers.py",
)
ENGINE = "outbox_tasks/database/engine.py"
UNIT, HERE, SITES = (f"tests/{room}/test_passwords.py" for room in ("unit", "integration", "contract"))
SERVERS = "tests/integration/test_problems_servers.py"

FAULTS = [
    Fault(PASSWORD, "if (seconds := end - time.monotonic()) > 0:", "if (seconds := end - time.monotonic()) < 0:", UNIT,
        "A function is asked again for each connection, or never."),
    Fault(PASSWORD, "return _checked(self.file.read_text()), 0.0",
        "return _checked(self.file.read_text()), self.seconds", UNIT, "A new file is not read for a minute."),
    Fault(PASSWORD, "return f\"the command {shlex.split(self.command)[0]}\"", "return f\"the command {self.command}\"",
        UNIT, "An error shows the secrets in a command's arguments."),
    Fault(PASSWORD, "    if done.returncode:", "    if done.returncode < 0:", UNIT,
        "What a command prints before it fails is a password."),
    Fault(PASSWORD, "        self.forget()\n        return self.ask()", "        return self.ask()", HERE,
        "After a refusal the old answer is given again."),
    Fault(PASSWORD, "if not (password := text.strip()):", "if not (password := text):", UNIT,
        "The end of the line is a part of the password."),
    Fault(ENGINE, "        if error.pgconn is None or not error.pgconn.used_password:  # it was not refused for its "
        "password\n            raise\n", "        raise\n", HERE,
        "A password that PostgreSQL refuses is an outage at once."),
    Fault(LOGIN, "return (self._user, password) if self._user else (password,)", "return (password,)", SITES,
        "The user of the URL is not who signs in."),
    Fault(LOGIN, "raise amqp.RecoverableConnectionError(str(refused)) from refused", "raise", HERE,
        "RabbitMQ's refusal of an old password ends a worker."),
    Fault(LOGIN, "            self.client.password = password.ask_anew()\n", "", HERE, "RabbitMQ's guest signs in."),
    Fault(LOGIN, "if \";\" in url:", "if \";\" in url and not url:", UNIT,
        "After a failover kombu has no password for RabbitMQ."),
    Fault(SHARED, "        password.forget()\n", "", SITES, "A webhook's old token is sent again."),
    Fault("outbox_tasks/destinations/http/publisher.py", "self._hidden = [token, *self._options.hidden]",
        "self._hidden = self._options.hidden", SITES, "An endpoint's answer shows the token."),
    Fault("outbox_tasks/destinations/kafka/publisher.py",
        "    text = password.ask()  # without a token, librdkafka would wait for ten seconds\n", "    text = \"\"\n",
        SITES,
        "Without a token each producer takes ten seconds, and nobody says why."),
    Fault("outbox_tasks/worker/install.py",
        "        app.add_defaults({\"broker_password\": settings.broker_password})\n",
        "        pass\n", HERE, "The workers of an application's app don't ask for the broker's password."),
    Fault("outbox_tasks/operating/problems/destinations.py", "                destination.password.ask_anew()\n",
        "                pass\n", SERVERS, "The doctor does not see that a password can't be had."),
]  # fmt: skip
