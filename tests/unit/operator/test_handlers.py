"""What kopf is told to watch: live work of the own shards only."""

import kopf
import pytest

from gateway_core.api.file import GatewayFile
from gateway_core.api.ids import SHARD_LABEL, SHARDS
from gateway_core.api.resource import Object
from gateway_core.api.task import GatewayTask
from gateway_core.concurrency import Supervisor
from gateway_core.tasks.lifecycle import OPEN_SELECTOR
from gateway_operator.handlers import LEASE_RESOURCE, Followed, build_registry, build_settings
from gateway_operator.shards import Shards

TASKS = ("modelgateway.dev", "v1alpha1", "gatewaytasks")
FILES = ("modelgateway.dev", "v1alpha1", "gatewayfiles")
FOLLOWED = (
    Followed(GatewayTask, lambda _kind, _obj: None, OPEN_SELECTOR),
    Followed(GatewayFile, lambda _kind, _obj: None),
)


def labels(shards: Shards) -> str:
    settings = build_settings(FOLLOWED, shards, "lease")
    selectors: dict[object, str] = settings.watching.label_selectors
    assert selectors.get(TASKS) == selectors.get(FILES)
    return selectors.get(TASKS, "")


def is_selected(selector: str, shard: str | None) -> bool:
    """As the API server reads `key in (…)` and `key notin (…)`; notin takes what has no label."""
    if not selector:
        return True
    key, operator, values = selector.split(" ", 2)
    assert key == SHARD_LABEL
    listed = values.strip("()").split(",")
    return (shard in listed) if operator == "in" else (shard not in listed)


def test_finished_work_is_left_out() -> None:
    settings = build_settings(FOLLOWED, Shards(), "lease")
    assert settings.watching.field_selectors[TASKS] == "status.work!=Settled"
    assert FILES not in settings.watching.field_selectors
    assert settings.watching.field_selectors[LEASE_RESOURCE] == "metadata.name=lease"


def test_one_replica_watches_everything() -> None:
    assert labels(Shards()) == ""


@pytest.mark.parametrize("replicas", [2, 3, 5, 16])
def test_every_task_has_one_owner(replicas: int) -> None:
    owned = [Shards.divide(replicas, ordinal) for ordinal in range(replicas)]
    for shard in (*map(str, range(SHARDS)), None, "nonsense", "16"):
        owners = [i for i, shards in enumerate(owned) if is_selected(labels(shards), shard)]
        expected = int(shard) % replicas if shard and shard.isdigit() and int(shard) < 16 else 0
        assert owners == [expected], shard
        given = {} if shard is None else {SHARD_LABEL: shard}
        assert [i for i, shards in enumerate(owned) if shards.owns(given)] == owners


def test_kopf_writes_nothing() -> None:
    settings = build_settings(FOLLOWED, Shards(), "lease")
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
    assert isinstance(settings, kopf.OperatorSettings)


async def test_each_kind_has_its_own_receiver() -> None:
    seen: list[tuple[str, str | None, Object]] = []

    def receive(plural: str) -> Followed:
        kind = {"gatewaytasks": GatewayTask, "gatewayfiles": GatewayFile}[plural]
        return Followed(kind, lambda event, obj: seen.append((plural, event, obj)))

    registry = build_registry(
        [receive("gatewaytasks"), receive("gatewayfiles")],
        lambda _: None,
        lambda: kopf.ConnectionInfo(server="https://localhost"),
        Supervisor(),
    )
    handlers = {str(h.selector): h for h in registry._watching.get_all_handlers()}
    for plural in ("gatewaytasks", "gatewayfiles"):
        (handler,) = (h for text, h in handlers.items() if plural in text)
        body = {"metadata": {"name": plural}}
        await handler.fn(event={"type": None, "object": body})
    assert seen == [
        (plural, None, {"metadata": {"name": plural}})
        for plural in ("gatewaytasks", "gatewayfiles")
    ]
