"""Bodies of ``/v1/completions`` and ``/v1/chat/completions``: parsed once, checked field by field.

Null means "the default" for every field. Unknown fields are accepted and ignored, as vLLM does, because clients send
many that change nothing here (``user``, ``metadata``, ``top_k``, penalties). Fields whose meaning would change the
answer's form and that aren't served are refused by name: see `_refuse_unsupported`. Limits that need the tokenizer or
the model (context length, vocabulary) are checked by `resolve_max_tokens` and `check_token_ids`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeAlias

import msgspec

from disagg_contract.chat import ROLES, ChatMessage
from disagg_contract.openai.errors import ApiError, invalid, unsupported
from disagg_contract.transfer import wants_remote_decode

Prompt: TypeAlias = str | tuple[int, ...]

DEFAULT_COMPLETION_TOKENS: Final = 16
"""``max_tokens`` of a completion that names none; a chat answer may fill the context instead."""
MAX_CHOICES: Final = 128
MAX_PROMPTS: Final = 1024
MAX_STOPS: Final = 64
MAX_TOP_LOGPROBS: Final = 20
MAX_TOKEN_ID: Final = 2**31 - 1

_decoder = msgspec.json.Decoder()


class Endpoint(StrEnum):
    """Which of the two generating endpoints a request came to."""

    COMPLETIONS = "completions"
    CHAT = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What decides the answer's tokens and its end.

    ``max_tokens`` None: not given. ``logprobs`` None: not asked for; a number: that many alternatives a token.
    """

    max_tokens: int | None
    min_tokens: int
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    temperature: float
    top_p: float
    seed: int | None
    n: int
    logprobs: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A checked request.

    ``prompts`` are the prompts of a completion, ``messages`` the conversation of a chat; the other one is empty.
    ``max_tokens_field`` is the name under which max_tokens came, for errors. ``resumed_tokens`` is how many tokens at
    the prompt's end are an answer's that was begun elsewhere (extension field ``disagg_resumed_tokens``).
    """

    endpoint: Endpoint
    model: str | None
    prompts: tuple[Prompt, ...]
    messages: tuple[ChatMessage, ...]
    sampling: Sampling
    max_tokens_field: str
    stream: bool
    include_usage: bool
    return_token_ids: bool
    kv_transfer_params: Mapping[str, Any] | None
    resumed_tokens: int

    @property
    def prompt_field(self) -> str:
        """Name of the field that holds the prompt."""
        return "messages" if self.endpoint is Endpoint.CHAT else "prompt"


def parse_request(endpoint: Endpoint, raw: bytes) -> GenerationRequest:
    """A request from its body. Raises ApiError (400) naming the field at fault."""
    body = _object(raw)
    chat = endpoint is Endpoint.CHAT
    _refuse_unsupported(body, chat=chat)
    transfer = _mapping(body, "kv_transfer_params")
    stream = _flag(body, "stream")
    max_field = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    max_tokens = _integer(body, max_field, low=1)
    min_tokens = _integer(body, "min_tokens", low=0) or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid("min_tokens", f"{min_tokens} is more than {max_field} ({max_tokens})")
    return GenerationRequest(
        endpoint=endpoint,
        model=_text(body, "model"),
        prompts=() if chat else _prompts(body),
        messages=_messages(body) if chat else (),
        sampling=Sampling(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            stop=_stops(body),
            stop_token_ids=_stop_token_ids(body),
            ignore_eos=_flag(body, "ignore_eos"),
            include_stop_str_in_output=_flag(body, "include_stop_str_in_output"),
            temperature=_number(body, "temperature", default=1.0, low=0.0),
            top_p=_top_p(body),
            seed=_integer(body, "seed", low=-(2**63), high=2**64 - 1),
            n=_choices(body),
            logprobs=_logprobs(body, chat=chat),
        ),
        max_tokens_field=max_field,
        stream=stream,
        include_usage=_include_usage(body, stream=stream or wants_remote_decode(transfer)),
        return_token_ids=_flag(body, "return_token_ids"),
        kv_transfer_params=transfer,
        resumed_tokens=_integer(body, "disagg_resumed_tokens", low=0) or 0,
    )


def resolve_max_tokens(request: GenerationRequest, *, prompt_tokens: int, context_tokens: int) -> int:
    """How many tokens the answer may have: the request's limit, or the default within the context.

    The prompt is checked first, so that a prompt that is too long is named as such and never shows up as a negative
    number of tokens. Raises ApiError (400).
    """
    if prompt_tokens < 1:
        raise invalid(request.prompt_field, "is empty; at least one token is needed")
    if prompt_tokens >= context_tokens:
        raise _too_long(request, f"{prompt_tokens} tokens", context_tokens)
    room = context_tokens - prompt_tokens
    wanted = request.sampling.max_tokens
    if wanted is None:
        limit = room if request.endpoint is Endpoint.CHAT else min(room, DEFAULT_COMPLETION_TOKENS)
        limit = max(limit, min(room, request.sampling.min_tokens))
    elif wanted > room:
        raise ApiError(
            f"{request.max_tokens_field}: {wanted} is too large; the context holds {context_tokens} tokens and the "
            f"prompt takes {prompt_tokens}, which leaves {room}",
            param=request.max_tokens_field,
            code="context_length_exceeded",
        )
    else:
        limit = wanted
    if request.sampling.min_tokens > limit:
        raise invalid("min_tokens", f"{request.sampling.min_tokens} is more than the {limit} that fit")
    return limit


def check_text_length(
    request: GenerationRequest, *, characters: int, longest_token_characters: int, context_tokens: int
) -> None:
    """Raise ApiError (400) for a text that is too long however it is cut into tokens.

    Asked before the text is encoded: megabytes of text take seconds to encode, in which a server serves nobody else.
    ``longest_token_characters`` as `Tokenizer` gives it.
    """
    if longest_token_characters and (least := characters // longest_token_characters) >= context_tokens:
        raise _too_long(request, f"{characters} characters, so at least {least} tokens", context_tokens)


def _too_long(request: GenerationRequest, length: str, context_tokens: int) -> ApiError:
    return ApiError(
        f"{request.prompt_field}: {length}; the context holds {context_tokens}, of which at least one must be left "
        "for the answer",
        param=request.prompt_field,
        code="context_length_exceeded",
    )


def check_token_ids(prompt: tuple[int, ...], *, vocabulary_size: int) -> None:
    """Raise ApiError (400) if a token id of the prompt is outside the vocabulary."""
    if prompt and max(prompt) >= vocabulary_size:
        raise invalid("prompt", f"token id {max(prompt)} is outside the vocabulary (0..{vocabulary_size - 1})")


def _object(raw: bytes) -> dict[str, Any]:
    try:
        body = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(f"the body is no JSON: {error}", code="invalid_json") from error
    if not isinstance(body, dict):
        raise ApiError("the body is no JSON object", code="invalid_json")
    return body


def _refuse_unsupported(body: dict[str, Any], *, chat: bool) -> None:
    """Fields that would change the form of the answer, and that a simulated model can't honour."""
    for name in ("tools", "functions"):
        if body.get(name):
            raise unsupported(name, "a simulated model calls no tools")
    if body.get("tool_choice") not in (None, "none", "auto"):
        raise unsupported("tool_choice", "leave it out, or use 'none'")
    for name in ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"):
        if body.get(name):
            raise unsupported(name, "answers follow no grammar")
    form = body.get("response_format")
    if form is not None and (not isinstance(form, dict) or form.get("type") != "text"):
        raise unsupported("response_format", "only {'type': 'text'} is served")
    if body.get("prompt_logprobs") is not None:
        raise unsupported("prompt_logprobs", "log probabilities of generated tokens are served (logprobs)")
    if body.get("use_beam_search"):
        raise unsupported("use_beam_search", "use n")
    if chat:
        if body.get("modalities") not in (None, ["text"]):
            raise unsupported("modalities", "only text is served")
        return
    if body.get("suffix"):
        raise unsupported("suffix", "put the whole context into prompt")
    if body.get("echo"):
        raise unsupported("echo", "the prompt is not repeated in the answer")
    if body.get("best_of") not in (None, 1, body.get("n")):
        raise unsupported("best_of", "use n")


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid(name, f"is {_a(_kind(value))}; expected a string")
    return value


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid(name, f"is {_a(_kind(value))}; expected true or false")
    return value


def _mapping(body: dict[str, Any], name: str) -> dict[str, Any] | None:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise invalid(name, f"is {_a(_kind(value))}; expected an object")
    return value


def _integer(body: dict[str, Any], name: str, *, low: int, high: int = 2**53) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not _is_int(value):
        raise invalid(name, f"is {_spell(value)}; expected an integer")
    if not low <= value <= high:
        raise invalid(
            name, f"{value} is out of range; expected {low} to {high}" if value > high else _least(value, low)
        )
    return int(value)


def _least(value: int, low: int) -> str:
    return f"{value} is too small; at least {low}, or null for the default"


def _number(body: dict[str, Any], name: str, *, default: float, low: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise invalid(name, f"is {_spell(value)}; expected a number")
    if value < low:
        raise invalid(name, f"{value} is too small; expected at least {low:g}")
    return float(value)


def _top_p(body: dict[str, Any]) -> float:
    value = _number(body, "top_p", default=1.0, low=0.0)
    if not 0.0 < value <= 1.0:
        raise invalid("top_p", f"{value:g} is out of range; expected more than 0 and at most 1")
    return value


def _choices(body: dict[str, Any]) -> int:
    value = _integer(body, "n", low=1)
    if value is None:
        return 1
    if value > MAX_CHOICES:
        raise invalid("n", f"{value} is too large; at most {MAX_CHOICES}")
    return value


def _stops(body: dict[str, Any]) -> tuple[str, ...]:
    value = body.get("stop")
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise invalid("stop", "expected a string or an array of strings")
    if not stops:
        raise invalid("stop", "is an empty array; leave it out, or name at least one string")
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"{len(stops)} strings; at most {MAX_STOPS}")
    if "" in stops:
        raise invalid("stop", "holds an empty string, which every text ends with")
    return tuple(dict.fromkeys(stops))


def _stop_token_ids(body: dict[str, Any]) -> frozenset[int]:
    value = body.get("stop_token_ids")
    if value is None:
        return frozenset()
    if not isinstance(value, list) or not all(_is_int(token) for token in value):
        raise invalid("stop_token_ids", "expected an array of integers")
    return frozenset(value)


def _logprobs(body: dict[str, Any], *, chat: bool) -> int | None:
    if not chat:
        value = _integer(body, "logprobs", low=0)
        name = "logprobs"
    else:
        name = "top_logprobs"
        value = _integer(body, name, low=0)
        if not _flag(body, "logprobs"):
            if value:
                raise invalid(name, "needs logprobs: true")
            return None
        value = value or 0
    if value is not None and value > MAX_TOP_LOGPROBS:
        raise invalid(name, f"{value} is too large; at most {MAX_TOP_LOGPROBS}")
    return value


def _include_usage(body: dict[str, Any], *, stream: bool) -> bool:
    options = _mapping(body, "stream_options")
    if options is None:
        return False
    if not stream:
        raise invalid("stream_options", "is only allowed with stream: true")
    value = options.get("include_usage")
    if value is None:
        return False
    if not isinstance(value, bool):
        raise invalid("stream_options.include_usage", f"is {_spell(value)}; expected true or false")
    return value


def _prompts(body: dict[str, Any]) -> tuple[Prompt, ...]:
    value = body.get("prompt")
    if value is None:
        raise invalid("prompt", "is missing; expected text, token ids, or an array of either")
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise invalid("prompt", f"is {_a(_kind(value))}; expected text, token ids, or an array of either")
    if not value:
        raise invalid("prompt", "is an empty array; at least one prompt is needed")
    if _is_int(value[0]):
        return (_token_ids(value),)
    if len(value) > MAX_PROMPTS:
        raise invalid("prompt", f"{len(value)} prompts; at most {MAX_PROMPTS}")
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) for item in value):
        return tuple(_token_ids(item) for item in value)
    raise invalid("prompt", "mixes kinds; expected strings only, integers only, or arrays of integers only")


def _token_ids(value: list[Any]) -> tuple[int, ...]:
    if not value:
        raise invalid("prompt", "holds an empty array; at least one token is needed")
    if not all(type(token) is int for token in value):
        raise invalid("prompt", "mixes token ids with other values")
    if min(value) < 0 or max(value) > MAX_TOKEN_ID:
        raise invalid("prompt", f"holds a token id outside 0..{MAX_TOKEN_ID}")
    return tuple(value)


def _messages(body: dict[str, Any]) -> tuple[ChatMessage, ...]:
    value = body.get("messages")
    if not isinstance(value, list):
        raise invalid("messages", "is missing or no array; expected an array of messages")
    if not value:
        raise invalid("messages", "is an empty array; at least one message is needed")
    return tuple(_message(f"messages[{number}]", item) for number, item in enumerate(value))


def _message(where: str, value: Any) -> ChatMessage:
    if not isinstance(value, dict):
        raise ApiError(f"{where}: is {_a(_kind(value))}; expected an object", param=where, code="invalid_value")
    role = value.get("role")
    if role not in ROLES:
        raise invalid(f"{where}.role", f"is {_spell(role)}; expected one of {', '.join(ROLES)}")
    content = value.get("content")
    if content is None:
        if role != "assistant":
            raise invalid(f"{where}.content", "is missing; expected text")
        content = ""
    if isinstance(content, list):
        content = "".join(_part(f"{where}.content[{number}]", part) for number, part in enumerate(content))
    if not isinstance(content, str):
        raise invalid(f"{where}.content", f"is {_a(_kind(content))}; expected text or an array of text parts")
    return ChatMessage(role, content)


def _part(where: str, value: Any) -> str:
    if isinstance(value, dict) and value.get("type") == "text" and isinstance(value.get("text"), str):
        text: str = value["text"]
        return text
    kind = value.get("type") if isinstance(value, dict) else _kind(value)
    raise invalid(where, f"is {_spell(kind)}; only parts of type 'text' are served")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: object) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _a(kind: str) -> str:
    return kind if kind == "null" else f"an {kind}" if kind[0] in "ao" else f"a {kind}"


def _spell(value: object) -> str:
    text = {True: "true", False: "false", None: "null"}[value] if isinstance(value, bool | None) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
