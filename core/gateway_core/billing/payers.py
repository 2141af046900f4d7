"""What leases need to know of a payer; accounts and policies are of a layer above."""

from typing import Protocol

from gateway_core.billing.counters import Budget


class Account(Protocol):
    """What a lease depends on of the account that pays."""

    @property
    def name(self) -> str:
        """Its object's name."""
        ...

    @property
    def requests_per_minute(self) -> int:
        """Its rate."""
        ...

    @property
    def unlimited(self) -> bool:
        """Whether it needs no balance."""
        ...

    @property
    def funds(self) -> int:
        """Micro-dollars ever paid in."""
        ...


class Policy(Protocol):
    """What a lease depends on of a key and its guardrails."""

    @property
    def key_name(self) -> str:
        """The key's name, which names the payer."""
        ...

    @property
    def subjects(self) -> tuple[str, ...]:
        """The subjects that its money counts under."""
        ...

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets that its calls must be within."""
        ...
