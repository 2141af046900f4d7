"""Secrets that the gateway itself writes: the keys that it makes for who declared them.

Fulfilled by `adapters.kube`. What others wrote is read through `ports.records`.
"""

from typing import Protocol

from gateway_core.contract.secret import Secret


class Secrets(Protocol):
    """The Secrets of one namespace. Nobody logs their data, or puts it into another object.

    Every method raises the errors of `ports.records`: RecordUnavailable where nothing was done,
    RecordOutcomeUnknown where that is not known, NotPermitted where rights are lacking.
    """

    async def find(self, name: str) -> Secret | None:
        """The Secret; None where there is none."""
        ...

    async def write(self, secret: Secret) -> None:
        """Makes the Secret, or merges it into the version that was read; compare-and-set.

        Raises AlreadyExists where one was made meanwhile, Outdated or Missing where it has changed
        or gone, and Refused where it is immutable.
        """
        ...
