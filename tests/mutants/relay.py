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
LEASES = "tests/integration/test_leases.py"

FAULTS = [
    Fault(SETTLE, "                    ask = unhurried\n", "                    pass\n", UNIT,
          "a slow settle gets no more time"),
    Fault(SETTLE, "if failures and time", "if time", UNIT, "after a pause of the process a settle gives up at once"),
    Fault(SETTLE, "tried_before=failures > 0", "tried_before=False", UNIT,
          "a message that this process settled itself is noted as sent twice"),
    Fault(SETTLE, "not in ours and v.step is not Step.HANDED]", "not in ours]", UNIT,
          "a task that a quick worker has begun counts as lost"),
    Fault(SETTLE, "Step.HANDED, Step.DISCARDED) for", "Step.HANDED) for", UNIT,
          "an outage beside a message that its destination did not want opens the circuit"),
    Fault(SETTLE, "for verdict in lost if verdict.sent]", "for verdict in lost]", UNIT,
          "a message that was never sent is noted as sent twice"),
    Fault(SETTLE, "pause in enumerate(chain(PAUSES_SECONDS, repeat(PAUSES_SECONDS[-1])))",
          "pause in enumerate(repeat(PAUSES_SECONDS[0]))", UNIT, "the tries to settle come 20 times a second"),
    Fault(RETRY, "wait = backoff(settings, message.spent, at_least=",
          "wait = backoff(settings, message.attempts, at_least=", UNIT,
          "after a long outage the first failure of a message waits as long as its tenth"),
    Fault(RETRY, "backoff(settings, message.attempts), settings.breaker",
          "backoff(settings, message.spent), settings.breaker", UNIT, "in an outage the waits do not grow"),
    Fault(RETRY, "message.spent > configured.max_attempts", "message.spent >= configured.max_attempts", UNIT,
          "the last attempt is never made"),
    Fault(RETRY, "min(max(0.0, seconds), LONGEST_ASKED_SECONDS)",
          "max(min(LONGEST_ASKED_SECONDS, seconds), 0.0)", UNIT,
          "a destination that asks for NaN gets a message delayed for a day"),
    Fault(SEND, "(message.attempts > 1 and message.seq <", "(message.seq <", UNIT,
          "of new messages of a key only the last one is sent"),
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
    Fault(DRAIN, "            store.claims.end_drain(slot)", "            pass", TASKS + "::TestDrain",
          "the slot of a drain that has ended is taken for half a minute"),
    Fault(DRAIN, "deadline or stop():", "deadline:", TASKS + "::TestDrain", "a drain yields to nobody"),
    Fault(CLAIM, "        store.leases.give_back([single.token for single in singles])\n", "", CLAIMS,
          "what the broker refused waits until its lease runs out"),
    Fault(CLAIM, "        for slot in slots:\n            store.claims.end_drain(slot)\n", "", CLAIMS,
          "the slots of drains that the broker refused are taken for half a minute"),
    Fault(CLAIM, "            store.claims.hold_back(sorted(slow))\n", "", CLAIMS,
          "the singles of a slow destination hold all processes"),
    Fault(CLAIM, "        elif not count[name]:\n            store.traffic.untried(name, share.token)\n", "", BREAKER,
          "a destination that came back is tried a minute late, because nothing was due at first"),
    Fault(CLAIM, "store.claims.expired = store.claims.expired, Counter()", "_ = store.claims.expired, None", CLAIMS,
          "what was taken back is counted with each claim again"),
    Fault(CLAIM, "            room -= most\n", "", CLAIMS, "several destinations overfill the publish queue"),
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
          "tests/integration/test_traffic.py::TestAge", "a message that was not sent counts an attempt"),
    Fault(STORE + "leases.py", "verdict.wait + self.settings.queue_lease}", "verdict.wait}", LEASES + "::TestSettle",
          "the lease of a retry runs out as its task begins"),
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
    Fault(CLAIM, "        self._buried_at = now\n", "", CLAIMS, "each claim looks for unknown destinations"),
    Fault(STORE + "leases.py", "for limit in (None, self.settings.unhurried):", "for limit in (None,):",
          "tests/integration/test_too_large.py::test_a_single_that_takes_long_to_read_gets_more_time",
          "a payload that takes long to read is never sent singly"),
    Fault(STORE + "lanes.py", "self.life, self.start, self.free_since = life, start, LONG_AGO",
          "self.life, self.start = life, start", UNIT,
          "after a crash of the server keys that became free are not looked at"),
    Fault(CLAIM, "            store.traffic.return_unused(name, share.keyless + share.held + share.new - count[name])",
          "            pass", "tests/integration/test_traffic.py::TestRate",
          "a claim that finds less than is due uses up the rate"),
]  # fmt: skip
