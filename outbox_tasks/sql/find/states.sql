-- The states of these messages, as far as they exist; of several with one id, the one that is at work first, then the last
-- one that was sent or discarded. ids. Indexes: outbox_messages (id), of each day; outbox_journal (seqs).
WITH
  \ir parts/named.sql
SELECT m.id, s.state, m.destination
\ir parts/states.sql
ORDER BY m.place
