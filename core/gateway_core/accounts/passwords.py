"""Passwords of users: Argon2id, checked on threads, in equal time whether the user exists.

Passwords are generated, with 125 random bits, so a hash in an object reveals nothing to those who
may read the object.
"""

import asyncio
import secrets

import argon2
from argon2.exceptions import InvalidHashError, VerificationError

MOST_CHARACTERS = 256
AT_ONCE = 2
"""Hashes computed at once; each takes 19 MiB and about 30 ms of a core."""
_GROUPS, _GROUP = 5, 5
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_MOST_MEMORY_KIB = 256 * 1024

# the parameters that OWASP recommends first for servers that hash on request threads
_HASHER = argon2.PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)


def generate_password() -> str:
    """A new password of five groups of five characters."""
    groups = ("".join(secrets.choice(_ALPHABET) for _ in range(_GROUP)) for _ in range(_GROUPS))
    return "-".join(groups)


def hash_password(password: str) -> str:
    """The Argon2id hash for `spec.passwordHash`."""
    return _HASHER.hash(password)


class PasswordChecker:
    """Checks passwords, at most `AT_ONCE` at a time."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._dummy = hash_password(secrets.token_urlsafe())

    async def check(self, stored: str | None, password: str) -> bool:
        """Whether `password` is that of the hash; the same work without a hash, and false."""
        async with self._slots:
            chosen = self._dummy if stored is None else stored
            return await asyncio.to_thread(_verify, chosen, password) and stored is not None


def _verify(stored: str, password: str) -> bool:
    try:
        # the object's hash may ask for any amount of memory
        if argon2.extract_parameters(stored).memory_cost > _MOST_MEMORY_KIB:
            return False
        return _HASHER.verify(stored, password[:MOST_CHARACTERS]) and (
            len(password) <= MOST_CHARACTERS
        )
    except (VerificationError, InvalidHashError):
        return False
