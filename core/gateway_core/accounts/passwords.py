"""Passwords of users: Argon2id, checked on threads, in equal time whether the user exists.

Those who may read an object can try guesses at its hash. A generated password has 125 random bits,
which cannot be guessed; a chosen one is keyed before it is hashed, with a key that no object has.
"""

import asyncio
import hashlib
import hmac
import secrets
from functools import cache

import argon2
from argon2.exceptions import InvalidHashError, VerificationError

from gateway_core.accounts.password_rules import MAX_CHARACTERS, normalize_password
from gateway_core.api.errors import TooManyCalls
from gateway_core.fair_semaphore import FairSemaphore

AT_ONCE = 2
"""Hashes computed at once; each takes 19 MiB and about 30 ms of a core."""
WAIT_SECONDS = 5.0
MOST_WAITING = 4
"""Attempts of one address that wait for a hash, and for how long."""
_GROUPS, _GROUP = 5, 5
_ALPHABET = "abcdefghijkmnpqrstuvwxyz23456789"
_MOST_MEMORY_KIB = 256 * 1024
_PARAMETERS = "m=19456,t=2,p=1"
_KEYED = ",keyid=aWRrZXk"
"""In the parameters of a hash, the form of PHC strings: keyed with a key of the id-key."""

# the parameters that OWASP recommends first for servers that hash on request threads
_HASHER = argon2.PasswordHasher(time_cost=2, memory_cost=19456, parallelism=1)


def generate_password() -> str:
    """Return a new password of five groups of five characters."""
    groups = ("".join(secrets.choice(_ALPHABET) for _ in range(_GROUP)) for _ in range(_GROUPS))
    return "-".join(groups)


def hash_password(password: str) -> str:
    """Return the Argon2id hash for `spec.passwordHash`."""
    return _HASHER.hash(password)


class PasswordChecker:
    """Hashes on threads, at most `AT_ONCE` at a time, which addresses share fairly.

    Every method raises TooManyCalls where an address has too many attempts waiting, or one has
    waited too long.
    """

    def __init__(self, id_key: bytes, *, seconds: float = WAIT_SECONDS) -> None:
        """`id_key` is the key of `IdMint`, from which a key of its own is derived."""
        self._key = hmac.digest(id_key, b"chosen passwords", hashlib.sha256)
        self._slots = FairSemaphore(
            AT_ONCE, seconds=seconds, most_waiting=MOST_WAITING, error=_refuse
        )
        self._dummy = _hash_random()

    async def check(self, stored: str | None, password: str, address: str) -> bool:
        """Return whether `password` is that of the hash.

        Without a hash the same work is done, and the answer is false.
        """
        async with self._slots.take(address):
            chosen = self._dummy if stored is None else stored
            if _KEYED in chosen:
                chosen, password = chosen.replace(_KEYED, "", 1), self._apply_key(password)
            return await asyncio.to_thread(_verify, chosen, password) and stored is not None

    async def hash_chosen(self, password: str, address: str) -> str:
        """Return the hash of a password that a person chose, for `spec.passwordHash`."""
        async with self._slots.take(address):
            hashed = await asyncio.to_thread(hash_password, self._apply_key(password))
        return hashed.replace(_PARAMETERS, _PARAMETERS + _KEYED, 1)

    def _apply_key(self, password: str) -> str:
        text = normalize_password(password).encode("utf-8", "surrogatepass")
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()


@cache
def _hash_random() -> str:
    """Return the hash of a password that is unknown; one for each process, as it takes 40 ms."""
    return hash_password(secrets.token_urlsafe())


def _refuse() -> TooManyCalls:
    return TooManyCalls("Too many attempts; try again later.", retry_after=5)


def _verify(stored: str, password: str) -> bool:
    try:
        # the object's hash may ask for any amount of memory
        if argon2.extract_parameters(stored).memory_cost > _MOST_MEMORY_KIB:
            return False
        return _HASHER.verify(stored, password[:MAX_CHARACTERS]) and (
            len(password) <= MAX_CHARACTERS
        )
    except (VerificationError, InvalidHashError):
        return False
