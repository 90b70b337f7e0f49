"""The relay in a harness of others: hardbyte/postgresql-job-queue-benchmarking, which compares queues on PostgreSQL.

`adapter` is the process that the harness starts. `__main__` runs the harness's cells without Docker, on servers of our
own: PostgreSQL with the harness's configuration, and Valkey. The harness itself is not here. Its checkout is named on
the command line, and it needs Python 3.12:

    python3.12 -m venv venv && venv/bin/pip install -e '.[embedded]' psutil matplotlib pandas numpy
    venv/bin/python -m bench.harness all --harness ../postgresql-job-queue-benchmarking
"""
