"""The catalog as this process knows it: rebuilt from the table of models when one has changed."""

from collections.abc import Mapping
from typing import Any

import structlog
from pydantic import ValidationError

from gateway_core.contract.errors import Unavailable
from gateway_core.contract.model import GatewayModel
from gateway_core.contract.provider import GatewayProvider
from gateway_core.domain.catalog import Catalog, build_catalog
from gateway_core.ports.caches import Table

_log = structlog.get_logger(__name__)


def project_model(obj: Mapping[str, Any]) -> GatewayModel | None:
    """The model of an object, None where it is none that this release can read."""
    try:
        return GatewayModel.model_validate(obj)
    except ValidationError as error:
        _log.warning("a model cannot be read", name=obj["metadata"]["name"], error=str(error))
        return None


def project_provider(obj: Mapping[str, Any]) -> GatewayProvider | None:
    """The provider of an object, None where it is none that this release can read."""
    try:
        return GatewayProvider.model_validate(obj)
    except ValidationError as error:
        # the input may be a header's value
        texts = [problem["msg"] for problem in error.errors(include_input=False)]
        _log.warning("a provider cannot be read", name=obj["metadata"]["name"], error=texts)
        return None


class CatalogView:
    """What can be called now."""

    def __init__(self, models: Table[GatewayModel]) -> None:
        self._models = models
        self._catalog: Catalog | None = None
        models.subscribe(self._forget)

    @property
    def current(self) -> Catalog:
        """The catalog; a new one after each change. Unavailable before the first list."""
        if self._catalog is None:
            if not self._models.synced:
                raise Unavailable("The gateway is starting.", retry_after=1)
            self._catalog, _ = build_catalog(model for _, model in self._models.items())
        return self._catalog

    def _forget(self, _: str) -> None:
        self._catalog = None
