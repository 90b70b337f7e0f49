"""Faults in the pipe: claim, take, send, judge, settle."""

from tests.mutants import Fault

RELAY, STORE = "outbox_tasks/relay/", "outbox_tasks/relay/store/"
SETTLE, RETRY, SEND = RELAY + "settle.py", RELAY + "retry.py", RELAY + "send.py"
CLAIM, DRAIN, PUBLISH = RELAY + "claim.py", RELAY + "drain.py", RELAY + "publish.py"
UNIT = "tests/unit/test_settle.py tests/unit/test_retry.py tests/unit/test_order.py tests/unit/test_lanes.py"
CLAIMS = "tests/integration/test_claim.py"
BREAKER = "tests/integration/test_breaker.py"
RACE = "tests/storage/test_keys.py::test_in_a_race_all_that_is_committed_arrives_and_each_key_in_its_order"
KEYS = f"tests/storage/test_keys.py --deselect={RACE}"
DRAINS = "tests/storage/test_drain.py"
TASKS = "tests/integration/test_tasks.py"
TROUBLE = "tests/integration/test_store_trouble.py::test_a_settle_that_was_too_slow_gets_more_time"
LEASES = "tests/integration/test_leases.py"

FAULTS = [
    Fault(STORE + "leases.py", '"deliver/sent.sql", limit, ', '"deliver/sent.sql", None, ', TROUBLE,
          "a settle that was too slow gets no more time, and what was sent is sent again"),
    Fault(SETTLE, "tried_before=failures > 0", "tried_before=False", UNIT,
          "a message that this process settled itself is noted as sent twice"),
    Fault(SETTLE, "not in ours and v.step is not Step.HANDED]", "not in ours]", UNIT,
          "a task that a quick worker has begun counts as lost"),
    Fault(RETRY, "wait = backoff(settings, message.spent, at_least=",
          "wait = backoff(settings, message.attempts, at_least=", UNIT,
          "after a long outage the first failure of a message waits as long as its tenth"),
    Fault(RETRY, "message.spent > configured.max_attempts", "message.spent >= configured.max_attempts", UNIT,
          "the last attempt is never made"),
    Fault(SEND, "is Step.DEAD and blocks and message.key is not None", "is Step.DEAD and blocks", UNIT,
          "a dead letter without a key holds up all messages without a key"),
    Fault(SEND, "if outcomes and time.monotonic() > deadline:\n            break", "if False:\n            break", UNIT,
          "a drain sends on after its lease has run out"),
    Fault(STORE + "lanes.py",
          "        if previous_life not in (None, life):\n            self.clear()\n            return\n", "", UNIT,
          "after a crash of the server rows are skipped for a minute"),
    Fault(STORE + "lanes.py", "            self.late = set(snapshot.open)\n", "            self.late = set()\n", DRAINS,
          "what an open transaction commits later is found a minute late"),
    Fault(PUBLISH, "        store.leases.give_back([token])\n", "", BREAKER,
          "what a shut destination may not get waits until its lease runs out"),
    Fault(DRAIN, "deadline or stop():", "deadline:", TASKS + "::TestDrain", "a drain yields to nobody"),
    Fault(CLAIM, "        store.leases.give_back([single.token for single in singles])\n", "", CLAIMS,
          "what the broker refused waits until its lease runs out"),
    Fault(CLAIM, "            store.claims.hold_back(sorted(slow))\n", "", CLAIMS,
          "the singles of a slow destination hold all processes"),
    Fault(STORE + "takes.py", "        self._traffic.return_unused(destination, most - len(batch.messages))\n", "",
          CLAIMS,
          "a drain of few messages uses up the rate of a whole batch"),
    Fault(STORE + "takes.py",
          "batch = kind(destination, 1, NO_PAYLOAD, None)",
          "batch = kind(destination, 1, largest, None)",
          "tests/integration/test_too_large.py",
          "one payload that can't be read in time stops its destination"),
    Fault(STORE + "traffic.py", "self._count_processes() - others)", "self._count_processes())",
          "tests/integration/test_traffic.py::TestSlots", "one slow destination holds all processes"),
    Fault(STORE + "leases.py", "message.attempts if verdict.sent else message.attempts - 1", "message.attempts",
          "tests/integration/test_too_large.py", "a message that was not sent counts an attempt"),
    Fault(STORE + "claims.py", "if not self.settings.dead_blocks(name)]", "if self.settings.dead_blocks(name)]", KEYS,
          "dead letters that block let the messages behind them go"),
    Fault(STORE + "claims.py", "_no_lease_ends_before = looked.at - FREED_LATELY", "_no_lease_ends_before = looked.at",
          LEASES + "::TestALeaseThatRanOut",
          "a lease that ran out while its settle was rolled back is found a minute late"),
    Fault(RELAY + "publishers.py",
          "        try:\n            return self._published(publisher, messages)\n        finally:\n"
          "            self._free.append(publisher)\n",
          "        outcomes = self._published(publisher, messages)\n        self._free.append(publisher)\n"
          "        return outcomes\n",
          "tests/contract/test_loading.py", "after an error its publisher is lost, with the connection"),
]  # fmt: skip
