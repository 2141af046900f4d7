"""What tasks exchange with providers: calls, counted and traced, their input and their outputs.

The task's object names its trace, so the trace continues in the process that works the task next. A
task made with kubectl gets a trace that is named by its uid.
"""

import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gateway_core.api.conditions import Reason
from gateway_core.api.errors import GatewayError
from gateway_core.api.ids import TRACEPARENT_ANNOTATION
from gateway_core.api.task import GatewayTask, TaskRequest
from gateway_core.api.upload import LIFETIME_SECONDS
from gateway_core.fair_semaphore import FairSemaphore
from gateway_core.files.addresses import MediaItem, MediaSigner
from gateway_core.observability.tracing import (
    NO_SPAN,
    NO_TRACER,
    Span,
    SpanKind,
    TraceContext,
    Tracer,
    parse_traceparent,
)
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.providers.health import HealthTally
from gateway_core.providers.notices import Notice
from gateway_core.providers.registry import Providers
from gateway_core.providers.suggestions import allow_all, suggest_models
from gateway_core.providers.upstream import (
    OutputRejected,
    Upstream,
    UpstreamBusy,
    UpstreamDenied,
    UpstreamError,
    UpstreamGone,
    UpstreamRejected,
    UpstreamUnclear,
)
from gateway_core.storage.objects import ObjectStore, ObjectTooLarge
from gateway_core.tasks.archive import load_input
from gateway_core.tasks.validation import apply_defaults, check_model, check_shape
from gateway_operator.accounts.credentials import Refusal
from gateway_operator.metrics import Metrics

_TRACE_ID = re.compile(r"(?!0{32})[0-9a-f]{32}")
_OUTCOMES: dict[type[UpstreamError], str] = {
    UpstreamRejected: "rejected",
    OutputRejected: "rejected",
    UpstreamBusy: "busy",
    UpstreamDenied: "denied",
    UpstreamUnclear: "unclear",
    UpstreamGone: "gone",
}


_FAULTS = frozenset({"busy", "denied", "unclear"})
"""Outcomes that are the provider's fault, for its health."""
COPY = "copy"
"""The download of an output, whose time is that of its bytes and whose host may be another's."""


class TaskTraces:
    """Spans of tasks. `sends_traceparent` is whether calls that start jobs carry `traceparent`."""

    def __init__(self, tracer: Tracer = NO_TRACER, *, sends_traceparent: bool = False) -> None:
        self._tracer = tracer
        self._sends_traceparent = sends_traceparent

    def begin(self, task: GatewayTask, name: str, *, kind: SpanKind = SpanKind.INTERNAL) -> Span:
        """Return the span of a step of the task."""
        if not self._tracer.is_on:
            return NO_SPAN
        parent = find_context(task)
        own_trace = task.metadata.uid.replace("-", "")
        return self._tracer.start(
            name,
            kind=kind,
            parent=parent,
            trace_id=own_trace if parent is None and _TRACE_ID.fullmatch(own_trace) else None,
            attributes={
                "gateway.task": task.metadata.name,
                "gateway.account": task.spec.request.account_name,
            },
        )

    def name_for_provider(self, span: Span) -> str | None:
        """`traceparent` for a provider; None unless an admin wants providers to have it."""
        context = span.context if self._sends_traceparent else None
        return None if context is None else str(context)


@dataclass(eq=False)
class ProviderCalls:
    """The providers with jobs, and what surrounds each call to any provider.

    `locate_notices` makes the URL that a task's provider may call, None where push is off.
    """

    providers: Providers[Upstream]
    metrics: Metrics
    traces: TaskTraces
    locate_notices: Callable[[Notice], str | None]
    health: HealthTally = field(default_factory=HealthTally)

    async def find(self, provider: str) -> Upstream | None:
        """Return the provider's adapter; None if it is unusable now. RecordUnavailable."""
        return await self.providers.find(provider)

    async def explain(self, provider: str) -> str:
        """Say why the provider is unusable now. RecordUnavailable."""
        problem = await self.providers.check(provider)
        reason = "it has just become usable" if problem is None else problem.message
        return f"provider {provider}: {reason}"

    async def find_to_stop(self, provider: str) -> Upstream | None:
        """Return the same for jobs that are to be stopped, also of a provider deleted by now."""
        return await self.providers.recall(provider)

    def notify_url(self, task: GatewayTask) -> str | None:
        """Return the URL that the task's provider may call, None where push is off."""
        return self.locate_notices(Notice(task.metadata.name, task.metadata.uid))

    @contextmanager
    def watch(self, task: GatewayTask, provider: str, call: str) -> Iterator[Span]:
        """Count, time and trace one call, e.g. `submit`, in a span of its own."""
        span = self.traces.begin(task, call, kind=SpanKind.CLIENT)
        span.set_attributes({"gateway.provider": provider})
        with span, self.time(provider, call):
            yield span

    @contextmanager
    def time(self, provider: str, call: str, model: str | None = None) -> Iterator[None]:
        """Count and time one call; `model` is the object of the model that it is all about."""
        outcome, began = "cut_short", time.perf_counter()
        try:
            yield
            outcome = "ok"
        except UpstreamError as error:
            outcome = name_outcome(error)
            raise
        finally:
            seconds = time.perf_counter() - began
            self.metrics.count_call(provider, call, outcome, seconds)
            if call != COPY:
                self._count_health(provider, model, outcome, seconds)

    def _count_health(self, provider: str, model: str | None, outcome: str, seconds: float) -> None:
        if outcome != "ok" and outcome not in _FAULTS:
            return
        subjects = [self.health.providers[provider]]
        if model is not None:
            subjects.append(self.health.models[model])
        for figures in subjects:
            if outcome == "ok":
                figures.note_answer(seconds)
            else:
                figures.note_failure(denied=outcome == "denied")


def name_outcome(error: UpstreamError) -> str:
    """Return the metric label of a failed call."""
    return next((_OUTCOMES[base] for base in type(error).__mro__ if base in _OUTCOMES), "unclear")


def find_context(task: GatewayTask) -> TraceContext | None:
    """Return the trace that the task's object names."""
    return parse_traceparent(task.metadata.annotations.get(TRACEPARENT_ANNOTATION))


MOST_REASON = 1000
"""Characters of a refusal, which the status of a task has room for."""
_NOT_FOR_PROVIDERS = ("model", "callback_url")


@dataclass(eq=False)
class Inputs:
    """Reads inputs. InputDamaged, ObjectMissing and StoreUnavailable are raised by all reads."""

    store: ObjectStore
    catalog: Callable[[], Catalog]

    def find_model(self, request: TaskRequest) -> Model | None:
        """Return the model in the catalog as it is now."""
        return self.catalog().find_model(request.service, request.action, request.model_id)

    async def read(self, request: TaskRequest) -> dict[str, Any]:
        """Return the input with all defaults. Refusal."""
        values = await load_input(self.store, request)
        if request.fingerprint is not None:
            return values
        _, complete = self._check(request, values)
        return {name: value for name, value in complete.items() if name not in _NOT_FOR_PROVIDERS}

    async def read_adopted(self, request: TaskRequest) -> dict[str, Any]:
        """Return the input of an adopted task, also where its model is no longer offered.

        Then the defaults of a task made with kubectl are unknown, and it is returned as given.
        """
        try:
            return await self.read(request)
        except Refusal:
            return await load_input(self.store, request)

    async def check(self, request: TaskRequest) -> tuple[Model, dict[str, Any]]:
        """Return the model, and the values with defaults.

        Raises Refusal, with the reason REST would give.
        """
        return self._check(request, await load_input(self.store, request))

    def _check(self, request: TaskRequest, values: dict[str, Any]) -> tuple[Model, dict[str, Any]]:
        model = self.find_model(request)
        if model is None or not model.operation.makes_tasks:
            place = request.service, request.action
            text = f"Model {request.model_id} is not offered at {'/'.join(place)}."
            # the policy of a key, whose models alone may be named, is not known here
            if request.key_name is None:
                text += suggest_models(
                    self.catalog(),
                    request.model_id,
                    allow_all,
                    lambda *served: served == place,
                    "kubectl get gatewaymodels",
                )
            raise Refusal(Reason.INVALID_REQUEST, text[:MOST_REASON])
        body = {**values, "model": request.model_id, "callback_url": request.callback_url}
        try:
            given = check_shape(model.operation, body)
            complete = apply_defaults(model.operation, given, model.rules)
            check_model(model.model_id, given, complete, model.rules)
        except GatewayError as error:
            details = getattr(error, "errors", None) or {}
            texts = [f"{field} {text}" for field, problems in details.items() for text in problems]
            message = "; ".join(texts) or error.message
            raise Refusal(Reason.INVALID_REQUEST, message[:MOST_REASON]) from error
        return model, complete


PLACES = 32
"""Concurrent copies, as many as a bucket absorbs; at most half of them of one provider."""

GRACE_SECONDS = 30.0
LEAST_RATE = 16 * 1024
"""Bytes a second on average after the grace time; a slower download is given up."""


class Outputs:
    """Copies outputs. Concurrent copies are bounded, and shared fairly by providers."""

    def __init__(self, store: ObjectStore, signer: MediaSigner, media_url: str) -> None:
        self._store = store
        self._signer = signer
        self._media_url = media_url.rstrip("/")
        self.places = FairSemaphore(PLACES)

    async def copy(
        self, upstream: Upstream, task_uid: str, urls: Sequence[str], now: datetime
    ) -> list[dict[str, Any]]:
        """Store every output; the task's `status.result.videos`.

        Keys follow from the task, so a copy that is repeated after a crash replaces the first one.
        Raises what `Upstream.fetch` and the store raise.
        """
        videos = []
        for index, url in enumerate(urls):
            item = MediaItem(task_uid, index)
            # one slot at a time: tasks that hold one and wait for another could block each other
            async with self.places.take(upstream), upstream.fetch(url) as download:
                try:
                    stored = await self._store.put_stream(
                        item.key, _check_pace(download.chunks), max_bytes=upstream.max_output_bytes
                    )
                except ObjectTooLarge:
                    raise OutputRejected("The output is larger than allowed.") from None
                content_type = download.content_type
            path = self._signer.sign(item, content_type, int(now.timestamp()) + LIFETIME_SECONDS)
            videos.append(
                {
                    "url": self._media_url + path,
                    "key": stored.key,
                    "bytes": stored.bytes,
                    "sha256": stored.sha256,
                    "contentType": content_type,
                }
            )
        return videos


async def _check_pace(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the chunks as they come. UpstreamUnclear once they come too slowly."""
    begin, total = time.monotonic(), 0
    async for chunk in chunks:
        total += len(chunk)
        elapsed = time.monotonic() - begin
        if elapsed > GRACE_SECONDS and total < elapsed * LEAST_RATE:
            raise UpstreamUnclear("The output came too slowly.")
        yield chunk
