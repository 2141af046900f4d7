"""Base classes and field types of request and response models.

The same models validate bodies and queries (`validation`) and describe them (`openapi`).
"""

import re
from collections.abc import Iterable
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gateway_core.files.files import LONGEST_SECONDS, SHORTEST_SECONDS, SHOWN_PURPOSES
from gateway_core.tasks.schemas import NOT_BLANK as NOT_BLANK
from gateway_core.validation import Creation as Creation
from gateway_core.validation import DropNulls
from gateway_core.validation import Request as Request
from gateway_core.validation import Whole as Whole

T = TypeVar("T")

ANY_ID = "^[A-Za-z0-9_-]+$"


class FieldProblem(ValueError):
    """A problem of a value, with a code of its own in the OpenAI form."""

    def __init__(self, text: str, *, code: str) -> None:
        super().__init__(text)
        self.code = code


class Lenient(DropNulls):
    """A body of the OpenAI form: unknown fields are ignored, as SDKs may add some (§0.2)."""

    model_config = ConfigDict(extra="ignore", strict=True)


class Ignored(Lenient):
    """A body that says nothing: any object, or none."""


IGNORED = Ignored()


class Query(BaseModel):
    """A query string of the Task API: no unknown parameter."""

    model_config = ConfigDict(extra="forbid")


class Shape(BaseModel):
    """A response, or a part of one."""

    # the text of a problem has its place alone: a response may have a secret
    model_config = ConfigDict(populate_by_name=True, hide_input_in_errors=True)


class Page(Shape, Generic[T]):
    """A page of a list; the cursors are ids of items."""

    object: Literal["list"]
    data: list[T]
    first_id: str | int | None
    last_id: str | int | None
    has_more: bool

    @classmethod
    def of(cls, items: list[T], *, has_more: bool, cursor: str = "id") -> Self:
        """Return the page of these items; `cursor` is their field that the cursors name."""
        first, last = (getattr(items[at], cursor) if items else None for at in (0, -1))
        return cls(object="list", data=items, first_id=first, last_id=last, has_more=has_more)


def _read_number(text: Any) -> Any:
    """Return the number that a text is; of no length that takes time to read."""
    is_text = isinstance(text, str) and text.isascii() and len(text) <= 20
    return int(text) if is_text and text.removeprefix("-").isdigit() else text


def _require_text(value: Any) -> Any:
    """Return the value, which has to be a string before it can be a wrong word."""
    if not isinstance(value, str):
        raise FieldProblem("must be a string", code="invalid_type")
    return value


def at_most(entries: int) -> BeforeValidator:
    """Refuse an object with more entries before any of them is validated.

    Each would be a problem to make, and a hostile body has tens of thousands.
    """

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > entries:
            raise ValueError(f"must have at most {entries} items")
        return value

    return BeforeValidator(check)


def drop_repeats(entries: Iterable[str]) -> list[str]:
    """Return the entries, each once."""
    return list(dict.fromkeys(entries))


Number = BeforeValidator(_read_number)
Word = BeforeValidator(_require_text)
Limit = Annotated[int, Field(strict=True, ge=1, le=100), Number]
Text = Annotated[str, Field(min_length=1)]
Id = Annotated[str, Field(pattern=ANY_ID)]
Count = Annotated[int, Field(ge=0)]
ShownPurpose = Literal["user_data", "batch", "batch_output"]
assert ShownPurpose.__args__ == SHOWN_PURPOSES  # type: ignore[attr-defined]


class ExpiresAfter(Lenient):
    """The lifetime of a File, from its creation on (§3.1)."""

    anchor: Annotated[Literal["created_at"], Word]
    seconds: Annotated[int, Field(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS), Whole]


class PageQuery(BaseModel):
    """Which part of a list of the OpenAI form; unknown parameters are ignored."""

    limit: Limit = 20
    order: Literal["asc", "desc"] = "desc"
    after: Annotated[str | None, Field(min_length=1)] = None


HEX_MD5 = re.compile(r"[0-9a-fA-F]{32}")
