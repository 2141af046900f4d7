"""A benchmark's run keeps what it has measured, also when a stage fails."""

import json
from types import SimpleNamespace

import pytest

from gateway_cli.local.processes import PROCESSES
from tests.bench import __main__ as bench
from tests.bench.report import Report


class StillWorld:
    """Stands for a running gateway; `restarted` are the processes that were restarted."""

    names = PROCESSES

    def __init__(self, *dead):
        self.restarted = []
        self.run = SimpleNamespace(restart=lambda process, env: self.restarted.append(process))
        self._dead = dead

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def is_alive(self, process):
        return process not in self._dead


@pytest.fixture
def stages(monkeypatch, tmp_path):
    """Runs `main` with these stages; exit code, and the document that was written."""

    def run(**stages):
        monkeypatch.setattr(bench, "World", StillWorld)
        monkeypatch.setattr(bench, "STAGES", stages)
        monkeypatch.setattr(bench, "make_bench_key", lambda _: "a key")
        monkeypatch.setattr(bench, "behave", lambda _: _nothing())
        monkeypatch.setattr(bench, "ROOT", tmp_path)
        monkeypatch.setattr("sys.argv", ["bench"])
        code = bench.main()
        return code, json.loads((tmp_path / "bench-results.json").read_text())

    return run


async def _nothing():
    pass


async def measure_well(world, key, report):
    report.add("well", 1.0, "s")


async def break_off(world, key, report):
    report.add("half", 1.0, "s")
    raise RuntimeError("no more")


async def interrupt(world, key, report):
    raise KeyboardInterrupt


def names(document):
    return [figure["name"] for figure in document["figures"]]


def test_stages_that_end_well_end_with_0(stages):
    code, document = stages(first=measure_well)
    assert (code, names(document), document["failed"]) == (0, ["well"], {})
    assert document["date"]


def test_stage_that_fails_is_named_and_the_next_one_runs(stages, capsys):
    code, document = stages(first=break_off, second=measure_well)
    assert code == 1
    assert names(document) == ["half", "well"]
    assert document["failed"] == {"first": "RuntimeError('no more')"}
    assert "failed: first" in capsys.readouterr().out


def test_interrupted_run_keeps_its_figures(stages):
    code, document = stages(first=measure_well, second=interrupt, third=measure_well)
    assert (code, names(document)) == (1, ["well"])
    assert document["failed"] == {"the run": "interrupted"}


def test_every_stage_begins_with_fresh_processes(tmp_path):
    world, report = StillWorld("redis"), Report(tmp_path / "results.json")
    bench.run_stage("first", break_off, world, "key", report)
    assert sorted(world.restarted) == ["api", "operator", "redis"]


def test_missed_bar_ends_with_1(stages):
    async def miss(world, key, report):
        report.add("ratio", 0.5, "ratio", at_least=0.7)

    code, document = stages(first=miss)
    assert code == 1
    assert not document["figures"][0]["passes"]
