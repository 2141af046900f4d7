"""`Sealer` by AES-SIV (RFC 5297): encrypted and authenticated, and the same text each time."""

import base64
import binascii
import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

MOST_CHARACTERS = 4096


class SivSealer:
    """Seals under a key made of `secret` (16 bytes at least), the same in every process."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < 16:
            raise ValueError("the secret must have at least 16 bytes")
        self._cipher = AESSIV(hmac.digest(secret, b"sealed addresses", hashlib.sha512))

    def seal(self, purpose: str, content: bytes) -> str:
        """See the port."""
        sealed = self._cipher.encrypt(content, [purpose.encode()])
        return base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def unseal(self, purpose: str, text: str) -> bytes | None:
        """See the port."""
        if len(text) > MOST_CHARACTERS or not text.isascii():
            return None
        try:
            sealed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            content = self._cipher.decrypt(sealed, [purpose.encode()])
        except (InvalidTag, binascii.Error, ValueError):
            return None
        # of the ways to write the last bits, one is ours
        return content if self.seal(purpose, content) == text else None
