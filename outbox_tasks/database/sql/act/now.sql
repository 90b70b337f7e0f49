-- The time, by the database's clock.
SELECT now() AS now
