"""What `disagg up` refuses before it starts anything."""

from pathlib import Path

import pytest

from disagg_cli.main import main

DEPLOYMENT = """\
apiVersion: disagg.dev/v1alpha1
kind: DisaggDeployment
metadata: {name: x}
spec:
  model: MODEL
  slo: {ttftSeconds: 1, tpotSeconds: 1}
  worker: {replicas: 1, gpu: {type: a100-80gb}}
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (DEPLOYMENT.replace("MODEL", "opt-66b"), "spec.worker: OPT-66B needs 132.0 GB"),
        (DEPLOYMENT.replace("MODEL", "opt-14b"), "spec.model: unknown model 'opt-14b'; known are: deepseek-v3"),
        (DEPLOYMENT.replace("ttftSeconds: 1", "ttftSeconds: -1"), "spec.slo.ttftSeconds: got -1; must be above 0"),
        (DEPLOYMENT.replace("worker:", "wroker:"), "spec.wroker: unknown field; did you mean worker?"),
        (DEPLOYMENT + "---\n" + DEPLOYMENT, "holds 2 deployments"),
        ("kind: Pod\n", "expected 'disagg.dev/v1alpha1', 'DisaggDeployment'"),
        ("", "no document found"),
        ("a: [", "trace.yaml"),
    ],
)
def test_a_file_that_makes_no_deployment(
    text: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.yaml"
    path.write_text(text)
    assert main(["up", str(path)]) == 2
    err = capsys.readouterr().err
    assert problem in err
    assert str(path) in err
    assert all(line.startswith("disagg up: ") for line in err.splitlines())


def test_a_missing_file_and_a_wrong_port(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", str(tmp_path / "none.yaml")]) == 2
    assert capsys.readouterr().err == f"disagg up: {tmp_path}/none.yaml: no such file or directory\n"
    assert main(["up", "x.yaml", "--port", "70000"]) == 2
    assert "'70000' is no port (0 to 65535)" in capsys.readouterr().err
