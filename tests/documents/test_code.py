"""Every block of code in the documents runs, is validated, or has a reason why not.

Blocks that are commands run in one local run, as a reader would type them.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.documents.blocks import (
    ROOT,
    Elsewhere,
    Objects,
    Parsed,
    Python,
    Run,
    Values,
    read_blocks,
)
from tests.documents.plan import PLAN
from tests.servers.tenants import unique
from tests.servers.world import World

GENERATED = ("docs/gatewayctl.md", "docs/reliability.md", "charts/model-gateway/README.md")
ELSEWHERE = ("docs/guides", "docs/reference", "docs/decisions", ".venv", ".site", ".local")
SCHEMA = json.loads((ROOT / "charts/model-gateway/values.schema.json").read_text())
PRELUDE = (Path(__file__).parent / "prelude.sh").read_text()


@pytest.fixture(scope="module")
def world(control_plane):
    """One local run for all pages."""
    with World(control_plane, restart=True, mcp=True) as running:
        yield running


@pytest.fixture
def variables(world, tmp_path):
    """The environment of a reader who has read gateway.env, in a folder like the repository."""
    (tmp_path / ".local").symlink_to(world.config.directory)
    (tmp_path / ".local" / "gateway.env").write_text(
        "".join(f"{name}='{value}'\n" for name, value in world.env.items())
    )
    kubectl = world.run.kubectl_path.parent
    places = [str(Path(sys.executable).parent), str(kubectl), os.environ["PATH"]]
    return {
        **world.env,
        "PATH": ":".join(places),
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
    }


def list_pages():
    """All pages with blocks of code for which this test is responsible."""
    paths = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*.md")]
    return [
        path
        for path in sorted(paths)
        if path not in GENERATED and not path.startswith(ELSEWHERE) and read_blocks(path)
    ]


def pair(page, *kinds):
    """The blocks of a page that are treated as one of these kinds."""
    blocks = zip(PLAN[page], read_blocks(page), strict=True)
    return [(step, block) for step, block in blocks if isinstance(step, kinds)]


def with_kinds(*kinds):
    return pytest.mark.parametrize(
        "page", [page for page in PLAN if any(isinstance(step, kinds) for step in PLAN[page])]
    )


def test_every_block_of_every_page_has_its_treatment():
    assert list_pages() == sorted(PLAN)
    for page, steps in PLAN.items():
        blocks = read_blocks(page)
        assert len(blocks) == len(steps), f"{page}: a block is new or gone"
        for step, block in zip(steps, blocks, strict=True):
            assert block.text.lstrip().startswith(step.begins), (page, step.begins)


@with_kinds(Elsewhere)
def test_page_is_named_in_the_test_that_covers_it(page):
    for step, _ in pair(page, Elsewhere):
        assert re.search(rf"\b{Path(page).name}\b", (ROOT / step.test).read_text()), step.test


@with_kinds(Parsed)
def test_block_is_yaml_or_json(page):
    for _, block in pair(page, Parsed):
        assert isinstance(yaml.safe_load(block.text), dict)


@with_kinds(Values)
def test_chart_accepts_values(page):
    for _, block in pair(page, Values):
        validator = jsonschema.Draft7Validator({**SCHEMA, "required": []})
        assert [error.message for error in validator.iter_errors(yaml.safe_load(block.text))] == []


@with_kinds(Objects)
def test_api_server_accepts_objects(world, page):
    for _, block in pair(page, Objects):
        world.apply(*yaml.safe_load_all(block.text), dry_run=True)


@pytest.mark.timeout(300)
@with_kinds(Run)
def test_commands_of_a_page(variables, tmp_path, page):
    # of the page alone, so that no page depends on another
    names = {"ACCOUNT": unique("acme"), "MEMBER": unique("ann")}
    script = PRELUDE
    for step, block in pair(page, Run):
        text = block.text
        for shown, real in step.replace:
            assert shown in text, (page, shown)
            text = text.replace(shown, real)
        text = re.sub(r"\bacme\b(?!\.yaml)", names["ACCOUNT"], step.before + text)
        script += re.sub(r"\bann\b", names["MEMBER"], text) + "\n"
    done = subprocess.run(
        ["bash"],
        input=script,
        cwd=tmp_path,
        env={**variables, **names},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    for step, _ in pair(page, Run):
        assert re.search(step.prints, done.stdout), done.stdout[-3000:]


@with_kinds(Python)
def test_programs_of_a_page(variables, tmp_path, page):
    for step, block in pair(page, Python):
        done = subprocess.run(
            [sys.executable, "-c", step.before + "\n" + block.text],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr[-3000:]
