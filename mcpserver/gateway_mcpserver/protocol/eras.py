"""Which of the two protocols a request speaks, and the envelope of the modern one. Pure.

A legacy session opens with `initialize` and names its version in a header from then on; a modern
request (2026-07-28) brings version and capabilities in `params._meta`, and headers that repeat what
the body says (contract §10.2).
"""

from collections.abc import Iterable
from enum import Enum

from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    MCP_PROTOCOL_VERSION_HEADER,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
    unsupported_protocol_version_rejection,
)
from mcp.types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp.types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    MODERN_PROTOCOL_VERSIONS,
)

from gateway_mcpserver.protocol.messages import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    Message,
    RpcError,
)
from gateway_web.context import Header

_ENVELOPE = frozenset({PROTOCOL_VERSION_META_KEY, CLIENT_CAPABILITIES_META_KEY})
_MODERN_METHODS = frozenset({"server/discover", "subscriptions/listen"})


class Era(Enum):
    """The protocol of a request."""

    LEGACY = "legacy"
    MODERN = "modern"


def choose_era(message: Message, headers: Iterable[Header]) -> Era:
    """Return the era of a message, whose envelope is checked if it is modern.

    Raises RpcError: headers and body differ, the envelope is incomplete, or the version is unknown.
    """
    pairs = [
        (name.decode("latin-1"), value.decode("latin-1").strip(" \t")) for name, value in headers
    ]
    version = next((value for name, value in pairs if name == MCP_PROTOCOL_VERSION_HEADER), None)
    in_body = message.method in _MODERN_METHODS or not _ENVELOPE.isdisjoint(message.meta)
    if not in_body and version not in MODERN_PROTOCOL_VERSIONS:
        if (
            version is not None
            and version not in HANDSHAKE_PROTOCOL_VERSIONS
            and message.method != "initialize"
        ):
            raise _reject(unsupported_protocol_version_rejection(version))
        return Era.LEGACY
    if message.id is None:
        # the headers of notifications are not defined; only an unknown version is refused
        raise_unless_supported(version)
        return Era.MODERN
    repeated = find_duplicated_routing_header(pairs)
    if repeated is not None:
        raise RpcError(HEADER_MISMATCH, f"The header {repeated} was sent more than once.")
    body = {"method": message.method, "params": message.params}
    verdict = classify_inbound_request(body, headers=dict(pairs))
    if isinstance(verdict, InboundLadderRejection):
        raise _reject(verdict)
    # the SDK looks whether they are there
    if not isinstance(message.meta.get(CLIENT_CAPABILITIES_META_KEY), dict):
        raise RpcError(INVALID_PARAMS, f"{CLIENT_CAPABILITIES_META_KEY} must be an object.")
    return Era.MODERN


def raise_unless_supported(version: str | None) -> None:
    """Raise RpcError for a version that is given and not served."""
    if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
        rejection = unsupported_protocol_version_rejection(version)
        if rejection is not None:
            raise _reject(rejection)


def negotiate(requested: object) -> str:
    """Return the version of a session that opens with `initialize`."""
    known = isinstance(requested, str) and requested in HANDSHAKE_PROTOCOL_VERSIONS
    return str(requested) if known else LATEST_HANDSHAKE_VERSION


def _reject(rejection: InboundLadderRejection | None) -> RpcError:
    assert rejection is not None
    status = ERROR_CODE_HTTP_STATUS.get(rejection.code, 400)
    return RpcError(rejection.code, rejection.message, status=status, data=rejection.data)
