SELECT set_config(%(set_config_2)s::VARCHAR, %(limit)s::VARCHAR, %(set_config_3)s) AS set_config_1;
-- set_config_2 = 'statement_timeout'
-- set_config_3 = True
