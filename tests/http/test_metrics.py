"""`GET /metrics`, read by Prometheus' own parser."""

from __future__ import annotations

import os
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ninfer_core.contract.engine import EngineStats, MemorySummary
from ninfer_core.contract.errors import Unavailable
from ninfer_core.contract.events import Timings
from ninfer_core.testing.scripted_engine import ScriptedEngine
from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http import metrics
from ninfer_gateway_http.metrics_text import Histogram, MetricsText
from ninfer_gateway_http.settings import ServerSettings
from tests.http.conftest import Running

NAMES = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:num_preemptions": "counter",
    "vllm:request_success": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "ninfer_requests_paused": "gauge",
    "ninfer_pauses": "counter",
    "ninfer_replays": "counter",
    "ninfer_restores": "counter",
    "ninfer_checkpoints": "gauge",
    "ninfer_memory_bytes": "gauge",
    "ninfer_pages": "gauge",
    "ninfer_pages_free": "gauge",
    "ninfer_state_slots": "gauge",
    "ninfer_state_slots_free": "gauge",
    "ninfer_decode_rounds": "counter",
    "ninfer_rounds": "counter",
    "ninfer_reuse": "counter",
    "ninfer_http_replies": "counter",
    "ninfer_process_resident_memory_bytes": "gauge",
    "process_resident_memory_bytes": "gauge",
}


class Stated(ScriptedEngine):
    """Says given counters and memory."""

    given = EngineStats(
        running=2,
        waiting=3,
        paused=1,
        finished={"stop_token": 5, "tool_calls": 2, "output_limit": 4, "cancelled": 6},
        failed={"request_queue_timeout": 7, 'odd "code"\\\n': 1},
        prompt_tokens=100,
        cached_tokens=40,
        generated_tokens=70,
        decode_rounds=9,
        rows_by_batch={1: 4, 2: 5},
        pauses=8,
        reuse={"extended": 3},
    )
    held = MemorySummary(
        bytes={"kv": 4096},
        pages_total={"main": 10, "draft": 6},
        pages_free={"main": 4, "draft": 0},
        state_slots_total=4,
        state_slots_free=1,
    )

    def stats(self):
        return self.given

    def memory_summary(self):
        return self.held


@pytest.fixture(scope="module")
def stated():
    server = Running(Stated(), ServerSettings(drain=0.0, model_id='a "model"'))
    server.start()
    yield server
    server.stop()


def scrape(server):
    reply = server.request("/metrics")
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(reply.text)}
    return families, {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in families.values()
        for sample in family.samples
    }


def test_every_name_is_there_with_its_type(stated):
    stated.chat()
    families, _ = scrape(stated)
    assert {name: families[name].type for name in NAMES} == NAMES
    assert all(family.documentation for family in families.values())


def test_the_values_are_the_engines(stated):
    _, values = scrape(stated)
    model = ("model_name", 'a "model"')
    assert values["vllm:num_requests_running", model] == 2
    assert values["vllm:num_requests_waiting", model] == 3
    assert values["vllm:prompt_tokens_total", model] == 100
    assert values["vllm:prefix_cache_hits_total", model] == 40
    assert values["vllm:num_preemptions_total", model] == 8
    assert values["vllm:kv_cache_usage_perc", model] == pytest.approx(12 / 16)
    ends = {reason: values["vllm:request_success_total", ("finished_reason", reason), model]
            for reason in ("stop", "length", "abort", "error")}  # fmt: skip
    assert ends == {"stop": 7, "length": 4, "abort": 6, "error": 8}
    assert values["ninfer_rounds_total", ("rows", "2")] == 5
    assert values["ninfer_reuse_total", ("reason", "extended")] == 3
    assert values["ninfer_requests_failed_total", ("code", 'odd "code"\\\n')] == 1
    assert values["ninfer_pages_free", ("group", "draft")] == 0
    assert values["ninfer_memory_bytes", ("purpose", "kv")] == 4096
    assert values["ninfer_ready",] == 1
    resident = values["ninfer_process_resident_memory_bytes", ("process", "gateway")]
    assert resident == pytest.approx(metrics.resident_bytes(os.getpid()), rel=0.2)


def test_times_of_requests_are_counted_once_each(serve):
    timings = Timings(
        prepare=0.25, queue=0.5, prefill=1.0, decode=3.0, drafted=(4, 2), accepted=(3,)
    )
    server = serve(lambda prompt, options: Reply.of("abcd", timings=timings))
    for stream in (False, True):
        server.chat(stream=stream)
    server.chat(max_tokens=1)
    _, values = scrape(server)
    model = ("model_name", "scripted")

    def of(name):
        return values[f"vllm:{name}_sum", model], values[f"vllm:{name}_count", model]

    assert of("time_to_first_token_seconds") == (3 * 1.75, 3)
    assert of("e2e_request_latency_seconds") == (3 * 4.75, 3)
    assert of("request_queue_time_seconds") == (1.5, 3)
    # Four tokens have three gaps of a second; the request of one token has none.
    assert of("inter_token_latency_seconds") == (6.0, 6)
    assert of("request_time_per_output_token_seconds") == (2.0, 2)
    assert of("request_generation_tokens") == (9, 3)
    assert values["vllm:time_to_first_token_seconds_bucket", ("le", "1.0"), model] == 0
    assert values["vllm:time_to_first_token_seconds_bucket", ("le", "2.5"), model] == 3
    assert values["vllm:spec_decode_num_draft_tokens_total", model] == 18
    assert values["vllm:spec_decode_num_accepted_tokens_total", model] == 9


def test_replies_are_counted_by_declared_routes_alone(serve):
    server = serve()
    server.chat()
    server.request("/v1/chat/completions", b"{")
    for name in ("a", "b"):
        server.request(f"/v1/models/{name}")
        server.request(f"/{name}")
    server.request("/v1/chat/completions")
    _, values = scrape(server)

    def count(method, route, status):
        labels = (("method", method), ("route", route), ("status", str(status)))
        return values["ninfer_http_replies_total", *labels]

    assert count("POST", "/v1/chat/completions", 200) == 1
    assert count("POST", "/v1/chat/completions", 400) == 1
    assert count("GET", "/v1/models/{model:path}", 404) == 2
    assert count("other", "other", 404) == 2
    assert count("other", "other", 405) == 1


def test_an_engine_that_does_not_answer_delays_only_the_first_report(serve, monkeypatch):
    server = serve()
    going = threading.Event()
    monkeypatch.setattr(metrics, "_PATIENCE", 0.2)
    monkeypatch.setattr(server.engine, "memory_summary", lambda: going.wait(20) and Stated.held)
    families, _ = scrape(server)
    assert "ninfer_pages" not in families
    assert "vllm:num_requests_running" in families
    assert server.chat().status == 200
    going.set()
    assert "ninfer_pages" in scrape(server)[0]


def test_a_dead_engine_still_has_its_counters(serve, monkeypatch):
    def gone():
        raise Unavailable("the engine failed")

    server = serve()
    monkeypatch.setattr(server.engine, "memory_summary", gone)
    server.engine.fail("killed")
    families, values = scrape(server)
    assert values["ninfer_ready",] == 0
    assert "ninfer_state_slots" not in families


def test_a_real_engine_reports(demo):
    asked = demo.post("/v1/completions", prompt="one two", max_tokens=5, ignore_eos=True)
    usage = asked.json["usage"]
    families = {f.name: f for f in text_string_to_metric_families(demo.get("/metrics").text)}
    assert families["vllm:generation_tokens"].samples[0].value >= usage["completion_tokens"] == 5
    pages = {s.labels["group"]: s.value for s in families["ninfer_pages"].samples}
    free = {s.labels["group"]: s.value for s in families["ninfer_pages_free"].samples}
    assert all(0 <= free[group] <= pages[group] for group in pages)
    assert families["vllm:num_requests_running"].samples[0].labels == {
        "model_name": demo.get("/v1/models").json["data"][0]["id"]
    }
    roles = families["ninfer_process_resident_memory_bytes"].samples
    assert {sample.labels["process"] for sample in roles} == {"gateway", "engine"}
    assert len({sample.value for sample in roles}) == 2


def test_a_histogram_counts_what_is_at_most_each_bound():
    histogram = Histogram([1.0, 2.0])
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    histogram.observe(2.0, times=3)
    text = MetricsText()
    text.histogram("h", "about", histogram, {})
    [family] = text_string_to_metric_families(text.render())
    counts = {s.labels.get("le", s.name): s.value for s in family.samples}
    assert counts == {"1.0": 2, "2.0": 7, "+Inf": 8, "h_sum": 20.0, "h_count": 8}
