"""The permissions of the page and of the admin, and what the admin shows. Nothing here has a table.

Write messages through `Outbox`. To read them in a program, ask for few: by their id.
"""

from __future__ import annotations

from django.db import models

from outbox_tasks.django.permissions import PERMISSIONS


class Page(models.Model):
    """Django makes permissions only for models."""

    class Meta:
        managed = False
        default_permissions = ()
        permissions = PERMISSIONS


class Message(models.Model):
    """A message as the view `outbox_all` has it."""

    id = models.UUIDField(primary_key=True)
    event_type = models.TextField()
    destination = models.TextField()
    key = models.TextField(null=True)
    state = models.TextField()
    attempts = models.IntegerField()
    last_error_code = models.TextField("error code", null=True)
    last_error = models.TextField("error", null=True)
    created_at = models.DateTimeField("written")
    dead_at = models.DateTimeField("dead since", null=True)
    finished_at = models.DateTimeField("finished", null=True)

    class Meta:
        managed = False
        default_permissions = ()
        db_table = "outbox_all"

    def __str__(self) -> str:
        return f"{self.event_type} → {self.destination} {self.id}"


class DeadLetter(Message):
    """A message that could not be delivered."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = "dead letter"
