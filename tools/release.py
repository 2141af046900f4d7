"""`make release VERSION=…`: wheel, image, chart (archive and OCI layout), SBOM and checksums.

All of it is made from the files of the last commit, with the time of that commit; wheel and image
are built twice and compared.

    BUILDER         buildah or podman, with global options if it needs some; none: no image
    BUILD_OPTIONS   more options of its `build`, such as `--build-arg BASE_IMAGE=…`
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tools.image import ImageBuilder, describe_component, describe_debian_packages, read_image
from tools.processes import CommandFailed, export_revision, run_command
from tools.programs import ensure_program

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "charts" / "model-gateway"
CONFIG_TYPE = "application/vnd.cncf.helm.config.v1+json"
LAYER_TYPE = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
_VERSION = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?")
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+).*(?:\n +--hash=.*)*", re.M)
"""A package with its version in a lock file, and the lines of its hashes."""
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def read_versions(root: Path) -> dict[str, str]:
    """Return every place that names the version."""
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
    """CommandFailed where a place has another version, or the changelog has no section of it."""
    if not _VERSION.fullmatch(version):
        raise CommandFailed(f"{version!r} is no version: it is written like 1.2.3 or 1.2.3-rc.1")
    problems = [
        f"{place} says {found}" for place, found in read_versions(root).items() if found != version
    ]
    if f"## {version}" not in (root / "CHANGELOG.md").read_text():
        problems.append(f"CHANGELOG.md has no section `## {version}`")
    if problems:
        raise CommandFailed(f"this is not {version} yet: " + "; ".join(problems))


def build_wheel(root: Path, folder: Path, epoch: int) -> Path:
    """Write the wheel into `folder`, built twice with the same bytes. CommandFailed."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    command = (
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        f"--wheel-dir={folder}",
    )
    digests = set()
    for _ in range(2):
        run_command(*command, str(root), env=env)
        [wheel] = folder.glob("*.whl")
        digests.add(_digest(wheel.read_bytes()))
    if len(digests) != 1:
        raise CommandFailed("two builds of the wheel differ")
    return wheel


def check_wheel(wheel: Path, version: str) -> None:
    """Check that the command line inside the wheel names its version. CommandFailed."""
    env = {**os.environ, "PYTHONPATH": str(wheel)}
    # outside of the checkout, whose packages would be found first
    said = run_command(sys.executable, "-m", "gateway_cli", "--version", env=env, cwd=wheel.parent)
    if not said.startswith(f"gatewayctl {version} "):
        raise CommandFailed(f"the wheel says {said.strip()!r}")


def pack_chart(files: Mapping[str, bytes], epoch: int) -> bytes:
    """Return a chart archive whose bytes depend on names, contents and `epoch` only."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(files[name]), epoch, 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    return gzip.compress(packed.getvalue(), mtime=0)


def read_archive(content: bytes) -> dict[str, bytes]:
    """Return the files of a chart archive, by name."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        files = {entry.name: archive.extractfile(entry) for entry in archive.getmembers()}
        return {name: file.read() for name, file in files.items() if file}


def write_layout(folder: Path, archive: bytes, metadata: Any, version: str) -> str:
    """Return an OCI image layout with the chart; the digest of its manifest."""
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
    """Return a CycloneDX SBOM of the Python packages of the image, from their lock file."""
    components = []
    for match in _PIN.finditer(lock):
        name = re.sub(r"[-_.]+", "-", match[1]).lower()
        purl = f"pkg:pypi/{name}@{match[2]}"
        hashes = [{"alg": "SHA-256", "content": value} for value in _HASH.findall(match[0])]
        source = {"type": "distribution", "url": purl, "hashes": hashes}
        component = describe_component(name, match[2], purl)
        components.append({**component, "externalReferences": [source]})
    product = {"type": "application", "name": "model-gateway", "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": product},
        "components": components,
    }


def check_chart(archive: Path, chart: Path) -> None:
    """Lint the archive, and compare what it renders to with the folder. CommandFailed."""
    helm = str(ensure_program("helm"))
    run_command(helm, "lint", "--quiet", "--strict", str(archive))
    kube = ("--kube-version=1.36", "--namespace=n")
    rendered, expected = (
        run_command(helm, "template", "gateway", str(place), *kube) for place in (archive, chart)
    )
    if rendered != expected:
        raise CommandFailed("the packed chart renders to other objects than the folder")


def build_chart(chart: Path, folder: Path, version: str, epoch: int) -> None:
    """Write the chart into `folder`: as an archive, and as an OCI layout. CommandFailed."""
    archive = folder / f"model-gateway-{version}.tgz"
    run_command(str(ensure_program("helm")), "package", str(chart), f"--destination={folder}")
    archive.write_bytes(pack_chart(read_archive(archive.read_bytes()), epoch))
    check_chart(archive, chart)
    metadata = yaml.safe_load((chart / "Chart.yaml").read_text())
    digest = write_layout(folder / "chart-oci", archive.read_bytes(), metadata, version)
    print(f"✓ the chart is {digest}")


def build_image(
    builder: ImageBuilder, source: Path, folder: Path, version: str, revision: str, epoch: int
) -> list[dict[str, str]]:
    """Write the image as an OCI archive, built twice with the same bytes. CommandFailed.

    Return its Debian packages.
    """
    archive = folder / f"model-gateway-image-{version}.tar"
    digest = builder.build(source, archive, version, revision, epoch)
    with tempfile.TemporaryDirectory() as place:
        again = builder.build(source, Path(place) / "image.tar", version, revision, epoch)
    if digest != again:
        raise CommandFailed(f"two builds of the image differ: {digest} and {again}")
    print(f"✓ the image is {digest}")
    return read_image(archive).packages


def make_release(version: str, folder: Path, builder: ImageBuilder | None) -> None:
    """Build and check everything in a new `folder`. CommandFailed."""
    if folder.exists():
        raise CommandFailed(f"{folder} exists: a release is made once; remove it to make it again")
    folder.parent.mkdir(parents=True, exist_ok=True)
    said = run_command("git", "-C", str(ROOT), "log", "-1", "--format=%H %ct")
    revision, _, time = said.partition(" ")
    epoch = int(time)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".release-") as place:
        source, made = Path(place) / "source", Path(place) / "made"
        source.mkdir()
        made.mkdir()
        export_revision(ROOT, revision, source)
        check_versions(source, version)
        check_wheel(build_wheel(source, made, epoch), version)
        print("✓ the wheel, built twice with the same bytes")
        build_chart(source / CHART.relative_to(ROOT), made, version, epoch)
        lock = (source / "requirements" / "runtime.txt").read_text()
        inventory = describe_packages(lock, version)
        if builder:
            packages = build_image(builder, source, made, version, revision, epoch)
            inventory["components"] += describe_debian_packages(packages)
        (made / "sbom.cdx.json").write_bytes(_dump(inventory))
        files = sorted(path for path in made.rglob("*") if path.is_file())
        lines = [f"{_digest(path.read_bytes())}  {path.relative_to(made)}\n" for path in files]
        (made / "SHA256SUMS").write_text("".join(lines))
        made.rename(folder)
    print(f"{folder}: {len(files) + 1} files")
    if builder:
        print(f"next, with a cluster for tests: make e2e RELEASE={folder}")


def _dump(document: Any) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main() -> int:
    """Return 0 if the release was made."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("version")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    try:
        builder = ImageBuilder.from_environment(os.environ)
        make_release(options.version, options.folder or ROOT / "dist" / options.version, builder)
    except CommandFailed as error:
        print(f"✗ {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
