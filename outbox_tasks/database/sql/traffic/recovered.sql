-- Closes the circuit of a destination that has answered, if only to refuse. destination.
\ir ../deliver/parts/recovered.sql
