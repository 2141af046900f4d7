"""`gatewayctl record` on a real API server."""

from gateway_core.api.ids import REMAINS_FINALIZER


def test_restore_names_objects_that_are_being_deleted(
    gatewayctl, read, account, control_plane, kube, tmp_path
):
    path = f"/apis/modelgateway.dev/v1alpha1/namespaces/{control_plane.namespace}/gatewayaccounts"

    def set_finalizers(*names):
        patch = {"metadata": {"finalizers": list(names)}}
        kube(lambda client: client.call("PATCH", f"{path}/{account}", body=patch))

    set_finalizers(REMAINS_FINALIZER)
    file = tmp_path / "record.jsonl"
    gatewayctl("record", "save", str(file))
    kube(lambda client: client.call("DELETE", f"{path}/{account}"))
    said = gatewayctl("record", "restore", str(file), "-o", "json")
    assert said.document["being_deleted"] == [f"GatewayAccount {account}"]
    assert f"not restored: GatewayAccount {account}" in said.err

    set_finalizers()
    said = gatewayctl("record", "restore", str(file), "-o", "json")
    assert (said.document["made"], said.document["being_deleted"]) == (1, [])
    assert "deletionTimestamp" not in read("gatewayaccount", account)["metadata"]
