-- Takes messages back that are not being sent. Returns a row for each of them.
--
-- ids: an array of uuid, as text. One that is just being claimed is skipped: see outbox_cancel.
SELECT :schema.outbox_cancel(:ids::text::uuid[])
