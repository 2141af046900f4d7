"""The simulator in process, on a clock that stands still until a test moves it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from gateway_simulator.app import create_app
from gateway_simulator.behaviours import Spread
from gateway_simulator.settings import Settings

TOKEN = "a-token"


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def settings() -> Settings:
    return Settings(token=TOKEN, seconds=Spread(10, 10))


@pytest.fixture
def client(settings: Settings, clock: Clock) -> Iterator[TestClient]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    app = create_app(settings, clock)
    with TestClient(app, client=("127.0.0.1", 50000), headers=headers) as client:
        yield client


@pytest.fixture
def submit(client: TestClient) -> Callable[..., dict[str, Any]]:
    """Submits a job and returns it."""

    def submit(prompt: str = "a cat", *, key: str | None = None, **fields: Any) -> dict[str, Any]:
        headers = {"Idempotency-Key": key} if key else {}
        body = {"model": "q4", "prompt": prompt, **fields}
        answer = client.post("/v1/jobs", json=body, headers=headers)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()["job"]

    return submit


@pytest.fixture
def poll(client: TestClient) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Polls a job and returns it as it is now."""

    def poll(job: dict[str, Any]) -> dict[str, Any]:
        answer = client.get(f"/v1/jobs/{job['id']}")
        assert answer.status_code == 200, answer.text
        return answer.json()["job"]

    return poll


@pytest.fixture
def rules(client: TestClient) -> Callable[..., None]:
    """Puts rules in force."""

    def put(*rules: dict[str, Any], **document: Any) -> None:
        answer = client.put("/control", json={"rules": list(rules), **document})
        assert answer.status_code == 200, answer.text

    return put
