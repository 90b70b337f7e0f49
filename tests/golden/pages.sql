SELECT pg_relation_size(to_regclass(%(param_1)s)) / CAST(current_setting(%(current_setting_1)s::VARCHAR) AS BIGINT) AS anon_1;
-- current_setting_1 = 'block_size'
-- param_1 = 'outbox_messages'
