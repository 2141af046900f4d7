"""OpenID Connect: what a provider says of a person who signs in there.

The provider is one that an admin declares. Authorization code with S256, state and nonce; ID tokens
are verified with the provider's keys, by asymmetric algorithms only.
"""

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import orjson
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet

from gateway_core.api.errors import GatewayError
from gateway_core.concurrency import SingleFlight
from gateway_core.egress.connector import GuardedSession
from gateway_core.failures import describe_failure
from gateway_core.kube.clock import CLOCK

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512")
ANSWER_BYTES = 256 * 1024
ANSWER_SECONDS = 10.0
KEPT_SECONDS = 3600.0
"""How long the provider's configuration and keys are used before they are read again."""
LEAST_PAUSE = 60.0
"""Between reads of the keys because of tokens whose key is not known."""
LEEWAY_SECONDS = 60
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+")


class SignOnFailed(GatewayError):
    """Single sign-on failed; the text is for the person and has no details of the provider."""

    status = 502
    code = "upstream_error"


@dataclass(frozen=True, slots=True)
class Identity:
    """A person as the provider knows them.

    `email` is None unless it is verified or trusted; `refusal` then has the reason.
    """

    issuer: str
    subject: str
    email: str | None
    name: str
    refusal: str = ""


def judge_email(
    token: Mapping[str, Any], user: Mapping[str, Any], trusted: Collection[str]
) -> tuple[str | None, str]:
    """Return the email that counts, or None and the reason for the person.

    The claims are those of the ID token and of the user information, of one person. Some providers
    send `email_verified` as text. Where both leave it out, the email counts if its domain is
    trusted. Any other value than true refuses it.
    """
    emails = [claims["email"] for claims in (token, user) if claims.get("email") is not None]
    if not emails:
        return None, "The provider names no email address of yours: the claim email is missing."
    if not all(isinstance(email, str) and _EMAIL.fullmatch(email) for email in emails):
        return None, "The provider's claim email is not an email address."
    if len({email.lower() for email in emails}) > 1:
        return None, "The provider names two email addresses in its claim email."
    claimed = [claims.get("email_verified") for claims in (token, user)]
    statements = [str(claim).lower() for claim in claimed if claim is not None]
    if any(statement != "true" for statement in statements):
        return None, "The provider says that your email address is not verified (email_verified)."
    domain = emails[0].rpartition("@")[2].lower()
    if not statements and domain not in trusted:
        return None, (
            "The provider does not say that your email address is verified: the claim"
            " email_verified is missing. An administrator can trust the provider for your domain."
        )
    return emails[0], ""


class OidcClient:
    """One provider. `clock` gives Unix seconds, `monotonic` the age of what was read.

    Emails of `trusted_domains` count where the provider does not say whether they are verified.
    """

    def __init__(
        self,
        session: GuardedSession,
        issuer: str,
        client_id: str,
        client_secret: str,
        redirect_uri: str,
        *,
        trusted_domains: Collection[str] = (),
        clock: Callable[[], float] = CLOCK.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._issuer = issuer
        self._client_id = client_id
        self._secret = client_secret
        self._redirect_uri = redirect_uri
        self._trusted_domains = frozenset(domain.lower() for domain in trusted_domains)
        self._clock = clock
        self._monotonic = monotonic
        self._reads = SingleFlight[Mapping[str, Any]]()
        self._kept: dict[str, tuple[float, Mapping[str, Any]]] = {}

    @property
    def issuer(self) -> str:
        """The provider's issuer identifier."""
        return self._issuer

    async def locate(self, state: str, nonce: str, challenge: str) -> str:
        """Where the person signs in. SignOnFailed."""
        described = await self._describe()
        parameters = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": self._redirect_uri,
            "scope": "openid email profile",
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = _read_url(described, "authorization_endpoint")
        mark = "&" if "?" in endpoint else "?"
        return f"{endpoint}{mark}{urlencode(parameters)}"

    async def redeem(self, code: str, verifier: str, nonce: str) -> Identity:
        """Who signed in, for the code that the provider sent back. SignOnFailed."""
        described = await self._describe()
        pair = f"{quote(self._client_id, safe='')}:{quote(self._secret, safe='')}"
        answer = await self._call(
            "POST",
            _read_url(described, "token_endpoint"),
            data={
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": self._redirect_uri,
                "code_verifier": verifier,
            },
            headers={"Authorization": f"Basic {b64encode(pair.encode()).decode()}"},
        )
        claims = await self._verify(answer.get("id_token"), nonce)
        user: Mapping[str, Any] = {}
        is_whole = all(claims.get(name) is not None for name in ("email", "email_verified"))
        if not is_whole and "userinfo_endpoint" in described:
            user = await self._read_user(described, answer, claims["sub"])
        email, refusal = judge_email(claims, user, self._trusted_domains)
        return Identity(
            issuer=self._issuer,
            subject=str(claims["sub"]),
            email=email,
            name=str(claims.get("name") or user.get("name") or "")[:127],
            refusal=refusal,
        )

    async def _read_user(
        self, described: Mapping[str, Any], answer: Mapping[str, Any], subject: str
    ) -> Mapping[str, Any]:
        """Claims that are not in the ID token, if they are of the same person."""
        token = str(answer.get("access_token", ""))
        found = await self._call(
            "GET",
            _read_url(described, "userinfo_endpoint"),
            headers={"Authorization": f"Bearer {token}"},
        )
        if found.get("sub") != subject:
            raise _failed("names another person")
        return found

    async def _verify(self, token: object, nonce: str) -> dict[str, Any]:
        if not isinstance(token, str):
            raise _failed("sent no ID token")
        try:
            try:
                decoded = jwt.decode(token, await self._read_keys(), algorithms=ALGORITHMS)
            except (InvalidKeyIdError, ValueError):
                # a key that is new since the keys were read
                keys = await self._read_keys(newest=True)
                decoded = jwt.decode(token, keys, algorithms=ALGORITHMS)
            registry = jwt.JWTClaimsRegistry(
                now=lambda: int(self._clock()),
                leeway=LEEWAY_SECONDS,
                iss={"essential": True, "value": self._issuer},
                aud={"essential": True, "value": self._client_id},
                exp={"essential": True},
                iat={"essential": True},
                sub={"essential": True},
                nonce={"essential": True, "value": nonce},
            )
            registry.validate(decoded.claims)
        except (JoseError, ValueError) as error:
            raise _failed(
                f"sent an ID token that is not valid: {describe_failure(error)}"
            ) from error
        claims = dict(decoded.claims)
        if claims.get("azp", self._client_id) != self._client_id:
            raise _failed("sent an ID token for another client")
        return claims

    async def _describe(self) -> Mapping[str, Any]:
        url = f"{self._issuer.rstrip('/')}/.well-known/openid-configuration"
        described = await self._read(url, KEPT_SECONDS)
        if described.get("issuer") != self._issuer:
            raise _failed("calls itself by another name")
        return described

    async def _read_keys(self, *, newest: bool = False) -> KeySet:
        url = _read_url(await self._describe(), "jwks_uri")
        keys = await self._read(url, LEAST_PAUSE if newest else KEPT_SECONDS)
        # asymmetric keys alone: one of the client's secret would verify what anybody signs
        public = [key for key in keys.get("keys", ()) if key.get("kty") in ("RSA", "EC")]
        return KeySet.import_key_set({"keys": public})

    async def _read(self, url: str, age: float) -> Mapping[str, Any]:
        read_at, known = self._kept.get(url, (float("-inf"), {}))
        if self._monotonic() - read_at < age:
            return known

        async def read() -> Mapping[str, Any]:
            found = await self._call("GET", url)
            self._kept[url] = self._monotonic(), found
            return found

        return await self._reads.run(url, read)

    async def _call(self, method: str, url: str, **given: Any) -> Mapping[str, Any]:
        """Return the JSON object that the provider answers with."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                async with self._session.open().request(
                    method, url, allow_redirects=False, **given
                ) as answer:
                    content = b""
                    async for chunk in answer.content.iter_chunked(16384):
                        content += chunk
                        if len(content) > ANSWER_BYTES:
                            raise _failed("answers too much")
                    status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise _failed(f"cannot be reached: {describe_failure(error)}") from error
        if status != 200:
            raise _failed(f"answered with status {status}")
        try:
            body = orjson.loads(content)
        except orjson.JSONDecodeError:
            body = None
        if not isinstance(body, dict):
            raise _failed("answered with something else than a JSON object")
        return body


def _read_url(described: Mapping[str, Any], name: str) -> str:
    url = described.get(name)
    if not isinstance(url, str) or not url.startswith(("https://", "http://")):
        raise _failed(f"declares no {name}")
    return url


def _failed(reason: str) -> SignOnFailed:
    return SignOnFailed(f"Single sign-on failed: the provider {reason}.")
