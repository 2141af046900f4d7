"""Refusals of what would be state at a provider, whose credentials all accounts share (§7.5)."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gateway_core.api.errors import InvalidRequest
from gateway_core.llm.formats.calls import as_object, show_path, unsupported
from gateway_core.llm.unpriced import list_tools

_UPSTREAM_HOSTS = ("googleapis.com", "cloud.google.com")


def check_messages(messages: list[Any]) -> None:
    """Refuse messages of chat that name an earlier sound of the provider."""
    for place, message in enumerate(messages):
        audio = message.get("audio") if isinstance(message, dict) else None
        if audio and as_object(audio).get("id") is not None:
            raise unsupported("messages", f"messages[{place}].audio.id")


def check_items(items: list[Any]) -> None:
    """Refuse items of Responses that name state of the provider: earlier items and its files."""
    for place, item in enumerate(items):
        if not isinstance(item, dict):
            continue
        kind = item.get("type")
        # an item with an id alone is a reference, too: its type is optional
        if kind == "item_reference" or (kind is None and "id" in item and "role" not in item):
            raise unsupported(
                "input",
                f"input[{place}]",
                "of type item_reference is not supported: nothing is stored here. Send the item"
                " itself; SDKs do so with `store: false`",
            )
        if as_object(item.get("output")).get("file_id") is not None:
            raise unsupported("input", f"input[{place}].output.file_id")


def check_tools(body: Mapping[str, Any]) -> None:
    """Refuse tools that name vector stores, containers or files of the provider (§7.5)."""
    for path, tool, _ in list_tools(body):
        field = path.partition("[")[0]
        if tool.get("type") == "file_search" or tool.get("vector_store_ids") is not None:
            raise unsupported(field, f"{path}.vector_store_ids")
        if as_object(tool.get("input_image_mask")).get("file_id") is not None:
            raise unsupported(field, f"{path}.input_image_mask.file_id")
        for key in ("container", "environment"):
            container = tool.get(key)
            if isinstance(container, str):
                raise unsupported(field, f"{path}.{key}")
            for name in ("container_id", "file_ids"):
                if as_object(container).get(name):
                    raise unsupported(field, f"{path}.{key}.{name}")


def check_file_uri(uri: Any, path: tuple[str | int, ...]) -> None:
    """Refuse a file in the storage of the provider; others have an HTTP address elsewhere."""
    try:
        address = urlsplit(uri if isinstance(uri, str) else "")
        host = (address.hostname or "").rstrip(".")
    except ValueError:
        raise _upstream_file(path) from None
    is_unclear = not host.isascii() or "\\" in address.netloc
    if (
        is_unclear
        or address.scheme not in ("http", "https")
        or any(host == known or host.endswith(f".{known}") for known in _UPSTREAM_HOSTS)
    ):
        raise _upstream_file(path)


def _upstream_file(path: tuple[str | int, ...]) -> InvalidRequest:
    return unsupported(
        str(path[0]),
        f"{show_path(path)}.fileData.fileUri",
        "must be an HTTP address outside the provider's storage",
    )
