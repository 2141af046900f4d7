"""Known secrets in a text of a provider, whatever their form.

Providers repeat a credential that they refuse: as it is, encoded, in other letters, with separators
of their own, or masked and cut, with its ends alone.
"""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator
from html import unescape
from urllib.parse import quote, unquote

_LEAST_EXACT = 4
"""Characters of a form that is looked for as it is, such as that of a key in a test."""
_LEAST_WORD = 8
"""Letters and digits of a secret that is looked for in any form, and of a piece of one."""
_MOST_FORM = 1024
"""Longer ones are looked for by their words, such as the lines of a private key."""
_RUN = re.compile(r"[\w+/=~*•….-]{4,}")
_MASK = re.compile(r"[*•]+|…|\.{3,}|[xX]{4,}")
_STARS = re.compile(r"[*•]{3}")
_LIMITS = re.compile(r"[^\w+/-]+")
_PIECES = re.compile(r"[^\s\"',:;{}\[\]]{8,}")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")
_NO_LETTERS = re.compile(r"[\W_]+")


class SecretFinder:
    """Finds credentials in any form, and `values` of headers as they are.

    Most of a header may be common words, which are no secret one by one.
    """

    def __init__(self, secrets: Iterable[str], values: Iterable[str] = ()) -> None:
        words = {word for secret in secrets for word in (secret, *_PIECES.findall(secret))}
        exact = {form for word in (*words, *values) for form in (word, quote(word, safe=""))}
        self._exact = [
            form for form in sorted(exact, key=len, reverse=True) if len(form) >= _LEAST_EXACT
        ]
        self._plain = {plain for word in words if len(plain := _strip(word)) >= _LEAST_WORD}
        forms = {
            _strip(form) for word in words if len(word) <= _MOST_FORM for form in _encode(word)
        }
        self._forms = [form for form in forms if len(form) >= _LEAST_WORD]

    def remove(self, text: str, removed: str) -> str:
        """Return the text with `removed` instead of each secret, and of each piece of one.

        Escapes of JSON, HTML and URLs are decoded where that shows a secret.
        """
        decoded = _decode(text)
        if decoded != text:
            cleaned = self._remove(decoded, removed)
            if cleaned != decoded:
                return cleaned
        return self._remove(text, removed)

    def _remove(self, text: str, removed: str) -> str:
        for form in self._exact:
            text = text.replace(form, removed)
        if not self._plain:
            return text
        text = self._remove_forms(text, removed)
        return _RUN.sub(lambda run: removed if self._shows_secret(run[0]) else run[0], text)

    def _remove_forms(self, text: str, removed: str) -> str:
        """Return the text without the forms, whatever stands between their letters and digits."""
        places = [place for place, character in enumerate(text) if character.isalnum()]
        letters = "".join(text[place].lower()[0] for place in places)
        spans = []
        for form in self._forms:
            start = letters.find(form)
            while start >= 0:
                end = start + len(form)
                spans.append((places[start], places[end - 1] + 1))
                start = letters.find(form, end)
        # overlapping forms are removed once
        kept, done = [], 0
        for begin, end in sorted(spans):
            if begin >= done:
                kept += [text[done:begin], removed]
            done = max(done, end)
        return "".join((*kept, text[done:]))

    def _shows_secret(self, run: str) -> bool:
        """Return whether a run of characters has a masked secret, or a large part of one."""
        if _STARS.search(run):
            return True
        first, *others = _MASK.split(run)
        if others and self._has_end(_strip(first), _strip(others[-1])):
            return True
        return any(self._has_piece(_strip(word)) for word in _LIMITS.split(run))

    def _has_end(self, begun: str, end: str) -> bool:
        """Return whether a secret begins or ends with what a mask leaves."""
        return any(
            (len(begun) > 1 and plain.startswith(begun)) or (len(end) > 1 and plain.endswith(end))
            for plain in self._plain
        )

    def _has_piece(self, piece: str) -> bool:
        """Return whether a word is a large part of a secret, or how it begins or ends."""
        return len(piece) >= _LEAST_WORD and any(
            plain.startswith(piece)
            or plain.endswith(piece)
            or (piece in plain and 3 * len(piece) >= len(plain))
            for plain in self._plain
        )


def _decode(text: str) -> str:
    """Return a text without the escapes of its characters; a space for what is not printable."""
    decoded = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    decoded = unescape(unquote(decoded))
    if decoded == text:
        return text
    return "".join(character if character.isprintable() else " " for character in decoded)


def _strip(text: str) -> str:
    """Return the letters and digits of a text, in lower case."""
    return _NO_LETTERS.sub("", text).lower()


def _encode(secret: str) -> Iterator[str]:
    """Yield the forms of a secret, of which the letters and digits alone are compared."""
    yield secret
    yield secret[::-1]
    yield quote(secret, safe="")
    data = secret.encode("utf-8", "replace")
    yield data.hex()
    # in Base64 it begins at any of three places, as after a user's name
    for offset in range(3):
        encoded = b64encode(bytes(offset) + data).decode()
        yield encoded[-(-offset * 8 // 6) : (offset + len(data)) * 8 // 6]
