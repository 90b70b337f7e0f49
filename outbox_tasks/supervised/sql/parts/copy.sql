-- Whether a copy of a task says what its message says: see `model.content`.
left(encode(sha256(m.payload || convert_to(coalesce(m.headers ->> 'celery-message', ''), 'UTF8')), 'hex'), 16) = :content::text
