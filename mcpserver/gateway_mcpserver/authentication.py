"""Who calls: an OAuth access token for this resource, or a standard API key (contract §10.3)."""

from collections.abc import Sequence
from dataclasses import dataclass

from gateway_core.accounts.authentication import Authenticator, Principal, read_bearer
from gateway_core.accounts.roles import Act
from gateway_core.api.errors import GatewayError, OAuthError, Unauthenticated, Unavailable
from gateway_core.api.oauth import SCOPES, Scope
from gateway_core.oauth.discovery import locate_resource
from gateway_core.oauth.tokens import is_token
from gateway_core.oauth.verification import TokenVerifier
from gateway_web.context import Header

ALL_SCOPES = frozenset[str](SCOPES)


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated caller and its scopes; those of an API key are all."""

    principal: Principal
    scopes: frozenset[str]

    @property
    def account(self) -> str:
        """Name of the account."""
        return self.principal.account.name

    @property
    def credential(self) -> str:
        """Name of the key's or grant's object."""
        return self.principal.key.name

    def require_scope(self, scope: Scope) -> None:
        """Raise InsufficientScope where `scope` lacks; `mcp:tasks` implies `mcp:read`."""
        implied = scope == "mcp:read" and "mcp:tasks" in self.scopes
        if scope not in self.scopes and not implied:
            raise InsufficientScope(scope)


class InsufficientScope(OAuthError):
    """The token lacks a scope, which the client may ask its user for."""

    def __init__(self, scope: Scope) -> None:
        text = f"The access token lacks the scope {scope}."
        super().__init__("insufficient_scope", text, status=403)
        self.scope = scope


class McpAuthenticator:
    """Resolves the credential of a request."""

    def __init__(self, keys: Authenticator, tokens: TokenVerifier, audience: str) -> None:
        self._keys = keys
        self._tokens = tokens
        self._audience = audience

    async def authenticate(self, headers: Sequence[Header]) -> Caller:
        """Return the caller.

        Raises Unauthenticated (code `missing_api_key` where no credential was sent); Forbidden for
        a management key; Unavailable.
        """
        credential = read_bearer(headers).decode("latin-1")
        if is_token(credential):
            found = await self._tokens.verify_access_token(credential, self._audience)
            return Caller(found.principal, found.scopes)
        return Caller(await self._keys.authenticate(headers, Act.READ), ALL_SCOPES)

    async def find_refusal(self, headers: Sequence[Header]) -> GatewayError | None:
        """Why a credential that was taken is refused by now; None while it cannot be checked."""
        try:
            await self.authenticate(headers)
        except Unavailable:
            return None
        except GatewayError as error:
            return error
        return None


class Challenges:
    """`WWW-Authenticate` of the endpoint: one line, quoted, as clients parse it."""

    def __init__(self, mcp_url: str) -> None:
        self._mcp_url = mcp_url

    def describe(self, error: Unauthenticated | InsufficientScope, path: str) -> Header:
        """Return the challenge of a refusal at one of the endpoint's paths.

        It names the document made for that path (RFC 9728 §3.3), and has no `error` where no
        credential was sent (RFC 6750).
        """
        metadata = f'resource_metadata="{self._mcp_url}{locate_resource(path)}"'
        if isinstance(error, InsufficientScope):
            parts = ['error="insufficient_scope"', f'scope="{error.scope}"', metadata]
        else:
            parts = [metadata, f'scope="{" ".join(SCOPES)}"']
            if error.code != "missing_api_key":
                parts.append('error="invalid_token"')
        return b"www-authenticate", f"Bearer {', '.join(parts)}".encode()
