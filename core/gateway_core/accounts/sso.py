"""Single sign-on: from the provider's identity to a user, matched or created by policy."""

import hashlib
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import Literal

import orjson
import structlog

from gateway_core.accounts.oidc import Identity, OidcClient
from gateway_core.accounts.records import UserRecord
from gateway_core.accounts.sessions import SessionStore
from gateway_core.accounts.sign_in import EmailIndex
from gateway_core.api.account import GatewayUser, Role
from gateway_core.api.errors import Forbidden, Unavailable
from gateway_core.api.resource import skeleton
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.informer import Cache
from gateway_core.kube.repository import Kind, writing
from gateway_core.redis.link import CountersUnavailable
from gateway_core.redis.transient import TransientStore

PENDING_SECONDS = 600
"""How long a person may take at the provider."""
USERS = Kind(GatewayUser.plural, "user", "User")

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


class SignOn:
    """Begins and ends single sign-on."""

    def __init__(
        self,
        kube: KubernetesClient,
        store: TransientStore,
        sessions: SessionStore,
        users: Cache[UserRecord],
        client: OidcClient,
        policy: SignOnPolicy,
    ) -> None:
        self._kube = kube
        self._store = store
        self._sessions = sessions
        self._users = users
        self._emails = EmailIndex(users)
        self._client = client
        self._policy = policy

    async def begin(self, after: str, browser: str) -> str:
        """Where the person signs in. `browser` is a secret of the one that must come back.

        Raises SignOnFailed, Unavailable.
        """
        state, nonce = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        verifier = secrets.token_urlsafe(48)
        hashed = hashlib.sha256(verifier.encode()).digest()
        challenge = urlsafe_b64encode(hashed).rstrip(b"=").decode()
        location = await self._client.locate(state, nonce, challenge)
        pending = {
            "nonce": nonce,
            "verifier": verifier,
            "after": after,
            "browser": _digest(browser),
        }
        try:
            await self._store.put(_name(state), orjson.dumps(pending), PENDING_SECONDS)
        except CountersUnavailable as error:
            raise Unavailable("Sign-in is not possible now.") from error
        return location

    async def finish(
        self, state: str, code: str, issuer: str | None, browser: str
    ) -> tuple[str, str]:
        """The token of a new session, and where to go on.

        Raises Forbidden where this browser did not begin it, or the person may not come in;
        SignOnFailed, Unavailable.
        """
        try:
            raw = await self._store.take(_name(state))
        except CountersUnavailable as error:
            raise Unavailable("Sign-in is not possible now.") from error
        pending = {} if raw is None else orjson.loads(raw)
        if not browser or pending.get("browser") != _digest(browser):
            raise Forbidden("This sign-in was not begun in this browser, or too long ago.")
        if issuer not in (None, self._client.issuer):
            raise Forbidden("This sign-in was answered by another provider.")
        identity = await self._client.redeem(code, pending["verifier"], pending["nonce"])
        user = await self._find_user(identity)
        return await self._sessions.begin(user, "sso", ""), pending["after"]

    async def _find_user(self, identity: Identity) -> str:
        """The name of the identity's user."""
        email = identity.email
        if email is None:
            raise Forbidden("The provider has not verified your email address.")
        domain = email.rpartition("@")[2].lower()
        if self._policy.domains and domain not in self._policy.domains:
            raise Forbidden("Your email address is not of a domain that may sign in here.")
        found = self._emails.list_of(email)
        if len(found) == 1 and not found[0].suspended:
            return found[0].name
        if found or self._policy.users == "match":
            _log.info("single sign-on refused", users=[user.name for user in found])
            raise Forbidden("You have no user here. Ask an administrator for access.")
        return await self._create(identity, email)

    async def _create(self, identity: Identity, email: str) -> str:
        # of the subject, so that concurrent sign-ins make one user
        name = f"sso-{_digest(f'{identity.issuer} {identity.subject}')[:26]}"
        account = self._policy.account
        roles = [{"accountName": account, "role": self._policy.role}] if account else []
        spec = {"displayName": identity.name or email, "email": email, "memberships": roles}
        obj = skeleton(GatewayUser, name) | {"spec": spec}
        async with writing(USERS, name):
            made, is_new = await self._kube.create_or_get(USERS.plural, obj)
        self._users.upsert(made)
        if is_new:
            _log.info("user created by single sign-on", user=name)
        elif made["spec"].get("suspended") or made["spec"]["email"].lower() != email.lower():
            raise Forbidden("You have no user here. Ask an administrator for access.")
        return name


def _name(state: str) -> str:
    return f"sso/{_digest(state)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
