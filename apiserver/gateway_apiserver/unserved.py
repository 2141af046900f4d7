"""Paths and methods of other services that clients try here, and what serves their purpose. Pure.

Clients of OpenAI, Anthropic and Google know operations that the gateway does not have.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from gateway_apiserver.routers.tasks import LIST_PATH
from gateway_apiserver.surfaces.operations import DOCUMENT_PATH
from gateway_apiserver.surfaces.tasks import CREATE_PATH
from gateway_core.providers.suggestions import SCHEDULES_PATH

_CHAT = (
    "Language models are called with POST /v1/chat/completions, POST /v1/responses or POST"
    " /v1beta/models/{model}:generateContent."
)
_MEDIA = f"Tasks make media: POST {CREATE_PATH}. GET {SCHEDULES_PATH} lists the models."
_ACCOUNT = (
    "GET /api/v1/me/balance shows the balance, and GET /api/v1/management/usage the usage to a"
    " management key."
)
_INLINE = (
    "Requests of generateContent have their media inline (inlineData); POST /v1/files stores files."
)
_INSTEAD: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "assistants",
            "complete",
            "completions",
            "conversations",
            "edits",
            "engines",
            "interactions",
            "messages",
            "realtime",
            "threads",
        ),
        _CHAT,
    ),
    **dict.fromkeys(("images", "videos"), _MEDIA),
    **dict.fromkeys(("credits", "dashboard", "organization", "organizations", "usage"), _ACCOUNT),
    **dict.fromkeys(("upload", "cachedContents"), _INLINE),
}
"""Sentences by the first segment after the version."""
_WITHOUT = frozenset(
    {
        "audio",
        "containers",
        "embeddings",
        "evals",
        "fine_tuning",
        "fine-tuning",
        "rerank",
        "skills",
        "tunedModels",
        "vector_stores",
    }
)
"""First segments of operations that nothing here replaces."""
_NOT_KEPT = re.compile(
    r"/v1/(responses|chat/completions)(/(?!compact$|input_tokens$)[^/]+(/\w+)?)?", re.A
)
"""Paths of answers that other services keep."""
_UPLOAD = re.compile(r"/v1/uploads(/[^/]+)?", re.A)


def describe_unserved(
    method: str, path: str, prefix: Sequence[str], rest: Sequence[str], served: Iterable[str]
) -> str | None:
    """Return a hint for a path of another service; None for an unknown path.

    `prefix` and `rest` are the segments of its base URL and those after it; `served` are the paths
    below `/v1`.
    """
    if method != "POST" or path.endswith("/cancel"):
        if match := _NOT_KEPT.fullmatch(path):
            noun, field = "responses", "input"
            if match[1] != "responses":
                noun, field = "chat completions", "messages"
            return (
                f"{noun} are not kept, so there are none to read, list, cancel or delete: send the"
                f" whole conversation as {field}."
            )
        if _UPLOAD.fullmatch(path):
            return (
                "uploads cannot be read or listed: POST /v1/uploads/{upload_id}/complete and"
                " POST /v1/uploads/{upload_id}/cancel return the upload."
            )
    first = next(iter(rest), "")
    is_versioned = prefix in (("v1",), ("v1beta",))
    if first not in _INSTEAD and first not in _WITHOUT and not is_versioned:
        return None
    text = f"this gateway does not serve {path}. "
    if first in _INSTEAD:
        return text + _INSTEAD[first]
    if prefix == ("v1beta",):
        return text + _CHAT
    return f"{text}It serves {', '.join(served)}. GET {DOCUMENT_PATH} describes them."


_FIXED = "files cannot be changed, POST /v1/files creates another"
_OTHER_METHODS = {
    (LIST_PATH, "POST"): f"POST {CREATE_PATH} creates a task",
    (CREATE_PATH, "GET"): f"GET {LIST_PATH} lists the tasks",
    ("/v1/responses", "GET"): "responses are not kept",
    **{("/v1/files/{file_id}", method): _FIXED for method in ("PATCH", "POST", "PUT")},
}
"""Calls to make instead of a method, by the template of the path."""


def suggest_method(
    method: str, path: str, templates: Iterable[str], may_cancel: Callable[[str], bool]
) -> str:
    """Return what does the work of a method that a path does not have, or nothing."""
    if method == "DELETE" and may_cancel(f"{path}/cancel"):
        return f"POST {path}/cancel cancels it"
    texts = (_OTHER_METHODS.get((template, method)) for template in templates)
    return next(filter(None, texts), "")
