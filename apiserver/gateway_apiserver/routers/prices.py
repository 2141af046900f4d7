"""`/api/v1/price_quotes`: what a call would reserve (contract §2.7)."""

from typing import Annotated

from fastapi import APIRouter, Depends

from gateway_apiserver.access import provided, requires
from gateway_apiserver.routes import GatewayRoute
from gateway_apiserver.surfaces.pricing import Prices, QuoteAnswer
from gateway_apiserver.surfaces.quotes import QuoteRequest
from gateway_core.admission.admission import Access

router = APIRouter(route_class=GatewayRoute, tags=["Prices"])


@router.post(
    "/api/v1/price_quotes",
    operation_id="quotePrice",
    summary="Quote the reservation of a call",
    responses={404: {}, 409: {}},
)
@requires(Access(anonymous=True), "price_quotes")
async def quote_price(
    body: QuoteRequest, prices: Annotated[Prices, Depends(provided(Prices))]
) -> QuoteAnswer:
    """Quote a call as it would be admitted now."""
    return prices.quote(body)
