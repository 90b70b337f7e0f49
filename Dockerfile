# One image for every process of the relay; the command says which: workers/entrypoint.sh. docker-compose.yml has them all.
#
# EXTRAS: what is installed. The default has every destination, and all of operation but the Parquet files of the archive's
# export, which take 170 MB: --build-arg EXTRAS=destinations,flower,operation. For a relay that sends to Redis only:
# --build-arg EXTRAS=metrics,web

FROM python:3.13-slim AS dependencies
ARG EXTRAS=destinations,flower,metrics,mysql,tracing,web
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /build
COPY pyproject.toml constraints.txt README.md LICENSE ./
# The environment has no pip of its own: the image's pip installs into it from outside. The dependencies come with an empty
# package, so that a change of code does not install them again.
RUN python -m venv --without-pip /opt/venv \
 && mkdir outbox_tasks && echo '__version__ = "0"' >outbox_tasks/__init__.py \
 && pip --python /opt/venv/bin/python install -c constraints.txt ".[$EXTRAS]" \
 && pip --python /opt/venv/bin/python uninstall --yes outbox-tasks

FROM dependencies AS package
COPY outbox_tasks outbox_tasks
RUN pip --python /opt/venv/bin/python install --no-deps --root /package .

FROM python:3.13-slim
LABEL org.opencontainers.image.title=outbox-tasks \
      org.opencontainers.image.source=https://github.com/outbox-tasks/outbox_tasks \
      org.opencontainers.image.licenses=MIT
# tini: a process 1 that passes signals on. Python would ignore a stop that comes while it still starts.
RUN apt-get update -q && apt-get install -y -q --no-install-recommends tini && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --user-group --home-dir /app --shell /usr/sbin/nologin outbox
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 ALIVE_FILE=/tmp/alive
WORKDIR /app
COPY --from=dependencies /opt/venv /opt/venv
COPY --from=package /package /
COPY beat_schedule.py ./
COPY workers workers
USER 10001:10001
# Flower and the page. A worker also answers /livez, /readyz and /metrics, if OUTBOX_MONITOR_PORT says where.
EXPOSE 5555 8089
HEALTHCHECK --interval=15s --timeout=5s --retries=2 --start-period=30s CMD ["workers/healthy.sh"]
# The relay's processes end in their own time after SIGTERM: running sends finish and are settled.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "workers/entrypoint.sh"]
CMD ["--help"]
