"""Faults in what the relay's side of a broker remembers, sends and trusts."""

from tests.mutants import Fault

BROKER, TLS = "outbox_tasks/broker/broker.py", "outbox_tasks/broker/tls.py"
UNIT = "tests/unit/test_worker.py"
RELAY = "tests/integration/test_relay_broker.py"
TWO = "tests/integration/test_relay_broker.py"
OF_TLS = "tests/contract/test_tls.py"

FAULTS = [
    Fault(BROKER,
          '            raise self._unreachable(said(error).rstrip(".")) from error\n        self._slow_failures = 0\n',
          '            raise self._unreachable(said(error).rstrip(".")) from error\n', UNIT,
          "two slow failures in a week stop a worker for a moment"),
    Fault(BROKER, "                        producer.connection.collect(socket_timeout=socket.getdefaulttimeout())\n",
          "                        pass\n", UNIT, "after an outage each dead socket takes as long as the first one"),
    Fault("outbox_tasks/broker/stamp.py", "producer.channel.global_keyprefix + STAMP", "STAMP", RELAY,
          "with a key prefix a relay never finds its stamp"),
    Fault("outbox_tasks/broker/places.py", "    path = unquote(parts.path[1:])", "    path = parts.path[1:]", TWO,
          "the same virtual host counts as two brokers"),
    Fault(TLS, '!= "false" and cert_reqs != CERT_NONE', '!= "false"', OF_TLS, "ssl_cert_reqs=none is refused"),
    Fault(TLS, "{**sockets, **tls, **(given.get", "{**sockets, **(given.get", OF_TLS,
          "sentinels are asked without TLS"),
    Fault("outbox_tasks/broker/places.py", "if not colon or not port.isdecimal():", "if not colon:", TWO,
          "an IPv6 address with and without the usual port counts as two brokers"),
    Fault("outbox_tasks/broker/pinned.py", "settings.broker_password if is_relays else None",
          "settings.broker_password", "tests/unit/test_passwords.py", "another broker is told the relay's password"),
    Fault("outbox_tasks/broker/task_broker.py", "    except BaseException:\n", "    except Exception:\n",
          "tests/contract/test_celery_task.py", "after an interruption a late confirm counts for another task"),
]  # fmt: skip
