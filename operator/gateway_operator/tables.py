"""The informers of the configuration kinds, one for each."""

import asyncio
from dataclasses import dataclass, fields
from typing import Any

from gateway_core.api.account import GatewayAccount, GatewayUser
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel
from gateway_core.api.provider import GatewayProvider
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.informer import Informer, unless_deleted
from gateway_operator.accounts.kinds import project_guardrail, project_key


@dataclass(frozen=True, slots=True)
class Tables:
    """The configuration kinds as this process knows them, one watch for each."""

    accounts: Informer[GatewayAccount]
    users: Informer[GatewayUser]
    keys: Informer[GatewayKey]
    guardrails: Informer[GatewayGuardrail]
    models: Informer[GatewayModel]
    providers: Informer[GatewayProvider]

    @property
    def all(self) -> tuple[Informer[Any], ...]:
        """Every table."""
        return tuple(getattr(self, field.name) for field in fields(self))


async def wait_for_tables(tables: Tables) -> None:
    """Return once all tables are read."""
    await asyncio.gather(*(table.wait_synced() for table in tables.all))


def build_tables(kube: KubernetesClient) -> Tables:
    """Return the tables, empty until they run."""
    return Tables(
        accounts=Informer(kube, GatewayAccount.plural, GatewayAccount.model_validate),
        users=Informer(kube, GatewayUser.plural, GatewayUser.model_validate),
        keys=Informer(kube, GatewayKey.plural, unless_deleted(project_key)),
        guardrails=Informer(kube, GatewayGuardrail.plural, unless_deleted(project_guardrail)),
        models=Informer(kube, GatewayModel.plural, GatewayModel.model_validate),
        providers=Informer(kube, GatewayProvider.plural, GatewayProvider.model_validate),
    )
