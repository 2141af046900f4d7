"""One attempt at a callback, from its turn to the receiver's answer."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from gateway_core.callbacks.client import CallbackSender
from gateway_core.callbacks.signing import make_headers
from gateway_core.tasks.delivery import Outcome
from gateway_operator.callbacks.limiter import Lane, Lanes
from gateway_operator.callbacks.signing import Keyring


@dataclass(frozen=True, slots=True)
class Message:
    """What is sent: to which URL of which account, under which id."""

    account: str
    url: str
    id: str
    body: bytes


class CallbackClient:
    """Sends messages, each when its lane is free."""

    def __init__(
        self, sender: CallbackSender, keyring: Keyring, now: Callable[[], datetime]
    ) -> None:
        self._sender = sender
        self._keyring = keyring
        self._now = now
        self.lanes = Lanes()

    async def check_keys(self, account: str) -> None:
        """Raises NoKey where nothing can be signed for the account, KubernetesUnavailable."""
        await self._keyring.find(account)

    @asynccontextmanager
    async def wait_turn(self, account: str, url: str) -> AsyncIterator[Lane]:
        """A place on the way to the URL's host; what is known of the task may be old by then."""
        async with self.lanes.take(account, _host_of(url)) as lane:
            yield lane

    async def send(self, message: Message, lane: Lane) -> Outcome:
        """Send once in `lane`, signed as of now. NoKey, KubernetesUnavailable: nothing was sent."""
        keys = await self._keyring.find(message.account)
        timestamp = int(self._now().timestamp())
        headers = make_headers(keys, message.id, timestamp, message.body)
        # its slow hosts use up nothing that its others need, nor that of another account
        share = message.account, lane.is_slow
        answer = await self._sender.send(message.url, headers, message.body, share)
        lane.is_slow, lane.answers = answer.is_costly, answer.status is not None
        return Outcome(self._now(), answer.status, answer.text, answer.retry_after)


def _host_of(url: str) -> str:
    """Host and port as they stand in the URL, in lower case; the whole of what is none."""
    try:
        return urlsplit(url).netloc.rpartition("@")[2].lower() or url
    except ValueError:
        return url
