"""The image of a release: who builds it, and what is read from its archive."""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from tools.image import ImageBuilder, describe_debian_packages, read_image, read_packages
from tools.processes import CommandFailed

STATUS = """\
Package: zlib1g
Status: install ok installed
Architecture: amd64
Version: 1:1.2.13.dfsg-1+deb12u1
Description: compression library
 continued on a second line

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: base-files
Status: install ok installed
Architecture: all
Version: 12.4~rc1
"""


def pack(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of the files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def write_image(path: Path, layers: list[bytes], *, spoiled: bool = False) -> str:
    """An OCI archive; the digest of its manifest."""
    blobs: dict[str, bytes] = {}

    def store(content: bytes) -> dict[str, str]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = content + b" " if spoiled else content
        return {"digest": f"sha256:{digest}"}

    manifest = {"config": store(b'{"config": {}}'), "layers": [store(each) for each in layers]}
    entry = store(json.dumps(manifest).encode())
    blobs["index.json"] = json.dumps({"manifests": [entry]}).encode()
    path.write_bytes(pack(blobs))
    return entry["digest"]


def test_packages_of_the_topmost_layer_that_lists_them_are_read(tmp_path: Path) -> None:
    below = pack({"var/lib/dpkg/status": b"Package: old\nStatus: install ok installed\n"})
    above = gzip.compress(pack({"var/lib/dpkg/status": STATUS.encode()}))
    archive = tmp_path / "image.tar"
    digest = write_image(archive, [below, above, pack({"opt/file": b""})])
    image = read_image(archive)
    assert image.digest == digest
    assert [fields["Package"] for fields in image.packages] == ["zlib1g", "base-files"]


def test_blob_that_is_not_what_its_digest_says_is_refused(tmp_path: Path) -> None:
    write_image(tmp_path / "image.tar", [], spoiled=True)
    with pytest.raises(CommandFailed, match="a blob is not sha256:"):
        read_image(tmp_path / "image.tar")


def test_debian_packages_have_package_urls_with_quoted_versions() -> None:
    assert [each["purl"] for each in describe_debian_packages(read_packages(STATUS))] == [
        "pkg:deb/debian/base-files@12.4~rc1?arch=all",
        "pkg:deb/debian/zlib1g@1%3A1.2.13.dfsg-1%2Bdeb12u1?arch=amd64",
    ]


def test_builder_and_its_options_are_words_of_the_environment() -> None:
    said = {"BUILDER": "buildah --root '/a b'", "BUILD_OPTIONS": "--isolation chroot"}
    assert ImageBuilder.from_environment(said) == ImageBuilder(
        ("buildah", "--root", "/a b"), ("--isolation", "chroot")
    )
    assert ImageBuilder.from_environment({"BUILDER": "none"}) is None


def test_missing_builder_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CommandFailed, match="neither buildah nor podman"):
        ImageBuilder.from_environment({})
