"""`make demo`: everything up, one task to its video, one streamed answer, everything down.

Also the text of `make up`: addresses, a key, and commands to paste.
"""

import json
import shlex
import shutil
import sys
import time
from pathlib import Path

from gateway_cli.local.config import MODEL, SERVICE, LocalConfig
from gateway_cli.local.run import LocalRun
from gateway_cli.local.supervisor import ProcessFailedError
from gateway_cli.progress import Reporter, format_seconds
from gateway_cli.rest.chat import answer
from gateway_cli.rest.client import RestApi
from gateway_cli.rest.sample import (
    ACTION,
    SAMPLE_INPUT,
    SampleFailed,
    create_sample,
    fetch_video,
    wait_completed,
)
from gateway_core.api.ids import id_to_name

PROGRAM = "gatewayctl"
TASK_SECONDS = 60.0
CHAT_MODEL = "sim-chat"
GREETING = "Hello"


async def run_demo(config: LocalConfig, reporter: Reporter) -> None:
    """Run the demo in the folder of `config` and stop all that it started.

    Raises:
        ProcessFailedError: a process failed, or a task did for which one is to blame.
        CommandError: anything else that went wrong.
    """
    begin = time.monotonic()
    run = LocalRun(config, reporter)
    try:
        await run.start()
        try:
            await _walk_through(run, reporter)
        except SampleFailed as error:
            log = run.supervisor.log_of(error.process)
            raise ProcessFailedError(error.process, f"is to blame: {error}", log) from error
    finally:
        await run.stop()
    reporter.line(f"✓ done in {format_seconds(time.monotonic() - begin)}", style="bold")


async def _walk_through(run: LocalRun, reporter: Reporter) -> None:
    key = run.credentials.keys["demo"].plaintext
    async with RestApi(run.config.base_url, key, reporter.line) as api:
        path = await create_sample(api, SERVICE, MODEL)
        task_id = path.rpartition("/")[2]
        reporter.line(f"✓ 202: task {task_id} is recorded")
        seen: list[str] = []

        def note(status: str) -> None:
            if status not in seen[-1:]:
                seen.append(status)
                reporter.line(f"  status: {status}")

        async with reporter.stage("Waiting for the video"):
            task = await wait_completed(api, path, TASK_SECONDS, note)
        target = run.config.directory / "demo.mp4"
        url, size = await fetch_video(api, task, target)
    here = target.relative_to(Path.cwd()) if target.is_relative_to(Path.cwd()) else target
    reporter.line(f"✓ video: {here} ({size:,} bytes), cost {task['usage']['cost']} USD")
    reporter.line(f"  from {url}")
    name = id_to_name(task_id)
    reporter.line(f"\n$ kubectl get gatewaytasks {name}")
    reporter.line((await run.kubectl("get", "gatewaytasks", name)).rstrip() + "\n")
    reporter.line(f"$ {name_program()} chat --model {CHAT_MODEL} '{GREETING}'")
    async with RestApi(run.config.base_url, key, reporter.line) as api:
        price = await api.get_price("chat", CHAT_MODEL)
        await answer(api, {"model": CHAT_MODEL, "messages": []}, GREETING, price)
    reporter.line("")


def name_program() -> str:
    """Return the command that is `gatewayctl` in the current folder: its name if it is on PATH."""
    installed = Path(sys.executable).parent / PROGRAM
    if shutil.which(PROGRAM) or not installed.exists():
        return PROGRAM
    here = Path.cwd()
    return shlex.quote(
        str(installed.relative_to(here) if installed.is_relative_to(here) else installed)
    )


def describe_run(config: LocalConfig, variables: dict[str, str], kubectl: Path) -> str:
    """Return the text of `make up`, with every command complete in itself.

    `kubectl` is named by its path where PATH has none.
    """
    url = f"{config.base_url}/api/v1/{variables['GATEWAY_SERVICE']}/{ACTION}"
    key = variables["GATEWAY_API_KEY"]
    env_file = shlex.quote(str(config.env_file))
    ctl = name_program()
    hint = ""
    if ctl != PROGRAM:
        folder = shlex.quote(str(Path(sys.executable).parent))
        hint = f"gatewayctl          {ctl}   (by its name after: export PATH={folder}:$PATH)\n"
    bytes_at = f"{config.url('s3')} (S3)" if config.store == "s3" else str(config.store_directory)
    body = shlex.quote(json.dumps({"model": variables["GATEWAY_MODEL"], **SAMPLE_INPUT}))
    return f"""
REST API            {config.base_url}   (OpenAPI: {config.base_url}/openapi.json)
Media host          {config.media_url}
MCP                 {config.mcp_url}/mcp   (sign-in by OAuth, or the API key as bearer token)
Simulated provider  {config.simulator_url}
Bytes               {bytes_at}
API key             {key}
Management key      {variables["GATEWAY_MANAGEMENT_KEY"]}   (the account's keys, limits and usage)
Console             {config.base_url}/
                    {variables["GATEWAY_USER_EMAIL"]}, password {variables["GATEWAY_USER_PASSWORD"]}
All of it           {config.env_file}
Logs                {config.log_directory}
{hint}
Create a task:

  curl -sS -X POST {url} \\
    -H 'Authorization: Bearer {key}' \\
    -H 'Content-Type: application/json' \\
    -d {body}

Then read it, with the id from the answer in place of TASK_ID:

  curl -sS {url}/TASK_ID \\
    -H 'Authorization: Bearer {key}'

Upload a file, and run each line of another as a call of a batch:

  set -a; . {env_file}; set +a
  {ctl} files upload PATH
  {ctl} batches create REQUESTS.jsonl --download .

Connect an MCP client, which then opens the sign-in page; or give it the key in a header:

  {{"mcpServers": {{"model-gateway": {{"type": "http", "url": "{config.mcp_url}/mcp"}}}}}}
  {{"mcpServers": {{"model-gateway": {{"type": "http", "url": "{config.mcp_url}/mcp",
    "headers": {{"Authorization": "Bearer {key}"}}}}}}}}

Watch it as a cluster admin does:

  export KUBECONFIG={shlex.quote(variables["KUBECONFIG"])}
  {"kubectl" if shutil.which("kubectl") else shlex.quote(str(kubectl))} get gatewaytasks --watch

Ctrl-C, or `make down` elsewhere, ends it all; the state stays in {config.directory}.
"""
