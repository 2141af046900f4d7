"""Redis is emptied or rebuilt only where it has the content of another time than the record."""

from typing import Any

import pytest

from gateway_operator.lineage import LineageHeartbeat


class Trail:
    """Redis with a token, and the accounts that are rebuilt; `emptied` once it was."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.emptied = False
        self.stale: list[str] = []

    async def read(self) -> str:
        return self.token

    async def write(self, token: str) -> None:
        self.token = token

    async def clear(self) -> None:
        self.emptied = True

    async def list_accounts(self) -> list[str]:
        return ["demo"]

    async def mark_stale(self, account: str) -> None:
        self.stale.append(account)


class Tokens:
    """A Lease with these tokens."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)

    async def extend(self, _: str) -> list[str]:
        return self.tokens

    async def read(self) -> list[str]:
        return self.tokens


@pytest.mark.parametrize(
    ("known", "emptied", "stale"),
    [
        ("b", False, []),
        # a write of its own whose answer was lost, or of an operator that was faster
        ("c", False, []),
        ("a", False, ["demo"]),
        ("x", True, []),
        ("", False, []),
    ],
)
async def test_token_of_redis_is_compared(known: str, emptied: bool, stale: list[str]) -> None:
    trail: Any = Trail("")
    lease: Any = Tokens("a", "b")
    heartbeat = LineageHeartbeat(lease, trail, trail, "one")
    await heartbeat.renew()
    trail.token, lease.tokens = known, ["a", "b", "c", "d"]
    await heartbeat.renew()
    assert (trail.emptied, trail.stale) == (emptied, stale)
    assert trail.token == "d"


async def test_redis_that_was_away_for_long_is_kept() -> None:
    """All tokens since are of its absence."""
    trail: Any = Trail("")
    lease: Any = Tokens("a")
    heartbeat = LineageHeartbeat(lease, trail, trail, "one")
    await heartbeat.renew()
    lease.tokens = ["y", "z"]
    await heartbeat.renew()
    assert (trail.emptied, trail.stale, trail.token) == (False, [], "z")
