-- Takes messages out that nobody wants any more: see outbox_discard. Their numbers go to the journal; if they are not to be
-- `kept`, the messages are deleted.
--
-- ids; states: array of `dead`, `waiting`; until: the latest time of death; kept; entry, person, reason, and what is
-- returned: as for redrive.sql.
WITH gone AS MATERIALIZED (
  SELECT g.id
  FROM :schema.outbox_discard(
    :ids::uuid[], 'waiting' = ANY (:states::text[]),
    CASE WHEN 'dead' = ANY (:states::text[]) THEN :until::timestamptz END,
    jsonb_build_object('what', 'discarded', 'by', :person::text, 'why', :reason::text, 'entry', :entry::bigint),
    NULL, concat_ws(': ', 'discarded by ' || :person::text, :reason::text), :kept::boolean) AS g(id)
), counted AS (
  UPDATE :schema.outbox_audit a SET count = a.count + (SELECT count(*) FROM gone) WHERE a.seq = :entry::bigint
)
SELECT id::text FROM gone
