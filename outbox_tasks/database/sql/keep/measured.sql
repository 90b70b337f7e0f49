-- How many rows parts/sent.sql has, and the sum of their digests: see `archive.files.measured`. Each value has its length
-- before it, so that no two rows look alike.
SELECT count(*) AS rows, coalesce(sum(('x' || left(encode(sha256(convert_to(concat(
         coalesce(length(id)::text || ':' || id, '~'),
         coalesce(length(seq::text)::text || ':' || seq::text, '~'),
         coalesce(length(destination)::text || ':' || destination, '~'),
         coalesce(length(key)::text || ':' || key, '~'),
         coalesce(length(event_type)::text || ':' || event_type, '~'),
         coalesce(length(state)::text || ':' || state, '~'),
         coalesce(length(content_type)::text || ':' || content_type, '~'),
         coalesce(length(headers)::text || ':' || headers, '~'),
         coalesce(length(attempts::text)::text || ':' || attempts::text, '~'),
         coalesce(length(last_error_code)::text || ':' || last_error_code, '~'),
         coalesce(length(last_error)::text || ':' || last_error, '~'),
         coalesce(length(aggregate_type)::text || ':' || aggregate_type, '~'),
         coalesce(length(aggregate_id)::text || ':' || aggregate_id, '~'),
         coalesce(length(created_at::text)::text || ':' || created_at::text, '~'),
         coalesce(length(finished_at::text)::text || ':' || finished_at::text, '~'),
         coalesce(length(locked_by)::text || ':' || locked_by, '~'),
         coalesce(length(history)::text || ':' || history, '~')
       ), 'UTF8') || payload), 'hex'), 16))::bit(64)::bigint), 0) AS total
FROM (
  \ir parts/sent.sql
) AS shown
