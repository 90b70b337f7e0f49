SELECT pg_try_advisory_xact_lock(hashtextextended(%(param_1)s::VARCHAR || %(param_2)s::VARCHAR, %(hashtextextended_1)s::INTEGER)) AS pg_try_advisory_xact_lock_1, set_config(%(set_config_2)s::VARCHAR, %(set_config_3)s::VARCHAR, true) AS set_config_1, set_config(%(set_config_5)s::VARCHAR, %(set_config_6)s::VARCHAR, true) AS set_config_4, set_config(%(set_config_8)s::VARCHAR, %(set_config_9)s::VARCHAR, true) AS set_config_7, (
  SELECT set_config(pg_catalog.pg_settings.name, %(param_3)s::VARCHAR, true) AS set_config_10
  FROM pg_catalog.pg_settings
  WHERE pg_catalog.pg_settings.name = %(param_4)s::VARCHAR
) AS anon_1;
-- hashtextextended_1 = 0
-- param_1 = 'outbox maintain '
-- param_2 = 'some_schema'
-- param_3 = '0'
-- param_4 = 'transaction_timeout'
-- set_config_2 = 'tcp_keepalives_idle'
-- set_config_3 = '30'
-- set_config_5 = 'tcp_keepalives_interval'
-- set_config_6 = '10'
-- set_config_8 = 'tcp_keepalives_count'
-- set_config_9 = '3'
