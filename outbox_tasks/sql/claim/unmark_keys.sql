-- Takes the marks off held messages of busy keys, of which the claim has locked what makes them busy: whoever ends that
-- marks the next one. destinations, keys: one for each. What another has locked keeps its mark.
UPDATE :schema.outbox_held h SET free = false WHERE h.ctid = ANY (ARRAY(
  SELECT h.ctid FROM unnest(:destinations::text[], :keys::text[]) AS busy(destination, key)
  JOIN :schema.outbox_held h ON h.destination = busy.destination AND h.key = busy.key AND h.free
  FOR UPDATE OF h SKIP LOCKED))
