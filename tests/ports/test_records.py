"""The promises of `Records`, kept by the fake and by the adapter on a real API server."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from gateway_core.api.crd import KINDS
from gateway_core.api.ids import API_VERSION
from gateway_core.api.resource import Object, Resource
from gateway_core.kube.client import KubernetesClient, WatchEvent
from gateway_core.kube.errors import (
    AlreadyExists,
    NoSpaceLeft,
    ObjectNotFound,
    RequestRejected,
    Terminating,
    WriteConflict,
)
from tests.fakes.kubernetes import FakeKubernetes
from tests.servers.control_plane import ControlPlane

TASKS = "gatewaytasks"
USAGES = "gatewayusages"
FINALIZER = "modelgateway.dev/upstream-job"


@pytest.fixture(params=["fake", "kube"])
async def kube(request: pytest.FixtureRequest) -> AsyncIterator[KubernetesClient]:
    if request.param == "fake":
        yield FakeKubernetes()
        return
    control_plane: ControlPlane = request.getfixturevalue("control_plane")
    async with control_plane.kube() as made:
        yield made


def make_task(*, label: str | None = None, finalizers: tuple[str, ...] = ()) -> Object:
    metadata: dict[str, Any] = {"name": f"task-{secrets.token_hex(6)}"}
    if label is not None:
        metadata["labels"] = {"test": label}
    if finalizers:
        metadata["finalizers"] = list(finalizers)
    request = {
        "accountName": "demo",
        "service": "sim",
        "action": "reference_to_video",
        "modelId": "sim-q4",
        "input": "{}",
    }
    spec = {"request": request, "desiredState": "Completed", "deadlineSeconds": 60}
    return {"apiVersion": API_VERSION, "kind": "GatewayTask", "metadata": metadata, "spec": spec}


def make_usage(account: str, day: str) -> Object:
    metadata = {"name": f"{account}-{day}", "labels": {"account": account}}
    spec = {"accountName": account, "day": day}
    return {"apiVersion": API_VERSION, "kind": "GatewayUsage", "metadata": metadata, "spec": spec}


def name_of(obj: Object) -> str:
    return str(obj["metadata"]["name"])


async def read_watch(
    kube: KubernetesClient, version: str, name: str, count: int
) -> list[WatchEvent]:
    """What watches of a second, one after the other, show of an object.

    Another is begun, where the last one ended, as long as fewer changes than `count` have come.
    """
    found: list[WatchEvent] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            stream = kube.watch(TASKS, resource_version=version, timeout_seconds=1)
            async for change in stream:
                version = change.object["metadata"]["resourceVersion"]
                if change.object["metadata"].get("name") == name:
                    found.append(change)
    return found


class TestCreate:
    async def test_fills_in_what_the_record_gives(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task())
        meta = made["metadata"]
        assert meta["uid"]
        assert int(meta["resourceVersion"]) > 0
        assert meta["generation"] == 1
        assert meta["creationTimestamp"].endswith("Z")

    async def test_name_is_taken_once(self, kube: KubernetesClient) -> None:
        task = make_task()
        await kube.create(TASKS, task)
        with pytest.raises(AlreadyExists):
            await kube.create(TASKS, task)

    async def test_only_one_of_concurrent_creates_succeeds(self, kube: KubernetesClient) -> None:
        task = make_task()
        results = await asyncio.gather(
            *(kube.create(TASKS, task) for _ in range(8)), return_exceptions=True
        )
        assert sum(isinstance(result, dict) for result in results) == 1
        assert sum(isinstance(result, AlreadyExists) for result in results) == 7

    async def test_status_is_observed_and_not_declared(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, {**make_task(), "status": {"phase": "Completed"}})
        assert "status" not in made


class TestReads:
    async def test_get_is_the_newest(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task())
        changed = await kube.patch_status(TASKS, made, {"phase": "Running"})
        assert await kube.get(TASKS, name_of(made)) == changed

    async def test_unknown_is_missing(self, kube: KubernetesClient) -> None:
        with pytest.raises(ObjectNotFound):
            await kube.get(TASKS, "task-nobody")

    async def test_pages_hold_everything_once(self, kube: KubernetesClient) -> None:
        label = secrets.token_hex(4)
        made = {name_of(await kube.create(TASKS, make_task(label=label))) for _ in range(5)}
        seen: list[str] = []
        token, pages, versions = None, 0, set()
        while True:
            page = await kube.list_page(TASKS, limit=2, token=token, label_selector=f"test={label}")
            pages += 1
            versions.add(page.resource_version)
            seen += [name_of(obj) for obj in page.items]
            token = page.next_token
            if token is None:
                break
        assert sorted(seen) == sorted(made)
        assert pages == 3
        assert len(versions) == 1, "all pages are of one moment"

    async def test_work_that_is_not_settled_includes_work_without_a_word(
        self, kube: KubernetesClient
    ) -> None:
        label = secrets.token_hex(4)
        fresh = await kube.create(TASKS, make_task(label=label))
        ended = await kube.create(TASKS, make_task(label=label))
        await kube.patch_status(TASKS, ended, {"work": "Settled"})

        async def select(fields: str) -> list[str]:
            page = await kube.list_page(
                TASKS, label_selector=f"test={label}", field_selector=fields
            )
            return [name_of(obj) for obj in page.items]

        assert await select("status.work!=Settled") == [name_of(fresh)]
        assert await select("status.work=Settled") == [name_of(ended)]

    async def test_metadata_can_be_read_alone(self, kube: KubernetesClient) -> None:
        label = secrets.token_hex(4)
        made = await kube.create(TASKS, make_task(label=label))
        page = await kube.list_page(TASKS, label_selector=f"test={label}", metadata_only=True)
        [item] = page.items
        assert item["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        assert "spec" not in item


class TestWrites:
    async def test_status_merges_and_leaves_the_rest(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task(label="x"))
        first = await kube.patch_status(TASKS, made, {"phase": "Running", "cost": "1.00"})
        second = await kube.patch_status(TASKS, first, {"phase": "Completed"})
        assert second["status"] == {"phase": "Completed", "cost": "1.00"}
        assert second["spec"] == made["spec"]
        assert second["metadata"]["generation"] == 1

    async def test_replaced_status_is_all_there_is_of_it(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task(label="x"))
        upstream = {"providerName": "p", "upstreamModel": "m"}
        first = await kube.replace_status(
            TASKS, made, {"phase": "Running", "cost": "1.00", "upstream": upstream}
        )
        given = {"phase": "Completed", "upstream": {"providerName": "p"}}
        second = await kube.replace_status(TASKS, first, given)
        assert second["status"] == given
        assert {**second["metadata"], "managedFields": None} == {
            **made["metadata"],
            "resourceVersion": second["metadata"]["resourceVersion"],
            "managedFields": None,
        }
        read = await kube.get(TASKS, name_of(made))
        assert read["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]
        assert (read["spec"], read["status"]) == (made["spec"], given)

    async def test_replaced_status_leaves_spec_and_labels(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task(label="x"))
        spec = {**made["spec"], "deadlineSeconds": 90}
        meta = {**made["metadata"], "labels": {"test": "other"}}
        changed = {**made, "spec": spec, "metadata": meta}
        await kube.replace_status(TASKS, changed, {"phase": "Running"})
        read = await kube.get(TASKS, name_of(made))
        assert read["status"] == {"phase": "Running"}
        assert read["spec"] == made["spec"]
        assert read["metadata"]["labels"] == made["metadata"]["labels"]

    async def test_status_is_not_written_beside_it(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task())
        changed = await kube.patch(
            TASKS, made, {"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Running"}}
        )
        assert changed["metadata"]["labels"] == {"a": "b"}
        assert "status" not in changed

    async def test_changed_spec_is_a_new_generation(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task())
        changed = await kube.patch(TASKS, made, {"spec": {"deadlineSeconds": 90}})
        assert changed["metadata"]["generation"] == 2

    async def test_write_over_an_unseen_change_conflicts(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task())
        changed = await kube.patch_status(TASKS, made, {"phase": "Running"})
        with pytest.raises(WriteConflict):
            await kube.patch_status(TASKS, made, {"phase": "Completed"})
        with pytest.raises(WriteConflict):
            await kube.replace_status(TASKS, made, {"phase": "Completed"})
        with pytest.raises(WriteConflict):
            await kube.patch(TASKS, made, {"metadata": {"labels": {"a": "b"}}})
        assert await kube.get(TASKS, name_of(made)) == changed

    async def test_only_one_of_concurrent_writers_succeeds(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task())
        results = await asyncio.gather(
            *(kube.patch_status(TASKS, made, {"phase": f"P{n}"}) for n in range(8)),
            return_exceptions=True,
        )
        assert sum(isinstance(result, dict) for result in results) == 1
        assert sum(isinstance(result, WriteConflict) for result in results) == 7

    async def test_update_of_a_removed_object_is_not_found(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task())
        await kube.delete(TASKS, name_of(made))
        with pytest.raises(ObjectNotFound):
            await kube.patch_status(TASKS, made, {"phase": "Running"})
        with pytest.raises(ObjectNotFound):
            await kube.replace_status(TASKS, made, {"phase": "Running"})
        with pytest.raises(ObjectNotFound):
            await kube.patch(TASKS, made, {"metadata": {"labels": {"a": "b"}}})


class TestDelete:
    async def test_twice_is_no_error(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task())
        await kube.delete(TASKS, name_of(made))
        await kube.delete(TASKS, name_of(made))
        with pytest.raises(ObjectNotFound):
            await kube.get(TASKS, name_of(made))

    async def test_delete_returns_the_remaining_object(self, kube: KubernetesClient) -> None:
        kept = await kube.create(TASKS, make_task(finalizers=(FINALIZER,)))
        left = await kube.delete(TASKS, name_of(kept))
        assert left == await kube.get(TASKS, name_of(kept))
        free = await kube.create(TASKS, make_task())
        assert await kube.delete(TASKS, name_of(free)) is None
        assert await kube.delete(TASKS, name_of(free)) is None

    async def test_finalizer_keeps_the_object_until_it_goes(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task(finalizers=(FINALIZER,)))
        await kube.delete(TASKS, name_of(made))
        marked = await kube.get(TASKS, name_of(made))
        assert marked["metadata"]["deletionTimestamp"]
        ended = await kube.patch_status(TASKS, marked, {"phase": "Failed"})
        await kube.patch(TASKS, ended, {"metadata": {"finalizers": []}})
        with pytest.raises(ObjectNotFound):
            await kube.get(TASKS, name_of(made))

    async def test_name_can_be_taken_again_with_another_uid(self, kube: KubernetesClient) -> None:
        task = make_task()
        first = await kube.create(TASKS, task)
        await kube.delete(TASKS, name_of(first))
        second = await kube.create(TASKS, task)
        assert second["metadata"]["uid"] != first["metadata"]["uid"]
        assert int(second["metadata"]["resourceVersion"]) > int(
            first["metadata"]["resourceVersion"]
        )

    async def test_delete_of_another_version_or_uid_conflicts(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task())
        meta = made["metadata"]
        changed = await kube.patch_status(TASKS, made, {"phase": "Running"})
        with pytest.raises(WriteConflict):
            await kube.delete(TASKS, name_of(made), version=meta["resourceVersion"])
        with pytest.raises(WriteConflict):
            await kube.delete(TASKS, name_of(made), uid="somebody-else")
        assert await kube.get(TASKS, name_of(made)) == changed
        newest = changed["metadata"]["resourceVersion"]
        await kube.delete(TASKS, name_of(made), uid=meta["uid"], version=newest)
        with pytest.raises(ObjectNotFound):
            await kube.get(TASKS, name_of(made))
        await kube.delete(TASKS, name_of(made), uid=meta["uid"], version=newest)


class TestMoments:
    """Lists of several kinds as of one moment, and what labels select."""

    async def test_another_kind_as_it_was_at_the_version_of_a_list(
        self, kube: KubernetesClient
    ) -> None:
        account = f"a{secrets.token_hex(6)}"
        mine = f"account={account}"
        usages = [make_usage(account, f"2026-11-2{n}") for n in range(5)]
        kept, changed, gone, gone_later, late = usages
        kept = await kube.create(USAGES, kept)
        changed = await kube.create(USAGES, changed)
        for usage in (gone, gone_later):
            await kube.create(USAGES, usage)
        await kube.delete(USAGES, name_of(gone))
        changed = await kube.patch_status(USAGES, changed, {"chargedMicros": 5})
        task = await kube.create(TASKS, make_task(label=account))

        page = await kube.list_page(TASKS, label_selector=f"test={account}")
        assert page.items == [task]

        await kube.patch_status(USAGES, changed, {"chargedMicros": 7})
        await kube.delete(USAGES, name_of(gone_later))
        await kube.create(USAGES, late)
        then = await kube.list_page(
            USAGES, label_selector=mine, at_version=page.resource_version, limit=2
        )
        rest = await kube.list_page(USAGES, label_selector=mine, token=then.next_token, limit=2)
        found = {name_of(obj): obj for obj in (*then.items, *rest.items)}
        assert set(found) == {name_of(obj) for obj in (kept, changed, gone_later)}
        assert found[name_of(changed)]["status"]["chargedMicros"] == 5
        now = await kube.list_page(USAGES, label_selector=mine)
        assert {name_of(obj) for obj in now.items} == {
            name_of(obj) for obj in (kept, changed, late)
        }

    async def test_labels_that_are_there_or_not(self, kube: KubernetesClient) -> None:
        label = secrets.token_hex(4)
        plain = await kube.create(TASKS, make_task(label=label))
        marked = await kube.create(TASKS, make_task(label=label))
        await kube.patch(TASKS, marked, {"metadata": {"labels": {"marked": "1"}}})

        async def select(selector: str) -> list[str]:
            page = await kube.list_page(TASKS, label_selector=selector, metadata_only=True)
            return [name_of(item) for item in page.items]

        assert await select(f"test={label},!marked") == [name_of(plain)]
        assert await select(f"test={label},marked") == [name_of(marked)]
        assert await select(f"marked in (1,2),test={label}") == [name_of(marked)]
        assert await select(f"marked in (2,3),test={label}") == []
        assert await select(f"marked notin (1,2),test={label}") == [name_of(plain)]


class TestWatch:
    async def test_shows_every_change_in_order_and_ends(self, kube: KubernetesClient) -> None:
        begin = (await kube.list_page(TASKS, limit=1)).resource_version
        made = await kube.create(TASKS, make_task())
        changed = await kube.patch_status(TASKS, made, {"phase": "Running"})
        await kube.delete(TASKS, name_of(made))
        changes = await read_watch(kube, begin, name_of(made), 3)
        assert [change.type for change in changes] == ["ADDED", "MODIFIED", "DELETED"]
        versions = [int(change.object["metadata"]["resourceVersion"]) for change in changes]
        assert versions == sorted(set(versions))
        assert versions[1] == int(changed["metadata"]["resourceVersion"])
        assert changes[1].object["status"] == {"phase": "Running"}

    async def test_goes_on_after_the_version_given(self, kube: KubernetesClient) -> None:
        made = await kube.create(TASKS, make_task())
        changed = await kube.patch_status(TASKS, made, {"phase": "Running"})
        changes = await read_watch(kube, made["metadata"]["resourceVersion"], name_of(made), 1)
        assert [change.object for change in changes] == [changed]

    async def test_shows_what_comes_while_it_is_open(self, kube: KubernetesClient) -> None:
        begin = (await kube.list_page(TASKS, limit=1)).resource_version
        stream = kube.watch(TASKS, resource_version=begin, timeout_seconds=20)

        async def read() -> WatchEvent:
            return await anext(stream)

        async with asyncio.timeout(10), contextlib.aclosing(stream):
            reader = asyncio.create_task(read())
            made = await kube.create(TASKS, make_task())
            change = await reader
            while change.object["metadata"]["name"] != name_of(made):
                change = await anext(stream)
        assert change.object == made

    async def test_shows_metadata_alone_where_asked(self, kube: KubernetesClient) -> None:
        begin = (await kube.list_page(TASKS, limit=1)).resource_version
        made = await kube.create(TASKS, make_task())
        stream = kube.watch(TASKS, resource_version=begin, timeout_seconds=20, metadata_only=True)
        async with asyncio.timeout(10), contextlib.aclosing(stream):
            change = await anext(stream)
            while change.object["metadata"].get("name") != name_of(made):
                change = await anext(stream)
        assert change.object["metadata"] == made["metadata"]
        assert "spec" not in change.object


class TestBeside:
    async def test_unknown_secret_is_missing(self, kube: KubernetesClient) -> None:
        with pytest.raises(ObjectNotFound):
            await kube.read_secret("nobody")


class TestKubernetesAlone:
    """What only the real one can be asked."""

    async def test_secrets_come_decoded(self, control_plane: ControlPlane) -> None:
        name = f"secret-{secrets.token_hex(4)}"
        control_plane.kubectl("create", "secret", "generic", name, "--from-literal=token=s3cr3t")
        async with control_plane.kube() as kube:
            assert await kube.read_secret(name) == {"token": b"s3cr3t"}

    async def test_lease_names_its_last_holder(self, control_plane: ControlPlane) -> None:
        name = f"lease-{secrets.token_hex(4)}"
        async with control_plane.kube() as kube:
            times = []
            for holder in ("one", "two"):
                await kube.renew_lease(name, holder)
                shown = orjson.loads(control_plane.kubectl("get", "lease", name, "-o", "json"))
                assert shown["spec"]["holderIdentity"] == holder
                times.append(shown["spec"]["renewTime"])
        assert times[0] < times[1]

    async def test_refusal_says_which_rule(self, control_plane: ControlPlane) -> None:
        async with control_plane.kube() as kube:
            with pytest.raises(RequestRejected, match=r"metadata\.name must be `task-`"):
                await kube.create(TASKS, {**make_task(), "metadata": {"name": "job-1"}})

    @pytest.mark.parametrize("is_counted", [False, True])
    async def test_create_beyond_a_resource_quota_finds_no_space(
        self, control_plane: ControlPlane, is_counted: bool
    ) -> None:
        """Also until the quota's controller has counted what exists."""
        namespace, refusals = f"quota-{secrets.token_hex(4)}", list[str]()
        control_plane.kubectl("create", "namespace", namespace)
        count = {f"count/{TASKS}.{API_VERSION.partition('/')[0]}": "0"}
        async with KubernetesClient(
            control_plane.connection, namespace, note_full=lambda: refusals.append("full")
        ) as kube:
            body = {"metadata": {"name": "none"}, "spec": {"hard": count}}
            quota = await kube.call_core("POST", "resourcequotas", body=body)
            # no controller runs here
            path = f"/api/v1/namespaces/{namespace}/resourcequotas/none/status"
            status = {"hard": count, "used": count if is_counted else {}}
            await kube.call("PUT", path, body={**quota, "status": status})

            async def create_until_refused() -> None:
                # admission notices the quota by a watch
                while True:
                    await kube.create(TASKS, make_task())

            with pytest.raises(NoSpaceLeft, match="quota: none"):
                await asyncio.wait_for(create_until_refused(), 20)
        assert refusals == ["full"]

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.plural)
    async def test_selectable_fields_select(
        self, kind: type[Resource], control_plane: ControlPlane
    ) -> None:
        async with control_plane.kube() as kube:
            for path in kind.selectable:
                selector = f"{path.removeprefix('.')}=nobody"
                assert (await kube.list_page(kind.plural, field_selector=selector)).items == []
            with pytest.raises(RequestRejected):
                await kube.list_page(kind.plural, field_selector="spec.nonsense=x")

    async def test_task_that_leaves_a_selection_is_shown_as_it_was(
        self, control_plane: ControlPlane
    ) -> None:
        """`LiveTasks.leave` rests on it: such an event has the new version and the old content."""
        async with control_plane.kube() as kube:
            made = await kube.create(TASKS, make_task(finalizers=(FINALIZER,)))
            running = await kube.patch_status(TASKS, made, {"phase": "Running"})
            ended = await kube.patch_status(
                TASKS, running, {"phase": "Completed", "work": "Settled"}
            )
        path = (
            f"/apis/{API_VERSION}/namespaces/{control_plane.namespace}/{TASKS}?watch=1"
            f"&timeoutSeconds=1&resourceVersion={made['metadata']['resourceVersion']}"
            "&fieldSelector=status.work!%3DSettled"
        )
        deadline, events = time.monotonic() + 60, list[Any]()
        # a watch may end before its second event has come
        while len(events) < 2 and time.monotonic() < deadline:
            raw = control_plane.kubectl("get", "--raw", path)
            events = [orjson.loads(line) for line in raw.splitlines() if name_of(made) in line]
        last = events[-1]
        assert last["type"] == "DELETED"
        assert last["object"]["metadata"]["resourceVersion"] == ended["metadata"]["resourceVersion"]
        assert last["object"]["status"]["phase"] == "Running"


async def test_creates_in_a_terminating_namespace_are_refused_as_such(
    control_plane: ControlPlane,
) -> None:
    name = f"ended-{secrets.token_hex(4)}"
    async with KubernetesClient(control_plane.connection, name) as kube:
        # it does not exist yet
        with pytest.raises(ObjectNotFound):
            await kube.is_namespace_terminating()
        with pytest.raises(Terminating):
            await kube.create(TASKS, make_task())
        control_plane.kubectl("create", "namespace", name)
        assert not await kube.is_namespace_terminating()
        task = await kube.create(TASKS, make_task(finalizers=(FINALIZER,)))
        control_plane.kubectl("delete", "namespace", name, "--wait=false")
        deadline = time.monotonic() + 60
        while not await kube.is_namespace_terminating():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        with pytest.raises(Terminating):
            await kube.create(TASKS, make_task())
        # what exists can still be changed, and is deleted with all others
        await kube.patch_status(TASKS, task, {"phase": "Submitting"})
        await kube.delete_all(TASKS)
        left = await kube.get(TASKS, task["metadata"]["name"])
        assert left["metadata"]["deletionTimestamp"]
        await kube.patch(TASKS, left, {"metadata": {"finalizers": []}})
        assert TASKS in await kube.list_creatable()
