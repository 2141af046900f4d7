"""A process that is leaving: served as before, sent to no more."""

from tests.unit.apiserver.gateway import Gateway, call


def closes(headers: dict[str, str]) -> bool:
    """Whether the answer ends its connection."""
    return headers.get("connection") == "close"


async def test_leaving_process_is_not_ready_and_still_alive(gateway: Gateway) -> None:
    assert (await call(gateway.app, "GET", "/readyz")).status == 200
    gateway.drain.begun = True
    assert (await call(gateway.app, "GET", "/readyz")).status == 503
    assert (await call(gateway.app, "GET", "/healthz")).status == 200


async def test_creates_are_taken_and_every_answer_closes_its_connection(gateway: Gateway) -> None:
    before = await gateway.create()
    assert before.status == 202
    assert not closes(before.headers)
    gateway.drain.begun = True
    for answer in (
        await gateway.create(),
        await call(gateway.app, "GET", "/api/v1/nothing"),
        await call(gateway.app, "GET", "/healthz"),
    ):
        assert answer.status < 500
        assert closes(answer.headers)
