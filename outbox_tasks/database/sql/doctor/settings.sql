-- Settings of this connection: name, setting. names: of which, a text[].
SELECT name, setting FROM pg_settings WHERE name = ANY (:names::text[])
