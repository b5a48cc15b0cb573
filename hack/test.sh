#!/usr/bin/env bash
# Run the tests. Usage: test.sh [PYTEST-ARGUMENT...]
#
#   DISAGG_TESTS=unit   unit and contract tests only: no cluster, no root
#   KUBECONFIG=FILE     integration and e2e tests on that cluster; its nodes must hold $DISAGG_IMAGE (disagg:dev) and
#                       $DISAGG_PROMETHEUS_IMAGE (disagg-prometheus:dev), see hack/README.md for kind and minikube
#   neither             a cluster is built and started here, and removed afterwards; needs root, Go and Debian packages
#                       (DISAGG_KEEP_CLUSTER=1 leaves it up, DISAGG_TEST_STATE names its folder)
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
cluster=(python3 hack/cluster/cluster.py)
state=${DISAGG_TEST_STATE:-/var/tmp/disagg-test}

case ${DISAGG_TESTS:-all} in
  unit)
    echo "DISAGG_TESTS=unit: integration and e2e tests are left out."
    [ $# -gt 0 ] || set -- tests/unit tests/contract
    exec "$python" -m pytest "$@"
    ;;
  all) ;;
  *) echo "DISAGG_TESTS=$DISAGG_TESTS: use unit, or leave it unset for all tests." >&2; exit 2 ;;
esac

if [ -n "${KUBECONFIG:-}" ]; then
  echo "Testing on the cluster of KUBECONFIG=$KUBECONFIG"
  for program in kubectl helm; do
    command -v "$program" >/dev/null || { echo "$program not found: the tests talk to the cluster with it." >&2; exit 2; }
  done
  if ! told=$(kubectl --request-timeout=10s get --raw /readyz 2>&1); then
    echo "The cluster of KUBECONFIG=$KUBECONFIG does not answer: ${told##*$'\n'}" >&2
    exit 2
  fi
else
  leave() {
    code=$?
    # Quiet, so that pytest's summary stays the last line.
    if [ -z "${DISAGG_KEEP_CLUSTER:-}" ] && ! told=$("${cluster[@]}" down --state "$state" 2>&1); then
      echo "$told" >&2
      code=1
    fi
    exit "$code"
  }
  trap leave EXIT
  trap 'exit 130' INT TERM
  if ! "${cluster[@]}" up --state "$state" --nodes 2 --gpus 8; then
    echo "No cluster could be started here. Name one with KUBECONFIG, or ask for less: DISAGG_TESTS=unit make test" >&2
    exit 2
  fi
  "${cluster[@]}" images --state "$state"
  export DISAGG_EMBEDDED=1
  eval "$("${cluster[@]}" kubeconfig --state "$state" --export)"
fi
"$python" -m pytest "$@"
