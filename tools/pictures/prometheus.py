"""A Prometheus that scrapes a local run, and the queries that it answers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yaml
from tools.programs import ensure_program

from gateway_cli.local.config import LOOPBACK, is_busy
from gateway_cli.local.processes import ProcessSpec
from gateway_cli.local.run import LocalRun

SCRAPE_SECONDS = 5
RATE_SECONDS = 4 * SCRAPE_SECONDS
"""Grafana's `$__rate_interval` for this interval of scrapes."""
_PORTS = range(19_090, 19_190)
_SERVICES = {
    "api-health": ("api_health", "api-0"),
    "mcp-health": ("mcp_health", "mcp-0"),
    "media-health": ("media_health", "media-0"),
    "operator": ("operator", "operator-0"),
}
"""Services that the chart's ServiceMonitors choose: the port here, and a pod's name."""


@dataclass(frozen=True, slots=True)
class Series:
    """Values by time (Unix seconds); what is missing or NaN is left out."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class Prometheus:
    """Starts with the processes of a run and ends with them."""

    def __init__(self, run: LocalRun) -> None:
        self._run = run
        self._port = next(port for port in _PORTS if not is_busy(port))
        self._url = f"http://{LOOPBACK}:{self._port}"

    async def start(self) -> None:
        """Begin to scrape.

        Raises:
            ProgramMissingError: it is not there and cannot be built.
            LocalRunError: it does not become ready.
        """
        folder = self._run.config.directory / "prometheus"
        program = ensure_program("prometheus")
        config = _write_config(folder, self._describe_scrapes())
        command = (
            str(program),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={LOOPBACK}:{self._port}",
            "--log.level=warn",
        )
        await self._run.supervisor.start(
            ProcessSpec("prometheus", command, os.environ, self._is_ready)
        )

    async def query(self, expr: str, start: float, end: float, step: float) -> list[Series]:
        """The series of an expression from `start` to `end` (Unix seconds), ordered by labels.

        Raises:
            aiohttp.ClientError: the expression is refused, or nothing answers.
        """
        asked = {"query": expr, "start": f"{start}", "end": f"{end}", "step": f"{step}"}
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.post(f"{self._url}/api/v1/query_range", data=asked) as answer,
        ):
            body = await answer.json()
        return read_matrix(body["data"]["result"])

    async def _is_ready(self) -> bool:
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1)) as session,
                session.get(f"{self._url}/-/ready") as answer,
            ):
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    def _describe_scrapes(self) -> Mapping[str, object]:
        """The labels are those that the Prometheus operator gives."""
        config = self._run.config
        jobs = [
            {
                "job_name": f"model-gateway-{service}",
                "static_configs": [
                    {
                        "targets": [f"{LOOPBACK}:{config.ports.of(port)}"],
                        "labels": {
                            "namespace": config.namespace,
                            "service": f"model-gateway-{service}",
                            "pod": pod,
                        },
                    }
                ],
            }
            for service, (port, pod) in _SERVICES.items()
        ]
        every = {"scrape_interval": f"{SCRAPE_SECONDS}s", "scrape_timeout": f"{SCRAPE_SECONDS}s"}
        return {"global": every, "scrape_configs": jobs}


def _write_config(folder: Path, config: Mapping[str, object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def read_matrix(result: Sequence[Mapping[str, object]]) -> list[Series]:
    """The series of an answer of `/api/v1/query_range`."""
    found = []
    for each in result:
        labels, values = each["metric"], each["values"]
        assert isinstance(labels, dict)
        assert isinstance(values, list)
        points = [(float(at), float(text)) for at, text in values]
        found.append(Series(labels, [point for point in points if point[1] == point[1]]))
    return sorted(found, key=lambda series: sorted(series.labels.items()))
