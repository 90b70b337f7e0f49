-- Deletes a row that was copied.
--
-- number; id: of the row that was read. A database that was restored may have given the number to another one. Of an id
-- that is no text something else was read.
DELETE FROM :schema.outbox_feed WHERE number = :number AND (id = :id OR instr(:id, char(65533)))
