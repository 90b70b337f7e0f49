UPDATE outbox_messages
SET locked_by=%(holder)s::VARCHAR,
  locked_until=(clock_timestamp() + %(hold)s * interval '1 second'),
  lease=%(token)s::UUID,
  begun=true,
  outages=%(outages)s::INTEGER,
  handed_at=coalesce(outbox_messages.handed_at, clock_timestamp())
WHERE outbox_messages.id = ANY (ARRAY[%(id)s::UUID])
  AND outbox_messages.begun = (outbox_messages.handed_at IS NULL)
  AND left(encode(sha256(outbox_messages.payload || convert_to(coalesce((outbox_messages.headers ->> 'celery-message'), ''), 'UTF8')), 'hex'), 16) = %(content)s::VARCHAR
  AND CASE
    WHEN ((outbox_messages.headers ->> 'celery-message') IS NULL) THEN CAST(outbox_messages.id AS TEXT) = %(made)s::VARCHAR
    ELSE ((strpos((outbox_messages.headers ->> 'celery-message'), '"task": ') > 0) IS false OR strpos((outbox_messages.headers ->> 'celery-message'), %(task)s::VARCHAR) > 0 AND strpos((outbox_messages.headers ->> 'celery-message'), %(task_id)s::VARCHAR) > 0)
  AND (strpos((outbox_messages.headers ->> 'celery-message'), '"compression": "') > 0 OR left(encode(sha256(outbox_messages.payload), 'hex'), 16) = %(body)s::VARCHAR OR %(body)s::VARCHAR = '') END
  AND (SELECT set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, %(set_config_4)s) AS set_config_1) = %(param_1)s::VARCHAR
RETURNING outbox_messages.attempts, outbox_messages.destination, outbox_messages.key, greatest(least(date_part('epoch', clock_timestamp()) - date_part('epoch', outbox_messages.handed_at), 1e10), -1e10) AS greatest_1;
-- outages = 0
-- param_1 = 'off'
-- set_config_2 = 'synchronous_commit'
-- set_config_3 = 'off'
-- set_config_4 = True
