"""Whether the server works, and whether it takes requests: two questions."""

from __future__ import annotations

import threading

from ninfer_core.testing.scripted_reply import Reply
from ninfer_gateway_http.settings import ServerSettings


def test_a_server_that_stops_is_healthy_but_not_ready(serve, eventually):
    server = serve(
        lambda prompt, options: Reply.of("x" * 20, interval=0.1), ServerSettings(drain=20.0)
    )
    assert (server.request("/health").status, server.request("/ready").status) == (200, 200)
    replies = []
    thread = threading.Thread(target=lambda: replies.append(server.chat()))
    thread.start()
    eventually(lambda: server.engine.stats().running == 1)
    server.server.should_exit = True
    eventually(lambda: not server.engine.availability().ready)
    health, ready = server.request("/health"), server.request("/ready")
    assert (health.status, health.json["status"], health.json["running"]) == (200, "draining", 1)
    assert (ready.status, ready.json["status"]) == (503, "draining")
    assert ready.headers["retry-after"]
    thread.join(20)
    assert replies[0].status == 200


def test_a_dead_engine_is_neither(serve):
    server = serve()
    server.engine.fail("a page was released twice")
    for path in ("/health", "/ready"):
        reply = server.request(path)
        assert (reply.status, reply.json["status"]) == (503, "failed")
        assert reply.json["reason"] == "a page was released twice"
