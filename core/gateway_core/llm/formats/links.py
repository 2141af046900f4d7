"""Pictures and documents that a prompt names by their web address, put into its body.

Google takes bytes alone where other providers fetch an address themselves, and chat has no place
for the address of a document.
"""

from base64 import b64encode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gateway_core.llm.formats.calls import Format, LlmCall, as_object, show_path
from gateway_core.llm.formats.requests import list_parts

_HOLDERS = {
    Format.CHAT: ("messages", ("content", "images")),
    Format.RESPONSES: ("input", ("content", "output")),
}
_SCHEMES = ("https://", "http://")


@dataclass(frozen=True, slots=True)
class Link:
    """An address in a part of a prompt; `path` leads to the part, `name` is its field."""

    path: tuple[str | int, ...]
    name: str
    url: str
    is_image: bool

    @property
    def param(self) -> str:
        """The field that an error names."""
        return str(self.path[0])

    @property
    def place(self) -> str:
        """The path in an error's message."""
        return f"{show_path(self.path)}.{self.name}"


def find_links(call: LlmCall, upstream: Format) -> list[Link]:
    """Return the addresses that a provider of this format cannot be told."""
    if call.format is upstream or call.format is Format.GOOGLE:
        return []
    name, keys = _HOLDERS[call.format]
    items = call.body.get(name)
    parts = list_parts(name, items, keys) if isinstance(items, list) else ()
    return [link for path, part in parts for link in _read_part(part, path, upstream)]


def inline_links(body: Mapping[str, Any], contents: Mapping[Link, tuple[str, bytes]]) -> Any:
    """Return the body with the media type and the bytes of each link instead of its address."""
    changed: Any = body
    for link, (media_type, data) in contents.items():
        url = f"data:{media_type};base64,{b64encode(data).decode()}"
        changed = _change(changed, link.path, link, url)
    return changed


def _read_part(
    part: Mapping[str, Any], path: tuple[str | int, ...], upstream: Format
) -> Iterator[Link]:
    kind = part.get("type")
    if kind == "input_file":
        url = part.get("file_url")
        if isinstance(url, str) and url.lower().startswith(_SCHEMES):
            yield Link(path, "file_url", url, is_image=False)
    elif kind in ("image_url", "input_image", "computer_screenshot") and upstream is Format.GOOGLE:
        image = part.get("image_url")
        url = as_object(image).get("url") if isinstance(image, dict) else image
        if isinstance(url, str) and url.lower().startswith(_SCHEMES):
            yield Link(path, "image_url", url, is_image=True)


def _change(value: Any, path: tuple[str | int, ...], link: Link, url: str) -> Any:
    """Return a copy of `value` whose part at `path` has the content at `url`."""
    if not path:
        if not link.is_image:
            part = {key: item for key, item in value.items() if key != "file_url"}
            name = link.url.partition("?")[0].rpartition("/")[2] or "file"
            return {"filename": name, **part, "file_data": url}
        image = value["image_url"]
        return {**value, "image_url": {**image, "url": url} if isinstance(image, dict) else url}
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[path[0]] = _change(copy[path[0]], path[1:], link, url)
    return copy
