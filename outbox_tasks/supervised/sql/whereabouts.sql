-- Why a copy can't begin: the state of its message, and who holds it or held it last; of several messages with one id, the one
-- that is at work first. No row: it is not of this outbox, or was forgotten. ids: its id.
WITH
  \ir ../../database/sql/find/parts/named.sql
SELECT s.state, coalesce(r.holder, m.holder) AS locked_by
\ir ../../database/sql/find/parts/states.sql
ORDER BY m.place
