"""Sessions of signed-in users: random ids in a cookie, their content in Redis under a digest."""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import orjson

from gateway_core.api.errors import Unavailable
from gateway_core.kube.clock import CLOCK
from gateway_core.redis.link import CountersUnavailable
from gateway_core.redis.transient import TransientStore

IDLE_SECONDS = 12 * 3600
ABSOLUTE_SECONDS = 7 * 24 * 3600
MOST_TOKEN = 64
MOST_SESSIONS = 20
"""Of one user; the oldest ends when another begins."""

Method = Literal["password", "sso"]


@dataclass(frozen=True, slots=True)
class Session:
    """A session. `mark` changes with the user's password; `began_at` is Unix seconds."""

    user: str
    method: Method
    mark: str
    began_at: float
    secret: str = field(repr=False)

    def make_form_token(self, purpose: str) -> str:
        """Return the CSRF token of a form of this session; `purpose` says which form."""
        return sign_form(self.secret, purpose)

    def check_form_token(self, purpose: str, token: str) -> bool:
        """Return whether `token` is that of the form; in constant time."""
        return hmac.compare_digest(self.make_form_token(purpose).encode(), token.encode())


def sign_form(secret: str, purpose: str) -> str:
    """Return the token of one form under a secret of its user's browser."""
    return hmac.new(secret.encode(), purpose.encode(), hashlib.sha256).hexdigest()


class SessionStore:
    """Sessions of all users. Every method raises Unavailable without Redis."""

    def __init__(self, store: TransientStore, clock: Callable[[], float] = CLOCK.time) -> None:
        self._store = store
        self._clock = clock

    async def begin(self, user: str, method: Method, mark: str) -> str:
        """Return a new session, which may end the user's oldest; the token for the cookie."""
        token = secrets.token_urlsafe(32)
        session = Session(user, method, mark, self._clock(), secrets.token_urlsafe(32))
        facts = {
            "user": session.user,
            "method": session.method,
            "mark": session.mark,
            "began_at": session.began_at,
            "secret": session.secret,
        }
        try:
            await self._store.put_in(
                f"sessions/{user}",
                _name(token),
                orjson.dumps(facts),
                IDLE_SECONDS,
                most=MOST_SESSIONS,
                group_seconds=ABSOLUTE_SECONDS + IDLE_SECONDS,
            )
        except CountersUnavailable as error:
            raise Unavailable("Sign-in is not possible now.") from error
        return token

    async def find(self, token: str) -> Session | None:
        """Return the session of a cookie, whose idle time begins anew; None where it has ended."""
        if not token or len(token) > MOST_TOKEN:
            return None
        try:
            raw = await self._store.read(_name(token), extend=IDLE_SECONDS)
            if raw is None:
                return None
            session = Session(**orjson.loads(raw))
            if session.began_at + ABSOLUTE_SECONDS > self._clock():
                return session
            await self._store.remove(_name(token))
        except CountersUnavailable as error:
            raise Unavailable("Your session cannot be read now. Try again in a moment.") from error
        return None

    async def end(self, token: str) -> None:
        """End the session of a cookie, if any."""
        try:
            await self._store.remove(_name(token))
        except CountersUnavailable as error:
            raise Unavailable("Sign-out is not possible now.") from error


def _name(token: str) -> str:
    return f"session/{hashlib.sha256(token.encode()).hexdigest()}"
