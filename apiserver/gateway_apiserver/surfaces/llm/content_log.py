"""Prompts and answers in the request log, for keys where an admin has switched that on."""

import re
from collections.abc import Awaitable, Mapping
from typing import Any

import orjson

from gateway_apiserver.surfaces.llm.cached import AdmittedCall, Tape
from gateway_core.providers.redaction import redact_secrets
from gateway_web.context import RequestContext
from gateway_web.responses import Response

MOST_BYTES = 8 * 1024
"""Of a prompt, and of an answer. As strings within a line of JSON both take at most 33 KiB."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_DATA_URL = re.compile(r"data:[\w/.+-]{0,100}[;,]")


async def log_content(
    context: RequestContext,
    prompt: str,
    admitted: AdmittedCall,
    carrying: Awaitable[Response | None],
) -> Response | None:
    """Return the response of `carrying`, which carries out `admitted`.

    Adds `prompt` and the answer, as far as there is one, to the request's line in the log.
    """
    tape = Tape(MOST_BYTES, cuts=True)
    admitted.tapes += (tape,)
    context.content = {"prompt": prompt}
    response = None
    try:
        response = await carrying
        return response
    finally:
        answer = (tape.content or b"") if response is None else response.body
        context.content["answer"] = _show(answer)


def show_prompt(body: Mapping[str, Any]) -> str:
    """Return a request's body for the log: at most 8 KiB, without inline files and secrets."""
    return _show(orjson.dumps(_Clip(MOST_BYTES).clip(body)))


def _show(content: bytes) -> str:
    """Return a text of one line; a character that is cut in two is left out."""
    text = content[:MOST_BYTES].decode(errors="ignore")
    return redact_secrets(_CONTROL.sub(" ", text))


class _Clip:
    """Copies of JSON values that have at most so many characters and items together."""

    def __init__(self, left: int) -> None:
        self._left = left

    def clip(self, value: Any) -> Any:
        """Return a copy of `value`, as far as there is room."""
        self._left -= 1
        if isinstance(value, str):
            found = _DATA_URL.match(value)
            text = value[: max(0, self._left)] if found is None else f"{found[0]}…"
            self._left -= len(text)
            return text
        if isinstance(value, Mapping):
            pairs = self._take(value.items())
            return {self.clip(name): self.clip(item) for name, item in pairs}
        if isinstance(value, list):
            return [self.clip(item) for item in self._take(value)]
        return value

    def _take(self, items: Any) -> Any:
        for item in items:
            if self._left <= 0:
                return
            yield item
