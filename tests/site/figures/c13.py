"""Chapter 13: the cards of an order, by the search over every placement."""

from derived.cost.memory import GIB
from derived.cost.placement import size
from derived.cost.spec import outline
from tests.site.figures.row import Figure

STORY = outline(7 * 10**9, L=32, d_model=4096, h=32, n_vocab=32_000)
SOLD, BINARY = 80 * 10**9, 80 * 2**30
FAMILIES = {
    "single": {"tensor_parallel": 1, "pipeline_parallel": 1},
    "tensor": {"pipeline_parallel": 1},
    "pipeline": {"replicas": 1, "tensor_parallel": 1},
}


def numbers(n, asked, share, visible):
    """The order with every placement allowed, and with one family alone."""
    wanted = {"context": n, "conversations": asked, "share": share, "flips": False}
    order = size(STORY, visible, **wanted)
    alone = {name: size(STORY, visible, **wanted, **fixed).gpus for name, fixed in FAMILIES.items()}
    return {
        "total": (order.weight_bytes + asked * order.cache_bytes_per_conversation) / GIB,
        "bound": order.lower_bound_gpus,
        "gpus": order.gpus,
        "held": order.chosen.conversations,
        **alone,
    }


FIGURES = [
    Figure(
        page="book/13-kv-cache-and-gpu-order",
        name="gpu-order",
        settings=(
            {"n": 2048, "asked": 200, "share": 0.9, "visible": SOLD},
            {"n": 2048, "asked": 181, "share": 0.9, "visible": SOLD},
            {"n": 2048, "asked": 182, "share": 0.9, "visible": SOLD},
            {"n": 2048, "asked": 200, "share": 1, "visible": SOLD},
            {"n": 2048, "asked": 196, "share": 0.9, "visible": BINARY},
            {"n": 2048, "asked": 197, "share": 0.9, "visible": BINARY},
            {"n": 256, "asked": 8, "share": 0.97, "visible": BINARY},
            {"n": 4096, "asked": 240, "share": 0.7, "visible": SOLD},
            {"n": 3712, "asked": 137, "share": 0.83, "visible": BINARY},
        ),
        numbers=numbers,
    ),
]
