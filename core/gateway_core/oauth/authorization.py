"""Authorization requests: what a client asks a user for, checked (contract §10.6)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from gateway_core.api.errors import OAuthError
from gateway_core.api.oauth import SCOPES
from gateway_core.oauth.clients import AdmitFetch, ClientDirectory
from gateway_core.oauth.discovery import ENDPOINT_PATHS
from gateway_core.oauth.records import ClientRecord
from gateway_core.oauth.redirects import matches

Pairs = Sequence[tuple[str, str]]
"""Parameters as they came, in their order."""

MOST_STATE = 4096
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43,128}")
_KNOWN = (
    "response_type",
    "client_id",
    "redirect_uri",
    "code_challenge",
    "code_challenge_method",
    "state",
    "scope",
    "resource",
    "prompt",
)
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class AuthorizationRequest:
    """A valid request. `names_redirect` is whether it named its redirect URI itself."""

    client: ClientRecord
    redirect_uri: str
    names_redirect: bool
    state: str | None
    scopes: tuple[str, ...]
    challenge: str
    resource: str
    prompts: frozenset[str]
    pairs: Pairs = field(repr=False)
    """The parameters that it was read from, for the forms of the pages."""


class AuthorizationRefused(Exception):
    """The request is refused, which the client learns by a redirect to `location`."""

    def __init__(self, location: str) -> None:
        super().__init__("the authorization request is refused")
        self.location = location


class Authorizations:
    """Reads authorization requests for one issuer and one resource, both bare origins."""

    def __init__(self, clients: ClientDirectory, issuer: str, resource: str) -> None:
        self._clients = clients
        self._issuer = issuer
        self._resource = resource

    async def read(self, pairs: Pairs, before_fetch: AdmitFetch) -> AuthorizationRequest:
        """Return the request of these parameters.

        Unknown and empty ones are ignored (RFC 6749 §3.1).

        None may be repeated, but for equivalent spellings of the resource (RFC 8707 §2).

        Raises:
            OAuthError: client or redirect URI are not to be trusted, so there is no redirect.
            AuthorizationRefused: anything else is wrong.
        """
        filled = [(name, value) for name, value in pairs if value]
        given = [(name, value) for name, value in filled if name in _KNOWN]
        client_id = _take_one(given, "client_id")
        if client_id is None:
            raise OAuthError("invalid_request", "The parameter client_id is missing.")
        client = await self._clients.find(client_id, before_fetch)
        named = _take_one(given, "redirect_uri")
        redirect_uri = _choose_redirect(client, named)
        values = dict(given)
        state = values.get("state")
        states = [value for name, value in given if name == "state"]
        if len(states) > 1 or len(state or "") > MOST_STATE:
            state = None

        def refuse(code: str, description: str) -> AuthorizationRefused:
            return AuthorizationRefused(self.locate_error(redirect_uri, state, code, description))

        try:
            check_repetitions(filled)
            self.check_resources([value for name, value in given if name == "resource"])
        except OAuthError as error:
            raise refuse(error.code, error.message) from None
        if len(values.get("state", "")) > MOST_STATE:
            raise refuse("invalid_request", f"state may have {MOST_STATE} characters.")
        if values.get("response_type") != "code":
            code = "unsupported_response_type" if "response_type" in values else "invalid_request"
            raise refuse(code, "response_type must be code.")
        if values.get("code_challenge_method") != "S256":
            raise refuse("invalid_request", "code_challenge_method must be S256.")
        challenge = values.get("code_challenge", "")
        if not _CHALLENGE.fullmatch(challenge):
            raise refuse("invalid_request", "code_challenge must be 43 to 128 characters.")
        scopes = _choose_scopes(client, values.get("scope"))
        if not scopes:
            raise refuse("invalid_scope", f"scope must have one of {' '.join(SCOPES)}.")
        return AuthorizationRequest(
            client=client,
            redirect_uri=redirect_uri,
            names_redirect=named is not None,
            state=state,
            scopes=scopes,
            challenge=challenge,
            resource=self._resource,
            prompts=frozenset(values.get("prompt", "").split()),
            pairs=list(values.items()),
        )

    def check_resources(self, named: Iterable[str]) -> None:
        """Raise OAuthError `invalid_target` unless each names the one resource."""
        accepted = {f"{self._resource}{path}" for path in ("", "/", *ENDPOINT_PATHS)}
        if not accepted.issuperset(map(_normalize, named)):
            raise OAuthError("invalid_target", f"resource must be {self._resource}.")

    def locate_code(self, request: AuthorizationRequest, code: str) -> str:
        """Where the user is sent back to with a code."""
        return self._locate(request.redirect_uri, request.state, code=code)

    def locate_error(
        self, redirect_uri: str, state: str | None, code: str, description: str
    ) -> str:
        """Where the user is sent back to with an error."""
        return self._locate(redirect_uri, state, error=code, error_description=description)

    def _locate(self, redirect_uri: str, state: str | None, **parameters: str) -> str:
        if state is not None:
            parameters["state"] = state
        parameters["iss"] = self._issuer
        mark = "&" if "?" in redirect_uri else "?"
        return f"{redirect_uri}{mark}{urlencode(parameters)}"


def check_repetitions(pairs: Pairs) -> None:
    """Raise OAuthError `invalid_request` where a parameter other than `resource` is repeated."""
    names = [name for name, _ in pairs if name != "resource"]
    if len(set(names)) != len(names):
        raise OAuthError("invalid_request", "A parameter is repeated.")


def _take_one(pairs: Pairs, name: str) -> str | None:
    found = [value for key, value in pairs if key == name]
    if len(found) > 1:
        raise OAuthError("invalid_request", f"The parameter {name} is repeated.")
    return found[0] if found else None


def _choose_redirect(client: ClientRecord, named: str | None) -> str:
    if named is None:
        if len(client.redirect_uris) == 1:
            return client.redirect_uris[0]
        raise OAuthError("invalid_request", "The parameter redirect_uri is missing.")
    if not any(matches(registered, named) for registered in client.redirect_uris):
        raise OAuthError("invalid_request", "The redirect_uri is none that the client registered.")
    return named


def _choose_scopes(client: ClientRecord, text: str | None) -> tuple[str, ...]:
    """Return the known scopes that are asked for, all without any; within those of the client."""
    allowed = [scope for scope in SCOPES if client.scopes is None or scope in client.scopes]
    asked = set(allowed) if not text else set(text.split())
    return tuple(scope for scope in allowed if scope in asked)


def _normalize(url: str) -> str:
    """Return the URL with scheme and host in lower case, without the usual port."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return url
    if "@" in parts.netloc or not parts.hostname:
        return url
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = "" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{port}"
    rest = url[url.index("://") + 3 + len(parts.netloc) :] if "://" in url else ""
    return f"{parts.scheme}://{host}{shown}{rest}"
