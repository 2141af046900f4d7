"""POST /v1/moderations over HTTP, in the OpenAI dialect; used by `app`."""

from typing import Any

from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway_simulator.answers import Answer
from gateway_simulator.behaviours import Incomplete, Point
from gateway_simulator.exchange import Exchange
from gateway_simulator.moderations import InvalidInput, judge, read_request
from gateway_simulator.provider import Provider

_NEWER = ("illicit", "illicit/violent")


class ModerationRoutes:
    """The endpoint that judges texts and images; `token` is what its callers present."""

    def __init__(self, provider: Provider, token: str) -> None:
        self._rulebook = provider.rulebook
        self._history = provider.history.moderations
        self._clock = provider.clock
        self._exchange = Exchange(provider.rulebook, token, _shape_status, provider.clock)

    def routes(self) -> list[Route]:
        """Return the route."""
        return [Route("/v1/moderations", self.moderate, methods=["POST"])]

    async def moderate(self, request: Request) -> ASGIApp:
        """POST /v1/moderations: 200 with one result for each text, or one for a list of parts."""
        if not self._exchange.is_authorized(request):
            return Answer(_shape_status(401, "invalid_api_key", "The API key is wrong."), 401)
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

        return await self._exchange.carry(request, Point.MODERATE, contents, work)


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
                    for category in _NEWER:
                        del result[words][category]


def _shape(status: int, code: str, message: str, param: str | None) -> dict[str, Any]:
    kind = "rate_limit_error" if status == 429 else "invalid_request_error"
    kind = "server_error" if status >= 500 else kind
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _shape_status(status: int, code: str, message: str) -> dict[str, Any]:
    return _shape(status, code, message, None)
