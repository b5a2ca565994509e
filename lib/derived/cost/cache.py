"""The arithmetic of an order in letters: the same lines for numbers, for LaTeX and for a slider in the page.

They take ints, floats, arrays and sympy symbols; ⌊a / b⌋ is written a // b, which all of these understand. The exact
bytes of a real model, layer by layer, are in `derived.cost.memory`; placements in `derived.cost.placement`.
"""


def token_cache_bytes(*, L, h_kv, d_k, b):
    """Cache bytes of one token: keys and values of every layer, 2 L h_kv d_k b.

    Source: chapter 13.
    """
    return 2 * L * h_kv * d_k * b


def conversation_cache_bytes(n, *, L, h_kv, d_k, b):
    """Cache bytes of a conversation of n tokens: n · 2 L h_kv d_k b.

    Source: chapter 13.
    """
    return n * token_cache_bytes(L=L, h_kv=h_kv, d_k=d_k, b=b)


def window_cache_bytes(n, w, *, L, h_kv, d_k, b):
    """Cache bytes of a conversation of n tokens whose every layer keeps the last w: min(n, w) · 2 L h_kv d_k b.

    Source: chapter 13.
    """
    from derived.cost._checks import least

    return conversation_cache_bytes(least(n, w), L=L, h_kv=h_kv, d_k=d_k, b=b)


def latent_cache_bytes(n, *, L, d_latent, d_rope, b):
    """Cache bytes under multi-head latent attention: n · L (d_latent + d_rope) b, once for keys and values.

    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1; chapter 13.
    """
    return n * L * (d_latent + d_rope) * b


def conversations_held(usable, weights, cache, ranks=1):
    """Conversations that one replica holds when everything is cut evenly: ⌊(ranks · usable − weights) / cache⌋.

    usable: bytes of one card after the share; weights and cache of the whole model. Below zero: not even the weights
    fit. A pipeline's stages are not cut evenly: `stage_conversations`.

    Source: chapter 13.
    """
    return (ranks * usable - weights) // cache


def stage_conversations(usable, layers, layer_weights, end_weights, layer_cache):
    """Conversations that one pipeline stage holds: ⌊(usable − layers · layer weights − end weights) / layers · cache⌋.

    end_weights: embedding on the first stage, head on the last, nothing between.

    Source: chapter 13.
    """
    return (usable - layers * layer_weights - end_weights) // (layers * layer_cache)


def replicas_needed(conversations, held):
    """Equal replicas for so many conversations: ⌈conversations / held⌉.

    Source: chapter 13.
    """
    return -(-conversations // held)


def bound_cards(weights, conversations, cache, memory):
    """The bound: ⌈(weights + conversations · cache) / memory⌉ cards, below every placement.

    Source: chapter 13.
    """
    return -(-(weights + conversations * cache) // memory)
