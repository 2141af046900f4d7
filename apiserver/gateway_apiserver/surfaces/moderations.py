"""Moderations: texts and images that a provider judges (contract §6, §1.3).

`gateway_core.providers.moderation` validates the body.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from starlette.routing import BaseRoute

from gateway_apiserver.endpoints import Call, CallRoute, Docs, Schema
from gateway_apiserver.surfaces.large_bodies import LargeBodies
from gateway_core.admission.admission import Admission, Payer, capture
from gateway_core.admission.live_calls import AccountLimiter, LiveCalls
from gateway_core.api.batch import ACTION
from gateway_core.api.errors import NotFound, UpstreamRateLimited
from gateway_core.billing.counters import Hold
from gateway_core.billing.journal import CallRecord
from gateway_core.fair_semaphore import HeldUnits
from gateway_core.kube.clock import CLOCK
from gateway_core.observability.tracing import SpanKind
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.providers.health import HealthTally
from gateway_core.providers.moderation import CATEGORIES, MOST_INPUTS, ModerationCall, read_call
from gateway_core.providers.moderators import Moderators, explain
from gateway_core.providers.upstream import UpstreamError
from gateway_core.tasks.drafts import price_values
from gateway_core.tasks.schemas import close_schema
from gateway_web.responses import Response, to_json

_IMAGE = {"type": "string", "pattern": "^([Hh][Tt][Tt][Pp][Ss]?://|[Dd][Aa][Tt][Aa]:)"}
_URL = {"type": "object", "required": ["url"], "properties": {"url": _IMAGE}}
_INPUT_BOUNDS = {"type": "array", "minItems": 1, "maxItems": MOST_INPUTS}


def _describe_part(kind: str, content: Schema) -> Schema:
    return {
        "type": "object",
        "required": ["type", kind],
        "properties": {"type": {"const": kind}, kind: content},
    }


_PARTS = [_describe_part("text", {"type": "string"}), _describe_part("image_url", _URL)]
_INPUT = {
    "description": "A text, texts with a result each, or parts with one result.",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {**_INPUT_BOUNDS, "items": {"type": "string"}},
        {**_INPUT_BOUNDS, "items": {"oneOf": _PARTS}},
    ],
}


def describe_body(models: Iterable[str], *, needs_model: bool = False) -> Schema:
    """Return a body for these models; what is in it beside these fields is ignored."""
    return {
        "type": "object",
        "required": ["model", "input"] if needs_model else ["input"],
        "properties": {
            "model": {"type": ["string", "null"], "enum": [*models, None]},
            "input": _INPUT,
        },
    }


def _describe_each(value: Any) -> Schema:
    return close_schema(dict.fromkeys(CATEGORIES, value))


_RESULT = close_schema(
    {
        "flagged": {"type": "boolean"},
        "categories": _describe_each({"type": "boolean"}),
        "category_scores": _describe_each({"type": "number", "minimum": 0, "maximum": 1}),
        "category_applied_input_types": _describe_each(
            {"type": "array", "items": {"enum": ["text", "image"]}}
        ),
    }
)
RESPONSE = close_schema(
    {
        "id": {"type": "string"},
        "model": {"type": "string"},
        "results": {"type": "array", "items": _RESULT},
    }
)


PATH = "/v1/moderations"


_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Judging:
    """A moderation call, its model and its reservation."""

    asked: ModerationCall
    model: Model
    hold: Hold


class ModerationRoutes:
    """The one route, and its calls of providers."""

    def __init__(
        self,
        admission: Admission,
        moderators: Moderators,
        calls: LiveCalls,
        health: HealthTally,
        *,
        default_model: str,
        clock: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._admission = admission
        self._moderators = moderators
        self._calls = calls
        self._health = health
        self._default_model = default_model or None
        self._has_warned = False
        self._clock = clock
        self._bodies = LargeBodies()
        self._limiter = AccountLimiter()

    def add_to(self, routes: list[BaseRoute]) -> None:
        """Add the route."""
        also = (402, 404, 409, 502, 504)
        title = "Judge texts and images"
        docs = Docs("createModeration", title, RESPONSE, body=self._describe_body, also=also)
        routes.append(
            CallRoute("POST", PATH, self.judge, "moderation_create", docs=docs, paid=True)
        )

    async def judge(self, call: Call) -> Response:
        """Judge texts and images by the model's provider."""
        with HeldUnits() as slots:
            # its charge is in the usage journal, so it writes no object
            payer = await self._admission.authenticate(call.headers, call.context, writes=False)
            judging, problem = await capture(self._prepare(call, payer, slots))
            hold = None if judging is None else judging.hold
            await self._admission.reserve(payer, call.context, hold, problem)
            assert judging is not None, "its problem was raised"
            # the work goes on when its client has left, and the body's place is its
            return to_json(await self._judge(call, payer, judging, slots.hand_over()))

    def _describe_body(self, catalog: Catalog) -> Schema | None:
        served = (found for (_, action), found in catalog.models.items() if action == ACTION)
        models = sorted({model for found in served for model in found})
        return describe_body(models, needs_model=not self._default_model) if models else None

    async def _prepare(self, call: Call, payer: Payer, slots: HeldUnits) -> _Judging:
        def read(body: dict[str, Any], _size: int) -> ModerationCall:
            return read_call(body, default_model=self._default_model)

        asked = await self._bodies.read(call, payer.account.name, slots, read)
        try:
            model = self._moderators.find_model(asked.model_id, payer.policy)
        except NotFound:
            self._warn_of_default(asked.model_id)
            raise
        micros = price_values(model, {}, {}, self._clock())
        return _Judging(asked, model, payer.make_hold(self._calls.name_call(), micros))

    def _warn_of_default(self, model_id: str) -> None:
        """Log once that the default model is not declared: a client cannot know that."""
        if model_id == self._default_model and not self._has_warned:
            self._has_warned = True
            _log.warning("the default model of moderations does not exist", model=model_id)

    async def _judge(
        self, call: Call, payer: Payer, judging: _Judging, slots: HeldUnits
    ) -> dict[str, Any]:
        asked, model = judging.asked, judging.model

        async def work() -> dict[str, Any]:
            with slots:
                moderator = await self._moderators.find(model)
                route, upstream = moderator.route, moderator.upstream
                body = asked.to_upstream(route.upstream_model)
                async with self._limiter.take(
                    route.provider_name, payer.account.name, upstream.limit
                ):
                    span = call.context.span.child("moderate", kind=SpanKind.CLIENT)
                    with span, self._health.watch(route.provider_name, model.name):
                        return await upstream.moderate(body)

        record = CallRecord(
            call=judging.hold.task,
            account=payer.account.name,
            time=self._clock(),
            model_id=model.model_id,
            operation=f"{model.service}/{ACTION}",
            key_name=payer.policy.key_name,
            guardrail_names=payer.policy.guardrail_names,
        )
        try:
            answer = await self._calls.carry(record, judging.hold, work)
        except UpstreamError as error:
            told = explain(error)
            if isinstance(told, UpstreamRateLimited):
                # the provider's limit is the cause, which rate headers do not describe (§12.4)
                call.context.rate = None
            raise told from error
        return {**answer, "model": model.model_id}
