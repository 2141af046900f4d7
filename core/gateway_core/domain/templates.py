"""Paths and header values with places to fill in, as provider resources write them.

A value that is filled in never leaves its place: it can neither add a segment to a path nor leave
one, nor end a header. Used by `domain.providers` and by the upstream adapters.
"""

import re
from collections.abc import Collection, Mapping
from urllib.parse import quote

_PLACE = re.compile(r"\{(\+?)([A-Za-z][A-Za-z0-9]*)\}")
_LITERAL = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
CREDENTIAL = "{credential}"


class TemplateError(ValueError):
    """The template is malformed, or a value does not fit its place."""


class PathTemplate:
    """A path, with a query or without, in which `{name}` and `{+name}` are filled in.

    `{name}` is percent-escaped as a whole. `{+name}` keeps its slashes (as in RFC 6570), for ids
    that are paths. Raises TemplateError for a place not among `allowed` and for a bad text.
    """

    def __init__(self, text: str, allowed: Collection[str]) -> None:
        self._text = text
        self.names: frozenset[str] = frozenset(found[2] for found in _PLACE.finditer(text))
        for name in sorted(self.names - set(allowed)):
            raise TemplateError(f"unknown placeholder {{{name}}}; there is {_listed(allowed)}")
        if not _LITERAL.fullmatch(_PLACE.sub("", text)):
            raise TemplateError("may hold only characters of a URL path and query, escaped")
        _refuse_steps(_PLACE.sub("x", text))

    def fill(self, values: Mapping[str, str]) -> str:
        """The path, escaped. Raises TemplateError for an empty value and for one such as `..`."""
        try:
            path = _PLACE.sub(lambda found: _escape(values[found[2]], bool(found[1])), self._text)
        except UnicodeEncodeError as error:
            raise TemplateError("a value is not text") from error
        _refuse_steps(path)
        return path


def fill_header(template: str, credential: str | None) -> str:
    """A header's value. Raises TemplateError where it wants a credential and there is none, and
    where the credential may not stand in a header."""
    if CREDENTIAL not in template:
        return template
    if not credential:
        raise TemplateError(f"{CREDENTIAL} is used, but there is no credential")
    if _CONTROL.search(credential):
        raise TemplateError("the credential holds a line break or another control character")
    return template.replace(CREDENTIAL, credential)


def find_header_problem(value: str, *, with_credential: bool) -> str | None:
    """What to mend in a header's value, None if nothing."""
    if _CONTROL.search(value):
        return "may not hold a line break or another control character"
    for found in _PLACE.finditer(value):
        if found[0] != CREDENTIAL:
            return f"unknown placeholder {found[0]}; there is {CREDENTIAL}"
        if not with_credential:
            return f"{CREDENTIAL} is used, but there is no credentialsSecretRef"
    return None


def _escape(value: str, keep_slashes: bool) -> str:
    if not value:
        raise TemplateError("a value is empty")
    if keep_slashes and not all(value.split("/")):
        raise TemplateError("a value has an empty segment")
    return quote(value, safe="/" if keep_slashes else "")


def _refuse_steps(path: str) -> None:
    """A segment `.` or `..` would lead out of the place the template names."""
    if {".", ".."} & set(path.partition("?")[0].split("/")):
        raise TemplateError("may not hold a segment . or ..")


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names)) or "none"
