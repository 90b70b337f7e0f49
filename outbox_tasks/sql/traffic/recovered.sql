-- A destination has answered, if only to refuse. destination.
\ir ../deliver/parts/recovered.sql
