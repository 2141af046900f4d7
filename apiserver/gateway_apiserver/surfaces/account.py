"""`/api/v1/me` and `/api/v1/me/balance` (contract §2.4). Not counted in the rate."""

from pydantic import BaseModel, Field

from gateway_apiserver.responses import Response, to_json
from gateway_apiserver.routing import Call, Docs, RouteTable
from gateway_core.accounts.authentication import Principal
from gateway_core.accounts.records import AccountRecord, OwnerIndex
from gateway_core.admission.admission import Access
from gateway_core.admission.rates import RateLimiter
from gateway_core.api.errors import Unavailable
from gateway_core.api.money import ceil_cents, floor_cents
from gateway_core.billing.counters import Spending
from gateway_core.billing.redis_counters import Counters
from gateway_core.kube.clock import CLOCK
from gateway_core.redis.link import CountersStale, CountersUnavailable

ACCOUNT_PATH = "/api/v1/me"
BALANCE_PATH = "/api/v1/me/balance"


class AccountReference(BaseModel):
    """The account a key belongs to."""

    id: int
    name: str


class Me(BaseModel):
    """The person behind a key, and the account."""

    id: int
    name: str
    email: str
    account: AccountReference


class Balance(BaseModel):
    """An account's money in whole cents."""

    balance_cents: int = Field(description="Left after charges and open reservations.")
    paid_balance_cents: int = Field(description="What is left of the money paid in.")
    bonus_balance_cents: int = Field(description="What is left of the bonus, which goes first.")
    spent_cents_today: int = Field(description="Charged on this UTC day.")
    spent_cents_total: int = Field(description="Charged ever.")


class AccountRoutes:
    """Both routes, as a router of `app`'s."""

    def __init__(
        self,
        owners: OwnerIndex,
        counters: Counters,
        gate: RateLimiter,
    ) -> None:
        self._owners = owners
        self._counters = counters
        self._gate = gate

    def add_to(self, table: RouteTable) -> None:
        """Add the routes."""
        for path, handler, docs in (
            (
                ACCOUNT_PATH,
                self.show_me,
                Docs(name="showMe", summary="Whose key it is", response=Me),
            ),
            (
                BALANCE_PATH,
                self.show_balance,
                Docs(name="showBalance", summary="What is left of the money", response=Balance),
            ),
        ):
            table.add("GET", path, handler, "account", Access(), docs=docs, has_head=False)

    async def show_me(self, call: Call) -> Response:
        """The creator of the key; the account's owner for a declared key."""
        return to_json(self._describe(call.caller))

    def _describe(self, caller: Principal) -> Me:
        account = caller.account
        reference = AccountReference(id=account.id, name=account.display_name)
        person = caller.creator or self._owners.find(account.name)
        if person is None:
            name, email = account.owner_name, account.owner_email
            return Me(id=account.owner_id, name=name, email=email, account=reference)
        return Me(id=person.id, name=person.display_name, email=person.email, account=reference)

    async def show_balance(self, call: Call) -> Response:
        """What the account has left. Unavailable while the counters are."""
        account = call.caller.account
        today = CLOCK.now().date().isoformat()
        try:
            try:
                spending = await self._counters.read_spending(account.name, today)
            except CountersStale:
                await self._gate.rebuild(account.name)
                spending = await self._counters.read_spending(account.name, today)
        except (CountersStale, CountersUnavailable) as error:
            raise Unavailable("The balance cannot be read now.") from error
        return to_json(work_out_balance(account, spending))


def work_out_balance(account: AccountRecord, spending: Spending) -> Balance:
    """The five figures: bonus is spent first, and only sums are rounded (contract §2.4)."""
    bonus_left = max(0, account.bonus_micros - spending.charged)
    paid_left = account.paid_micros - max(0, spending.charged - account.bonus_micros)
    return Balance(
        balance_cents=floor_cents(paid_left + bonus_left) - ceil_cents(spending.held),
        paid_balance_cents=floor_cents(paid_left),
        bonus_balance_cents=floor_cents(bonus_left),
        spent_cents_today=floor_cents(spending.charged_today),
        spent_cents_total=floor_cents(spending.charged),
    )
