"""Calls to the Kubernetes API that wait for their answer, for small programs that do one thing at a time.

Answers are plain JSON documents: the typed models of the client cost more than these programs do.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import urllib3

from disagg_operator.errors import ApiError, NotFound

Document = Mapping[str, Any]
REQUEST_SECONDS: Final = 30


class BlockingApi:
    """The cluster that this pod runs in, or that KUBECONFIG names. Raises ApiError where there is neither."""

    def __init__(self) -> None:
        from kubernetes import client, config

        try:
            config.load_incluster_config()  # type: ignore[no-untyped-call]
        except config.ConfigException:
            try:
                config.load_kube_config()  # type: ignore[no-untyped-call]
            except config.ConfigException as error:
                raise ApiError(f"no cluster: this is no pod, and KUBECONFIG names none ({error})") from error
        self._client = client
        self.core = client.CoreV1Api()
        self.apps = client.AppsV1Api()

    def items(self, method: Callable[..., Any], *args: str, label_selector: str, **options: Any) -> list[Document]:
        """Objects that a list call finds. Raises ApiError when it is refused or not answered."""
        items: list[Document] = json.loads(self._call(method, *args, label_selector=label_selector, **options))["items"]
        return items

    def merge(self, method: Callable[..., Any], *args: str, body: Document) -> bool:
        """Send a JSON merge patch; False when the object is gone. Raises ApiError like `items`."""
        try:
            self._call(method, *args, body=body, _content_type="application/merge-patch+json")
        except NotFound:
            return False
        return True

    def _call(self, method: Callable[..., Any], *args: str, **kwargs: Any) -> bytes:
        try:
            answer = method(*args, _request_timeout=REQUEST_SECONDS, _preload_content=False, **kwargs)
            data: bytes = answer.data
        except self._client.ApiException as error:
            kind = NotFound if error.status == 404 else ApiError
            raise kind(f"{error.status} {error.reason}", code=error.status, reason=error.reason) from error
        except urllib3.exceptions.HTTPError as error:
            raise ApiError(f"no answer: {error}") from error
        if answer.status >= 400:
            kind = NotFound if answer.status == 404 else ApiError
            raise kind(f"{answer.status} {data[:200].decode(errors='replace')}", code=answer.status)
        return data


def until_terminated() -> threading.Event:
    """An event that SIGTERM and SIGINT set."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped
