-- What a form of the page asks for is done once, even if the form is sent twice: its entry has the form's token.
ALTER TABLE :schema.outbox_audit ADD COLUMN once uuid;
CREATE UNIQUE INDEX outbox_audit_once ON :schema.outbox_audit (once);

-- People's acts that go on in the background, while there is something left to do. The audit has the rest: who, why, and
-- how many messages were changed.
CREATE TABLE :schema.outbox_acts (
  act          bigint PRIMARY KEY REFERENCES :schema.outbox_audit ON DELETE CASCADE,
  wanted       jsonb NOT NULL,        -- which messages: a filter, or ids
  as_of        timestamptz NOT NULL,  -- only messages that were there, or dead, by then
  rate         double precision,      -- messages a second
  most         bigint,
  total        bigint,                -- how many there were, if all were counted
  lease        uuid,
  locked_by    text,
  locked_until timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);
