"""Snapshots of a local run's etcd, and their restore, as `etcdctl` and `etcdutl` do them."""

import base64
import json
import shutil
import subprocess
import urllib.request
from pathlib import Path

from tools.programs import find_program

from tests.servers.world import World

BUMPED = ("--bump-revision", "1000000000", "--mark-compacted")


def save_snapshot(world: World, path: Path) -> None:
    """Save the whole etcd as `etcdctl snapshot save` does."""
    url = f"http://127.0.0.1:{world.config.ports.etcd}/v3/maintenance/snapshot"
    with urllib.request.urlopen(urllib.request.Request(url, b"{}"), timeout=60) as answer:
        parts = [json.loads(line)["result"].get("blob", "") for line in answer]
    path.write_bytes(b"".join(map(base64.b64decode, parts)))


def restore_snapshot(world: World, path: Path, *options: str) -> None:
    """Replace etcd's content by a snapshot, with the Kubernetes API stopped meanwhile."""
    for name in ("kube-apiserver", "etcd"):
        world.run.stop_process(name)
    folder = world.config.directory / "etcd"
    shutil.rmtree(folder)
    peer = f"http://127.0.0.1:{world.config.ports.etcd_peer}"
    subprocess.run(
        (
            *(str(find_program("etcdutl")), "snapshot", "restore", str(path)),
            *("--data-dir", str(folder), "--name", "local", "--initial-cluster", f"local={peer}"),
            *("--initial-advertise-peer-urls", peer, *options),
        ),
        check=True,
        capture_output=True,
        timeout=60,
    )
    for name in ("etcd", "kube-apiserver"):
        world.run.restart(name)
