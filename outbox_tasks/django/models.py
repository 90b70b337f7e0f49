"""The permissions of the page. Nothing here has a table."""

from __future__ import annotations

from django.db import models

from outbox_tasks.django.permissions import PERMISSIONS


class Page(models.Model):
    """Django makes permissions only for models."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions = PERMISSIONS
