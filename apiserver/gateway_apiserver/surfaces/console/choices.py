"""Keys of the account by name, and controls that offer them. Pure."""

from collections.abc import Iterable
from dataclasses import replace

from gateway_apiserver.surfaces.console.parts import Field
from gateway_core.accounts.records import AccountIndex, KeyRecord
from gateway_core.api.ids import name_to_id

SESSION_PREFIX = "session-"
"""Begin of the name under which a signed-in user's calls are charged, before the user's name."""
MOST_OPTIONS = 200
"""Keys in one choice. With more the control takes an id: no one reads a longer list."""


def name_key(keys: AccountIndex[KeyRecord], account: str, name: str) -> str:
    """Return the name of the key that work was started with; the id of one that is deleted."""
    if name.startswith(SESSION_PREFIX):
        return "Playground"
    key = keys.get(account, name)
    return name_to_id(name) if key is None else key.display_name


def choose_key(field: Field, keys: Iterable[KeyRecord], *others: tuple[str, str]) -> Field:
    """Return the control of a key's id with standard keys as choices, by name.

    `others` are choices before the keys. The value that the control has stays a choice.
    """
    shown = sorted(
        (key.display_name, name_to_id(key.name)) for key in keys if key.key_class == "Standard"
    )
    if len(shown) > MOST_OPTIONS:
        return replace(field, label=f"{field.label} id")
    options = [*others, *((wire_id, f"{name} ({wire_id})") for name, wire_id in shown)]
    if field.value and field.value not in dict(options):
        options.append((field.value, field.value))
    return replace(field, type="select", options=options)
