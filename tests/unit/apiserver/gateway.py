"""The API on fakes, called as an ASGI application: what the tests of this folder work with."""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts

from gateway_apiserver.app import create_app, create_health_app
from gateway_apiserver.endpoints import CallRoute
from gateway_apiserver.parts import ApiParts
from gateway_apiserver.settings import ApiSettings
from gateway_apiserver.tables import Tables
from gateway_core.accounts.key_use import KeyUse
from gateway_core.admission.admission import Access
from gateway_core.admission.intake import Intake
from gateway_core.admission.live_calls import LiveCalls
from gateway_core.api.ids import IdMint, id_to_name
from gateway_core.api.key import KeyClass, digest, mint_key
from gateway_core.billing.journal import CallRecord, decode_object
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import Rebuilder
from gateway_core.billing.reservations import CallReservations
from gateway_core.files.addresses import Sealer
from gateway_core.kube.informer import Informer
from gateway_core.llm.answer_store import CacheBounds
from gateway_core.llm.cache import AnswerCache
from gateway_core.llm.upstream import LlmUpstream
from gateway_core.observability.tracing import NO_TRACER, Tracer
from gateway_core.providers.registry import Providers
from gateway_web.context import Drain, Header
from gateway_web.http1.exchange import EXCHANGE_KEY, ignore
from gateway_web.middleware.observers import AccessLog
from tests.fakes.answers import FakeAnswers
from tests.fakes.counters import FakeCounters
from tests.fakes.fetching import FakeFetcher
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes
from tests.fakes.moderation import FakeModeration
from tests.fakes.objects import FakeObjects
from tests.fakes.storage import FakeParts, FakeStorage
from tests.fakes.transient import FakeTransient

MODEL = "sim-q4-reference-to-video"
PATH = "/api/v1/sim/reference_to_video"
PEPPERS = {1: b"p" * 32, 2: b"q" * 32}
ID_KEY = b"i" * 32


def body(**changes: Any) -> dict[str, Any]:
    """A create's body; a change to `...` leaves the field out."""
    base: dict[str, Any] = {
        "model": MODEL,
        "prompt": "a cat",
        "reference_image_urls": ["https://example.com/a.png"],
    }
    return {name: value for name, value in {**base, **changes}.items() if value is not ...}


def read_settings(**settings: Any) -> ApiSettings:
    """Settings of a bare environment, with these changes."""
    return ApiSettings(secrets_dir=Path("unused"), store_dir=Path("unused"), **settings)


# half the time of making a `Gateway` is that of reading them
read_default_settings = cache(read_settings)


@dataclass
class Answer:
    """What came back."""

    status: int = 0
    raw_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        """By lower-case name; a name that is there twice is a failure."""
        names = [name for name, _ in self.raw_headers]
        assert len(names) == len(set(names)), names
        return {name.decode(): value.decode() for name, value in self.raw_headers}

    @property
    def json(self) -> Any:
        """The parsed body."""
        return orjson.loads(self.body)


@dataclass(frozen=True)
class Operation:
    """One operation of the application; `paid`: it passes admission."""

    method: str
    path: str
    label: str
    access: Access | None
    paid: bool = False


def list_operations(app: FastAPI) -> list[Operation]:
    """All operations, in the order in which paths are compared."""
    found = []
    for route in iter_route_contexts(app.routes):
        original = route.original_route
        if isinstance(original, CallRoute):
            of = original.label, original.access, original.paid
            found.append(Operation(original.method, original.path, *of))
        elif isinstance(original, APIRoute):
            marks = original.endpoint
            found += [
                Operation(method, original.path, marks.label, marks.access)
                for method in original.methods
            ]
    return found


class FakeExchange:
    """The client of a request that is no connection: it takes everything, until it leaves."""

    is_behind = False
    is_received = False

    def __init__(self, answer: Answer) -> None:
        self.on_gone: Callable[[], None] = ignore
        self.on_drained: Callable[[], None] = ignore
        self.is_gone = False
        self._answer = answer

    def write(self, data: bytes) -> None:
        """Take bytes of the body."""
        self._answer.body += data

    def respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """Take a whole response."""
        answer = self._answer
        assert answer.status == 0
        length = (b"content-length", b"%d" % len(body))
        answer.status, answer.raw_headers, answer.body = status, [*headers, length], body

    def begin(self, status: int, headers: Iterable[Header]) -> None:
        """Take the beginning of a response."""
        answer = self._answer
        assert answer.status == 0
        answer.status, answer.raw_headers = status, list(headers)

    def finish(self, data: bytes) -> None:
        """Take the end of the body."""
        self._answer.body += data

    def leave(self) -> None:
        """Have the client leave."""
        self.is_gone = True
        self.on_gone()


async def call(
    app: Any,
    method: str,
    path: str,
    *,
    headers: list[tuple[str, str]] | None = None,
    content: bytes = b"",
    query: str = "",
    chunks: list[bytes] | None = None,
    breaks_off: bool = False,
    address: str = "127.0.0.1",
) -> Answer:
    """One request to an ASGI application; `breaks_off`: its client leaves before the end."""
    answer = Answer()
    parts = [content] if chunks is None else list(chunks)

    async def receive() -> dict[str, Any]:
        if not parts:
            if not breaks_off:
                # a client that has sent everything stays until it is answered
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": breaks_off or bool(parts)}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            assert answer.status == 0
            answer.status = message["status"]
            answer.raw_headers = list(message["headers"])
        else:
            answer.body += message.get("body", b"")

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(k.lower().encode(), v.encode("latin-1")) for k, v in headers or []],
        "client": (address, 1),
        "server": ("127.0.0.1", 80),
        "scheme": "http",
        "root_path": "",
        EXCHANGE_KEY: FakeExchange(answer),
    }
    await app(scope, receive, send)
    return answer


class Gateway:
    """An API with the accounts `demo` and `guest`, a key each, and one model."""

    def __init__(self, *, tracer: Tracer = NO_TRACER, **settings: Any) -> None:
        chosen = read_settings(**settings) if settings else read_default_settings()
        self.clock: Callable[[], float] = time.time
        self.kube = FakeKubernetes()
        self.counters = FakeCounters()
        self.storage = FakeStorage()
        self.parts = FakeParts()
        self.store = FakeObjects()
        self.fetcher = FakeFetcher()
        self.answers = FakeAnswers(CacheBounds(1 << 20, 1 << 22))
        self.answer_cache = AnswerCache(self.answers)
        self.documents = FakeFetcher()
        self.transient = FakeTransient()
        self.mint = IdMint(ID_KEY)
        made: dict[str, FakeInformer[Any]] = {}

        tables = Tables(partial(self.make_informer, made), self.mint, chosen.account_defaults)
        self.keys, self.users = made["gatewaykeys"], made["gatewayusers"]
        self.guardrails, self.accounts = made["gatewayguardrails"], made["gatewayaccounts"]
        self.models, self.files = made["gatewaymodels"], made["gatewayfiles"]
        self.tasks = made["gatewaytasks"]
        self.moderation = FakeModeration()
        providers = Providers(tables.providers, self.kube, lambda *_: self.moderation)
        rebuilder = Rebuilder(self.kube, JournalStore(self.store), self.counters)
        holds = CallReservations(self.counters, rebuilder.rebuild, self.store, "api-test")
        self.calls = LiveCalls(holds)
        self.key_use = KeyUse(self.counters, lambda: self.clock())
        self.intake = Intake(maintenance=chosen.maintenance)
        parts = ApiParts(
            settings=chosen,
            kube=self.kube,
            counters=self.counters,
            storage=self.storage,
            parts=self.parts,
            store=self.store,
            fetcher=self.fetcher,
            documents=self.documents,
            oidc=None,
            transient=self.transient,
            sealer=Sealer(ID_KEY),
            tables=tables,
            moderations=providers,
            llm_providers=Providers(tables.providers, self.kube, LlmUpstream),
            rebuilder=rebuilder,
            calls=self.calls,
            intake=self.intake,
            key_use=self.key_use,
            answers=self.answer_cache,
            id_key=ID_KEY,
            peppers=PEPPERS,
            access=AccessLog(chosen.access_log),
            tracer=tracer,
            clock=lambda: self.clock(),
        )
        self.drain = Drain()
        self.api_parts = parts
        self.app = create_app(parts, self.drain)
        self.health = create_health_app(parts, self.drain)
        self.put_model()
        self.put_account("demo")
        self.put_account("guest")
        self.key = self.put_key("demo")
        self.other_key = self.put_key("guest")

    def make_informer(
        self, made: dict[str, FakeInformer[Any]], plural: str, *projection: Any, **selectors: Any
    ) -> Any:
        """A table of a process; one that stays is put into `made`."""
        if "heartbeat_seconds" in selectors:
            # of one account, and made by a page, which waits for its first list
            return Informer(self.kube, plural, *projection, **selectors)
        made[plural] = FakeInformer(self.kube, plural, *projection, **selectors)
        return made[plural]

    def put_account(self, name: str, **spec: Any) -> dict[str, Any]:
        """Applies a GatewayAccount."""
        base = {
            "displayName": f"{name} account",
            "owner": {"name": "Dana", "email": "dana@example.com"},
            "funds": {"paidMicros": 100_000_000, "bonusMicros": 0},
        }
        return self.kube.put(
            "gatewayaccounts", {"metadata": {"name": name}, "spec": {**base, **spec}}
        )

    def put_user(self, name: str, roles: Mapping[str, str], **spec: Any) -> dict[str, Any]:
        """Applies a GatewayUser with these roles by account."""
        memberships = [{"accountName": account, "role": role} for account, role in roles.items()]
        base = {
            "displayName": name.title(),
            "email": f"{name}@example.com",
            "memberships": memberships,
        }
        return self.kube.put("gatewayusers", {"metadata": {"name": name}, "spec": {**base, **spec}})

    def put_key(
        self,
        account: str,
        key_class: KeyClass = "Standard",
        pepper: int = 1,
        token: dict[str, Any] | None = None,
        **spec: Any,
    ) -> str:
        """Applies a GatewayKey called `key-<id>`; its plaintext."""
        minted = mint_key(key_class)
        made = {
            "id": minted.id,
            "digest": digest(minted.plaintext, PEPPERS[pepper]),
            "pepperVersion": pepper,
            "hint": "sk-ab…yz",
            **(token or {}),
        }
        base = {
            "accountName": account,
            "class": key_class,
            "displayName": "test",
            "tokens": [made],
        }
        obj = {"metadata": {"name": f"key-{minted.id}"}, "spec": {**base, **spec}}
        self.kube.put("gatewaykeys", obj)
        return minted.plaintext

    def change_key(self, plaintext: str, **spec: Any) -> None:
        """Changes the GatewayKey that `plaintext` opens."""
        name = "key-" + plaintext[3:11]
        old = next(
            obj for obj in self.kube.list_objects("gatewaykeys") if obj["metadata"]["name"] == name
        )
        self.kube.put("gatewaykeys", {**old, "spec": {**old["spec"], **spec}})

    def put_guardrail(self, name: str, *keys: str, account: str = "demo", **spec: Any) -> None:
        """Applies a GatewayGuardrail over the keys of these plaintexts."""
        base = {"accountName": account, "displayName": f"Pool {name}"}
        named = {"keyNames": ["key-" + key[3:11] for key in keys]}
        self.kube.put(
            "gatewayguardrails", {"metadata": {"name": name}, "spec": {**base, **named, **spec}}
        )

    def put_model(self, model_id: str = MODEL, service: str = "sim", **spec: Any) -> None:
        """Applies a GatewayModel named as its id."""
        base = {
            "modelId": model_id,
            "service": service,
            "action": "reference_to_video",
            "routes": [{"name": "main", "providerName": "simulated", "upstreamModel": "q4"}],
            "prices": [{"perSecond": [{"resolution": "*", "micros": 100_000}]}],
        }
        self.kube.put("gatewaymodels", {"metadata": {"name": model_id}, "spec": {**base, **spec}})

    async def create(
        self,
        content: Any = None,
        *,
        key: str | None = None,
        idempotency_key: str | None = None,
        path: str = PATH,
        content_type: str | None = "application/json",
        headers: list[tuple[str, str]] | None = None,
    ) -> Answer:
        """POSTs a create; `content` is a body, or bytes as they are."""
        sent = [("Authorization", f"Bearer {key or self.key}"), *(headers or [])]
        if content_type is not None:
            sent.append(("Content-Type", content_type))
        if idempotency_key is not None:
            sent.append(("Idempotency-Key", idempotency_key))
        given = body() if content is None else content
        raw = given if isinstance(given, bytes) else orjson.dumps(given)
        return await call(self.app, "POST", path, headers=sent, content=raw)

    async def get(self, path: str, *, key: str | None = None, query: str = "") -> Answer:
        """GETs a path with a key."""
        headers = [("Authorization", f"Bearer {key or self.key}")]
        return await call(self.app, "GET", path, headers=headers, query=query)

    async def poll(self, task_id: str, *, key: str | None = None) -> Answer:
        """GETs a task."""
        return await self.get(f"{PATH}/{task_id}", key=key)

    def task_object(self, task_id: str) -> dict[str, Any]:
        """The task's object as it is in the record."""
        return next(
            obj
            for obj in self.kube.list_objects("gatewaytasks")
            if obj["metadata"]["name"] == id_to_name(task_id)
        )

    def put_task(self, task_id: str, account: str = "demo", **parts: Any) -> dict[str, Any]:
        """Stores a task as kubectl would; `parts` are of `spec.request`, or `status`."""
        status = parts.pop("status", None)
        request = {
            "accountName": account,
            "service": "sim",
            "action": "reference_to_video",
            "modelId": MODEL,
            "input": "{}",
            **parts,
        }
        obj: dict[str, Any] = {
            "metadata": {"name": id_to_name(task_id)},
            "spec": {"request": request},
        }
        if status is not None:
            obj["status"] = status
        return self.kube.put("gatewaytasks", obj)

    def end_task(self, task_id: str, status: dict[str, Any]) -> None:
        """Gives the task a status."""
        self.kube.put("gatewaytasks", {**self.task_object(task_id), "status": status})

    def task_count(self) -> int:
        """How many tasks are in the record."""
        return len(self.kube.list_objects("gatewaytasks"))

    async def close_journal(self) -> list[CallRecord]:
        """End the calls of this process; all records that the journal has then."""
        await self.calls.close()
        keys = [entry.key async for entry in self.store.list_entries("journal/")]
        found = [decode_object(key, await self.store.get(key)) for key in keys]
        return [record for each in found for record in each.records]

    async def held(self, account: str = "demo") -> int:
        """Micro-dollars held for the account."""
        return (await self.counters.read_spending(account, "2026-11-21")).held


COMPLETED = {
    "phase": "Completed",
    "chargedMicros": 500_000,
    "completionTime": "2026-11-21T00:00:00Z",
    "result": {
        "videos": [
            {
                "url": "https://media.example.com/v.mp4",
                "key": "media/x/0",
                "bytes": 1,
                "sha256": "0" * 64,
                "contentType": "video/mp4",
            }
        ]
    },
}
FAILED = {
    "phase": "Failed",
    "completionTime": "2026-11-21T00:00:00Z",
    "failure": {"code": "generation_failed", "message": "The provider rejected an input image."},
}


def random_id(mint: IdMint, account: str = "demo") -> str:
    """A task id that was minted for the account."""
    return mint.mint_random("task", account)


def clear_environment(patch: pytest.MonkeyPatch) -> None:
    """Takes the gateway's variables out of the environment."""
    for name in list(os.environ):
        if name.startswith("GATEWAY_"):
            patch.delenv(name)
