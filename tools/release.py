"""`make release VERSION=…`: wheel, chart (archive and OCI layout), SBOM and checksums in a folder.

Everything is reproducible: times are those of the last commit, and the wheel is built twice and
compared. The image is built by `make image`, since its builder and registry are the admin's.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tools.programs import ensure_program

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "model-gateway"
CONFIG_TYPE = "application/vnd.cncf.helm.config.v1+json"
LAYER_TYPE = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", re.M)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class ReleaseFailed(Exception):
    """The release cannot be made; the text says what to do."""


def read_versions(root: Path) -> dict[str, str]:
    """Every place that names the version."""
    chart = yaml.safe_load((root / "charts/model-gateway/Chart.yaml").read_text())
    project = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.M)
    source = (root / "core/gateway_core/api/resource.py").read_text()
    release = re.search(r'^RELEASE = "(.+)"$', source, re.M)
    return {
        "pyproject.toml": project[1] if project else "",
        "core/gateway_core/api/resource.py (RELEASE)": release[1] if release else "",
        "Chart.yaml (version)": str(chart["version"]),
        "Chart.yaml (appVersion)": str(chart["appVersion"]),
    }


def check_versions(root: Path, version: str) -> None:
    """ReleaseFailed where a place has another version, or the changelog has no section of it."""
    if not _VERSION.fullmatch(version):
        raise ReleaseFailed(f"{version!r} is no version: it is written like 1.2.3 or 1.2.3-rc.1")
    problems = [
        f"{place} says {found}" for place, found in read_versions(root).items() if found != version
    ]
    if f"## {version}" not in (root / "CHANGELOG.md").read_text():
        problems.append(f"CHANGELOG.md has no section `## {version}`")
    if problems:
        raise ReleaseFailed(f"this is not {version} yet: " + "; ".join(problems))


def build_wheel(root: Path, folder: Path, epoch: int) -> Path:
    """The wheel, built twice with the same bytes."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    digests = set()
    for _ in range(2):
        with tempfile.TemporaryDirectory() as place:
            command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
            _run(*command, f"--wheel-dir={place}", str(root), env=env)
            [wheel] = Path(place).glob("*.whl")
            digests.add(_digest(wheel.read_bytes()))
            shutil.copy(wheel, folder)
    if len(digests) != 1:
        raise ReleaseFailed("two builds of the wheel differ")
    return folder / wheel.name


def check_wheel(wheel: Path, version: str) -> None:
    """The command line inside the wheel names its version. ReleaseFailed."""
    env = {**os.environ, "PYTHONPATH": str(wheel)}
    # outside of the checkout, whose packages would be found first
    said = _run(sys.executable, "-m", "gateway_cli", "--version", env=env, cwd=wheel.parent)
    if not said.startswith(f"gatewayctl {version} "):
        raise ReleaseFailed(f"the wheel says {said.strip()!r}")


def pack_chart(files: Mapping[str, bytes], epoch: int) -> bytes:
    """A chart archive whose bytes depend on names, contents and `epoch` only."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(files[name]), epoch, 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    return gzip.compress(packed.getvalue(), mtime=0)


def read_archive(content: bytes) -> dict[str, bytes]:
    """The files of a chart archive, by name."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for entry in archive.getmembers():
            file = archive.extractfile(entry)
            if file is not None:
                found[entry.name] = file.read()
    return found


def write_layout(folder: Path, archive: bytes, metadata: Any, version: str) -> str:
    """An OCI image layout with the chart; the digest of its manifest."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def store(content: bytes, media_type: str) -> dict[str, Any]:
        digest = _digest(content)
        (blobs / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": store(_dump(metadata), CONFIG_TYPE),
        "layers": [store(archive, LAYER_TYPE)],
    }
    entry = store(_dump(manifest), MANIFEST_TYPE)
    entry["annotations"] = {"org.opencontainers.image.ref.name": version}
    index = {"schemaVersion": 2, "manifests": [entry]}
    (folder / "index.json").write_bytes(_dump(index))
    (folder / "oci-layout").write_bytes(_dump({"imageLayoutVersion": "1.0.0"}))
    return str(entry["digest"])


def describe_packages(lock: str, version: str) -> dict[str, Any]:
    """A CycloneDX SBOM of the Python packages that the image installs, from their lock file."""
    components = []
    starts = list(_PIN.finditer(lock))
    for start, end in zip(starts, [*starts[1:], None], strict=True):
        text = lock[start.end() : end.start() if end else len(lock)]
        name = re.sub(r"[-_.]+", "-", start[1]).lower()
        components.append(
            {
                "type": "library",
                "name": name,
                "version": start[2],
                "purl": f"pkg:pypi/{name}@{start[2]}",
                "bom-ref": f"pkg:pypi/{name}@{start[2]}",
                "externalReferences": [
                    {
                        "type": "distribution",
                        "url": f"pkg:pypi/{name}@{start[2]}",
                        "hashes": [
                            {"alg": "SHA-256", "content": each} for each in _HASH.findall(text)
                        ],
                    }
                ],
            }
        )
    product = {"type": "application", "name": "model-gateway", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": product},
        "components": components,
    }


def check_chart(archive: Path) -> None:
    """Lints the archive, and renders it to the same objects as the folder. ReleaseFailed."""
    helm = str(ensure_program("helm"))
    _run(helm, "lint", "--quiet", "--strict", str(archive))
    kube = ("--kube-version=1.36", "--namespace=n")
    rendered, expected = (
        _run(helm, "template", "gateway", str(place), *kube) for place in (archive, CHART)
    )
    if rendered != expected:
        raise ReleaseFailed("the packed chart renders to other objects than the folder")


def make_release(version: str, folder: Path) -> None:
    """Builds and checks everything in a new `folder`. ReleaseFailed."""
    check_versions(ROOT, version)
    if folder.exists():
        raise ReleaseFailed(f"{folder} exists: a release is made once; remove it to make it again")
    folder.mkdir(parents=True)
    epoch = int(_run("git", "-C", str(ROOT), "log", "-1", "--format=%ct"))
    check_wheel(build_wheel(ROOT, folder, epoch), version)
    archive = folder / f"model-gateway-{version}.tgz"
    _run(str(ensure_program("helm")), "package", str(CHART), f"--destination={folder}")
    archive.write_bytes(pack_chart(read_archive(archive.read_bytes()), epoch))
    check_chart(archive)
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())
    digest = write_layout(folder / "chart-oci", archive.read_bytes(), metadata, version)
    lock = (ROOT / "requirements" / "runtime.txt").read_text()
    (folder / "sbom.cdx.json").write_bytes(_dump(describe_packages(lock, version)))
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [f"{_digest(path.read_bytes())}  {path.relative_to(folder)}\n" for path in files]
    (folder / "SHA256SUMS").write_text("".join(lines))
    print(f"{folder}: {len(files)} files; the chart is {digest}")
    print(f"the image: make image IMAGE=registry/model-gateway:{version}")


def _dump(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _run(*command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(  # noqa: S603 - the commands above
        command, env=env, cwd=cwd, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseFailed(
            f"{' '.join(command[:4])} fails: {(done.stderr or done.stdout).strip()}"
        )
    return done.stdout


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    try:
        make_release(options.version, options.folder or ROOT / "dist" / options.version)
    except ReleaseFailed as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
