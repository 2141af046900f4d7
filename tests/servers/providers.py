"""Providers as real servers, in threads of their own: they outlive the processes under test."""

import asyncio
import hashlib
import hmac
import itertools
import secrets
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web

from tests.fakes.moderation import judge
from tests.servers.server import WebServer

VIDEO = b"\x00\x00\x00\x18ftypmp42" + bytes(1000)
NEVER = float("inf")


@dataclass
class Operation:
    """A job that was made. `ends` is on the monotonic clock."""

    name: str
    engine: str
    reference: str
    body: dict[str, Any]
    made: float
    ends: float
    outcome: str = "Success"
    polls: int = 0

    @property
    def notify(self) -> str | None:
        found: str | None = (self.body.get("notify") or {}).get("uri")
        return found

    @property
    def done(self) -> bool:
        return time.monotonic() >= self.ends


@dataclass
class Fault:
    """What the next call of one kind comes to: before the work is done, or after."""

    call: str
    kind: str
    after: bool = False
    detail: Any = None


@dataclass
class OperationsProvider(WebServer):
    """A provider in another style than the simulator's: the second one of docs/providers.md.

    Long-running operations whose names are paths, every answer a 200 with its error in the body,
    outputs behind a second call and on another host, look-up through a list that lags, and a
    notification at the end. Its journal says which jobs were really made. `seconds` is how long a
    job takes, `lag` until the list shows it.
    """

    seconds: float = 1.0
    lag: float = 0.0
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    filters: bool = True
    signed: bool = False
    """Whether requests must be signed instead of carrying the token, and jobs begin by POST."""
    notifies_early: bool = False
    notify_times: int = 1

    def __post_init__(self) -> None:
        super().__init__()
        self.journal: list[Operation] = []
        self.calls: Counter[str] = Counter()
        self.notified: list[int] = []
        """The answers to notifications."""
        self._faults: deque[Fault] = deque()
        self._ids = itertools.count(1)
        self._key = secrets.token_hex(8)
        self._errands: set[asyncio.Task[None]] = set()

    def misbehave(self, call: str, kind: str, *, after: bool = False, detail: Any = None) -> None:
        """Let the next call go wrong; `detail` is what the kind asks for."""
        self._faults.append(Fault(call, kind, after, detail))

    def behave(self) -> None:
        """Forgets all faults and goes back to what is usual."""
        self._faults.clear()
        self.notified.clear()
        self.seconds, self.lag, self.filters = 1.0, 0.0, True
        self.notifies_early, self.notify_times = False, 1

    def made(self, reference: str) -> list[Operation]:
        """The jobs that were made under a reference."""
        return [job for job in self.journal if job.reference == reference]

    def finish(self, reference: str, outcome: str = "Success") -> None:
        """Ends a job now, and tells of it."""
        for job in self.made(reference):
            job.ends, job.outcome = time.monotonic(), outcome
            self._loop.call_soon_threadsafe(self._tell, job)

    def build(self) -> web.Application:
        app = web.Application()
        method = "POST" if self.signed else "PUT"
        path = "/v3/engines/{engine:.+}/operations"
        app.router.add_route(method, path, self._call("submit"))
        app.router.add_get("/v3/operations", self._call("lookup"))
        app.router.add_get("/v3/{name:engines/.+}/artifacts", self._call("result"))
        app.router.add_get("/v3/{name:engines/.+}", self._call("poll"))
        app.router.add_delete("/v3/{name:engines/.+}", self._call("cancel"))
        app.router.add_get("/artifacts/{rest:.+}.mp4", self._serve)
        return app

    async def open(self) -> None:
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))
        await super().open()

    async def close(self) -> None:
        for errand in list(self._errands):
            errand.cancel()
        await self._client.close()
        await super().close()

    def _call(self, call: str) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            self.calls[call] += 1
            if not await self._knows(request):
                return _error("BAD_TOKEN", f"Token {request.headers.get('X-Access-Token')} is bad")
            early = self._take(call, after=False)
            if early is not None:
                return self._spoil(request, early)
            answer = await getattr(self, f"_{call}")(request)
            late = self._take(call, after=True)
            return answer if late is None else self._spoil(request, late)

        return handle

    async def _knows(self, request: web.Request) -> bool:
        if not self.signed:
            return request.headers.get("X-Access-Token") == self.token
        text = f"{request.method}\n{request.raw_path}\n".encode() + await request.read()
        signature = hmac.new(self.token.encode(), text, hashlib.sha256).hexdigest()
        return request.headers.get("X-Signature") == signature

    def _take(self, call: str, *, after: bool) -> Fault | None:
        for fault in self._faults:
            if (fault.call, fault.after) == (call, after) and fault.kind not in _OF_JOBS:
                self._faults.remove(fault)
                return fault
        return None

    def _spoil(self, request: web.Request, fault: Fault) -> web.StreamResponse:
        match fault.kind:
            case "cut":
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case "status":
                status, wait = fault.detail
                return web.Response(status=status, headers={"Retry-After": wait} if wait else {})
            case "redirect":
                return web.Response(status=307, headers={"Location": fault.detail})
            case "error":
                return _error(*fault.detail)
            case "nonsense":
                return web.Response(text=fault.detail, content_type="application/json")
        raise AssertionError(fault)

    async def _submit(self, request: web.Request) -> web.Response:
        body = await request.json()
        engine = request.match_info["engine"]
        now = time.monotonic()
        job = Operation(
            f"engines/{engine}/operations/{next(self._ids):04d}-{self._key}",
            engine,
            body["labels"]["ref"],
            body,
            now,
            now + self.seconds,
        )
        for fault in [fault for fault in self._faults if fault.kind in _OF_JOBS]:
            self._faults.remove(fault)
            if fault.kind == "same name":
                job.name = self.journal[-1].name
            else:
                job.ends = NEVER
        self.journal.append(job)
        if self.notifies_early:
            await self._notify(job, 0)
        if job.ends < NEVER:
            self._loop.call_at(job.ends, self._tell, job)
        return web.json_response({"ok": True, "operation": {"name": job.name, "done": False}})

    async def _lookup(self, request: web.Request) -> web.Response:
        wanted = request.query["filter"].removeprefix("labels.ref:")
        shown = [
            self._show(job)
            for job in reversed(self.journal)
            if time.monotonic() >= job.made + self.lag
            and (not self.filters or job.reference.startswith(wanted))
        ]
        # as many APIs do, an empty list is left out
        return web.json_response({"ok": True, **({"operations": shown[:20]} if shown else {})})

    async def _poll(self, request: web.Request) -> web.Response:
        job = self._find(request)
        if job is None:
            return _error("NO_SUCH_OPERATION", "There is no such operation.")
        job.polls += 1
        return web.json_response({"ok": True, "operation": self._show(job)})

    async def _result(self, request: web.Request) -> web.Response:
        job = self._find(request)
        if job is None or not job.done:
            return _error("NO_SUCH_OPERATION", "There is no such operation.")
        # another host than the API's, and good for this one address only
        uri = f"http://localhost:{self.port}/artifacts/{job.name}.mp4?sig={self._key}%2B"
        artifacts = [{"uri": uri, "length_ms": job.body["length_ms"]}]
        return web.json_response({"ok": True, "artifacts": artifacts})

    async def _cancel(self, request: web.Request) -> web.Response:
        job = self._find(request)
        if job is None or job.done:
            return _error("NO_SUCH_OPERATION", "There is no such operation.")
        job.ends, job.outcome = time.monotonic(), "Aborted"
        return web.json_response({"ok": True})

    async def _serve(self, request: web.Request) -> web.Response:
        signed = request.raw_path.endswith(f"?sig={self._key}%2B")
        if not signed or "X-Access-Token" in request.headers:
            return web.Response(status=403)
        return web.Response(body=VIDEO, content_type="video/mp4")

    def _find(self, request: web.Request) -> Operation | None:
        name = request.match_info["name"]
        return next((job for job in self.journal if job.name == name), None)

    def _show(self, job: Operation) -> dict[str, Any]:
        shown: dict[str, Any] = {
            "name": job.name,
            "done": job.done,
            "labels": {"ref": job.reference},
        }
        if job.done:
            shown["outcome"] = job.outcome
        if job.done and job.outcome == "Failure":
            shown["fault"] = {"message": f"A still is too dark ({job.name}, {self.token})."}
        return shown

    def _tell(self, job: Operation) -> None:
        if not job.done:
            return
        for number in range(self.notify_times):
            errand = self._loop.create_task(self._notify(job, number))
            self._errands.add(errand)
            errand.add_done_callback(self._errands.discard)

    async def _notify(self, job: Operation, number: int) -> None:
        if job.notify is None:
            return
        content = {"operation": self._show(job), "number": number}
        try:
            async with self._client.post(job.notify, json=content) as answer:
                self.notified.append(answer.status)
        except (aiohttp.ClientError, TimeoutError):
            self.notified.append(0)


_OF_JOBS = ("same name", "stuck")


def _error(code: str, message: str, retry_after_ms: int | None = None) -> web.Response:
    error = {"code": code, "message": message}
    if retry_after_ms is not None:
        error["retry_after_ms"] = retry_after_ms
    return web.json_response({"ok": False, "error": error})


Script = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Moderator(WebServer):
    """A provider with `/v1/moderations` that judges as the fake does, but for `scripts` first.

    `seen` are the headers and bodies of all requests.
    """

    token = "sk-upstream-7c1d9e8f0a"

    def __init__(self) -> None:
        super().__init__()
        self.scripts: deque[Script] = deque()
        self.seen: list[tuple[dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        """What a provider's `baseUrl` is."""
        return f"{super().url}/v1"

    def build(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/v1/moderations", self._answer)
        return app

    def answer_next(
        self, status: int, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Has the next request answered so; bytes go as they are."""

        async def script(_: web.Request) -> web.StreamResponse:
            if isinstance(body, bytes):
                return web.Response(status=status, body=body, headers=headers)
            return web.json_response(body, status=status, headers=headers)

        self.scripts.append(script)

    def hang_next(self) -> None:
        async def script(_: web.Request) -> web.StreamResponse:
            await asyncio.sleep(60.0)
            return web.Response(status=500)

        self.scripts.append(script)

    def cut_next(self) -> None:
        async def script(request: web.Request) -> web.StreamResponse:
            assert request.transport is not None
            request.transport.close()
            return web.Response()

        self.scripts.append(script)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.seen.append(({k.lower(): v for k, v in request.headers.items()}, body))
        if self.scripts:
            return await self.scripts.popleft()(request)
        given = body["input"]
        texts = given if isinstance(given, list) and isinstance(given[0], str) else [str(given)]
        results = [judge(text) for text in texts]
        return web.json_response({"id": "modr-1", "model": body["model"], "results": results})
