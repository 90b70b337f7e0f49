CREATE OR REPLACE FUNCTION :schema.outbox_archive_share() RETURNS integer LANGUAGE plpgsql AS $$
-- Gives to the archive's partitions the rights that roles have on the archive, as far as they lack them; returns how many.
-- Who works day by day reads and deletes in the partitions themselves, and a new partition has no rights of its own.
DECLARE
  lacking record;
  given integer := 0;
BEGIN
  FOR lacking IN
    SELECT i.inhrelid::regclass AS partition, mine.privilege_type AS privilege,
           CASE WHEN mine.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(mine.grantee)) END AS role
    FROM pg_inherits i
    JOIN pg_class p ON p.oid = i.inhrelid
    JOIN pg_class archive ON archive.oid = i.inhparent, aclexplode(archive.relacl) mine
    WHERE archive.oid = format('%I.outbox_archive', :schema_literal)::regclass AND mine.grantee <> p.relowner
      AND NOT EXISTS (SELECT FROM aclexplode(p.relacl) theirs
                      WHERE (theirs.grantee, theirs.privilege_type) = (mine.grantee, mine.privilege_type))
  LOOP
    EXECUTE format('GRANT %s ON %s TO %s', lacking.privilege, lacking.partition, lacking.role);
    given := given + 1;
  END LOOP;
  RETURN given;
END
$$;

CREATE OR REPLACE FUNCTION :schema.outbox_archive_drop(partition text) RETURNS void LANGUAGE plpgsql AS $$
-- Drops a table that was a partition: one that was taken out to be dropped, or a former default one.
BEGIN
  IF partition !~ '^outbox_archive_(gone_\d{8}|rest_\d{20})$' THEN
    RAISE EXCEPTION 'outbox_archive_drop: % is no former partition of the archive', partition USING ERRCODE = '22023';
  END IF;
  EXECUTE format('DROP TABLE IF EXISTS %I.%I', :schema_literal, partition);
END
$$;

-- The last section: it applies to the functions as they are above, and to those of earlier migrations.
-- Only the owner of the archive can attach and drop partitions. These functions do it with the rights of their owner, for
-- the roles that `init --relay` lets call them. If the archive has another owner than the functions, they stay as they were.
DO $$
DECLARE
  called text;
BEGIN
  FOR called IN
    SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_class archive ON archive.relnamespace = p.pronamespace
    WHERE archive.oid = format('%I.outbox_archive', :schema_literal)::regclass AND p.proname LIKE 'outbox\_archive\_%'
      AND pg_has_role(p.proowner, archive.relowner, 'USAGE')
  LOOP
    EXECUTE 'ALTER FUNCTION ' || called || ' SECURITY DEFINER SET search_path = pg_catalog, pg_temp';
    EXECUTE 'REVOKE EXECUTE ON FUNCTION ' || called || ' FROM PUBLIC';
  END LOOP;
END
$$;
