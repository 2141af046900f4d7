"""Reasoning of earlier turns and what belongs to it, on its way through a client and back.

Items of reasoning in Responses carry the provider's own fields, sealed in `encrypted_content`;
chat has Google's signature of a call in `extra_content`, as in Google's own chat interface. A
provider of another format gets neither of them (contract §7.5).
"""

import binascii
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from operator import is_
from typing import Any

import orjson

from gateway_core.llm.formats.calls import Format, as_object, as_objects

PLACEHOLDER_SIGNATURE = "skip_thought_signature_validator"
"""Google's documented signature of a call that its model did not write, or that a client lost."""

_SEAL = "gateway:"
_CALL_ID = re.compile(r"call_([0-9a-f]{12})([0-9a-f]{12})")
"""The gateway's id of a call; its second half follows from the first and from a signature."""
FIELDS = ("reasoning_content", "reasoning")
"""Fields of a chat message for reasoning; providers have either, or both with the same text."""
_TEXTS = frozenset({"data", "summary", "text"})
"""Fields of `reasoning_details` that come in pieces."""
_UNSIGNED_MODELS = re.compile(r"(?:.*/)?gemini-[12]\b")
"""Google's models that need no signatures."""


@dataclass(frozen=True, slots=True)
class Thoughts:
    """What returns to a provider of an earlier turn.

    `field` is the field of chat that had the reasoning, if it comes from a provider of chat, and
    `details` are the `reasoning_details` that aggregators want back unchanged. `extra` is the
    `extra_content` of the call that follows.
    """

    field: str | None = None
    extra: Mapping[str, Any] | None = None
    details: Sequence[Mapping[str, Any]] = ()

    def seal(self) -> str:
        """Return the `encrypted_content` of an item of reasoning."""
        state = {"field": self.field, "extra": self.extra, "details": self.details}
        return _SEAL + urlsafe_b64encode(orjson.dumps(state)).decode()


def unseal(item: Mapping[str, Any]) -> Thoughts | None:
    """Return what an item of reasoning carries; None if it is not the gateway's."""
    sealed = item.get("encrypted_content")
    if not isinstance(sealed, str) or not sealed.startswith(_SEAL):
        return None
    try:
        state = as_object(orjson.loads(urlsafe_b64decode(sealed.removeprefix(_SEAL))))
    except (binascii.Error, ValueError):
        # a client changed it
        return Thoughts()
    field = state.get("field")
    return Thoughts(
        field if field in FIELDS else None,
        as_object(state.get("extra")) or None,
        as_objects(state.get("details")),
    )


def read_reasoning(message: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the field and the text of the reasoning in a chat message, or in a delta of one."""
    for field in FIELDS:
        text = message.get(field)
        if isinstance(text, str) and text:
            return field, text
    return None


def join_details(details: list[dict[str, Any]], delta: Mapping[str, Any]) -> None:
    """Add the `reasoning_details` of a delta to those before: pieces of one have one index."""
    for piece in as_objects(delta.get("reasoning_details")):
        last = details[-1] if details else {}
        if any(piece.get(name) != last.get(name) for name in ("type", "index")):
            details.append(dict(piece))
            continue
        for name, value in piece.items():
            is_text = name in _TEXTS and isinstance(value, str) and isinstance(last.get(name), str)
            if value is not None:
                last[name] = last[name] + value if is_text else value


def sign_call(signature: str) -> dict[str, Any]:
    """Return the `extra_content` of a call in chat that Google signed."""
    return {"google": {"thought_signature": signature}}


def make_call_id(signature: str = "") -> str:
    """Return a new id of a call. By it a signature of Google is told from a chat provider's own."""
    start = secrets.token_hex(6)
    return f"call_{start}{_digest(start, signature)}"


def read_signature(call: Mapping[str, Any]) -> str | None:
    """Return Google's signature of a call in chat."""
    google = as_object(as_object(call.get("extra_content")).get("google"))
    signature = google.get("thought_signature")
    return signature if isinstance(signature, str) else None


def settle_thoughts(
    body: Mapping[str, Any], upstream: Format, upstream_model: str
) -> Mapping[str, Any]:
    """Return a body for the provider without what the gateway keeps in it for other providers.

    Google gets a placeholder where the first call of a turn has no signature, which its newer
    models refuse. The body is the same object where nothing changes.
    """
    match upstream:
        case Format.CHAT:
            return _change_items(body, "messages", _remove_signatures)
        case Format.RESPONSES:
            return _change_items(body, "input", _remove_thoughts)
        case Format.GOOGLE if _UNSIGNED_MODELS.match(upstream_model):
            return body
        case Format.GOOGLE:
            return _change_items(body, "contents", _sign)


def _change_items(body: Mapping[str, Any], name: str, change: Any) -> Mapping[str, Any]:
    items = body.get(name)
    if not isinstance(items, list):
        return body
    changed = [change(item) if isinstance(item, dict) else item for item in items]
    if all(map(is_, changed, items)):
        return body
    return {**body, name: [item for item in changed if item is not None]}


def _remove_signatures(message: dict[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls or not any(
        "extra_content" in call and _is_own(call) for call in as_objects(calls)
    ):
        return message
    assert isinstance(calls, list)
    kept = [
        {name: value for name, value in call.items() if name != "extra_content"}
        if isinstance(call, dict) and _is_own(call)
        else call
        for call in calls
    ]
    return {**message, "tool_calls": kept}


def _is_own(call: Mapping[str, Any]) -> bool:
    signature, found = read_signature(call), _CALL_ID.fullmatch(str(call.get("id")))
    if signature is None or found is None:
        return False
    return found[2] == _digest(found[1], signature)


def _digest(start: str, signature: str) -> str:
    return sha256(f"{start}{signature}".encode()).hexdigest()[:12]


def _remove_thoughts(item: dict[str, Any]) -> dict[str, Any] | None:
    return None if item.get("type") == "reasoning" and unseal(item) is not None else item


def _sign(content: dict[str, Any]) -> dict[str, Any]:
    """Sign the first call of a content, unless one of its calls is signed."""
    if content.get("role") != "model":
        return content
    parts = content.get("parts")
    if not isinstance(parts, list):
        return content
    places = [
        place
        for place, part in enumerate(parts)
        if isinstance(part, dict) and ("functionCall" in part or "function_call" in part)
    ]
    names = ("thoughtSignature", "thought_signature")
    if not places or any(parts[place].get(name) for place in places for name in names):
        return content
    signed = list(parts)
    signed[places[0]] = {**parts[places[0]], names[0]: PLACEHOLDER_SIGNATURE}
    return {**content, "parts": signed}
