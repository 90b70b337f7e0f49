-- Takes the marks off held messages of busy keys, of which the claim has locked what makes them busy: whoever ends that
-- marks the next one. What another has locked keeps its mark.
-- destinations, keys, firsts: one for each; firsts: numbers of the first messages that are behind it.
UPDATE :schema.outbox_held h SET free = false WHERE h.ctid = ANY (ARRAY(
  SELECT h.ctid
  FROM unnest(:destinations::text[], :keys::text[], :firsts::bigint[]) AS busy(destination, key, first)
  JOIN :schema.outbox_held h ON h.destination = busy.destination AND h.key = busy.key AND h.seq >= busy.first AND h.free
  FOR UPDATE OF h SKIP LOCKED))
