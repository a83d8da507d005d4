"""Bytes over a bare socket, as no client library would send them."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"


def chat_body(text: str = "hi", **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], **fields}).encode()


def head(method: str, path: str, *lines: str, version: str = "1.1") -> bytes:
    text = "\r\n".join([f"{method} {path} HTTP/{version}", "host: x", *lines])
    return f"{text}\r\n\r\n".encode("latin-1")


def post(body: bytes, *lines: str, path: str = CHAT, version: str = "1.1") -> bytes:
    lines = ("content-type: application/json", f"content-length: {len(body)}", *lines)
    return head("POST", path, *lines, version=version) + body


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


class Wire:
    """One connection to ``port`` of the loopback interface."""

    def __init__(self, port: int, timeout: float = 20) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._file = self.sock.makefile("rb")

    def send(self, data: bytes) -> Wire:
        """A peer that closed meanwhile is found out when its answer is read."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.sock.sendall(data)
        return self

    def answer(self) -> Answer | None:
        """The next answer; None when the connection ends without one."""
        try:
            line = self._file.readline()
        except ConnectionResetError:
            return None
        if not line:
            return None
        status = int(line.split()[1])
        headers = {}
        while (text := self._file.readline().decode("latin-1").strip()) != "":
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        if status == 100:
            return self.answer()
        if "content-length" in headers:
            return Answer(status, headers, self._file.read(int(headers["content-length"])))
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, b"".join(iter(self._chunk, b"")))
        return Answer(status, headers, self._file.read())

    def ended(self) -> bool:
        """Wait for the other side to close."""
        try:
            return self._file.read(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._file.close()
        self.sock.close()

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _chunk(self) -> bytes:
        data = self._file.read(int(self._file.readline(), 16))
        self._file.readline()
        return data
