"""Routes of language models in the dialects of OpenAI and Google (contract §7, §8)."""

from collections.abc import Iterable, Mapping
from functools import partial
from urllib.parse import parse_qs

from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute, Docs, Handler, HeaderDocs, UnlistedRoute
from gateway_apiserver.surfaces.llm.calls import LlmCalls
from gateway_apiserver.surfaces.llm.credentials import read_credentials
from gateway_apiserver.surfaces.llm.models import ModelLists
from gateway_apiserver.surfaces.llm.schemas import (
    describe_chat,
    describe_generate,
    describe_list,
    describe_model,
    describe_responses,
)
from gateway_core.accounts.authentication import PolicyView
from gateway_core.accounts.guardrails import Policy
from gateway_core.admission.admission import Access, Authorizer
from gateway_core.api.errors import MethodNotAllowed, NotFound
from gateway_core.llm.formats.requests import read_chat, read_generate, read_responses
from gateway_core.providers.catalog import Catalog
from gateway_core.providers.suggestions import MOST_CHARACTERS
from gateway_web.errors import NATIVE_ACTIONS, Dialect, choose_dialect
from gateway_web.responses import Response, to_json

_SERVED = {"generateContent": False, "streamGenerateContent": True}
"""Actions of Google's dialect, and whether they stream."""


_CREDENTIALS = b"Authorization, x-goog-api-key"


class _GenerateRoute(CallRoute):
    """Actions of models of one version segment: the ids may have slashes, and a colon follows.

    `suffix` ends the names of the operations that both versions have.
    """

    def __init__(
        self, version: str, handler: Handler, suffix: str, headers: Mapping[str, HeaderDocs]
    ) -> None:
        path = f"{version}/models/{{model_id:path}}"
        super().__init__("POST", path, handler, "generate_content", paid=True)
        self._suffix = suffix
        self._headers = headers

    def describe(self, catalog: Catalog) -> Iterable[tuple[str, Docs]]:
        """Yield the path of each action, with its description."""
        for action, stream in _SERVED.items():
            docs = describe_generate(action + self._suffix, self._headers, stream=stream)
            yield f"{self.path_format}:{action}", docs


class LlmRoutes:
    """Adds the routes of both dialects. `headers` describes the headers of their responses."""

    def __init__(
        self,
        calls: LlmCalls,
        lists: ModelLists,
        authorizer: Authorizer,
        policies: PolicyView,
        headers: Mapping[str, HeaderDocs],
    ) -> None:
        self._calls = calls
        self._lists = lists
        self._authorizer = authorizer
        self._policies = policies
        self._headers = headers

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the routes."""
        for made, path, read, label, docs in (
            (
                # completions are not kept, so none is found by GET (§7.5)
                UnlistedRoute,
                "/v1/chat/completions",
                read_chat,
                "chat_create",
                describe_chat(self._headers),
            ),
            (
                CallRoute,
                "/v1/responses",
                read_responses,
                "responses_create",
                describe_responses(self._headers),
            ),
        ):
            serve = partial(self._calls.serve, read=read)
            routes.append(made("POST", path, serve, label, paid=True, docs=docs))
        for version, suffix, native in (("/v1", "", False), ("/v1beta", "Beta", True)):
            listing = describe_list("listModels" + suffix, native=native)
            routes.append(
                CallRoute("GET", f"{version}/models", self._list, "models_list", docs=listing)
            )
            path = f"{version}/models/{{model_id:path}}"
            showing = describe_model("getModel" + suffix, native=native)
            routes.append(CallRoute("GET", path, self._show, "models_get", docs=showing))
            routes.append(_GenerateRoute(version, self._generate, suffix, self._headers))

    async def _list(self, call: Call) -> Response:
        policy = await self._authorize(call)
        if choose_dialect(call.scope) is Dialect.GOOGLE:
            return to_json(self._lists.list_native(policy, call.query))
        return to_json(self._lists.list_models(policy))

    async def _show(self, call: Call) -> Response:
        model_id = call.wire_id
        if not model_id:
            raise NotFound("Not found.")
        if ":" in model_id and model_id.rpartition(":")[2] in NATIVE_ACTIONS:
            raise MethodNotAllowed("POST")
        policy = await self._authorize(call)
        if choose_dialect(call.scope) is not Dialect.GOOGLE:
            return to_json(self._lists.get_model(policy, model_id))
        return to_json(self._lists.get_native(policy, model_id))

    async def _authorize(self, call: Call) -> Policy:
        # of errors, too
        call.context.add_vary(_CREDENTIALS)
        headers = read_credentials(call.scope)
        caller = await self._authorizer.authorize(headers, call.context, Access())
        assert caller is not None, "no anonymous call passes"
        return await self._policies.find(caller.key)

    async def _generate(self, call: Call) -> Response | None:
        model_id, _, action = call.wire_id.rpartition(":")
        if not model_id or action not in _SERVED:
            served = " and ".join(_SERVED)
            if not model_id:
                actions = " or ".join(f":{name}" for name in _SERVED)
                raise NotFound(f"An action must follow the model in the path: {actions}.")
            raise NotFound(
                f"Method {action[:MOST_CHARACTERS]} is not available; models have {served}."
            )
        is_event_stream = parse_qs(call.query.decode("latin-1")).get("alt") == ["sse"]
        read = partial(
            read_generate,
            model_id=model_id.removeprefix("models/"),
            stream=_SERVED[action],
            event_stream=is_event_stream,
        )
        return await self._calls.serve(call, read)
