"""Sign-in of users with a password, and who a session stands for."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from gateway_core.accounts.authentication import find_current
from gateway_core.accounts.passwords import PasswordChecker
from gateway_core.accounts.records import UserRecord
from gateway_core.accounts.sessions import Session, SessionStore
from gateway_core.accounts.throttle import Allowance, Throttle
from gateway_core.api.errors import GatewayError
from gateway_core.kube.informer import Cache
from gateway_core.kube.read_through import ReadThrough

SIGN_IN_ALLOWANCES: Mapping[str, Allowance] = {
    "sign-in-pair": Allowance(10, 900),
    "sign-in-email": Allowance(100, 3600),
}
"""Failures of one address at one email, and at one email; `sign-in-address` is a setting."""

_log = structlog.get_logger(__name__)


class SignInRefused(GatewayError):
    """Wrong email or password; one text for all reasons."""

    status = 401
    code = "sign_in_refused"

    def __init__(self) -> None:
        super().__init__("The email address or the password is not right.")


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session, its user as of now, and the token of its cookie."""

    user: UserRecord
    session: Session
    token: str


class EmailIndex:
    """Users by email in lower case; follows the table of users."""

    def __init__(self, table: Cache[UserRecord]) -> None:
        self._table = table
        self._names: dict[str, set[str]] = {}
        self._email_of: dict[str, str] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def find(self, email: str) -> UserRecord | None:
        """The one user with this email; None where there is none, or several."""
        found = self.list_of(email)
        return found[0] if len(found) == 1 else None

    def list_of(self, email: str) -> list[UserRecord]:
        """All users with this email."""
        found = map(self._table.get, self._names.get(email.strip().lower(), ()))
        return [user for user in found if user is not None]

    def _follow(self, name: str) -> None:
        email = self._email_of.pop(name, None)
        if email is not None:
            self._names[email].discard(name)
            if not self._names[email]:
                del self._names[email]
        record = self._table.get(name)
        if record is not None:
            email = self._email_of[name] = record.email.lower()
            self._names.setdefault(email, set()).add(name)


class SignIn:
    """Signs users in and out."""

    def __init__(
        self,
        users: ReadThrough[UserRecord],
        passwords: PasswordChecker,
        sessions: SessionStore,
        throttle: Throttle,
    ) -> None:
        self._users = users
        self._emails = EmailIndex(users.table)
        self._passwords = passwords
        self._sessions = sessions
        self._throttle = throttle

    async def sign_in(self, email: str, password: str, address: str) -> str:
        """The token of a new session. `address` is the client's, for the limits.

        Raises SignInRefused, TooManyCalls, Unavailable.
        """
        folded = email.strip().lower()
        await self._throttle.count("sign-in-address", address)
        pair = f"{address} {folded}"
        await self._throttle.count("sign-in-pair", pair)
        await self._throttle.count("sign-in-email", folded)
        user = self._emails.find(folded)
        stored = None if user is None or user.suspended else user.password_hash
        if not await self._passwords.check(stored, password) or user is None:
            _log.info("sign-in refused", user=user.name if user else None)
            raise SignInRefused
        await self._throttle.forget("sign-in-pair", pair)
        await self._throttle.forget("sign-in-email", folded)
        return await self._sessions.begin(user.name, "password", _mark(user))

    async def find(self, token: str) -> SignedIn | None:
        """The user whose session the cookie names; None if it names none. Unavailable.

        A session ends when its user is suspended or deleted, or the password changes.
        """
        session = await self._sessions.find(token)
        if session is None:
            return None
        user = await find_current(self._users, session.user)
        is_current = user is not None and not user.suspended
        if user is None or not is_current or session.mark != _mark(user, session):
            await self._sessions.end(token)
            return None
        return SignedIn(user, session, token)

    async def sign_out(self, token: str) -> None:
        """End the session of this cookie. Unavailable."""
        await self._sessions.end(token)


def _mark(user: UserRecord, session: Session | None = None) -> str:
    if session is not None and session.method != "password":
        return ""
    return hashlib.sha256((user.password_hash or "").encode()).hexdigest()[:16]
