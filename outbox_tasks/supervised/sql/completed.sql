-- A row, if this transaction has completed the task, or an earlier one that was committed: then the journal has it.
-- id; committed: whether an earlier one has, as its session says.
-- By the index of ids: max(seq) alone would read the numbers backwards, through all days.
WITH of_id AS MATERIALIZED (SELECT seq FROM :schema.outbox_messages WHERE id = :id::text::uuid)
SELECT true AS completed
WHERE current_setting('outbox.completed', true) = :id::text
   OR :committed::boolean AND EXISTS (
        SELECT FROM (SELECT max(seq) AS seq FROM of_id) AS m
        JOIN :schema.outbox_journal j ON j.seqs @> m.seq AND j.first BETWEEN (m.seq >> 16) << 16 AND m.seq)
