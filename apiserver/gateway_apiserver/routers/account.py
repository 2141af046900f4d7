"""`/api/v1/me` and `/api/v1/me/balance` (contract §2.4). Not counted in the rate."""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from gateway_apiserver.access import ByCaller, provided, requires
from gateway_apiserver.routes import GatewayRoute
from gateway_core.accounts.records import Balance, OwnerIndex, work_out_balance
from gateway_core.admission.admission import Access
from gateway_core.admission.rates import RateLimiter

router = APIRouter(prefix="/api/v1/me", route_class=GatewayRoute, tags=["Account"])

Owners = Annotated[OwnerIndex, Depends(provided(OwnerIndex))]
Limiter = Annotated[RateLimiter, Depends(provided(RateLimiter))]


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


@router.get("", operation_id="showMe", summary="Show the user and account of a key")
@requires(Access(), "account")
async def show_me(caller: ByCaller, owners: Owners) -> Me:
    """Show the creator of the key; the account's owner for a declared key."""
    account = caller.principal.account
    reference = AccountReference(id=account.id, name=account.display_name)
    person = caller.principal.creator or owners.find(account.name)
    if person is None:
        name, email = account.owner_name, account.owner_email
        return Me(id=account.owner_id, name=name, email=email, account=reference)
    return Me(id=person.id, name=person.display_name, email=person.email, account=reference)


@router.get("/balance", operation_id="showBalance", summary="Show the balance")
@requires(Access(), "account")
async def show_balance(caller: ByCaller, limiter: Limiter) -> Balance:
    """Show what the account has left. Unavailable while the counters are."""
    account = caller.principal.account
    return work_out_balance(account, await limiter.read_spending(account.name))
