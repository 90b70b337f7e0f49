-- Days. Part of schema.sql. A day is a range of 2^32 numbers: a partition of outbox_messages and one of outbox_journal. The
-- turn of the day moves the sequence to the next range, so writers need no clock. A transaction that is open then keeps its
-- earlier numbers. Only the owner of the tables can attach and drop partitions: these functions have his rights.
CREATE TABLE outbox_days (
  number   integer PRIMARY KEY,
  date     date NOT NULL,
  began_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  ended_at timestamptz,
  gone_at  timestamptz  -- its rows are dropped; its empty partitions go once no transaction is in the way
);
INSERT INTO outbox_days (number, date) VALUES (0, (clock_timestamp() AT TIME ZONE 'UTC')::date);

CREATE FUNCTION outbox_day_make(day integer) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
-- Makes the partitions of a day, if they are missing. False: another transaction is in the way. Writers wait for 25 ms at most.
DECLARE
  part text;
BEGIN
  PERFORM set_config('lock_timeout', '25ms', true);
  FOREACH part IN ARRAY ARRAY['messages', 'journal'] LOOP
    IF to_regclass(format('outbox_%s_%s', part, day)) IS NULL THEN
      EXECUTE format('CREATE TABLE outbox_%1$s_%2$s (LIKE outbox_%1$s INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', part, day);
      PERFORM outbox_private(format('outbox_%s_%s', part, day)::regclass);
      EXECUTE format('ALTER TABLE outbox_%1$s ATTACH PARTITION outbox_%1$s_%2$s FOR VALUES FROM (%3$s) TO (%4$s)',
                     part, day, day::bigint << 32, (day::bigint + 1) << 32);
    END IF;
  END LOOP;
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END
$$;

CREATE FUNCTION outbox_days_found() RETURNS void LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
-- Notes the days of the partitions that are there. After a dump without rows, or after somebody has emptied the tables, outbox_days
-- is empty.
DECLARE
  there CONSTANT integer[] := ARRAY(SELECT substring(c.relname FROM '[0-9]+$')::integer FROM pg_inherits i
                                    JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'outbox_messages'::regclass);
  reached CONSTANT bigint := coalesce(greatest(pg_sequence_last_value('outbox_seq'), (SELECT max(seq) FROM outbox_messages)), 0);
  -- The day of that number; if this day has no partition, the next day that has one.
  today CONSTANT integer := coalesce((SELECT min(day) FROM unnest(there) AS day WHERE day >= reached >> 32), reached >> 32);
BEGIN
  PERFORM outbox_day_make(today);
  INSERT INTO outbox_days (number, date, ended_at)
  SELECT DISTINCT day, (clock_timestamp() AT TIME ZONE 'UTC')::date, CASE WHEN day < today THEN clock_timestamp() END
  FROM unnest(there || today) AS day WHERE day <= today;
END
$$;

CREATE FUNCTION outbox_day_turn(ahead integer) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
-- Begins a new day (UTC) if the last one is over, and makes the partitions of the next days. Returns how many it made. However many
-- days have passed since the last run, one new day begins.
DECLARE
  today CONSTANT date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
  last outbox_days;
  reached bigint;
  made integer := 0;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtextextended('outbox days ' || 'outbox_days'::regclass::oid, 0));
  PERFORM outbox_days_found() WHERE NOT EXISTS (SELECT FROM outbox_days);
  SELECT * INTO last FROM outbox_days ORDER BY number DESC LIMIT 1;
  IF last.date < today AND to_regclass(format('outbox_journal_%s', last.number + 1)) IS NOT NULL THEN
    UPDATE outbox_days SET ended_at = clock_timestamp() WHERE number = last.number;
    INSERT INTO outbox_days (number, date) VALUES (last.number + 1, today) RETURNING * INTO last;
  END IF;
  -- The sequence moves to the first number of a new day; or to the last row, if it is behind the rows after a logical upgrade, a
  -- restore of some tables, or a setval. It moves before any partition is made: otherwise writers would get numbers of a
  -- partition that they can't see yet. It moves at once, even if this transaction rolls back; and never back.
  IF to_regclass(format('outbox_messages_%s', last.number)) IS NOT NULL THEN
    EXECUTE format('SELECT max(seq) FROM outbox_messages_%s', last.number) INTO reached;
  END IF;
  reached := greatest(reached, last.number::bigint << 32);
  IF coalesce(pg_sequence_last_value('outbox_seq'), 0) < reached THEN
    PERFORM setval('outbox_seq', reached, true);
  END IF;
  reached := (SELECT max(seq) FROM outbox_audit);
  IF coalesce(pg_sequence_last_value(pg_get_serial_sequence('outbox_audit', 'seq')), 0) < reached THEN
    PERFORM setval(pg_get_serial_sequence('outbox_audit', 'seq'), reached, true);
  END IF;
  FOR day IN last.number .. last.number + ahead LOOP
    made := made + (to_regclass(format('outbox_journal_%s', day)) IS NULL AND outbox_day_make(day))::integer;
  END LOOP;
  PERFORM outbox_day_drop(number) FROM outbox_days WHERE gone_at IS NOT NULL ORDER BY number LIMIT 1;
  BEGIN
    PERFORM set_config('lock_timeout', '25ms', true);
    PERFORM brin_summarize_new_values('outbox_ready_seq'), brin_summarize_new_values('outbox_held_seq');
  EXCEPTION WHEN lock_not_available THEN
    NULL;  -- a vacuum is there, which does the same
  END;
  RETURN made;
END
$$;

CREATE FUNCTION outbox_day_drop(day integer) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
-- Drops an ended day. False: another transaction is in the way, for which this does not wait, or a message of it is at work. Empty
-- partitions may stay: to take them away needs a moment in which no transaction has written or read. Each maintenance tries that.
DECLARE
  low CONSTANT bigint := day::bigint << 32;
  high CONSTANT bigint := (day::bigint + 1) << 32;
BEGIN
  IF NOT EXISTS (SELECT FROM outbox_days WHERE number = day AND ended_at IS NOT NULL) THEN
    RAISE EXCEPTION 'outbox_day_drop: % is no day that has ended', day USING ERRCODE = '22023';
  ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'outbox_day_drop needs READ COMMITTED' USING ERRCODE = '25001';
  END IF;
  EXECUTE format('LOCK TABLE ONLY outbox_messages_%1$s, ONLY outbox_journal_%1$s IN ACCESS EXCLUSIVE MODE NOWAIT', day);
  -- From here on no transaction writes in it. This look sees what was committed until then.
  IF EXISTS (SELECT FROM outbox_ready WHERE seq >= low AND seq < high)
     OR EXISTS (SELECT FROM outbox_waiting WHERE seq >= low AND seq < high)
     OR EXISTS (SELECT FROM outbox_held WHERE seq >= low AND seq < high)
     OR EXISTS (SELECT FROM outbox_leases CROSS JOIN LATERAL unnest(seqs) AS s WHERE s >= low AND s < high)
     OR EXISTS (SELECT FROM outbox_runs WHERE seq >= low AND seq < high)
     OR EXISTS (SELECT FROM outbox_dead WHERE seq >= low AND seq < high) THEN
    RETURN false;
  END IF;
  EXECUTE format('TRUNCATE outbox_messages_%1$s, outbox_journal_%1$s', day);
  UPDATE outbox_days SET gone_at = clock_timestamp() WHERE number = day;
  BEGIN
    PERFORM set_config('lock_timeout', '25ms', true);
    LOCK TABLE ONLY outbox_messages, ONLY outbox_journal IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('DROP TABLE outbox_messages_%1$s, outbox_journal_%1$s', day);
    DELETE FROM outbox_days WHERE number = day;
  EXCEPTION WHEN lock_not_available THEN
    NULL;
  END;
  RETURN true;
EXCEPTION WHEN lock_not_available THEN
  RETURN false;
END
$$;

REVOKE EXECUTE ON FUNCTION outbox_day_make(integer), outbox_day_turn(integer), outbox_day_drop(integer),
                           outbox_days_found() FROM PUBLIC;
