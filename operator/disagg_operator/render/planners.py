"""The planner as a Deployment of one replica: two planners would scale against each other."""

from dataclasses import replace

from disagg_contract import labels, ports
from disagg_contract.settings import to_args
from disagg_crds import DisaggDeployment, planner_name
from disagg_operator.render.configs import Surroundings, planner_config
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
from disagg_operator.render.rights import PLANNER_RULES, access

PLANNER = labels.Component.PLANNER


def planner_objects(deployment: DisaggDeployment, *, around: Surroundings) -> list[Manifest]:
    """Everything that the planner needs, in the order of creation."""
    name = planner_name(deployment.name)
    return [
        *access(deployment, name, PLANNER, PLANNER_RULES, around=around),
        planner_deployment(deployment, around=around),
    ]


def planner_deployment(deployment: DisaggDeployment, *, around: Surroundings) -> Manifest:
    planner = deployment.spec.planner
    name = planner_name(deployment.name)
    config = replace(
        planner_config(deployment, around=around), namespace=deployment.namespace, port=ports.PLANNER_METRICS
    )
    own = component_labels(deployment.name, PLANNER, version=around.version)
    container: Manifest = {
        "name": "planner",
        "image": around.image,
        "imagePullPolicy": around.image_pull_policy,
        "command": ["disagg", "planner"],
        "args": to_args(config),
        "env": environment(planner.template, pod_environment()),
        "ports": [{"name": ports.METRICS_NAME, "containerPort": ports.PLANNER_METRICS, "protocol": "TCP"}],
        "resources": resources(planner.template),
        # The first import of the forecasting library takes seconds on a slow node.
        "startupProbe": probe(ports.METRICS_PATH, ports.METRICS_NAME, period=2, failures=90),
        "livenessProbe": probe(ports.METRICS_PATH, ports.METRICS_NAME, period=10, failures=6, timeout=5),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [TMP_MOUNT],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": name,
            "namespace": deployment.namespace,
            "labels": own,
            "ownerReferences": owned_by_deployment(deployment),
        },
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": selector_labels(deployment.name, PLANNER)},
            "strategy": {"type": "Recreate"},
            "template": {
                "metadata": {
                    "labels": {**planner.template.labels, **own},
                    "annotations": dict(planner.template.annotations),
                },
                "spec": {
                    **template_fields(planner.template),
                    **pull_secrets(around.image_pull_secrets),
                    "serviceAccountName": name,
                    "enableServiceLinks": False,
                    "securityContext": POD_SECURITY,
                    "containers": [container],
                    "volumes": [TMP_VOLUME],
                },
            },
        },
    }
