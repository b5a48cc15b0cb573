"""When a child is written."""

from collections.abc import Callable
from typing import Any

import pytest

from disagg_crds import DisaggDeployment
from disagg_operator.errors import ApiError, Conflict
from disagg_operator.render.configs import Surroundings
from disagg_operator.render.services import router_deployment
from disagg_operator.shell.kube.children import covers, differs, must_be_free, sign
from disagg_operator.shell.kube.resources import APP_DEPLOYMENTS, DEPLOYMENTS, NODES, PODS
from disagg_operator.shell.kube.watcher import OURS, settings

Make = Callable[..., DisaggDeployment]
AROUND = Surroundings(image="disagg:0.1.0")


def live(manifest: dict[str, Any]) -> dict[str, Any]:
    """What the API server makes of it: defaults added, quantities rewritten."""
    spec = manifest["spec"] | {"progressDeadlineSeconds": 600}
    container = spec["template"]["spec"]["containers"][0] | {"terminationMessagePath": "/dev/termination-log"}
    container["resources"] = {"requests": {"cpu": "0.05", "memory": "192Mi"}}
    template = spec["template"] | {"spec": spec["template"]["spec"] | {"containers": [container], "dnsPolicy": "x"}}
    template["metadata"] = {key: value for key, value in template["metadata"].items() if value}
    return {**manifest, "spec": spec | {"template": template}, "status": {"replicas": 1}}


def test_op5_defaults_and_rewritten_quantities_are_no_difference(make_deployment: Make) -> None:
    wanted = sign(router_deployment(make_deployment(), around=AROUND))
    assert not differs(live(wanted), wanted)


def test_a_new_spec_and_a_foreign_change_are_differences(make_deployment: Make) -> None:
    wanted = sign(router_deployment(make_deployment(), around=AROUND))
    other = sign(router_deployment(make_deployment(router={"replicas": 2}), around=AROUND))
    assert differs(live(wanted), other)
    changed = live(wanted)
    changed["spec"]["replicas"] = 5
    assert differs(changed, wanted)
    bigger = {"resources": {"requests": {"cpu": "2"}}}
    assert differs(live(wanted), sign(router_deployment(make_deployment(router={"template": bigger}), around=AROUND)))


def test_covers_compares_what_we_said_alone() -> None:
    assert covers({"a": 1, "b": 2}, {"a": 1})
    assert covers({"a": [{"x": 1, "y": 2}]}, {"a": [{"x": 1}]})
    assert not covers({"a": [1, 2]}, {"a": [1]})
    assert not covers({"a": 1}, {"a": 2})
    assert covers({}, {"a": {}})
    assert not covers({}, {"a": 1})


def test_objects_of_others_are_not_taken(make_deployment: Make) -> None:
    def owned(kind: str, name: str, uid: str) -> dict[str, Any]:
        owner = {"kind": kind, "name": name, "uid": uid, "controller": True}
        return {"kind": "Service", "metadata": {"name": "chat-router", "ownerReferences": [owner]}}

    deployment = make_deployment()
    must_be_free({"kind": "Service", "metadata": {"name": "chat-router"}}, deployment)
    must_be_free(owned("DisaggDeployment", "chat", "uid-of-chat"), deployment)
    with pytest.raises(Conflict, match="about to go"):
        must_be_free(owned("DisaggDeployment", "chat", "uid-of-yesterday"), deployment)
    with pytest.raises(ApiError, match="belongs to Rollout web"):
        must_be_free(owned("Rollout", "web", "u"), deployment)


def test_paths() -> None:
    assert PODS.path("team", "a", "status") == "/api/v1/namespaces/team/pods/a/status"
    assert NODES.path() == "/api/v1/nodes"
    assert APP_DEPLOYMENTS.path("team") == "/apis/apps/v1/namespaces/team/deployments"
    assert DEPLOYMENTS.path() == "/apis/disagg.dev/v1alpha1/disaggdeployments"


@pytest.mark.parametrize("namespaced", [True, False])
def test_kopf_posts_nothing_and_watches_only_our_pods(namespaced: bool) -> None:
    found = settings(namespaced=namespaced)
    assert found.peering.standalone
    assert not found.posting.enabled
    assert set(found.watching.label_selectors.values()) == {OURS}
    assert found.scanning.disabled == namespaced
