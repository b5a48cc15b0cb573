"""Where the API server is and who we are: in-cluster credentials, or a kubeconfig."""

import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from disagg_operator.errors import ApiError

TOKEN_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Tokens(Protocol):
    """Gives the bearer token of the moment, or None."""

    async def __call__(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Connection:
    """Base URL, TLS, token, and the namespace that is ours by default."""

    server: str
    tls: ssl.SSLContext | None
    token: Tokens
    namespace: str


async def connect() -> Connection:
    """In-cluster where a service account is mounted and no KUBECONFIG says otherwise. Raises ApiError."""
    from kubernetes.aio import config
    from kubernetes.aio.client.configuration import Configuration
    from kubernetes.aio.client.rest import RESTClientObject

    configuration: Any = Configuration()
    loaders: Any = config  # its functions carry no types
    try:
        if "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ:
            loaders.load_incluster_config(client_configuration=configuration)
        else:
            await loaders.load_kube_config(client_configuration=configuration)
    except (config.ConfigException, OSError) as error:
        raise ApiError(f"no way to the API server: {error}; set KUBECONFIG or run inside a cluster") from error

    async def token() -> str | None:
        found = await configuration.get_api_key_with_prefix("BearerToken")
        return str(found) if found else None

    tls = RESTClientObject(configuration).ssl_context if configuration.host.startswith("https") else None
    return Connection(configuration.host.rstrip("/"), tls, token, own_namespace())


def own_namespace() -> str:
    """The pod's namespace, else the one of the environment, else ``default``."""
    given = os.environ.get("POD_NAMESPACE")
    if given:
        return given
    try:
        return (TOKEN_DIR / "namespace").read_text().strip() or "default"
    except OSError:
        return "default"
