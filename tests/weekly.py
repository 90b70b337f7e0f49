"""Which tests only `make weekly` runs: what changes seldom, and what takes long."""

from __future__ import annotations

WEEKLY = """
examples/
unit/test_distribution.py
unit/test_deployment.py
unit/test_typing.py::test_what_applications_write_passes_strict_pyright
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/coming-over/
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/destinations/
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/how-to/
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/beyond
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/doctor
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/flower
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/install
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/metrics
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/production
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/tracing
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/troubleshooting
docs/test_pages.py::test_what_a_page_shows_can_be_run[docs/tutorials/kafka
docs/test_site.py
acceptance/test_watched.py::test_a_broker_that_falls_silent
integration/test_satellites.py::test_without_one
acceptance/test_web_browser.py::test_nobody_is_shut_out
acceptance/test_web_browser.py::test_the_database_may_go
fault/test_broker.py::TestBehindAProxy
fault/test_database.py::test_a_drain_goes_on
fault/test_database.py::test_a_failover_from_a_host_that_hangs
fault/test_inbox.py
fault/test_rabbitmq.py::test_all_is_delivered_by_the_nudge_alone_and_over_lost_connections[RabbitMQ 3
fault/test_sentinel.py
"""
"""How their names begin, from `tests/` on."""

ALWAYS = "tests/examples/test_fastapi_app.py"
"""The one example that `make test` runs, too."""

PREFIXES = tuple(f"tests/{line}" for line in WEEKLY.split("\n") if line)


def is_weekly(test: str) -> bool:
    """Whether the test of this name is one of them."""
    return test.startswith(PREFIXES) and not test.startswith(ALWAYS)
