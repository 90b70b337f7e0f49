SELECT current_setting(%(current_setting_1)s::VARCHAR) AS version, pg_is_in_recovery() AS standby, current_setting(%(current_setting_2)s::VARCHAR) = %(current_setting_3)s::VARCHAR AS read_only, CURRENT_USER AS role, current_database() AS database;
-- current_setting_1 = 'server_version'
-- current_setting_2 = 'transaction_read_only'
-- current_setting_3 = 'on'
