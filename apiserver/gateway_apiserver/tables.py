"""Tables of the API process: the kinds that it keeps in memory, by informers."""

from collections.abc import Callable
from functools import partial
from sys import intern
from typing import Any

from gateway_apiserver.surfaces.console.rows import (
    BatchRow,
    DayRow,
    project_batch_row,
    project_day_row,
)
from gateway_apiserver.surfaces.files.finder import LISTED_SELECTOR, project_file
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
from gateway_core.api.batch import GatewayBatch
from gateway_core.api.file import GatewayFile
from gateway_core.api.guardrail import GatewayGuardrail
from gateway_core.api.ids import IdMint
from gateway_core.api.key import GatewayKey
from gateway_core.api.model import GatewayModel
from gateway_core.api.oauth import GatewayGrant, GatewayOAuthClient
from gateway_core.api.provider import GatewayProvider
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.api.usage import GatewayUsage
from gateway_core.files.files import FileRecord
from gateway_core.kube.informer import Informer, unless_deleted
from gateway_core.kube.row_index import RowIndex
from gateway_core.oauth.records import (
    ClientRecord,
    GrantRecord,
    project_client,
    project_grant,
)
from gateway_core.providers.catalog_view import project_model, project_provider
from gateway_core.tasks.finder import TaskCache, TaskRecord, project_task
from gateway_core.tasks.lifecycle import OPEN_SELECTOR
from gateway_core.tasks.rows import TaskRow, project_task_row


class Tables:
    """One informer for each kind.

    `make` returns an informer of a plural and a projection, as `Informer` with its client given.
    """

    def __init__(
        self, make: Callable[..., Any], mint: IdMint, account_defaults: AccountDefaults
    ) -> None:
        read_account = partial(project_account, defaults=account_defaults)
        read_file = partial(project_file, mint=mint)
        self.keys: Informer[KeyRecord] = make(
            GatewayKey.plural, unless_deleted(partial(project_key, shows=True))
        )
        self.guardrails: Informer[Guardrail] = make(
            GatewayGuardrail.plural, unless_deleted(partial(read_guardrail, shows=True))
        )
        self.accounts: Informer[AccountRecord] = make(GatewayAccount.plural, read_account)
        self.users: Informer[UserRecord] = make(GatewayUser.plural, project_user)
        self.clients: Informer[ClientRecord] = make(GatewayOAuthClient.plural, project_client)
        self.grants: Informer[GrantRecord] = make(GatewayGrant.plural, project_grant)
        self.models: Informer[GatewayModel] = make(GatewayModel.plural, project_model)
        self.providers: Informer[GatewayProvider] = make(
            GatewayProvider.plural, project_provider, field_selector="spec.type!=http"
        )
        self.open_tasks: Informer[TaskRecord] = make(
            GatewayTask.plural, project_task, field_selector=OPEN_SELECTOR
        )
        self.tasks = TaskCache(self.open_tasks, self.accounts)
        self.task_rows = RowIndex[TaskRow](make, GatewayTask.plural, project_task_row, "tasks")
        self.batch_rows = RowIndex[BatchRow](
            make, GatewayBatch.plural, project_batch_row, "batches"
        )
        self.day_rows = RowIndex[DayRow](
            make, GatewayUsage.plural, project_day_row, "days", owner="spec.accountName"
        )
        self.rows: tuple[RowIndex[Any], ...] = (self.task_rows, self.batch_rows, self.day_rows)
        self.files: Informer[FileRecord] = make(
            GatewayFile.plural, read_file, field_selector=LISTED_SELECTOR
        )
        self.open_batches: Informer[str] = make(
            GatewayBatch.plural, _find_account, field_selector=OPEN_SELECTOR
        )
        self._required = (
            self.keys,
            self.guardrails,
            self.accounts,
            self.users,
            self.clients,
            self.grants,
            self.models,
            self.providers,
            self.open_tasks,
        )
        self.informers: tuple[Informer[Any], ...] = (
            *self._required,
            self.files,
            self.open_batches,
        )

    @property
    def synced(self) -> bool:
        """True if all were listed once, except what no call needs."""
        return all(table.synced for table in self._required)


def _find_account(batch: Object) -> str:
    """Whose a batch is: all that is kept of it, for the pages that follow it."""
    return intern(batch["spec"]["request"]["accountName"])
