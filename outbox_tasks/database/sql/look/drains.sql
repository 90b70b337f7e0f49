-- How many drains are at work for each destination: destination, count.
SELECT destination, count(*)::integer AS count FROM :schema.outbox_drains
WHERE holder IS NOT NULL AND until > now() GROUP BY destination
