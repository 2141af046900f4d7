"""`/api/v1/me` and `/api/v1/me/balance` (contract §2.4). Not counted in the rate."""

from pydantic import BaseModel

from gateway_apiserver.routing import Call, Docs, RouteTable
from gateway_core.accounts.authentication import Principal
from gateway_core.accounts.records import Balance, OwnerIndex, work_out_balance
from gateway_core.admission.admission import Access
from gateway_core.admission.rates import RateLimiter
from gateway_web.responses import Response, to_json

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


class AccountRoutes:
    """Both routes."""

    def __init__(self, owners: OwnerIndex, limiter: RateLimiter) -> None:
        self._owners = owners
        self._limiter = limiter

    def add_to(self, table: RouteTable) -> None:
        """Add the routes."""
        docs = Docs("showMe", "Whose key it is", Me)
        table.add("GET", ACCOUNT_PATH, self.show_me, "account", Access(), docs, has_head=False)
        docs = Docs("showBalance", "What is left of the money", Balance)
        table.add("GET", BALANCE_PATH, self.show_balance, "account", Access(), docs, has_head=False)

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
        spending = await self._limiter.read_spending(account.name)
        return to_json(work_out_balance(account, spending))
