"""Answers and stream chunks as bytes.

A stream is a sequence of server-sent events ``data: {json}\\n\\n``. Every choice ends with exactly one chunk that has a
``finish_reason``; with ``include_usage`` one extra chunk without choices holds the totals and all others say
``"usage": null``; ``data: [DONE]`` is the last event of a stream that succeeded. A stream that fails after its head
was sent ends with an ``{"error": …}`` event and no ``[DONE]``.

Chunks are written for every token, so what never changes is encoded once per stream.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from disagg_contract.openai.errors import ApiError
from disagg_contract.openai.requests import Endpoint

DONE: Final = b"data: [DONE]\n\n"
STREAM_HEADERS: Final[Mapping[str, str]] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""Headers that keep proxies from buffering a stream."""

_encode = msgspec.json.encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a request; ``completion_tokens`` sums over its choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def to_json(self) -> dict[str, Any]:
        """As it stands in a body."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Log probability of one generated token and of the most likely alternatives as (text, log probability)."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A finished answer. ``finish_reason`` is ``stop`` or ``length``; ``stop_reason`` the stop string or token met."""

    index: int
    text: str
    finish_reason: str
    stop_reason: str | int | None = None
    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None
    logprobs: Sequence[TokenLogprob] | None = None


def response_id(endpoint: Endpoint, unique: str) -> str:
    """Id of an answer with OpenAI's prefix."""
    return ("chatcmpl-" if endpoint is Endpoint.CHAT else "cmpl-") + unique


def build_response(
    endpoint: Endpoint,
    *,
    identity: str,
    created: int,
    model: str,
    choices: Sequence[Choice],
    usage: Usage,
    kv_transfer_params: Mapping[str, Any] | None = None,
) -> bytes:
    """Body of an answer that isn't streamed; ``created`` in whole seconds since the epoch."""
    chat = endpoint is Endpoint.CHAT
    body: dict[str, Any] = {
        "id": identity,
        "object": "chat.completion" if chat else "text_completion",
        "created": created,
        "model": model,
        "choices": [_chat_choice(choice) if chat else _text_choice(choice) for choice in choices],
        "usage": usage.to_json(),
        "kv_transfer_params": kv_transfer_params,
    }
    if chat and choices and choices[0].prompt_token_ids is not None:
        body["prompt_token_ids"] = list(choices[0].prompt_token_ids)
    return _encode(body)


def _text_choice(choice: Choice) -> dict[str, Any]:
    body: dict[str, Any] = {
        "index": choice.index,
        "text": choice.text,
        "logprobs": None if choice.logprobs is None else _text_logprobs(choice.logprobs, 0),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if choice.token_ids is not None:
        body["token_ids"] = list(choice.token_ids)
    if choice.prompt_token_ids is not None:
        body["prompt_token_ids"] = list(choice.prompt_token_ids)
    return body


def _chat_choice(choice: Choice) -> dict[str, Any]:
    body: dict[str, Any] = {
        "index": choice.index,
        "message": {"role": "assistant", "content": choice.text, "refusal": None},
        "logprobs": None if choice.logprobs is None else _chat_logprobs(choice.logprobs),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
    }
    if choice.token_ids is not None:
        body["token_ids"] = list(choice.token_ids)
    return body


def _text_logprobs(items: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    offsets = []
    for item in items:
        offsets.append(offset)
        offset += len(item.text)
    return {
        "text_offset": offsets,
        "token_logprobs": [item.logprob for item in items],
        "tokens": [item.text for item in items],
        "top_logprobs": [dict(item.top) for item in items],
    }


def _chat_logprobs(items: Sequence[TokenLogprob]) -> dict[str, Any]:
    def entry(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": logprob, "bytes": list(text.encode("utf-8", "surrogatepass"))}

    content = [{**entry(item.text, item.logprob), "top_logprobs": [entry(*top) for top in item.top]} for item in items]
    return {"content": content, "refusal": None}


class StreamWriter:
    """Builds the chunks of one stream."""

    __slots__ = ("_chat", "_head", "_offsets", "_tail", "_usage_head")

    def __init__(
        self, endpoint: Endpoint, *, identity: str, created: int, model: str, include_usage: bool = False
    ) -> None:
        self._chat = endpoint is Endpoint.CHAT
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        head = _encode({"id": identity, "object": kind, "created": created, "model": model})[:-1]
        self._usage_head = b"data: " + head + b',"choices":[],"usage":'
        self._head = b"data: " + head + b',"choices":[{"index":'
        self._tail = b'}],"usage":null}\n\n' if include_usage else b"}]}\n\n"
        self._offsets: dict[int, int] = {}

    def opening(self, index: int, *, prompt_token_ids: Sequence[int] | None = None) -> bytes:
        """The first chunk of a chat choice, which names the role; b'' for a completion without token ids."""
        if not self._chat:
            return b"" if prompt_token_ids is None else self.chunk(index, "", prompt_token_ids=prompt_token_ids)
        tail = self._tail
        if prompt_token_ids is not None:
            tail = b'}],"prompt_token_ids":' + _encode(list(prompt_token_ids)) + tail[2:]
        delta = b',"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null'
        return self._head + str(index).encode() + delta + tail

    def chunk(
        self,
        index: int,
        text: str,
        *,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
        token_ids: Sequence[int] | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        logprobs: Sequence[TokenLogprob] | None = None,
    ) -> bytes:
        """More text of a choice; with ``finish_reason`` its last chunk."""
        parts = [self._head, str(index).encode()]
        if self._chat:
            parts += (
                (b',"delta":{"content":', _encode(text), b"}") if text or finish_reason is None else (b',"delta":{}',)
            )
        else:
            parts += (b',"text":', _encode(text))
        if logprobs is None:
            parts.append(b',"logprobs":null')
        else:
            offset = self._offsets.get(index, 0)
            built = _chat_logprobs(logprobs) if self._chat else _text_logprobs(logprobs, offset)
            self._offsets[index] = offset + sum(len(item.text) for item in logprobs)
            parts += (b',"logprobs":', _encode(built))
        if finish_reason is None:
            parts.append(b',"finish_reason":null')
        else:
            parts += (b',"finish_reason":', _encode(finish_reason), b',"stop_reason":', _encode(stop_reason))
        if prompt_token_ids is not None:
            parts += (b',"prompt_token_ids":', _encode(list(prompt_token_ids)))
        if token_ids is not None:
            parts += (b',"token_ids":', _encode(list(token_ids)))
        parts.append(self._tail)
        return b"".join(parts)

    def usage(self, usage: Usage) -> bytes:
        """The extra chunk with the totals."""
        return self._usage_head + _encode(usage.to_json()) + b"}\n\n"


def error_event(error: ApiError) -> bytes:
    """The event that ends a failed stream."""
    return b"data: " + error.body() + b"\n\n"


def build_models(models: Sequence[str], *, created: int, context_tokens: int | None = None) -> bytes:
    """Body of ``/v1/models``."""
    data = [_model(model, created=created, context_tokens=context_tokens) for model in models]
    return _encode({"object": "list", "data": data})


def build_model(model: str, *, created: int, context_tokens: int | None = None) -> bytes:
    """Body of ``/v1/models/{model}``."""
    return _encode(_model(model, created=created, context_tokens=context_tokens))


def _model(model: str, *, created: int, context_tokens: int | None) -> dict[str, Any]:
    return {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "disagg",
        "root": model,
        "parent": None,
        "max_model_len": context_tokens,
    }
