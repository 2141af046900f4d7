"""Which dialect a request speaks, told from the request alone (contract §0.1).

Decided before routing, so that an unrouted path is answered in the dialect its client reads.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl

NATIVE_ACTIONS = frozenset(
    {
        "batchEmbedContents",
        "countTokens",
        "embedContent",
        "generateContent",
        "predict",
        "streamGenerateContent",
    }
)
"""Words after the last colon of a path that make it native for a GET, too (contract §8.1)."""


_READ_BY_ANY_ORIGIN = frozenset({"/oauth/register", "/oauth/token", "/oauth/revoke"})


class Dialect(Enum):
    """The form of errors."""

    TASK = "task"
    OPENAI = "openai"
    GOOGLE = "google"
    OAUTH = "oauth"


def may_be_read_by_any_origin(path: str) -> bool:
    """Whether pages of every origin may read the answer, errors too (contract §0.11)."""
    return path.startswith("/.well-known/") or path in _READ_BY_ANY_ORIGIN


def choose_dialect(scope: Mapping[str, Any]) -> Dialect:
    """The dialect of the request that the ASGI `scope` describes."""
    path: str = scope["path"]
    if path.startswith(("/oauth/", "/.well-known/")) or path in ("/oauth", "/.well-known"):
        return Dialect.OAUTH
    if path == "/v1beta" or path.startswith("/v1beta/"):
        return Dialect.GOOGLE
    if path != "/v1" and not path.startswith("/v1/"):
        return Dialect.TASK
    if path.startswith("/v1/models/") and ":" in path:
        action = path.rpartition(":")[2]
        if scope["method"] == "POST" or action in NATIVE_ACTIONS:
            return Dialect.GOOGLE
    names = {name for name, _ in scope["headers"]}
    if b"authorization" in names:
        return Dialect.OPENAI
    query = scope["query_string"].decode("latin-1")
    native = b"x-goog-api-key" in names or any(
        name == "key" for name, _ in parse_qsl(query, keep_blank_values=True)
    )
    return Dialect.GOOGLE if native else Dialect.OPENAI
