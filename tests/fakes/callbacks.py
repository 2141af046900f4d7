"""`CallbackSender` without a network: receivers by URL, each with answers in an order it is told.

Verified by the tests of the real one.
"""

import asyncio
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace

from gateway_core.callbacks.client import CallbackAnswer


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt brought; `at` is the loop's time when it began."""

    url: str
    headers: dict[str, str]
    body: bytes
    at: float


@dataclass
class Receiver:
    """Answers in order, then 200 for ever; each after `seconds`, cut at the sender's timeout."""

    answers: deque[CallbackAnswer] = field(default_factory=deque)
    seconds: float = 0.01

    def will(self, *answers: int | CallbackAnswer) -> None:
        """Has the next attempts answered so."""
        for answer in answers:
            whole = answer if isinstance(answer, CallbackAnswer) else make_answer(answer)
            self.answers.append(whole)


class FakeSender:
    """All receivers there are, and every attempt that came to one of them."""

    def __init__(self, *, timeout: float = 15.0) -> None:
        self.timeout = timeout
        self.receivers: defaultdict[str, Receiver] = defaultdict(Receiver)
        self.attempts: list[Attempt] = []
        self.under_way = 0

    async def send(
        self, url: str, headers: Mapping[str, str], body: bytes, share: Hashable = None
    ) -> CallbackAnswer:
        receiver = self.receivers[url]
        self.attempts.append(Attempt(url, dict(headers), body, asyncio.get_running_loop().time()))
        self.under_way += 1
        try:
            async with asyncio.timeout(self.timeout):
                await asyncio.sleep(receiver.seconds)
        except TimeoutError:
            return CallbackAnswer(None, f"no answer within {self.timeout:g} s", is_costly=True)
        finally:
            self.under_way -= 1
        answer = receiver.answers.popleft() if receiver.answers else make_answer(200)
        return replace(answer, is_costly=receiver.seconds > self.timeout / 3)

    async def close(self) -> None:
        return


def make_answer(status: int, retry_after: float | None = None) -> CallbackAnswer:
    """An answer that came at once."""
    text = f"answered {status}"
    if 300 <= status <= 399:
        text += ", and redirects are not followed"
    return CallbackAnswer(status, text, retry_after)
