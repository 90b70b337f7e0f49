-- Takes the marks off held messages of busy keys, of which the claim has locked what makes them busy: whoever ends that
-- marks the next one. What another has locked keeps its mark. held: where these messages are.
UPDATE :schema.outbox_held h SET free = false WHERE h.ctid = ANY (ARRAY(
  SELECT h.ctid FROM :schema.outbox_held h WHERE h.ctid = ANY (:held::tid[]) AND h.free FOR UPDATE SKIP LOCKED))
