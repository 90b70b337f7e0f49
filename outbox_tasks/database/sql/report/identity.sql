-- Which outbox this is, for people: its database and schema, and the server's number, which stays the same after a failover. A
-- copy has another name, or is on another server. place: the schema; null: what the connection finds.
SELECT concat('database ', current_database(), ', schema ', coalesce(:place::text, (
         SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relname = 'outbox_ready' AND pg_table_is_visible(c.oid))),
         ', server ', (SELECT system_identifier FROM pg_control_system())) AS identity
