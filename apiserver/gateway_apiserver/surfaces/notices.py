"""POST /notices/...: a provider says that something has become of a job; used by `app`.

What it says is not read. Whether the address is one of ours is in the address; a good one is handed
to the operator, which asks the provider. Where the operator is away it is answered 503, so that the
provider repeats it. A flood is held up here: of one task's notices two a second at most go on. One
that comes too soon is answered 204 and handed on a little later, or when the operator is back.
"""

import asyncio

import structlog
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from gateway_apiserver.endpoints import Call, CallRoute
from gateway_core.api.errors import NotFound, TooLarge, Unavailable
from gateway_core.providers.notices import ROOT, Notice, NoticeSigner, NoticeSink, NoticeUndelivered
from gateway_web.middleware.bodies import read_chunks
from gateway_web.responses import send_empty

MOST_BYTES = 64 * 1024
BODY_SECONDS = 10.0
PAUSE_SECONDS = 0.5
MOST_TASKS = 4096
LONGEST_PAUSE = 15.0
RETRY_FOR_SECONDS = 600.0
"""How long one that was answered 204 is tried; an operator that is replaced is back in less."""
RETRY_SECONDS = 5

_TEMPLATE = ROOT + "{address}"
_log = structlog.get_logger(__name__)


class _NoticeRoute(CallRoute):
    """Everything below the root: what is no good address, or no POST, is 404 all the same."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether a path is below the root."""
        if not scope["path"].startswith(ROOT):
            return Match.NONE, {}
        return Match.FULL, {"path_params": {}}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a call of any method."""
        await self.app(scope, receive, send)


class NoticeReceiver:
    """Receives notices and hands them on. Without a sink push is off, and every notice is 404."""

    def __init__(self, signer: NoticeSigner, sink: NoticeSink | None) -> None:
        self._signer = signer
        self._sink = sink
        self._recent: dict[str, bool] = {}
        """Tasks with a notice within the pause; whether another one has arrived since."""
        self._followers: set[asyncio.Task[None]] = set()

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the route."""
        routes.append(_NoticeRoute("POST", _TEMPLATE, self.receive, "notices"))

    async def receive(self, call: Call) -> None:
        """204 for an address of ours, 404 for any other; 413 and 503 as elsewhere."""
        notice = self._signer.verify(call.scope["path"]) if self._sink else None
        # the address is a secret: no later reader of the scope, such as a log, may see it
        call.scope["path"] = ROOT
        if notice is None or call.scope["method"] != "POST":
            raise NotFound("Not found.")
        await _skip_body(call.receive)
        await self._hand_on(notice)
        await send_empty(call.send, 204, [])

    async def _hand_on(self, notice: Notice) -> None:
        if notice.name in self._recent:
            self._recent[notice.name] = True
            return
        if len(self._recent) >= MOST_TASKS:
            raise Unavailable("Too many notices at once.", retry_after=RETRY_SECONDS)
        self._recent[notice.name] = False
        try:
            await self._deliver(notice)
        except NoticeUndelivered as error:
            _log.info("notice not delivered", object=notice.name, error=str(error))
            text = "The notice could not be handed on."
            raise Unavailable(text, retry_after=RETRY_SECONDS) from error
        finally:
            follower = asyncio.create_task(self._follow(notice))
            self._followers.add(follower)
            follower.add_done_callback(self._followers.discard)

    async def _follow(self, notice: Notice) -> None:
        """Holds further notices up for a pause, and hands on one for all of them."""
        name, pause, waited = notice.name, PAUSE_SECONDS, 0.0
        try:
            while waited < RETRY_FOR_SECONDS:
                await asyncio.sleep(pause)
                waited += pause
                if not self._recent[name]:
                    return
                self._recent[name] = False
                try:
                    await self._deliver(notice)
                except NoticeUndelivered as error:
                    _log.info("notice not delivered", object=name, error=str(error))
                    # its sender has a response, and will not send it again
                    self._recent[name] = True
                    pause = min(LONGEST_PAUSE, 2 * pause)
                else:
                    pause, waited = PAUSE_SECONDS, 0.0
        finally:
            del self._recent[name]

    async def _deliver(self, notice: Notice) -> None:
        assert self._sink is not None
        await self._sink.deliver(notice)


async def _skip_body(receive: Receive) -> None:
    """Read the body and drop it. TooLarge; ClientDisconnect if it does not come in time."""
    error = TooLarge(f"A notice may have {MOST_BYTES} bytes.")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for _ in read_chunks(receive, MOST_BYTES, error):
                pass
    except TimeoutError:
        raise ClientDisconnect from None
