"""The way to the API server: the pod's ServiceAccount, or a kubeconfig outside of a cluster.

Imported only where pods are watched, so that a router beside a discovery file never loads the Kubernetes client.
"""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes.aio import client, config

from disagg_router.errors import StartError
from disagg_router.shell.discovery.kube import Pods

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def own_namespace() -> str:
    """Namespace of the pod this runs in, or ``default``."""
    try:
        return (_SERVICE_ACCOUNT / "namespace").read_text().strip()
    except OSError:
        return "default"


class PodReader:
    """Lists and watches pods through the official client's transport: addresses, certificates, tokens that are renewed.

    Its generated API is left out on purpose. It would load every model there is, which is 100 MB and two seconds for a
    program that reads six fields of one kind.
    """

    def __init__(self, api: client.ApiClient) -> None:
        self._api = api

    async def get(
        self, namespace: str, query: Sequence[tuple[str, str]], *, timeout_seconds: float
    ) -> aiohttp.ClientResponse:
        parameters = await self._api.param_serialize(
            "GET",
            "/api/v1/namespaces/{namespace}/pods",
            path_params={"namespace": namespace},
            query_params=list(query),
            header_params={"Accept": "application/json"},
            auth_settings=["BearerToken"],
        )
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        answer = await self._api.call_api(*parameters, _preload_content=False, _request_timeout=timeout)
        response: aiohttp.ClientResponse = answer.response
        return response


@asynccontextmanager
async def connect() -> AsyncIterator[Pods]:
    """Raises StartError where there is neither a ServiceAccount nor a kubeconfig."""
    settings = client.Configuration()
    load: Any = config  # its functions have no annotations
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            load.load_incluster_config(client_configuration=settings)
        else:
            await load.load_kube_config(client_configuration=settings)
    except config.ConfigException as error:
        raise StartError(
            f"no way to the Kubernetes API: {error}; run in a pod, set KUBECONFIG, or use --discovery-file"
        ) from error
    async with client.ApiClient(settings) as api:
        yield PodReader(api)
