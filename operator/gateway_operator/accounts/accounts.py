"""Readiness of accounts and users."""

from collections.abc import Iterable
from dataclasses import dataclass

from gateway_core.api.account import AccountDefaults, GatewayAccount, GatewayUser
from gateway_core.api.conditions import Reason
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog import Problem
from gateway_operator.accounts.readiness import Finding, Ref, refer


@dataclass(eq=False)
class Accounts:
    """An account is ready unless it is suspended."""

    kind = GatewayAccount
    contested = ""

    table: Cache[GatewayAccount]
    defaults: AccountDefaults

    def list_references(self, obj: GatewayAccount) -> Iterable[Ref]:
        """None."""
        return ()

    async def check(self, obj: GatewayAccount) -> Finding:
        """Check whether it is suspended; and the limits in effect, where its status differs."""
        rate = self.defaults.choose_rate(obj.spec.requests_per_minute)
        storage = self.defaults.choose_storage(obj.spec.storage_bytes)
        shown = obj.status.requests_per_minute, obj.status.storage_bytes
        limits = {"requestsPerMinute": rate, "storageBytes": storage}
        return Finding(
            check_account(obj, obj.metadata.name), {} if shown == (rate, storage) else limits
        )


@dataclass(eq=False)
class Users:
    """A user is ready if all accounts of the memberships exist."""

    kind = GatewayUser
    contested = ""

    table: Cache[GatewayUser]
    accounts: Cache[GatewayAccount]

    def list_references(self, obj: GatewayUser) -> Iterable[Ref]:
        """The accounts of the memberships."""
        return [refer(GatewayAccount, part.account_name) for part in obj.spec.memberships or ()]

    async def check(self, obj: GatewayUser) -> Finding:
        """Check whether it is suspended, or a member of a missing account."""
        if obj.spec.suspended:
            text = "the user is suspended by spec.suspended"
            return Finding(Problem(Reason.SUSPENDED, text))
        for part in obj.spec.memberships or ():
            if self.accounts.get(part.account_name) is None:
                return Finding(find_no_account(part.account_name))
        return Finding()


def check_account(account: GatewayAccount | None, name: str) -> Problem | None:
    """The problem of the account of this name, None for none."""
    if account is None:
        return find_no_account(name)
    if account.spec.suspended:
        return Problem(Reason.SUSPENDED, "the account is suspended by spec.suspended")
    return None


def find_no_account(name: str) -> Problem:
    """The problem of an object that names a missing account."""
    return Problem(Reason.ACCOUNT_NOT_FOUND, f"no GatewayAccount is called {name}")
