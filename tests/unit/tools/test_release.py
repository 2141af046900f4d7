"""`make release`: what it refuses, and that its artifacts are whole and reproducible."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tools.processes import CommandFailed
from tools.release import (
    ROOT,
    check_versions,
    describe_packages,
    pack_chart,
    read_archive,
    read_versions,
    write_layout,
)

FILES = {"model-gateway/values.yaml": b"a: 1\n", "model-gateway/Chart.yaml": b"name: x\n"}
LOCK = """\
Some_Package==1.2.3 \\
    --hash=sha256:{a} \\
    --hash=sha256:{b}
other==2 ; sys_platform == 'linux' \\
    --hash=sha256:{c}
""".format(a="a" * 64, b="b" * 64, c="c" * 64)


def test_all_places_name_one_version() -> None:
    assert len(set(read_versions(ROOT).values())) == 1


@pytest.mark.parametrize("version", ["", "1", "v1.2.3", "1.2.3/../x"])
def test_text_that_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(CommandFailed, match="is no version"):
        check_versions(ROOT, version)


def test_each_place_with_another_version_is_named() -> None:
    with pytest.raises(CommandFailed) as error:
        check_versions(ROOT, "999.0.0")
    for place in (*read_versions(ROOT), "CHANGELOG.md"):
        assert place in str(error.value)


def test_archive_depends_on_its_content_alone() -> None:
    packed = pack_chart(FILES, 1_700_000_000)
    assert packed == pack_chart(dict(reversed(FILES.items())), 1_700_000_000)
    assert read_archive(packed) == FILES


def test_layout_holds_what_its_digests_name(tmp_path: Path) -> None:
    archive = pack_chart(FILES, 0)
    digest = write_layout(tmp_path, archive, {"name": "x"}, "1.2.3")

    def read(descriptor: Any) -> bytes:
        kind, _, value = descriptor["digest"].partition(":")
        content = (tmp_path / "blobs" / kind / value).read_bytes()
        assert hashlib.sha256(content).hexdigest() == value
        assert len(content) == descriptor["size"]
        return content

    [entry] = json.loads((tmp_path / "index.json").read_text())["manifests"]
    assert entry["digest"] == digest
    manifest = json.loads(read(entry))
    assert json.loads(read(manifest["config"])) == {"name": "x"}
    assert read(manifest["layers"][0]) == archive


def test_sbom_has_each_package_with_its_hashes() -> None:
    components = describe_packages(LOCK, "1.2.3")["components"]
    assert [c["purl"] for c in components] == ["pkg:pypi/some-package@1.2.3", "pkg:pypi/other@2"]
    assert [len(c["externalReferences"][0]["hashes"]) for c in components] == [2, 1]


def test_sbom_has_every_pin_of_the_image() -> None:
    lock = (ROOT / "requirements" / "runtime.txt").read_text()
    components = describe_packages(lock, "1.2.3")["components"]
    assert len(components) == lock.count("==") - lock.count("'=='") - lock.count(" == ") > 20
    assert all(c["externalReferences"][0]["hashes"] for c in components)
