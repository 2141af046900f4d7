"""The task controller on fakes, in virtual time: an operator that can be killed and started again.

The record, the counters, the store and the provider outlive it, as they do in earnest.
"""

import asyncio
import json
from collections import defaultdict
from functools import partial
from typing import Any, Self

from gateway_core.api.account import AccountDefaults, GatewayAccount, GatewayUser
from gateway_core.api.ids import (
    ACCOUNT_LABEL,
    CREATED_ANNOTATION,
    SHARD_LABEL,
    TASK_FINALIZER,
    TASK_PREFIX,
    IdMint,
    id_to_name,
    shard_of,
)
from gateway_core.api.limits import list_subjects
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider, ProviderSpec
from gateway_core.api.resource import Object
from gateway_core.api.task import TERMINAL_PHASES, GatewayTask
from gateway_core.api.times import format_precise_time, format_time, parse_time
from gateway_core.billing.counters import Hold
from gateway_core.billing.journal_store import JournalStore
from gateway_core.billing.ledger import Rebuilder, rebuild_ledger
from gateway_core.callbacks.schedule import SCHEDULE
from gateway_core.files.addresses import MediaSigner
from gateway_core.kube.client import WatchEvent
from gateway_core.observability.tracing import NO_TRACER, Tracer
from gateway_core.providers.catalog import build_catalog
from gateway_core.providers.registry import Providers
from gateway_core.providers.upstream import Upstream
from gateway_core.tasks.archive import read_archived, store_input
from gateway_operator.accounts.credentials import Credentials
from gateway_operator.accounts.kinds import project_guardrail, project_key
from gateway_operator.billing.aggregator import UsageAggregator
from gateway_operator.billing.reservations import Reservations
from gateway_operator.callbacks.client import CallbackClient
from gateway_operator.callbacks.signing import Keyring
from gateway_operator.context import Context, Shards
from gateway_operator.metrics import Metrics
from gateway_operator.reconciler import WorkQueue
from gateway_operator.schedule import Schedule
from gateway_operator.tasks.calls import Inputs, Outputs, ProviderCalls, TaskTraces
from gateway_operator.tasks.controller import TaskController
from gateway_operator.tasks.delivery import REDELIVERY_SELECTOR, read_wanted
from gateway_operator.tasks.resync import Resync
from tests.fakes.callbacks import FakeSender
from tests.fakes.clock import START
from tests.fakes.counters import FakeCounters
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import copy_object
from tests.fakes.objects import FakeObjects
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.declarations import Declarations
from tests.unit.operator.environment import (
    BEGIN,
    TASKS,
    Feed,
    Killable,
    RemoteRecords,
    SlowObjects,
    TickingCounters,
    read_now,
)

QUOTE = 300_000
WEBHOOK_SECRET = "whsec_" + "c2VjcmV0IG9mIHRoZSBzdGFnZSE4MTY0ODE2NDgxNjQ="
OPEN_AT_END = ("work", "callback", "conditions", "observedGeneration")
"""What may change in the status of a task that has ended: none of it is its client's answer."""
ROUTE = {"providerName": "simulated", "upstreamModel": "q4"}
"""The simulation's only route, as a task's request names it."""
ALL_SHARDS = Shards()
SIGNER = MediaSigner(b"m" * 32)
MINT = IdMint(b"i" * 32)


class Operator:
    """One process's worth of the operator; `kill` leaves nothing of it."""

    def __init__(self, sim: "Simulation", lag: float, shards: Shards = ALL_SHARDS) -> None:
        self.metrics = Metrics()
        self.context = Context(
            kube=sim.kube,
            store=sim.store,
            shards=shards,
            mint=MINT,
            failpoints=sim.failpoints,
            metrics=self.metrics,
            now=read_now,
            post=sim.kube.post_event,
        )
        self.providers = Providers(sim.providers, sim.kube, sim.build_upstream, lambda _: None)
        self.reservations = Reservations(
            sim.counters,
            Rebuilder(sim.kube, JournalStore(sim.store), sim.counters),
            AccountDefaults(),
            read_now,
        )
        self.credentials = Credentials(sim.accounts, sim.users, sim.keys, sim.guardrails, read_now)
        self.calls = ProviderCalls(
            self.providers,
            self.metrics,
            TaskTraces(sim.tracer, sends_traceparent=sim.sends_traceparent),
            lambda notice: sim.notify_url and sim.notify_url + notice.name,
        )
        self.outputs = Outputs(sim.store, SIGNER, "https://media.example")
        self.aggregator = UsageAggregator(sim.kube, self.metrics, read_now, pause_seconds=1.0)
        keyring = Keyring(sim.accounts, sim.kube, read_now)
        self.callbacks = CallbackClient(sim.receivers, keyring, read_now, sim.callback_schedule)
        self.catalog = lambda: build_catalog(model for _, model in sim.models.items())[0]
        self.controller = TaskController(
            self.context,
            reservations=self.reservations,
            credentials=self.credentials,
            calls=self.calls,
            inputs=Inputs(sim.store, self.catalog),
            outputs=self.outputs,
            aggregator=self.aggregator,
            callbacks=self.callbacks,
        )
        self.cache, self.queue = self.controller.cache, self.controller.queue
        wanted = FakeInformer(
            sim.kube,
            TASKS,
            partial(read_wanted, shards=shards),
            field_selector=REDELIVERY_SELECTOR,
        )
        self.controller.follow_redeliveries(wanted)
        for obj in sim.kube.list_objects(TASKS):
            wanted.upsert(copy_object(obj))
        self.resync = Resync(self.context, self.controller, sim.counters)
        self.feed = Feed(sim.kube, self.controller, lag, shards)
        schedule = Schedule(
            lambda name: self.metrics.note_sweep(name, read_now()), *self.resync.plan(60)
        )
        parts = (self.queue.run, self.controller.recording.queue.run, schedule.run)
        self._parts = [asyncio.create_task(part()) for part in parts]

    @property
    def failure(self) -> BaseException | None:
        return next((part.exception() for part in self._parts if part.done()), None)

    @property
    def is_running(self) -> bool:
        return not any(part.done() for part in self._parts)

    async def end(self) -> None:
        self.feed.ended = True
        await self.controller.end()
        await self.kill()

    def halt(self) -> None:
        """Has it do nothing more from this moment on; `kill` takes it away."""
        self.feed.ended = True
        for queue in (self.queue, self.controller.recording.queue):
            stop(queue)
        for part in self._parts:
            part.cancel()

    async def kill(self) -> None:
        self.feed.ended = True
        for part in self._parts:
            part.cancel()
        await asyncio.gather(*self._parts, return_exceptions=True)


class Simulation(Killable, Declarations):
    """Everything around an operator, and what has happened to each task."""

    def __init__(self, upstream: FakeUpstream | None = None, *, lag: float = 0.01) -> None:
        super().__init__()
        self.lag = lag
        self.upstream = upstream or FakeUpstream()
        self.notify_url: str | None = None
        self.tracer: Tracer = NO_TRACER
        self.sends_traceparent = False
        self.annotations: dict[str, str] = {}
        """What the tasks of `admit` have."""
        self.kube = RemoteRecords(clock=lambda: format_time(read_now()))
        self.store: FakeObjects = FakeObjects()
        self.counters: FakeCounters = TickingCounters()
        self.accounts = FakeInformer(self.kube, "gatewayaccounts", GatewayAccount.model_validate)
        self.users = FakeInformer(self.kube, "gatewayusers", GatewayUser.model_validate)
        self.keys = FakeInformer(self.kube, "gatewaykeys", project_key)
        self.guardrails = FakeInformer(self.kube, "gatewayguardrails", project_guardrail)
        self.models = FakeInformer(self.kube, "gatewaymodels", GatewayModel.model_validate)
        self.providers = FakeInformer(self.kube, "gatewayproviders", GatewayProvider.model_validate)
        self.receivers = FakeSender()
        self.callback_schedule = SCHEDULE
        self.kube.secrets["demo-webhook"] = {"secret": WEBHOOK_SECRET.encode()}
        self.history: dict[str, list[Object]] = defaultdict(list)
        self.operator: Operator | None = None
        self.twin: Operator | None = None
        self.replicas: list[Operator] = []
        self._restarting = asyncio.Lock()
        self.kube.listen(TASKS, self._remember)
        self.put_account()
        self.put_model()
        self.put_provider()

    @classmethod
    async def start(cls, *given: Any, **named: Any) -> Self:
        """A simulation whose operator runs; the arguments are those of the constructor."""
        sim = cls(*given, **named)
        await sim.boot()
        return sim

    def build_upstream(self, _spec: ProviderSpec, _credential: str | None) -> Upstream:
        return self.upstream

    async def boot(self) -> Operator:
        """Starts an operator, the account's money being known."""
        await self.open_books("demo")
        return await self.boot_without_books()

    async def boot_without_books(self) -> Operator:
        """Starts an operator while the counters know nothing."""
        self.operator = Operator(self, self.lag)
        return self.operator

    async def kill(self) -> None:
        for operator in (self.operator, self.twin, *self.replicas):
            if operator is not None:
                await operator.kill()
        self.operator = self.twin = None
        self.replicas = []

    def boot_twin(self, lag: float) -> None:
        """Starts another operator beside the one that runs, which it is not meant to be."""
        self.twin = self.twin or Operator(self, lag)

    def boot_replicas(self, count: int) -> list[Operator]:
        self.replicas += [
            Operator(self, self.lag, Shards.divide(count, ordinal)) for ordinal in range(count)
        ]
        return self.replicas

    @property
    def running(self) -> Any:
        """The operator that runs."""
        assert self.operator is not None
        return self.operator

    def halt(self) -> None:
        for operator in filter(None, (self.operator, self.twin, *self.replicas)):
            operator.halt()

    async def restart(self) -> Operator:
        async with self._restarting:
            await self.kill()
            self.failpoints.is_dead = False
            return await self.boot_without_books()

    async def open_books(self, account: str) -> None:
        """Gives an account its money in the counters, as far as the record tells."""
        await rebuild_ledger(self.kube, JournalStore(self.store), self.counters, account)

    def put_account(self, name: str = "demo", **spec: Any) -> None:
        """Apply a GatewayAccount with ten dollars and a secret for its callbacks."""
        base = {
            "funds": {"paidMicros": 10_000_000},
            "webhookSecretRef": {"name": f"{name}-webhook", "key": "secret"},
        }
        super().put_account(name, **{**base, **spec})

    def put_model(self, name: str = "sim-q4", **spec: Any) -> None:
        """Apply a GatewayModel of 0.06 USD a second at 720p."""
        rates = [{"resolution": "720p", "micros": 60_000}, {"micros": 100_000}]
        super().put_model(name, **{"prices": [{"perSecond": rates}], **spec})

    def set_problem(self, problem: str | None) -> None:
        """Makes the provider `simulated` unusable by a change of its declaration, or usable."""
        self.upstream.problem = problem
        self.put_provider(maxConcurrentRequests=64 if problem is None else 63)

    def spec(self, *, deadline: int = 600, **request: Any) -> dict[str, Any]:
        """A task's spec; `request` changes members of `spec.request`."""
        values = {
            "prompt": "a cat",
            "reference_image_urls": ["https://example.com/a.png"],
            "aspect_ratio": "16:9",
            "audio": True,
            "duration_seconds": 5,
            "output_resolution": "720p",
        }
        base = {
            "accountName": "demo",
            "service": "sim",
            "action": "reference_to_video",
            "modelId": "sim-q4",
            "input": json.dumps(values),
        }
        made = {name: v for name, v in {**base, **request}.items() if v is not None}
        return {"request": made, "desiredState": "Completed", "deadlineSeconds": deadline}

    async def admit(self, *, reserved: int = QUOTE, deadline: int = 600, **request: Any) -> str:
        """A task as the API makes it: money held, labels and finalizer on it; its name."""
        name = id_to_name(MINT.mint_random(TASK_PREFIX, "demo"))
        if "demo" in await self.counters.list_accounts():
            await self.counters.hold("demo", Hold(name, reserved, list_subjects(request)))
        spec = self.spec(
            deadline=deadline, fingerprint="f" * 64, reservedMicros=reserved, **request
        )
        labels = {ACCOUNT_LABEL: "demo", SHARD_LABEL: str(shard_of(name))}
        metadata: dict[str, Any] = {
            "name": name,
            "labels": labels,
            "finalizers": [TASK_FINALIZER],
        }
        created = format_precise_time(read_now())
        metadata["annotations"] = {CREATED_ANNOTATION: created, **self.annotations}
        await self.kube.create(TASKS, {"metadata": metadata, "spec": spec})
        return name

    async def run(self, **request: Any) -> str:
        """A task whose job runs."""
        name = await self.admit(**request)
        await self.wait(lambda: self.status(name).get("phase") == "Running")
        return name

    async def admit_stored(self, canonical: bytes) -> str:
        """A task as the API makes it of an input over 8 KiB."""
        member = await store_input(self.store, "demo", "input", canonical.ljust(9000))
        return await self.admit(input=None, **member)

    def slow_store(self, seconds: float) -> SlowObjects:
        """Has reading from the store take so long from now on."""
        self.store = slow = SlowObjects(seconds)
        return slow

    def show(self, name: str) -> None:
        """Shows the task to the operator now, however late its feed is."""
        assert self.operator is not None
        self.operator.feed.show_now(name)

    def newest_intent(self, name: str) -> float:
        """When the newest intent was written down, in the loop's time."""
        written = parse_time(self.status(name)["upstream"]["intentTime"])
        return (written - BEGIN).total_seconds() + START

    async def apply(self, name: str = "task-made-by-hand", **request: Any) -> str:
        """A task as `kubectl create -f` makes it; its name."""
        obj = {"metadata": {"name": name}, "spec": self.spec(**request)}
        await self.kube.create(TASKS, obj)
        return name

    async def change(self, name: str, patch: dict[str, Any]) -> None:
        await self.kube.patch(TASKS, await self.kube.get(TASKS, name), patch)

    async def cancel(self, name: str) -> None:
        await self.change(name, {"spec": {"desiredState": "Cancelled"}})

    def status(self, name: str) -> dict[str, Any]:
        return dict(self.history[name][-1].get("status") or {})

    def age_at_end(self, name: str) -> float:
        """Seconds from the task's creation to its end."""
        begun = parse_time(self.history[name][0]["metadata"]["creationTimestamp"])
        return (parse_time(self.status(name)["completionTime"]) - begun).total_seconds()

    def is_there(self, name: str) -> bool:
        return self.kube.find(TASKS, name) is not None

    def is_ended(self, name: str) -> bool:
        return self.status(name).get("phase") in TERMINAL_PHASES

    def is_closed(self, name: str) -> bool:
        last = self.history[name][-1]["metadata"]
        return self.is_ended(name) and (
            not self.is_there(name) or TASK_FINALIZER not in last.get("finalizers", [])
        )

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def finish(self, name: str, *, seconds: float = 60) -> dict[str, Any]:
        """Waits until the task is closed; its status."""
        await self.wait(lambda: self.is_closed(name), seconds=seconds, what=f"{name}'s end")
        return self.status(name)

    async def balance(self) -> tuple[int, int]:
        spending = await self.counters.read_spending("demo", format_time(read_now())[:10])
        return spending.charged, spending.held

    def uid(self, name: str) -> str:
        """The task's uid, by which the provider knows it."""
        return str(self.history[name][0]["metadata"]["uid"])

    def count_jobs(self, name: str) -> int:
        return sum(job.reference == self.uid(name) for job in self.upstream.jobs)

    def check_history(self) -> None:
        """No phase went back, and no end changed (I3), in any version of any task."""
        rank = {None: 0, "Pending": 1, "Submitting": 2, "Running": 3, "Completed": 4, "Failed": 4}
        for name, versions in self.history.items():
            phases = [rank[(obj.get("status") or {}).get("phase")] for obj in versions]
            assert phases == sorted(phases), f"{name} went back: {phases}"
            ends = [obj["status"] for obj in versions if has_ended(obj)]
            told = [{k: v for k, v in end.items() if k not in OPEN_AT_END} for end in ends]
            assert all(end == told[0] for end in told), f"I3: {name} ended twice: {ends}"
            for obj in versions:
                GatewayTask.model_validate(obj)

    async def check_archive(self) -> None:
        """Every task that has ended can be read once its object is gone (I9)."""
        for name, versions in self.history.items():
            archived = await read_archived(self.store, "demo", name)
            assert archived is not None
            assert archived["status"] == versions[-1]["status"]

    def _remember(self, change: WatchEvent) -> None:
        obj = copy_object(change.object)
        name = obj["metadata"]["name"]
        if change.type != "DELETED" or not self.history[name]:
            self.history[name].append(obj)


def stop(queue: WorkQueue) -> None:
    """Has a queue's work end here."""
    queue.is_draining = True
    for task in list(queue._running.values()):
        task.cancel()


def has_ended(obj: Object) -> bool:
    return (obj.get("status") or {}).get("phase") in TERMINAL_PHASES
