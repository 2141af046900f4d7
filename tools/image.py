"""The image of a release: an OCI archive, built twice with the same bytes, and what is inside."""

import gzip
import hashlib
import io
import json
import shlex
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tools.processes import CommandFailed, run_command

BUILDERS = ("buildah", "podman")
STATUS = "var/lib/dpkg/status"


@dataclass(frozen=True, slots=True)
class ImageBuilder:
    """buildah or podman: the words that call it, and more options of its `build`."""

    words: tuple[str, ...]
    options: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "ImageBuilder | None":
        """Return the one of BUILDER and BUILD_OPTIONS, or what is installed; None for `none`.

        Raises:
            CommandFailed: there is neither.
        """
        words = shlex.split(environment.get("BUILDER", ""))
        if words == ["none"]:
            return None
        words = words or [name for name in BUILDERS if shutil.which(name)][:1]
        if not words:
            raise CommandFailed(
                "neither buildah nor podman is installed: BUILDER names another call of one, and"
                " BUILDER=none makes a release without the image"
            )
        return cls(tuple(words), tuple(shlex.split(environment.get("BUILD_OPTIONS", ""))))

    def build(self, source: Path, archive: Path, version: str, revision: str, epoch: int) -> str:
        """Write the image of the Dockerfile in `source` as an OCI archive, without the cache.

        `archive` is a path without a colon, where no file is; `epoch` is the time of every file and
        of the image in seconds. Return the digest of its manifest, `sha256:…`. CommandFailed.
        """
        tag = f"localhost/model-gateway-release:{version}"
        labels = {"version": version, "revision": revision}
        marks = [f"--label=org.opencontainers.image.{name}={labels[name]}" for name in labels]
        settings = ("--no-cache", f"--timestamp={epoch}", f"--tag={tag}", *marks, *self.options)
        run_command(*self.words, "build", *settings, str(source))
        try:
            run_command(*self.words, "push", "--quiet", tag, f"oci-archive:{archive}:{version}")
        finally:
            run_command(*self.words, "rmi", tag)
        return read_image(archive).digest


@dataclass(frozen=True, slots=True)
class Image:
    """What an OCI archive of one image holds."""

    digest: str
    config: dict[str, Any]
    packages: list[dict[str, str]]
    """The fields of each installed Debian package."""


def read_image(archive: Path) -> Image:
    """Read an OCI archive and compare each blob with its digest. CommandFailed if one differs."""
    with tarfile.open(archive) as files:

        def read(descriptor: Mapping[str, Any]) -> bytes:
            kind, _, value = descriptor["digest"].partition(":")
            content = _read_member(files, f"blobs/{kind}/{value}")
            if hashlib.sha256(content).hexdigest() != value:
                raise CommandFailed(f"{archive}: a blob is not {descriptor['digest']}")
            return content

        [entry] = json.loads(_read_member(files, "index.json"))["manifests"]
        manifest = json.loads(read(entry))
        status = ""
        for layer in manifest["layers"]:
            status = _find_status(read(layer)) or status
        return Image(entry["digest"], json.loads(read(manifest["config"])), read_packages(status))


def read_packages(status: str) -> list[dict[str, str]]:
    """Return the fields of each package that a text of dpkg's form says is installed."""
    found = [dict(HeaderParser().parsestr(part)) for part in status.split("\n\n") if part.strip()]
    return [fields for fields in found if fields.get("Status", "").endswith(" installed")]


def describe_debian_packages(packages: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return CycloneDX components of Debian packages, by name."""
    return [
        describe_component(
            fields["Package"],
            fields["Version"],
            f"pkg:deb/debian/{fields['Package']}@{quote(fields['Version'], safe='')}"
            f"?arch={fields['Architecture']}",
        )
        for fields in sorted(packages, key=lambda package: package["Package"])
    ]


def describe_component(name: str, version: str, purl: str) -> dict[str, Any]:
    """Return the CycloneDX component of a package."""
    return {"type": "library", "name": name, "version": version, "purl": purl, "bom-ref": purl}


def _find_status(layer: bytes) -> str:
    content = gzip.decompress(layer) if layer.startswith(b"\x1f\x8b") else layer
    with tarfile.open(fileobj=io.BytesIO(content)) as files:
        try:
            return _read_member(files, STATUS).decode()
        except KeyError:
            return ""


def _read_member(files: tarfile.TarFile, name: str) -> bytes:
    file = files.extractfile(name)
    if file is None:
        raise CommandFailed(f"{name} is no file")
    return file.read()
