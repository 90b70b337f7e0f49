-- Makes the partitions of the next days, and begins a new day if the last one is over. ahead: days. Returns how many it made.
SELECT :schema.outbox_day_turn(:ahead::integer) AS made
