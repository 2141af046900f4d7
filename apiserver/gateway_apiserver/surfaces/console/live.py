"""Server-sent events: that a task or batch of the account has changed, at most once a second.

Pages read themselves anew then. A stream carries no data, so it can leak none.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from starlette.routing import BaseRoute
from starlette.types import Message, Receive

from gateway_apiserver.endpoints import Call, CallRoute
from gateway_apiserver.surfaces.console.seats import ROOT, Console, read_header
from gateway_core.api.errors import NotFound, TooManyCalls
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.kube.informer import Cache
from gateway_web.context import Header
from gateway_web.responses import NO_SNIFF, NO_STORE, Response, send_head

PER_USER, PER_PROCESS = 12, 256
"""Streams at once, which accounts share fairly. A browser has six connections to one host, and each
page one stream."""
T = TypeVar("T")
LIFE_SECONDS = 120.0
"""How long one lasts: the browser opens the next, and the session is checked anew."""
BEAT_SECONDS = 10.0
PAUSE_SECONDS = 1.0
OPENING_SECONDS = 30.0
"""How long a page may take to open its stream after the server has read what it shows."""
_HEADERS: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream"),
    NO_STORE,
    NO_SNIFF,
    (b"x-accel-buffering", b"no"),
)


class AccountEvents(Generic[T]):
    """Follows a table of open work, and wakes the streams of the account of each that changes."""

    def __init__(
        self,
        table: Cache[T],
        find_account: Callable[[T], str],
        is_behind: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_behind`: whether the rows that pages of an account show may be out of date."""
        self._table = table
        self._find_account = find_account
        self._is_behind = is_behind
        self._clock = clock
        self._streams: dict[str, set[asyncio.Event]] = {}
        self._changed_at = OrderedDict[str, float]()
        """Accounts that changed within `OPENING_SECONDS`, the latest change last."""
        # what has left the table no longer says whose it was
        self._account_of = {name: find_account(entry) for name, entry in [*table.items()]}
        table.subscribe(self._note)

    def open(self, account: str) -> asyncio.Event:
        """Return an event that is set at each change, until it is closed.

        It is set at once where the page that opens it may lack a change.
        """
        event = asyncio.Event()
        self._streams.setdefault(account, set()).add(event)
        self._drop_old_changes()
        if account in self._changed_at or self._is_behind(account):
            event.set()
        return event

    def close(self, account: str, event: asyncio.Event) -> None:
        """End it."""
        self._streams[account].discard(event)
        if not self._streams[account]:
            del self._streams[account]

    def _note(self, name: str) -> None:
        entry = self._table.get(name)
        if entry is None:
            account = self._account_of.pop(name, None)
        else:
            account = self._account_of[name] = self._find_account(entry)
        self.wake(account or "")

    def wake(self, account: str) -> None:
        """Note a change of something of the account."""
        self._changed_at[account] = self._clock()
        self._changed_at.move_to_end(account)
        self._drop_old_changes()
        for event in self._streams.get(account, ()):
            event.set()

    def _drop_old_changes(self) -> None:
        oldest = self._clock() - OPENING_SECONDS
        while self._changed_at and next(iter(self._changed_at.values())) < oldest:
            self._changed_at.popitem(last=False)


class LiveRoutes:
    """The streams of an account; `events` by the noun in their address."""

    def __init__(
        self,
        console: Console,
        events: Mapping[str, AccountEvents[Any]],
        is_leaving: Callable[[], bool],
    ) -> None:
        self._console = console
        self._events = events
        self._is_leaving = is_leaving
        self._of_accounts = FairSemaphore(PER_PROCESS)
        self._of_users = FairSemaphore(PER_PROCESS, per_holder=PER_USER)

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the route."""
        path = f"{ROOT}/{{account}}/events/{{noun}}"
        routes.append(CallRoute("GET", path, self.serve, "console_events"))

    async def serve(self, call: Call) -> Response | None:
        """Send an event after each change, until the client leaves or the time is over."""
        seat = await self._console.find_seat(call)
        if seat is None:
            # the page closes the stream at this
            return Response(200, b"event: gone\ndata:\n\n", _HEADERS)
        events = self._events.get(call.scope["path_params"]["noun"])
        if events is None:
            raise NotFound("Not found.")
        if call.context.is_head:
            return Response(200, b"", _HEADERS)
        account, user = seat.account.name, seat.signed_in.user.name
        if not (self._of_accounts.has_room(account) and self._of_users.has_room(user)):
            raise TooManyCalls("Too many pages are open.", retry_after=60)
        self._of_accounts.acquire_nowait(account)
        self._of_users.acquire_nowait(user)
        event = events.open(account)
        leaving = asyncio.ensure_future(_wait_left(call.receive))
        try:
            await self._stream(call, event, leaving)
        finally:
            leaving.cancel()
            events.close(account, event)
            self._of_accounts.release(account)
            self._of_users.release(user)
        return None

    async def _stream(
        self, call: Call, event: asyncio.Event, leaving: asyncio.Future[None]
    ) -> None:
        await send_head(call.send, 200, _HEADERS)
        await _send(call, b"retry: 3000\nid: 0\n\n")
        if read_header(call, b"last-event-id"):
            # what has happened between two streams of a page is not known
            event.set()
        loop = asyncio.get_running_loop()
        end = loop.time() + LIFE_SECONDS
        beat = loop.time() + BEAT_SECONDS
        while not leaving.done() and not self._is_leaving() and loop.time() < end:
            # a drain is noticed within the pause
            await asyncio.wait([leaving], timeout=PAUSE_SECONDS)
            if event.is_set():
                event.clear()
                await _send(call, b"event: change\ndata:\n\n")
            elif loop.time() > beat:
                beat = loop.time() + BEAT_SECONDS
                await _send(call, b": alive\n\n")
        await call.send({"type": "http.response.body", "body": b""})


async def _send(call: Call, text: bytes) -> None:
    await call.send({"type": "http.response.body", "body": text, "more_body": True})


async def _wait_left(receive: Receive) -> None:
    message: Message = {"type": ""}
    while message["type"] != "http.disconnect":
        message = await receive()
