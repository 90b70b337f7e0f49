SET LOCAL idle_in_transaction_session_timeout = 0;
