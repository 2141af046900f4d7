"""One HTTP/1.1 connection, bounded in time and memory before and after authentication.

uvicorn makes a `Protocol` for each connection (its setting `http`) and ends it by `shutdown`.
`states` has what it does and what changes that, `ConnectionBounds` its bounds. `refusals` answers
requests that `framing` or the parser refuses, with a request id (contract §0.8), and no later byte
is parsed.
"""

import asyncio
import socket
from collections import deque
from typing import Any
from typing import Protocol as Interface
from urllib.parse import unquote

import httptools
import structlog
import uvicorn

from gateway_core.api.ids import mint_request_id
from gateway_web.context import SCOPE_KEY, Header, RequestContext
from gateway_web.http1.connections import ConnectionTable
from gateway_web.http1.exchange import EXCHANGE_KEY, Exchange
from gateway_web.http1.flow import Flow
from gateway_web.http1.framing import Refused, check_head, read_target, write_without_upgrade
from gateway_web.http1.refusals import write_refusal
from gateway_web.http1.states import (
    ANSWERED,
    BODY,
    BODY_ENDS,
    CROWDED,
    DRAINING,
    ENDING,
    HEAD,
    HEAD_BEGINS,
    HEAD_ENDS,
    IDLE,
    NEXT_HEAD,
    UNREADABLE,
)
from gateway_web.http1.timer import StateTimer

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_TOO_LARGE = (431, "The headers are too large.")
_WITH_HEAD = (HEAD, NEXT_HEAD)
_UNFINISHED = (HEAD, NEXT_HEAD, BODY, DRAINING)

_log = structlog.get_logger(__name__)


class ServerState(Interface):
    """The state that uvicorn shares with the connections of a server."""

    connections: set[Any]
    tasks: set[asyncio.Task[None]]
    """Requests under way: the server awaits them when it shuts down."""
    default_headers: list[Header]


class Protocol(asyncio.Protocol):
    """One connection of those in `table`; the other arguments are uvicorn's."""

    _transport: asyncio.Transport
    _flow: Flow

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        table: ConnectionTable,
    ) -> None:
        self._app: Any = config.loaded_app
        self._server = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._table = table
        self._bounds = bounds = table.bounds
        self._parser: Any = self._make_parser()
        self._state = IDLE
        self._exchanges = deque[Exchange]()
        """Those whose response is not complete; the application serves the first."""
        self._url = b""
        self._headers = list[Header]()
        self._plain_head = b""
        """A head without its Upgrade, to be parsed in place of the head that has it."""
        self._raw_bytes = 0
        """Bytes of an unfinished head, or of unfinished trailers, beyond their first piece."""
        self._dropped_bytes = self._trailers = 0
        seconds = {
            IDLE: bounds.idle_seconds,
            HEAD: bounds.head_seconds,
            DRAINING: bounds.drain_seconds,
            CROWDED: bounds.refusal_seconds,
        }
        self._timer = StateTimer(seconds, self._loop, self._expire)

    def _make_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # a request behind one with `Connection: close` is dropped, not an error
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # uvicorn

    def shutdown(self) -> None:
        """Close the connection, after the responses under way."""
        if self._exchanges:
            self._exchanges[-1].keep_alive = False
        else:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit the connection, or refuse it at the bounds of the table."""
        assert isinstance(transport, asyncio.Transport)
        bounds = self._bounds
        self._transport = transport
        self._flow = Flow(transport, bounds.stall_seconds)
        self._server.connections.add(self)
        transport.set_write_buffer_limits(high=0)
        if (raw := transport.get_extra_info("socket")) is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, bounds.send_buffer_bytes)
        self._address = _read_address(transport, "sockname")
        self._client = _read_address(transport, "peername")
        self._scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        if not self._table.admit(self, self._client[0] if self._client else ""):
            if self._table.pending_refusals >= bounds.refusals:
                transport.abort()
                return
            self._table.pending_refusals += 1
            self._state = CROWDED
        self._timer.watch(self._state)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the timers, and what is under way."""
        self._table.remove(self)
        if self._state is CROWDED:
            self._table.pending_refusals -= 1
        self._server.connections.discard(self)
        self._timer.close()
        self._flow.resume_writing()
        for exchange in self._exchanges:
            exchange.leave()
        # the parser and the exchanges refer to this connection
        self._parser = None
        self._exchanges.clear()

    def data_received(self, data: bytes) -> None:
        """Parse what has come, unless nothing more is served."""
        if self._state is CROWDED:
            self._refuse(Refused(503, "Too many connections."))
        elif self._state is ENDING:
            self._dropped_bytes += len(data)
            if self._dropped_bytes > self._bounds.drained_bytes:
                self._transport.close()
        else:
            try:
                self._parse(memoryview(data))
            except Refused as refusal:
                self._refuse(refusal)
            except httptools.HttpParserError as error:
                # the exception of a callback
                cause = error.__context__
                self._refuse(cause if isinstance(cause, Refused) else Refused())
            self._timer.watch(self._state)

    def _parse(self, data: memoryview) -> None:
        """Parse in pieces. Raise Refused, or HttpParserError also for Refused of a callback."""
        size = self._bounds.piece_bytes
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self._raw_bytes += len(piece)
            self._parse_piece(piece)
            if self._state in _UNFINISHED and self._is_beyond_bounds():
                raise Refused(*_TOO_LARGE)

    def _parse_piece(self, piece: memoryview) -> None:
        """Parse a piece. An Upgrade changes nothing, as no other protocol is spoken here."""
        while True:
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                piece = piece[upgrade.args[0] :]
            else:
                return
            # the parser has skipped the body: a new one begins with the same head
            self._parser = self._make_parser()
            self._parser.feed_data(self._plain_head)

    def pause_writing(self) -> None:
        """Back-pressure: the application waits, for a bounded time without progress."""
        self._flow.pause_writing()

    def resume_writing(self) -> None:
        """End of back-pressure."""
        self._flow.resume_writing()
        if self._exchanges:
            self._exchanges[0].on_drained()

    # httptools

    def on_message_begin(self) -> None:
        """A head begins."""
        self._state = HEAD_BEGINS[self._state]
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Keep a piece of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. Trailers are dropped: the request is answered by its head."""
        if self._state in _WITH_HEAD:
            self._headers.append((name.lower(), value.rstrip(b" ")))
            return
        self._trailers += 1
        if self._trailers > self._bounds.headers:
            raise Refused(*_TOO_LARGE)
        if name.lower() in (b"connection", b"proxy-connection"):
            # the parser would end the connection by it
            raise Refused

    def on_headers_complete(self) -> None:
        """A request begins, unless its head is to be parsed again without an Upgrade."""
        parser, url, headers, bounds = self._parser, self._url, self._headers, self._bounds
        is_large = self._is_beyond_bounds(bounds.piece_bytes) and not bounds.fit(url, headers)
        # the first is served
        if is_large or len(self._exchanges) > bounds.pipelined:
            raise Refused(*_TOO_LARGE)
        method, version, values = parser.get_method(), parser.get_http_version(), dict(headers)
        check_head(method, version, headers, values)
        if b"upgrade" in values and parser.should_upgrade():
            self._plain_head = write_without_upgrade(method, url, version, headers)
            return
        exchange = self._make_exchange(method, version, expects=b"expect" in values)
        self._state = HEAD_ENDS[self._state]
        self._raw_bytes = self._dropped_bytes = self._trailers = 0
        self._table.set_receiving(self)
        self._exchanges.append(exchange)
        if len(self._exchanges) == 1:
            self._serve(exchange)
        else:
            # pipelined
            self._flow.pause_reading()

    def on_body(self, body: bytes) -> None:
        """Pass on a chunk, or drop it where the response is complete. Raise Refused."""
        self._raw_bytes = 0
        if self._state is BODY:
            self._exchanges[-1].add_body(body)
            return
        self._dropped_bytes += len(body)
        if self._dropped_bytes > self._bounds.drained_bytes:
            raise Refused

    def on_message_complete(self) -> None:
        """The next head may come."""
        if self._state in _WITH_HEAD:
            # of a head with an Upgrade
            return
        # the request has them; the connection keeps none of them
        self._headers, self._url = [], b""
        self._raw_bytes = 0
        if self._state is BODY:
            self._table.set_busy(self)
            self._exchanges[-1].end_body()
        self._state = BODY_ENDS[self._state]

    # exchanges

    def _make_exchange(self, method: bytes, version: str, *, expects: bool) -> Exchange:
        """Return the exchange of the request whose head is complete. Refused."""
        raw_path, query = read_target(method, self._url, self._headers)
        path = raw_path.decode("ascii")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self._address,
            "client": self._client,
            "scheme": self._scheme,
            "root_path": "",
            "headers": self._headers,
            "method": method.decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
        }
        exchange = scope[EXCHANGE_KEY] = Exchange(
            scope,
            self._transport,
            self._flow,
            self._server.default_headers,
            # whichever expectation: a proxy may read it as 100-continue
            expects_continue=version != "1.0" and expects,
            keep_alive=version != "1.0" and self._parser.should_keep_alive(),
            unread_bytes=self._bounds.unread_bytes,
            on_end=self._end_exchange,
        )
        return exchange

    def _serve(self, exchange: Exchange) -> None:
        tasks = self._server.tasks
        tasks.add(self._loop.create_task(exchange.run(self._app, tasks)))

    def _end_exchange(self) -> None:
        """Serve the next request, or wait for it or for the rest of the body."""
        self._exchanges.popleft()
        if self._transport.is_closing():
            return
        self._flow.resume_reading()
        if self._exchanges:
            self._serve(self._exchanges[0])
        else:
            self._state = ANSWERED[self._state]
            self._table.set_waiting(self)
            self._timer.watch(self._state)

    # the table of connections

    def is_authenticated(self) -> bool:
        """Return whether the account of the latest request is known, or its turn has not come."""
        exchanges = self._exchanges
        if len(exchanges) != 1 or exchanges[0].response_started:
            return True
        return self.account is not None

    @property
    def account(self) -> str | None:
        """The account of the latest request, where it is known and not answered yet."""
        context = self._exchanges[-1].scope.get(SCOPE_KEY) if self._exchanges else None
        return context.account if isinstance(context, RequestContext) else None

    def evict(self) -> None:
        """Close the connection for another one."""
        if self._transport.get_write_buffer_size():
            # its client does not take the last response: the buffer would stay
            self._transport.abort()
        else:
            self._transport.close()

    # bounds

    def _is_beyond_bounds(self, more: int = 0) -> bool:
        """Return whether head or trailers may exceed a bound; `more` bytes are not counted yet."""
        bounds = self._bounds
        return self._raw_bytes + more > bounds.head_bytes or len(self._headers) > bounds.headers

    def _expire(self) -> None:
        if self._transport.is_closing():
            return
        if self._state is HEAD:
            self._refuse(Refused(408, "The head of the request did not come in time."))
        else:
            self.evict()

    def _refuse(self, refusal: Refused) -> None:
        """Answer in place of the application and close."""
        transport, exchanges = self._transport, self._exchanges
        if self._state is BODY and len(exchanges) > 1:
            # it has not begun
            exchanges.pop()
            self._table.set_busy(self)
            self._state = BODY_ENDS[self._state]
        if transport.is_closing():
            return
        if self._state in UNREADABLE and refusal.status != 431:
            # the requests before this one are whole and get their responses
            exchanges[-1].keep_alive = False
            self._state = UNREADABLE[self._state]
            return
        if self._state not in (IDLE, HEAD, CROWDED) and (
            self._state is not BODY or exchanges[0].response_started
        ):
            # a second response would stand in the middle of the first, or behind it
            transport.close()
            return
        for exchange in exchanges:
            exchange.is_gone = True
        request_id, target = mint_request_id(), self._url
        method = self._parser.get_method().decode("ascii") if target else ""
        transport.write(write_refusal(refusal, request_id, method, target, self._headers))
        transport.close()
        _log.info("refused", request_id=request_id, status=refusal.status)


def _read_address(transport: asyncio.Transport, name: str) -> tuple[str, int] | None:
    """Return the local or the client's address; None where it is no pair of host and port."""
    info = transport.get_extra_info(name)
    return (str(info[0]), int(info[1])) if isinstance(info, tuple | list) else None
