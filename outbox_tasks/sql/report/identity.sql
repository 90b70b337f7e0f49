-- Which outbox this is, for people: its database and schema, with two numbers in brackets: that of the server, which stays over
-- a failover, and that of the database. A copy by a dump or a template has others. place: the schema; null: what the
-- connection finds.
SELECT concat('database ', current_database(), ', schema ', coalesce(:place::text, (
         SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relname = 'outbox_ready' AND pg_table_is_visible(c.oid))),
         ' (', (SELECT system_identifier FROM pg_control_system()), '/',
         (SELECT oid FROM pg_database WHERE datname = current_database()), ')') AS identity
