"""Hashes that a rebuild stages beside what is in use, in commands of bounded size."""

from collections.abc import Iterable, Iterator
from itertools import islice

from gateway_core.adapters.redis.link import Command
from gateway_core.adapters.redis.scripts import Argument

CHUNK = 1000
"""Fields in one HSET, and commands of a rebuild that are sent at once."""
REBUILD_SECONDS = 30
"""How long a rebuild lives; one of storage is renewed. What was staged expires then."""


def stage_hash(key: str, fields: Iterable[tuple[str, Argument]]) -> Iterator[Command]:
    """The commands that make the hash `key` of `fields` and of nothing else."""
    left = iter(fields)
    yield b"DEL", key
    while chunk := list(islice(left, CHUNK)):
        yield b"HSET", key, *(part for field in chunk for part in field)
    yield b"EXPIRE", key, REBUILD_SECONDS
