"""`make demo`: everything up, one task from POST to the downloaded video, everything down."""

import asyncio
import time
from pathlib import Path

from gateway_cli.local.client import TaskClient, TaskFailedError
from gateway_cli.local.config import MODEL, SERVICE, LocalConfig
from gateway_cli.local.errors import ProcessFailedError
from gateway_cli.local.run import LocalRun
from gateway_cli.progress import Reporter, format_seconds
from gateway_core.api.ids import id_to_name

TASK_TIMEOUT_SECONDS = 60.0


async def run_demo(config: LocalConfig, reporter: Reporter) -> None:
    """Runs the demo in the folder of `config` and stops all that it started.

    Raises:
        ProcessFailedError: a process failed, or a task did for which one is to blame.
        LocalRunError: anything else that went wrong.
    """
    begin = time.monotonic()
    run = LocalRun(config, reporter)
    try:
        await run.start()
        try:
            await _walk_through(run, reporter)
        except TaskFailedError as error:
            log = run.log_of(error.process)
            raise ProcessFailedError(error.process, f"is to blame: {error}", log) from error
    finally:
        await run.stop()
    reporter.line(f"✓ done in {format_seconds(time.monotonic() - begin)}", style="bold")


async def _walk_through(run: LocalRun, reporter: Reporter) -> None:
    key = run.credentials.keys["demo"].plaintext
    async with TaskClient(run.config.base_url, SERVICE, MODEL, key) as client:
        task_id = await client.create()
        reporter.line(f"✓ 202: task {task_id} is recorded")
        seen: list[str] = []

        def note(status: str) -> None:
            if status not in seen[-1:]:
                seen.append(status)
                reporter.line(f"  status: {status}")

        async with reporter.stage("Waiting for the video"):
            task = await client.wait_finished(task_id, TASK_TIMEOUT_SECONDS, note)
        target = run.config.directory / "demo.mp4"
        video = await client.download(task.video_url)
        await asyncio.to_thread(target.write_bytes, video)
        reporter.line(f"✓ video: {_shorten(target)} ({len(video):,} bytes), cost {task.cost} USD")
        reporter.line(f"  from {task.video_url}")
    reporter.line(f"\n$ kubectl get gatewaytasks {id_to_name(task_id)}")
    reporter.line(
        (await run.cluster.run("get", "gatewaytasks", id_to_name(task_id))).rstrip() + "\n"
    )


def _shorten(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
