"""The shop's staff: they sign in, and may look at the outbox and act on it."""

import os
import secrets
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Request, status
from outbox_tasks.web import Page, Person, Role
from pydantic import BaseModel, Field

from orders import outbox

PASSWORD = os.environ.get("STAFF_PASSWORD", "")

router = APIRouter()


class Login(BaseModel):
    name: Annotated[str, Field(min_length=1)]
    password: Annotated[str, Field(min_length=1)]


@router.post("/login", status_code=status.HTTP_204_NO_CONTENT)
async def sign_in(login: Login, request: Request) -> None:
    if not secrets.compare_digest(login.password.encode(), PASSWORD.encode()):
        raise HTTPException(status.HTTP_401_UNAUTHORIZED)
    request.session["name"] = login.name


def visitor(scope: dict[str, Any]) -> Person | None:
    """Who visits the page: the audit has the name."""
    name = scope["session"].get("name")
    return Person(name, Role.ACT) if name else None


page = Page(outbox, who=visitor)
