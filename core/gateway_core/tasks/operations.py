"""Operations of the Task API as data: fields, rules and defaults.

This is the specification's table, without anything about a single model; `validation`, the OpenAPI
document and the catalog read it. Operations of other surfaces have no fields here.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from gateway_core.api.batch import ACTION
from gateway_core.billing.prices import Unit

Modality = Literal["image", "video", "audio", "utility"]
FieldType = Literal["text", "url", "urls", "choice", "boolean", "integer"]

MAX_URL = 2048
MAX_BODY_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a request body. Lengths are Unicode code points, bounds inclusive."""

    name: str
    type: FieldType
    description: str
    required: bool = False
    default: Any = None
    minimum: int = 0
    maximum: int = 0
    values: tuple[str, ...] = ()
    goes_upstream: bool = True


@dataclass(frozen=True, slots=True)
class Operation:
    """An action. `units` are those that its calls can be priced by.

    An operation that `makes_tasks` is served at `/api/v1/{service}/{action}`.
    """

    action: str
    summary: str
    units: tuple[Unit, ...]
    fields: tuple[Field, ...] = ()
    makes_tasks: bool = True
    modality: Modality = "utility"
    """What it makes; `utility` for everything but media."""

    def field(self, name: str) -> Field | None:
        """Return the field called `name`, if the operation has it."""
        return next((field for field in self.fields if field.name == name), None)


REFERENCE_TO_VIDEO = Operation(
    action="reference_to_video",
    summary="Make a video from reference images and audio clips",
    units=(Unit.CALL, Unit.SECOND),
    modality="video",
    fields=(
        Field(
            name="model",
            type="text",
            required=True,
            minimum=1,
            maximum=253,
            goes_upstream=False,
            description="A model identifier of the catalog.",
        ),
        Field(
            name="prompt",
            type="text",
            required=True,
            minimum=1,
            maximum=20000,
            description="What the video shows.",
        ),
        Field(
            name="reference_image_urls",
            type="urls",
            required=True,
            minimum=1,
            maximum=15,
            description="Ordered addresses of JPG, PNG or WEBP images; the provider judges them.",
        ),
        Field(
            name="reference_audio_urls",
            type="urls",
            maximum=3,
            description="Addresses of MP3 files of 3 to 12 seconds; the provider judges them.",
        ),
        Field(
            name="aspect_ratio",
            type="choice",
            default="16:9",
            values=("16:9", "9:16", "1:1", "4:3", "3:4"),
            description="Shape of the picture.",
        ),
        Field(
            name="audio",
            type="boolean",
            default=True,
            description="Whether synchronized audio is generated.",
        ),
        Field(
            name="duration_seconds",
            type="integer",
            default=5,
            minimum=3,
            maximum=16,
            description="Length of the video in seconds.",
        ),
        Field(
            name="output_resolution",
            type="choice",
            default="720p",
            values=("540p", "720p", "1080p", "2k", "4k"),
            description="Size of the picture.",
        ),
        Field(
            name="callback_url",
            type="url",
            goes_upstream=False,
            description="Address that receives the terminal result.",
        ),
    ),
)

MODERATIONS = Operation(
    action=ACTION, summary="Judge texts and images", units=(Unit.CALL,), makes_tasks=False
)

CHAT = Operation(
    action="chat",
    summary="Generate text with a language model",
    units=(Unit.CALL, Unit.TOKEN),
    makes_tasks=False,
)

OPERATIONS = MappingProxyType({op.action: op for op in (REFERENCE_TO_VIDEO, MODERATIONS, CHAT)})
