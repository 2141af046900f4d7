"""How many objects one page of a list has: 200 KB each is much for 500 at a time."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from gateway_core.adapters.kube.records import KubeRecords
from gateway_core.ports.records import PAGE, PAGE_OF_LARGE
from gateway_core.usecases.storage import read_members


class Asked(KubeRecords):
    """Answers lists with nothing; `limits` are those that they had."""

    def __init__(self) -> None:
        connection = cast("Any", type("Nowhere", (), {"server": "https://nowhere"}))
        super().__init__(connection, "default")
        self.limits: list[int] = []

    async def _call(
        self, method: str, url: str, *, query: Mapping[str, str] | None = None, **_: Any
    ) -> dict[str, Any]:
        assert query is not None
        self.limits.append(int(query["limit"]))
        return {"items": [], "metadata": {"resourceVersion": "1"}}


@pytest.mark.parametrize(
    ("plural", "limit"),
    [
        ("gatewayfiles", PAGE_OF_LARGE),
        ("gatewayuploads", PAGE_OF_LARGE),
        ("gatewaybatches", PAGE_OF_LARGE),
        ("gatewaytasks", PAGE),
    ],
)
async def test_what_may_be_large_is_read_in_small_pages(plural: str, limit: int) -> None:
    records = Asked()
    await records.list_page(plural)
    await records.list_page(plural, metadata_only=True)
    await records.list_page(plural, limit=7)
    assert records.limits == [limit, PAGE, 7]


async def test_what_an_account_stores_is_read_in_small_pages() -> None:
    records = Asked()
    await read_members(records, "acme", "files")
    await read_members(records, "acme", "temporary")
    assert records.limits == [PAGE_OF_LARGE] * 3
