"""Bodies, queries and responses of Batches (contract §5.1, annex B.2)."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from gateway_apiserver.surfaces.models import (
    Count,
    ExpiresAfter,
    Lenient,
    Shape,
    Text,
    Word,
    at_most,
)
from gateway_core.api.batch import MOST_METADATA_BYTES

ENDPOINT = "/v1/moderations"
WINDOW = "24h"


def _check_size(pairs: dict[str, str]) -> dict[str, str]:
    size = sum(len((key + value).encode(errors="replace")) for key, value in pairs.items())
    if size > MOST_METADATA_BYTES:
        raise ValueError(f"must have at most {MOST_METADATA_BYTES} bytes of UTF-8 in all")
    return pairs


Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
    at_most(16),
    AfterValidator(_check_size),
]


class BatchCreate(Lenient):
    """The body of a create."""

    input_file_id: Text
    endpoint: Annotated[Literal["/v1/moderations"], Word]
    completion_window: Annotated[Literal["24h"], Word]
    output_expires_after: ExpiresAfter | None = None
    metadata: Metadata | None = None

    @property
    def life(self) -> int | None:
        """Seconds that Files live which come of it."""
        return None if self.output_expires_after is None else self.output_expires_after.seconds

    @property
    def values(self) -> dict[str, Any]:
        """All that distinguishes it from another, with defaults."""
        return {
            "input_file_id": self.input_file_id,
            "endpoint": ENDPOINT,
            "completion_window": WINDOW,
            "metadata": self.metadata,
            "output_expires_after": self.life,
        }


BatchStatus = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]


class BatchError(Shape):
    """A problem of a line."""

    code: str
    message: str
    param: str | None
    line: Annotated[int, Field(ge=1)] | None


class BatchErrors(Shape):
    """Why validation has failed."""

    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(Shape):
    """Lines by their state."""

    total: Count
    completed: Count
    failed: Count


class Batch(Shape):
    """A Batch. Times are Unix seconds."""

    id: str
    object: Literal["batch"]
    endpoint: Literal["/v1/moderations"]
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: BatchStatus
    output_file_id: str | None
    error_file_id: str | None
    created_at: Count
    in_progress_at: int | None
    expires_at: Count
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: None
    metadata: Metadata | None
