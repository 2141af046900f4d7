"""Sources of the control-plane binaries, with a release server and a `go` of the test's own."""

import asyncio
import hashlib
import io
import os
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from gateway_cli.local.binaries import (
    ARCHIVE_SHA512,
    ARCHIVE_VERSION,
    BUILD_VERSION,
    NAMES,
    BinariesNotFoundError,
    ControlPlaneBinaries,
    current_platform,
    find_cache,
    resolve_binaries,
)
from gateway_cli.progress import Reporter

ROOT = Path(__file__).resolve().parents[3]
PLATFORM = current_platform()
FAKE_GO = """#!/bin/sh
echo "$CGO_ENABLED $GOFLAGS $*" >> "$GO_CALLS"
[ -z "$GO_FAILS" ] || { echo "no such module" >&2; exit 1; }
while [ "$1" != -o ]; do shift; done
echo "#!/bin/sh" > "$2"; chmod +x "$2"
"""


def _make_programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


def _make_archive(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(f"controller-tools/envtest/{name}")
            info.size, info.mode = 3, 0o644
            archive.addfile(info, io.BytesIO(b"bin"))
    return buffer.getvalue()


class Releases:
    """A server of archives; counts what is asked of it."""

    def __init__(self) -> None:
        self.content = _make_archive(*NAMES, "../../escape")
        self.requests: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        self.requests.append(request.path)
        return web.Response(body=self.content)


@pytest.fixture
async def releases(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Releases]:
    served = Releases()
    monkeypatch.setitem(ARCHIVE_SHA512, PLATFORM, hashlib.sha512(served.content).hexdigest())
    app = web.Application()
    app.router.add_get("/{path:.*}", served.answer)
    async with TestServer(app, host="127.0.0.1") as server:
        served.url = str(server.make_url("")).rstrip("/")
        yield served


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Nothing found, nothing downloaded, nothing built; each test opens one way."""
    return {
        "PATH": str(tmp_path / "nothing"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "GATEWAY_ENVTEST_URL": "",
    }


@pytest.fixture
def go(tmp_path: Path, env: dict[str, str]) -> dict[str, str]:
    folder = tmp_path / "go"
    folder.mkdir()
    (folder / "go").write_text(FAKE_GO)
    (folder / "go").chmod(0o755)
    env["PATH"] = f"{folder}:/usr/bin:/bin"
    env["GO_CALLS"] = str(tmp_path / "calls")
    return env


def _read_calls(go: dict[str, str]) -> list[str]:
    return Path(go["GO_CALLS"]).read_text().splitlines()


async def _resolve(env: dict[str, str]) -> ControlPlaneBinaries:
    return await resolve_binaries(ROOT, env, Reporter.quiet())


def _entry(env: dict[str, str], version: str) -> Path:
    return find_cache(env, version)


async def test_assets_come_first(tmp_path: Path, env: dict[str, str]) -> None:
    env["KUBEBUILDER_ASSETS"] = str(_make_programs(tmp_path / "assets", *NAMES))
    _make_programs(_entry(env, BUILD_VERSION), *NAMES)
    found = await _resolve(env)
    assert found.etcd == tmp_path / "assets" / "etcd"


async def test_assets_without_kubectl_take_that_of_path(
    tmp_path: Path, env: dict[str, str]
) -> None:
    env["KUBEBUILDER_ASSETS"] = str(_make_programs(tmp_path / "assets", "etcd", "kube-apiserver"))
    env["PATH"] = str(_make_programs(tmp_path / "path", "kubectl"))
    found = await _resolve(env)
    assert found.kubectl == tmp_path / "path" / "kubectl"


async def test_incomplete_assets_fall_through_to_the_cache(
    tmp_path: Path, env: dict[str, str]
) -> None:
    env["KUBEBUILDER_ASSETS"] = str(_make_programs(tmp_path / "assets", "etcd"))
    _make_programs(_entry(env, ARCHIVE_VERSION), *NAMES)
    found = await _resolve(env)
    assert found.etcd == _entry(env, ARCHIVE_VERSION) / "etcd"


async def test_archive_is_downloaded_once(env: dict[str, str], releases: Releases) -> None:
    env["GATEWAY_ENVTEST_URL"] = releases.url
    first = await _resolve(env)
    second = await _resolve(env)
    assert releases.requests == [
        f"/envtest-{ARCHIVE_VERSION}/envtest-{ARCHIVE_VERSION}-{PLATFORM}.tar.gz"
    ]
    assert first.kube_apiserver == second.kube_apiserver
    assert os.access(first.kube_apiserver, os.X_OK)
    entry = _entry(env, ARCHIVE_VERSION)
    assert sorted(path.name for path in entry.iterdir()) == sorted(NAMES)


async def test_archive_of_another_hash_is_refused_and_nothing_of_it_kept(
    env: dict[str, str], releases: Releases
) -> None:
    env["GATEWAY_ENVTEST_URL"] = releases.url
    releases.content = _make_archive(*NAMES, "and-more")
    with pytest.raises(BinariesNotFoundError, match="SHA-512"):
        await _resolve(env)
    left = {path.name for path in _entry(env, ARCHIVE_VERSION).parent.iterdir()}
    assert left <= {".lock", _entry(env, BUILD_VERSION).name}


async def test_archive_that_lacks_a_program_is_refused(
    env: dict[str, str], releases: Releases, monkeypatch: pytest.MonkeyPatch
) -> None:
    env["GATEWAY_ENVTEST_URL"] = releases.url
    releases.content = _make_archive("etcd", "kubectl")
    monkeypatch.setitem(ARCHIVE_SHA512, PLATFORM, hashlib.sha512(releases.content).hexdigest())
    with pytest.raises(BinariesNotFoundError, match="no executable kube-apiserver"):
        await _resolve(env)


async def test_closed_network_falls_through_to_the_build(go: dict[str, str]) -> None:
    go["GATEWAY_ENVTEST_URL"] = "http://127.0.0.1:9"
    begin = time.monotonic()
    found = await _resolve(go)
    assert time.monotonic() - begin < 20
    assert found.etcd == _entry(go, BUILD_VERSION) / "etcd"
    assert sorted(path.name for path in found.etcd.parent.iterdir()) == sorted(NAMES)
    calls = _read_calls(go)
    assert len(calls) == len(NAMES)
    for call in calls:
        assert call.startswith("0 -buildvcs=false -mod=readonly build -ldflags")
        assert f"version.gitVersion={BUILD_VERSION}" in call


async def test_interrupted_build_resumes(go: dict[str, str]) -> None:
    _make_programs(_entry(go, BUILD_VERSION), "etcd", "kube-apiserver")
    await _resolve(go)
    calls = _read_calls(go)
    assert [call.rsplit("/", 1)[-1] for call in calls] == ["kubectl"]


async def test_two_runs_build_once(go: dict[str, str]) -> None:
    first, second = await asyncio.gather(_resolve(go), _resolve(go))
    assert first.etcd == second.etcd
    assert len(_read_calls(go)) == len(NAMES)


async def test_error_lists_all_sources_tried(go: dict[str, str], tmp_path: Path) -> None:
    go["KUBEBUILDER_ASSETS"] = str(tmp_path / "missing")
    go["GO_FAILS"] = "yes"
    with pytest.raises(BinariesNotFoundError) as caught:
        await _resolve(go)
    text = str(caught.value)
    for part in (
        "$KUBEBUILDER_ASSETS",
        "cache",
        "published archive",
        "Go modules",
        "no such module",
    ):
        assert part in text
