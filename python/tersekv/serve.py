# SPDX-License-Identifier: Apache-2.0
"""OpenAI-compatible chat server of one Hugging Face model over packed caches: tersekv-py serve.

Requests take turns: a model computes one answer at a time. Needs FastAPI and uvicorn: pip install 'tersekv[serve]'.
"""
import contextlib
import json
import queue
import signal
import threading
import time
import uuid

import torch
import transformers

from tersekv.hf.cache import TerseCache
from tersekv.hf.model import patch_model

try:
    import fastapi
    import uvicorn
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse, StreamingResponse
except ImportError as missing:
    raise ImportError(f"tersekv-py serve needs {missing.name}: pip install 'tersekv[serve]'") from missing

MOST_WAITING = 64  # requests; further ones get status 503


class BadRequest(Exception):
    pass


class Stopping(Exception):
    pass


class Answer:
    """One generation on a thread of its own; pieces() yields text as it comes."""

    def __init__(self, service, request):
        self.service, self.request = service, request
        self.streamer = transformers.TextIteratorStreamer(service.tokenizer, skip_prompt=True, skip_special_tokens=True,
                                                          timeout=1.0)
        self.cancelled, self.error, self.new_tokens, self.stats = threading.Event(), None, 0, None
        service.answers.add(self)
        self.finish_reason = "stop"
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        request, model = self.request, self.service.model
        try:
            with self.service.turn:
                if self._ends():
                    return
                cache = TerseCache.for_model(model, self.service.kv)
                stop = transformers.StoppingCriteriaList([lambda *_: torch.tensor([self._ends()])])
                if request["seed"] is not None:
                    torch.manual_seed(request["seed"])
                sampling = request["temperature"] > 0
                options = dict(do_sample=sampling)
                if sampling:
                    options.update(temperature=request["temperature"], top_p=request["top_p"])
                ids = model.generate(request["ids"], attention_mask=torch.ones_like(request["ids"]),
                                     past_key_values=cache, max_new_tokens=request["max_tokens"],
                                     streamer=self.streamer, stopping_criteria=stop,
                                     pad_token_id=self.service.tokenizer.eos_token_id, **options)
                self.new_tokens = ids.shape[1] - request["ids"].shape[1]
                ends = model.generation_config.eos_token_id
                ends = ends if isinstance(ends, list) else [ends]
                if self.new_tokens >= request["max_tokens"] and int(ids[0, -1]) not in ends:
                    self.finish_reason = "length"
                self.stats = cache.stats()
        except Exception as error:  # told to the client
            self.error = error
        finally:
            if self.service.stopping.is_set() and self.error is None and not self.cancelled.is_set():
                self.error = Stopping("the server is shutting down: this answer is not whole")
            self.streamer.on_finalized_text("", stream_end=True)
            self.service.answers.discard(self)

    def _ends(self):
        return self.cancelled.is_set() or self.service.stopping.is_set()

    def pieces(self):
        held, stops = "", self.request["stop"]
        keep = max((len(s) for s in stops), default=1) - 1  # might be the beginning of a stop text
        while True:
            try:
                held += next(self.streamer)
            except queue.Empty:
                continue
            except StopIteration:
                break
            cut = min((at for at in (held.find(s) for s in stops) if at >= 0), default=-1)
            if cut >= 0:
                self.cancelled.set()
                yield held[:cut]
                self.thread.join()
                self.finish_reason = "stop"
                return
            if len(held) > keep:
                yield held[:len(held) - keep]
                held = held[len(held) - keep:]
        if held:
            yield held
        self.thread.join()  # the text ends before the run has counted its tokens
        if self.error is not None:
            raise self.error


class Service:
    def __init__(self, model, tokenizer, kv, name):
        self.model, self.tokenizer, self.kv, self.name = patch_model(model), tokenizer, kv, name
        self.turn, self.waiting, self.count = threading.Lock(), 0, threading.Lock()
        self.stopping, self.answers = threading.Event(), set()
        TerseCache.for_model(model, kv)  # what cannot be stored is said at the start

    def enter(self):
        with self.count:
            if self.waiting >= MOST_WAITING:
                return False
            self.waiting += 1
            return True

    def leave(self):
        with self.count:
            self.waiting -= 1

    def read(self, body):
        """A request's JSON -> what Answer needs; BadRequest names what is wrong."""
        if not isinstance(body, dict):
            raise BadRequest("the body must be a JSON object")
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest("messages must be a list of {role, content}")
        for message in messages:
            if not isinstance(message, dict) or not isinstance(message.get("content"), str) or \
                    message.get("role") not in ("system", "user", "assistant"):
                raise BadRequest("each message needs a role (system, user, assistant) and a text as content")
        if body.get("model") not in (None, self.name):
            raise BadRequest(f"model '{body['model']}' is not here: this server has '{self.name}'")
        if body.get("n") not in (None, 1):
            raise BadRequest("n must be 1")

        def number(name, default, low, high, kinds=(int, float)):
            value = default if body.get(name) is None else body[name]
            if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or
                                      not low <= value <= high):
                raise BadRequest(f"{name} is {value!r}: from {low} to {high}")
            return value

        if not isinstance(body.get("stream_options") or {}, dict):
            raise BadRequest("stream_options must be an object")
        stop = body.get("stop") or []
        stop = [stop] if isinstance(stop, str) else stop
        if not isinstance(stop, list) or not all(isinstance(s, str) and s for s in stop):
            raise BadRequest("stop must be a text or a list of texts")
        if getattr(self.tokenizer, "chat_template", None):
            text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            ids = self.tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
        else:
            text = "".join(f"{m['role']}: {m['content']}\n" for m in messages) + "assistant:"
            ids = self.tokenizer(text, return_tensors="pt").input_ids
        limit = getattr(self.model.config, "max_position_embeddings", None) or 1 << 20
        room = limit - ids.shape[1]
        if room < 1:
            raise BadRequest(f"the messages have {ids.shape[1]} tokens, the model takes {limit}")
        asked = [number(name, None, 1, limit, int) for name in ("max_completion_tokens", "max_tokens")]  # the newer name first
        most = next((tokens for tokens in asked if tokens is not None), 256)
        return {"ids": ids, "max_tokens": min(most, room), "temperature": number("temperature", 1.0, 0, 2),
                "top_p": number("top_p", 1.0, 0, 1), "seed": number("seed", None, 0, 2**63 - 1, int), "stop": stop,
                "stream": bool(body.get("stream")),
                "include_usage": bool((body.get("stream_options") or {}).get("include_usage"))}


def create_app(model, tokenizer, kv, name):
    service = Service(model, tokenizer, kv, name)
    app = fastapi.FastAPI(title="tersekv-py")
    app.state.service = service

    def error(status, message, kind="invalid_request_error"):
        return JSONResponse({"error": {"message": message, "type": kind, "code": None}}, status)

    @app.exception_handler(RequestValidationError)
    def unreadable(_, wrong):
        return error(400, "the body must be JSON: " + "; ".join(
            str(part.get("ctx", {}).get("error", part["msg"])) for part in wrong.errors()))

    @app.get("/health")
    def health():
        return {"status": "ok", "model": name, "kv": kv, "waiting": service.waiting}

    @app.get("/v1/models")
    def models():
        return {"object": "list", "data": [{"id": name, "object": "model", "created": 0, "owned_by": "tersekv"}]}

    @app.post("/v1/chat/completions")
    def chat(body: object = fastapi.Body()):
        try:
            request = service.read(body)
        except BadRequest as wrong:
            return error(400, str(wrong))
        if service.stopping.is_set():
            return error(503, "the server is shutting down", "server_error")
        if not service.enter():
            return error(503, f"{MOST_WAITING} requests wait already: try again later", "server_error")
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}
        answer = Answer(service, request)
        usage = lambda: {"prompt_tokens": request["ids"].shape[1], "completion_tokens": answer.new_tokens,
                         "total_tokens": request["ids"].shape[1] + answer.new_tokens}
        if request["stream"]:
            return StreamingResponse(_events(service, answer, head, request, usage), media_type="text/event-stream")
        try:
            text = "".join(answer.pieces())
        except Stopping as stopped:
            return error(503, str(stopped), "server_error")
        except Exception as failed:
            return error(500, f"{type(failed).__name__}: {failed}", "server_error")
        finally:
            answer.cancelled.set()
            service.leave()
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": answer.finish_reason}
        return {**head, "object": "chat.completion", "choices": [choice], "usage": usage()}

    return app


def _events(service, answer, head, request, usage):
    def event(delta, reason=None, **more):
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": reason}]
        return f"data: {json.dumps({**head, 'object': 'chat.completion.chunk', 'choices': choices, **more})}\n\n"

    try:
        yield event({"role": "assistant", "content": ""})
        for piece in answer.pieces():
            if piece:
                yield event({"content": piece})
        yield event({}, answer.finish_reason)
        if request["include_usage"]:
            yield event(None, usage=usage())
        yield "data: [DONE]\n\n"
    except Exception as failed:
        yield f"data: {json.dumps({'error': {'message': str(failed), 'type': 'server_error', 'code': None}})}\n\n"
    finally:  # also when the client has gone
        answer.cancelled.set()
        service.leave()


class Server(uvicorn.Server):
    """A signal ends running answers at their next token; their clients are told."""

    def __init__(self, config, service):
        super().__init__(config)
        self.service = service

    def handle_exit(self, sig, frame):
        self.service.stopping.set()
        super().handle_exit(sig, frame)


def serve(model, tokenizer, kv, name, host="127.0.0.1", port=8000):
    """Until SIGTERM or SIGINT; returns when all answers have ended."""
    app = create_app(model, tokenizer, kv, name)
    service = app.state.service
    signal.signal(signal.SIGTERM, lambda *_: None)  # uvicorn raises the signal again once it has shut down
    with contextlib.suppress(KeyboardInterrupt):
        Server(uvicorn.Config(app, host=host, port=port, log_level="warning"), service).run()
    service.stopping.set()
    for answer in list(service.answers):
        answer.thread.join()
