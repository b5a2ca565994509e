"""Which precision a config.json says its checkpoint is stored in."""

from derived.cost.spec.fields import ConfigError, Fields

NAMES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "half": "fp16"}


def precisions(f: Fields) -> tuple[str, str, int | None]:
    """The precision of what is not quantised, the format of the matrices, and the format's group size if given.

    torch_dtype (or dtype), bf16 where it is absent; quantization_config's method where there is one.
    """
    said = f.given("torch_dtype", "dtype")
    if said is not None and said not in NAMES:
        raise ConfigError(f"torch_dtype is {said!r}: known here: {', '.join(NAMES)}")
    dtype = NAMES.get(said, "bf16")
    scheme = f.raw.get("quantization_config")
    if scheme is None:
        return dtype, dtype, None
    if not isinstance(scheme, dict):
        raise ConfigError(f"quantization_config is {str(scheme)[:60]!r}: it must be an object with a quant_method")
    inner = Fields(scheme, "quantization_config")
    method = inner.word("quant_method", "")
    if method == "mxfp4":
        return dtype, "mxfp4", None
    if method in ("fp8", "fbgemm_fp8"):
        return dtype, "fp8_block" if scheme.get("weight_block_size") else "fp8", None
    if method in ("gptq", "awq") and inner.size("bits", default=4) == 4:
        group = scheme.get("group_size")
        return dtype, "int4", inner.size("group_size") if isinstance(group, int) and group > 0 else None
    f.notes.append(
        f"quantization_config names {method or 'no method'}, which is not derived here: weights counted as {dtype}; "
        "say --weights-dtype to count them otherwise"
    )
    return dtype, dtype, None
