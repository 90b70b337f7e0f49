-- The entry of the act with this token, and the digest of its form.
SELECT seq AS entry, facts ->> 'form' AS form FROM :schema.outbox_audit WHERE once = :token::uuid
