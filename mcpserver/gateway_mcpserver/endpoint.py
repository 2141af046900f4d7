"""The endpoint `/mcp`: one POST is one message, which any replica answers (contract §10.2).

    Host 421 → Origin 403 → preflight, method 405 → credential 401, 403 → media type 415
      → body 413, 400 → Accept 406 → era and envelope 400 → method 404 → tool → JSON, or a stream

Nothing of a request is kept after its response; a session id that a client sends is ignored.
"""

import asyncio
from functools import partial
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from gateway_core.api.errors import MethodNotAllowed, Unavailable
from gateway_core.api.ids import id_to_name
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.oauth.discovery import ENDPOINT_PATHS
from gateway_mcpserver.authentication import Caller, McpAuthenticator
from gateway_mcpserver.cancellations import Cancellations
from gateway_mcpserver.metrics import McpMetrics
from gateway_mcpserver.protocol.addresses import (
    PREFLIGHT_HEADERS,
    AddressRules,
    list_cors_headers,
    read_accept,
)
from gateway_mcpserver.protocol.documents import (
    complete,
    describe_server,
    describe_session,
    find_list,
)
from gateway_mcpserver.protocol.eras import Era, choose_era
from gateway_mcpserver.protocol.messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Message,
    RpcError,
    is_id,
    parse_message,
    render_error,
    render_result,
    to_response,
)
from gateway_mcpserver.protocol.streaming import Reply
from gateway_mcpserver.protocol.subscriptions import Subscriptions
from gateway_mcpserver.tools.creation import PendingTask, describe_created
from gateway_mcpserver.tools.task_waits import TaskWaiter
from gateway_mcpserver.tools.tool import Tool, ToolCall, ToolResult, render_failure
from gateway_mcpserver.tools.toolbox import Toolbox
from gateway_mcpserver.waiting import FindRefusal, Stop, Wait
from gateway_web.context import RequestContext, get_context
from gateway_web.http1.exchange import EXCHANGE_KEY, Exchange
from gateway_web.middleware.bodies import RequestBody, read_json_body
from gateway_web.responses import send_empty, send_response

MOST_BODY_BYTES = 4 * 1024 * 1024
_MOST_URI_CHARACTERS = 2048
_FREE_BYTES = 64 * 1024
_PARSED_BYTES = 8 * 1024 * 1024
"""Bytes of bodies beyond 64 KiB that are parsed at once: as objects they take up to 25 times as
much memory."""
_PARSE_SECONDS = 10.0


class McpEndpoint:
    """Answers requests at `/mcp`."""

    def __init__(
        self,
        rules: AddressRules,
        authenticator: McpAuthenticator,
        tools: Toolbox,
        waiter: TaskWaiter,
        cancellations: Cancellations,
        subscriptions: Subscriptions,
        metrics: McpMetrics,
    ) -> None:
        self._rules = rules
        self._authenticator = authenticator
        self._tools = tools
        self._waiter = waiter
        self._cancellations = cancellations
        self._subscriptions = subscriptions
        self._metrics = metrics
        self._parsing = FairSemaphore(_PARSED_BYTES, seconds=_PARSE_SECONDS, error=_too_many)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises GatewayError before its message is known, ClientDisconnect."""
        context, headers, reply = get_context(scope), scope["headers"], Reply(send)
        body: _ParsedBody | None = None
        context.route, context.template = "mcp_other", ENDPOINT_PATHS[0]
        message: Message | None = None
        try:
            origin = self._rules.check_origin(headers)
            if origin is not None:
                context.headers += list_cors_headers(origin)
            if scope["method"] == "OPTIONS":
                await send_empty(send, 204, PREFLIGHT_HEADERS)
                return
            if scope["method"] != "POST":
                raise MethodNotAllowed("POST")
            caller = await self._authenticator.authenticate(headers)
            context.account = caller.account
            takes_json, reply.may_stream = read_accept(headers)
            raw = await read_json_body(headers, receive, MOST_BODY_BYTES)
            body = _ParsedBody(self._parsing, caller.account, receive)
            await body.take(len(raw))
            message = parse_message(raw)
            del raw
            if message is not None and message.id is not None:
                _require(takes_json, "application/json")
            era = Era.LEGACY if message is None else choose_era(message, headers)
            if message is None or message.id is None:
                await self._take_notification(message, era, caller)
                await send_empty(send, 202, ((b"content-length", b"0"),))
                return
            await self._answer(message, era, caller, scope, body, reply)
        except RpcError as error:
            response = to_response(message.id if message else error.request_id, error)
            await send_response(send, response)
        finally:
            if body is not None:
                body.close()

    async def _take_notification(self, message: Message | None, era: Era, caller: Caller) -> None:
        """Handle a message that has no response: only a legacy cancellation has an effect."""
        if message is None or era is Era.MODERN or message.method != "notifications/cancelled":
            return
        request_id = message.params.get("requestId")
        if is_id(request_id):
            await self._cancellations.publish(caller.credential, request_id)

    async def _answer(
        self,
        message: Message,
        era: Era,
        caller: Caller,
        scope: Scope,
        body: "_ParsedBody",
        reply: Reply,
    ) -> None:
        assert message.id is not None
        request_id = message.id
        try:
            if message.method == "tools/call":
                call = self._open_call(message, caller, get_context(scope))
                await self._call_tool(call, message, era, scope, body, reply)
                return
            if message.method == "subscriptions/listen" and era is Era.MODERN:
                _require(reply.may_stream, "text/event-stream")
                wanted = message.params.get("notifications")
                message.params = {"notifications": {}} if isinstance(wanted, dict) else {}
                del wanted
                body.close()
                await self._subscriptions.serve(
                    message, caller.account, _find_client(scope), reply, self._watch(scope)
                )
                return
            result = self._find_result(message, era, get_context(scope))
        except RpcError as error:
            if era is Era.LEGACY:
                # legacy clients take another status for an error of the connection
                error.status = 200
            await reply.finish(render_error(request_id, error), error.status)
            return
        await reply.finish(render_result(request_id, result))

    def _find_result(self, message: Message, era: Era, context: RequestContext) -> Any:
        """Return the result of a method that is no call. RpcError."""
        method = message.method
        if method == "server/discover" and era is Era.MODERN:
            context.route = "mcp_discover"
            return complete(era, describe_server())
        if era is Era.LEGACY and method == "initialize":
            context.route = "mcp_initialize"
            return describe_session(message.params.get("protocolVersion"))
        if era is Era.LEGACY and method == "ping":
            context.route = "mcp_ping"
            return {}
        listed = find_list(method, self._tools.described)
        if listed is not None:
            context.route = "mcp_list"
            if message.params.get("cursor") is not None:
                raise RpcError(INVALID_PARAMS, "The cursor is unknown: lists have one page.")
            return complete(era, listed, cacheable=True)
        if method in ("prompts/get", "resources/read"):
            text = "There are no prompts and no resources here."
            raise RpcError(INVALID_PARAMS, text, data=_name_resource(message))
        raise RpcError(METHOD_NOT_FOUND, "The method is unknown.", status=404)

    def _open_call(
        self, message: Message, caller: Caller, context: RequestContext
    ) -> tuple[Tool[Any], ToolCall]:
        """Return the tool that is called. RpcError; InsufficientScope."""
        tool = self._tools.find(message.params.get("name"))
        context.route = f"mcp_{tool.name}"
        if not isinstance(message.params.get("arguments"), dict | None):
            raise RpcError(INVALID_PARAMS, "The arguments must be an object.")
        token = message.meta.get("progressToken")
        if token is not None and not is_id(token):
            text = "The progressToken must be a short string or an integer."
            raise RpcError(INVALID_PARAMS, text)
        caller.require_scope(tool.scope)
        return tool, ToolCall(caller, context)

    async def _call_tool(
        self,
        opened: tuple[Tool[Any], ToolCall],
        message: Message,
        era: Era,
        scope: Scope,
        body: "_ParsedBody",
        reply: Reply,
    ) -> None:
        """Run a tool and send its result; its arguments are dropped before a wait."""
        tool, call = opened
        request_id, token = message.id, message.meta.get("progressToken")
        assert request_id is not None
        work = asyncio.ensure_future(
            self._tools.call(tool, message.params.get("arguments") or {}, call)
        )
        message.params = {}
        wait = Wait()
        # a cancellation may come while the task is being made
        with self._waiter.waits.cancellable(wait, call.caller.credential, request_id):
            try:
                outcome = await _await_patiently(work, reply)
            finally:
                # only the end of the process cancels this task; a client that leaves does not
                work.cancel()
            del work
            body.close()
            if isinstance(outcome, PendingTask):
                try:
                    outcome = await self._wait(outcome, wait, token, call, scope, reply)
                except ClientDisconnect:
                    raise
                except Exception as error:
                    outcome = render_failure(error, tool.name, call)
        result = complete(era, outcome.render())
        await reply.finish(render_result(request_id, result))

    async def _wait(
        self,
        pending: PendingTask,
        wait: Wait,
        token: str | int | None,
        call: ToolCall,
        scope: Scope,
        reply: Reply,
    ) -> ToolResult:
        client = _find_client(scope)
        with self._waiter.waits.enter(call.account, id_to_name(pending.task_id), wait) as entered:
            if not entered:
                record = await self._waiter.find_ended(pending) if pending.replayed else None
                if record is None or record.terminal is None:
                    self._metrics.count_wait("concurrency_limit")
                output = describe_created(pending, record, wait_degraded="concurrency_limit")
                return ToolResult(output.to_json())
            client.on_gone = lambda: wait.end(Stop.CLIENT_GONE)
            if client.is_gone:
                wait.end(Stop.CLIENT_GONE)
            output = await self._waiter.run(pending, wait, reply, token, self._watch(scope))
            if wait.stop is Stop.CLIENT_GONE:
                raise ClientDisconnect
            return ToolResult(output.to_json())

    def _watch(self, scope: Scope) -> FindRefusal:
        """Check the credential of a request again."""
        return partial(self._authenticator.find_refusal, scope["headers"])


class _ParsedBody:
    """The memory that a request's body takes: its bytes, and its objects."""

    __slots__ = ("_account", "_receive", "_semaphore", "_size")

    def __init__(self, semaphore: FairSemaphore, account: str, receive: Receive) -> None:
        self._semaphore = semaphore
        self._account = account
        self._receive = receive
        self._size = 0

    async def take(self, size: int) -> None:
        """Wait until a body of `size` bytes may be parsed. Unavailable."""
        if size > _FREE_BYTES:
            await self._semaphore.wait(self._account, size)
            self._size = size

    def close(self) -> None:
        """The body is no longer in memory."""
        if self._size:
            self._semaphore.release(self._account, self._size)
            self._size = 0
        if isinstance(self._receive, RequestBody):
            self._receive.close()


async def _await_patiently(
    work: "asyncio.Future[ToolResult | PendingTask]", reply: Reply
) -> ToolResult | PendingTask:
    """Return the outcome of `work`; a stream with heartbeats begins where it takes long."""
    clock = asyncio.get_running_loop().time
    while True:
        done, _ = await asyncio.wait({work}, timeout=max(0.0, reply.next_beat - clock()))
        if done:
            return work.result()
        await reply.beat()


def _require(is_taken: bool, media_type: str) -> None:
    if not is_taken:
        raise RpcError(INVALID_REQUEST, f"Accept must allow {media_type}.", status=406)


def _too_many() -> Unavailable:
    return Unavailable("Too many large bodies are being handled.")


def _find_client(scope: Scope) -> Exchange:
    found: Exchange = scope[EXCHANGE_KEY]
    return found


def _name_resource(message: Message) -> dict[str, str] | None:
    """Return the resource that is not there, as error data SHOULD name it.

    Names of an absurd length are left out.
    """
    uri = message.params.get("uri")
    return {"uri": uri} if isinstance(uri, str) and len(uri) <= _MOST_URI_CHARACTERS else None
