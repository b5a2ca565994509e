"""ONNX's Attention in terms of `derived.ops.attention`: what its attributes say in this package's words.

Where ONNX places a query: i of n stands at position i + offset, where offset counts the keys before the
block: nonpad_kv_seqlen − n with a padded cache, else the length of the past, else 0. This package places it
at i + m − n. The two agree for a padded cache, sample by sample, once its padding is cut off; they agree for
a past when as many keys are new as there are queries; elsewhere the adapter writes ONNX's rule as a mask.
"""

from array_api_compat import array_namespace

from derived.ops.attention import attention, attention_trace
from derived.ops.heads import merge_heads, split_heads

DOUBLE = 11
"""ONNX's number for float64; of the softmax precisions the only one that exceeds what ops compute in anyway."""


def attend(case, array, attention=attention):
    """Outputs of the case by position: Y, present key, present value, query–key product at the stage asked for."""
    get = case.attributes.get
    q, k, v, mask, past_k, past_v, lengths = (array(case.input(i)) for i in range(7))
    xp = array_namespace(q)
    flat = q.ndim == 3
    if flat:
        q, k, v = split_heads(q, get("q_num_heads")), *(split_heads(x, get("kv_num_heads")) for x in (k, v))
    if past_k is not None:
        k, v = xp.concat([past_k, k], axis=-2), xp.concat([past_v, v], axis=-2)
    mask = None if mask is None else _padded(mask, k.shape[-2])
    qkv = [xp.astype(x, xp.float64) if get("softmax_precision") == DOUBLE else x for x in (q, k, v)]

    options = _options(case, q, k.shape[-2])
    y = (
        attention(*qkv, **_arguments(options, mask))
        if lengths is None
        else _by_sample(qkv, mask, lengths, options, attention)
    )
    y = xp.astype(y, q.dtype)
    outputs = {0: merge_heads(y) if flat else y, 1: k, 2: v}
    if 3 in case.outputs:
        outputs[3] = xp.astype(_stage(get("qk_matmul_output_mode", 0), qkv, mask, options), q.dtype)
    return {i: outputs[i] for i in case.outputs}


def speaks_of_positions(case) -> bool:
    """Tell whether the case says by position who may read whom: causal, or a window."""
    sizes = [case.attributes.get(f"{side}_window_size", -1) for side in ("left", "right")]
    return bool(case.attributes.get("is_causal", 0)) or max(sizes) >= 0


def aligned_to_last_key(case) -> bool:
    """Tell whether this package's own `causal` and `window` say the same as the case."""
    if not case.attributes.get("is_causal", 0) or case.attributes.get("right_window_size", -1) >= 0:
        return False
    queries, new_keys = (x.shape[-2] for x in case.inputs[:2])
    return case.input(6) is not None or queries == new_keys


def _options(case, q, m):
    """Arguments of `attention` but the case's own mask; positions as a mask where ONNX counts them differently."""
    get = case.attributes.get
    options = {"scale": get("scale"), "softcap": get("softcap", 0.0) or None}
    if not speaks_of_positions(case):
        return options
    if aligned_to_last_key(case):
        left = get("left_window_size", -1)
        return options | {"causal": True, "window": left + 1 if left >= 0 else None}
    past = 0 if case.input(4) is None else case.input(4).shape[-2]
    return options | {"mask": _by_position(q, m, past, case.attributes)}


def _by_position(q, m, offset, attributes):
    """ONNX's rule as a mask: the distance of key j from a query's position lies within causal and window."""
    xp, n = array_namespace(q), q.shape[-2]
    ahead = xp.arange(m)[None, :] - (xp.arange(n)[:, None] + offset)
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    reads = xp.ones_like(ahead, dtype=xp.bool)
    reads = reads & (ahead <= 0) if attributes.get("is_causal", 0) else reads
    reads = reads & (ahead >= -left) if left >= 0 else reads
    return reads & (ahead <= right) if right >= 0 else reads


def _arguments(options, mask):
    """The options joined with the case's own mask: `mask` if it is boolean, `bias` if it is added to the scores."""
    if mask is None:
        return options
    if mask.dtype != array_namespace(mask).bool:
        return options | {"bias": mask}
    return options | {"mask": mask & options["mask"] if "mask" in options else mask}


def _by_sample(qkv, mask, lengths, options, attention):
    """Each sample on the keys that are valid in it; the rest of a padded cache is cut off."""
    xp = array_namespace(*qkv)
    samples = []
    for i, length in enumerate(int(x) for x in lengths):
        q, k, v = (x[i : i + 1, ...] for x in qkv)
        own = mask if mask is None or mask.ndim < 4 or mask.shape[0] == 1 else mask[i : i + 1, ...]
        own = own if own is None else own[..., :length]
        samples.append(attention(q, k[..., :length, :], v[..., :length, :], **_arguments(options, own)))
    return xp.concat(samples, axis=0)


def _stage(mode, qkv, mask, options):
    """The query–key product as ONNX's mode has it: 0 scaled, 1 soft-capped, 2 with the mask added, 3 after softmax."""
    plain = {key: options[key] for key in ("scale", "softcap")}
    if mode == 0:
        return attention_trace(*qkv, **plain).S_scaled
    if mode == 1:
        return attention_trace(*qkv, **plain).S_masked  # nothing is masked here: the soft-capped scores
    trace = attention_trace(*qkv, **_arguments(options, mask))
    return trace.S_masked if mode == 2 else trace.A


def _padded(mask, m):
    """A mask shorter than the keys, continued by what may not be read."""
    xp, missing = array_namespace(mask), m - mask.shape[-1]
    if not missing:
        return mask
    filler = False if mask.dtype == xp.bool else -float("inf")
    return xp.concat([mask, xp.full((*mask.shape[:-1], missing), filler, dtype=mask.dtype)], axis=-1)
