-- The server: its version, whether it takes writes, our role and our database.
SELECT current_setting('server_version') AS version, pg_is_in_recovery() AS standby,
       current_setting('transaction_read_only') = 'on' AS read_only, current_user AS role, current_database() AS database
