DELETE FROM outbox_tallies
WHERE outbox_tallies.minute < now() - %(keep)s * interval '1 second';
