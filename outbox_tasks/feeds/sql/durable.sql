-- The transaction waits for the disk, whatever its role's default is: its rows are deleted at the source afterwards.
SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'
