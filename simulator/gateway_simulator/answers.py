"""The simulator's honest JSON answers; used by `routes` and `control`."""

from typing import Any

import orjson
from pydantic import ValidationError
from starlette.responses import Response


class Answer(Response):
    """A JSON document."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return the document as bytes."""
        return orjson.dumps(content)


def shape_error(status: int, code: str, message: str) -> dict[str, Any]:
    """Return an error document in the provider's form."""
    return {"error": {"code": code, "message": message}}


def make_error(status: int, code: str, message: str) -> Answer:
    """Return an error in the provider's form."""
    return Answer(shape_error(status, code, message), status)


def make_invalid(code: str, error: ValidationError) -> Answer:
    """Return a 400 that names each field at fault and what is wrong with it."""
    problems = [
        f"{'.'.join(str(part) for part in problem['loc']) or 'body'}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    return make_error(400, code, "; ".join(problems))
