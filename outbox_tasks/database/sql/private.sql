-- Nobody but the owner has rights on the tables until the owner grants some. Part of schema.sql.

CREATE FUNCTION outbox_private(made regclass) RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
-- Takes away the rights that default privileges gave to other roles on a new table, view or sequence. Supabase has such privileges
-- for everybody.
DECLARE
  other text;
BEGIN
  FOR other IN
    SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
    FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS a WHERE c.oid = made AND a.grantee <> c.relowner
  LOOP
    EXECUTE format('REVOKE ALL ON TABLE %s FROM %s CASCADE', made, other);
  END LOOP;
END
$$;

CREATE FUNCTION outbox_messages_keep() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
-- Only the owner can change a message that has ended, that is, one in the journal. Other roles may rewrite a task that runs, and
-- edit or purge a dead letter.
BEGIN
  IF EXISTS (SELECT FROM outbox_journal j WHERE j.first BETWEEN OLD.seq >> 32 << 32 AND OLD.seq AND j.seqs @> OLD.seq)
     AND NOT pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
    RAISE EXCEPTION 'message % has ended, and the archive is not changed', OLD.id USING ERRCODE = '42501';
  END IF;
  RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
END
$$;
CREATE TRIGGER outbox_messages_keep BEFORE UPDATE OR DELETE ON outbox_messages
FOR EACH ROW EXECUTE FUNCTION outbox_messages_keep();

DO $$
DECLARE
  revoked text;
BEGIN
  PERFORM outbox_private(c.oid) FROM pg_class c
  WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema()))
    AND c.relname LIKE 'outbox\_%' AND c.relkind IN ('r', 'p', 'v', 'S')
    -- A feed that was here before keeps its rights, and its inbox too: somebody granted them.
    AND c.relname NOT IN ('outbox_feed', 'outbox_feed_number')
    AND (c.relname <> 'outbox_inbox' OR to_regclass('outbox_feed') IS NULL);
  FOR revoked IN
    SELECT format('REVOKE ALL ON FUNCTION %s FROM %s CASCADE', f.oid::regprocedure, a.grantee::regrole)
    FROM pg_proc f CROSS JOIN LATERAL aclexplode(f.proacl) AS a
    WHERE f.pronamespace = to_regnamespace(quote_ident(current_schema())) AND f.proname LIKE 'outbox\_%'
      AND f.proname <> 'outbox_feed_number' AND a.grantee NOT IN (0, f.proowner)
  LOOP
    EXECUTE revoked;
  END LOOP;
END
$$;

-- A transaction that has written may not see a partition that is attached after that. So a day is made long before its first
-- number is given out, also in a new outbox.
SELECT outbox_day_make(1), outbox_day_make(2);
