"""Reported faults of images by address: nobody is asked for them, wherever the address points."""

from __future__ import annotations

import contextlib
import socket

import pytest

ADDRESSES = [
    "http://127.0.0.1:{port}/secret",
    "http://localhost:{port}/secret",
    "http://[::1]:{port}/secret",
    "http://0x7f000001:{port}/secret",
    "http://2130706433:{port}/secret",
    "http://0:{port}/secret",
    "http://user@127.0.0.1:{port}/secret",
    "http://169.254.169.254/latest/meta-data",
    "file:///etc/hostname",
    "ftp://127.0.0.1:{port}/secret",
    "data:image/png;base64,AAAA",
]


@pytest.fixture
def listener():
    """A port, and afterwards the proof that nobody came."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]
        listening.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            listening.accept()
            raise AssertionError("the server connected to an address of a request")


def bodies(url):
    """A request with the image on each route that takes messages."""
    chat = {"type": "image_url", "image_url": {"url": url}}
    video = {"type": "video_url", "video_url": {"url": url}}
    for part in (chat, video):
        yield "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]}
        yield "/tokenize", {"messages": [{"role": "user", "content": [part]}]}
    block = {"type": "image", "source": {"type": "url", "url": url}}
    talk = {"model": "demo", "max_tokens": 3, "messages": [{"role": "user", "content": [block]}]}
    yield "/v1/messages", talk
    yield "/v1/messages/count_tokens", talk
    for kind, field in (("input_image", "image_url"), ("input_file", "file_url")):
        content = [{"type": kind, field: url}]
        yield "/v1/responses", {"input": [{"role": "user", "content": content}]}


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_image_is_refused_before_any_connection(demo, listener, address):
    for path, body in bodies(address.format(port=listener)):
        reply = demo.post(path, **body)
        assert reply.status == 400, (path, reply.text)
        assert "secret" not in reply.error["message"]
        assert "root" not in reply.text
