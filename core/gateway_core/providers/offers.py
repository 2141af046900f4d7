"""Names of models and services in lists of keys and guardrails that nothing has.

Such a list is no mistake by itself: the model may be declared later. It is worth a warning.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gateway_core.accounts.guardrails import read_names
from gateway_core.api.model import GatewayModel
from gateway_core.kube.informer import Cache
from gateway_core.providers.catalog_view import watch_catalog

FIELDS = ("allowed_models", "denied_models", "allowed_providers", "denied_providers")
"""The lists of a key or guardrail, as clients name them."""
MOST_NAMES = 5
"""Names in one warning; of more it has the number."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Ids of the models that are declared, and their services."""

    models: frozenset[str]
    services: frozenset[str]

    def find_unknown(self, lists: Mapping[str, Iterable[str] | None]) -> str:
        """Return a sentence that names the entries that nothing has; empty for none.

        `lists` are by their names, those of models end in `odels`.
        """
        texts = []
        for field, entries in lists.items():
            is_model = field.endswith("odels")
            names = self.models if is_model else self.services
            unknown = [entry for entry in entries or () if not _is_known(entry, names)]
            if unknown:
                noun = "model" if is_model else "service"
                what = f"is not a {noun}" if len(unknown) == 1 else f"are not {noun}s"
                texts.append(f"{field}: {_join(unknown)} {what} of this gateway")
        return "; ".join(texts)


def read_offer(models: Iterable[tuple[str, str]]) -> Offer:
    """Return the offer of models, each a pair of its id and service."""
    pairs = list(models)
    return Offer(frozenset(model for model, _ in pairs), frozenset(name for _, name in pairs))


class Offers:
    """The offer as an informer of models has it."""

    def __init__(self, models: Cache[GatewayModel]) -> None:
        self._models = models
        self._known: Offer | None = None
        watch_catalog(models, self._forget)

    @property
    def current(self) -> Offer:
        """The offer of now."""
        if self._known is None:
            specs = [model.spec for _, model in self._models.items()]
            self._known = read_offer((spec.model_id, spec.service) for spec in specs)
        return self._known

    def _forget(self) -> None:
        self._known = None


def _is_known(entry: str, names: frozenset[str]) -> bool:
    if entry in names:
        return True
    listed = read_names([entry])
    return listed is not None and any(name in listed for name in names)


def _join(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(names[:MOST_NAMES]) + more
