-- How many attempts of these messages don't count against max_attempts. seqs.
SELECT seq, spared FROM :schema.outbox_trouble WHERE seq = ANY (:seqs::bigint[]) AND spared > 0
