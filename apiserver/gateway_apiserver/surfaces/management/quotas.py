"""How many keys an account may have, so that no tenant fills the record and every process."""

from collections import Counter

from gateway_core.accounts.records import KeyRecord
from gateway_core.api.errors import Conflict, Unavailable
from gateway_core.api.key import MOST_REVOKED
from gateway_core.kube.informer import Cache

MOST_WAITING = MOST_REVOKED
"""Revoked keys that may wait for their removal, beyond those that are kept."""


class KeyQuota:
    """Standard keys of each account, counted along with the table.

    Calls that make keys at the very same time may pass the bound by as many.
    """

    def __init__(self, keys: Cache[KeyRecord], most: int) -> None:
        self._keys = keys
        self._most = most
        self._known: dict[str, tuple[str, bool]] = {}
        self._counts = Counter[tuple[str, bool]]()
        for name in dict(keys.items()):
            self._note(name)
        keys.subscribe(self._note)

    def check_room(self, account: str) -> None:
        """Raises Conflict where the account may have no further key.

        Unavailable where it revokes keys faster than the operator removes them.
        """
        lasting, revoked = self._counts[account, False], self._counts[account, True]
        if lasting >= self._most:
            raise Conflict(f"The account has {lasting} keys; at most {self._most} are allowed.")
        if revoked >= MOST_REVOKED + MOST_WAITING:
            raise Unavailable(f"{revoked} revoked keys are being removed.", retry_after=60)

    def _note(self, name: str) -> None:
        before = self._known.pop(name, None)
        if before is not None:
            self._counts[before] -= 1
        record = self._keys.get(name)
        if record is not None and record.key_class == "Standard":
            self._known[name] = now = (record.account, record.revoked)
            self._counts[now] += 1
