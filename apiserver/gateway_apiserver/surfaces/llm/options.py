"""Options of an LLM call in its request headers: fallback models and the client's own time-outs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from gateway_apiserver.endpoints import Schema
from gateway_core.admission.admission import Payer
from gateway_core.api.errors import InvalidRequest
from gateway_core.api.model import ANY_MODEL_ID
from gateway_core.llm.attempts import plan_attempts
from gateway_core.llm.priced import PricedCall
from gateway_core.llm.service import LlmService
from gateway_web.context import Header

FALLBACKS = "x-gateway-fallback-models"
TIMEOUT = "x-gateway-timeout"
FIRST_BYTE = "x-gateway-first-byte-timeout"

MOST_FALLBACKS = 4
MOST_MODEL_CHARACTERS = 253
LEAST_SECONDS, MOST_SECONDS = 0.1, 3600

_OURS = {name.encode(): name for name in (FALLBACKS, TIMEOUT, FIRST_BYTE)}
_NAMES = frozenset(_OURS)
_get_name = itemgetter(0)
_MODEL = re.compile(ANY_MODEL_ID)
_SECONDS = re.compile(r"\d{1,4}(\.\d{1,20})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What the headers ask for: ids of models in order, and times in seconds."""

    fallbacks: tuple[str, ...] = ()
    timeout: float | None = None
    first_byte: float | None = None


def read_options(headers: Sequence[Header]) -> CallOptions | None:
    """Return the options of a call, None without any. InvalidRequest names the header."""
    # a loop over the headers costs every call three times as much
    if _NAMES.isdisjoint(map(_get_name, headers)):
        return None
    given: dict[str, str] = {}
    for header, value in headers:
        name = _OURS.get(header)
        if name in given:
            raise _invalid(name, "may be given once")
        if name is not None:
            given[name] = value.decode("latin-1")
    return CallOptions(
        _read_models(given[FALLBACKS]) if FALLBACKS in given else (),
        _read_seconds(TIMEOUT, given.get(TIMEOUT)),
        _read_seconds(FIRST_BYTE, given.get(FIRST_BYTE)),
    )


def apply_options(
    headers: Sequence[Header], service: LlmService, priced: PricedCall, payer: Payer
) -> PricedCall:
    """Return the call with the options of its headers.

    Raises InvalidRequest, and what `plan_attempts` raises.
    """
    options = read_options(headers)
    if options is None:
        return priced
    return plan_attempts(
        service,
        priced,
        payer,
        options.fallbacks,
        total_seconds=options.timeout,
        first_byte_seconds=options.first_byte,
    )


def describe_options() -> list[Schema]:
    """Return the headers as parameters of an OpenAPI operation."""
    model = {"type": "string", "pattern": ANY_MODEL_ID, "maxLength": MOST_MODEL_CHARACTERS}
    models = {"type": "array", "items": model, "minItems": 1, "maxItems": MOST_FALLBACKS}
    seconds = {"type": "number", "minimum": LEAST_SECONDS, "maximum": MOST_SECONDS}
    described: dict[str, tuple[str, Schema]] = {
        FALLBACKS: (
            "Models that are called in turn when one fails before its first byte.",
            {**models, "uniqueItems": True},
        ),
        TIMEOUT: ("Seconds that the whole call may take.", seconds),
        FIRST_BYTE: ("Seconds until a model begins to answer.", seconds),
    }
    return [
        {"name": name, "in": "header", "description": description, "schema": schema}
        for name, (description, schema) in described.items()
    ]


def _read_models(text: str) -> tuple[str, ...]:
    models = tuple(part.strip() for part in text.split(",", MOST_FALLBACKS))
    if len(models) > MOST_FALLBACKS:
        raise _invalid(FALLBACKS, f"may name at most {MOST_FALLBACKS} models")
    if not all(len(m) <= MOST_MODEL_CHARACTERS and _MODEL.fullmatch(m) for m in models):
        raise _invalid(FALLBACKS, "must be ids of models, separated by commas")
    if len(set(models)) < len(models):
        raise _invalid(FALLBACKS, "must not name a model twice")
    return models


def _read_seconds(name: str, text: str | None) -> float | None:
    if text is None:
        return None
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise _invalid(name, f"must be a number of seconds from {LEAST_SECONDS} to {MOST_SECONDS}")
    return seconds


def _invalid(name: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"Header {name} {problem}.", param=name)
