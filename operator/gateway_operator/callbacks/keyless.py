"""Tasks that wait until their account has a secret: one of each account looks, and tells the rest.

A tenant without a secret can have very many of them, and they would all look for the same thing.
"""

from collections.abc import Callable

from gateway_core.contract.account import GatewayAccount
from gateway_core.ports.caches import Table


class Keyless:
    """Names of waiting tasks by account, the first of which is to look; `wake` has one looked at.

    It is woken as well when its account changes.
    """

    def __init__(self, accounts: Table[GatewayAccount], wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._waiting: dict[str, dict[str, None]] = {}
        self._accounts: dict[str, str] = {}
        accounts.subscribe(self._notice)

    def join(self, name: str, account: str) -> bool:
        """Takes in that the task waits; whether it is the one to look."""
        names = self._waiting.setdefault(account, {})
        names[name] = None
        self._accounts[name] = account
        return next(iter(names)) == name

    def leave(self, name: str) -> None:
        """Takes in that the task waits no longer; another looks in its place."""
        account = self._accounts.pop(name, None)
        if account is None:
            return
        names = self._waiting[account]
        looked = next(iter(names)) == name
        del names[name]
        if not names:
            del self._waiting[account]
        elif looked:
            self._wake(next(iter(names)))

    def release(self, account: str) -> None:
        """Wakes all that wait, since the account has a secret."""
        for name in self._waiting.pop(account, ()):
            del self._accounts[name]
            self._wake(name)

    def _notice(self, account: str) -> None:
        names = self._waiting.get(account)
        if names:
            self._wake(next(iter(names)))
