"""The quantisation format of a checkpoint's linear layers, read from its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from workers.engine.errors import CheckpointInvalid


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationSpec:
    """The format in which a quantised checkpoint stores its linear layers."""

    method: Literal["awq", "gptq"]
    bits: int
    group: int | None
    """Inputs that share a scale; None: all inputs."""
    zero_points_minus_one: bool = False
    """Whether zero points are stored less one, as in GPTQ's first format."""


def quantization_spec(config: Mapping[str, Any]) -> QuantizationSpec | None:
    """Return the format that `quantization_config` describes, or None without one.

    Raises:
        CheckpointInvalid: the engine cannot read the format; the message names the key.
    """
    values = config.get("quantization_config")
    if values is None:
        return None
    if not isinstance(values, Mapping):
        raise CheckpointInvalid("config.json: quantization_config must be an object")
    method, bits, group = (values.get(name) for name in ("quant_method", "bits", "group_size"))
    if method not in ("awq", "gptq"):
        raise _refusal("quant_method", method, "awq, gptq")
    if not isinstance(group, int) or isinstance(group, bool) or (group < 1 and group != -1):
        raise _refusal("group_size", group, "a positive number, or -1")
    read = _awq if method == "awq" else _gptq
    return read(values, bits, None if group == -1 else group)


def _awq(values: Mapping[str, Any], bits: Any, group: int | None) -> QuantizationSpec:
    if bits != 4:
        raise _refusal("bits of AWQ", bits, "4")
    if str(values.get("version", "gemm")).lower() != "gemm":
        raise _refusal("version of AWQ", values["version"], "gemm")
    if not values.get("zero_point", True):
        raise _refusal("zero_point of AWQ", False, "true")
    return QuantizationSpec(method="awq", bits=4, group=group)


def _gptq(values: Mapping[str, Any], bits: Any, group: int | None) -> QuantizationSpec:
    if bits not in (4, 8):
        raise _refusal("bits of GPTQ", bits, "4, 8")
    form = values.get("checkpoint_format") or "gptq"
    if form not in ("gptq", "gptq_v2") or values.get("is_marlin_format"):
        raise _refusal("checkpoint_format of GPTQ", form, "gptq, gptq_v2")
    if values.get("dynamic"):
        raise _refusal("dynamic of GPTQ", "(rules for single layers)", "none")
    if str(values.get("pack_dtype") or "int32") != "int32":
        raise _refusal("pack_dtype of GPTQ", values["pack_dtype"], "int32")
    return QuantizationSpec(method="gptq", bits=bits, group=group, zero_points_minus_one=form == "gptq")


def _refusal(name: str, value: object, known: str) -> CheckpointInvalid:
    return CheckpointInvalid(f"config.json: quantization_config: {name} {value!r} is not supported ({known})")
