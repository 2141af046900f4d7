"""POST /v1/moderations in the OpenAI dialect: what the provider says of texts and images.

The scores are drawn from a digest of the input, so that the same input has the same answer in every
process and every test. Words of `FLAGGING` flag the categories that they stand for.
"""

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway_simulator.behaviours import Incomplete, Point
from gateway_simulator.injector import Answer, FaultInjector
from gateway_simulator.provider import Provider

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

SEEN_IN_IMAGES = frozenset(
    {
        "self-harm",
        "self-harm/intent",
        "self-harm/instructions",
        "sexual",
        "violence",
        "violence/graphic",
    }
)
"""The categories that an image is judged by; texts are judged by all."""

FLAGGING: dict[str, tuple[str, ...]] = {
    "insult": ("harassment",),
    "threat": ("harassment", "harassment/threatening", "violence"),
    "slur": ("hate",),
    "pogrom": ("hate", "hate/threatening", "violence"),
    "counterfeit": ("illicit",),
    "bomb": ("illicit", "illicit/violent", "violence"),
    "selfharm": ("self-harm", "self-harm/intent"),
    "selfharmguide": ("self-harm", "self-harm/instructions"),
    "nudity": ("sexual",),
    "grooming": ("sexual", "sexual/minors"),
    "attack": ("violence",),
    "gore": ("violence", "violence/graphic"),
}
"""Words, whole and in any case, that flag an input: in a text, or in the URL of an image."""

DEFAULT_MODEL = "omni-moderation-latest"

_WORD = re.compile(rf"(?<![A-Za-z])({'|'.join(sorted(FLAGGING))})(?![A-Za-z])", re.IGNORECASE)
_HIGHEST_UNFLAGGED = 0.05
_LOWEST_FLAGGED = 0.8


class InvalidInput(Exception):
    """A body that is refused; `param` is the member at fault, `code` the dialect's word for it."""

    def __init__(self, message: str, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


@dataclass(frozen=True, slots=True)
class Piece:
    """One text, or one image by its URL."""

    content: str
    kind: str


@dataclass(frozen=True, slots=True)
class ModerationRequest:
    """A body that can be judged: for each result the pieces that it is about."""

    model: str
    inputs: tuple[tuple[Piece, ...], ...]

    @property
    def contents(self) -> list[str]:
        """All texts and URLs, in order."""
        return [piece.content for pieces in self.inputs for piece in pieces]


def read_request(raw: bytes) -> ModerationRequest:
    """Read a body; InvalidInput says what is wrong with it. Unknown members are ignored."""
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise InvalidInput("The body is not valid JSON.", None, "invalid_json") from None
    if not isinstance(body, dict):
        raise InvalidInput("The body must be an object.", None, "invalid_json")
    model = body.get("model", DEFAULT_MODEL)
    if not isinstance(model, str) or not model:
        raise InvalidInput("model must be a string.", "model", "invalid_type")
    return ModerationRequest(model, _read_input(body.get("input")))


def judge(request: ModerationRequest) -> dict[str, Any]:
    """Return the answer to a request; its id alone differs from one time to the next."""
    return {
        "id": f"modr-{secrets.token_hex(12)}",
        "model": request.model,
        "results": [_judge_pieces(pieces) for pieces in request.inputs],
    }


def _read_input(given: Any) -> tuple[tuple[Piece, ...], ...]:
    if given is None:
        raise InvalidInput("input must be given.", "input", "missing_required_parameter")
    if not isinstance(given, str | list):
        raise InvalidInput("input must be a string or a list.", "input", "invalid_type")
    if not given:
        raise InvalidInput("input must not be empty.", "input")
    if isinstance(given, str):
        given = [given]
    if all(isinstance(each, str) for each in given):
        return tuple((Piece(each, "text"),) for each in given)
    return (tuple(_read_part(index, part) for index, part in enumerate(given)),)


def _read_part(index: int, part: Any) -> Piece:
    match part:
        case {"type": "text", "text": str(text)}:
            return Piece(text, "text")
        case {"type": "image_url", "image_url": {"url": str(url)}} if url:
            return Piece(url, "image")
        case _:
            raise InvalidInput(f"input[{index}] is neither a text nor an image.", "input")


def _judge_pieces(pieces: Sequence[Piece]) -> dict[str, Any]:
    scores = dict.fromkeys(CATEGORIES, 0.0)
    applied: Mapping[str, list[str]] = {category: [] for category in CATEGORIES}
    flagged = set[str]()
    for piece in pieces:
        words = {word.lower() for word in _WORD.findall(piece.content)}
        struck = {category for word in words for category in FLAGGING[word]}
        digest = hashlib.blake2b(piece.content.encode("utf-8", "surrogatepass")).digest()
        for index, category in enumerate(CATEGORIES):
            if piece.kind == "image" and category not in SEEN_IN_IMAGES:
                continue
            if piece.kind not in applied[category]:
                applied[category].append(piece.kind)
            draw = int.from_bytes(digest[2 * index : 2 * index + 2]) / 0xFFFF
            score = draw * _HIGHEST_UNFLAGGED
            if category in struck:
                flagged.add(category)
                score = _LOWEST_FLAGGED + draw * (1 - _LOWEST_FLAGGED)
            scores[category] = max(scores[category], round(score, 6))
    return {
        "flagged": bool(flagged),
        "categories": {category: category in flagged for category in CATEGORIES},
        "category_scores": scores,
        "category_applied_input_types": applied,
    }


class ModerationRoutes:
    """The endpoint that judges texts and images; `token` is what its callers present."""

    def __init__(self, provider: Provider, token: str) -> None:
        self._rulebook = provider.rulebook
        self._history = provider.history.moderations
        self._clock = provider.clock
        self._injector = FaultInjector(
            *(provider.rulebook, token, ("invalid_api_key", "The API key is wrong.")),
            *(_shape_status, provider.clock),
        )

    def routes(self) -> list[Route]:
        """Return the route."""
        return [Route("/v1/moderations", self._injector.guard(self.moderate), methods=["POST"])]

    async def moderate(self, request: Request) -> ASGIApp:
        """POST /v1/moderations: 200 with one result for each text, or one for a list of parts."""
        try:
            wanted = read_request(await request.body())
        except InvalidInput as error:
            return Answer(_shape(400, error.code, error.message, error.param), 400)
        contents = wanted.contents
        asked = self._history.note_call(self._clock(), contents)

        def work() -> Answer:
            self._history.note_answer(asked)
            document = judge(wanted)
            lack = self._rulebook.take(Incomplete, Point.MODERATE, contents)
            if lack is not None:
                _leave_out(document, lack)
            return Answer(document)

        return await self._injector.carry(request, Point.MODERATE, contents, work)


def _leave_out(document: dict[str, Any], rule: Incomplete) -> None:
    results = document["results"]
    match rule.kind:
        case "results":
            results.pop()
        case "input_types":
            for result in results:
                del result["category_applied_input_types"]
        case "categories":
            for result in results:
                for words in ("categories", "category_scores", "category_applied_input_types"):
                    for category in ("illicit", "illicit/violent"):
                        del result[words][category]


def _shape(status: int, code: str, message: str, param: str | None) -> dict[str, Any]:
    kind = "rate_limit_error" if status == 429 else "invalid_request_error"
    kind = "server_error" if status >= 500 else kind
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _shape_status(status: int, code: str, message: str) -> dict[str, Any]:
    return _shape(status, code, message, None)
