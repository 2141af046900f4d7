"""Single sign-on: from the provider's identity to a user, matched or created by policy."""

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import structlog

from gateway_core.accounts.oidc import Identity, OidcClient
from gateway_core.accounts.records import UserRecord, project_user
from gateway_core.accounts.sessions import SessionStore
from gateway_core.accounts.sign_in import USERS, UserIndex, mark_password
from gateway_core.api.account import GatewayUser, Role
from gateway_core.api.errors import Forbidden, InvalidRequest
from gateway_core.api.resource import Object, skeleton
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import ObjectNotFound
from gateway_core.kube.informer import Cache
from gateway_core.kube.repository import writing

PENDING_SECONDS = 600
"""How long a person may take at the provider."""
MOST_AFTER = 2700
"""Characters of the page to go on to: browsers keep 4096 of a cookie."""
MOST_COOKIE = 4000
MOST_SUBJECT = 255

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SignOnPolicy:
    """Who may come in by single sign-on.

    `match` lets in those who have a GatewayUser with the email that the provider has verified;
    `create` makes a user for others too, a member of `account` by `role`, or of none if it is
    empty. `domains` are those of emails that may come in; empty for all.
    """

    users: Literal["match", "create"] = "match"
    account: str = ""
    role: Role = "member"
    domains: tuple[str, ...] = ()


class Pending(NamedTuple):
    """A sign-in that was begun: the secrets of its request, and the page to go on to."""

    state: str
    nonce: str
    verifier: str
    after: str


class PendingCookies:
    """Keeps what is pending in a cookie of the browser that must come back, and nowhere else.

    The cookie has a random seed, from which the secrets are derived under a key, so the browser
    does not know them before they are used; and a tag over all of it.
    """

    def __init__(self, id_key: bytes, clock: Callable[[], float] = CLOCK.time) -> None:
        """`id_key` is the key of `IdMint`, from which a key of its own is derived."""
        self._key = hmac.digest(id_key, b"single sign-on", hashlib.sha256)
        self._clock = clock

    def make(self, after: str) -> tuple[Pending, str]:
        """Return a new sign-in and its cookie. InvalidRequest where `after` is too long."""
        if len(after) > MOST_AFTER:
            raise InvalidRequest("The page to go on to has too long an address.")
        seed = secrets.token_urlsafe(32)
        until = int(self._clock()) + PENDING_SECONDS
        text = f"{seed}.{until}.{_encode(after.encode())}"
        return self._derive(seed, after), f"{text}.{self._sign(f'cookie {text}')}"

    def read(self, cookie: str) -> Pending | None:
        """Return what the cookie stands for; None for one that is expired or not ours."""
        text, _, tag = cookie.rpartition(".")
        if len(cookie) > MOST_COOKIE or not cookie.isascii():
            return None
        if not hmac.compare_digest(self._sign(f"cookie {text}"), tag):
            return None
        seed, until, after = text.split(".")
        if int(until) <= self._clock():
            return None
        return self._derive(seed, urlsafe_b64decode(after + "==").decode())

    def _derive(self, seed: str, after: str) -> Pending:
        state, nonce, verifier = (
            self._sign(f"{purpose} {seed}") for purpose in ("state", "nonce", "verifier")
        )
        return Pending(state, nonce, verifier, after)

    def _sign(self, text: str) -> str:
        return _encode(hmac.digest(self._key, text.encode(), hashlib.sha256))


class SignOn:
    """Begins and ends single sign-on."""

    def __init__(
        self,
        kube: KubernetesClient,
        sessions: SessionStore,
        users: Cache[UserRecord],
        client: OidcClient,
        policy: SignOnPolicy,
        cookies: PendingCookies,
    ) -> None:
        self._kube = kube
        self._sessions = sessions
        self._users = users
        self._index = UserIndex(users)
        self._client = client
        self._policy = policy
        self._cookies = cookies

    async def begin(self, after: str) -> tuple[str, str]:
        """Where the person signs in, and the cookie of the browser that must come back.

        Raises InvalidRequest, SignOnFailed.
        """
        pending, cookie = self._cookies.make(after)
        hashed = hashlib.sha256(pending.verifier.encode()).digest()
        return await self._client.locate(pending.state, pending.nonce, _encode(hashed)), cookie

    async def finish(
        self, state: str, code: str, issuer: str | None, cookie: str
    ) -> tuple[str, str]:
        """Return the token of a new session, and where to go on.

        Raises Forbidden where this browser did not begin it, or the person may not come in;
        SignOnFailed, Unavailable.
        """
        pending = self._cookies.read(cookie)
        if pending is None or not hmac.compare_digest(pending.state.encode(), state.encode()):
            raise Forbidden("This sign-in was not begun in this browser, or too long ago.")
        if issuer not in (None, self._client.issuer):
            raise Forbidden("This sign-in was answered by another provider.")
        identity = await self._client.redeem(code, pending.verifier, pending.nonce)
        user = await self._find_user(identity)
        return await self._sessions.begin(user.name, "sso", mark_password(user)), pending.after

    async def _find_user(self, identity: Identity) -> UserRecord:
        """Return the identity's user: whom it is bound to, else one with its email, bound now."""
        email = identity.email
        if email is None:
            _log.info("single sign-on refused", reason=identity.refusal)
            raise Forbidden(identity.refusal or "The provider has not verified your email address.")
        if len(identity.subject) > MOST_SUBJECT:
            raise _unknown()
        if not email.isascii():
            raise Forbidden("Your email address has letters that are not accepted here.")
        domain = email.rpartition("@")[2].lower()
        if self._policy.domains and domain not in self._policy.domains:
            raise Forbidden("Your email address is not of a domain that may sign in here.")
        bound = self._index.list_by_identity((identity.issuer, identity.subject))
        found = bound or self._index.list_of(email)
        if len(found) == 1 and not found[0].suspended:
            return found[0] if bound else await self._bind(found[0], identity)
        if found or self._policy.users == "match":
            _log.info("single sign-on refused", users=[user.name for user in found])
            raise _unknown()
        return await self._create(identity, email)

    async def _bind(self, user: UserRecord, identity: Identity) -> UserRecord:
        """Record who the user is at the provider. Forbidden where it is somebody else."""
        wanted = _describe(identity)

        async def read() -> Object:
            try:
                return await self._kube.get(USERS.plural, user.name)
            except ObjectNotFound:
                raise _unknown() from None

        def decide(obj: Object) -> Mapping[str, Any] | None:
            known = obj["spec"].get("singleSignOn")
            if known == wanted:
                return None
            found = project_user(obj)
            if known or found.email != user.email or found.suspended:
                _log.warning("single sign-on refused: not who is bound", user=user.name)
                raise _unknown()
            return {"spec": {"singleSignOn": wanted}}

        async with writing(USERS, user.name):
            changed = await self._kube.update(USERS.plural, read, decide)
        self._users.upsert(changed)
        return project_user(changed)

    async def _create(self, identity: Identity, email: str) -> UserRecord:
        # of the subject, so that concurrent sign-ins make one user
        name = f"sso-{_digest(f'{identity.issuer} {identity.subject}')[:26]}"
        account = self._policy.account
        roles = [{"accountName": account, "role": self._policy.role}] if account else []
        wanted = _describe(identity)
        shown = "".join(filter(str.isprintable, identity.name)).strip()
        spec = {
            "displayName": shown or email[:127],
            "email": email,
            "memberships": roles,
            "singleSignOn": wanted,
        }
        obj = skeleton(GatewayUser, name) | {"spec": spec}
        async with writing(USERS, name):
            made, is_new = await self._kube.create_or_get(USERS.plural, obj)
        self._users.upsert(made)
        if is_new:
            _log.info("user created by single sign-on", user=name)
        elif project_user(made).suspended or made["spec"].get("singleSignOn") != wanted:
            raise _unknown()
        return project_user(made)


def _describe(identity: Identity) -> dict[str, str]:
    return {"issuer": identity.issuer, "subject": identity.subject}


def _unknown() -> Forbidden:
    return Forbidden("You have no user here. Ask an administrator for access.")


def _encode(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
