# One image for every process of the relay; the command says which: docker-compose.yml has them all.

FROM python:3.13-slim AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
# The environment has no pip of its own: the image's pip installs into it from outside.
RUN python -m venv --without-pip /opt/venv
# The dependencies first, against an empty package, so that a change of code does not install them again.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir outbox_tasks && echo '__version__ = "0"' >outbox_tasks/__init__.py \
 && pip --python /opt/venv/bin/python install -c constraints.txt '.[destinations,flower,operation]'
COPY outbox_tasks outbox_tasks
RUN pip --python /opt/venv/bin/python install --no-deps --force-reinstall .

FROM python:3.13-slim
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
RUN useradd --system --uid 10001 --user-group --home-dir /app --shell /usr/sbin/nologin outbox
COPY --from=build /opt/venv /opt/venv
WORKDIR /app
COPY beat_schedule.py ./
COPY workers workers
USER outbox
# The relay's processes end in their own time after SIGTERM: running sends finish and are settled.
STOPSIGNAL SIGTERM
CMD ["outbox-tasks", "--help"]
