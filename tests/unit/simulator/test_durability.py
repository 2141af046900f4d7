"""Jobs over a restart: the state directory."""

import pytest
from starlette.testclient import TestClient

from gateway_simulator.app import create_app
from gateway_simulator.settings import Settings

HEADERS = {"Authorization": "Bearer t"}


@pytest.fixture
def start(tmp_path, clock):
    """Starts a simulator on the same directory; the one before may still run, as if killed."""

    def start():
        settings = Settings(token="t", seconds=10, state_dir=tmp_path / "state")
        app = create_app(settings, clock)
        return TestClient(app, client=("127.0.0.1", 1), headers=HEADERS)

    return start


def post(client, key, **fields):
    body = {"model": "q4", "prompt": "a cat", "client_reference": f"ref-{key}", **fields}
    return client.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})


def test_restart_loses_no_job_and_time_goes_on(start, clock):
    before = start()
    kept, cancelled, lost = (post(before, key).json()["job"]["id"] for key in "abc")
    before.post(f"/v1/jobs/{cancelled}/cancel")
    before.put("/control", json={"rules": [{"behaviour": "lose_job"}]})
    before.get(f"/v1/jobs/{lost}")
    before.put("/control", json={"rules": [{"behaviour": "fail", "code": "boom"}]})
    failed = post(before, "e").json()["job"]["id"]
    clock.now += 10

    after = start()
    assert after.get(f"/v1/jobs/{cancelled}").json()["job"]["state"] == "cancelled"
    assert after.get(f"/v1/jobs/{lost}").status_code == 404
    assert after.get(f"/v1/jobs/{failed}").json()["job"]["error"]["code"] == "boom"
    done = after.get(f"/v1/jobs/{kept}").json()["job"]
    assert done["state"] == "done"
    assert after.get(done["outputs"][0]["url"]).content[4:8] == b"ftyp"


def test_torn_last_line_is_dropped(start, tmp_path):
    job = post(start(), "a").json()["job"]
    with (tmp_path / "state" / "jobs.jsonl").open("ab") as journal:
        journal.write(b'{"event":"job","id":"job_to')
    second = start()
    assert second.get(f"/v1/jobs/{job['id']}").status_code == 200
    post(second, "b")
    assert len(start().get("/control/jobs").json()["jobs"]) == 2


@pytest.mark.parametrize(
    "line", [b"junk\n", b'{"event":"dance"}\n', b'{"event":"lose","id":"x"}\n']
)
def test_damaged_journal_is_refused(start, tmp_path, line):
    post(start(), "a")
    with (tmp_path / "state" / "jobs.jsonl").open("ab") as journal:
        journal.write(line)
    with pytest.raises(ValueError, match=r"line 2 of the journal|unexpected character"):
        start()
