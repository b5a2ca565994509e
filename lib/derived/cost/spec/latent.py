"""DeepSeek and Kimi: latent attention, experts after the first layers, perhaps an extra prediction layer."""

from derived.cost.spec import mixers, parts
from derived.cost.spec.decoder import ends, model_of
from derived.cost.spec.fields import Fields
from derived.cost.spec.model import NORM, Cache, Layer, Model, Scores, Tensor


def latent_decoder(router_bias: bool):
    """The reader of one generation: from V3 on, the router has a correction bias."""

    def read(f: Fields) -> Model:
        d, h = f.width, f.heads
        rank, d_rope, d_nope = f.size("kv_lora_rank"), f.size("qk_rope_head_dim"), f.size("qk_nope_head_dim")
        d_v, d_k = f.size("v_head_dim"), d_nope + d_rope
        q_rank = f.size_or_none("q_lora_rank")
        if "q_lora_rank" not in f.raw:
            f.size("q_lora_rank")  # null says "not factored"; absent says nothing
        attention = parts.latent_attention(d, h, q_rank, rank, d_nope, d_rope, d_v, f.flag("attention_bias", False))
        norms = parts.norm(d, 2)
        caches, scores = (
            (Cache("latent", 1, rank, d_rope, name="latent rows"),),
            (Scores(h, d_k, d_v, cached=2 * rank + d_rope),),
        )

        def layer(i: int) -> Layer:
            ffn = mixers.routed_after_first(f, i, router_bias)
            return Layer("latent attention", (*attention, *ffn, *norms), caches, scores)

        tied = f.flag("tie_word_embeddings", False)
        first, last = ends(f, tied)
        rows = f.size_or_none("max_position_embeddings")
        extra = f.size("num_nextn_predict_layers", "num_mtp_layers", default=0, least=0, most=64)
        return model_of(
            f, first=first, layers=tuple(layer(i) for i in range(f.layers)), last=last, tied=tied, h=h,
            rope=((rows, d_rope),) if rows else (),
            prediction=prediction(f, layer(f.layers).tensors, extra) if extra else (),
        )  # fmt: skip

    return read


def prediction(f: Fields, layer: tuple, count: int) -> tuple[Tensor, ...]:
    """The extra prediction layers as the checkpoint stores them.

    Each is a layer, a projection of two rows onto one, three norms, and its own copies of embedding and head.
    """
    d, n_vocab = f.width, f.size("vocab_size")
    joined = Tensor("prediction projection", "feed-forward", (d, 2 * d))
    norms = Tensor("prediction norms", NORM, (d,), copies=3)
    return (*layer, joined, norms, parts.embedding(n_vocab, d), parts.head(n_vocab, d)) * count


deepseek_v2 = latent_decoder(router_bias=False)
deepseek_v3 = latent_decoder(router_bias=True)
