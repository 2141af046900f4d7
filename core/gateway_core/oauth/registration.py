"""Dynamic client registration (RFC 7591) under the policy of contract §10.5."""

import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway_core.api.errors import OAuthError, TooManyCalls
from gateway_core.api.ids import IdMint, id_to_name
from gateway_core.api.key import digest
from gateway_core.api.oauth import (
    CLIENT_PREFIX,
    MOST_CLIENT_NAME,
    MOST_REDIRECT_URIS,
    SCOPES,
    AuthMethod,
    GatewayOAuthClient,
)
from gateway_core.api.resource import skeleton
from gateway_core.api.times import parse_time
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.informer import Cache
from gateway_core.kube.repository import Kind, writing
from gateway_core.oauth.records import ClientRecord
from gateway_core.oauth.redirects import RedirectRefused, check_redirect_uri

MOST_BYTES = 32 * 1024
"""Of a registration's body: ten redirect URIs, with room for metadata that is ignored."""
RETRY_SECONDS = 3600
DEFAULT_NAME = "Unnamed application"
CLIENTS = Kind(GatewayOAuthClient.plural, CLIENT_PREFIX, "Client")

_log = structlog.get_logger(__name__)


class ClientMetadata(BaseModel):
    """What a client says of itself; what is not here is ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)

    redirect_uris: Annotated[list[str], Field(min_length=1, max_length=MOST_REDIRECT_URIS)]
    client_name: Annotated[str | None, Field(max_length=MOST_CLIENT_NAME)] = None
    token_endpoint_auth_method: AuthMethod | None = None
    grant_types: Annotated[list[str] | None, Field(max_length=8)] = None
    response_types: Annotated[list[str] | None, Field(max_length=8)] = None
    scope: Annotated[str | None, Field(max_length=1024)] = None
    application_type: Literal["native", "web"] | None = None


def read_metadata(body: Any) -> ClientMetadata:
    """The metadata of a client, checked.

    Raises OAuthError `invalid_redirect_uri` or `invalid_client_metadata`.
    """
    try:
        metadata = ClientMetadata.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        is_uri = place.startswith("redirect_uris")
        code = "invalid_redirect_uri" if is_uri else "invalid_client_metadata"
        raise OAuthError(code, f"{place}: {first['msg']}") from None
    for uri in metadata.redirect_uris:
        try:
            check_redirect_uri(uri)
        except RedirectRefused as error:
            raise OAuthError("invalid_redirect_uri", f"A redirect URI {error}.") from None
    name = metadata.client_name
    if name is not None and not (name.isprintable() and name.strip()):
        # control characters and marks of direction could make a name look like another
        raise OAuthError("invalid_client_metadata", "client_name must be printable text.")
    if metadata.grant_types is not None and "authorization_code" not in metadata.grant_types:
        raise OAuthError("invalid_client_metadata", "grant_types must have authorization_code.")
    if metadata.response_types is not None and "code" not in metadata.response_types:
        raise OAuthError("invalid_client_metadata", "response_types must have code.")
    return metadata


def select_scopes(text: str | None) -> list[str] | None:
    """The known scopes in a space-separated list, in their order; None for no list."""
    if text is None:
        return None
    asked = set(text.split(" "))
    return [scope for scope in SCOPES if scope in asked]


class Registrar:
    """Registers clients. `most_unused` bounds those that no user has given access to."""

    def __init__(
        self,
        kube: KubernetesClient,
        clients: Cache[ClientRecord],
        mint: IdMint,
        peppers: Mapping[int, bytes],
        *,
        most_unused: int,
    ) -> None:
        self._kube = kube
        self._clients = clients
        self._mint = mint
        self._peppers = peppers
        self._most_unused = most_unused
        self._unused: set[str] = set()
        for name in dict(clients.items()):
            self._follow(name)
        clients.subscribe(self._follow)

    async def register(self, body: Any) -> dict[str, Any]:
        """Register a client; the response of RFC 7591, with the secret if it has one.

        Raises OAuthError, TooManyCalls where too many registrations are unused, Unavailable.
        """
        metadata = read_metadata(body)
        if len(self._unused) >= self._most_unused:
            _log.warning("registration refused: too many unused clients", unused=len(self._unused))
            raise TooManyCalls("Too many clients are registered.", retry_after=RETRY_SECONDS)
        method = metadata.token_endpoint_auth_method or "none"
        secret = None if method == "none" else f"gwcs_{secrets.token_urlsafe(32)}"
        client_id = self._mint.mint_random(CLIENT_PREFIX, "")
        name = metadata.client_name or DEFAULT_NAME
        scopes = select_scopes(metadata.scope) or None
        spec: dict[str, Any] = {
            "clientName": name,
            "redirectUris": list(dict.fromkeys(metadata.redirect_uris)),
            "tokenEndpointAuthMethod": method,
        }
        if secret is not None:
            version = max(self._peppers)
            hashed = digest(secret, self._peppers[version])
            spec["secret"] = {"digest": hashed, "pepperVersion": version}
        if scopes:
            spec["scopes"] = scopes
        if metadata.application_type:
            spec["applicationType"] = metadata.application_type
        obj = skeleton(GatewayOAuthClient, id_to_name(client_id)) | {"spec": spec}
        async with writing(CLIENTS, client_id):
            made, _ = await self._kube.create_or_get(CLIENTS.plural, obj)
        self._clients.upsert(made)
        created = parse_time(made["metadata"]["creationTimestamp"])
        return {
            "client_id": client_id,
            "client_id_issued_at": int(created.timestamp()),
            "client_name": name,
            "redirect_uris": spec["redirectUris"],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": method,
            **({"scope": " ".join(scopes)} if scopes else {}),
            **({"application_type": spec["applicationType"]} if metadata.application_type else {}),
            **({"client_secret": secret, "client_secret_expires_at": 0} if secret else {}),
        }

    def _follow(self, name: str) -> None:
        record = self._clients.get(name)
        if record is None or record.authorized:
            self._unused.discard(name)
        else:
            self._unused.add(name)
