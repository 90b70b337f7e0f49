"""The pipe: how messages get from the tables to their destinations. Plain functions over a `Store`; Celery is not here.

A message's way, with the file of each step:

1. `writing/` inserts it, in the application's transaction: a row of `outbox_messages`, and one of `outbox_ready`
   (of `outbox_waiting`, if it is due later and has no key).
2. A nudge after the commit, or beat, starts the claim task: `worker/claim_task.py`.
3. `claim.py` looks what is due. Of few messages each becomes a single, with a lease of its own; of many, drains get
   slots. `broker/broker.py` sends the tasks.
4. A single: `worker/publish_task.py` calls `publish.py`. Its begin compares the lease and sets it to begun.
   Many: `worker/drain_task.py` calls `drain.py`. Its take leases a batch and begins its send in one statement.
5. `send.py` keeps the order of each key, and calls the publisher (`publishers.py`, `destinations/`). `retry.py` judges
   each outcome: sent, again at some time, or dead.
6. `settle.py` records the verdicts under the lease: into the journal, back to a table that waits, or to the dead.

`store/` has the statements of these steps: `claims`, `takes`, `leases`, `traffic`. The states of a message are told in
`sql/schema.sql`, the take of keys in `sql/keys.sql`. `send_all.py` is the whole pipe in one process.
"""
