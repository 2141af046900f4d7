"""`/usage`: what the account was charged (contract §9)."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query

from gateway_apiserver.access import ByCaller, provided, requires
from gateway_apiserver.routes import GatewayRoute
from gateway_apiserver.surfaces.management import GOVERN_OWN, LABEL, ROOT
from gateway_apiserver.surfaces.management.usage import UsageQuery, UsageReport, UsageReports

router = APIRouter(prefix=f"{ROOT}/usage", route_class=GatewayRoute, tags=["Usage"])


@router.get(
    "",
    operation_id="reportUsage",
    summary="Report charges",
    # a dimension that is not asked for is absent; one that has no value is null
    response_model_exclude_unset=True,
)
@requires(GOVERN_OWN, LABEL)
async def report_usage(
    query: Annotated[UsageQuery, Query()],
    caller: ByCaller,
    reports: Annotated[UsageReports, Depends(provided(UsageReports))],
) -> UsageReport:
    """Report sums of charges by day, key, model and operation."""
    return await reports.report(caller.principal, query)
