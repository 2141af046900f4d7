"""Moderation requests, of single calls and Batch lines, and complete responses (contract §6)."""

import math
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from gateway_core.api.errors import InvalidRequest

CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/intent",
    "self-harm/instructions",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
MOST_INPUTS = 2048
"""Texts or parts in one input: each text has a result, which is longer than the text."""
_MOST_MODEL = 253
_MOST_DEPTH = 100
_IMAGE_SCHEMES = ("http://", "https://", "data:")
_ID = re.compile(r"modr-[A-Za-z0-9_-]{1,120}")

_NO_TEXT = "must not have a \\u escape that is half a character"

InputKind = Literal["text", "image"]


@dataclass(frozen=True, slots=True)
class ModerationCall:
    """A valid body: the `input` as sent, and the `kinds` of its parts."""

    model_id: str
    input: Any
    results: int
    kinds: frozenset[InputKind]

    def to_upstream(self, model: str) -> dict[str, Any]:
        """Return the body for a provider whose name of the model is `model`."""
        return {"model": model, "input": self.input}


class InvalidResponse(ValueError):
    """A provider's response that cannot be completed."""


def read_call(
    body: Mapping[str, Any], *, default_model: str | None = None, within: str = ""
) -> ModerationCall:
    """Return the call of a body; unknown keys are ignored (contract §0.2).

    `default_model` is for a body without one; `within` is the prefix of field names in errors,
    `body.` in a Batch. Raises InvalidRequest with its code and the field as its param.
    """
    model_id = body.get("model")
    if model_id is None:
        model_id = default_model
    if model_id is None:
        raise _missing(within + "model")
    if not isinstance(model_id, str):
        raise _mistyped(within + "model", "must be a string")
    if not 0 < len(model_id) <= _MOST_MODEL:
        raise _invalid(within + "model", f"must have 1 to {_MOST_MODEL} characters")
    if not is_text(model_id):
        raise _invalid(within + "model", _NO_TEXT)
    given, name = body.get("input"), within + "input"
    if given is None:
        raise _missing(name)
    if isinstance(given, str):
        if not given:
            raise _invalid(name, "must not be empty")
        if not is_text(given):
            raise _invalid(name, _NO_TEXT)
        return ModerationCall(model_id, given, 1, frozenset({"text"}))
    if not isinstance(given, list):
        raise _mistyped(name, "must be a string or an array")
    if not given:
        raise _invalid(name, "must not be empty")
    if len(given) > MOST_INPUTS:
        raise _invalid(name, f"must have at most {MOST_INPUTS} items")
    _check_sendable(name, given)
    if all(isinstance(item, str) for item in given):
        return ModerationCall(model_id, given, len(given), frozenset({"text"}))
    kinds: frozenset[InputKind] = frozenset(
        _read_part(name, place, item) for place, item in enumerate(given)
    )
    return ModerationCall(model_id, given, 1, kinds)


def is_text(value: str) -> bool:
    """Return whether it can be encoded as UTF-8: JSON escapes may be half of a surrogate pair."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def complete_answer(document: Any, call: ModerationCall) -> dict[str, Any]:
    """Return a provider's response with all keys of the contract and the client's model name.

    Raises InvalidResponse.
    """
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or len(results) != call.results:
        raise InvalidResponse("not one result for each input")
    answer_id = document.get("id")
    if not isinstance(answer_id, str) or not _ID.fullmatch(answer_id):
        answer_id = f"modr-{secrets.token_hex(12)}"
    shown = [_complete_result(result, call.kinds) for result in results]
    return {"id": answer_id, "model": call.model_id, "results": shown}


def _complete_result(result: Any, kinds: frozenset[InputKind]) -> dict[str, Any]:
    if not isinstance(result, dict):
        raise InvalidResponse("a result is no object")
    categories = _read_object(result, "categories")
    scores = _read_object(result, "category_scores")
    flags = {name: _read_flag(categories.get(name)) for name in CATEGORIES}
    flagged = result.get("flagged")
    applied = result.get("category_applied_input_types")
    types = applied if isinstance(applied, dict) else {}
    return {
        "flagged": any(flags.values()) if flagged is None else _read_flag(flagged),
        "categories": flags,
        "category_scores": {name: _read_score(scores.get(name)) for name in CATEGORIES},
        "category_applied_input_types": {
            name: _read_types(types.get(name), kinds, judged=scores.get(name) is not None)
            for name in CATEGORIES
        },
    }


def _read_object(result: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = result.get(name)
    if not isinstance(value, dict):
        raise InvalidResponse(f"a result has no {name}")
    return value


def _read_flag(value: Any) -> bool:
    """Return a flag; false for a category that the provider does not know."""
    if value is None:
        return False
    if not isinstance(value, bool):
        raise InvalidResponse("a flag is no boolean")
    return value


def _read_score(value: Any) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidResponse("a score is no number")
    return min(1.0, max(0.0, float(value)))


def _read_types(value: Any, kinds: frozenset[InputKind], *, judged: bool) -> list[str]:
    """Input types behind a score; text where the provider does not say."""
    if isinstance(value, list):
        return [kind for kind in ("text", "image") if kind in value]
    return ["text"] if judged and "text" in kinds else []


def _check_sendable(name: str, given: list[Any]) -> None:
    """Raise InvalidRequest for parts that cannot be encoded: they go to the provider as sent."""
    level = given
    for _ in range(_MOST_DEPTH):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                if not is_text(item):
                    raise _invalid(name, _NO_TEXT)
            elif isinstance(item, dict):
                inner.extend(item)
                inner.extend(item.values())
            elif isinstance(item, list):
                inner.extend(item)
            elif isinstance(item, int) and not -(2**63) <= item < 2**64:
                raise _invalid(name, "must not have whole numbers of more than 64 bits")
        if not inner:
            return
        level = inner
    raise _invalid(name, f"must not be nested more than {_MOST_DEPTH} deep")


def _read_part(name: str, place: int, item: Any) -> InputKind:
    """Kind of a part of a multi-modal input. InvalidRequest, its param the whole input."""
    if not isinstance(item, dict):
        raise _mistyped(name, "must have only strings or only objects")
    at = f"at {place}"
    match item.get("type"):
        case "text":
            if not isinstance(item.get("text"), str):
                raise _invalid(name, f"{at} must have a text")
            return "text"
        case "image_url":
            image = item.get("image_url")
            url = image.get("url") if isinstance(image, dict) else None
            if not isinstance(url, str) or not url.lower().startswith(_IMAGE_SCHEMES):
                raise _invalid(name, f"{at} must have an image_url with an http, https or data URL")
            return "image"
        case _:
            raise _invalid(name, f"{at} must be of type text or image_url")


def _missing(name: str) -> InvalidRequest:
    return InvalidRequest(f"{name} is required.", code="missing_required_parameter", param=name)


def _mistyped(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{name} {problem}.", code="invalid_type", param=name)


def _invalid(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{name} {problem}.", param=name)
