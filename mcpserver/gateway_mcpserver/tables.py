"""Tables of the MCP process: the kinds that it keeps in memory, by informers."""

from collections.abc import Callable
from functools import partial
from typing import Any

from gateway_core.accounts.guardrails import Guardrail, read_guardrail
from gateway_core.accounts.records import (
    AccountRecord,
    KeyRecord,
    UserRecord,
    project_account,
    project_key,
    project_user,
)
from gateway_core.api.account import AccountDefaults, GatewayAccount, GatewayUser
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel, GatewayPrompt
from gateway_core.api.oauth import GatewayGrant, GatewayOAuthClient
from gateway_core.api.task import GatewayTask
from gateway_core.kube.informer import Informer, unless_deleted
from gateway_core.kube.row_index import RowIndex
from gateway_core.oauth.records import ClientRecord, GrantRecord, project_client, project_grant
from gateway_core.providers.catalog_view import project_model
from gateway_core.tasks.finder import TaskCache, TaskRecord, project_task
from gateway_core.tasks.lifecycle import OPEN_SELECTOR
from gateway_core.tasks.rows import TaskRow, project_task_row
from gateway_mcpserver.tools.prompts import PromptRecord, project_prompt


class Tables:
    """One informer for each kind.

    `make` returns an informer of a plural and a projection, as `Informer` with its client given.
    """

    def __init__(self, make: Callable[..., Any], account_defaults: AccountDefaults) -> None:
        read_account = partial(project_account, defaults=account_defaults)
        self.keys: Informer[KeyRecord] = make(GatewayKey.plural, unless_deleted(project_key))
        self.guardrails: Informer[Guardrail] = make(
            GatewayGuardrail.plural, unless_deleted(read_guardrail)
        )
        self.accounts: Informer[AccountRecord] = make(GatewayAccount.plural, read_account)
        self.users: Informer[UserRecord] = make(GatewayUser.plural, project_user)
        self.clients: Informer[ClientRecord] = make(GatewayOAuthClient.plural, project_client)
        self.grants: Informer[GrantRecord] = make(GatewayGrant.plural, project_grant)
        self.models: Informer[GatewayModel] = make(GatewayModel.plural, project_model)
        self.open_tasks: Informer[TaskRecord] = make(
            GatewayTask.plural, project_task, field_selector=OPEN_SELECTOR
        )
        self.tasks = TaskCache(self.open_tasks, self.accounts)
        self.task_rows = RowIndex[TaskRow](make, GatewayTask.plural, project_task_row, "tasks")
        self.prompts: Informer[PromptRecord] = make(GatewayPrompt.plural, project_prompt)
        self._required = (
            self.keys,
            self.guardrails,
            self.accounts,
            self.users,
            self.clients,
            self.grants,
            self.models,
            self.open_tasks,
        )
        self.informers: tuple[Informer[Any], ...] = (*self._required, self.prompts)

    @property
    def synced(self) -> bool:
        """True if all were listed once, except prompts: one tool alone needs them."""
        return all(table.synced for table in self._required)
