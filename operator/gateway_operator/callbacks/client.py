"""The callback client: one attempt, from its place in the limiter to the receiver's answer."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from gateway_core.callbacks.client import CallbackSender
from gateway_core.callbacks.schedule import SCHEDULE
from gateway_core.callbacks.signing import make_headers
from gateway_core.tasks.delivery import Outcome
from gateway_operator.callbacks.limiter import CallbackLimiter, Lane
from gateway_operator.callbacks.signing import Keyring


@dataclass(frozen=True, slots=True)
class Message:
    """A callback's body, its id, and the account and URL it is for."""

    account: str
    url: str
    id: str
    body: bytes


class CallbackClient:
    """Sends signed callbacks, bounded by a limiter.

    `schedule` has the seconds before each attempt, the first of which is 0.
    """

    def __init__(
        self,
        sender: CallbackSender,
        keyring: Keyring,
        now: Callable[[], datetime],
        schedule: tuple[float, ...] = SCHEDULE,
    ) -> None:
        self._sender = sender
        self._keyring = keyring
        self._now = now
        self.schedule = schedule
        self.limiter = CallbackLimiter()

    async def check_keys(self, account: str) -> None:
        """Raise NoKey where nothing can be signed for the account. RecordUnavailable."""
        await self._keyring.find(account)

    @asynccontextmanager
    async def wait_turn(self, account: str, url: str) -> AsyncIterator[Lane]:
        """Hold a place for the URL's host. What is known of the task may be outdated by then."""
        async with self.limiter.take(account, _host_of(url)) as lane:
            yield lane

    async def send(self, message: Message, lane: Lane) -> Outcome:
        """Make one attempt, signed as of now. NoKey, KubernetesUnavailable: nothing was sent."""
        keys = await self._keyring.find(message.account)
        timestamp = int(self._now().timestamp())
        headers = make_headers(keys, message.id, timestamp, message.body)
        # an account's slow hosts take no connections from its other hosts or from other accounts
        share = message.account, lane.is_slow
        answer = await self._sender.send(message.url, headers, message.body, share)
        lane.is_slow, lane.answers = answer.is_costly, answer.status is not None
        return Outcome(self._now(), answer.status, answer.text, answer.retry_after)


def _host_of(url: str) -> str:
    """Host and port as written in the URL, in lower case; the whole text if it is no URL."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower() or url
    except ValueError:
        return url
