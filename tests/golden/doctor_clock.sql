SELECT CAST(EXTRACT(epoch FROM clock_timestamp()) AS FLOAT) AS now;
