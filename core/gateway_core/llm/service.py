"""LLM calls from their model to their charge: price, reservation, route, fallback, settlement."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime

from gateway_core.accounts.guardrails import Policy
from gateway_core.admission.admission import Payer
from gateway_core.admission.live_calls import LiveCalls
from gateway_core.api.errors import Conflict, GatewayError, InvalidRequest, Unavailable
from gateway_core.api.model import Route
from gateway_core.billing.counters import Hold
from gateway_core.billing.journal import CallRecord
from gateway_core.billing.prices import floor_moment, select_price
from gateway_core.billing.token_prices import charge_tokens, quote_tokens
from gateway_core.fair_semaphore import HeldUnits
from gateway_core.kube.clock import CLOCK
from gateway_core.kube.errors import KubernetesUnavailable
from gateway_core.llm.bounds import bound_input
from gateway_core.llm.formats.calls import (
    NO_TOKENS,
    Format,
    InvalidAnswer,
    LlmCall,
    TokenUsage,
    encode_body,
    unsupported,
)
from gateway_core.llm.formats.estimates import estimate_usage
from gateway_core.llm.formats.exchange import Exchange, plan_exchange
from gateway_core.llm.formats.sse import StreamFailed
from gateway_core.llm.metrics import LlmMetrics
from gateway_core.llm.opening import CallContext, OpenCall
from gateway_core.llm.priced import PricedCall
from gateway_core.llm.routing import choose_route
from gateway_core.llm.spans import begin_attempt, fail_attempt
from gateway_core.llm.unpriced import Unpriced, leave_out_tools
from gateway_core.llm.upstream import LlmUpstream, SentCall
from gateway_core.providers.catalog import Catalog, Model
from gateway_core.providers.moderators import explain, find_allowed_model
from gateway_core.providers.registry import Providers
from gateway_core.providers.upstream import (
    UpstreamDenied,
    UpstreamError,
    UpstreamLimited,
    UpstreamRejected,
    UpstreamSilent,
)
from gateway_core.tasks.operations import CHAT

InlineLinks = Callable[[LlmCall, Format, str, HeldUnits], Awaitable[bool]]
"""Puts into a call's body what a provider of a format cannot fetch, for an account."""

MOST_ALLOWED = 10_000
"""Allowed models that are remembered, some 200 bytes each."""


class LlmService:
    """Serves LLM calls of admitted callers, by the present catalog."""

    def __init__(
        self,
        catalog: Callable[[], Catalog],
        providers: Providers[LlmUpstream],
        calls: LiveCalls,
        metrics: LlmMetrics,
        inline_links: InlineLinks,
        clock: Callable[[], datetime] = CLOCK.now,
    ) -> None:
        self._inline_links = inline_links
        self.metrics = metrics
        self._catalog = catalog
        self._providers = providers
        self._calls = calls
        self._clock = clock
        # by key and model id, with the policy that allows it; of one catalog
        self._allowed: dict[tuple[str, str], tuple[Policy, Model]] = {}
        self._allowed_by: Catalog | None = None

    def price(self, call: LlmCall, payer: Payer, *, is_large: bool = False) -> PricedCall:
        """Return the model of a call and the most that the call can cost.

        Raises:
            NotFound, Forbidden: as `find_allowed_model`.
            InvalidRequest: the call asks for what the model does not offer.
            Conflict: the model has no price now.
        """
        catalog, policy = self._catalog(), payer.policy
        if catalog is not self._allowed_by or len(self._allowed) >= MOST_ALLOWED:
            self._allowed_by = catalog
            self._allowed.clear()
        known = self._allowed.get((policy.key_name, call.model_id))
        if known is not None and known[0] is policy:
            model = known[1]
        else:
            model = find_allowed_model(catalog, CHAT.action, call.model_id, policy)
            self._allowed[policy.key_name, call.model_id] = policy, model
        return price_call(call, model, self._clock, is_large=is_large)

    def make_hold(self, priced: PricedCall, payer: Payer) -> Hold:
        """Return the reservation of a call, under a new name."""
        micros = priced.micros if priced.attempts is None else priced.attempts.micros
        return payer.make_hold(self._calls.name_call(), micros)

    def begin(self, payer: Payer, hold: Hold) -> None:
        """Maintain the reservation, which stands, until `end`."""
        self._calls.begin(payer.account.name, hold)

    async def end(
        self,
        payer: Payer,
        priced: PricedCall,
        hold: Hold,
        used: TokenUsage | None,
        *,
        failed: bool,
        reached: bool = True,
        abandoned: int = 0,
        from_cache: bool = False,
    ) -> int:
        """Charge the call for the tokens it used, None for none; its cost in micro-dollars.

        `abandoned` is what the prompts of abandoned models cost besides.
        """
        micros = abandoned if used is None else abandoned + self._find_cost(priced, used)
        used = used or NO_TOKENS
        if used.input > priced.input_bound or used.output > priced.output_bound:
            self.metrics.beyond_bound.labels(priced.model.model_id).inc()
        policy = payer.policy
        record = CallRecord(
            hold.task,
            payer.account.name,
            self._clock(),
            priced.model.model_id,
            f"{priced.model.service}/{CHAT.action}",
            micros,
            failed,
            reached,
            policy.key_name,
            policy.guardrail_names,
            used.input,
            used.output,
            used.cached,
            used.reasoning,
            used.estimated or abandoned > 0,
            from_cache,
            used.cached_audio,
            used.written,
            used.written_hour,
            used.audio,
            used.image,
            used.output_audio,
            used.output_image,
        )
        if not self._calls.end_leased(record):
            await self._calls.end(record)
        return micros

    async def open(
        self, priced: PricedCall, context: CallContext, *, has_fallbacks: bool = False
    ) -> OpenCall:
        """Send the call to the providers of its model until one answers.

        A provider that fails before the first output of its answer (§7.4) is followed by another,
        of the same priority by weight, then of the next one, and in the end one whose circuit is
        open. Input that a provider rejects is not tried elsewhere. `has_fallbacks`: the caller has
        other models to try.

        Raises GatewayError, for the client (contract §1.3), and what `begin` raises besides.
        """
        routes = priced.model.routes
        only = self._providers.find_known(routes[0].provider_name) if len(routes) == 1 else None
        if only is not None:
            upstreams, left = {routes[0].provider_name: only}, list(routes)
        else:
            upstreams = await self._find_upstreams(priced.model)
            left = [route for route in routes if route.provider_name in upstreams]
        tries: dict[str, int] = {}
        failure: UpstreamError | None = None
        refusal: InvalidRequest | None = None
        while True:
            if only is not None and left and only.is_rested:
                route: Route | None = left[0]
            else:
                route = choose_route(left, lambda name: upstreams[name].count_rest() == 0)
            is_last = route is None
            if is_last and (failure or not all(upstreams[r.provider_name].is_open for r in left)):
                # the others fail or rest: one whose circuit is open may work again
                route = choose_route(left, lambda name: upstreams[name].may_try())
            if route is None:
                break
            upstream = upstreams[route.provider_name]
            tries[route.name] = tries.get(route.name, 0) + 1
            name = route.provider_name
            is_final = not has_fallbacks and len(left) == 1
            is_final = is_final and tries[route.name] >= upstream.credentials
            try:
                return await self._attempt(
                    priced, route, upstream, context, is_last=is_last, is_final=is_final
                )
            except InvalidRequest as error:
                # this provider's format lacks something; another's may have it
                refusal = error
                left.remove(route)
            except UpstreamError as error:
                context.times.note_failure(is_silent=isinstance(error, UpstreamSilent))
                self.metrics.count_failure(priced.model, name, error)
                if isinstance(error, UpstreamRejected):
                    raise translate_error(error) from error
                # the error of a provider that was not expected to answer says less
                failure = failure or error if is_last else error
                # another credential of the provider may do
                is_credential = isinstance(error, UpstreamDenied | UpstreamLimited)
                if not is_credential or tries[route.name] >= upstream.credentials:
                    left.remove(route)
        if failure is None and left:
            # all rest; the one that is usable first decides
            resting = (upstreams[route.provider_name] for route in left)
            failure = min(resting, key=LlmUpstream.count_rest).explain_rest()
        if failure is None and refusal is not None:
            raise refusal
        self.metrics.count_unanswered(priced.model)
        if failure is not None:
            raise translate_error(failure) from failure
        raise Unavailable(f"Model {priced.model.model_id} cannot be reached now.")

    async def _attempt(
        self,
        priced: PricedCall,
        route: Route,
        upstream: LlmUpstream,
        context: CallContext,
        *,
        is_last: bool,
        is_final: bool,
    ) -> OpenCall:
        """Send the call to one provider and wait for its output.

        `is_last`: others were tried or rest. `is_final`: none is tried after this attempt.
        Raises UpstreamError, and InvalidRequest where the provider's format lacks a field.
        """
        times = context.times
        format_ = choose_format(priced.call, upstream)
        if format_ is not priced.call.format:
            inlined = await self._inline_links(priced.call, format_, context.account, context.held)
            priced.is_large = priced.is_large or inlined
        if priced.is_large:
            exchange, body = await asyncio.to_thread(self._plan, priced, route, upstream)
        else:
            exchange, body = self._plan(priced, route, upstream)
        span = begin_attempt(
            times.parent, exchange, route.provider_name, upstream, route.upstream_model
        )
        sent: SentCall | None = None
        try:
            sent = await upstream.send(
                exchange.path,
                body,
                account=context.account,
                upstream_model=route.upstream_model,
                note_sent=times.note_sent,
                is_last=is_last,
            )
            # another provider gets a body of its own
            del body
            exchange.drop_bodies(is_final=is_final)
            opened = OpenCall(priced, exchange, sent, upstream, route, span, is_final)
            await context.begin(opened)
        except BaseException as error:
            failure: BaseException = error
            if sent is not None:
                if isinstance(error, UpstreamError | StreamFailed | InvalidAnswer):
                    failure = upstream.note_failure(sent, error, route.upstream_model)
                sent.close()
            fail_attempt(span, failure)
            if failure is error:
                raise
            raise failure from error
        upstream.note_success(sent)
        exchange.drop_bodies()
        return opened

    def _plan(
        self, priced: PricedCall, route: Route, upstream: LlmUpstream
    ) -> tuple[Exchange, bytes]:
        """Return the exchange with a route's provider, and its body as it is sent.

        InvalidRequest where the provider's format lacks a field.
        """
        format_ = choose_format(priced.call, upstream)
        # only translated answers, and those of Responses, say when they were created
        is_same = format_ is priced.call.format is not Format.RESPONSES
        created = 0 if is_same else int(self._clock().timestamp())
        exchange = plan_exchange(priced.call, format_, route.upstream_model, created)
        return exchange, encode_body(exchange.body)

    async def _find_upstreams(self, model: Model) -> dict[str, LlmUpstream]:
        """Return the usable providers of a model's routes, by name."""
        found: dict[str, LlmUpstream] = {}
        for route in model.routes:
            name = route.provider_name
            upstream = self._providers.find_known(name)
            if upstream is None:
                try:
                    upstream = await self._providers.find(name)
                except KubernetesUnavailable:
                    continue
            if upstream is not None:
                found[name] = upstream
        return found

    def price_unseen(self, priced: PricedCall, seconds: float) -> int:
        """Return the estimated micro-dollars of a call that its client left after so long."""
        return self._find_cost(priced, estimate_usage(priced.call, 0, seconds))

    def _find_cost(self, priced: PricedCall, used: TokenUsage) -> int:
        return charge_tokens(priced.price, used, reserved=priced.micros)


def choose_format(call: LlmCall, upstream: LlmUpstream) -> Format:
    """Return the format in which a provider is sent the call."""
    if upstream.dialect == "google":
        return Format.GOOGLE
    if call.format is Format.RESPONSES and upstream.has_responses:
        return Format.RESPONSES
    return Format.CHAT


def price_call(
    call: LlmCall, model: Model, clock: Callable[[], datetime], *, is_large: bool = False
) -> PricedCall:
    """Return the call with its bound: the tokens of its prompt, and all output that it allows.

    Tools of the provider that the model does not offer are left out where the client has others.

    Raises InvalidRequest where it asks for what the model does not offer, Conflict where the model
    has no price now.
    """
    missing = [feature for feature in call.unpriced if feature.name not in model.unpriced]
    if missing:
        call = _leave_out(call, missing)
    output = (call.max_output or model.output_token_limit) + call.predicted
    given = bound_input(call.input_bound, model.input_token_limit, is_open=call.is_open)
    output *= call.choices
    prices = model.prices
    # as `select_price`, without reading the clock
    price = prices[0] if len(prices) == 1 else None
    if price is None or price.effective_time is not None:
        price = select_price(prices, floor_moment(clock()))
    if price is None:
        raise Conflict(f"Model {model.model_id} has no price now.", code="unsupported_by_model")
    # what nothing bounds may have any kind of token
    has_media = call.has_media or call.is_open
    micros = quote_tokens(price, given, output, has_media=has_media)
    return PricedCall(call, model, price, given, output, micros, is_large)


def _leave_out(call: LlmCall, missing: list[Unpriced]) -> LlmCall:
    body = leave_out_tools(call.body, missing)
    if body is None:
        feature = missing[0]
        name = feature.path.partition("[")[0].partition(".")[0]
        # the tool of `tools[0]`; other paths end in the name
        tool = "" if feature.path.endswith(feature.name) else f" ({feature.name})"
        raise unsupported(name, feature.path + tool, "is not offered for this model")
    return replace(
        call,
        body=body,
        unpriced=tuple(feature for feature in call.unpriced if feature not in missing),
        dropped=(*call.dropped, *(feature.name for feature in missing)),
    )


def translate_error(error: UpstreamError) -> GatewayError:
    """Return the client's error for a provider's failure (contract §1.3)."""
    if isinstance(error, UpstreamRejected):
        return InvalidRequest(error.message)
    return explain(error)
