"""Dynamic client registration (RFC 7591) under the policy of contract §10.5."""

import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from unicodedata import combining

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
from gateway_core.api.resource import Object, skeleton
from gateway_core.api.times import format_time, parse_time
from gateway_core.failures import describe_detail
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import ObjectNotFound, WriteConflict
from gateway_core.kube.informer import Cache
from gateway_core.kube.kinds import Kind
from gateway_core.kube.repository import writing
from gateway_core.oauth.records import ClientRecord
from gateway_core.oauth.redirects import RedirectRefused, check_redirect_uri
from gateway_core.oauth.room import ClientIndex

MOST_BYTES = 32 * 1024
"""Of a registration's body: ten redirect URIs, with room for metadata that is ignored."""
RETRY_SECONDS = 900
PROTECTED_SECONDS = 900.0
"""A client keeps its place for so long, in which its first user may approve it."""
_MOST_REPLACED = 4
"""Clients that one registration deletes at most: more than one where replicas passed the bound."""
DEFAULT_NAME = "Unnamed application"
CLIENTS = Kind(GatewayOAuthClient.plural, CLIENT_PREFIX, "Client")

_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0]"
    "|[\U000e0100-\U000e01ef]"
)
"""What Python calls printable and shows nothing (Unicode's Default_Ignorable_Code_Point)."""
_PILE = re.compile(r"\^{4}")

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
    """Return the metadata of a client, checked.

    Raises OAuthError `invalid_redirect_uri` or `invalid_client_metadata`.
    """
    try:
        metadata = ClientMetadata.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the body"
        is_uri = place.startswith("redirect_uris")
        code = "invalid_redirect_uri" if is_uri else "invalid_client_metadata"
        raise OAuthError(code, f"{place} {describe_detail(first)}.") from None
    for uri in metadata.redirect_uris:
        try:
            check_redirect_uri(uri)
        except RedirectRefused as error:
            raise OAuthError("invalid_redirect_uri", f"A redirect URI {error}.") from None
    if metadata.client_name is not None and not is_plain_name(metadata.client_name):
        raise OAuthError("invalid_client_metadata", "client_name must be printable text.")
    if metadata.grant_types is not None and "authorization_code" not in metadata.grant_types:
        raise OAuthError("invalid_client_metadata", "grant_types must have authorization_code.")
    if metadata.response_types is not None and "code" not in metadata.response_types:
        raise OAuthError("invalid_client_metadata", "response_types must have code.")
    return metadata


def is_plain_name(name: str) -> bool:
    """Return whether a name shows all of itself.

    Control characters, marks of direction, invisible characters and piles of accents could make it
    look like another name, or cover the text beside it.
    """
    return (
        name.isprintable()
        and bool(name.strip())
        and not _INVISIBLE.search(name)
        and not _PILE.search("".join("^" if combining(each) else "." for each in name))
    )


def select_scopes(text: str | None) -> list[str] | None:
    """Return the known scopes in a space-separated list, in their order; None for no list."""
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
        index: ClientIndex,
        mint: IdMint,
        peppers: Mapping[int, bytes],
        *,
        most_unused: int,
        clock: Callable[[], float] = CLOCK.time,
    ) -> None:
        self._kube = kube
        self._clients = clients
        self._mint = mint
        self._peppers = peppers
        self._index = index
        self._most_unused = most_unused
        self._clock = clock

    async def register(self, body: Any) -> dict[str, Any]:
        """Register a client; the response of RFC 7591, with the secret if it has one.

        Of too many unused clients the oldest make room. Raises OAuthError; TooManyCalls where all
        of them are new; Unavailable.
        """
        metadata = read_metadata(body)
        await self._make_room()
        method = metadata.token_endpoint_auth_method or "none"
        secret = None if method == "none" else f"gwcs_{secrets.token_urlsafe(32)}"
        client_id = self._mint.mint_random(CLIENT_PREFIX, "")
        name = metadata.client_name or DEFAULT_NAME
        scopes = select_scopes(metadata.scope) or None
        spec: dict[str, Any] = {
            "clientName": name,
            "redirectUris": list(dict.fromkeys(metadata.redirect_uris)),
            "tokenEndpointAuthMethod": method,
            "dynamic": True,
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

    async def _make_room(self) -> None:
        spare = self._index.unused + 1 - self._most_unused
        if spare <= 0:
            return
        before = self._clock() - PROTECTED_SECONDS
        replaced = 0
        for name, client in self._index.list_unused(before, min(spare, _MOST_REPLACED)):
            if await self._delete_unused(name, client.id):
                replaced += 1
        if not replaced:
            _log.warning("registration refused: too many unused clients", spare=spare)
            raise TooManyCalls("Too many clients are registered.", retry_after=RETRY_SECONDS)

    async def _delete_unused(self, name: str, client_id: str) -> bool:
        """Delete the client unless a user has approved it; whether it has left the unused ones."""
        async with writing(CLIENTS, client_id):
            try:
                obj = await self._kube.get(CLIENTS.plural, name)
                if obj["spec"].get("authorized"):
                    self._clients.upsert(obj)
                    return True
                # an approval changes the version
                version = obj["metadata"]["resourceVersion"]
                await self._kube.delete(CLIENTS.plural, name, version=version)
            except ObjectNotFound:
                pass
            except WriteConflict:
                return False
        self._index.forget(name)
        return True


async def mark_authorized(
    kube: KubernetesClient, client: ClientRecord, user: str, now: float
) -> None:
    """Record that a user gives a registered client access, before a sweep may delete it.

    Raises OAuthError `invalid_client` where it is gone; Unavailable.
    """
    name = id_to_name(client.id)
    time = format_time(datetime.fromtimestamp(now, UTC))

    async def read() -> Object:
        with suppress(ObjectNotFound):
            obj = await kube.get(CLIENTS.plural, name)
            if "deletionTimestamp" not in obj["metadata"]:
                return obj
        raise OAuthError("invalid_client", "The client is gone.", status=401)

    def decide(obj: Object) -> Mapping[str, Any] | None:
        spec = obj["spec"]
        if spec.get("lastAuthorizedTime") == time:
            return None
        # each grant changes the object: a sweep that found it idle before then deletes nothing
        first = {} if spec.get("authorizedBy") else {"authorizedBy": user}
        return {"spec": {"authorized": True, "lastAuthorizedTime": time, **first}}

    async with writing(CLIENTS, name):
        await kube.update(CLIENTS.plural, read, decide)
