"""The services of Platform Management, put together."""

from typing import Any

from gateway_apiserver.parts import ApiParts
from gateway_apiserver.surfaces.management.assignments import AssignmentService
from gateway_apiserver.surfaces.management.guardrails import GuardrailService
from gateway_apiserver.surfaces.management.keys import KeyQuota, KeyService
from gateway_apiserver.surfaces.management.members import MemberService
from gateway_apiserver.surfaces.management.objects import ManagedObjects
from gateway_apiserver.surfaces.management.responses import BudgetReader
from gateway_apiserver.surfaces.management.usage import UsageReports
from gateway_apiserver.surfaces.management.webhooks import WEBHOOK_ALLOWANCES, WebhookService
from gateway_core.accounts.throttle import Throttle
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import IdMint
from gateway_core.api.key import GatewayKey
from gateway_core.billing.reports import UsageReader
from gateway_core.egress.addresses import AddressPolicy
from gateway_core.kube.informer import Cache
from gateway_core.kube.repository import ListLimiter, Repository


def make_services(
    parts: ApiParts,
    limiter: RateLimiter,
    mint: IdMint,
    addresses: AddressPolicy,
) -> dict[type, Any]:
    """Return the services that `routers` ask for, by class."""
    tables: dict[str, Cache[Any]] = {
        GatewayKey.plural: parts.tables.keys,
        GatewayGuardrail.plural: parts.tables.guardrails,
    }
    lists = ListLimiter()
    repository = Repository(parts.kube, mint, tables, lists)
    objects = ManagedObjects(repository, mint, parts.store)
    budgets = BudgetReader(limiter)
    quota = KeyQuota(parts.tables.keys, parts.settings.keys_per_account)
    throttle = Throttle(parts.transient, WEBHOOK_ALLOWANCES, parts.id_key, "A test delivery")
    services: tuple[Any, ...] = (
        KeyService(
            repository, objects, parts.tables.users, parts.key_use, budgets, quota, parts.peppers
        ),
        GuardrailService(repository, objects, budgets, parts.settings.guardrails_per_account),
        AssignmentService(repository, objects),
        UsageReports(UsageReader(parts.kube, parts.store, lists), parts.tables.keys),
        MemberService(parts.tables.users, parts.kube),
        WebhookService(parts.kube, parts.orders, addresses, throttle, parts.id_key),
    )
    return {type(service): service for service in services}
