"""What the chart renders, in every combination of its switches."""

from __future__ import annotations

import base64
import gzip
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from disagg_contract import labels, metrics, ports
from disagg_contract.config import OperatorConfig
from disagg_contract.settings import parse
from disagg_operator.render.rights import OPERATOR_RULES
from disagg_operator.shell.fakegpus import FakeGpusConfig
from disagg_operator.shell.targets import TargetsConfig
from tests.support.kube import ClusterError, Helm, Kube, program, run

Document = dict[str, Any]
Render = Callable[..., list[Document]]
SWITCHES = (
    "crds.install",
    "prometheus.enabled",
    "dashboards.enabled",
    "monitoring.enabled",
    "podMonitor.enabled",
    "fakeGpus.enabled",
    "rbac.aggregate",
    "tests.enabled",
    "networkPolicy.enabled",
    "operator.podDisruptionBudget.enabled",
    "serviceMonitor.enabled",
)
EVERYTHING = tuple(f"{switch}=true" for switch in SWITCHES)
NAMESPACED = ("scope=namespace", "fakeGpus.enabled=false")


def named(documents: Iterable[Document], kind: str, name: str) -> Document:
    (found,) = [d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name]
    return found


def pod_specs(documents: Iterable[Document]) -> dict[str, Document]:
    found = {}
    for document in documents:
        key = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] == "Pod":
            found[key] = document["spec"]
        elif document["kind"] in ("Deployment", "Job"):
            found[key] = document["spec"]["template"]["spec"]
    return found


def granted(role: Document) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def combinations_of_any_two() -> list[dict[str, bool]]:
    """Few settings of the switches that put every two of them through all their four states."""
    everything = [
        dict(zip(SWITCHES, states, strict=True)) for states in itertools.product((True, False), repeat=len(SWITCHES))
    ]

    def pairs(states: dict[str, bool]) -> set[tuple[tuple[str, bool], ...]]:
        return set(itertools.combinations(states.items(), 2))

    missing = set().union(*map(pairs, everything))
    chosen = []
    while missing:
        best = max(everything, key=lambda states: len(pairs(states) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen


def test_hc5_combinations_of_switches_render(render: Render) -> None:
    for states in combinations_of_any_two():
        values = [f"{switch}={str(on).lower()}" for switch, on in states.items()]
        documents = render(*values, "prometheus.url=http://prometheus:9090")
        names = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents]
        assert len(set(names)) == len(names), values
        assert ("Deployment", "disagg-system", "disagg-operator") in names, values


def test_everything_on_is_linted(chart: Path) -> None:
    sets = [part for value in EVERYTHING for part in ("--set", value)]
    assert "0 chart(s) failed" in run(program("helm"), "lint", str(chart), "--strict", *sets)


@pytest.mark.parametrize("null", ["operator.resources.limits", "operator.nodeSelector", "prometheus.tolerations"])
def test_hc5_null_takes_a_default_away(render: Render, null: str) -> None:
    spec = pod_specs(render(f"{null}=null"))["Deployment/disagg-operator"]
    assert spec["containers"][0]["resources"].get("limits") == (
        None if null.endswith("limits") else {"memory": "512Mi"}
    )
    assert "nodeSelector" not in spec


@pytest.mark.parametrize(
    ("values", "text", "complaint"),
    [
        (("operator.replcias=1",), (), "replcias"),
        ((), ("operator.replicas=1",), "/operator/replicas"),
        (("replicas=1",), (), "replicas"),
        (("operator.replicas=2",), (), "maximum"),
        (("scope=everywhere",), (), "'cluster', 'namespace'"),
        (("prometheus.url=prometheus:9090",), (), "/prometheus/url"),
        (("image.digest=latest",), (), "/image/digest"),
        (("fakeGpus.gpusPerNode=0",), (), "/fakeGpus/gpusPerNode"),
        (("fakeGpus=null",), (), "fakeGpus"),
        (("operator.podDisruptionBudget.maxUnavailable=2",), (), "/operator/podDisruptionBudget/maxUnavailable"),
        (("networkPolicy.metricsNamespaces={Upper}",), (), "/networkPolicy/metricsNamespaces"),
        (("scope=namespace", "fakeGpus.enabled=true"), (), "fakeGpus.enabled needs scope: cluster"),
        (("monitoring.enabled=true", "prometheus.enabled=false"), (), "monitoring.enabled needs a data source"),
    ],
)
def test_hc5_bad_values_are_refused_by_name(
    render: Render, values: tuple[str, ...], text: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(ClusterError, match=complaint):
        render(*values, text=text)


def test_hc4_operator_holds_exactly_the_rights_that_it_uses(render: Render) -> None:
    documents = render()
    role = named(documents, "ClusterRole", "disagg-operator")
    lease = named(documents, "Role", "disagg-operator-lease")
    used = {(r.group, resource, verb, r.scope) for r in OPERATOR_RULES for resource in r.resources for verb in r.verbs}
    assert granted(lease) == {right[:3] for right in used if right[3] == "lease"}
    assert granted(role) == {right[:3] for right in used if right[3] != "lease"}
    assert not any("*" in right for right in granted(role))


def test_hc3_namespaced_install_has_no_cluster_rights(render: Render) -> None:
    documents = render(*NAMESPACED, "monitoring.enabled=true", "crds.install=false")
    assert not [d for d in documents if d["kind"].startswith("Cluster") or d["kind"] == "CustomResourceDefinition"]
    assert {d["metadata"]["namespace"] for d in documents} == {"disagg-system"}
    config = operator_config(documents)
    assert config.namespace == "disagg-system"
    rights = granted(named(documents, "Role", "disagg-operator"))
    namespaced = {
        (r.group, resource, v)
        for r in OPERATOR_RULES
        if r.scope == "namespaced"
        for resource in r.resources
        for v in r.verbs
    }
    assert namespaced <= rights
    assert not {resource for _, resource, _ in rights} & {"nodes", "namespaces", "customresourcedefinitions"}
    finder = pod_specs(documents)["Deployment/disagg-prometheus"]["containers"][1]
    assert parse(TargetsConfig, finder["args"], {}).namespace == "disagg-system"


def test_hc3_reading_nodes_is_the_only_cluster_right_and_by_choice(render: Render) -> None:
    documents = render(*NAMESPACED, "crds.install=false", "rbac.readNodes=true")
    roles = [d for d in documents if d["kind"] == "ClusterRole"]
    assert [d["metadata"]["name"] for d in roles] == ["disagg-system-disagg-operator-nodes"]
    read = {("", resource, verb) for resource in ("nodes", "pods") for verb in ("get", "list", "watch")}
    assert granted(roles[0]) == read
    assert not [d for d in render("rbac.readNodes=true") if d["metadata"]["name"].endswith("-nodes")]


def operator_config(documents: Iterable[Document]) -> OperatorConfig:
    (spec,) = [spec for name, spec in pod_specs(documents).items() if name.endswith("-operator")]
    container = spec["containers"][0]
    assert container["command"] == ["disagg", "operator"]
    return parse(OperatorConfig, container["args"], {})


def test_operator_gets_settings_that_it_understands(render: Render) -> None:
    config = operator_config(render("operator.resyncSeconds=30", "operator.logLevel=debug", "image.tag=v1"))
    assert config.image == "disagg:v1"
    assert (config.resync_seconds, config.log_level, config.namespace) == (30, "debug", "")
    assert config.lease_namespace == "disagg-system"


def test_hc6_planners_ask_a_prometheus_that_exists(render: Render) -> None:
    documents = render()
    assert operator_config(documents).prometheus_url == "http://disagg-prometheus.disagg-system.svc:9090"
    service = named(documents, "Service", "disagg-prometheus")
    assert service["spec"]["ports"][0]["port"] == 9090
    pods = named(documents, "Deployment", "disagg-prometheus")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= pods.items()


def test_hc6_another_prometheus_can_be_named_or_none(render: Render) -> None:
    named_one = render("prometheus.enabled=false", "prometheus.url=http://prometheus.monitoring:9090")
    assert operator_config(named_one).prometheus_url == "http://prometheus.monitoring:9090"
    none = render("prometheus.enabled=false")
    assert operator_config(none).prometheus_url == ""
    assert not [d for d in none if "prometheus" in d["metadata"]["name"]]


def test_pk3_default_image_is_of_the_chart_version(render: Render, chart: Path) -> None:
    documents = render()
    version = yaml.safe_load((chart / "Chart.yaml").read_text())["version"]
    assert operator_config(documents).image == f"disagg:{version}"
    crds = [d for d in documents if d["kind"] == "CustomResourceDefinition"]
    assert {d["metadata"]["labels"]["app.kubernetes.io/version"] for d in crds} == {version}


def test_a_digest_wins_over_the_tag(render: Render) -> None:
    digest = "sha256:" + "0" * 64
    assert operator_config(render(f"image.digest={digest}")).image == f"disagg@{digest}"


def test_pull_secrets_reach_every_pod(render: Render) -> None:
    documents = render(*EVERYTHING, "imagePullSecrets[0].name=one", "imagePullSecrets[1].name=two")
    for name, spec in pod_specs(documents).items():
        assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}], name
    assert operator_config(documents).image_pull_secrets == "one,two"
    assert operator_config(render()).image_pull_secrets == ""


def test_network_policies_choose_the_pods_that_they_are_about(render: Render) -> None:
    documents = render(*EVERYTHING, "networkPolicy.metricsNamespaces={monitoring}")
    pods = {
        d["metadata"]["name"]: d["spec"]["template"]["metadata"]["labels"]
        for d in documents
        if d["kind"] == "Deployment"
    }
    policies = [d for d in documents if d["kind"] == "NetworkPolicy"]
    assert {policy["metadata"]["name"] for policy in policies} == set(pods)
    for policy in policies:
        selector = policy["spec"]["podSelector"]["matchLabels"]
        chosen = [name for name, own in pods.items() if selector.items() <= own.items()]
        assert chosen == [policy["metadata"]["name"]]
    config = operator_config(documents)
    assert (config.network_policies, config.trusted_namespaces) == (True, "disagg-system,monitoring")
    assert not [d for d in render() if d["kind"] == "NetworkPolicy"]
    assert operator_config(render()).network_policies is False


def test_network_policies_let_in_who_has_to_talk(render: Render) -> None:
    documents = render(*EVERYTHING)
    prometheus = named(documents, "NetworkPolicy", "disagg-prometheus")["spec"]["ingress"][0]
    ours, planners = prometheus["from"]
    grafana = named(documents, "Deployment", "disagg-grafana")["spec"]["template"]["metadata"]["labels"]
    test = named(documents, "Pod", "disagg-test")["metadata"]["labels"]
    for own in (grafana, test):
        assert ours["podSelector"]["matchLabels"].items() <= own.items()
    assert planners["namespaceSelector"] == {}
    assert planners["podSelector"]["matchLabels"] == {labels.COMPONENT: labels.Component.PLANNER}
    (web,) = prometheus["ports"]
    container = pod_specs(documents)["Deployment/disagg-prometheus"]["containers"][0]
    assert web["port"] in {port["name"] for port in container["ports"]}
    own = named(render(*NAMESPACED, "networkPolicy.enabled=true"), "NetworkPolicy", "disagg-prometheus")
    assert "namespaceSelector" not in own["spec"]["ingress"][0]["from"][1]


def test_a_budget_decides_whether_a_node_drain_may_stop_the_operator(render: Render) -> None:
    budget = named(render("operator.podDisruptionBudget.enabled=true"), "PodDisruptionBudget", "disagg-operator")
    assert budget["spec"]["maxUnavailable"] == 0
    pod = named(render(), "Deployment", "disagg-operator")["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= pod.items()
    assert not [d for d in render() if d["kind"] == "PodDisruptionBudget"]


def test_values_of_a_release_from_before_a_switch_existed_still_render(render: Render) -> None:
    """``helm upgrade --reuse-values`` leaves the new chart without its new defaults."""
    documents = render("networkPolicy=null", "operator.podDisruptionBudget=null", "serviceMonitor=null")
    assert operator_config(documents).network_policies is False


def test_crds_survive_uninstall_by_choice(render: Render) -> None:
    def policies(*values: str) -> list[Any]:
        crds = [d for d in render(*values) if d["kind"] == "CustomResourceDefinition"]
        return [d["metadata"].get("annotations", {}).get("helm.sh/resource-policy") for d in crds]

    assert policies() == ["keep", "keep"]
    assert policies("crds.keep=false") == [None, None]
    assert policies("crds.install=false") == []


def test_crds_in_the_chart_are_those_of_the_package(render: Render, chart: Path) -> None:
    beside = sorted((chart.parents[1] / "crds").glob("*.yaml"))
    plain = [yaml.safe_load(path.read_text()) for path in beside]
    rendered = [d for d in render("crds.keep=false") if d["kind"] == "CustomResourceDefinition"]
    assert sorted(rendered, key=lambda d: d["metadata"]["name"]) == plain


def test_hc2_a_release_fits_into_its_secret(render: Render, chart: Path) -> None:
    """Helm keeps chart and manifests, compressed and twice base64-coded, in a Secret of at most 1 MiB."""
    manifest = yaml.safe_dump_all(render(*EVERYTHING))
    files = {
        str(p.relative_to(chart)): base64.b64encode(p.read_bytes()).decode() for p in chart.rglob("*") if p.is_file()
    }
    packed = base64.b64encode(gzip.compress(json.dumps([files, manifest]).encode()))
    assert len(base64.b64encode(packed)) < 512 * 1024


def test_pods_meet_the_restricted_pod_security_standard(render: Render) -> None:
    specs = pod_specs(render(*EVERYTHING))
    assert len(specs) == 6
    for name, spec in specs.items():
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
        assert not spec.get("hostNetwork"), name


def test_every_object_carries_the_recommended_labels(render: Render) -> None:
    for document in render(*EVERYTHING):
        found = document["metadata"]["labels"]
        for label in (labels.NAME, labels.PART_OF, labels.VERSION_LABEL):
            assert found.get(label), (document["kind"], document["metadata"]["name"], label)


def test_operator_is_one_and_never_two(render: Render) -> None:
    deployment = named(render(), "Deployment", "disagg-operator")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert named(render("operator.replicas=0"), "Deployment", "disagg-operator")["spec"]["replicas"] == 0


def test_the_lease_goes_with_the_release(render: Render) -> None:
    documents = render("fullnameOverride=other")
    assert named(documents, "Lease", labels.MANAGER)["metadata"]["namespace"] == "disagg-system"
    assert operator_config(documents).lease_namespace == "disagg-system"


def test_operator_ports_are_the_contract_s(render: Render) -> None:
    container = pod_specs(render())["Deployment/disagg-operator"]["containers"][0]
    found = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert found == {ports.HEALTH_NAME: ports.OPERATOR_HEALTH, ports.METRICS_NAME: ports.OPERATOR_METRICS}


def test_prometheus_scrapes_what_the_target_finder_writes(render: Render) -> None:
    documents = render("prometheus.scrapeIntervalSeconds=2")
    config = yaml.safe_load(named(documents, "ConfigMap", "disagg-prometheus")["data"]["prometheus.yml"])
    pods, operator = config["scrape_configs"]
    assert config["global"]["scrape_interval"] == config["global"]["scrape_timeout"] == "2s"
    prometheus, finder = pod_specs(documents)["Deployment/disagg-prometheus"]["containers"]
    assert finder["command"] == ["python", "-m", "disagg_operator.shell.targets"]
    settings = parse(TargetsConfig, finder["args"], {})
    assert pods["file_sd_configs"][0]["files"] == [settings.file]
    assert (settings.namespace, settings.interval_seconds) == ("", 2)
    mounts = [{m["name"]: m["mountPath"] for m in c["volumeMounts"]}["targets"] for c in (prometheus, finder)]
    assert mounts == [str(Path(settings.file).parent)] * 2
    assert granted(named(documents, "ClusterRole", "disagg-prometheus")) == {("", "pods", "list")}

    assert operator["honor_labels"] is True
    service = named(documents, "Service", "disagg-operator")
    (target,) = operator["static_configs"][0]["targets"]
    assert target == f"disagg-operator.disagg-system.svc:{service['spec']['ports'][0]['port']}"
    assert set(operator["static_configs"][0]["labels"]) == {metrics.SCRAPE_NAMESPACE, metrics.SCRAPE_ROLE}


def test_pod_monitors_give_the_same_labels(render: Render) -> None:
    pods, operator = [d for d in render("podMonitor.enabled=true") if d["kind"] == "PodMonitor"]
    for endpoint in pods["spec"]["podMetricsEndpoints"]:
        assert endpoint["port"] in (ports.HTTP_NAME, ports.METRICS_NAME)
        targets = {rule["targetLabel"] for rule in endpoint["relabelings"]}
        # The Prometheus operator sets namespace and pod itself.
        assert targets == {metrics.SCRAPE_DEPLOYMENT, metrics.SCRAPE_ROLE}
    assert operator["spec"]["podMetricsEndpoints"][0]["honorLabels"] is True


def test_the_operator_is_scraped_once(render: Render) -> None:
    def monitors(*values: str) -> list[tuple[str, str]]:
        found = [d for d in render(*values) if d["kind"].endswith("Monitor")]
        return [(d["kind"], d["metadata"]["name"]) for d in found]

    assert monitors() == []
    assert monitors("podMonitor.enabled=true", "serviceMonitor.enabled=true") == [
        ("PodMonitor", "disagg"),
        ("ServiceMonitor", "disagg-operator"),
    ]
    documents = render("serviceMonitor.enabled=true", "serviceMonitor.labels.release=stack")
    monitor = named(documents, "ServiceMonitor", "disagg-operator")
    service = named(documents, "Service", "disagg-operator")
    assert monitor["metadata"]["labels"]["release"] == "stack"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["honorLabels"] is True


def test_fake_gpus_are_given_and_taken_away(render: Render) -> None:
    documents = render("fakeGpus.enabled=true", "fakeGpus.gpusPerNode=4", "fakeGpus.nodeSelector=gpu in (a\\,b)")
    specs = pod_specs(documents)
    keeper = specs["Deployment/disagg-fake-gpus"]["containers"][0]
    assert keeper["command"] == ["disagg", "fake-gpus"]
    config = parse(FakeGpusConfig, keeper["args"], {})
    assert (config.gpus_per_node, config.nodes_per_domain, config.remove) == (4, 1, False)
    assert config.node_selector == "gpu in (a,b)"
    job = named(documents, "Job", "disagg-fake-gpus-remove")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
    removal = parse(FakeGpusConfig, specs["Job/disagg-fake-gpus-remove"]["containers"][0]["args"], {})
    assert (removal.remove, removal.stop) == (True, "disagg-system/disagg-fake-gpus")
    assert not [d for d in render() if "fake" in d["metadata"]["name"]]


def test_grafana_has_its_data_source_and_dashboards(render: Render, chart: Path) -> None:
    documents = render("monitoring.enabled=true", "dashboards.enabled=false")
    source = yaml.safe_load(named(documents, "ConfigMap", "disagg-grafana")["data"]["datasources.yaml"])
    assert source["datasources"][0]["url"] == operator_config(documents).prometheus_url
    dashboards = named(documents, "ConfigMap", "disagg-dashboards")
    assert "grafana_dashboard" not in dashboards["metadata"]["labels"]
    overview = json.loads(dashboards["data"]["disagg-overview.json"])
    assert overview == json.loads((chart / "dashboards" / "overview.json").read_text())


def test_dashboards_are_found_by_a_sidecar(render: Render) -> None:
    dashboards = named(render(), "ConfigMap", "disagg-dashboards")
    assert dashboards["metadata"]["labels"]["grafana_dashboard"] == "1"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), ["kubectl apply", "kubectl get dd --watch", "port-forward", "--set monitoring.enabled=true", "9090:9090"]),
        (("monitoring.enabled=true",), ["http://127.0.0.1:3000/d/disagg-overview", "service/disagg-grafana 3000:3000"]),
        (("fakeGpus.enabled=true",), ["kubectl get nodes --label-columns nvidia.com/gpu.clique"]),
        (("prometheus.enabled=false",), ["NOTE: neither prometheus.enabled nor prometheus.url is set"]),
        (("networkPolicy.enabled=true", "prometheus.enabled=false"), ["name that namespace in"]),
        (NAMESPACED, ["serves this namespace only", "rbac.readNodes is false"]),
    ],
)
def test_notes_tell_the_next_command(
    chart: Path, kubeconfig: Path, values: tuple[str, ...], expected: list[str]
) -> None:
    # Without CRDs: they may be there already, and helm would ask whose they are even now.
    sets = [part for value in ("crds.install=false", *values) for part in ("--set", value)]
    out = Helm(kubeconfig, "disagg-notes")("install", "disagg", str(chart), "--dry-run=client", *sets)
    notes = out.split("NOTES:")[1]
    for text in (*expected, "disagg crds | kubectl apply --server-side -f -"):
        assert text in notes


def test_everything_on_is_accepted_and_restricted(render: Render, namespace: Kube) -> None:
    """Server-side dry run in a namespace that warns of pods below the restricted standard."""
    namespace("label", "namespace", namespace.namespace, "pod-security.kubernetes.io/warn=restricted")
    documents = render(
        *EVERYTHING, "podMonitor.enabled=false", "serviceMonitor.enabled=false", namespace=namespace.namespace
    )
    text = yaml.safe_dump_all(documents)
    answer = namespace("apply", "--dry-run=server", "-f", "-", stdin=text, check=False)
    lines = answer.splitlines()
    assert len([line for line in lines if line.endswith("(server dry run)")]) == len(documents), answer
    assert "would violate PodSecurity" not in answer
