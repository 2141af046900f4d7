"""The receiver of `helm test`: where its URL says, callbacks arrive."""

import aiohttp
import pytest

from gateway_cli.install.trial import _listen


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_receiver_is_where_its_url_says(host: str) -> None:
    async with _listen(host) as (url, received), aiohttp.ClientSession() as session:
        assert url is not None
        async with session.post(url, data=b"{}") as answer:
            assert answer.status == 200
        _, body = received.get_nowait()
        assert body == b"{}"


async def test_no_receiver_without_a_host() -> None:
    async with _listen(None) as (url, received):
        assert url is None
        assert received.empty()
