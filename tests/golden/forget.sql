DELETE FROM outbox_inbox
WHERE outbox_inbox.ctid = ANY (array((
  SELECT past.ctid
  FROM outbox_inbox AS past
  WHERE past.received_at < now() - %(keep)s * interval '1 second'
  ORDER BY past.received_at
  LIMIT %(size)s::INTEGER
  FOR UPDATE SKIP LOCKED
)));
