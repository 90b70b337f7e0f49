"""The permissions of the page. Messages have no models: write through `Outbox`, and read through `outbox_all`."""

from __future__ import annotations

from django.db import models


class Page(models.Model):
    """Has no table. Django makes permissions only for models."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions = (
            ("look", "Can look at the outbox"),
            ("payload", "Can read payloads and headers of messages"),
            ("act", "Can redrive, discard, edit and cancel messages, and pause destinations"),
        )
