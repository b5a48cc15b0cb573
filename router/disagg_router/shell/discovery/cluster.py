"""The way to the API server: the pod's ServiceAccount, or a kubeconfig outside of a cluster.

Imported only where pods are watched, so that a router beside a discovery file never loads the Kubernetes client.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

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


@asynccontextmanager
async def connect() -> AsyncIterator[Pods]:
    """CoreV1Api. Raises StartError where there is neither a ServiceAccount nor a kubeconfig."""
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
        yield cast(Pods, client.CoreV1Api(api))
