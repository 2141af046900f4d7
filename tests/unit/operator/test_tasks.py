"""A task from its creation to its end: from REST and from kubectl."""

from collections.abc import Callable
from typing import Any

import pytest

from gateway_core.contract.names import ACCOUNT_LABEL, SHARD_LABEL, TASK_FINALIZER, shard_of
from gateway_core.ports.records import RecordOutcomeUnknown
from gateway_core.ports.upstream import JobReport, JobState, SubmissionGuarantee
from tests.fakes.clock import in_virtual_time
from tests.fakes.records import Fault
from tests.fakes.upstream import FakeUpstream
from tests.unit.operator.stage import QUOTE, TASKS, Stage


class TestFromRest:
    @in_virtual_time
    async def test_three_status_writes_and_one_finalizer_removal(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        status = await stage.finish(name)
        assert status["phase"] == "Completed"
        writes = [call for call in stage.records.calls if call[1] == TASKS]
        assert writes.count(("patch_status", TASKS)) == 3
        assert writes.count(("patch", TASKS)) == 1
        assert stage.count_jobs(name) == 1
        assert await stage.balance() == (QUOTE, 0)
        stage.check_history()
        await stage.check_archive()

    @in_virtual_time
    async def test_no_write_for_however_many_polls(self) -> None:
        stage = Stage(FakeUpstream(seconds=500))
        await stage.boot()
        name = await stage.admit()
        await stage.finish(name, seconds=600)
        assert stage.upstream.count("poll") > 20
        assert stage.records.calls.count(("patch_status", TASKS)) == 3

    @in_virtual_time
    async def test_the_status_tells_the_story(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        status = await stage.finish(name)
        [video] = status["result"]["videos"]
        assert video["url"].startswith("https://media.example/media/" + stage.uid(name))
        assert stage.store.contents[video["key"]] == b"a video"
        assert video["bytes"] == len(b"a video")
        assert video["contentType"] == "video/mp4"
        assert status["chargedMicros"] == QUOTE
        assert status["cost"] == "0.30"
        assert status["upstream"]["providerName"] == "simulated"
        phases = [obj.get("status", {}).get("phase") for obj in stage.history[name]]
        assert list(dict.fromkeys(phases)) == [None, "Submitting", "Running", "Completed"]

    @in_virtual_time
    async def test_the_provider_gets_the_input_as_it_was_admitted(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit(input='{"prompt":"as admitted"}')
        await stage.finish(name)
        [job] = stage.upstream.jobs
        assert job.input == {"prompt": "as admitted"}
        assert job.reference == stage.uid(name)

    @in_virtual_time
    async def test_fewer_seconds_than_asked_for_cost_less(self) -> None:
        stage = Stage(FakeUpstream(made_seconds=4.5))
        await stage.boot()
        name = await stage.admit()
        status = await stage.finish(name)
        assert status["chargedMicros"] == 270_000
        assert await stage.balance() == (270_000, 0)

    @in_virtual_time
    async def test_more_seconds_than_asked_for_cost_what_was_held(self) -> None:
        stage = Stage(FakeUpstream(made_seconds=60.0))
        await stage.boot()
        assert (await stage.finish(await stage.admit()))["chargedMicros"] == QUOTE

    @in_virtual_time
    async def test_many_at_once(self) -> None:
        stage = Stage()
        await stage.boot()
        names = [await stage.admit(reserved=10) for _ in range(50)]
        for name in names:
            await stage.finish(name)
        assert len(stage.upstream.jobs) == 50
        assert await stage.balance() == (500, 0)
        stage.check_history()

    @in_virtual_time
    async def test_a_task_of_a_model_that_is_gone_ends_all_the_same(self) -> None:
        stage = Stage(FakeUpstream(seconds=20, made_seconds=1.0))
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.upstream.jobs)
        stage.records.remove("gatewaymodels", "sim-q4")
        assert (await stage.finish(name))["chargedMicros"] == QUOTE

    @in_virtual_time
    async def test_a_provider_that_comes_late_is_waited_for(self) -> None:
        stage = Stage()
        stage.records.remove("gatewayproviders", "simulated")
        await stage.boot()
        name = await stage.admit()
        await stage.wait(lambda: stage.records.calls.count(("patch_status", TASKS)) == 0)
        stage.put_provider()
        assert (await stage.finish(name))["phase"] == "Completed"
        assert await stage.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_the_first_usable_route_is_taken(self) -> None:
        stage = Stage()
        stage.put_model(
            routes=[
                {"name": "a", "providerName": "nobody", "upstreamModel": "x"},
                {"name": "b", "providerName": "simulated", "upstreamModel": "q4"},
            ]
        )
        await stage.boot()
        status = await stage.finish(await stage.admit())
        assert status["upstream"]["providerName"] == "simulated"

    @in_virtual_time
    async def test_counters_that_are_away_stop_nothing(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        stage.counters.away = True
        assert (await stage.finish(name))["phase"] == "Completed"
        stage.counters.away = False
        assert await stage.balance() == (0, QUOTE)
        assert stage.operator
        await stage.wait(lambda: stage.operator.tools.metrics.stray_holds._value.get(), seconds=400)
        assert await stage.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_counters_that_have_lost_everything_are_rebuilt_from_the_record(self) -> None:
        stage = Stage(FakeUpstream(seconds=30))
        await stage.boot()
        first = await stage.admit()
        await stage.wait(lambda: stage.upstream.jobs)
        stage.counters.lose()
        await stage.finish(first)
        await stage.open_books("demo")
        assert await stage.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_a_record_that_is_away_for_a_while_stops_nothing(self) -> None:
        stage = Stage()
        await stage.boot()
        names = [await stage.admit() for _ in range(3)]
        await stage.wait(lambda: all(stage.status(n).get("phase") == "Running" for n in names))
        stage.records.away = True
        await stage.wait(lambda: stage.upstream.count("fetch") > 6)
        stage.records.away = False
        for name in names:
            assert (await stage.finish(name, seconds=120))["phase"] == "Completed"
        assert len(stage.upstream.jobs) == 3
        stage.check_history()

    @pytest.mark.parametrize("applied", [True, False])
    @pytest.mark.parametrize("number", range(3))
    def test_a_write_whose_answer_is_lost_is_looked_up(self, number: int, applied: bool) -> None:
        @in_virtual_time
        async def run() -> None:
            stage = Stage()
            fault = Fault(RecordOutcomeUnknown("cut"), applied=applied)
            stage.records.order_faults("patch_status", *[None] * number, fault)
            await stage.boot()
            name = await stage.admit()
            assert (await stage.finish(name))["phase"] == "Completed"
            assert stage.count_jobs(name) == 1
            assert await stage.balance() == (QUOTE, 0)
            stage.check_history()

        run()

    @in_virtual_time
    async def test_a_record_that_answers_no_write_is_not_hammered(self) -> None:
        stage = Stage()
        await stage.boot()
        cut = [Fault(RecordOutcomeUnknown("500"), applied=False) for _ in range(10_000)]
        stage.records.order_faults("patch_status", *cut)
        await stage.admit()
        begin = len(stage.records.calls)
        await stage.pass_time(10)
        assert len(stage.records.calls) - begin < 100


class TestFromKubectl:
    @in_virtual_time
    async def test_it_is_quoted_held_labelled_and_run(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.apply(input='{"prompt":"x","reference_image_urls":["http://a.example"]}')
        await stage.wait(lambda: stage.upstream.jobs)
        assert await stage.balance() == (0, QUOTE)
        metadata = stage.history[name][-1]["metadata"]
        assert metadata["labels"] == {ACCOUNT_LABEL: "demo", SHARD_LABEL: str(shard_of(name))}
        assert metadata["finalizers"] == [TASK_FINALIZER]
        status = await stage.finish(name)
        assert status["phase"] == "Completed"
        assert status["reservedMicros"] == QUOTE
        assert await stage.balance() == (QUOTE, 0)
        writes = [call for call in stage.records.calls if call[1] == TASKS]
        assert writes.count(("patch_status", TASKS)) == 3

    @in_virtual_time
    async def test_defaults_are_filled_in_for_the_provider(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.apply(input='{"prompt":"x","reference_image_urls":["http://a.example"]}')
        await stage.finish(name)
        [job] = stage.upstream.jobs
        assert job.input == {
            "prompt": "x",
            "reference_image_urls": ["http://a.example"],
            "aspect_ratio": "16:9",
            "audio": True,
            "duration_seconds": 5,
            "output_resolution": "720p",
        }

    @in_virtual_time
    async def test_what_was_made_is_charged_at_the_price_of_the_default_resolution(self) -> None:
        stage = Stage(FakeUpstream(made_seconds=4.0))
        await stage.boot()
        name = await stage.apply(input='{"prompt":"x","reference_image_urls":["http://a.example"]}')
        assert (await stage.finish(name))["chargedMicros"] == 4 * 60_000

    @in_virtual_time
    async def test_a_provider_that_comes_late_makes_it_no_cheaper(self) -> None:
        stage = Stage()
        stage.records.remove("gatewayproviders", "simulated")
        await stage.boot()
        name = await stage.apply()
        await stage.pass_time(10)
        stage.put_provider()
        assert (await stage.finish(name))["chargedMicros"] == QUOTE
        assert await stage.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_a_death_in_the_middle_of_adoption_makes_it_no_cheaper(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.apply()
        await stage.wait(
            lambda: SHARD_LABEL in stage.history[name][-1]["metadata"].get("labels", {})
        )
        assert not stage.status(name)
        await stage.restart()
        assert (await stage.finish(name))["chargedMicros"] == QUOTE
        assert await stage.balance() == (QUOTE, 0)

    @in_virtual_time
    async def test_the_price_is_that_of_its_creation(self) -> None:
        stage = Stage()
        prices = [
            {"perCallMicros": 100},
            {"perCallMicros": 900, "effectiveTime": "2026-11-21T10:00:05Z"},
        ]
        stage.put_model(prices=prices)
        stage.counters.away = True
        await stage.boot_without_books()
        name = await stage.apply()
        await stage.pass_time(20)
        stage.counters.away = False
        assert (await stage.finish(name))["chargedMicros"] == 100

    @in_virtual_time
    async def test_books_that_are_not_open_are_opened(self) -> None:
        stage = Stage()
        await stage.boot_without_books()
        name = await stage.apply()
        assert (await stage.finish(name))["phase"] == "Completed"
        assert await stage.balance() == (QUOTE, 0)

    @pytest.mark.parametrize(
        ("change", "code", "text"),
        [
            ({"accountName": "nobody"}, "invalid_request", "Account nobody does not exist."),
            ({"modelId": "nothing"}, "invalid_request", "Model nothing is not offered"),
            ({"service": "other"}, "invalid_request", "is not offered at other/"),
            ({"input": "nonsense"}, "invalid_request", "The input is unusable"),
            ({"input": "[]"}, "invalid_request", "The input is unusable"),
            ({"input": "{}"}, "invalid_request", "prompt is required"),
            (
                {"input": '{"prompt":"x","reference_image_urls":["ftp://a"],"colour":1}'},
                "invalid_request",
                "reference_image_urls [0] must be an absolute http or https URL",
            ),
            (
                {"callbackUrl": "https://user:pw@example.com"},
                "invalid_request",
                "callback_url must not contain a user name or password",
            ),
        ],
    )
    def test_what_rest_would_have_refused_fails(
        self, change: dict[str, Any], code: str, text: str
    ) -> None:
        @in_virtual_time
        async def run() -> None:
            stage = Stage()
            await stage.boot()
            name = await stage.apply(**change)
            status = await stage.finish(name)
            assert status["failure"]["code"] == code
            assert text in status["failure"]["message"]
            assert stage.upstream.calls == []
            assert await stage.balance() == (0, 0)
            stage.check_history()

        run()

    @in_virtual_time
    async def test_an_input_in_the_store_that_is_not_there_fails(self) -> None:
        stage = Stage()
        await stage.boot()
        ref = {"key": "inputs/demo/x.json", "bytes": 2, "sha256": "0" * 64}
        status = await stage.finish(await stage.apply(input=None, inputRef=ref))
        assert status["failure"]["code"] == "invalid_request"

    @pytest.mark.parametrize(
        ("prepare", "code"),
        [
            (lambda stage: stage.put_account(funds={"paidMicros": 1}), "insufficient_balance"),
            (lambda stage: stage.put_account(suspended=True), "invalid_request"),
            (
                lambda stage: stage.put_model(
                    prices=[{"perCallMicros": 1, "effectiveTime": "2099-01-01T00:00:00Z"}]
                ),
                "invalid_request",
            ),
            (
                lambda stage: stage.put_model(
                    fields=[{"name": "audio", "supported": False}],
                ),
                "invalid_request",
            ),
        ],
        ids=["no funds", "suspended", "no price yet", "field the model lacks"],
    )
    def test_what_the_account_or_model_rules_out_fails(
        self, prepare: Callable[[Stage], None], code: str
    ) -> None:
        @in_virtual_time
        async def run() -> None:
            stage = Stage()
            prepare(stage)
            await stage.boot()
            status = await stage.finish(await stage.apply())
            assert status["failure"]["code"] == code
            assert stage.upstream.calls == []
            assert await stage.balance() == (0, 0)

        run()

    @in_virtual_time
    async def test_an_unlimited_account_needs_no_funds(self) -> None:
        stage = Stage()
        stage.put_account(funds={"paidMicros": 0}, unlimited=True)
        await stage.boot()
        assert (await stage.finish(await stage.apply()))["phase"] == "Completed"

    @in_virtual_time
    async def test_what_it_says_of_its_own_money_counts_for_nothing(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.apply(reservedMicros=1)
        assert (await stage.finish(name))["chargedMicros"] == QUOTE

    @in_virtual_time
    async def test_a_shard_label_of_nonsense_does_no_harm(self) -> None:
        stage = Stage()
        operator = await stage.boot()
        obj = {
            "metadata": {"name": "task-odd", "labels": {SHARD_LABEL: "nonsense"}},
            "spec": stage.spec(),
        }
        await stage.records.create(TASKS, obj)
        other = await stage.admit()
        assert (await stage.finish(other))["phase"] == "Completed"
        await stage.pass_time(200)
        assert operator.is_running, operator.failure
        assert stage.is_ended("task-odd")


class TestOutputs:
    @in_virtual_time
    async def test_several_outputs_are_kept_in_order(self) -> None:
        stage = Stage(FakeUpstream(outputs=("https://p/a", "https://p/b")))
        await stage.boot()
        name = await stage.admit()
        videos = (await stage.finish(name))["result"]["videos"]
        uid = stage.uid(name)
        assert [video["key"] for video in videos] == [f"media/{uid}/0", f"media/{uid}/1"]

    @in_virtual_time
    async def test_an_output_that_is_too_large_fails_the_task(self) -> None:
        stage = Stage(FakeUpstream(content=b"x" * 1001))
        await stage.boot()
        name = await stage.admit()
        status = await stage.finish(name)
        assert status["failure"] == {
            "code": "output_unavailable",
            "message": "The output is larger than allowed.",
        }
        assert await stage.balance() == (0, 0)

    @in_virtual_time
    async def test_a_store_that_is_away_is_waited_for(self) -> None:
        stage = Stage()
        await stage.boot()
        name = await stage.admit()
        stage.store.away = True
        await stage.wait(lambda: stage.upstream.count("fetch") > 2)
        assert not stage.is_ended(name)
        stage.store.away = False
        assert (await stage.finish(name))["phase"] == "Completed"
        assert await stage.balance() == (QUOTE, 0)


@pytest.mark.parametrize("guarantee", list(SubmissionGuarantee))
@pytest.mark.parametrize(
    ("report", "text"),
    [
        (JobReport(JobState.FAILED, message="The prompt is not allowed."), "not allowed"),
        (JobReport(JobState.FAILED), "could not generate"),
        (JobReport(JobState.CANCELLED), "cancelled the job"),
    ],
)
def test_a_job_that_fails_fails_the_task_and_costs_nothing(
    guarantee: SubmissionGuarantee, report: JobReport, text: str
) -> None:
    @in_virtual_time
    async def run() -> None:
        stage = Stage(FakeUpstream(guarantee))
        stage.upstream.polls.append(report)
        await stage.boot()
        status = await stage.finish(await stage.admit())
        assert status["failure"]["code"] == "generation_failed"
        assert text in status["failure"]["message"]
        assert await stage.balance() == (0, 0)

    run()
