"""Faults of the page."""

from tests.mutants import Fault

WEB = "outbox_tasks/web"
UNIT = "tests/unit/test_web.py"
MESSAGES = "tests/integration/test_web_messages.py"

FAULTS = [
    Fault(f"{WEB}/page.py", "if self._read_only and route.role is Role.ACT:",
        "if self._read_only and request.method == 'PUT':", f"{UNIT}::TestWhatPeopleMayDo",
        "A read-only page changes things."),
    Fault(f"{WEB}/forms.py", 'is_own = site in ("same-origin", "none")', 'is_own = site != "cross-site"',
        f"{UNIT}::TestWhatPeopleMayDo", "A form from another host of the same domain is taken."),
    Fault(f"{WEB}/mount.py", '"lax", https_only=is_https', '"lax", https_only=False', f"{UNIT}::TestWhoMayComeIn",
        "Behind a proxy with TLS the session's cookie is also sent in plain text."),
    Fault(f"{WEB}/mount.py", "passwords = sorted((name, user.password) for name, user in settings.web_users.items())",
        "passwords = sorted(settings.web_users)", f"{UNIT}::TestWhoMayComeIn",
        "A changed password leaves all sessions alive."),
    Fault(f"{WEB}/sign_in.py", "ip_network((parsed, 64), strict=False)", "ip_network((parsed, 128), strict=False)",
        f"{UNIT}::TestWhoMayComeIn", "With an IPv6 network somebody tries as many passwords as they like."),
    Fault(f"{WEB}/sign_in.py", 'r"/(?![/\\\\])[!-\\[\\]-~]*"', 'r"/[!-\\[\\]-~]*"', f"{UNIT}::TestWhoMayComeIn",
        "Signing in leads to another site."),
    Fault(f"{WEB}/render.py", "return printable(value) if isinstance(value, str)",
        "return value if isinstance(value, str)", f"{UNIT}::TestTexts", "A writer's text turns a line round."),
    Fault(f"{WEB}/templates/errors.html", "{% if visit.may(Role.PAYLOAD) %}{{ group.last_error|cut(500) }}{% endif %}",
        "{{ group.last_error|cut(500) }}", f"{MESSAGES}::TestMessage",
        "Errors that quote contents are shown to people who may not see contents."),
]  # fmt: skip
