"""The suites of helm-unittest beside the chart, and that none of it is packed."""

import subprocess
import tarfile

import yaml
from tools.programs import find_program

from tests.chart.conftest import CHART


def test_suites_of_helm_unittest_pass():
    done = subprocess.run(
        [str(find_program("helm-unittest")), "--strict", "--color=false", str(CHART)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Tests:       0 passed" not in done.stdout


def test_every_template_is_in_a_suite():
    named = set()
    for path in (CHART / "tests").glob("*_test.yaml"):
        for pattern in yaml.safe_load(path.read_text())["templates"]:
            named |= {str(found.relative_to(CHART)) for found in CHART.glob(pattern)}
    templates = {str(path.relative_to(CHART)) for path in CHART.glob("templates/**/*.yaml")}
    assert not templates - named


def test_test_files_are_not_packaged(chart, tmp_path):
    done = chart.run("package", str(CHART), f"--destination={tmp_path}", values=None)
    assert done.returncode == 0, done.stderr
    [archive] = tmp_path.glob("*.tgz")
    with tarfile.open(archive) as content:
        names = {name.partition("/")[2] for name in content.getnames()}
    assert "templates/tests/installation.yaml" in names
    assert not [name for name in names if name.startswith(("tests/", "ci/"))]
