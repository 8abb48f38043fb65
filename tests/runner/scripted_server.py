"""A server process that plays raw bytes with set delays, to see how a client reads them.

``ScriptedServer.play(name, steps, end)`` makes ``<url>/<name>/v1/...`` answer each POST with the
steps ``(delay_s, bytes)``, status line included. ``end`` is "keep" (keep-alive), "close", "hang"
(neither bytes nor close), or "one-by-one" (keep-alive, and one answer at a time).
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

Step = tuple[float, bytes]


class ScriptedServer:
    """Starts the process; use as a context manager. With ``certificate`` (PEM) it speaks TLS."""

    def __init__(self, certificate: Path | None = None) -> None:
        self._certificate = certificate

    def __enter__(self) -> Self:
        command = [sys.executable, str(Path(__file__))]
        command += [str(self._certificate)] if self._certificate else []
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE)
        assert self._process.stdout
        scheme = "https" if self._certificate else "http"
        self.url = f"{scheme}://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.kill()
        self._process.wait()

    def play(
        self, name: str, steps: Sequence[Step], end: str = "keep", *, tokenizer: bool = False
    ) -> str:
        """Set the answer of ``name`` and forget its log; returns its root address.

        With ``tokenizer``, ``/tokenize`` counts a text's characters; else there is none.
        """
        coded = [(delay_s, base64.b64encode(data).decode()) for delay_s, data in steps]
        script = {"name": name, "steps": coded, "end": end, "tokenizer": tokenizer}
        document = json.dumps(script).encode()
        with self._open(urllib.request.Request(f"{self.url}/_play", data=document)):
            return f"{self.url}/{name}"

    def received(self, name: str) -> list[dict[str, Any]]:
        """What was asked of ``name``: {"method", "path", "headers", "body", "port"} in order."""
        with self._open(urllib.request.Request(f"{self.url}/_received/{name}")) as answer:
            log: list[dict[str, Any]] = json.loads(answer.read())
            return log

    def _open(self, request: urllib.request.Request) -> Any:
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
        if self._certificate:
            context = ssl.create_default_context(cafile=str(self._certificate))
            handlers.append(urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers).open(request, timeout=10)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    scripts: dict[str, dict[str, Any]] = {}  # noqa: RUF012 shared on purpose
    logs: dict[str, list[dict[str, Any]]] = {}  # noqa: RUF012
    turns = threading.Lock()

    def do_GET(self) -> None:
        if self.path.startswith("/_received/"):
            self._answer(json.dumps(self.logs[self.path.removeprefix("/_received/")]).encode())
            return
        self._log(b"")
        self._answer(b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/_play":
            document = json.loads(body)
            self.scripts[document["name"]] = document
            self.logs[document["name"]] = []
            self._answer(b"{}")
            return
        self._log(body)
        script = self.scripts[self._name()]
        if self.path.endswith("/tokenize"):
            if script["tokenizer"]:
                self._answer(json.dumps({"count": len(json.loads(body)["prompt"])}).encode())
            else:
                self.send_error(404)
            return
        with self.turns if script["end"] == "one-by-one" else contextlib.nullcontext():
            for delay_s, coded in script["steps"]:
                time.sleep(delay_s)
                self.wfile.write(base64.b64decode(coded))
                self.wfile.flush()
        if script["end"] == "hang":
            self.rfile.read(1)
        self.close_connection = script["end"] in ("close", "hang")

    def _name(self) -> str:
        return self.path.split("/")[1]

    def _log(self, body: bytes) -> None:
        entry = {
            "method": self.command,
            "path": self.path.partition("/" + self._name())[2],
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": json.loads(body) if body else None,
            "port": self.client_address[1],
        }
        self.logs.setdefault(self._name(), []).append(entry)

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    request_queue_size = 256

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients that hang up are part of the play


def _main() -> None:
    server = _Server(("127.0.0.1", 0), _Handler)
    if len(sys.argv) > 1:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(sys.argv[1])
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    sys.stdin.read()  # until the parent is gone


if __name__ == "__main__":
    _main()
