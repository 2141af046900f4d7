"""Names that a client may have meant, for errors about what is not served. Pure."""

from collections.abc import Callable, Container, Iterable, Sequence

from gateway_core.api.batch import ACTION
from gateway_core.api.errors import NotFound
from gateway_core.providers.catalog import Catalog
from gateway_core.tasks.operations import CHAT, OPERATIONS

MOST_NAMES = 3
MOST_COMPARED = 1000
"""Names that are compared for an error, each in some microseconds."""
MOST_CHARACTERS = 200
"""A longer name is no misspelling."""
LEAST_LIKENESS = 0.45
"""Of names with a misspelt letter, a separator or a prefix too many."""

MODELS_PATH = "/v1/models"
SCHEDULES_PATH = "/api/v1/price_schedules"
"""Lists of models for clients: those of LLM calls and moderations, and all."""
_ELSEWHERE = " It is a model of"
_PATHS = {CHAT.action: "/v1/chat/completions", ACTION: "/v1/moderations"}

Allows = Callable[[str, str], bool]
"""Tells whether the caller may use a model, by its service and id."""


def allow_all(_service: str, _model_id: str) -> bool:
    """Return True: nothing is known of the caller."""
    return True


def find_nearest(wanted: str, names: Iterable[str]) -> list[str]:
    """Return the names that are most like the wanted one, the nearest first, at most three."""
    if not wanted or len(wanted) > MOST_CHARACTERS:
        return []
    pairs = _list_pairs(wanted)
    found = []
    for name, _ in zip(names, range(MOST_COMPARED), strict=False):
        others = _list_pairs(name[:MOST_CHARACTERS])
        likeness = 2 * len(pairs & others) / (len(pairs) + len(others))
        if likeness >= LEAST_LIKENESS:
            found.append((-likeness, name))
    return [name for _, name in sorted(found)[:MOST_NAMES]]


def _list_pairs(text: str) -> set[str]:
    """Return the pairs of neighbouring characters, which a slip changes few of."""
    folded = f" {text.casefold()} "
    return {folded[place : place + 2] for place in range(len(folded) - 1)}


def suggest(names: Sequence[str]) -> str:
    """Return the question that offers the names, empty without any."""
    if not names:
        return ""
    *others, last = names
    return f" Did you mean {', '.join(others)} or {last}?" if others else f" Did you mean {last}?"


def suggest_models(
    catalog: Catalog,
    model_id: str,
    allows: Allows,
    is_served: Callable[[str, str], bool],
    listing: str,
) -> str:
    """Return sentences for the error of a model that a path does not serve, each after a space.

    They name the path that serves a model of that id, or else the nearest ids at the path. Models
    that the caller may not use are not named. `is_served` says whether the path serves a service
    and action; `listing` says where the models are listed.
    """
    near, elsewhere = list[str](), list[str]()
    for (service, action), models in catalog.models.items():
        if is_served(service, action):
            near += (name for name in models if allows(service, name))
        elif model_id in models and allows(service, model_id):
            elsewhere.append(f"POST {find_path(service, action)}")
    if elsewhere:
        return f"{_ELSEWHERE} {' and '.join(sorted(set(elsewhere))[:MOST_NAMES])}."
    return f"{suggest(find_nearest(model_id, dict.fromkeys(near)))} {listing} lists the models."


def refuse_model(
    catalog: Catalog,
    model_id: str,
    allows: Allows,
    actions: Container[str],
    title: str = "model",
    param: str = "model",
) -> NotFound:
    """Return the error of a model that no service has for the actions of a path."""
    hint = suggest_models(
        catalog, model_id, allows, lambda _, action: action in actions, f"GET {MODELS_PATH}"
    )
    shown = model_id[:MOST_CHARACTERS]
    if hint.startswith(_ELSEWHERE):
        text = f"{shown} is not a {title} of this path.{hint}"
    else:
        text = f"There is no {title} {shown}.{hint}"
    return NotFound(text, code="model_not_found", param=param)


def suggest_operations(
    catalog: Catalog, service: str, action: str, allows: Allows, *, of_tasks: bool = True
) -> str:
    """Return the question that offers the nearest services and actions, or nothing.

    Those of which the caller may use no model are not named.
    """
    served = [
        f"{service}/{action}"
        for (service, action), models in catalog.models.items()
        if (OPERATIONS[action].makes_tasks or not of_tasks)
        and any(allows(service, name) for name in models)
    ]
    return suggest(find_nearest(f"{service}/{action}", served))


def find_path(service: str, action: str) -> str:
    """Return the path that serves an action of a service."""
    return _PATHS.get(action, f"/api/v1/{service}/{action}")
