"""The operator copies when keys were last used into their status, with few writes."""

from gateway_core.kube.errors import WriteConflict
from gateway_operator.accounts.balances import LastUse
from gateway_operator.accounts.kinds import project_key
from tests.fakes.counters import FakeCounters
from tests.fakes.informer import FakeInformer
from tests.fakes.kubernetes import FakeKubernetes, Fault
from tests.unit.operator.declarations import Declarations

AT = 1_800_000_000.0


class Bench(Declarations):
    """The sweep on fakes, with one key each of two accounts."""

    def __init__(self) -> None:
        self.kube, self.counters = FakeKubernetes(), FakeCounters()
        keys = FakeInformer(self.kube, "gatewaykeys", project_key)
        self.sweep = LastUse(self.kube, self.counters, keys).sweep
        for account, name in (("demo", "key-a"), ("guest", "key-b")):
            self.put_key(name, accountName=account)

    def shown(self, name: str) -> str | None:
        found: str | None = ((self.kube.find("gatewaykeys", name) or {}).get("status") or {}).get(
            "lastUsedTime"
        )
        return found


async def test_later_use_is_written_once() -> None:
    bench = Bench()
    await bench.counters.note_used("demo", {"key-a": AT + 0.7, "key-b": AT, "key-gone": AT})
    assert await bench.sweep() == 1
    assert (bench.shown("key-a"), bench.shown("key-b")) == ("2027-01-15T08:00:00Z", None)
    assert await bench.sweep() == 0
    bench.counters.lose()
    assert await bench.sweep() == 0
    await bench.counters.note_used("demo", {"key-a": AT - 60})
    assert await bench.sweep() == 0
    assert bench.shown("key-a") == "2027-01-15T08:00:00Z"
    await bench.counters.note_used("demo", {"key-a": AT + 60})
    assert await bench.sweep() == 1
    assert bench.shown("key-a") == "2027-01-15T08:01:00Z"


async def test_lost_compare_and_set_is_written_by_next_sweep() -> None:
    bench = Bench()
    await bench.counters.note_used("guest", {"key-b": AT})
    bench.kube.order_faults("patch_status", Fault(WriteConflict("changed")))
    assert await bench.sweep() == 0
    assert await bench.sweep() == 1
    assert bench.shown("key-b") == "2027-01-15T08:00:00Z"
