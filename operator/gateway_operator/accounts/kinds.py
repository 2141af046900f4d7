"""The rules of readiness of all configuration kinds."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from gateway_core.api.account import AccountDefaults, GatewayAccount, GatewayUser
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.kube.informer import Cache
from gateway_operator.accounts.accounts import Accounts, Users
from gateway_operator.accounts.declaredkeys import DeclaredKeys
from gateway_operator.accounts.guardrails import Guardrails
from gateway_operator.accounts.keys import Keys
from gateway_operator.accounts.models import Models, ProviderKind, ProvidersInUse
from gateway_operator.accounts.readiness import ReadinessKind


def list_kinds(
    *,
    accounts: Cache[GatewayAccount],
    users: Cache[GatewayUser],
    keys: Cache[GatewayKey],
    guardrails: Cache[GatewayGuardrail],
    models: Cache[GatewayModel],
    providers: Cache[GatewayProvider],
    in_use: ProvidersInUse,
    declared: DeclaredKeys,
    defaults: AccountDefaults,
    now: Callable[[], datetime],
) -> tuple[ReadinessKind[Any], ...]:
    """The kinds in the order of their references, so that a start checks each object once."""
    return (
        Accounts(accounts, defaults),
        Users(users, accounts),
        Keys(keys, accounts, users, declared, now),
        Guardrails(guardrails, accounts, keys),
        ProviderKind(providers, in_use),
        Models(models, in_use),
    )
