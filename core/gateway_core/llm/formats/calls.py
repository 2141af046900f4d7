"""A parsed call of a language model, the tokens it used, and the bodies sent for it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import orjson

from gateway_core.api.errors import InvalidRequest
from gateway_core.billing.token_prices import TokenCounts
from gateway_core.llm.unpriced import Unpriced


class Format(StrEnum):
    """The format of a request, and of what answers it."""

    CHAT = "chat"
    """`POST /v1/chat/completions`."""
    RESPONSES = "responses"
    """`POST /v1/responses`."""
    GOOGLE = "google"
    """`generateContent` and `streamGenerateContent`."""


@dataclass(frozen=True, slots=True)
class FileReference:
    """A part of a prompt that names a file of the gateway, to be replaced by its content.

    `path` leads from the body to the part. `param` is the field that an error names.
    """

    file_id: str
    path: tuple[str | int, ...]
    param: str


@dataclass(slots=True)
class LlmCall:
    """A valid request; its `body` may be dropped once it is sent, nothing else changes.

    `input_bound` is the most tokens that the input can have, `input_estimate` about how many it
    has, both without the files of `files`. `has_media`: it may have sound and images.
    `has_open_parts`: it has parts that nothing in the call bounds. `unpriced` is what the call asks
    for beyond its tokens. `max_output` is the most output tokens of one choice, None where the
    client sets no limit, and `choices` how many choices are asked for; `predicted` are the tokens
    of a prediction, which may be paid like output.
    `include_usage`: a chat stream ends with its usage. `event_stream`: a Google stream consists of
    server-sent events, else it is a JSON array. `dropped` names what is left out of it.
    """

    format: Format
    model_id: str
    stream: bool
    body: Mapping[str, Any]
    input_bound: int
    input_estimate: int
    has_media: bool = False
    has_open_parts: bool = False
    unpriced: tuple[Unpriced, ...] = ()
    max_output: int | None = None
    choices: int = 1
    predicted: int = 0
    include_usage: bool = False
    event_stream: bool = True
    files: tuple[FileReference, ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether nothing in the call bounds its input, to which tools of the provider add."""
        return self.has_open_parts or bool(self.unpriced)


@dataclass(slots=True)
class TokenUsage(TokenCounts):
    """Tokens of a call. `output` includes `reasoning`.

    `estimated`: a count is computed from the bytes seen, or the provider's counts are ambiguous.
    """

    reasoning: int = 0
    estimated: bool = False


NO_TOKENS = TokenUsage(0, 0)


class InvalidAnswer(ValueError):
    """A provider's answer that is not of its format."""


BYTES_PER_TOKEN = 4
"""Average of English text; what an estimate of seen text divides by."""


def estimate_tokens(text_bytes: int) -> int:
    """Estimated tokens of a text, rounded up."""
    return -(-text_bytes // BYTES_PER_TOKEN)


def encode_body(body: Mapping[str, Any]) -> bytes:
    """Return a client's body as JSON. InvalidRequest if it is nested too deeply to be encoded."""
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError as error:
        raise InvalidRequest("The body is nested too deeply.") from error


def unsupported(name: str, path: str, reason: str = "is not supported") -> InvalidRequest:
    """Return the error of a field that the gateway refuses.

    `path` leads to it within the top-level field `name` (§7.5).
    """
    return InvalidRequest(f"{path} {reason}.", code="unsupported_parameter", param=name)


def find_field(path: str) -> str:
    """Return the top-level field with which a path begins: `messages` of `messages[0].role`."""
    return path.partition(".")[0].partition("[")[0]


def show_path(path: tuple[str | int, ...]) -> str:
    """Return a path as `messages[0].content[1]`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)[1:]


_INDEX = re.compile(r"[0-9]{1,9}")
MOST_TOKENS = 1_000_000_000
"""What a provider can have counted for one call; sums of a day's calls stay exact below 2^53."""


def read_count(value: Any) -> int:
    """Return a number of tokens from a provider; 0 where it is none that a call can have."""
    if not value:
        return 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value <= MOST_TOKENS else 0


def as_object(value: Any) -> dict[str, Any]:
    """`value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_objects(value: Any) -> list[dict[str, Any]]:
    """Return the JSON objects in an array, as it is if it has no others.

    The result is empty for what is no array.
    """
    if not isinstance(value, list):
        return []
    for item in value:
        if not isinstance(item, dict):
            return [item for item in value if isinstance(item, dict)]
    return value


def read_index(item: Mapping[str, Any], place: int) -> int:
    """Return the `index` of an item of an answer.

    Without one return `place`, where it is in its array.
    """
    index = item.get("index")
    if type(index) is int:
        return index
    if isinstance(index, float) and index.is_integer() and abs(index) < MOST_TOKENS:
        return int(index)
    return int(index) if isinstance(index, str) and _INDEX.fullmatch(index) else place
