"""OpenAI's HTTP schema, as far as a text model serves it: requests, answers, streams and errors."""

from disagg_contract.openai.errors import ApiError, invalid, model_not_found, unavailable, unsupported
from disagg_contract.openai.requests import (
    DEFAULT_COMPLETION_TOKENS,
    Endpoint,
    GenerationRequest,
    Prompt,
    Sampling,
    check_text_length,
    check_token_ids,
    parse_request,
    resolve_max_tokens,
)
from disagg_contract.openai.responses import (
    DONE,
    STREAM_HEADERS,
    Choice,
    StreamWriter,
    TokenLogprob,
    Usage,
    build_models,
    build_response,
    error_event,
    response_id,
)

__all__ = [
    "DEFAULT_COMPLETION_TOKENS",
    "DONE",
    "STREAM_HEADERS",
    "ApiError",
    "Choice",
    "Endpoint",
    "GenerationRequest",
    "Prompt",
    "Sampling",
    "StreamWriter",
    "TokenLogprob",
    "Usage",
    "build_models",
    "build_response",
    "check_text_length",
    "check_token_ids",
    "error_event",
    "invalid",
    "model_not_found",
    "parse_request",
    "resolve_max_tokens",
    "response_id",
    "unavailable",
    "unsupported",
]
