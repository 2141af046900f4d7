"""Sign-in of users with a password, and who a session stands for."""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import structlog

from gateway_core.accounts.authentication import find_current
from gateway_core.accounts.changes import note_change
from gateway_core.accounts.password_links import may_link, parse_link
from gateway_core.accounts.password_rules import check_chosen
from gateway_core.accounts.passwords import PasswordChecker
from gateway_core.accounts.records import UserRecord, project_user
from gateway_core.accounts.sessions import Session, SessionStore
from gateway_core.accounts.throttle import Allowance, Throttle
from gateway_core.api.account import GatewayUser
from gateway_core.api.errors import GatewayError
from gateway_core.api.resource import Object
from gateway_core.failpoints import NO_FAILPOINTS, Failpoints
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.kube.informer import Cache
from gateway_core.kube.kinds import Kind
from gateway_core.kube.read_through import ReadThrough
from gateway_core.kube.repository import writing

SIGN_IN_ALLOWANCES: Mapping[str, Allowance] = {
    "sign-in-email": Allowance(100, 3600),
    "sign-in-day": Allowance(1000, 86_400),
    "sign-in-pair": Allowance(10, 900),
    "sign-in-wary": Allowance(2, 900),
    "sign-in-browser": Allowance(10, 900),
    "sign-in-known": Allowance(60, 900),
    "sign-in-success": Allowance(60, 900),
    "password": Allowance(10, 900),
}
"""Tries of one address at one email, fewer while many are made at the email from anywhere; tries at
an email in a day from browsers that are not known; tries of a browser in which the person has
signed in before; tries of all such browsers of a person, and sign-ins of a user, which no success
forgets; tries to change a password. `sign-in-address` is a setting. A thousand guesses a day do not
find a chosen password; the person comes in by a known browser, or by a new link."""

_NOBODY = "nobody.at.all"
"""Read for a link that names no user, so that it is refused after the same steps."""
_MARK_BYTES, _MARK_CHARACTERS = 18, 24
USERS = Kind(GatewayUser.plural, "user", "User")

_log = structlog.get_logger(__name__)


class SignInRefused(GatewayError):
    """Wrong email or password; one text for all reasons."""

    status = 401
    code = "sign_in_refused"

    def __init__(self) -> None:
        super().__init__("The email address or the password is not right.")


class KnownBrowsers:
    """Marks of browsers in which a person has signed in: random, with a tag of the email.

    What strangers try counts against their addresses, which the person may share. The tries of a
    marked browser are counted by its mark, so strangers cannot lock the person out there.
    """

    def __init__(self, id_key: bytes) -> None:
        """`id_key` is the key of `IdMint`, from which a key of its own is derived."""
        self._key = hmac.digest(id_key, b"known browsers", hashlib.sha256)

    def mark(self, email: str) -> str:
        """Return a new mark, for a cookie."""
        name = secrets.token_urlsafe(_MARK_BYTES)
        return name + self._tag(name, email)

    def knows(self, mark: str, email: str) -> bool:
        """Return whether the mark was made for this email; in constant time."""
        name, tag = mark[:_MARK_CHARACTERS], mark[_MARK_CHARACTERS:]
        return hmac.compare_digest(self._tag(name, email).encode(), tag.encode())

    def _tag(self, name: str, email: str) -> str:
        code = hmac.digest(self._key, f"{name} {email}".encode(), hashlib.sha256)
        return urlsafe_b64encode(code[:18]).decode()


@dataclass(frozen=True, slots=True)
class SignedIn:
    """A session, its user as of now, and the token of its cookie."""

    user: UserRecord
    session: Session
    token: str


class Entry(NamedTuple):
    """The token of a new session, and a mark by which the browser is known."""

    token: str
    mark: str


class LinkRefused(GatewayError):
    """A link that sets no password; one text for all reasons."""

    status = 403
    code = "link_refused"

    def __init__(self) -> None:
        super().__init__(
            "This link cannot be used: it was used already, has expired, or was replaced by a newer"
            " one. If you have chosen a password, sign in with it; else ask for a new link."
        )


class UserIndex:
    """Users by email, and by their identity at a provider; follows the table of users."""

    def __init__(self, table: Cache[UserRecord]) -> None:
        self._table = table
        self._names: dict[object, set[str]] = {}
        self._keys_of: dict[str, tuple[object, ...]] = {}
        for name in dict(table.items()):
            self._follow(name)
        table.subscribe(self._follow)

    def find(self, email: str) -> UserRecord | None:
        """Return the one user with this email; None where there is none, or several."""
        found = self.list_of(email)
        return found[0] if len(found) == 1 else None

    def list_of(self, email: str) -> list[UserRecord]:
        """Return all users with this email."""
        return self._list(fold_email(email))

    def list_by_identity(self, identity: tuple[str, str]) -> list[UserRecord]:
        """Return all users who are bound to this issuer and subject."""
        return self._list(identity)

    def _list(self, key: object) -> list[UserRecord]:
        found = map(self._table.get, self._names.get(key, ()))
        return [user for user in found if user is not None]

    def _follow(self, name: str) -> None:
        for key in self._keys_of.pop(name, ()):
            self._names[key].discard(name)
            if not self._names[key]:
                del self._names[key]
        record = self._table.get(name)
        if record is not None:
            email: object = fold_email(record.email)
            self._keys_of[name] = (email, record.identity) if record.identity else (email,)
            for key in self._keys_of[name]:
                self._names.setdefault(key, set()).add(name)


def fold_email(email: str) -> str:
    """Return the form in which emails are compared: ASCII without case, any other as it is.

    Other letters may fold to ASCII ones, and so one address to that of another person.
    """
    text = email.strip()
    return text.lower() if text.isascii() else text


class SignIn:
    """Signs users in and out."""

    def __init__(
        self,
        kube: KubernetesClient,
        users: ReadThrough[UserRecord],
        passwords: PasswordChecker,
        sessions: SessionStore,
        throttle: Throttle,
        browsers: KnownBrowsers,
        failpoints: Failpoints = NO_FAILPOINTS,
    ) -> None:
        self._kube = kube
        self._users = users
        self._users_by = UserIndex(users.table)
        self._passwords = passwords
        self._sessions = sessions
        self._throttle = throttle
        self._browsers = browsers
        self._failpoints = failpoints

    async def sign_in(self, email: str, password: str, address: str, mark: str = "") -> Entry:
        """Return a new session. `address` is the client's, `mark` its browser's, for the limits.

        Raises SignInRefused, TooManyCalls, Unavailable.
        """
        folded = fold_email(email)
        if self._browsers.knows(mark, folded):
            # each success gives another mark: what all of them may cost is counted by the person
            await self._throttle.count("sign-in-known", folded)
            what, who = "sign-in-browser", mark
        else:
            await self._throttle.count("sign-in-address", address)
            await self._throttle.count("sign-in-day", folded)
            is_attacked = await self._throttle.is_exceeded("sign-in-email", folded)
            what, who = "sign-in-wary" if is_attacked else "sign-in-pair", f"{address} {folded}"
        # before the check: concurrent guesses are counted too
        await self._throttle.count(what, who)
        user = self._users_by.find(folded)
        stored = None if user is None or user.suspended else user.password_hash
        if not await self._passwords.check(stored, password, address) or user is None:
            _log.info("sign-in refused", user=user.name if user else None)
            raise SignInRefused
        await self._throttle.forget(what, who)
        await self._throttle.count("sign-in-success", user.name)
        token = await self._sessions.begin(user.name, "password", mark_password(user))
        return Entry(token, self._browsers.mark(folded))

    async def find(self, token: str) -> SignedIn | None:
        """Return the user whose session the cookie names; None if it names none. Unavailable.

        A session ends when its user is suspended or deleted, or the password changes.
        """
        session = await self._sessions.find(token)
        if session is None:
            return None

        def is_current(user: UserRecord) -> bool:
            return not user.suspended and session.mark == mark_password(user)

        user = await find_current(self._users, session.user)
        if user is None or not is_current(user):
            # the table may be behind; one read for a session, which ends here otherwise
            user = await self._read(session.user)
        if user is None or not is_current(user):
            await self._sessions.end(token)
            return None
        return SignedIn(user, session, token)

    async def _read(self, name: str) -> UserRecord | None:
        async with writing(USERS, name):
            try:
                obj = await self._kube.get(USERS.plural, name)
            except ObjectNotFound:
                return None
        self._users.table.upsert(obj)
        return project_user(obj)

    async def change_password(
        self, signed_in: SignedIn, password: str, chosen: str, address: str
    ) -> str:
        """Set another password for who knows the old one, and begin the one session that is left.

        Raises PasswordRefused, SignInRefused, TooManyCalls, Unavailable.
        """
        user, name = signed_in.user, signed_in.user.name
        await self._throttle.count("password", name)
        old = user.password_hash
        if not await self._passwords.check(old, password, address):
            raise SignInRefused
        check_chosen(chosen, (user.email, user.display_name))
        hashed = await self._passwords.hash_chosen(chosen, address)

        def check(found: UserRecord) -> None:
            if found.password_hash != old or found.suspended:
                raise SignInRefused

        changed = await self._set_password(name, hashed, "password changed", check)
        await self._sessions.end(signed_in.token)
        return await self._sessions.begin(name, signed_in.session.method, mark_password(changed))

    async def use_link(self, link: str, chosen: str, address: str) -> Entry:
        """Set the password that a person chose with a link, and sign them in.

        The write that sets the password removes the link, so of concurrent uses one succeeds.
        Raises LinkRefused, PasswordRefused, TooManyCalls, Unavailable.
        """
        await self._throttle.count("sign-in-address", address)
        check_chosen(chosen)
        name, secret = parse_link(link) or ("", "")
        # before the link is looked at: a refusal takes the same time
        hashed = await self._passwords.hash_chosen(chosen, address)

        def check(found: UserRecord) -> None:
            issued = found.password_link
            if issued is None or not issued.is_opened_by(secret, CLOCK.time()):
                raise LinkRefused
            if found.suspended or not self._is_maker_allowed(found, issued.maker):
                raise LinkRefused
            check_chosen(chosen, (found.email, found.display_name))

        try:
            user = await self._set_password(name, hashed, "password chosen by a link", check)
        except LinkRefused:
            _log.info("link refused", user=name)
            raise
        token = await self._sessions.begin(user.name, "password", mark_password(user))
        self._failpoints.reach("after-password-session")
        return Entry(token, self._browsers.mark(fold_email(user.email)))

    def _is_maker_allowed(self, user: UserRecord, maker: str | None) -> bool:
        """Return whether the maker of a link may still give this person a password."""
        if maker is None:
            return True
        found = self._users.table.get(maker)
        has_password, has_identity = user.password_hash is not None, user.identity is not None
        if found is None or found.suspended or (has_identity and not has_password):
            return False
        return may_link(found.roles, user.roles, has_password=has_password)

    async def _set_password(
        self, name: str, hashed: str, text: str, check: Callable[[UserRecord], None]
    ) -> UserRecord:
        """Write the hash, once `check` finds nothing against it in the user as they are now."""

        async def read() -> Object:
            try:
                return await self._kube.get(USERS.plural, name or _NOBODY)
            except ObjectNotFound:
                raise LinkRefused from None

        def decide(obj: Object) -> Mapping[str, Any] | None:
            found = project_user(obj)
            if found.password_hash == hashed:
                # the answer to this very write was lost
                return None
            check(found)
            note = note_change(obj, f"user/{name}", text, CLOCK.now())
            spec = {"passwordHash": hashed, "passwordLink": None}
            return {"metadata": {"annotations": note}, "spec": spec}

        self._failpoints.reach("before-password")
        async with writing(USERS, name):
            changed = await self._kube.update(USERS.plural, read, decide)
        self._failpoints.reach("after-password")
        self._users.table.upsert(changed)
        _log.info(text, user=name)
        return project_user(changed)

    async def sign_out(self, token: str) -> None:
        """End the session of this cookie. Unavailable."""
        await self._sessions.end(token)


def mark_password(user: UserRecord) -> str:
    """Return the mark of user and password in a session, which ends when either changes."""
    return hashlib.sha256(f"{user.id} {user.password_hash or ''}".encode()).hexdigest()[:16]
