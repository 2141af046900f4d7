"""`gatewayctl local`: up, demo, down, clean and binaries."""

import asyncio
import os
import shutil
import signal
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from gateway_cli import options as opt
from gateway_cli.local.binaries import resolve_binaries
from gateway_cli.local.config import (
    MAX_WORKERS,
    LocalConfig,
    LocalRunError,
    Store,
    find_root,
    read_config,
)
from gateway_cli.local.demo import describe_run, run_demo
from gateway_cli.local.run import LocalRun
from gateway_cli.local.supervisor import RunDirectory
from gateway_cli.progress import Reporter
from gateway_cli.session import EXIT_FAILED, EXIT_INTERRUPTED, exit_on_error

app = typer.Typer(add_completion=False, cls=opt.CommandGroup, no_args_is_help=True)

PortBase = Annotated[
    int | None,
    typer.Option(envvar="GATEWAY_LOCAL_PORT_BASE", help="First of thirteen consecutive ports."),
]
UseKubeconfig = Annotated[
    bool,
    typer.Option(
        envvar="GATEWAY_USE_KUBECONFIG",
        help="Use the cluster that KUBECONFIG names instead of starting a control plane.",
    ),
]
AllowRemote = Annotated[
    bool,
    typer.Option("--allow-remote-cluster", help="Allow a cluster on another machine."),
]
StoreOption = Annotated[
    Store,
    typer.Option(
        envvar="GATEWAY_LOCAL_STORE",
        help="Object store: a directory, or an S3 server, which is started too.",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        min=1,
        max=MAX_WORKERS,
        envvar="GATEWAY_LOCAL_WORKERS",
        help="API processes on the one port.",
    ),
]


@app.command()
def up(
    port_base: PortBase = None,
    use_kubeconfig: UseKubeconfig = False,
    allow_remote: AllowRemote = False,
    store: StoreOption = "directory",
    workers: Workers = 1,
) -> None:
    """Start everything and keep it running until Ctrl-C or `gatewayctl local down`."""
    with exit_on_error(exit_code=EXIT_FAILED):
        config = read_config(os.environ, port_base, use_kubeconfig, allow_remote, store, workers)
        _run_until_signal(_stay_up(config, Reporter()))


@app.command()
def demo(
    port_base: PortBase = None,
    use_kubeconfig: UseKubeconfig = False,
    allow_remote: AllowRemote = False,
    store: StoreOption = "directory",
    workers: Workers = 1,
) -> None:
    """Start everything, run one task to its video, show it, and stop everything."""
    with exit_on_error(exit_code=EXIT_FAILED):
        config = read_config(os.environ, port_base, use_kubeconfig, allow_remote, store, workers)
        if not _run_until_signal(run_demo(config, Reporter())):
            raise typer.Exit(EXIT_INTERRUPTED)


@app.command()
def down() -> None:
    """Stop the run of this folder."""
    with exit_on_error(exit_code=EXIT_FAILED):
        _take_down(read_config(os.environ), Reporter())


@app.command()
def clean() -> None:
    """Stop the run, if any, and remove all its state: keys, objects, videos, logs."""
    reporter = Reporter()
    with exit_on_error(exit_code=EXIT_FAILED):
        config = read_config(os.environ)
        _take_down(config, reporter)
        if config.directory.exists():
            # a folder that a mistaken GATEWAY_LOCAL_DIR names is not ours to remove
            if not (config.directory / "run").is_dir():
                raise LocalRunError(f"{config.directory} is not the folder of a local run")
            shutil.rmtree(config.directory)
            reporter.line(f"✓ removed {config.directory}")


@app.command()
def binaries() -> None:
    """Find or build the control plane's binaries, and print their folder."""
    reporter = Reporter()
    with exit_on_error(exit_code=EXIT_FAILED):
        found = asyncio.run(resolve_binaries(find_root(), os.environ, reporter))
        reporter.line(f"{found.etcd}\n{found.kube_apiserver}\n{found.kubectl}")
        reporter.line(f"✓ {found.origin}")


async def _stay_up(config: LocalConfig, reporter: Reporter) -> None:
    run = LocalRun(config, reporter)
    try:
        await run.start()
        reporter.line(describe_run(config, run.variables, run.kubectl_path))
        await asyncio.Event().wait()
    finally:
        await run.stop()


def _run_until_signal(work: Coroutine[Any, Any, None]) -> bool:
    """Run `work`, which signals cancel; return whether it came to its end."""

    async def guard() -> bool:
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup has a hang-up ignored, and means it
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            # a second Ctrl-C must not cut the orderly stop short
            loop.add_signal_handler(number, lambda: task.cancelling() or task.cancel())
        try:
            await task
        except asyncio.CancelledError:
            return False
        return True

    return asyncio.run(guard())


def _take_down(config: LocalConfig, reporter: Reporter) -> None:
    run_directory = RunDirectory(config.run_directory)
    if run_directory.stop_supervisor():
        reporter.line("✓ the local run has ended")
        return
    ended = run_directory.clear_stale() if config.run_directory.is_dir() else []
    for name in ended:
        reporter.line(f"✓ {name}, left over from an earlier run, has ended")
    if not ended:
        reporter.line("nothing is running")
