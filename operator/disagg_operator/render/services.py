"""The router as Deployment and Service, with the rights to watch its pods and nothing else."""

from dataclasses import replace

from disagg_contract import labels, ports
from disagg_contract.settings import to_args
from disagg_crds import AntiAffinity, DisaggDeployment, Router, router_name
from disagg_operator.render.configs import Surroundings, router_config
from disagg_operator.render.metadata import (
    CONTAINER_SECURITY,
    POD_SECURITY,
    TMP_MOUNT,
    TMP_VOLUME,
    Manifest,
    component_labels,
    environment,
    owned_by_deployment,
    pod_environment,
    probe,
    pull_secrets,
    resources,
    selector_labels,
    template_fields,
)
from disagg_operator.render.rights import ROUTER_RULES, access
from disagg_operator.render.tokens import TOKEN_FILE, TOKEN_MOUNT, token_volume

ROUTER = labels.Component.ROUTER


def router_objects(deployment: DisaggDeployment, *, around: Surroundings) -> list[Manifest]:
    """Everything that the router needs, in the order of creation."""
    name = router_name(deployment.name)
    return [
        *access(deployment, name, ROUTER, ROUTER_RULES, around=around),
        router_service(deployment, around=around),
        router_deployment(deployment, around=around),
    ]


def router_endpoint(deployment: DisaggDeployment) -> str:
    """Base URL inside the cluster."""
    return f"http://{router_name(deployment.name)}.{deployment.namespace}:{deployment.spec.router.port}"


def router_service(deployment: DisaggDeployment, *, around: Surroundings) -> Manifest:
    router = deployment.spec.router
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(deployment, around),
        "spec": {
            "type": router.service_type.value,
            "selector": selector_labels(deployment.name, ROUTER),
            "ports": [
                {
                    "name": ports.HTTP_NAME,
                    "port": router.port,
                    "targetPort": ports.HTTP_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }


def router_deployment(deployment: DisaggDeployment, *, around: Surroundings) -> Manifest:
    router = deployment.spec.router
    name = router_name(deployment.name)
    config = replace(
        router_config(deployment, around=around),
        namespace=deployment.namespace,
        port=ports.HTTP,
        token_file=TOKEN_FILE,
    )
    pod_labels = {**router.template.labels, **component_labels(deployment.name, ROUTER, version=around.version)}
    container: Manifest = {
        "name": "router",
        "image": around.image,
        "imagePullPolicy": around.image_pull_policy,
        "command": ["disagg", "router"],
        "args": to_args(config),
        "env": environment(router.template, pod_environment()),
        "ports": [{"name": ports.HTTP_NAME, "containerPort": ports.HTTP, "protocol": "TCP"}],
        "resources": resources(router.template),
        "readinessProbe": probe(ports.HEALTH_PATH, ports.HTTP_NAME, period=1, failures=2),
        # Metrics answer while no worker is known; health does not, and that is no reason to restart.
        "livenessProbe": probe(ports.METRICS_PATH, ports.HTTP_NAME, period=10, failures=6, timeout=5),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [TMP_MOUNT, TOKEN_MOUNT],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(deployment, around),
        "spec": {
            "replicas": router.replicas,
            "selector": {"matchLabels": selector_labels(deployment.name, ROUTER)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling(router)},
            "template": {
                "metadata": {"labels": pod_labels, "annotations": dict(router.template.annotations)},
                "spec": {
                    **with_anti_affinity(template_fields(router.template), deployment),
                    **pull_secrets(around.image_pull_secrets),
                    "serviceAccountName": name,
                    "enableServiceLinks": False,
                    "securityContext": POD_SECURITY,
                    "containers": [container],
                    "volumes": [TMP_VOLUME, token_volume(deployment.name)],
                },
            },
        },
    }


def rolling(router: Router) -> Manifest:
    """Bounds of a router update: none may be missing, unless nodes of their own leave no room for one more."""
    if router.anti_affinity is AntiAffinity.REQUIRED:
        return {"maxSurge": 0, "maxUnavailable": 1}
    return {"maxSurge": 1, "maxUnavailable": 0}


def with_anti_affinity(fields: Manifest, deployment: DisaggDeployment) -> Manifest:
    """Pod fields that keep the routers of a deployment on different nodes; they tie routers to routers alone."""
    wanted = deployment.spec.router.anti_affinity
    if wanted is AntiAffinity.NONE:
        return fields
    term = {
        "labelSelector": {"matchLabels": selector_labels(deployment.name, ROUTER)},
        "topologyKey": labels.HOSTNAME,
    }
    if wanted is AntiAffinity.REQUIRED:
        rule: Manifest = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    else:
        rule = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    return {**fields, "affinity": {**fields.get("affinity", {}), "podAntiAffinity": rule}}


def _metadata(deployment: DisaggDeployment, around: Surroundings) -> Manifest:
    return {
        "name": router_name(deployment.name),
        "namespace": deployment.namespace,
        "labels": component_labels(deployment.name, ROUTER, version=around.version),
        "ownerReferences": owned_by_deployment(deployment),
    }
