"""Names and sizes against the catalogue."""

from collections.abc import Callable

from disagg_crds import DisaggDeployment, Reason
from disagg_engine.catalogue import default
from disagg_operator.core.fit import check_fit

Make = Callable[..., DisaggDeployment]


def test_a_model_that_fits(make_deployment: Make) -> None:
    assert check_fit(make_deployment().spec, default()).reason is Reason.FITS


def test_a_model_that_does_not_fit_says_what_would(make_deployment: Make) -> None:
    fit = check_fit(make_deployment(model="opt-66b").spec, default())
    assert fit.reason is Reason.INSUFFICIENT_GPU_MEMORY
    assert "spec.prefill" in fit.message
    assert "2 GPUs would do" in fit.message
    parallel = {"gpu": {"type": "a100-80gb"}, "parallelism": {"tensor": 2}, "replicas": 1}
    assert check_fit(make_deployment(model="opt-66b", prefill=parallel, decode=parallel).spec, default()).fits


def test_unknown_names_list_the_known_ones(make_deployment: Make) -> None:
    model = check_fit(make_deployment(model="opt-13").spec, default())
    assert model.reason is Reason.UNKNOWN_MODEL
    assert "opt-13b" in model.message
    gpu = check_fit(make_deployment(prefill={"replicas": 1, "gpu": {"type": "b17"}}).spec, default())
    assert gpu.reason is Reason.UNKNOWN_GPU
    assert "spec.prefill.gpu.type" in gpu.message
    assert "a100-80gb" in gpu.message
    link = check_fit(make_deployment(link={"type": "string"}).spec, default())
    assert link.reason is Reason.UNKNOWN_LINK
    assert "spec.link.type" in link.message
    assert "nvlink" in link.message
