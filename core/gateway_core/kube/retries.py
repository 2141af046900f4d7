"""Retries of writes to the Kubernetes API: until their outcome is known, or while others write."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from typing import TypeVar

from gateway_core.concurrency import back_off
from gateway_core.failures import describe_failure
from gateway_core.kube.errors import (
    AlreadyExists,
    KubernetesError,
    KubernetesUnavailable,
    RequestRejected,
    WriteConflict,
    WriteOutcomeUnknown,
)

GIVE_UP_SECONDS = 10.0
"""Time to retry where a write was sent, or others write the same object."""
REFUSE_SECONDS = 0.5
"""Time to retry where nothing was sent: the client is told soon to come again."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 0.8

T = TypeVar("T")


async def retry_write(
    attempt: Callable[[], Awaitable[T]],
    *conflicts: type[KubernetesError],
    note_sent: Callable[[], None] = lambda: None,
) -> T:
    """Await `attempt`, which may read, decide and write once, until its outcome is known.

    It is awaited again after a conflict (WriteConflict, and the errors in `conflicts`) and after a
    write whose answer was lost, so it must recognise a write of its own. `note_sent` is called
    where an answer was lost.

    Raises:
        KubernetesUnavailable: nothing was sent.
        WriteOutcomeUnknown: an answer was lost, and no later attempt has told the outcome.
        AlreadyExists: `attempt` raised it: an object of the name exists and cannot be read.
        WriteConflict: others keep writing the object.
        RequestRejected: nothing was sent before.
    """
    clock = asyncio.get_running_loop().time
    deadline, refuse_at = clock() + GIVE_UP_SECONDS, clock() + REFUSE_SECONDS
    repeated: tuple[type[KubernetesError], ...] = (AlreadyExists, WriteConflict, *conflicts)
    failure: KubernetesError | None = None
    for failures in count(1):
        try:
            async with asyncio.timeout(max(0.0, deadline - clock())):
                return await attempt()
        except (WriteOutcomeUnknown, TimeoutError) as error:
            failure = WriteOutcomeUnknown(f"not acknowledged: {describe_failure(error)}")
            note_sent()
        except repeated as error:
            # an earlier write may still have caused the conflict
            if not isinstance(failure, WriteOutcomeUnknown):
                failure = error
        except KubernetesUnavailable as error:
            if not isinstance(failure, WriteOutcomeUnknown | AlreadyExists):
                failure = error
        except RequestRejected as error:
            # an earlier write may have been applied, and be why this one is rejected: the API
            # server checks a quota before the name
            if isinstance(failure, WriteOutcomeUnknown | AlreadyExists):
                raise failure from error
            raise
        pause = back_off(failures, first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
        give_up_at = refuse_at if isinstance(failure, KubernetesUnavailable) else deadline
        if clock() + pause >= give_up_at:
            raise failure
        await asyncio.sleep(pause)
    raise AssertionError


async def attempts() -> AsyncIterator[None]:
    """Attempts for GIVE_UP_SECONDS, with jittered pauses that keep concurrent writers apart."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + GIVE_UP_SECONDS
    for failures in count(1):
        if clock() >= deadline:
            return
        yield
        await asyncio.sleep(
            back_off(failures, first=FIRST_PAUSE_SECONDS, longest=LONGEST_PAUSE_SECONDS)
        )
