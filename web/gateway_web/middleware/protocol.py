"""One HTTP/1.1 connection, bounded in time and memory before and after authentication.

uvicorn's protocol with `ConnectionBounds`: the size and time of a head, idle time, pipelined
requests, the rest of a body that was answered early, and a client that takes nothing of its
response. `refusals` answers requests that `framing` or the parser refuses, with a request id
(contract §0.8), and no later byte is parsed.
"""

import asyncio
import socket
from collections import deque
from typing import Any, Literal
from urllib.parse import unquote

import httptools
import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway_core.api.ids import mint_request_id
from gateway_web.context import SCOPE_KEY, RequestContext
from gateway_web.middleware.connections import ConnectionTable
from gateway_web.middleware.exchange import EXCHANGE_KEY, HttpExchange
from gateway_web.middleware.framing import Refused, check_head, read_target, write_without_upgrade
from gateway_web.middleware.refusals import write_refusal
from gateway_web.middleware.stalls import StallWatch

MOST_DRAINED_BYTES = 4 * 1024 * 1024
"""Of a body that was answered before its end: read on, as a client that is still sending may not
see the answer otherwise, and then no further."""
DRAIN_SECONDS = 10.0
"""How long the rest of such a body may take."""
PIECE_BYTES = 16 * 1024
"""What is parsed at once: of a head that is too large, no more is kept beyond its bound."""
MOST_PIPELINED = 8
"""Requests that wait for the response to one before them; uvicorn holds any number."""
MOST_REFUSED = 128
"""Refused connections that are kept open until their request can be answered with 503."""
REFUSED_SECONDS = 2.0

SEND_BUFFER_BYTES = 64 * 1024
"""Of the kernel for each connection, which would take megabytes of a slow reader's response. The
kernel counts twice as much for its own records."""

_ASGI = {"version": "3.0", "spec_version": "2.3"}
_TOO_LARGE = (431, "The headers are too large.")
_Wait = Literal["head", "idle", "drain", "refused"]

_log = structlog.get_logger(__name__)


class Protocol(HttpToolsProtocol):
    """One connection of those in `table`."""

    # of the latest request; uvicorn's server reads its state
    cycle: Any
    parser: Any
    _stall: StallWatch

    def __init__(self, *args: Any, table: ConnectionTable, **options: Any) -> None:
        super().__init__(*args, **options)
        self.url = b""
        self.headers = []
        self._pipelined = deque[HttpExchange]()
        self._running: HttpExchange | None = None
        """The exchange whose response is under way; `cycle` is that of the latest request."""
        self._table = table
        self._bounds = table.bounds
        self._drops_data = False
        """Set where the connection ends with the responses under way: further bytes are dropped."""
        self._head_begun = self._in_body = False
        self._plain_head = b""
        """A head without its Upgrade, to be parsed in place of the head that has it."""
        self._raw_bytes = 0
        """Bytes of an unfinished head, or of unfinished trailers, beyond their first piece."""
        self._drained_bytes = self._trailers = 0
        self._wait: _Wait | None = None
        """What the connection waits for its client to do; None while a request is under way."""
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Admit the connection, or refuse it at the bounds of the table."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)
        self._stall = StallWatch(self.loop, transport, self._bounds.stall_seconds)
        if (raw := transport.get_extra_info("socket")) is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        if self._table.admit(self, self.client[0] if self.client else ""):
            self._set_wait("idle", self._bounds.idle_seconds)
            return
        self._drops_data = True
        if self._table.pending_refusals >= MOST_REFUSED:
            transport.abort()
            return
        self._table.pending_refusals += 1
        self._set_wait("refused", REFUSED_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        """Ends the timers with the connection."""
        self._table.remove(self)
        if self._wait == "refused":
            self._table.pending_refusals -= 1
        self._wait = None
        self._cancel_timer()
        self._stall.end()
        self.connections.discard(self)
        self.flow.resume_writing()
        if exc is None:
            self.transport.close()
        if self._running is not None:
            self._running.leave()
        if self.cycle is not None and self.cycle is not self._running:
            self.cycle.leave()
        # the parser and the exchanges refer to this connection
        self.parser = None
        self._running = self.cycle = None
        self._pipelined.clear()

    def data_received(self, data: bytes) -> None:
        """Parses what has come, and refuses a head that is too large."""
        if self._drops_data:
            self._drained_bytes += len(data)
            if self._wait == "refused":
                self._refuse(Refused(503, "Too many connections."))
            elif self._drained_bytes > MOST_DRAINED_BYTES:
                self.transport.close()
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
            if (self._head_begun or self._in_body) and self._is_beyond_bounds():
                self._refuse(Refused(*_TOO_LARGE))
                return
        self._note_state()

    def _parse(self, piece: memoryview) -> None:
        """Parse a piece. An Upgrade changes nothing, as no other protocol is spoken here."""
        while True:
            try:
                return self.parser.feed_data(piece)  # type: ignore[no-any-return]
            except httptools.HttpParserUpgrade as upgrade:
                piece = piece[upgrade.args[0] :]
            # the parser has skipped the body: a new one begins with the same head
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.parser.feed_data(self._plain_head)

    def pause_writing(self) -> None:
        """Back-pressure: the application waits, for a bounded time without progress."""
        super().pause_writing()
        self._stall.begin()

    def resume_writing(self) -> None:
        """End of back-pressure."""
        self._stall.end()
        super().resume_writing()
        if self._running is not None:
            self._running.on_drained()

    # httptools

    def on_message_begin(self) -> None:
        """A head begins."""
        self._head_begun = True
        self.url = b""
        self.headers = []

    def on_url(self, url: bytes) -> None:
        """Keep a piece of the request's target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header. Trailers are dropped: the request is answered by its head."""
        if not self._in_body:
            self.headers.append((name.lower(), value.rstrip(b" ")))
            return
        self._trailers += 1
        if self._trailers > self._bounds.headers:
            raise Refused(*_TOO_LARGE)
        if name.lower() in (b"connection", b"proxy-connection"):
            # the parser would end the connection by it
            raise Refused

    def on_headers_complete(self) -> None:
        """A request begins, unless its head is to be parsed again without an Upgrade."""
        parser, headers, values = self.parser, self.headers, dict(self.headers)
        is_large = self._is_beyond_bounds(PIECE_BYTES) and not self._bounds.fit(self.url, headers)
        if is_large or len(self._pipelined) >= MOST_PIPELINED:
            raise Refused(*_TOO_LARGE)
        method, version = parser.get_method(), parser.get_http_version()
        check_head(method, version, headers, values)
        if b"upgrade" in values and parser.should_upgrade():
            self._plain_head = write_without_upgrade(method, self.url, version, headers)
            return
        exchange = self._make_exchange(method, version, expects=b"expect" in values)
        self._head_begun, self._in_body = False, True
        self._raw_bytes = self._drained_bytes = self._trailers = 0
        self._table.set_receiving(self)
        before, self.cycle = self.cycle, exchange
        if before is None or before.response_complete:
            self._start(exchange)
        else:
            # pipelined
            self.flow.pause_reading()
            self._pipelined.appendleft(exchange)

    def on_body(self, body: bytes) -> None:
        """Pass on a chunk; close the connection if too much of an answered body is left."""
        self._raw_bytes = 0
        exchange = self.cycle
        if not exchange.response_complete:
            exchange.add_body(body)
            return
        self._drained_bytes += len(body)
        if self._drained_bytes > MOST_DRAINED_BYTES:
            self.transport.close()

    def on_message_complete(self) -> None:
        """The next head may come."""
        if self._head_begun:
            # of a head with an Upgrade
            return
        # the request has them; the connection keeps none of them
        self.headers, self.url = [], b""
        self._in_body = False
        self._table.set_busy(self)
        self._raw_bytes = 0
        exchange = self.cycle
        if not exchange.response_complete:
            exchange.end_body()

    # uvicorn

    def on_response_complete(self) -> None:
        """The connection waits for its next request, or for the rest of the body."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self._pipelined:
            self._start(self._pipelined.pop())
        elif not self._is_busy():
            self._table.set_waiting(self)
            self._note_state()

    def _start(self, exchange: HttpExchange) -> None:
        self._running = exchange
        app: Any = self.app
        # awaited at shutdown
        self.tasks.add(self.loop.create_task(exchange.run(app, self.tasks)))

    def is_authenticated(self) -> bool:
        """Whether the account of the latest request is known, or a response to it has begun."""
        if self.cycle is None or self._pipelined or self.cycle.response_started:
            return True
        return self.account is not None

    @property
    def account(self) -> str | None:
        """The account of the latest request, where it is known and not answered yet."""
        context = None if self.cycle is None else self.cycle.scope.get(SCOPE_KEY)
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
        raw_path, query = read_target(method, self.url, self.headers)
        path = raw_path.decode("ascii")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": _ASGI,
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "root_path": "",
            "headers": self.headers,
            "method": method.decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
        }
        exchange = scope[EXCHANGE_KEY] = HttpExchange(
            scope,
            self.transport,
            self.flow,
            self.server_state.default_headers,
            # whichever expectation: a proxy may read it as 100-continue
            expects_continue=version != "1.0" and expects,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        return exchange

    def _is_busy(self) -> bool:
        """Whether a request is under way."""
        return self.cycle is not None and (
            not self.cycle.response_complete or bool(self._pipelined)
        )

    def _is_beyond_bounds(self, more: int = 0) -> bool:
        """Whether head or trailers may be over a bound; `_raw_bytes` has missed at most `more`."""
        bounds = self._bounds
        return self._raw_bytes + more > bounds.head_bytes or len(self.headers) > bounds.headers

    def _note_state(self) -> None:
        """Chooses what the connection waits for; drops of data do not put a deadline off."""
        running = self._running
        if running is not None and not running.response_complete and not self._head_begun:
            # the usual case
            self._wait = None
            return
        wait: _Wait | None
        if self._head_begun:
            wait, seconds = "head", self._bounds.head_seconds
        elif self._is_busy():
            wait, seconds = None, 0.0
        elif self._in_body:
            wait, seconds = "drain", DRAIN_SECONDS
        else:
            wait, seconds = "idle", self._bounds.idle_seconds
        if wait != self._wait:
            self._set_wait(wait, seconds)

    def _set_wait(self, wait: _Wait | None, seconds: float) -> None:
        self._wait = wait
        if wait is None:
            # the timer stays: most requests end before it
            return
        self._deadline = self.loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._deadline:
            self._cancel_timer()
        if self._timer is None:
            self._timer = self.loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._wait is None or self.transport.is_closing():
            return
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._check_deadline)
        elif self._wait != "head":
            self.evict()
        elif self._is_busy():
            # the response to the request before must not be broken by another one
            self._set_wait("head", self._bounds.head_seconds)
        else:
            self._refuse(Refused(408, "The head of the request did not come in time."))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, refusal: Refused) -> None:
        """Answers in place of the application and closes."""
        transport: asyncio.Transport | None = self.transport
        exchange: Any = self.cycle
        if transport is None or transport.is_closing():
            return
        if self._in_body and self._pipelined:
            # it has not begun
            self._pipelined.popleft()
            exchange = self.cycle = self._pipelined[0] if self._pipelined else self._running
            self._in_body = False
        is_behind = not self._in_body and self._is_busy()
        if is_behind and refusal.status != 431:
            # requests before this one are whole and get their responses
            exchange.keep_alive, self._drops_data = False, True
            return
        if is_behind or (self._in_body and exchange.response_started):
            # a second response would stand in the middle of the first, or behind it
            transport.close()
            return
        if self._in_body:
            exchange.disconnected = True
        request_id, target = mint_request_id(), self.url
        method = self.parser.get_method().decode("ascii") if target else ""
        transport.write(write_refusal(refusal, request_id, method, target, self.headers))
        transport.close()
        _log.info("refused", request_id=request_id, status=refusal.status)
