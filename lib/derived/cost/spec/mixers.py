"""The feed-forward half of a decoder layer, by model type: dense, or experts with a router."""

from derived.cost.spec import parts
from derived.cost.spec.fields import ConfigError, Fields


def dense(f: Fields, i: int, bias: bool) -> tuple:
    """Gate, up and down in every layer."""
    return parts.feed_forward(f.width, f.size("intermediate_size"), gated=True, bias=bias)


def counts(f: Fields, *names: str, used: str = "num_experts_per_tok") -> tuple[int, int]:
    """How many experts there are and how many a token uses."""
    count, active = f.size(*names), f.size(used)
    if active > count:
        raise ConfigError(f"{used} is {active}, but {names[0]} is {count}: a token cannot use more than there are")
    return count, active


def every_layer_routed(f: Fields, i: int, bias: bool) -> tuple:
    """Experts of intermediate_size in every layer."""
    return parts.experts(f.width, f.size("intermediate_size"), *counts(f, "num_local_experts", "num_experts"))


def biased_experts(f: Fields, i: int, bias: bool) -> tuple:
    """Experts with biases, and a router with one."""
    count = counts(f, "num_local_experts", "num_experts")
    return parts.experts(f.width, f.size("intermediate_size"), *count, bias=True, router_bias=True)


def is_sparse(f: Fields, i: int) -> bool:
    """Whether layer i routes: every decoder_sparse_step-th, but those in mlp_only_layers."""
    step = f.size("decoder_sparse_step", default=1)
    return (i + 1) % step == 0 and i not in (f.listed("mlp_only_layers", int) or [])


def sparse_steps(f: Fields, i: int, bias: bool) -> tuple:
    """Experts of moe_intermediate_size where the layer routes, a dense network elsewhere."""
    if not is_sparse(f, i):
        return dense(f, i, bias)
    return parts.experts(f.width, f.size("moe_intermediate_size"), *counts(f, "num_experts", "num_local_experts"))


def sparse_steps_shared(f: Fields, i: int, bias: bool) -> tuple:
    """As sparse_steps, with a gated shared expert."""
    if not is_sparse(f, i):
        return dense(f, i, bias)
    shared = parts.shared_expert(f.width, f.size("shared_expert_intermediate_size"), gate=True)
    return (*sparse_steps(f, i, bias), *shared)


def interleaved_experts(f: Fields, i: int, bias: bool) -> tuple:
    """Experts with one shared expert in every interleave_moe_layer_step-th layer, a wider dense network elsewhere."""
    step = f.size("interleave_moe_layer_step", default=1)
    routed = f.listed("moe_layers", int)
    if i in (range(step - 1, f.layers, step) if routed is None else routed):
        d_ff = f.size("intermediate_size")
        experts = parts.experts(f.width, d_ff, *counts(f, "num_local_experts", "num_experts"))
        return (*experts, *parts.shared_expert(f.width, d_ff))
    return parts.feed_forward(f.width, f.size("intermediate_size_mlp"), gated=True)


def routed_after_first(f: Fields, i: int, router_bias: bool) -> tuple:
    """first_k_dense_replace dense layers, then experts with shared ones: DeepSeek's."""
    frequency = f.size("moe_layer_freq", default=1)
    first = f.size("first_k_dense_replace", default=3 if router_bias else 0, least=0)
    if f.given("n_routed_experts", "num_local_experts", "num_experts") is None:
        raise ConfigError(f"n_routed_experts is missing: a {f.model_type} config gives it as a positive integer")
    if i < first or i % frequency:
        return dense(f, i, False)
    d_ff = f.size("moe_intermediate_size")
    count = counts(f, "n_routed_experts", "num_local_experts", "num_experts")
    shared = f.size("n_shared_experts", default=0, least=0)
    routed = parts.experts(f.width, d_ff, *count, router_bias=router_bias)
    return (*routed, *parts.shared_expert(f.width, d_ff * shared)) if shared else routed
