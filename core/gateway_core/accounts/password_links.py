"""Links with which a person chooses a password: an invitation, or a recovery. Pure.

The user's object has the digest of one token. A person who presents it before it expires sets
the password, in the one write that also removes the digest; a new link replaces the digest.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from gateway_core.api.account import Role
from gateway_core.api.times import format_time, parse_time

LINK_HOURS = 72
MAX_LINK = 2048
"""Characters of what a person pastes as a link."""
LINK_PATH = "/password"
_TOKEN = re.compile(r"([a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)\.([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class IssuedLink:
    """A link as the user's object has it. `expires_at` is Unix seconds.

    `maker` names the GatewayUser who made it; None for an administrator of the cluster.
    """

    digest: str
    expires_at: float
    maker: str | None

    def is_opened_by(self, secret: str, now: float) -> bool:
        """Return whether the secret is the link's, and in time; in constant time."""
        return hmac.compare_digest(_digest(secret), self.digest) and now < self.expires_at


class NewLink(NamedTuple):
    """The token of a new link, which nothing keeps, and the field of the user's spec."""

    token: str
    field: dict[str, str]


def make_link(user: str, now: datetime, maker: str | None = None) -> NewLink:
    """Return a new link for the user of this name, made by the user `maker`."""
    secret = secrets.token_urlsafe(32)
    field = {
        "digest": _digest(secret),
        "expirationTime": format_time(now + timedelta(hours=LINK_HOURS)),
    }
    if maker is not None:
        field["createdBy"] = maker
    return NewLink(f"{user}.{secret}", field)


def locate_link(base_url: str, token: str) -> str:
    """Return the address: its fragment is sent to no server, so no log of one has the token."""
    return f"{base_url.rstrip('/')}{LINK_PATH}#{token}"


def parse_link(text: str) -> tuple[str, str] | None:
    """Return user and secret of a link, or of its token alone; None where it is none."""
    found = _TOKEN.fullmatch(text.strip().rpartition("#")[2]) if len(text) <= MAX_LINK else None
    return None if found is None else (found[1], found[2])


def read_link(spec: Mapping[str, Any]) -> IssuedLink | None:
    """Return the link of a GatewayUser's spec."""
    field = spec.get("passwordLink")
    if field is None:
        return None
    expires = parse_time(field["expirationTime"]).timestamp()
    return IssuedLink(field["digest"], expires, field.get("createdBy"))


Roles = tuple[tuple[str, Role], ...]


def may_link(maker: Roles, person: Roles, *, has_password: bool) -> bool:
    """Return whether a user with the roles `maker` may make a link for the `person`.

    The link opens every account of the person, so the maker has to own all of them. An admin may
    do it for people without a password who own none.
    """
    own = dict(maker)
    return bool(person) and all(
        own.get(account) == "owner"
        or (own.get(account) == "admin" and role != "owner" and not has_password)
        for account, role in person
    )


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
