"""Routes of language models in the dialects of OpenAI and Google (contract §7, §8)."""

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import parse_qs

from gateway_apiserver.errors import NATIVE_ACTIONS, Dialect, choose_dialect
from gateway_apiserver.responses import Response, to_json
from gateway_apiserver.routing import Call, Docs, PathRoute, RouteTable
from gateway_apiserver.surfaces.llm.calls import LlmCalls
from gateway_apiserver.surfaces.llm.credentials import read_credentials
from gateway_apiserver.surfaces.llm.models import ModelLists
from gateway_core.accounts.authentication import PolicyView
from gateway_core.accounts.guardrails import Policy
from gateway_core.admission.admission import Access, Authorizer
from gateway_core.api.errors import MethodNotAllowed, NotFound
from gateway_core.llm.formats.requests import read_chat, read_generate, read_responses

_SERVED = {"generateContent": False, "streamGenerateContent": True}
"""Actions of Google's dialect, and whether they stream."""


_VARY = ((b"vary", b"Authorization, x-goog-api-key"),)


def _describe(name: str, summary: str, required: list[str]) -> Docs:
    body = {"type": "object", "required": required, "properties": {"model": {"type": "string"}}}
    return Docs(name=name, summary=summary, body=body, also=(402, 404, 409, 502, 504))


class _ChatRoute(PathRoute):
    """Chat completions are not kept, so none is found by GET (§7.5)."""

    def refuse(self, method: str) -> None:
        """A GET or HEAD finds nothing."""
        if method in ("GET", "HEAD"):
            raise NotFound("Not found.")


class LlmRoutes:
    """Adds the routes of both dialects."""

    def __init__(
        self, calls: LlmCalls, lists: ModelLists, authorizer: Authorizer, policies: PolicyView
    ) -> None:
        self._calls = calls
        self._lists = lists
        self._authorizer = authorizer
        self._policies = policies

    def add_to(self, table: RouteTable) -> None:
        """Add the routes."""
        table.add_path(_ChatRoute("/v1/chat/completions", table.authorizer))
        for path, read, label, docs in (
            (
                "/v1/chat/completions",
                read_chat,
                "chat_create",
                _describe(
                    "createChatCompletion",
                    "Generate the next message of a chat",
                    ["model", "messages"],
                ),
            ),
            (
                "/v1/responses",
                read_responses,
                "responses_create",
                _describe("createResponse", "Generate a response", ["model", "input"]),
            ),
        ):
            serve = partial(self._serve, read=read)
            table.add("POST", path, serve, label, paid=True, docs=docs)
        for version in ("/v1", "/v1beta"):
            table.add("GET", f"{version}/models", self._list, "models_list")
            path = f"{version}/models/{{model_id:path}}"
            table.add("GET", path, self._show, "models_get")
            table.add("POST", path, self._generate, "generate_content", paid=True)

    async def _list(self, call: Call) -> Response:
        policy = await self._authorize(call)
        if choose_dialect(call.scope) is Dialect.GOOGLE:
            return to_json(self._lists.list_native(policy, call.query), headers=_VARY)
        return to_json(self._lists.list_models(policy), headers=_VARY)

    async def _show(self, call: Call) -> Response:
        model_id = call.wire_id
        if not model_id:
            raise NotFound("Not found.")
        if ":" in model_id and model_id.rpartition(":")[2] in NATIVE_ACTIONS:
            raise MethodNotAllowed("POST")
        policy = await self._authorize(call)
        if choose_dialect(call.scope) is not Dialect.GOOGLE:
            return to_json(self._lists.get_model(policy, model_id), headers=_VARY)
        return to_json(self._lists.get_native(policy, model_id), headers=_VARY)

    async def _authorize(self, call: Call) -> Policy:
        headers = read_credentials(call.scope)
        caller = await self._authorizer.authorize(headers, call.context, Access())
        assert caller is not None, "no anonymous call passes"
        return await self._policies.find(caller.key)

    async def _serve(self, call: Call, read: Callable[..., Any]) -> Response | None:
        return await self._calls.serve(call, read)

    async def _generate(self, call: Call) -> Response | None:
        model_id, _, action = call.wire_id.rpartition(":")
        if not model_id or action not in _SERVED:
            raise NotFound(f"Method {action} is not available.")
        is_event_stream = parse_qs(call.query.decode("latin-1")).get("alt") == ["sse"]
        read = partial(
            read_generate,
            model_id=model_id.removeprefix("models/"),
            stream=_SERVED[action],
            event_stream=is_event_stream,
        )
        return await self._calls.serve(call, read)
