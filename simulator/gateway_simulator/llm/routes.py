"""Language models over HTTP, in the APIs of OpenAI and Google; used by `app`."""

import secrets
from collections.abc import Callable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp

from gateway_simulator.behaviours import BreakStream, Point
from gateway_simulator.injector import Answer, Endpoint, FaultInjector, ShapeError
from gateway_simulator.llm.formats import (
    Writer,
    google_frame,
    shape_google_error,
    shape_openai_error,
)
from gateway_simulator.llm.model import Ask, read_directives, write_reply
from gateway_simulator.llm.requests import parse, read_chat, read_generate, read_responses
from gateway_simulator.llm.streaming import Break, Streamed, find_break
from gateway_simulator.moderations import InvalidInput
from gateway_simulator.provider import Provider

MODELS = ("simulated-large", "simulated-small")
"""Models in the lists; every other name works, too."""
_EVENTS = "text/event-stream"
_ACTIONS = ("generateContent", "streamGenerateContent")
_OVERLOADED = (503, "overloaded", "The simulated provider broke this stream.")

Render = Callable[[Writer], ASGIApp]


class LanguageRoutes:
    """The endpoints of language models; `token` is what their callers present."""

    def __init__(self, provider: Provider, token: str) -> None:
        self._provider = provider
        self._token = token
        refusal = ("invalid_api_key", "The API key is wrong.")
        self._openai = FaultInjector(
            provider.rulebook, token, refusal, shape_openai_error, provider.clock
        )
        self._google = FaultInjector(
            provider.rulebook, token, refusal, shape_google_error, provider.clock
        )

    def routes(self) -> list[Route]:
        """Return the routes."""
        guard, generate = self._openai.guard, self._guard_google(self.generate)
        return [
            Route("/v1/chat/completions", guard(self.complete), methods=["POST"]),
            Route("/v1/responses", guard(self.respond), methods=["POST"]),
            Route("/v1/models", guard(self.list_models), methods=["GET"]),
            Route("/v1beta/models", self._guard_google(self.list_google_models), methods=["GET"]),
            # Google's newer clients say v1
            Route("/v1/models/{model:path}:{action}", generate, methods=["POST"]),
            Route("/v1beta/models/{model:path}:{action}", generate, methods=["POST"]),
        ]

    async def complete(self, request: Request) -> ASGIApp:
        """POST /v1/chat/completions: a completion, or the stream of one."""
        return await self._serve(request, self._openai, shape_openai_error, self._read_chat)

    async def respond(self, request: Request) -> ASGIApp:
        """POST /v1/responses: a response, or the stream of one."""
        return await self._serve(request, self._openai, shape_openai_error, self._read_responses)

    async def generate(self, request: Request) -> ASGIApp:
        """POST /v1beta/models/{model}:generateContent, or streamGenerateContent."""
        if request.path_params["action"] not in _ACTIONS:
            return Answer(shape_google_error(404, "", "There is no such method."), 404)
        return await self._serve(request, self._google, shape_google_error, self._read_generate)

    async def list_models(self, request: Request) -> ASGIApp:
        """GET /v1/models."""
        models = [
            {"id": name, "object": "model", "created": 1, "owned_by": "simulator"}
            for name in MODELS
        ]
        return Answer({"object": "list", "data": models})

    async def list_google_models(self, request: Request) -> ASGIApp:
        """GET /v1beta/models."""
        models = [
            {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": _ACTIONS}
            for name in MODELS
        ]
        return Answer({"models": models})

    async def _serve(
        self,
        request: Request,
        injector: FaultInjector,
        shape_error: ShapeError,
        read: Callable[[Request, dict[str, Any]], tuple[Ask, Render]],
    ) -> ASGIApp:
        try:
            ask, render = read(request, parse(await request.body()))
        except InvalidInput as error:
            return Answer(shape_error(400, error.code, error.message), 400)
        self._provider.history.generations.calls += 1
        directives = read_directives(ask)
        if directives.status is not None:
            message = "The prompt asked for this error."
            return Answer(shape_error(directives.status, "simulated", message), directives.status)

        def work() -> ASGIApp:
            reply = write_reply(ask, directives)
            writer = Writer(ask, reply, directives, int(self._provider.clock()))
            return render(writer)

        return await injector.carry(request, Point.GENERATE, (ask.prompt, ask.model), work)

    def _read_chat(self, request: Request, body: dict[str, Any]) -> tuple[Ask, Render]:
        ask = read_chat(body)
        include = (body.get("stream_options") or {}).get("include_usage") is True

        def render(writer: Writer) -> ASGIApp:
            if not ask.stream:
                return self._answer(ask, writer.chat_answer())
            error = b"data: %b\n\n" % orjson.dumps(shape_openai_error(*_OVERLOADED))
            return self._stream(ask, writer.chat_stream(include_usage=include), error)

        return ask, render

    def _read_responses(self, request: Request, body: dict[str, Any]) -> tuple[Ask, Render]:
        ask = read_responses(body)

        def render(writer: Writer) -> ASGIApp:
            if not ask.stream:
                return self._answer(ask, writer.responses_answer())
            _, code, message = _OVERLOADED
            event = {"type": "error", "code": code, "message": message, "param": None}
            error = b"event: error\ndata: %b\n\n" % orjson.dumps(event)
            return self._stream(ask, writer.responses_stream(), error)

        return ask, render

    def _read_generate(self, request: Request, body: dict[str, Any]) -> tuple[Ask, Render]:
        stream = request.path_params["action"] == "streamGenerateContent"
        ask = read_generate(body, request.path_params["model"], stream=stream)

        def render(writer: Writer) -> ASGIApp:
            if not stream:
                return self._answer(ask, writer.google_answer())
            if request.query_params.get("alt") != "sse":
                return Answer(writer.google_stream())
            frames = [google_frame(chunk) for chunk in writer.google_stream()]
            return self._stream(ask, frames, google_frame(shape_google_error(*_OVERLOADED)))

        return ask, render

    def _answer(self, ask: Ask, document: dict[str, Any]) -> ASGIApp:
        directives = read_directives(ask)
        if directives.first:
            frames = [orjson.dumps(document)]
            return Streamed(frames, "application/json", directives, None, b"", self._note)
        self._note(True)
        return Answer(document)

    def _stream(self, ask: Ask, frames: list[bytes], error: bytes) -> ASGIApp:
        directives = read_directives(ask)
        fault = find_break(directives)
        rule = self._provider.rulebook.take(BreakStream, Point.GENERATE, (ask.prompt, ask.model))
        if rule is not None:
            fault = Break(rule.kind, rule.frames)
        return Streamed(frames, _EVENTS, directives, fault, error, self._note)

    def _note(self, completed: bool) -> None:
        history = self._provider.history.generations
        if completed:
            history.completed += 1
        else:
            history.aborted += 1

    def _guard_google(self, endpoint: Endpoint) -> Endpoint:
        """Google's clients send the token in a header of their own, or in the query."""
        others = self._google.guard(endpoint)

        async def guarded(request: Request) -> ASGIApp:
            given = request.headers.get("x-goog-api-key") or request.query_params.get("key") or ""
            if secrets.compare_digest(given.encode(), self._token.encode()):
                return await endpoint(request)
            return await others(request)

        return guarded
