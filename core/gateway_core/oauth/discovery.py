"""Discovery documents (contract §10.4), for every process that serves them."""

from collections.abc import Iterable, Iterator
from typing import Any

from gateway_core.api.oauth import SCOPES

ENDPOINT_PATHS = ("/mcp", "/mcp/")
"""Paths of the endpoint on `mcp_url`."""
_RESOURCE_PATH = "/.well-known/oauth-protected-resource"
SERVER_PATHS = (
    "/.well-known/oauth-authorization-server",
    "/.well-known/oauth-authorization-server/mcp",
)
"""On `base_url` only the first; on `mcp_url` both, for clients of before June 2025."""
CACHE_CONTROL = "public, max-age=300"
AUTH_METHODS = ("none", "client_secret_post", "client_secret_basic")


def locate_resource(path: str = "") -> str:
    """Return the path of the document that is made for a path of `mcp_url` (RFC 9728 §3.1)."""
    return f"{_RESOURCE_PATH}{path}"


def describe_resources(
    base_url: str, mcp_url: str, paths: Iterable[str] = ENDPOINT_PATHS
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield path and document of the resource, and of each endpoint among `paths`.

    Each document names the identifier from which its path was made (RFC 9728 §3.3).
    """
    for path in ("", *paths):
        yield locate_resource(path), _describe_resource(base_url, f"{mcp_url}{path}")


def _describe_resource(base_url: str, resource: str) -> dict[str, Any]:
    """Protected Resource Metadata (RFC 9728)."""
    return {
        "resource": resource,
        "authorization_servers": [base_url],
        "scopes_supported": list(SCOPES),
        "bearer_methods_supported": ["header"],
        "resource_name": "Model Gateway",
    }


def describe_server(base_url: str, *, registration: bool, documents: bool) -> dict[str, Any]:
    """Authorization Server Metadata (RFC 8414).

    `registration` is whether clients may register, `documents` whether the URL of a metadata
    document is taken as a `client_id`.
    """
    described: dict[str, Any] = {
        "issuer": base_url,
        "authorization_endpoint": f"{base_url}/oauth/authorize",
        "token_endpoint": f"{base_url}/oauth/token",
        "revocation_endpoint": f"{base_url}/oauth/revoke",
        "scopes_supported": list(SCOPES),
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "token_endpoint_auth_methods_supported": list(AUTH_METHODS),
        "revocation_endpoint_auth_methods_supported": list(AUTH_METHODS),
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": documents,
        "service_documentation": f"{base_url}/openapi.json",
    }
    if registration:
        described["registration_endpoint"] = f"{base_url}/oauth/register"
    return described
