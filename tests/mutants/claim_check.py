"""Faults in the claim check."""

from __future__ import annotations

from tests.mutants import Fault

FILE = "outbox_tasks/destinations/claim_check/publisher.py"
UNIT = "tests/unit/test_claim_check.py"

FAULTS = [
    Fault(FILE, "if len(message.payload) > self._limit]", "if len(message.payload) >= self._limit]", UNIT,
          "a payload of just max_bytes is stored, and consumers get no body"),
    Fault(FILE, "        half = settings.send_timeout / 2", "        half = settings.send_timeout", UNIT,
          "storing and sending take twice the time limit, and the lease ends before the send"),
    Fault(FILE, "self._busy = [thread for thread in self._busy if thread.is_alive()]", "self._busy = []", UNIT,
          "a storage that hangs gets more threads at every attempt"),
    Fault(FILE, "self._busy = [thread for thread in self._busy if thread.is_alive()]", "pass", UNIT,
          "a storage that was used once is never used again"),
    Fault(FILE, "        finally:\n            waiting.clear()\n", "        finally:\n            pass\n", UNIT,
          "what was given up is stored later, one after the other, by a thread that nobody waits for"),
    Fault(FILE, "if stored else ())", ")", UNIT, "a publisher is asked to send nothing"),
    Fault(FILE, "shown = without_secrets(reason, self._url, most=500)", "shown = reason[:500]", UNIT,
          "the storage's password is in the error, on the page and in the log"),
    Fault(FILE, "part.unlink(missing_ok=True)", "pass", UNIT, "halves of files fill a storage that is full already"),
    Fault(FILE, "        part.replace(directory / name)\n", "        (directory / name).write_bytes(payload)\n", UNIT,
          "who reads the first delivery meets half a file at a repetition"),
    Fault("outbox_tasks/text.py", 'if scheme in CONTAINERS and ":" not in login:', "if False:", UNIT,
          "references to Azure's storages lack the container"),
    Fault("outbox_tasks/settings/destination.py", "        elif self.max_bytes >= LARGEST_CLAIM_CHECK_BYTES:",
          "        elif self.max_bytes > LARGEST_CLAIM_CHECK_BYTES:", UNIT,
          "a claim check that can never be used is taken"),
]  # fmt: skip
