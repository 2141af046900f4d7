"""`/v1/moderations` (contract §6)."""

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from gateway_apiserver.admission.admission import Admission, Payer
from gateway_apiserver.admission.live_calls import LiveCalls
from gateway_apiserver.concurrency import AccountLimiter
from gateway_apiserver.errors import drop_rate_headers
from gateway_apiserver.responses import Response, to_json
from gateway_apiserver.routing import Call, RouteTable
from gateway_apiserver.surfaces.large_bodies import LargeBodies
from gateway_apiserver.tasks.drafts import price_values
from gateway_core.api.batch import ACTION
from gateway_core.api.errors import UpstreamRateLimited
from gateway_core.billing.counters import Hold
from gateway_core.billing.journal import CallRecord
from gateway_core.kube.clock import CLOCK
from gateway_core.observability.tracing import SpanKind
from gateway_core.providers.catalog import Model
from gateway_core.providers.moderation import ModerationCall, read_call
from gateway_core.providers.moderators import Moderators, explain
from gateway_core.providers.upstream import UpstreamError

PATH = "/v1/moderations"


@dataclass(frozen=True, slots=True)
class _Judging:
    """What is asked of which model, and its money."""

    asked: ModerationCall
    model: Model
    hold: Hold


class ModerationAdmission:
    """Decides on moderations and has those judged that it lets in."""

    def __init__(
        self,
        entrance: Admission,
        moderators: Moderators,
        calls: LiveCalls,
        *,
        default_model: str,
        clock: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._entrance = entrance
        self._moderators = moderators
        self._calls = calls
        self._default_model = default_model or None
        self._clock = clock
        self._bodies = LargeBodies()
        self._shares = AccountLimiter()

    async def judge(self, call: Call) -> dict[str, Any]:
        """The whole answer to a call.

        Raises every GatewayError that a paid call may come to, and those of its provider.
        """
        with self._entrance.decide(call.context):
            asked: list[ModerationCall] = []
            read = partial(read_call, default_model=self._default_model)
            async with AsyncExitStack() as places:

                async def plan(payer: Payer) -> _Judging:
                    # a body can be read once, and a plan be asked for again
                    if not asked:
                        name = payer.account.name
                        asked.append(await self._bodies.read(call, name, places, read))
                    return self._plan(payer, asked[0])

                # its charge is in the usage journal, so it writes no object
                payer, judging = await self._entrance.enter(
                    call.headers, call.context, plan, writes=False
                )
                # the work goes on when its client has left, and the body's place is its
                return await self._judge(call, payer, judging, places.pop_all())

    def _plan(self, payer: Payer, asked: ModerationCall) -> _Judging:
        model = self._moderators.find_model(asked.model_id, payer.policy)
        micros = price_values(model, {}, {}, self._clock())
        return _Judging(asked, model, payer.make_hold(self._calls.name_call(), micros))

    async def _judge(
        self, call: Call, payer: Payer, judging: _Judging, places: AsyncExitStack
    ) -> dict[str, Any]:
        asked, model = judging.asked, judging.model

        async def work() -> dict[str, Any]:
            async with places:
                moderator = await self._moderators.find(model)
                route, upstream = moderator.route, moderator.upstream
                body = asked.to_upstream(route.upstream_model)
                async with self._shares.take(
                    route.provider_name, payer.account.name, upstream.limit
                ):
                    with call.context.span.child("moderate", kind=SpanKind.CLIENT):
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
                drop_rate_headers(call.context.headers)
            raise told from error
        return {**answer, "model": model.model_id}


class ModerationRoutes:
    """The one route."""

    def __init__(self, admission: ModerationAdmission) -> None:
        self._admission = admission

    def add_to(self, table: RouteTable) -> None:
        """Add the route; it is a paid call."""
        table.add("POST", PATH, self.judge, "moderation_create")

    async def judge(self, call: Call) -> Response:
        """Judge texts and images by the model's provider."""
        return to_json(await self._admission.judge(call))
