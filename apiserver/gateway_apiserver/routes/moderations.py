"""`/v1/moderations` (contract §6)."""

from gateway_apiserver.admission.moderations import ModerationAdmission
from gateway_apiserver.routes.compat.calls import Call, Endpoint
from gateway_apiserver.routes.compat.router import Endpoints


class ModerationRoutes:
    """The one route."""

    def __init__(self, admission: ModerationAdmission) -> None:
        self._admission = admission

    @property
    def endpoints(self) -> Endpoints:
        """What serves it."""
        return {"moderations": {"POST": Endpoint("moderation_create", self.judge)}}

    async def judge(self, call: Call) -> None:
        """Texts and images, judged by the model's provider."""
        await call.reply(await self._admission.judge(call))
