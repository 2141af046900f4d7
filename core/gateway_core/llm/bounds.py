"""How many tokens a prompt has at most, and about how many, before a provider counts them."""

from typing import Any

import orjson

TEMPLATE_TOKENS = 1024
"""What a provider may add to any prompt: instructions of its own, an introduction of functions."""
ITEM_TOKENS = 8
"""What may separate messages, which can have fewer bytes than that."""
IMAGE_TOKENS = 49_152
"""Most tokens of an image: a hosted model counts 48,169 for one of 2048 by 768 pixels."""
OPEN_TOKENS = 1_048_576
"""Most tokens of an open prompt, where its model declares no limit."""

_IMAGE_ESTIMATE = 1024
_FILE_ESTIMATE = 4096
_FILE_BYTES_PER_TOKEN = 128
_TEXT_BYTES_PER_TOKEN = 4


class PromptBound:
    """Counts the prompt in a body of `size` bytes, as compact JSON, with so many messages.

    A token of text has at least one byte. An image counts as `IMAGE_TOKENS` instead of its bytes.
    `is_open`: the prompt has parts whose tokens do not follow from their bytes, such as documents,
    sound, and whatever a provider fetches; only the model's own limit bounds it. `has_media`: it
    has such parts or images, which may have rates of their own.
    """

    def __init__(self, size: int, messages: int) -> None:
        self.tokens = TEMPLATE_TOKENS + ITEM_TOKENS * messages + size
        self.is_open = False
        self.has_media = False
        self._text_bytes = size
        self._others = 0

    @property
    def estimate(self) -> int:
        """About how many tokens the prompt has."""
        return -(-max(0, self._text_bytes) // _TEXT_BYTES_PER_TOKEN) + self._others

    def add_image(self, url: Any) -> None:
        """Count an image, inline in base64 or by its URL."""
        inline = _measure_inline(url)
        if inline and url[: len("data:image/")].lower() != "data:image/":
            self.add_file(url)
            return
        self.add_inline_image(inline)

    def add_inline_image(self, size: int) -> None:
        """Count an image that takes `size` bytes of the body."""
        self.has_media = True
        self.tokens += IMAGE_TOKENS - size
        self._text_bytes -= size
        self._others += _IMAGE_ESTIMATE

    def add_file(self, data: Any = None) -> None:
        """Count a document, sound or a video, inline in base64 or fetched by the provider."""
        size = len(data) if isinstance(data, str) else 0
        self.is_open = self.has_media = True
        self._text_bytes -= size
        self._others += _FILE_ESTIMATE + size // _FILE_BYTES_PER_TOKEN

    def add_again(self, value: Any) -> None:
        """Count a part of the body again: providers write tools in longer words of their own."""
        if value:
            self.tokens += len(orjson.dumps(value))


def bound_input(tokens: int, limit: int | None, *, is_open: bool) -> int:
    """Most tokens of a prompt of at most `tokens`, for a model with a `limit` of its own."""
    if limit is None:
        return tokens + OPEN_TOKENS if is_open else tokens
    return limit if is_open else min(tokens, limit)


def _measure_inline(url: Any) -> int:
    is_inline = isinstance(url, str) and url[: len("data:")].lower() == "data:"
    return len(url) if is_inline else 0
