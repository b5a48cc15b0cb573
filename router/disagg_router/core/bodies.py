"""Request bodies: decoded once to raw fields, and spliced into the bodies of the legs.

A body becomes a ``dict`` of field name to raw JSON. Only the few fields that routing depends on are looked into; every
other one reaches the workers byte for byte. Where a leg only adds fields, they are written before the last brace of
the original bytes.

Prefill leg: one token, not streamed, one choice, ``kv_transfer_params`` that ask for the KV to be kept. What would
make sense only for the whole answer (``n``, ``best_of``, ``stream_options``, other limits) is left out, because the
worker would refuse it beside one token. Decode leg: the original, with the prefill's ``kv_transfer_params``. Streams
always ask for usage, so that tokens are counted by the engine that made them; a client that did not ask never sees it
(``disagg_router.core.stream``). A client's own ``kv_transfer_params`` are never passed on: they name a host that the
worker would connect to.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from disagg_contract.openai import ApiError, Endpoint, invalid
from disagg_contract.transfer import EXTENSION, PREFILL_LEG

TRANSFER: Final = "kv_transfer_params"
_NULL: Final = msgspec.Raw(b"null")
_TRUE: Final = msgspec.Raw(b"true")
_FALSE: Final = msgspec.Raw(b"false")
_USAGE: Final = msgspec.Raw(b'{"include_usage":true}')
_PREFILL_FIELDS: Final[Mapping[str, msgspec.Raw]] = {
    "max_tokens": msgspec.Raw(b"1"),
    "min_tokens": msgspec.Raw(b"1"),
    "stream": msgspec.Raw(b"false"),
    TRANSFER: msgspec.Raw(msgspec.json.encode(PREFILL_LEG)),
}
_PREFILL_OMITTED: Final = ("max_completion_tokens", "n", "best_of", "stream_options", "echo")

_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode: Final = msgspec.json.Encoder().encode


class Inbound(msgspec.Struct):
    """A client's request.

    ``stream_usage`` says whether the client asked for the usage chunk; ``choices`` is ``n``; ``prompts`` how many
    prompts a completion carries (a chat has one).
    """

    endpoint: Endpoint
    raw: bytes
    fields: dict[str, msgspec.Raw]
    model: str
    stream: bool
    stream_usage: bool
    choices: int
    prompts: int


def parse_inbound(endpoint: Endpoint, raw: bytes) -> Inbound:
    """A request from its body. Raises ApiError (400) for what no worker could be chosen by.

    Everything else is left to the worker to judge, so that one place decides what a request may hold. A missing or null
    ``model`` is ''.
    """
    try:
        if not raw.isascii():
            raw.decode()  # strings are not looked into below, and broken UTF-8 is the client's mistake, not a worker's
        fields = _fields.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(f"the body is no JSON object: {error}", code="invalid_json") from error
    stream = fields.get("stream") == _TRUE
    return Inbound(
        endpoint,
        raw,
        fields,
        _model(fields.get("model")),
        stream,
        stream and _asks_usage(fields.get("stream_options")),
        _count(fields.get("n")),
        _prompts(fields.get("prompt")),
    )


def prefill_body(request: Inbound) -> bytes:
    """Body of the prefill leg."""
    fields = {**request.fields, **_PREFILL_FIELDS}
    for name in _PREFILL_OMITTED:
        fields.pop(name, None)
    return _encode(fields)


def answer_body(request: Inbound, transfer: msgspec.Raw | None) -> bytes:
    """Body of the leg that answers: the decode leg with the prefill's parameters, or the only leg with none."""
    fields = request.fields
    added: dict[str, msgspec.Raw] = {}
    if request.stream and not request.stream_usage:
        added["stream_options"] = _with_usage(fields.get("stream_options"))
    if transfer is not None:
        added[TRANSFER] = transfer
    if TRANSFER in fields or any(name in fields for name in added):
        rest = {name: value for name, value in fields.items() if name != TRANSFER}
        return _encode({**rest, **added})
    if not added:
        return request.raw
    end = request.raw.rindex(b"}")
    return b"%b%b%b" % (request.raw[:end], b"," if fields else b"", _encode(added)[1:])


class UsageDetails(msgspec.Struct):
    cached_tokens: int | None = 0


class UsageCount(msgspec.Struct):
    """Token counts of an answer, as OpenAI's ``usage`` gives them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: UsageDetails | None = None

    @property
    def cached_tokens(self) -> int:
        details = self.prompt_tokens_details
        return (details.cached_tokens or 0) if details else 0


class PrefillAnswer(msgspec.Struct):
    """What the router reads of the prefill's answer."""

    kv_transfer_params: msgspec.Raw = _NULL
    usage: UsageCount | None = None

    @property
    def transfer(self) -> msgspec.Raw | None:
        return None if self.kv_transfer_params == _NULL else self.kv_transfer_params


class _Extension(msgspec.Struct):
    transfer_id: str = ""


class _Transfer(msgspec.Struct):
    extension: _Extension | None = msgspec.field(default=None, name=EXTENSION)


class _Answer(msgspec.Struct):
    usage: UsageCount | None = None


_prefill_answer: Final = msgspec.json.Decoder(PrefillAnswer)
_answer: Final = msgspec.json.Decoder(_Answer)
_transfer: Final = msgspec.json.Decoder(_Transfer)


def read_prefill(body: bytes) -> PrefillAnswer | None:
    """The prefill's answer, or None if it is none."""
    try:
        return _prefill_answer.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def transfer_id(transfer: msgspec.Raw) -> str:
    """Our extension's name of a transfer; '' where an engine does not know the extension."""
    try:
        extension = _transfer.decode(transfer).extension
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    return extension.transfer_id if extension is not None else ""


def read_usage(body: bytes) -> UsageCount | None:
    """Token counts of a whole answer, or None if it has none."""
    try:
        return _answer.decode(body).usage
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _model(raw: msgspec.Raw | None) -> str:
    if raw is None:
        return ""
    try:
        return msgspec.json.decode(raw, type=str | None) or ""
    except msgspec.MsgspecError:
        raise invalid("model", "expected a string") from None


def _asks_usage(raw: msgspec.Raw | None) -> bool:
    """Whether the stream will carry usage or be refused; either way nothing is added and nothing taken out."""
    options = _options(raw)
    return options is None or options.get("include_usage") not in (None, _NULL, _FALSE)


def _with_usage(raw: msgspec.Raw | None) -> msgspec.Raw:
    options = _options(raw)
    if not options:
        return _USAGE
    return msgspec.Raw(_encode({**options, "include_usage": _TRUE}))


def _options(raw: msgspec.Raw | None) -> dict[str, msgspec.Raw] | None:
    """The stream options; None if they are no object."""
    if raw is None or raw == _NULL:
        return {}
    try:
        return _fields.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _count(raw: msgspec.Raw | None) -> int:
    if raw is None:
        return 1
    try:
        return max(1, msgspec.json.decode(raw, type=int | None) or 1)
    except msgspec.MsgspecError:
        return 1


def _prompts(raw: msgspec.Raw | None) -> int:
    if raw is None:
        return 1
    data = bytes(raw)
    if data[:1] != b"[":
        return 1
    inner = data[1:].lstrip()[:1]
    if inner not in (b'"', b"["):
        return 1
    try:
        return max(1, len(_items.decode(data)))
    except msgspec.MsgspecError:
        return 1


_items: Final = msgspec.json.Decoder(list[msgspec.Raw])
