"""The body of a Batch's create, field by field (contract §5.1). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway_apiserver.surfaces.bodies import (
    invalid,
    take_life,
    take_text,
    take_word,
    wrong_type,
)
from gateway_core.api.batch import MOST_METADATA_BYTES

ENDPOINT = "/v1/moderations"
WINDOW = "24h"
MOST_PAIRS = 16
MOST_KEY = 64
MOST_VALUE = 512


@dataclass(frozen=True, slots=True)
class BatchDraft:
    """What a body asks for. `life` is in seconds, for the Files that come of it."""

    input_file_id: str
    metadata: Mapping[str, str] | None
    life: int | None

    @property
    def values(self) -> dict[str, Any]:
        """All that tells it from another, with defaults."""
        return {
            "input_file_id": self.input_file_id,
            "endpoint": ENDPOINT,
            "completion_window": WINDOW,
            "metadata": self.metadata,
            "output_expires_after": self.life,
        }


def read_draft(body: Mapping[str, Any]) -> BatchDraft:
    """The draft of a body. InvalidRequest."""
    input_file_id = take_text(body, "input_file_id")
    take_word(body, "endpoint", (ENDPOINT,))
    take_word(body, "completion_window", (WINDOW,))
    life = take_life(body, "output_expires_after")
    return BatchDraft(input_file_id, _take_metadata(body.get("metadata")), life)


def _take_metadata(given: Any) -> dict[str, str] | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise wrong_type("metadata", "an object")
    if len(given) > MOST_PAIRS:
        raise invalid("metadata", f"must have at most {MOST_PAIRS} pairs")
    for key, value in given.items():
        if not isinstance(value, str):
            raise wrong_type("metadata", "an object of strings")
        if len(key) > MOST_KEY or len(value) > MOST_VALUE:
            raise invalid(
                "metadata",
                f"must have keys of at most {MOST_KEY} and values of at most {MOST_VALUE}"
                " characters",
            )
    if sum(len((key + value).encode(errors="replace")) for key, value in given.items()) > (
        MOST_METADATA_BYTES
    ):
        raise invalid("metadata", f"must have at most {MOST_METADATA_BYTES} bytes of UTF-8 in all")
    return dict(given)
