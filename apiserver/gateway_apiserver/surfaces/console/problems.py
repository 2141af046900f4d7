"""Errors of the API in the words of the form that was sent. Pure.

The API names its own fields. A page names the labels of its controls, and marks these.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway_apiserver.surfaces.console.parts import Field
from gateway_core.api.errors import GatewayError

_PLACE = re.compile(r"(?:\[([^\]]*)\] )+")
_OF_PARAMETER = re.compile(r"Invalid (?:value|type) for '[^']*': it (.*)", re.DOTALL)
_MISSING = re.compile(r"Missing required parameter: '[^']*'\.")
_UNKNOWN = re.compile(r"No such (\w+) object: .*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Problems:
    """Problems of a form, in sentences.

    `fields` has the problem of each control by its name, `rest` all that belongs to none.
    """

    fields: Mapping[str, str]
    rest: Sequence[str]

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join([*self.fields.values(), *self.rest])


def explain(error: GatewayError, fields: Sequence[Field] = ()) -> Problems:
    """Return the problems of an error, for a form that has these controls."""
    controls = {name: field for field in fields for name in (field.name, field.param) if name}
    labels = {name: field.label for name, field in controls.items()}
    marked: dict[str, str] = {}
    rest: list[str] = []
    for name, texts in _list_texts(error).items():
        control = controls.get(name) or Field(name, name.replace("_", " ").capitalize())
        text = " ".join(_to_sentence(control, _name_controls(text, labels)) for text in texts)
        if name in controls:
            marked[control.name] = text
        else:
            rest.append(text)
    if not marked and not rest:
        rest.append(_name_controls(error.message, labels))
    return Problems(marked, rest)


def _list_texts(error: GatewayError) -> Mapping[str, Sequence[str]]:
    """Problems by the API's name: sentences, or what follows the name in one."""
    problems: Mapping[str, Sequence[str]] | None = getattr(error, "errors", None)
    if problems:
        return problems
    if error.param is None:
        return {}
    text = error.message
    if _MISSING.fullmatch(text):
        text = "is required"
    elif found := _OF_PARAMETER.fullmatch(text):
        text = found[1]
    elif found := _UNKNOWN.fullmatch(text):
        text = f"There is no such {found[1].lower()}."
    return {re.split(r"[.\[]", error.param, maxsplit=1)[0]: [text]}


def _to_sentence(field: Field, text: str) -> str:
    text = text.removesuffix(".") + "."
    if text[:1].isupper():
        return text
    one, several = field.items
    place = _PLACE.match(text)
    if place is not None:
        text = text[place.end() :]
        first = place[0][1:].partition("]")[0]
        if one and first.isdigit():
            return f"{field.label}: {one} {int(first) + 1} {text}"
    if several:
        # labels of lists are plurals
        text = re.sub(r"^is\b", "are", text.replace(" items", f" {several}"))
    return f"{field.label} {text}"


def _name_controls(text: str, labels: Mapping[str, str]) -> str:
    """Return the text with labels in the place of the API's names of fields.

    A name that is a word of the language too stays, unless it is quoted.
    """
    names = "|".join(map(re.escape, labels))
    if not names:
        return text
    quoted = re.compile(rf"(['\"`])({names})\1|\b()((?:{names}))\b")

    def replace(found: re.Match[str]) -> str:
        name = found[2] or found[4]
        is_word = found[2] is None and "_" not in name
        return found[0] if is_word else f"“{labels[name]}”"

    return quoted.sub(replace, text)
