"""Instances and time models from command-line options."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from disagg_contract.errors import DocumentError
from disagg_contract.profile import Profile
from disagg_engine.catalogue import Catalogue, Precision
from disagg_engine.errors import EngineError
from disagg_engine.instance import Instance
from disagg_engine.timemodel import TimeModel, TimeModelKind, time_model

from .calibrations import load_calibration
from .errors import UsageError
from .parsing import Parser, choice, count

KERNELS = "kernels"
"""The time model made of kernel measurements: its tables come from an installed package, so it is built here."""

TIME_MODELS = (*(kind.value for kind in TimeModelKind if kind is not TimeModelKind.ANALYTIC), KERNELS)

_SPREAD = {
    "tensor": "GPUs that share each layer",
    "pipeline": "pipeline stages",
    "data-parallel": "ranks with an attention of their own (mixtures of experts)",
    "expert-parallel": "GPUs over which whole experts are spread",
}


def add_instance_options(parser: Parser, *, required: bool = True) -> None:
    """`--model`, `--gpu`, how the instance is spread, and its precisions."""
    parser.add_argument("--model", required=required, metavar="M", help="a name from disagg models")
    parser.add_argument("--gpu", required=required, metavar="G", help="a name from disagg gpus")
    for name, what in _SPREAD.items():
        parser.add_argument(f"--{name}", type=count, default=1, metavar="N", help=f"{what} (1)")
    parser.add_argument(
        "--weights",
        type=partial(choice, "precision", [precision.value for precision in Precision]),
        default="fp16",
        metavar="P",
        help="precision of the weights: fp16 (default), fp8 or fp4",
    )
    parser.add_argument(
        "--kv",
        type=partial(choice, "precision", ["fp16", "fp8"]),
        default="fp16",
        metavar="P",
        help="precision of the KV: fp16 (default) or fp8",
    )
    parser.add_argument("--catalogue", metavar="FILE", help="YAML file with further GPUs and models")


def add_time_model_options(parser: Parser) -> None:
    """`--time-model` and what some of the models need."""
    parser.add_argument(
        "--time-model",
        type=partial(choice, "time model", TIME_MODELS),
        default=TimeModelKind.ROOFLINE.value,
        metavar="KIND",
        help="roofline (default), fitted (DistServe's published coefficients), profile (measured tables), calibrated "
        "(constants that disagg calibrate has fitted), or kernels (the kernel measurements of aiconfigurator-core; "
        "needs the extra disagg[kernels])",
    )
    parser.add_argument("--profile", metavar="FILE", help="file for --time-model profile or calibrated")
    parser.add_argument(
        "--backend",
        metavar="ENGINE",
        help="engine that was measured: distserve or vllm (fitted), vllm, trtllm or sglang (kernels, calibrated)",
    )


def build_instance(arguments: argparse.Namespace, catalogue: Catalogue) -> Instance:
    """The instance that the options describe. Raises `UsageError`."""
    try:
        return Instance(
            model=catalogue.model(arguments.model),
            gpu=catalogue.gpu(arguments.gpu),
            tensor=arguments.tensor,
            pipeline=arguments.pipeline,
            data_parallel=arguments.data_parallel,
            expert_parallel=arguments.expert_parallel,
            weight_precision=Precision(arguments.weights),
            kv_precision=Precision(arguments.kv),
        )
    except EngineError as error:
        raise UsageError(str(error)) from None


def build_time_model(arguments: argparse.Namespace, instance: Instance) -> TimeModel:
    """The time model that the options name, for `instance`. Raises `UsageError`."""
    kind, backend = arguments.time_model, arguments.backend
    for option, kinds in _TAKEN_BY.items():
        if getattr(arguments, option) is not None and kind not in kinds:
            raise UsageError(f"--{option} is for --time-model {' or '.join(kinds)}; the time model is {kind}")
    path = arguments.profile
    if path is None and kind in _TAKEN_BY["profile"]:
        raise UsageError(f"--time-model {kind} needs --profile")
    try:
        if kind == KERNELS:
            from .kernels import kernel_time_model

            return kernel_time_model(instance, backend=backend or "vllm")
        return time_model(
            kind,
            instance,
            profile=read_profile(path) if kind == TimeModelKind.PROFILE else None,
            calibration=load_calibration(path) if kind == TimeModelKind.CALIBRATED else None,
            backend=backend,
        )
    except EngineError as error:
        raise UsageError(str(error)) from None


_TAKEN_BY = {
    "profile": (TimeModelKind.PROFILE.value, TimeModelKind.CALIBRATED.value),
    "backend": (TimeModelKind.FITTED.value, TimeModelKind.CALIBRATED.value, KERNELS),
}
"""Options that only some time models take."""


def read_profile(path: str) -> Profile:
    """The profile in a file. Raises `UsageError`."""
    try:
        return Profile.from_json(Path(path).read_bytes(), what=path)
    except OSError as error:
        raise UsageError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except DocumentError as error:
        raise UsageError(str(error)) from None
