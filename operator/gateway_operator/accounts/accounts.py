"""Whether accounts and users can be used."""

from collections.abc import Iterable

from gateway_core.api.account import AccountDefaults, GatewayAccount, GatewayUser
from gateway_core.api.conditions import Reason
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog import Problem
from gateway_operator.accounts.readiness import Finding, Ref, refer


class Accounts:
    """An account can be used unless it is suspended."""

    kind = GatewayAccount
    contested = ""

    def __init__(self, table: Cache[GatewayAccount], defaults: AccountDefaults) -> None:
        self.table = table
        self._defaults = defaults

    def list_references(self, obj: GatewayAccount) -> Iterable[Ref]:
        """None."""
        return ()

    async def check(self, obj: GatewayAccount) -> Finding:
        """Whether it is suspended; and the limits in effect, where its status shows others."""
        rate = self._defaults.choose_rate(obj.spec.requests_per_minute)
        storage = self._defaults.choose_storage(obj.spec.storage_bytes)
        shown = obj.status.requests_per_minute, obj.status.storage_bytes
        limits = {"requestsPerMinute": rate, "storageBytes": storage}
        return Finding(
            check_account(obj, obj.metadata.name), {} if shown == (rate, storage) else limits
        )


class Users:
    """A user can be used where all accounts of the memberships are there."""

    kind = GatewayUser
    contested = ""

    def __init__(self, table: Cache[GatewayUser], accounts: Cache[GatewayAccount]) -> None:
        self.table = table
        self._accounts = accounts

    def list_references(self, obj: GatewayUser) -> Iterable[Ref]:
        """The accounts of the memberships."""
        return [refer(GatewayAccount, part.account_name) for part in obj.spec.memberships or ()]

    async def check(self, obj: GatewayUser) -> Finding:
        """Whether they are suspended, or a member of what is not there."""
        if obj.spec.suspended:
            text = "the user is suspended by spec.suspended"
            return Finding(Problem(Reason.SUSPENDED, text))
        for part in obj.spec.memberships or ():
            if self._accounts.get(part.account_name) is None:
                return Finding(find_no_account(part.account_name))
        return Finding()


def check_account(account: GatewayAccount | None, name: str) -> Problem | None:
    """What keeps the account of this name from being used."""
    if account is None:
        return find_no_account(name)
    if account.spec.suspended:
        return Problem(Reason.SUSPENDED, "the account is suspended by spec.suspended")
    return None


def find_no_account(name: str) -> Problem:
    """The problem of whatever names an account that is not there."""
    return Problem(Reason.ACCOUNT_NOT_FOUND, f"no GatewayAccount is called {name}")
