-- These messages as a list shows them, as far as they exist; of several with one id, the one that is at work first, then the
-- last one that was sent or discarded. ids. Indexes: outbox_messages (id), of each day; outbox_journal (seqs).
WITH
  \ir parts/named.sql
SELECT m.id, s.state, m.destination, m.key, m.event_type, s.attempts, t.code AS last_error_code, left(t.error, 300) AS last_error,
       m.created_at, s.locked_until, d.dead_at, m.finished_at
\ir parts/states.sql
ORDER BY m.place
