"""Completion of names in the shell: what is there in the cluster, if it answers at once.

Whatever goes wrong completes nothing: a shell that is completing shows no errors.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from gateway_cli.cluster.errors import ClusterError
from gateway_cli.cluster.selection import SELECTED, Selection
from gateway_core.contract.account import GatewayAccount
from gateway_core.contract.guardrail import GatewayGuardrail
from gateway_core.contract.key import GatewayKey
from gateway_core.contract.model import GatewayModel
from gateway_core.contract.resource import Resource
from gateway_core.contract.task import GatewayTask
from gateway_core.contract.user import GatewayUser

PATIENCE_SECONDS = 2.0

Suggestions = list[tuple[str, str]]


def _completer(
    kind: type[Resource], describe: Callable[[dict[str, Any]], tuple[str, str]]
) -> Callable[[typer.Context, str], Suggestions]:
    def complete(ctx: typer.Context, incomplete: str) -> Suggestions:
        _select(ctx)
        with contextlib.suppress(ClusterError, TimeoutError, OSError):
            found = asyncio.run(_list(kind, ctx.params.get("namespace")))
            pairs = sorted(describe(obj) for obj in found)
            return [(name, text) for name, text in pairs if name.startswith(incomplete)]
        return []

    return complete


async def _list(kind: type[Resource], namespace: str | None) -> list[dict[str, Any]]:
    from gateway_cli.compose import open_objects

    async with open_objects(namespace, PATIENCE_SECONDS) as objects:
        return await objects.list_all(kind)


def _select(ctx: typer.Context) -> None:
    """The cluster that the options before the noun name; their command is not run here."""
    options = ctx.find_root().params
    path = options.get("kubeconfig")
    SELECTED.set(Selection(Path(path) if path else None, options.get("context")))


def _by_display(obj: dict[str, Any]) -> tuple[str, str]:
    return obj["metadata"]["name"], obj["spec"].get("displayName", "")


def _by_model(obj: dict[str, Any]) -> tuple[str, str]:
    return obj["spec"]["modelId"], obj["spec"].get("service", "")


def _by_task(obj: dict[str, Any]) -> tuple[str, str]:
    return obj["metadata"]["name"], (obj.get("status") or {}).get("phase") or ""


complete_accounts = _completer(GatewayAccount, _by_display)
complete_users = _completer(GatewayUser, _by_display)
complete_keys = _completer(GatewayKey, _by_display)
complete_guardrails = _completer(GatewayGuardrail, _by_display)
complete_models = _completer(GatewayModel, _by_model)
complete_tasks = _completer(GatewayTask, _by_task)
