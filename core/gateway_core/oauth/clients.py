"""Clients by their id: registered ones, and those whose id is the URL of a metadata document.

Contract §10.5. A document is fetched through the egress guard, without redirects, and kept in
memory for as long as its headers say, a minute to a day.
"""

import base64
import binascii
import hmac
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import unquote_plus, urlsplit

import orjson
import structlog

from gateway_core.accounts.authentication import find_current
from gateway_core.api.errors import OAuthError
from gateway_core.api.ids import IdMint, Ownership, id_to_name
from gateway_core.api.key import digest
from gateway_core.api.oauth import CLIENT_PREFIX, MOST_CLIENT_ID
from gateway_core.concurrency import SingleFlight
from gateway_core.files.fetching import Fetcher, FetchFailed
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.kube.read_through import ReadThrough
from gateway_core.oauth.fair_cache import FairCache
from gateway_core.oauth.records import ClientRecord
from gateway_core.oauth.registration import read_metadata, select_scopes

AdmitFetch = Callable[[], Awaitable[str]]
"""Called before a fetch, which it may refuse by an exception; the address that asks for it."""

DOCUMENT_BYTES = 8 * 1024
DOCUMENT_SECONDS = 5.0
LEAST_CACHED, MOST_CACHED = 60.0, 24 * 3600.0
STALE_SECONDS = 3600.0
"""How long an expired document is used further while its host cannot be reached."""
FAILURE_SECONDS = 30.0
"""How long a failure is remembered: until then the document is not fetched again."""
MOST_DOCUMENTS = 1000
_log = structlog.get_logger(__name__)
_PLAIN = re.compile(r"[!-~]+")
_MAX_AGE = re.compile(r"(?:^|[\s,])max-age=([0-9]{1,9})", re.IGNORECASE)


def is_document_url(client_id: str) -> bool:
    """Return whether a client id is the URL of a metadata document: `https`, a host and a path."""
    if len(client_id) > MOST_CLIENT_ID or not _PLAIN.fullmatch(client_id):
        return False
    if not client_id.startswith("https://") or "\\" in client_id or "#" in client_id:
        return False
    try:
        parts = urlsplit(client_id)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    segments = parts.path.split("/")
    plain = bool(host) and "@" not in parts.netloc and parts.path not in ("", "/")
    return plain and "." not in segments and ".." not in segments


class MetadataDocuments:
    """Fetches metadata documents, each once at a time. `fetcher` follows no redirect.

    Addresses that ask for documents share fetches and memory fairly: a host is of their choice.
    """

    def __init__(self, fetcher: Fetcher, clock: Callable[[], float] = time.monotonic) -> None:
        self._fetcher = fetcher
        self._clock = clock
        self._known = FairCache[tuple[float, ClientRecord]](MOST_DOCUMENTS)
        self._failures = FairCache[tuple[float, OAuthError]](MOST_DOCUMENTS)
        self._fetches = SingleFlight[ClientRecord]()

    async def find(self, url: str, before_fetch: AdmitFetch) -> ClientRecord:
        """Return the client that the document describes.

        Raises OAuthError `invalid_client`; Unavailable where too many are being fetched.
        """
        until, known = self._known.get(url) or (0.0, None)
        if known is not None and until > self._clock():
            return known
        failed_until, failure = self._failures.get(url) or (0.0, None)
        if failure is not None and failed_until > self._clock():
            return self._find_stale(url, failure)
        address = await before_fetch()
        try:
            return await self._fetches.run(url, lambda: self._fetch(url, address))
        except DocumentUnreachable as error:
            self._failures.put(url, (self._clock() + FAILURE_SECONDS, error), address)
            return self._find_stale(url, error)
        except OAuthError as error:
            # what the host says counts
            self._known.remove(url)
            self._failures.put(url, (self._clock() + FAILURE_SECONDS, error), address)
            raise

    def _find_stale(self, url: str, failure: OAuthError) -> ClientRecord:
        """Return the document as it was, while its host is away; else raise the failure."""
        until, known = self._known.get(url) or (0.0, None)
        if known is not None and until + STALE_SECONDS > self._clock():
            return known
        raise type(failure)(failure.code, failure.message, status=failure.status)

    async def _fetch(self, url: str, address: str) -> ClientRecord:
        content = b""
        try:
            async with self._fetcher.open(url, f"documents for {address}") as fetched:
                async for chunk in fetched.chunks:
                    content += chunk
                    if len(content) > DOCUMENT_BYTES:
                        raise _refuse(f"has more than {DOCUMENT_BYTES} bytes")
                caching = fetched.cache_control
        except FetchFailed as error:
            # the reason would tell a stranger which internal names and addresses there are
            _log.info("client document not fetched", host=urlsplit(url).hostname, reason=str(error))
            raise _refuse("could not be fetched", DocumentUnreachable) from None
        record = _read_document(url, content)
        found = _MAX_AGE.search(caching)
        seconds = min(MOST_CACHED, max(LEAST_CACHED, float(found[1]) if found else LEAST_CACHED))
        self._failures.remove(url)
        self._known.put(url, (self._clock() + seconds, record), address)
        return record


class DocumentUnreachable(OAuthError):
    """The host of a metadata document does not answer with one."""


def _read_document(url: str, content: bytes) -> ClientRecord:
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        raise _refuse("is no JSON") from None
    if not isinstance(body, dict) or body.get("client_id") != url:
        raise _refuse("does not have its own URL as client_id")
    metadata = read_metadata(body)
    if metadata.client_name is None:
        raise _refuse("has no client_name")
    if metadata.token_endpoint_auth_method not in (None, "none"):
        raise _refuse("asks for another token_endpoint_auth_method than none")
    scopes = select_scopes(metadata.scope)
    return ClientRecord(
        id=url,
        name=metadata.client_name,
        redirect_uris=tuple(metadata.redirect_uris),
        scopes=frozenset(scopes) if scopes else None,
        authorized=True,
    )


def _refuse(reason: str, kind: type[OAuthError] = OAuthError) -> OAuthError:
    return kind("invalid_client", f"The client's metadata document {reason}.", status=401)


class ClientDirectory:
    """Finds and authenticates clients. `documents` is None where none are accepted."""

    def __init__(
        self,
        clients: ReadThrough[ClientRecord],
        mint: IdMint,
        peppers: Mapping[int, bytes],
        documents: MetadataDocuments | None,
    ) -> None:
        self._clients = clients
        self._mint = mint
        self._peppers = peppers
        self._documents = documents

    async def find(self, client_id: str, before_fetch: AdmitFetch) -> ClientRecord:
        """Return the client that asks for authorization.

        Raises OAuthError `invalid_client`, Unavailable.
        """
        if self._documents is not None and is_document_url(client_id):
            return await self._documents.find(client_id, before_fetch)
        found = await self._find_registered(client_id)
        if found is None:
            raise _unknown()
        return found

    async def authenticate(
        self, authorization: str | None, form: Mapping[str, str]
    ) -> ClientRecord:
        """Return the client of a call of the token endpoint, by Basic, by its form, or public.

        `authorization` is the request's header. The document of a client that is known by one is
        not read: its id is compared with that of the grant.

        Raises OAuthError `invalid_client` (401) or `invalid_request`, Unavailable.
        """
        client_id, secret = form.get("client_id"), form.get("client_secret")
        is_basic = authorization is not None
        if authorization is not None:
            basic_id, basic_secret = _read_basic(authorization)
            if secret is not None or client_id not in (None, basic_id):
                raise OAuthError("invalid_request", "The client authenticates in two ways.")
            client_id, secret = basic_id, basic_secret
        if not client_id:
            raise _unknown(basic=is_basic)
        if self._documents is not None and is_document_url(client_id):
            if secret:
                raise _unknown(basic=is_basic)
            return ClientRecord(client_id, client_id, (), authorized=True)
        client = await self._find_registered(client_id)
        if client is None or not self._is_authentic(client, secret):
            raise _unknown(basic=is_basic)
        return client

    async def _find_registered(self, client_id: str) -> ClientRecord | None:
        if not client_id.startswith(f"{CLIENT_PREFIX}_") or len(client_id) > 63:
            return None
        ownership = self._mint.check(CLIENT_PREFIX, "", client_id)
        if ownership is Ownership.FOREIGN:
            return None
        name = id_to_name(client_id)
        found = await find_current(self._clients, name)
        if found is None and ownership is Ownership.MINTED:
            # another replica may have registered it just now
            try:
                return await self._clients.read(name)
            except KubernetesUnavailable as error:
                raise OAuthError(
                    "temporarily_unavailable", "Clients cannot be read now.", status=503
                ) from error
        return found

    def _is_authentic(self, client: ClientRecord, secret: str | None) -> bool:
        if client.auth_method == "none" or client.secret is None:
            return client.auth_method == "none" and not secret
        stored, version = client.secret
        pepper = self._peppers.get(version)
        if pepper is None or secret is None:
            return False
        return hmac.compare_digest(digest(secret, pepper), stored)


def _read_basic(authorization: str) -> tuple[str, str]:
    scheme, _, encoded = authorization.partition(" ")
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except (ValueError, binascii.Error):
        raise _unknown(basic=True) from None
    client_id, colon, secret = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise _unknown(basic=True)
    return unquote_plus(client_id), unquote_plus(secret)


def _unknown(*, basic: bool = False) -> OAuthError:
    return OAuthError("invalid_client", "The client is not known.", status=401, basic=basic)
