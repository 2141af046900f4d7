"""The MCP process with the Python client, in both eras, by API key."""

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client


@pytest.fixture
def connect(world):
    """Opens a client with a key."""

    def open_client(key, mode):
        headers = {"Authorization": f"Bearer {key}"}
        http = httpx2.AsyncClient(headers=headers, timeout=30)
        url = world.env["GATEWAY_MCP_URL"] + "/mcp"
        return Client(streamable_http_client(url, http_client=http), mode=mode)

    return open_client


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_task_is_created_waited_for_and_shown(connect, other, world, mode):
    async with connect(other.key, mode) as mcp:
        listed = await mcp.list_tools()
        assert listed.tools[0].name == "list_models"
        models = (await mcp.call_tool("list_models", {"modality": "video"})).structured_content
        assert world.env["GATEWAY_MODEL"] in [model["model"] for model in models["models"]]
        created = await mcp.call_tool(
            "create_task",
            {
                "service": world.env["GATEWAY_SERVICE"],
                "action": "reference_to_video",
                "model": world.env["GATEWAY_MODEL"],
                "idempotency_key": f"first-{mode}",
                "params": {
                    "prompt": "a lighthouse",
                    "reference_image_urls": ["https://example.com/a.png"],
                    "duration_seconds": 3,
                },
            },
        )
        assert not created.is_error, created
        task = created.structured_content
        assert (task["completed"], task["status"]) == (True, "completed")
        assert task["result"]["videos"]
        shown = await mcp.call_tool(
            "get_task",
            {
                "service": world.env["GATEWAY_SERVICE"],
                "action": "reference_to_video",
                "task_id": task["task_id"],
            },
        )
        assert shown.structured_content["task"] == task["result"]
        listed = (await mcp.call_tool("list_tasks", {"limit": 1})).structured_content["tasks"]
        assert [each["id"] for each in listed] == [task["task_id"]]
    assert (await other.poll(task["task_id"])).body == task["result"]
