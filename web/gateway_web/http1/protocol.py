"""One HTTP/1.1 connection, bounded in time and memory before and after authentication.

uvicorn makes a `Protocol` for each connection (its setting `http`) and ends it by `shutdown`. The
connection is always in one of the states of `State`:

| State | Event | Next |
|---|---|---|
| IDLE | a head begins | HEAD |
| HEAD | it is complete | BODY |
| BODY | the body is complete | ANSWERING; IDLE if the response is complete, too |
| BODY | the response is complete | DRAINING |
| ANSWERING | a head begins: a pipelined request | HEAD |
| ANSWERING | the last response is complete | IDLE |
| DRAINING | the body is complete | IDLE |
| HEAD, BODY | it is refused while responses before it are under way | ENDING |
| CROWDED | its first bytes come, and are answered with 503 | CLOSED |
| any | the connection is lost | CLOSED |

Each state has what the client may take for it (`_wait`): a head, idle time, the rest of a body that
was answered early. A client that takes nothing of its response is cut off by `stalls`. `refusals`
answers requests that `framing` or the parser refuses, with a request id (contract §0.8), and no
later byte is parsed.
"""

import asyncio
import socket
from collections import deque
from enum import Enum, auto
from typing import Any
from urllib.parse import unquote

import httptools
import structlog
import uvicorn

from gateway_core.api.ids import mint_request_id
from gateway_web.context import SCOPE_KEY, RequestContext
from gateway_web.http1.connections import ConnectionTable
from gateway_web.http1.exchange import EXCHANGE_KEY, HttpExchange
from gateway_web.http1.flow import Flow
from gateway_web.http1.framing import Refused, check_head, read_target, write_without_upgrade
from gateway_web.http1.refusals import write_refusal
from gateway_web.http1.stalls import StallWatch

MOST_DRAINED_BYTES = 4 * 1024 * 1024
"""Of a body that was answered before its end: read on, as a client that is still sending may not
see the answer otherwise, and then no further."""
DRAIN_SECONDS = 10.0
"""How long the rest of such a body may take."""
PIECE_BYTES = 16 * 1024
"""What is parsed at once: of a head that is too large, no more is kept beyond its bound."""
MOST_PIPELINED = 8
"""Requests that wait for the response to one before them."""
MOST_CROWDED = 128
"""Refused connections that are kept open until their request can be answered with 503."""
CROWDED_SECONDS = 2.0

SEND_BUFFER_BYTES = 64 * 1024
"""Of the kernel for each connection, which would take megabytes of a slow reader's response. The
kernel counts twice as much for its own records."""

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_TOO_LARGE = (431, "The headers are too large.")

_log = structlog.get_logger(__name__)


class State(Enum):
    """What a connection does; the module's docstring has the transitions."""

    IDLE = auto()
    """No request is under way."""
    HEAD = auto()
    """A head arrives, perhaps while requests before it are answered."""
    BODY = auto()
    """The body of the latest request arrives, and its response is not complete."""
    ANSWERING = auto()
    """All requests have arrived, and a response is under way."""
    DRAINING = auto()
    """The body of a request arrives that is answered."""
    ENDING = auto()
    """The responses under way are the last: further bytes are dropped."""
    CROWDED = auto()
    """Beyond the bounds of the table: nothing is served."""
    CLOSED = auto()
    """The connection is lost."""


_IN_BODY = (State.BODY, State.DRAINING)


class Protocol(asyncio.Protocol):
    """One connection of those in `table`; the other arguments are uvicorn's."""

    transport: asyncio.Transport
    _stall: StallWatch
    _flow: Flow

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: Any,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        table: ConnectionTable,
    ) -> None:
        self._app: Any = config.loaded_app
        self._server = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._parser: Any = self._make_parser()
        self._state = State.IDLE
        self._watched: State | None = None
        """The state whose deadline is watched; None while there is none."""
        self._url = b""
        self._headers = list[tuple[bytes, bytes]]()
        self._pipelined = deque[HttpExchange]()
        self._running: HttpExchange | None = None
        """The exchange whose response is under way."""
        self._latest: HttpExchange | None = None
        """The exchange of the latest request."""
        self._table = table
        self._bounds = table.bounds
        self._plain_head = b""
        """A head without its Upgrade, to be parsed in place of the head that has it."""
        self._raw_bytes = 0
        """Bytes of an unfinished head, or of unfinished trailers, beyond their first piece."""
        self._dropped_bytes = self._trailers = 0
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def _make_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # a request behind one with `Connection: close` is dropped, not an error
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    # uvicorn

    def shutdown(self) -> None:
        """Close the connection, after the responses under way."""
        if self._latest is None or self._latest.response_complete:
            self.transport.close()
        else:
            self._latest.keep_alive = False

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or refuse it at the bounds of the table."""
        self.transport = transport
        self._server.connections.add(self)
        self._flow = Flow(transport)
        transport.set_write_buffer_limits(high=0)
        self._stall = StallWatch(self._loop, transport, self._bounds.stall_seconds)
        if (raw := transport.get_extra_info("socket")) is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._address = _read_address(transport, "sockname")
        self._client = _read_address(transport, "peername")
        self._scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        if self._table.admit(self, self._client[0] if self._client else ""):
            self._watch()
            return
        self._state = State.CROWDED
        if self._table.pending_refusals >= MOST_CROWDED:
            transport.abort()
            return
        self._table.pending_refusals += 1
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the timers with the connection."""
        self._table.remove(self)
        if self._watched is State.CROWDED:
            self._table.pending_refusals -= 1
        self._state, self._watched = State.CLOSED, None
        self._cancel_timer()
        self._stall.end()
        self._server.connections.discard(self)
        self._flow.resume_writing()
        if exc is None:
            self.transport.close()
        for exchange in dict.fromkeys((self._running, self._latest)):
            if exchange is not None:
                exchange.leave()
        # the parser and the exchanges refer to this connection
        self._parser = None
        self._running = self._latest = None
        self._pipelined.clear()

    def data_received(self, data: bytes) -> None:
        """Parses what has come, and refuses a head that is too large."""
        if self._state is State.CROWDED:
            self._refuse(Refused(503, "Too many connections."))
            return
        if self._state is State.ENDING:
            self._drop(data)
            return
        view = memoryview(data)
        for start in range(0, len(data), PIECE_BYTES):
            piece = view[start : start + PIECE_BYTES]
            self._raw_bytes += len(piece)
            try:
                self._parse(piece)
            except httptools.HttpParserError as error:
                # the exception of a callback
                cause = error.__context__
                self._refuse(cause if isinstance(cause, Refused) else Refused())
                return
            if self.transport.is_closing():
                return
            has_more = self._state is State.HEAD or self._state in _IN_BODY
            if has_more and self._is_beyond_bounds():
                self._refuse(Refused(*_TOO_LARGE))
                return
        self._watch()

    def _drop(self, data: bytes) -> None:
        """Drop bytes that nobody reads any more; close the connection if they do not end."""
        self._dropped_bytes += len(data)
        if self._dropped_bytes > MOST_DRAINED_BYTES:
            self.transport.close()

    def _parse(self, piece: memoryview) -> None:
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
        self._stall.begin()

    def resume_writing(self) -> None:
        """End of back-pressure."""
        self._stall.end()
        self._flow.resume_writing()
        if self._running is not None:
            self._running.on_drained()

    # httptools

    def on_message_begin(self) -> None:
        """A head begins."""
        self._state = State.HEAD
        self._url = b""
        self._headers = []

    def on_url(self, url: bytes) -> None:
        """Keep a piece of the request's target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. Trailers are dropped: the request is answered by its head."""
        if self._state is State.HEAD:
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
        parser, headers, values = self._parser, self._headers, dict(self._headers)
        is_large = self._is_beyond_bounds(PIECE_BYTES) and not self._bounds.fit(self._url, headers)
        if is_large or len(self._pipelined) >= MOST_PIPELINED:
            raise Refused(*_TOO_LARGE)
        method, version = parser.get_method(), parser.get_http_version()
        check_head(method, version, headers, values)
        if b"upgrade" in values and parser.should_upgrade():
            self._plain_head = write_without_upgrade(method, self._url, version, headers)
            return
        exchange = self._make_exchange(method, version, expects=b"expect" in values)
        self._state = State.BODY
        self._raw_bytes = self._dropped_bytes = self._trailers = 0
        self._table.set_receiving(self)
        before, self._latest = self._latest, exchange
        if before is None or before.response_complete:
            self._start(exchange)
        else:
            # pipelined
            self._flow.pause_reading()
            self._pipelined.appendleft(exchange)

    def on_body(self, body: bytes) -> None:
        """Pass on a chunk; close the connection if too much of an answered body is left."""
        self._raw_bytes = 0
        if self._state is State.DRAINING:
            self._drop(body)
        elif self._latest is not None:
            self._latest.add_body(body)

    def on_message_complete(self) -> None:
        """The next head may come."""
        if self._state is State.HEAD:
            # of a head with an Upgrade
            return
        # the request has them; the connection keeps none of them
        self._headers, self._url = [], b""
        self._table.set_busy(self)
        self._raw_bytes = 0
        if self._state is State.BODY:
            self._state = State.ANSWERING
            assert self._latest is not None
            self._latest.end_body()
        else:
            self._state = State.IDLE

    # exchanges

    def _end_response(self) -> None:
        """The connection waits for its next request, or for the rest of the body."""
        self._server.total_requests += 1
        if self.transport.is_closing():
            return
        self._flow.resume_reading()
        if self._pipelined:
            self._start(self._pipelined.pop())
        elif not self._is_busy():
            if self._state is State.BODY:
                self._state = State.DRAINING
            elif self._state is State.ANSWERING:
                self._state = State.IDLE
            self._table.set_waiting(self)
            self._watch()

    def _start(self, exchange: HttpExchange) -> None:
        self._running = exchange
        # awaited at shutdown
        tasks = self._server.tasks
        tasks.add(self._loop.create_task(exchange.run(self._app, tasks)))

    # the table of connections

    def is_authenticated(self) -> bool:
        """Whether the account of the latest request is known, or a response to it has begun."""
        if self._latest is None or self._pipelined or self._latest.response_started:
            return True
        return self.account is not None

    @property
    def account(self) -> str | None:
        """The account of the latest request, where it is known and not answered yet."""
        context = None if self._latest is None else self._latest.scope.get(SCOPE_KEY)
        return context.account if isinstance(context, RequestContext) else None

    def evict(self) -> None:
        """Closes the connection for another one."""
        if self.transport.get_write_buffer_size():
            # its client does not take the last response: the buffer would stay
            self.transport.abort()
        else:
            self.transport.close()

    def _make_exchange(self, method: bytes, version: str, *, expects: bool) -> HttpExchange:
        """The exchange of the request whose head is complete. Refused."""
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
        exchange = scope[EXCHANGE_KEY] = HttpExchange(
            scope,
            self.transport,
            self._flow,
            self._server.default_headers,
            # whichever expectation: a proxy may read it as 100-continue
            expects_continue=version != "1.0" and expects,
            keep_alive=version != "1.0" and self._parser.should_keep_alive(),
            on_response=self._end_response,
        )
        return exchange

    def _is_busy(self) -> bool:
        """Whether a request is under way."""
        latest = self._latest
        return latest is not None and (not latest.response_complete or bool(self._pipelined))

    def _is_beyond_bounds(self, more: int = 0) -> bool:
        """Whether head or trailers may be over a bound; `_raw_bytes` has missed at most `more`."""
        bounds = self._bounds
        return self._raw_bytes + more > bounds.head_bytes or len(self._headers) > bounds.headers

    def _watch(self) -> None:
        """Begin the time that the client may take for the state; nothing puts it off later."""
        state = self._state
        if state is State.BODY or state is State.ANSWERING or state is State.ENDING:
            # the usual case; the timer stays, as most requests end before it
            self._watched = None
        elif state is not self._watched:
            self._begin_wait(state)

    def _begin_wait(self, state: State) -> None:
        self._watched = state
        self._deadline = self._loop.time() + self._find_seconds(state)
        if self._timer is not None and self._timer.when() > self._deadline:
            self._cancel_timer()
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _find_seconds(self, state: State) -> float:
        if state is State.HEAD:
            return self._bounds.head_seconds
        if state is State.DRAINING:
            return DRAIN_SECONDS
        return CROWDED_SECONDS if state is State.CROWDED else self._bounds.idle_seconds

    def _check_deadline(self) -> None:
        self._timer = None
        if self._watched is None or self.transport.is_closing():
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)
        elif self._watched is not State.HEAD:
            self.evict()
        elif self._is_busy():
            # the response to the request before must not be broken by another one
            self._begin_wait(State.HEAD)
        else:
            self._refuse(Refused(408, "The head of the request did not come in time."))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, refusal: Refused) -> None:
        """Answer in place of the application and close."""
        if self.transport.is_closing():
            return
        in_body, exchange = self._state in _IN_BODY, self._latest
        if in_body and self._pipelined:
            # it has not begun
            self._pipelined.popleft()
            exchange = self._latest = self._pipelined[0] if self._pipelined else self._running
            in_body = False
        is_behind = not in_body and self._is_busy()
        if is_behind and refusal.status != 431:
            # requests before this one are whole and get their responses
            assert exchange is not None
            exchange.keep_alive, self._state = False, State.ENDING
            return
        if is_behind or (in_body and exchange is not None and exchange.response_started):
            # a second response would stand in the middle of the first, or behind it
            self.transport.close()
            return
        if in_body and exchange is not None:
            exchange.disconnected = True
        request_id, target = mint_request_id(), self._url
        method = self._parser.get_method().decode("ascii") if target else ""
        self.transport.write(write_refusal(refusal, request_id, method, target, self._headers))
        self.transport.close()
        _log.info("refused", request_id=request_id, status=refusal.status)


def _read_address(transport: asyncio.Transport, name: str) -> tuple[str, int] | None:
    """The local or the client's address; None where it is no pair of host and port."""
    info = transport.get_extra_info(name)
    return (str(info[0]), int(info[1])) if isinstance(info, tuple | list) else None
