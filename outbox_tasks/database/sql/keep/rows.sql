-- A lot of what was sent or discarded, in the order of the numbers: see parts/sent.sql.
\ir parts/sent.sql
ORDER BY m.seq
