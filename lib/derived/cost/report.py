"""An order as the command line shows it: a table for people, a dictionary for programs."""

from derived.cost import memory
from derived.cost.placement import Order, Placed
from derived.cost.stages import Ranks

SHOWN = 6
"""Rejected placements and runners-up that the table lists; --json lists all."""


def gib(count: int) -> str:
    """Bytes in both units."""
    return f"{count / memory.GIB:,.2f} GiB ({count / memory.GB:,.2f} GB)"


def cache_tokens(order: Order) -> int:
    """Tokens of cache that the placement holds.

    Where every layer keeps every token: each rank's pool floored to blocks, the least over the stages, summed over
    replicas. Where layers differ: conversations × context.
    """
    if order.chosen is None:
        return 0
    ranks = Ranks(order.model, order.weights_dtype, order.cache_dtype, order.calibration)
    if any(kind.kind == "state" or kind.window for kind in ranks.kinds):
        return order.chosen.conversations * order.context
    tokens = 0
    for t, p in order.chosen.replicas:
        tokens += min(
            memory.tokens_in_pool(order.usable_bytes - stage.fixed, ranks.stage_conversation(stage, t, 16) // 16)
            for stage in ranks.stages(t, p)
            if any(stage.caches)
        )
    return tokens


def mean_token_bytes(order: Order) -> int | float:
    """Cache bytes a token, the mean over the context: whole where every layer keeps every token."""
    whole, rest = divmod(order.cache_bytes_per_conversation, order.context)
    return whole if not rest else round(order.cache_bytes_per_conversation / order.context, 3)


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def share_bound(order: Order) -> int:
    """The bound where only the share of each card is used: ⌈all bytes / usable⌉."""
    total = order.weight_bytes + order.conversations * order.cache_bytes_per_conversation
    return -(-total // order.usable_bytes)


def notes(order: Order) -> list[str]:
    """What the reader of the answer should know about the config, and about this context."""
    allowed = order.model.max_context
    if allowed is None or order.context <= allowed:
        return list(order.model.notes)
    return [*order.model.notes, f"{order.context:,} tokens are more than the {allowed:,} positions of the config"]


def shapes(placed: Placed) -> list[dict]:
    """The replicas of a placement."""
    return [{"tensor_parallel": t, "pipeline_parallel": p} for t, p in placed.replicas]


def as_dict(order: Order, price: float | None = None) -> dict:
    """Everything about an order, exact numbers as integers."""
    from derived.cost.explain import explain  # the table does without

    model, chosen = order.model, order.chosen
    calibrated = order.calibration._asdict()
    found = {
        "model": model.name,
        "model_type": model.model_type,
        "parameters": model.parameters,
        "served_parameters": model.served_parameters,
        "active_parameters": model.active_parameters,
        "active_parameters_without_input_embedding": model.active_without_embedding,
        "parameters_by_class": model.by_class(),
        "weights_dtype": order.weights_dtype,
        "weight_bytes": order.weight_bytes,
        "rope_table_bytes": memory.rope_bytes(model),
        "cache_dtype": order.cache_dtype,
        "cache_bytes_per_token": mean_token_bytes(order),
        "cache_bytes_per_token_is": "the mean over the context",
        "cache_bytes_per_next_token": memory.new_token_bytes(model, order.cache_dtype),
        "cache_bytes_per_conversation": order.cache_bytes_per_conversation,
        "context": order.context,
        "conversations": order.conversations,
        "gpu": order.card.name,
        "gpu_visible_bytes": order.card.visible_bytes,
        "share": order.share,
        "share_is_of": "the card's total visible memory",
        "lower_bound_gpus": order.lower_bound_gpus,
        "lower_bound_is_of": "whole cards, all of their visible memory",
        "lower_bound_gpus_at_share": share_bound(order),
        "cards_worth_of_usable_memory": round(order.cards_worth, 4),
        "gpus": order.gpus,
        "gpus_at_ends_of_calibration_bands": list(order.gpus_in_band),
        "placement": shapes(chosen) if chosen else [],
        "placement_name": chosen.name if chosen else None,
        "conversations_that_fit": chosen.conversations if chosen else 0,
        "cache_tokens_that_fit": cache_tokens(order),
        "runners_up": [
            {"placement": shapes(p), "name": p.name, "conversations": p.conversations} for p in order.runners_up
        ],
        "rejected": [
            {"placement": shapes(p), "name": p.name, "gpus": p.gpus, "reason": p.reason} for p in order.rejected
        ],
        "flips": order.flips._asdict() if order.flips else None,
        "calibrated": {name: term._asdict() for name, term in calibrated.items()},
        "terms": [{"name": t.name, "bytes": t.bytes, "formula": t.formula} for t in explain(order).leaves()],
        "notes": notes(order),
    }
    return found | ({"price": prices(order, price)} if price is not None else {})


def prices(order: Order, price: float) -> dict:
    """Cost an hour of the order, of one card fewer and one more, with what they hold."""
    if order.gpus is None:
        return {"per_card_hour": price}
    fewer = order.flips.conversations_one_fewer if order.flips else None
    return {
        "per_card_hour": price,
        "per_hour": round(order.gpus * price, 4),
        "per_hour_one_fewer": round((order.gpus - 1) * price, 4),
        "conversations_one_fewer": fewer,
        "conversations_refused_one_fewer": None if fewer is None else order.conversations - fewer,
        "per_hour_one_more": round((order.gpus + 1) * price, 4),
        "conversations_one_more": order.flips.conversations_one_more if order.flips else None,
    }


def table(order: Order, price: float | None = None) -> str:
    """The order for people: exact numbers first, calibrated ones apart, then the argument."""
    return "\n".join([*derived_lines(order), "", *calibrated_lines(order), "", *answer_lines(order, price)])


def row(name: str, value: str) -> str:
    """A name and its value, aligned."""
    return f"  {name:<28}{value}"


def derived_lines(order: Order) -> list[str]:
    """What follows from the config alone."""
    model = order.model
    each = order.cache_bytes_per_conversation
    active = f", {model.active_parameters:,} active" if model.active_parameters != model.served_parameters else ""
    per_token = f"{mean_token_bytes(order):,} bytes a token"
    if any(kind.window or kind.kind == "state" for layer in model.layers for kind in layer.caches):
        per_token += f" (mean over {order.context:,}; layers differ)"
    lines = [
        f"{model.name} ({model.model_type}, {model.L} layers)",
        "",
        "Derived, exact",
        row("parameters", f"{model.parameters:,}{active}"),
        row(f"weights, {order.weights_dtype}", gib(order.weight_bytes)),
        row(f"cache, {order.cache_dtype}", per_token),
        row("cache of a conversation", f"{gib(each)} at {order.context:,} tokens"),
        row("cache of all", f"{gib(each * order.conversations)} for {order.conversations:,} conversations"),
    ]
    if model.prediction:
        unloaded = model.parameters - model.served_parameters
        lines.insert(4, row("of which not loaded", f"{unloaded:,} in extra prediction layers"))
    return lines + [row("note", note) for note in notes(order)]


def calibrated_lines(order: Order) -> list[str]:
    """What was measured somewhere, with its band and source."""
    on, terms = order.card, order.calibration
    sold = "" if on.sold_bytes == on.visible_bytes else f" of {on.sold_bytes / memory.GB:g} GB sold"
    lines = [
        "Calibrated, measured elsewhere",
        row(f"memory of one {on.name}", gib(on.visible_bytes) + " visible" + sold),
        row("", f"{on.visible_source}{'; seen: ' + on.visible_band if on.visible_band else ''}"),
        row("share used", f"{order.share:g} of it: {gib(order.usable_bytes)}, for all that an engine takes"),
    ]
    words = {
        "activation": "activation peak a rank", "alone": "non-torch memory, alone",
        "tensor": "non-torch, tensor parallel", "pipeline": "non-torch, pipeline",
    }  # fmt: skip
    for name, term in terms._asdict().items():
        band = f"{term.low / memory.GIB:.2f} to {term.high / memory.GIB:.2f}"
        lines += [row(words[name], f"{term.bytes / memory.GIB:.2f} GiB (band {band})"), row("", term.source)]
    return lines


def answer_lines(order: Order, price: float | None) -> list[str]:
    """The bound, the choice, what else would do, what fails and why, and where the count changes."""
    low, high = order.gpus_in_band
    lines = [
        "Answer",
        row("lower bound", f"{plural(order.lower_bound_gpus, 'card')} if all of each is used"),
        row("", f"{plural(share_bound(order), 'card')} at the share ({order.cards_worth:.2f} before rounding up)"),
    ]
    if order.gpus is None:
        none = f"none: nothing up to {order.max_gpus} holds {plural(order.conversations, 'conversation')}"
        more = "; --max-gpus sets how many are tried" if any(p.conversations for p in order.rejected) else ""
        lines.append(row("cards", none + more))
    else:
        held = f"{order.chosen.name}, holds {plural(order.chosen.conversations, 'conversation')}"
        lines.append(row("cards", f"{order.gpus} × {order.card.name}: {held}"))
        lines.append(row("tokens of cache that fit", f"{cache_tokens(order):,}"))
        if (low, high) != (order.gpus, order.gpus):
            ends = ["none" if end is None else str(end) for end in (low, high)]
            lines.append(row("over the calibrated bands", f"{ends[0]} to {ends[1]} cards"))
    lines += [row("would do too", f"{p.name} ({p.conversations:,})") for p in order.runners_up[:SHOWN]]
    lines += failing(order)
    if order.flips:
        lines += flip_lines(order)
    if price is not None and order.gpus:
        lines += price_lines(prices(order, price), order)
    return lines


def failing(order: Order) -> list[str]:
    """The rejected placements on the most cards, the nearest miss first; the rest counted."""
    if not order.rejected:
        return []
    last = max(placed.gpus for placed in order.rejected)
    shown = sorted((p for p in order.rejected if p.gpus == last), key=lambda p: -p.conversations)[:SHOWN]
    lines = [row(f"fails on {last}", f"{placed.name}: {placed.reason}") for placed in shown]
    rest = len(order.rejected) - len(shown)
    return [*lines, row("", f"and {rest:,} more, each with its reason in --json")] if rest else lines


def flip_lines(order: Order) -> list[str]:
    """Where the count changes."""
    flips, fewer = order.flips, order.gpus - 1
    context = f"up to {flips.context:,} tokens" if flips.context else "at any context"
    lines = [
        row(f"{order.gpus} {'suffices' if order.gpus == 1 else 'suffice'}", f"from a share of {flips.share:g}, "
            f"{context}, up to {plural(flips.conversations, 'conversation')}, each moved alone"),
    ]  # fmt: skip
    if fewer and not flips.conversations_one_fewer:
        lines.append(row(f"{fewer} would hold", "none, placed as asked"))
    elif fewer:
        ways = [f"with {plural(flips.conversations_one_fewer, 'conversation')}"]
        ways += [f"up to {flips.context_one_fewer:,} tokens"] if flips.context_one_fewer else []
        ways += [f"from a share of {flips.share_one_fewer:g}"] if flips.share_one_fewer else []
        lines.append(row(f"{fewer} would have sufficed", ", or ".join(ways)))
    return lines


def price_lines(costs: dict, order: Order) -> list[str]:
    """What the order costs, and one card more or fewer."""
    lines = [row("cost", f"{costs['per_hour']:,g} an hour")]
    if order.gpus > 1:
        refused = plural(costs["conversations_refused_one_fewer"], "conversation")
        lines.append(row("one card fewer", f"{costs['per_hour_one_fewer']:,g} an hour, and {refused} refused"))
    more = f"{costs['per_hour_one_more']:,g} an hour, room for {costs['conversations_one_more']:,}"
    return [*lines, row("one card more", more)]


def flops(count: int) -> str:
    """FLOPs exactly, and rounded to a name that can be read."""
    name, unit = next((pair for pair in (("P", 1e15), ("T", 1e12), ("G", 1e9)) if count >= pair[1]), ("M", 1e6))
    return f"{count:,} FLOPs ({count / unit:.4g} {name}FLOP)"


def flops_table(model, done, times, gpu: str | None) -> str:
    """FLOPs of a model for people."""
    n = done.context
    crossing = (
        "never: windows keep them below" if done.crossover_tokens is None else f"{done.crossover_tokens:,g} tokens"
    )
    if isinstance(done.crossover_tokens, int):
        crossing = f"{done.crossover_tokens:,} tokens"
    lines = [
        f"{model.name} ({model.model_type}, {model.L} layers), products of matrices, 2 FLOPs a MAC",
        row(f"prefill of {n:,}", f"{flops(done.prefill_flops)}, the head at every position"),
        row("", f"{flops(done.prefill_flops_one_logit)}, the head at the last"),
        row(f"one decode step at {n:,}", flops(done.decode_flops_per_token)),
        row("training, each token", f"{flops(done.training_flops_per_token)}, in texts of {n:,}"),
        row("core costs as much as FFN", f"at {crossing}" if done.crossover_tokens is not None else crossing),
    ]
    if times:
        lines += [
            row("first token", f"at least {1000 * times.first_token:.3g} ms ({times.first_token_bound_by})"),
            row(
                "each token, one at a time", f"at least {1000 * times.each_token:.3g} ms ({times.each_token_bound_by})"
            ),
            row("both on one", f"{gpu}"),
        ]
    return "\n".join(lines)
