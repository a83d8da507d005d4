"""Spans, collected in memory."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from ninfer_core.contract.errors import NonFiniteOutput
from ninfer_core.testing.scripted_engine import failing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def exporter():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter, eventually):
    """The spans that have ended, once there are so many."""
    exporter.clear()

    def ended(count):
        eventually(lambda: len(exporter.get_finished_spans()) >= count)
        return exporter.get_finished_spans()

    return ended


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_of_its_callers_trace(server, spans, stream):
    body = b'{"messages": [{"role": "user", "content": "secret"}], "stream": %s}'
    body %= b"true" if stream else b"false"
    reply = server.request("/v1/chat/completions", body, {"traceparent": PARENT})
    [span] = spans(1)
    assert span.name == "POST /v1/chat/completions"
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert span.kind is trace.SpanKind.SERVER
    found = dict(span.attributes)
    assert found["http.response.status_code"] == 200
    assert found["gen_ai.usage.input_tokens"] == len("user: secret")
    assert found["gen_ai.usage.output_tokens"] == len("secret")
    assert found["gen_ai.response.finish_reasons"] == ("stop_token",)
    assert found["ninfer.request_id"] == reply.headers["x-request-id"]
    assert "secret" not in str(found)


def test_a_fault_is_an_error_and_a_refusal_is_none(server, spans):
    server.request("/v1/models/nothing")
    server.engine.script = failing(NonFiniteOutput("NaN"))
    server.chat()
    refused, failed = spans(2)
    assert (refused.name, refused.status.is_ok) == ("GET /v1/models/{model:path}", True)
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert failed.attributes["http.response.status_code"] == 500
