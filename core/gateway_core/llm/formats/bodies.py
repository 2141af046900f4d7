"""Bodies for a provider that speaks the client's format, and files inlined into prompts (§7.5)."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from gateway_core.llm.bounds import PromptBound
from gateway_core.llm.formats.calls import Format, LlmCall


@dataclass(frozen=True, slots=True)
class FileContent:
    """A file of the gateway, as a prompt includes it."""

    filename: str
    media_type: str
    data: bytes


def inline_files(call: LlmCall, contents: Mapping[str, FileContent]) -> LlmCall:
    """Return the call with the content of each referenced file; `contents` has them by id."""
    body: Any = call.body
    bound = PromptBound(0, 0)
    for reference in call.files:
        content = contents[reference.file_id]
        url = f"data:{content.media_type};base64,{b64encode(content.data).decode()}"
        body = _change(body, reference.path, content.filename, url)
        # it does not count its bytes, which the call's size lacks
        if content.media_type.startswith("image/"):
            bound.add_inline_image(0)
        else:
            bound.add_file()
    return replace(
        call,
        body=body,
        input_bound=call.input_bound + bound.tokens,
        input_estimate=call.input_estimate + bound.estimate,
        has_media=call.has_media or bound.has_media,
        has_open_parts=call.has_open_parts or bound.is_open,
        files=(),
    )


def to_upstream(
    body: Mapping[str, Any], upstream: Format, upstream_model: str, *, stream: bool
) -> dict[str, Any]:
    """Return a body for a provider of its format that calls the model `upstream_model`.

    OpenAI's bodies never store anything at the provider, and a chat stream always has its usage.
    Google's has no model: `google_path` has it.
    """
    result = dict(body)
    if upstream is Format.GOOGLE:
        result.pop("model", None)
        return result
    result["model"] = upstream_model
    if upstream is Format.CHAT and body.get("store") is True:
        # they describe what is stored, and OpenAI refuses them without that
        result.pop("metadata", None)
    result["store"] = False
    if stream:
        result["stream"] = True
        if upstream is Format.CHAT:
            options = result.get("stream_options") or {}
            result["stream_options"] = {**options, "include_usage": True}
    return result


def google_path(upstream_model: str, *, stream: bool) -> str:
    """Return path and query of a call below the version segment of Google's API."""
    action = "streamGenerateContent?alt=sse" if stream else "generateContent"
    return f"/models/{quote(upstream_model.removeprefix('models/'))}:{action}"


def _change(value: Any, path: tuple[str | int, ...], filename: str, url: str) -> Any:
    """Return a copy of `value` whose part at `path` has the content at `url`, not a file id."""
    if not path:
        part = {key: item for key, item in value.items() if key not in ("file_id", "file_url")}
        if part.get("type") in ("input_image", "computer_screenshot"):
            return {**part, "image_url": url}
        return {**part, "filename": filename, "file_data": url}
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[path[0]] = _change(copy[path[0]], path[1:], filename, url)
    return copy
