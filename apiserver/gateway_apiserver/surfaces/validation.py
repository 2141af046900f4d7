"""Validation of requests: bodies, queries, Idempotency-Keys and ids, in two forms of errors.

The Task form names every problem of every field (contract §1.1); the OpenAI form names the first
one, with a code and a parameter (§1.2).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, get_args
from urllib.parse import parse_qsl

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.types import Scope

from gateway_apiserver.surfaces.models import FieldProblem
from gateway_core.api.errors import InvalidRequest, NotFound
from gateway_core.api.ids import (
    BATCH_PREFIX,
    FILE_PREFIX,
    PART_PREFIX,
    UPLOAD_PREFIX,
    IdMint,
    Ownership,
    id_to_name,
)
from gateway_core.tasks.operations import MAX_BODY_BYTES
from gateway_core.tasks.validation import parse_body
from gateway_core.validation import describe_problem
from gateway_core.validation import refuse_fields as refuse_fields
from gateway_core.validation import validate as validate
from gateway_web.context import Header
from gateway_web.errors import Dialect, choose_dialect
from gateway_web.middleware.bodies import read_json_body, read_optional_json_body

if TYPE_CHECKING:
    from gateway_apiserver.endpoints import Call

MOST_BODY_BYTES = 1024 * 1024
MOST_KEY_CHARACTERS = 512
_MOST_PARAMETERS = 100


def read_idempotency_key(headers: Iterable[Header]) -> str | None:
    """Return the trimmed key, None where there is none.

    Raises InvalidRequest if it is empty, long or double.
    """
    given = [value for name, value in headers if name == b"idempotency-key"]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequest("Idempotency-Key was sent more than once.")
    try:
        key = given[0].decode().strip()
    except UnicodeDecodeError:
        key = given[0].decode("latin-1").strip()
    if not 1 <= len(key) <= MOST_KEY_CHARACTERS:
        raise InvalidRequest(f"Idempotency-Key must have 1 to {MOST_KEY_CHARACTERS} characters.")
    return key


async def read_request_body(request: Request, *, is_optional: bool) -> tuple[bytes, Any]:
    """Return the JSON object of a request, as it came and parsed; nothing where it is absent.

    Raises UnsupportedMediaType, TooLarge, InvalidRequest or ClientDisconnect.
    """
    headers, is_openai = request.scope["headers"], _is_openai(request.scope)
    may_be_empty = is_optional and (is_openai or b"content-type" not in dict(headers))
    if may_be_empty and not declares_body(headers):
        return b"", None
    most = MOST_BODY_BYTES if is_openai else MAX_BODY_BYTES
    read = read_optional_json_body if is_optional else read_json_body
    raw = await read(headers, request.receive, most)
    if may_be_empty and not raw.strip():
        return b"", None
    return raw, parse_body(raw)


def declares_body(headers: Iterable[Header]) -> bool:
    """Return whether a body is declared."""
    given = dict(headers)
    return given.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in given


def _is_openai(scope: Scope) -> bool:
    return choose_dialect(scope) is Dialect.OPENAI


def check_query(scope: Scope, lists: frozenset[str]) -> None:
    """Raise InvalidRequest for a parameter that is repeated, and is none of `lists`."""
    query: bytes = scope["query_string"]
    if not query:
        return
    is_openai = _is_openai(scope)
    pairs = _parse_query(query, is_strict=not is_openai)
    names = Counter(name for name, _ in pairs if name not in lists)
    repeated = [name for name, count in names.items() if count > 1]
    if repeated and is_openai:
        raise invalid(repeated[0], "must be given once")
    if repeated:
        raise refuse_fields({name: ["was given more than once"] for name in repeated})


def _parse_query(query: bytes, *, is_strict: bool) -> list[tuple[str, str]]:
    """Return the parameters of a query; one that `is_strict` is UTF-8. InvalidRequest."""
    try:
        return parse_qsl(
            query.decode("utf-8" if is_strict else "latin-1"),
            keep_blank_values=True,
            errors="strict" if is_strict else "replace",
            max_num_fields=_MOST_PARAMETERS,
        )
    except UnicodeDecodeError:
        raise InvalidRequest("The query is not valid UTF-8.") from None
    except ValueError:
        raise InvalidRequest("The query has too many parameters.") from None


async def read_object(call: "Call") -> dict[str, Any]:
    """Return the JSON object that the call brings, of at most 1 MiB.

    Raises UnsupportedMediaType, TooLarge, InvalidRequest or ClientDisconnect.
    """
    return parse_body(await read_json_body(call.headers, call.receive, MOST_BODY_BYTES))


def check_word(value: str, name: str, words: Collection[str]) -> str:
    """`value`, if it is one of `words`. InvalidRequest."""
    if value not in words:
        raise invalid(name, f"must be {' or '.join(repr(word) for word in words)}")
    return value


def missing(name: str) -> InvalidRequest:
    """Return the error of a required parameter that is absent."""
    return InvalidRequest(
        f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name
    )


def invalid(name: str, problem: str, *, code: str = "invalid_value") -> InvalidRequest:
    """Return the error of a value that breaks a rule; `problem` is what it must be.

    The value itself is not repeated.
    """
    return InvalidRequest(f"Invalid value for '{name}': it {problem}.", code=code, param=name)


NOUNS = {
    FILE_PREFIX: "File",
    UPLOAD_PREFIX: "Upload",
    PART_PREFIX: "Part",
    BATCH_PREFIX: "Batch",
}


def unknown(prefix: str, wire_id: str, *, param: str | None = None) -> NotFound:
    """No such thing, or another account's: `file_not_found` and the like."""
    shown = wire_id if len(wire_id) <= 64 else f"{wire_id[:61]}..."
    noun = NOUNS[prefix]
    return NotFound(f"No such {noun} object: {shown}", code=f"{prefix}_not_found", param=param)


def check_id(
    mint: IdMint, prefix: str, account: str, wire_id: str, *, param: str | None = None
) -> str:
    """Return the object's name, of an id that was made for `account`. NotFound for every other."""
    if mint.check(prefix, account, wire_id) is not Ownership.MINTED:
        raise unknown(prefix, wire_id, param=param)
    return id_to_name(wire_id)


M = TypeVar("M", bound=BaseModel)


def read_query(model: type[M], scope: Scope) -> M:
    """Return the query string as a `model`.

    Raises InvalidRequest in the Task form, also for a parameter that is unknown or repeated.
    """
    check_query(scope, frozenset())
    return validate(model, dict(_parse_query(scope["query_string"], is_strict=True)))


def validate_openai(model: type[M], values: Mapping[str, Any], *, code: str = "") -> M:
    """Return the values as a `model`. Raises InvalidRequest for the first problem.

    `code` replaces `invalid_type`: the values of a query are all strings.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        detail = error.errors(include_url=False, include_input=False)[0]
    raise refuse_parameter(model, detail, code=code)


def refuse_parameter(model: type[BaseModel], detail: Any, *, code: str = "") -> InvalidRequest:
    """Return the error of the OpenAI form for one of pydantic's; its `loc` is inside the model."""
    kind, name = detail["type"], _name_parameter(model, detail["loc"])
    if kind == "missing":
        return missing(name)
    problem = detail.get("ctx", {}).get("error")
    own = problem.code if isinstance(problem, FieldProblem) else "invalid_value"
    if kind.endswith("_type") or own == "invalid_type":
        text = f"Invalid type for '{name}': it {describe_problem(detail)}."
        return InvalidRequest(text, code=code or "invalid_type", param=name)
    if kind == "string_too_short" and detail.get("ctx", {}).get("min_length") == 1:
        return invalid(name, "must not be empty")
    return invalid(name, describe_problem(detail), code=own)


def _name_parameter(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """Return the public name of a value: the path in a nested model, else the top-level field."""
    name = str(loc[0])
    field = model.model_fields.get(name)
    if field is None or len(loc) == 1:
        return name
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return f"{name}.{_name_parameter(kind, loc[1:])}"
    return name
