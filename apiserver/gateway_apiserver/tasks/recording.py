"""Creating a task's object until it is known whether it is there (contract §2.1, §2.2).

The create is the lock: of several with one name exactly one succeeds, and the others find it.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gateway_apiserver.idempotency import (
    GIVE_UP_SECONDS,
    KeyReused,
    WinnerUndecided,
    is_of_same_call,
)
from gateway_apiserver.tasks.api_health import ApiHealth
from gateway_core.api.errors import (
    GatewayError,
    Internal,
    OutcomeUnknown,
    Unavailable,
)
from gateway_core.api.ids import GIVEN_DIGEST_ANNOTATION
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesError,
    KubernetesUnavailable,
    ObjectNotFound,
    RequestRejected,
    WriteOutcomeUnknown,
)

REFUSE_SECONDS = 0.5
"""Time to go on trying where nothing has been sent: the client is told to come again soon."""
PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The object that stands, and whether another call made it."""

    object: Object
    replayed: bool


class TaskRecorder:
    """Writes task objects."""

    def __init__(
        self,
        kube: KubernetesClient,
        pulse: ApiHealth,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube = kube
        self._pulse = pulse
        self._clock = clock

    async def record(self, obj: Object) -> Recorded:
        """Creates `obj`, or finds the one of its name that an equal call made.

        Raises:
            KeyReused: one of its name is there that asks for something else.
            WinnerUndecided: one of its name is there, and could not be read within 10 s.
            OutcomeUnknown: sent and not acknowledged within 10 s; it may be there.
            Unavailable: the Kubernetes API is away, and nothing was sent.
            Internal: the Kubernetes API refuses the object, which is a defect of ours, and nothing
                was sent before.
        """
        begin = self._clock()
        deadline, refuse_at = begin + GIVE_UP_SECONDS, begin + REFUSE_SECONDS
        verdict: GatewayError = Unavailable("The task could not be recorded.", retry_after=1)
        nothing_sent = True
        attempt = 0
        while True:
            try:
                if nothing_sent:
                    await self._pulse.check()
                async with asyncio.timeout(max(0.0, deadline - self._clock())):
                    return await self._try(obj)
            except (WriteOutcomeUnknown, TimeoutError):
                nothing_sent = False
                verdict = OutcomeUnknown(
                    "The task was not acknowledged in time; it may have been created."
                )
            except WinnerUndecided as undecided:
                nothing_sent = False
                if not isinstance(verdict, OutcomeUnknown):
                    verdict = undecided
            except (KubernetesUnavailable, Unavailable):
                pass
            except (RequestRejected, KubernetesError) as error:
                _log.error("a task was refused", task=obj["metadata"]["name"], error=str(error))
                # what was sent before may be there, and be what this one is refused for: a quota is
                # looked at before the name
                defect = Internal("The task could not be recorded.")
                raise (defect if nothing_sent else verdict) from error
            pause = PAUSES[min(attempt, len(PAUSES) - 1)]
            attempt += 1
            if self._clock() + pause >= (refuse_at if nothing_sent else deadline):
                raise verdict
            await asyncio.sleep(pause)

    async def _try(self, obj: Object) -> Recorded:
        try:
            async with self._pulse.listen():
                created = await self._kube.create(GatewayTask.plural, obj)
            return Recorded(created, replayed=False)
        except AlreadyExists:
            pass
        try:
            found = await self._kube.get(GatewayTask.plural, obj["metadata"]["name"])
        except (ObjectNotFound, KubernetesUnavailable) as error:
            raise WinnerUndecided from error
        if is_of_same_call(found, obj):
            return Recorded(found, replayed=False)
        given = obj["metadata"]["annotations"][GIVEN_DIGEST_ANNOTATION]
        if is_same_request(found, given, obj["spec"]["request"]["fingerprint"]):
            return Recorded(found, replayed=True)
        raise KeyReused


def is_same_request(obj: Object, given_digest: str, fingerprint: str) -> bool:
    """Whether the task was made by a call with the same validated body (contract §2.2).

    Same with today's defaults, or same as it was sent: what the model says by now is no difference.
    """
    annotations = obj["metadata"].get("annotations") or {}
    return bool(
        annotations.get(GIVEN_DIGEST_ANNOTATION) == given_digest
        or obj["spec"]["request"].get("fingerprint") == fingerprint
    )
