"""The key ring that keys are made with, found among a namespace's Secrets."""

import base64
from typing import Any

from gateway_cli.admin.tokens import find_key_ring


class Secrets:
    """The Secrets of a namespace."""

    namespace = "models"

    def __init__(self, **found: dict[str, bytes]) -> None:
        self._found = found

    async def call(self, *_: object, **_query: object) -> dict[str, Any]:
        items = [
            {
                "metadata": {"name": name},
                "data": {
                    entry: base64.b64encode(base64.urlsafe_b64encode(value)).decode()
                    for entry, value in content.items()
                },
            }
            for name, content in self._found.items()
        ]
        return {"items": items}


async def test_secret_whose_first_pepper_was_retired_is_found() -> None:
    present: Any = Secrets(
        keys={"id-key": b"i" * 32, "pepper-2": b"2" * 32, "pepper-3": b"3" * 32},
        media={"media-key": b"m" * 32},
    )
    ring = await find_key_ring(present, None, None)
    assert (ring.id_key, ring.pepper, ring.version) == (b"i" * 32, b"3" * 32, 3)
