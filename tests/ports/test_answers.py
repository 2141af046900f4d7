"""What the store of answers promises, asked of the fake and of Redis alike."""

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from gateway_core.llm.answer_store import AnswerStore, CacheBounds
from gateway_core.llm.cache import AnswerCache, Place
from tests.fakes.answers import BESIDE, FakeAnswers
from tests.servers.server import RedisServer

BOUNDS = CacheBounds(account=3 * (BESIDE + 100), total=5 * (BESIDE + 100))
ANSWER = b"x" * 100


class Aged:
    """A store whose entries can be made older."""

    def __init__(self, server: RedisServer | None) -> None:
        self._namespace = uuid.uuid4().hex
        self.fake = FakeAnswers(BOUNDS) if server is None else None
        self.direct = None if server is None else Redis(port=server.port, decode_responses=True)
        self.store = (
            self.fake
            if server is None
            else AnswerStore(server.url, BOUNDS, namespace=self._namespace)
        )

    def advance(self, seconds: int) -> None:
        """Make what is kept older."""
        if self.fake is not None:
            self.fake.now += seconds
            return
        assert self.direct is not None
        for key in self.direct.keys(f"gw:{{{self._namespace}/}}answers*"):
            if self.direct.type(key) == "string":
                self.direct.pexpire(key, self.direct.pttl(key) - 1000 * seconds)
            elif self.direct.type(key) == "zset":
                for name, due in self.direct.zrange(key, 0, -1, withscores=True):
                    self.direct.zadd(key, {name: due - 1_000_000 * seconds})

    def list_keys(self) -> list[str]:
        """Keys that hold an answer."""
        if self.fake is not None:
            return list(self.fake.kept)
        assert self.direct is not None
        keys = self.direct.keys(f"gw:{{{self._namespace}/}}answers:*")
        return [key for key in keys if self.direct.type(key) == "string"]


@pytest.fixture(params=["fake", "redis"])
async def aged(request: pytest.FixtureRequest) -> AsyncIterator[Aged]:
    server = None if request.param == "fake" else request.getfixturevalue("redis_server")
    made = Aged(server)
    yield made
    await made.store.close()


async def test_answer_is_found_until_its_time_is_over(aged: Aged) -> None:
    assert await aged.store.find("aa") is None
    assert await aged.store.keep("demo", "aa", ANSWER, 60)
    assert await aged.store.find("aa") == ANSWER
    assert await aged.store.find("ab") is None

    aged.advance(61)
    assert await aged.store.find("aa") is None


async def test_later_answer_replaces_the_first_and_counts_once(aged: Aged) -> None:
    for number in range(10):
        assert await aged.store.keep("demo", "aa", b"%d" % number * 100, 60)
    assert await aged.store.find("aa") == b"9" * 100
    assert await aged.store.keep("demo", "bb", ANSWER, 60)
    assert await aged.store.keep("demo", "cc", ANSWER, 60)
    assert len(aged.list_keys()) == 3


async def test_account_beyond_its_bytes_loses_what_is_due_first(aged: Aged) -> None:
    await aged.store.keep("guest", "ee", ANSWER, 10)
    for digest, seconds in (("aa", 300), ("bb", 100), ("cc", 200), ("dd", 400)):
        assert await aged.store.keep("demo", digest, ANSWER, seconds)

    found = [digest for digest in ("aa", "bb", "cc", "dd", "ee") if await aged.store.find(digest)]
    assert found == ["aa", "cc", "dd", "ee"]


async def test_all_accounts_together_stay_within_their_bytes(aged: Aged) -> None:
    for number in range(12):
        assert await aged.store.keep(f"account-{number}", f"{number:02x}", ANSWER, 60 + number)
    assert len(aged.list_keys()) == 5
    assert await aged.store.find("0b") == ANSWER


async def test_answer_larger_than_the_bounds_is_not_kept(aged: Aged) -> None:
    assert not await aged.store.keep("demo", "aa", b"x" * BOUNDS.account, 60)
    assert aged.list_keys() == []


async def test_expired_answers_make_room(aged: Aged) -> None:
    for digest in ("aa", "bb", "cc"):
        await aged.store.keep("demo", digest, ANSWER, 10)
    aged.advance(11)
    for number in range(5):
        assert await aged.store.keep(f"account-{number}", f"d{number}", ANSWER, 60)
    assert len(aged.list_keys()) == 5


@pytest.mark.parametrize("is_silent", [False, True], ids=["refused", "silent"])
async def test_redis_that_is_away_or_silent_is_a_miss_in_time(is_silent: bool) -> None:
    silence = await asyncio.start_server(lambda *_: asyncio.Event().wait(), "127.0.0.1", 0)
    port = silence.sockets[0].getsockname()[1]
    if not is_silent:
        silence.close()
    cache = AnswerCache(AnswerStore(f"redis://127.0.0.1:{port}/0", BOUNDS))
    place = Place("demo", "aa", 60)
    async with asyncio.timeout(5):
        assert await cache.find(place) is None
        # the store rests now: neither waits for it
        cache.keep(place, ANSWER)
        assert await cache.find(place) is None
        await cache.close()
    silence.close()
