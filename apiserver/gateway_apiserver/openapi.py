"""stub for now"""

from typing import Any

from gateway_core.domain.catalog import Catalog


def build_document(catalog: Catalog, base_url: str) -> dict[str, Any]:
    """doc"""
    return {}
