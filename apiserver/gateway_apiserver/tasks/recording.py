"""Creation of task objects (contract §2.1, §2.2).

The create is the lock: of concurrent creates of one name one succeeds, the others get its object.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import structlog

from gateway_apiserver.idempotency import KeyReused, WinnerUndecided
from gateway_apiserver.tasks.api_health import ApiHealth
from gateway_core.api.errors import Internal, OutcomeUnknown, Unavailable
from gateway_core.api.ids import GIVEN_DIGEST_ANNOTATION
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.kube.client import KubernetesClient
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesError,
    KubernetesUnavailable,
    WriteOutcomeUnknown,
)

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The task object, and whether another call created it."""

    object: Object
    replayed: bool


class TaskRecorder:
    """Creates task objects."""

    def __init__(self, kube: KubernetesClient, api_health: ApiHealth) -> None:
        self._kube = kube
        self._api_health = api_health

    async def record(self, obj: Object) -> Recorded:
        """Create `obj`, or get the object of its name that an equal call created.

        Raises:
            KeyReused: the object of its name is of a different call.
            WinnerUndecided: an object of its name exists, and could not be read within 10 s.
            OutcomeUnknown: sent and not acknowledged within 10 s; it may exist.
            Unavailable: the Kubernetes API is away, and nothing was sent.
            Internal: the Kubernetes API rejects the object, a defect of the gateway.
        """
        unsent = True

        @asynccontextmanager
        async def observe() -> AsyncIterator[None]:
            nonlocal unsent
            if unsent:
                await self._check()
            try:
                async with self._api_health.listen():
                    yield
            except KubernetesUnavailable:
                raise
            except BaseException:
                unsent = False
                raise

        try:
            stands, is_new = await self._kube.create_or_get(GatewayTask.plural, obj, around=observe)
        except WriteOutcomeUnknown as error:
            raise OutcomeUnknown(
                "The task was not acknowledged in time; it may have been created."
            ) from error
        except AlreadyExists as error:
            raise WinnerUndecided from error
        except KubernetesUnavailable as error:
            raise Unavailable("The task could not be recorded.", retry_after=1) from error
        except KubernetesError as error:
            _log.error("a task was rejected", task=obj["metadata"]["name"], error=str(error))
            raise Internal("The task could not be recorded.") from error
        if is_new:
            return Recorded(stands, replayed=False)
        given = obj["metadata"]["annotations"][GIVEN_DIGEST_ANNOTATION]
        if is_same_request(stands, given, obj["spec"]["request"]["fingerprint"]):
            return Recorded(stands, replayed=True)
        raise KeyReused

    async def _check(self) -> None:
        """Keeps the outcome known where the API does not answer: nothing is sent then."""
        try:
            await self._api_health.check()
        except Unavailable as error:
            raise KubernetesUnavailable(str(error)) from error


def is_same_request(obj: Object, given_digest: str, fingerprint: str) -> bool:
    """Whether the task was made by a call with the same validated body (contract §2.2).

    Same with today's defaults, or same as it was sent: what the model says by now is no difference.
    """
    annotations = obj["metadata"].get("annotations") or {}
    return bool(
        annotations.get(GIVEN_DIGEST_ANNOTATION) == given_digest
        or obj["spec"]["request"].get("fingerprint") == fingerprint
    )
