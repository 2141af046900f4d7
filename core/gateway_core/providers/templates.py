"""JMESPath expressions and text templates of provider resources, compiled once."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import jmespath
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions, signature

_INNER_SCOPE_AFTER_FIRST = frozenset(
    {
        "subexpression",
        "index_expression",
        "pipe",
        "projection",
        "value_projection",
        "filter_projection",
        "flatten",
    }
)
"""Nodes whose first child reads the document and whose other children read what it yields."""


class ExpressionError(ValueError):
    """The expression is not JMESPath, or does not fit its document."""


class _Arithmetic(Functions):
    """JMESPath's functions, and two to convert units (seconds and milliseconds)."""

    @signature({"types": ["number"]}, {"types": ["number"]})
    def _func_multiply(self, first: float, second: float) -> float:
        return _make_whole(first * second)

    @signature({"types": ["number"]}, {"types": ["number"]})
    def _func_divide(self, first: float, second: float) -> float:
        return _make_whole(first / second)


_OPTIONS = jmespath.Options(custom_functions=_Arithmetic())


class Expression:
    """A compiled JMESPath expression. Raises ExpressionError for an invalid text."""

    def __init__(self, text: str) -> None:
        try:
            self._compiled = jmespath.compile(text)
        except RecursionError:
            raise ExpressionError("nests too deeply") from None
        except (JMESPathError, ValueError) as error:
            raise ExpressionError(_one_line(error)) from None
        tree: Mapping[str, Any] = self._compiled.parsed
        for problem in _function_problems(tree):
            raise ExpressionError(problem)
        self.roots: frozenset[str] = frozenset(_roots(tree))
        """Members of the document that it starts from."""

    def evaluate(self, document: Any) -> Any:
        """Return the result for a JSON document; None where nothing matches.

        Raises ExpressionError where a function gets a value of the wrong type.
        """
        try:
            return self._compiled.search(document, options=_OPTIONS)
        except Exception as error:  # the document is foreign: nothing it holds may end a caller
            raise ExpressionError(_one_line(error)) from error


def prune_nulls(value: Any) -> Any:
    """Return the same JSON without null members; items of lists stay."""
    if isinstance(value, Mapping):
        return {name: prune_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [prune_nulls(item) for item in value]
    return value


def _function_problems(node: Mapping[str, Any]) -> Iterator[str]:
    """Unknown functions, and wrong numbers of arguments.

    The parser accepts any name and number, so an error would show only when a task runs.
    """
    if node["type"] == "function_expression":
        name, given = node["value"], len(node["children"])
        known = _Arithmetic.FUNCTION_TABLE.get(name)
        if known is None:
            yield f"unknown function {name}()"
        else:
            wanted = len(known["signature"])
            variadic = bool(wanted) and bool(known["signature"][-1].get("variadic"))
            if given < wanted or (given > wanted and not variadic):
                yield f"{name}() takes {wanted} argument(s), not {given}"
    for child in _children(node):
        yield from _function_problems(child)


def _roots(node: Mapping[str, Any]) -> Iterator[str]:
    """Yield names of the document's members that a syntax tree reads."""
    kind = node["type"]
    if kind == "field":
        yield node["value"]
    elif kind != "expref":
        children = _children(node)
        for child in children[:1] if kind in _INNER_SCOPE_AFTER_FIRST else children:
            yield from _roots(child)


def _children(node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [child for child in node["children"] if isinstance(child, Mapping)]


def _make_whole(number: float) -> float:
    """Return a whole number as int: many APIs reject 5000.0. Raises OverflowError."""
    return int(number) if number == int(number) else number


def _one_line(error: Exception) -> str:
    """Return the error's first line: JMESPath draws the expression below it."""
    text = " ".join(str(error).partition("\n")[0].split()).rstrip(":")
    return text.removesuffix(", for expression")[:300] or "is not JMESPath"


_PLACE = re.compile(r"\{(\+?)([A-Za-z][A-Za-z0-9]*)\}")
_LITERAL = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
CREDENTIAL = "{credential}"


class TemplateError(ValueError):
    """The template is malformed, or a value is invalid in its place."""


class PathTemplate:
    """Path, optionally with a query, with the variables `{name}` and `{+name}`.

    `{name}` is percent-escaped as a whole. `{+name}` keeps its slashes (as in RFC 6570), for ids
    that are paths. Raises TemplateError for a variable not in `allowed` and a malformed text.
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
        """Return the escaped path. Raises TemplateError for an empty value or one such as `..`."""
        try:
            path = _PLACE.sub(lambda found: _escape(values[found[2]], bool(found[1])), self._text)
        except UnicodeEncodeError as error:
            raise TemplateError("a value is not text") from error
        _refuse_steps(path)
        return path


def fill_header(template: str, credential: str | None) -> str:
    """Return a header's value. Raises TemplateError for a missing or invalid credential."""
    if CREDENTIAL not in template:
        return template
    if not credential:
        raise TemplateError(f"{CREDENTIAL} is used, but there is no credential")
    if _CONTROL.search(credential):
        raise TemplateError("the credential holds a line break or another control character")
    return template.replace(CREDENTIAL, credential)


def find_header_problem(value: str, *, with_credential: bool) -> str | None:
    """Return what to correct in a header's value; None where it is valid."""
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
    """Reject segments `.` and `..`, which would leave the declared path."""
    if {".", ".."} & set(path.partition("?")[0].split("/")):
        raise TemplateError("may not hold a segment . or ..")


def _listed(names: Collection[str]) -> str:
    return ", ".join(f"{{{name}}}" for name in sorted(names)) or "none"
