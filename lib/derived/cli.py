"""The command line: `derived size`, `derived flops`, `derived gpus`, `derived models`.

Each command is a pair of functions: one adds its arguments, one runs it and returns the exit code. 0: answered;
1: answered, and nothing fits; 2: bad input, one sentence on stderr. Imports wait until a command needs them.
Chapter 13.
"""

import argparse
import os
import sys

from derived.errors import DerivedError


class OneSentence(argparse.ArgumentParser):
    """A parser whose complaint is one line."""

    def __init__(self, **given):
        # a fixed width keeps a cold start from importing what measures the terminal
        super().__init__(formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100), **given)

    def error(self, message: str):
        """Exit with code 2."""
        self.exit(2, f"{self.prog}: {message}; --help says more\n")


def add_size(parser: argparse.ArgumentParser) -> None:
    """Arguments of `derived size`."""
    add = parser.add_argument
    add("config", metavar="CONFIG", help="path of a config.json, its folder, or a hub id (owner/name)")
    add("--context", type=int, required=True, metavar="N", help="tokens of one conversation")
    add("--conversations", type=int, required=True, metavar="N", help="conversations held at once")
    add("--gpu", required=True, metavar="NAME", help="a card of `derived gpus`, or its visible memory: 95.6GiB")
    add("--cache-dtype", metavar="FORMAT", help="fp32 fp16 bf16 fp8 int8 q8_0 int4 q4_0; default: as the config")
    add(
        "--weights-dtype", metavar="FORMAT", help="fp32 fp16 bf16 fp8 fp8_block int8 int4 mxfp4; default: as the config"
    )
    add("--share", type=float, default=0.9, help="of the card's visible memory (default 0.9)")
    add("--replicas", type=int, metavar="N", help="exactly so many equal replicas")
    add("--tensor-parallel", type=int, metavar="T", help="tensor-parallel ranks of every replica")
    add("--pipeline-parallel", type=int, metavar="P", help="pipeline stages of every replica")
    add("--max-gpus", type=int, default=512, metavar="N", help="place on no more (default 512)")
    add("--activation-gib", type=float, metavar="G", help="activation peak of a rank; default: as logged, see output")
    add("--non-torch-gib", type=float, metavar="G", help="non-torch memory of a rank; default: as logged, by placement")
    add("--price", type=float, metavar="P", help="of one card for one hour")
    add("--explain", action="store_true", help="where every byte goes")
    add("--json", action="store_true", help="everything, for programs")


def run_size(args: argparse.Namespace) -> int:
    """How many cards to book, and why."""
    from derived.cost import report
    from derived.cost.placement import size
    from derived.cost.spec import read_config

    check_price(args.price)
    order = size(
        read_config(args.config), args.gpu, context=args.context, conversations=args.conversations, share=args.share,
        cache_dtype=args.cache_dtype, weights_dtype=args.weights_dtype, calibration=calibration(args),
        max_gpus=args.max_gpus, replicas=args.replicas, tensor_parallel=args.tensor_parallel,
        pipeline_parallel=args.pipeline_parallel,
    )  # fmt: skip
    if args.json:
        show_json(report.as_dict(order, args.price))
    else:
        print(report.table(order, args.price))
        if args.explain:
            from derived.cost.explain import explain, lines

            print("\nWhere every byte goes", *lines(explain(order)), sep="\n")
    return 0 if order.gpus else 1


def calibration(args: argparse.Namespace):
    """The calibrated terms: as logged, but for what was given."""
    from derived.cost.hardware import MEASURED, given

    for name in ("activation_gib", "non_torch_gib"):
        value = getattr(args, name)
        if value is not None and not 0 <= value < 10**6:
            raise DerivedError(f"--{name.replace('_', '-')} is {value}: it must be a number of GiB, zero or more")
    terms = MEASURED
    if args.activation_gib is not None:
        terms = terms._replace(activation=given(args.activation_gib))
    if args.non_torch_gib is not None:
        everywhere = given(args.non_torch_gib)
        terms = terms._replace(alone=everywhere, tensor=everywhere, pipeline=everywhere)
    return terms


def check_price(price: float | None) -> None:
    """Refuse a price that is none."""
    if price is not None and not 0 <= price < 10**9:
        raise DerivedError(f"--price is {price}: it must be a sum of money, zero or more")


def show_json(found: dict) -> None:
    """A dictionary as JSON."""
    import json

    print(json.dumps(found, indent=1, ensure_ascii=False))


def add_flops(parser: argparse.ArgumentParser) -> None:
    """Arguments of `derived flops`."""
    add = parser.add_argument
    add("config", metavar="CONFIG", help="path of a config.json, its folder, or a hub id (owner/name)")
    add("--context", type=int, required=True, metavar="N", help="tokens of the prompt, and keys that a step reads")
    add("--gpu", metavar="NAME", help="a card of `derived gpus`: adds lower bounds on time")
    add("--json", action="store_true", help="the same, for programs")


def run_flops(args: argparse.Namespace) -> int:
    """What a prompt, a decode step and training cost, and where attention takes over."""
    from derived.cost import hardware, report
    from derived.cost.spec import read_config
    from derived.cost.work import lower_bounds, work

    model = read_config(args.config)
    done = work(model, args.context)
    times = lower_bounds(model, hardware.card(args.gpu), args.context) if args.gpu else None
    if args.json:
        show_json({"model": model.name, **done._asdict(), "lower_bounds_seconds": times and times._asdict()})
    else:
        print(report.flops_table(model, done, times, args.gpu))
    return 0


def add_gpus(parser: argparse.ArgumentParser) -> None:
    """Arguments of `derived gpus`."""
    parser.add_argument("--json", action="store_true", help="the same, for programs")


def run_gpus(args: argparse.Namespace) -> int:
    """The cards: memory as sold and as seen, bandwidth, peak rates, sources."""
    from derived.cost.hardware import CARDS

    if args.json:
        show_json({name: card._asdict() | {"flops": dict(card.flops)} for name, card in CARDS.items()})
        return 0
    print(f"{'card':<12}{'sold, GB':>9}{'visible, GiB':>14}{'GB/s':>7}{'fp16 TFLOP/s':>14}  sources")
    for card in CARDS.values():
        seen = f"{card.visible_bytes / 2**30:.2f}"
        rate = f"{card.peak('fp16') / 10**12:g}"
        print(
            f"{card.name:<12}{card.sold_bytes / 10**9:>9g}{seen:>14}{card.bytes_per_s / 10**9:>7g}{rate:>14}  "
            f"{card.visible_source}; seen: {card.visible_band}; rates: {card.rates_source}"
        )
    return 0


def add_models(parser: argparse.ArgumentParser) -> None:
    """`derived models` takes no arguments."""


def run_models(args: argparse.Namespace) -> int:
    """The model types whose config.json is understood."""
    from derived.cost.spec import known_types

    print(*known_types(), sep="\n")
    return 0


COMMANDS = {
    "size": (add_size, run_size),
    "flops": (add_flops, run_flops),
    "gpus": (add_gpus, run_gpus),
    "models": (add_models, run_models),
}
"""Name of a command, the function that adds its arguments, the function that runs it."""


def main(argv: list[str] | None = None) -> int:
    """Run a command; returns its exit code, or 2 after one sentence on stderr."""
    argv = sys.argv[1:] if argv is None else argv
    parser = OneSentence(prog="derived", description="What a transformer costs, derived.")
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=OneSentence, prog="derived"
    )
    for name, (add, run) in COMMANDS.items():
        about = (run.__doc__ or "").strip()
        command = commands.add_parser(name, help=about, description=about)
        if name in argv[:1]:  # the others' arguments are not needed
            add(command)
    args = parser.parse_args(argv)
    try:
        code = COMMANDS[args.command][1](args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  (Python flushes it once more on its way out)
        return 0
    except DerivedError as error:
        print(f"derived {args.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
