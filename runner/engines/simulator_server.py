"""An OpenAI-style streaming server with known behaviour, in a process of its own.

    python -m runner.engines.simulator_server --config '{"model": "toy", "behaviour": {}}'

The config is JSON or a file that holds it; ``runner.engines.simulator_behaviour.Behaviour`` says
what can be set. Listens on 127.0.0.1 alone. Paths: /v1/chat/completions, /v1/completions,
/v1/models, /tokenize, /health, /version, /metrics.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

from runner.engines import simulator_http as http
from runner.engines.simulator_behaviour import Behaviour, BehaviourError, from_document
from runner.engines.simulator_engine import Engine, Sequence
from runner.engines.simulator_text import BadRequest, Script, script, tokenize, word

VERSION = "1"


class Answer:
    """Writes one answer as the engine hands it over; ``ended`` is set when nothing more comes."""

    def __init__(
        self,
        writer: asyncio.StreamWriter,
        plan: Script,
        body: dict[str, Any],
        *,
        chat: bool,
        number: int,
        omit_usage: bool,
        omit_logprobs: bool,
    ) -> None:
        options = body.get("stream_options") or {}
        self.ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.cached_tokens = 0
        self._writer, self._plan, self._chat = writer, plan, chat
        self._stream = bool(body.get("stream"))
        self._with_ids = bool(body.get("return_token_ids"))
        self._usage_wanted = not omit_usage and (not self._stream or options.get("include_usage"))
        self._usage_always = bool(self._usage_wanted and options.get("continuous_usage_stats"))
        self._with_logprobs = bool(body.get("logprobs")) and not omit_logprobs
        self._with_prompt_logprobs = body.get("prompt_logprobs") is not None and not omit_logprobs
        self._ids_as_names = bool(body.get("return_tokens_as_token_ids"))
        self._written = 0
        kind = "chat.completion" if chat else "text_completion"
        self._frame = {
            "id": f"sim-{number}",
            "object": f"{kind}.chunk" if chat and self._stream else kind,
            "created": int(time.time()),
            "model": body["model"],
        }
        # A half-written answer fails where its first half ends.
        self._fails_at = (len(plan.answer_ids) + 1) // 2 if plan.failure else None

    def begin(self) -> None:
        """Status line at once and, as OpenAI does for chat, an event that names the role only."""
        if self._stream:
            http.begin_stream(self._writer)
            if self._chat:
                extra = {"prompt_token_ids": self._plan.prompt_ids} if self._with_ids else {}
                delta = {"role": "assistant", "content": ""}
                self._event([{"index": 0, "delta": delta, "finish_reason": None}], **extra)

    def emit(self, start: int, end: int) -> None:
        """Tokens ``start`` to ``end`` of the answer were written by the engine."""
        if self.ended.done():
            return
        self._written = end
        last = end == len(self._plan.answer_ids)
        if self._fails_at is not None and end >= self._fails_at:
            self.ended.set_result(self._plan.failure)
            return
        if self._stream:
            self._span(start, end, last=last)
        if last:
            self.ended.set_result(None)

    def _span(self, start: int, end: int, *, last: bool) -> None:
        text = self._plan.piece(start, end)
        choice: dict[str, Any] = {"index": 0}
        choice.update({"delta": {"content": text}} if self._chat else {"text": text})
        choice["finish_reason"] = self._plan.finish_reason if last else None
        if self._with_ids:
            choice["token_ids"] = self._plan.answer_ids[start:end]
        self._event([choice], **({"usage": self._usage()} if self._usage_always else {}))

    def _event(self, choices: list[dict[str, Any]], **extra: Any) -> None:
        http.write_event(self._writer, json.dumps({**self._frame, "choices": choices, **extra}))

    def finish(self) -> None:
        """The proper end: usage, [DONE]; or the whole answer where it was not streamed."""
        if not self._stream:
            http.write_json(self._writer, self._whole())
            return
        if self._usage_wanted:
            self._event([], usage=self._usage())
        http.write_event(self._writer, "[DONE]")
        http.end_stream(self._writer)

    def fail_inside(self) -> None:
        """An error object inside the 200."""
        error = {"message": "simulated failure", "type": "InternalServerError", "code": 500}
        if not self._stream:
            http.write_error(self._writer, HTTPStatus.INTERNAL_SERVER_ERROR, "simulated failure")
            return
        http.write_event(self._writer, json.dumps({"error": error}))
        http.write_event(self._writer, "[DONE]")
        http.end_stream(self._writer)

    def _usage(self) -> dict[str, Any]:
        prompt = len(self._plan.prompt_ids)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._written,
            "total_tokens": prompt + self._written,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def _whole(self) -> dict[str, Any]:
        text = self._plan.piece(0, self._written)
        choice: dict[str, Any] = {"index": 0, "finish_reason": self._plan.finish_reason}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        document: dict[str, Any] = {**self._frame, "choices": [choice]}
        if self._with_ids:
            choice["token_ids"] = self._plan.answer_ids
            place = document if self._chat else choice
            place["prompt_token_ids"] = self._plan.prompt_ids
        if self._with_logprobs:
            choice["logprobs"] = self._logprobs()
        if self._with_prompt_logprobs:
            choice["prompt_logprobs"] = [
                None,
                *(
                    {str(at): {"logprob": value} for at, value in step.logprobs(token).items()}
                    for token, step in zip(
                        self._plan.prompt_ids[1:], self._plan.prompt_steps, strict=True
                    )
                ),
            ]
        if self._usage_wanted:
            document["usage"] = self._usage()
        return document

    def _logprobs(self) -> dict[str, Any]:
        """Of the whole answer, as vLLM writes them for chats and for completions."""
        steps = [
            {self._name(other): value for other, value in step.logprobs(token).items()}
            for token, step in zip(self._plan.answer_ids, self._plan.steps, strict=True)
        ]
        if not self._chat:
            return {"top_logprobs": steps}
        names = [self._name(token) for token in self._plan.answer_ids]
        return {
            "content": [
                {
                    "token": name,
                    "logprob": step[name],
                    "top_logprobs": [{"token": at, "logprob": value} for at, value in step.items()],
                }
                for name, step in zip(names, steps, strict=True)
            ]
        }

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self._ids_as_names else f" {word(token)}"


class Server:
    def __init__(self, model: str, behaviour: Behaviour) -> None:
        self._model = model
        self._behaviour = behaviour
        self._engine = Engine(behaviour)
        self._noise = random.Random()  # noqa: S311 no secret depends on it
        self._requests = 0

    async def serve(self, port: int, port_file: Path | None) -> None:
        """Listen until cancelled. ``port_file`` gets the port once connections are taken."""
        engine = asyncio.create_task(self._engine.run())
        server = await asyncio.start_server(self._connection, "127.0.0.1", port, backlog=1024)
        port = server.sockets[0].getsockname()[1]
        print(f"listening on 127.0.0.1:{port}", flush=True)
        if port_file is not None:
            partial = port_file.with_suffix(".part")
            partial.write_text(str(port))
            partial.replace(port_file)
        await engine  # ends only by a fault, which then ends the server too

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._one_request(reader, writer):
                await writer.drain()
        except http.HttpError as error:
            http.write_error(writer, error.status, str(error))
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def _one_request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Answer one request; False ends the connection."""
        request = await http.read_request(reader)
        if request is None:
            return False
        arrived = time.perf_counter()
        if request.path in ("/v1/chat/completions", "/v1/completions"):
            return await self._complete(request, reader, writer, arrived)
        if request.path == "/health":
            http.write_response(writer, HTTPStatus.OK, b"")
        elif request.path == "/version":
            http.write_json(writer, {"version": VERSION})
        elif request.path == "/v1/models":
            http.write_json(writer, {"object": "list", "data": [{"id": self._model}]})
        elif request.path == "/metrics":
            text = self._engine.metrics_text(self._model).encode()
            http.write_response(writer, HTTPStatus.OK, text, content_type="text/plain")
        elif request.path == "/tokenize":
            self._tokenize(request, writer)
        else:
            http.write_error(writer, HTTPStatus.NOT_FOUND, "no such path")
        return True

    def _tokenize(self, request: http.Request, writer: asyncio.StreamWriter) -> None:
        try:
            tokens = tokenize(_object(request.body))
        except BadRequest as error:
            http.write_error(writer, HTTPStatus.BAD_REQUEST, str(error))
            return
        http.write_json(writer, {"count": len(tokens), "tokens": tokens})

    async def _complete(
        self,
        request: http.Request,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        arrived: float,
    ) -> bool:
        try:
            body = _object(request.body)
            plan = script(body, self._behaviour, self._noise)
        except BadRequest as error:
            http.write_error(writer, HTTPStatus.BAD_REQUEST, str(error))
            return True
        if body.get("model") != self._model:
            http.write_error(writer, HTTPStatus.NOT_FOUND, "no such model")
            return True
        if plan.failure == "refuse":
            http.write_error(writer, HTTPStatus.TOO_MANY_REQUESTS, "simulated refusal")
            return True
        self._requests += 1
        answer = Answer(
            writer,
            plan,
            body,
            chat=request.path == "/v1/chat/completions",
            number=self._requests,
            omit_usage=self._behaviour.omit_usage,
            omit_logprobs=self._behaviour.omit_logprobs,
        )
        return await self._generate(answer, plan, body, reader, arrived)

    async def _generate(
        self,
        answer: Answer,
        plan: Script,
        body: dict[str, Any],
        reader: asyncio.StreamReader,
        arrived: float,
    ) -> bool:
        if self._engine.hangs() and not plan.is_probe:
            await reader.read(1)  # until the client gives up
            return False
        sequence = Sequence(plan, answer.emit)
        work = asyncio.create_task(self._feed(answer, sequence, body, arrived))
        # One request at a time on a connection: a byte, or the end, means that nobody listens.
        left = asyncio.create_task(reader.read(1))
        await asyncio.wait({work, left}, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, left):
            task.cancel()
        await asyncio.gather(work, left, return_exceptions=True)
        self._engine.drop(sequence)
        if left.done() and not left.cancelled():
            return False
        failure = work.result()
        if failure is None:
            answer.finish()
        elif failure == "error":
            answer.fail_inside()
        return failure != "cut"

    async def _feed(
        self, answer: Answer, sequence: Sequence, body: dict[str, Any], arrived: float
    ) -> str | None:
        answer.begin()
        salt = str(body.get("cache_salt") or "")
        answer.cached_tokens = await self._engine.prefill(sequence, arrived, salt)
        return await answer.ended


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise BadRequest("the body must be a JSON object")
    return document


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simulator_server", description=__doc__)
    parser.add_argument("--config", required=True, help="JSON, or the path of a file with it")
    parser.add_argument("--port", type=int, default=0, help="0 (default): a free one")
    parser.add_argument("--port-file", type=Path, help="written once the server takes requests")
    parser.add_argument(
        "--exit-with-stdin", action="store_true", help="end when standard input is closed"
    )
    options = parser.parse_args(arguments)
    try:
        text = options.config
        config = json.loads(text if text.lstrip().startswith("{") else Path(text).read_text())
        behaviour = from_document(config.get("behaviour", {}))
    except (OSError, ValueError, BehaviourError) as error:
        print(error, file=sys.stderr)
        return 2
    if behaviour.exit_at_start is not None:
        print(behaviour.exit_at_start, file=sys.stderr)
        return 1
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(config.get("model", "simulated"), behaviour, options))
    return 0


async def _run(model: str, behaviour: Behaviour, options: argparse.Namespace) -> None:
    if options.exit_with_stdin:
        # The parent holds the other end of the pipe: killed in whatever way, it lets go of it.
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), os._exit, 0)
    await asyncio.sleep(behaviour.start_delay_s)
    await Server(model, behaviour).serve(options.port, options.port_file)


if __name__ == "__main__":
    sys.exit(main())
