"""One call of Platform Management, its body unread; and the answers that it gets."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel
from starlette.types import Receive

from gateway_apiserver.admission.authentication import Principal
from gateway_apiserver.context import Header
from gateway_apiserver.responses import JSON, NO_STORE, Answer
from gateway_apiserver.surfaces.bodies import read_json_body
from gateway_apiserver.surfaces.management.validation import validate
from gateway_core.tasks.operations import MAX_BODY_BYTES
from gateway_core.tasks.validation import parse_body

ROOT = "/api/v1/management"
REPLAYED: Header = (b"idempotent-replayed", b"true")

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Call:
    """A call of somebody who may make it.

    `template` is the path with `*` for the id, `wire_id` the id in it, empty where it has none.
    """

    caller: Principal
    template: str
    wire_id: str
    query: bytes
    headers: Iterable[Header]
    receive: Receive
    request_id: str

    @property
    def account(self) -> str:
        """The name of the account that is governed: the key's own."""
        return self.caller.account.name

    async def read_body(self, model: type[M], *, optional: bool = False) -> M:
        """The body as a `model`; an `optional` one may be left out.

        Raises UnsupportedMediaType, TooLarge, InvalidRequest.
        """
        if optional and not self._has_body():
            return validate(model, {})
        raw = await read_json_body(self.headers, self.receive, MAX_BODY_BYTES)
        return validate(model, parse_body(raw))

    def _has_body(self) -> bool:
        told = dict(self.headers)
        sent = told.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in told
        return sent or b"content-type" in told


def show(body: BaseModel | dict[str, Any], status: int = 200, *, replayed: bool = False) -> Answer:
    """An answer that nobody may keep: it may hold a secret."""
    content = body.model_dump(by_alias=True) if isinstance(body, BaseModel) else body
    headers = (JSON, NO_STORE, REPLAYED) if replayed else (JSON, NO_STORE)
    return Answer(status, orjson.dumps(content), headers)
