SELECT true AS anon_1
WHERE current_setting(%(current_setting_1)s::VARCHAR, true) = %(id)s::VARCHAR OR %(committed)s
  AND NOT (EXISTS (
  SELECT outbox_messages.id
  FROM outbox_messages
  WHERE outbox_messages.id = ANY (ARRAY[CAST(%(id)s::VARCHAR AS UUID)])
));
-- current_setting_1 = 'outbox.completed'
