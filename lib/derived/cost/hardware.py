"""The cards: bytes as sold, memory as an engine sees it, peak rates, each with its source.

Rates are the vendors' dense peaks (no structured sparsity), in FLOP/s and bytes/s. `visible_bytes` is the total that
CUDA or ROCm reported in a log, rounded to the digits of that log: a calibrated input, with the band seen elsewhere.
"""

import re

from derived.cost.record import Record
from derived.errors import DerivedError

GIB = 2**30
MIB = 2**20
TERA = 10**12


class Card(Record):
    """One kind of card. Bytes are whole; `flops` maps a precision to dense peak FLOP/s."""

    name: str
    sold_bytes: int
    visible_bytes: int
    bytes_per_s: int = 0
    flops: tuple[tuple[str, int], ...] = ()
    visible_source: str = ""
    visible_band: str = ""
    rates_source: str = ""

    def peak(self, dtype: str) -> int:
        """Dense peak FLOP/s in a precision; raises DerivedError where the card has none for it."""
        rates = dict(self.flops)
        if dtype not in rates:
            raise DerivedError(f"{self.name} has no {dtype} rate in the table: it has {', '.join(rates) or 'none'}")
        return rates[dtype]


def gib(hundredths: int) -> int:
    """Bytes of a figure logged in GiB with two decimals."""
    return hundredths * GIB // 100


def tera(**rates: float) -> tuple[tuple[str, int], ...]:
    """Rates given in units of 10^12 FLOP/s."""
    return tuple((name, round(rate * TERA)) for name, rate in rates.items())


CARDS = {
    card.name: card
    for card in (
        Card("T4", 16 * 10**9, gib(1456), 320 * 10**9, tera(fp16=65, fp32=8.1, int8=130),
             "Zheng-Chong/CatVTON#133: total capacity of 14.56 GiB", "14.56 to 14.76 GiB",
             "NVIDIA T4 data sheet"),
        Card("L4", 24 * 10**9, gib(2203), 300 * 10**9, tera(fp16=121, bf16=121, fp8=242.5, int8=242.5, fp32=30.3),
             "CUDA's out-of-memory message on an L4: total capacity of 22.03 GiB", "22.03 to 22.17 GiB",
             "NVIDIA L4 data sheet, dense: half of the figures with sparsity"),
        Card("A10G", 24 * 10**9, gib(2206), 600 * 10**9, tera(fp16=70, bf16=70, int8=140, fp32=31.5),
             "CUDA's out-of-memory message on an A10G: total capacity of 22.06 GiB", "22.0 to 22.2 GiB",
             "NVIDIA A10G as in AWS G5: half the A10's tensor rate; taken from AWS's figures"),
        Card("A100-40GB", 40 * 10**9, gib(3950), 1555 * 10**9, tera(fp16=312, bf16=312, int8=624, fp32=19.5),
             "vllm-project/vllm#12330: 39.50 GiB; TianheWu/CoSeR#10: the same", "39.39 to 39.56 GiB",
             "NVIDIA A100 data sheet"),
        Card("A100-80GB", 80 * 10**9, gib(7915), 2039 * 10**9, tera(fp16=312, bf16=312, int8=624, fp32=19.5),
             "vllm-project/vllm#4408: total capacity of 79.15 GiB", "79.14 to 79.25 GiB (nvidia-smi: 81,920 MiB)",
             "NVIDIA A100 data sheet, SXM4"),
        Card("L40S", 48 * 10**9, gib(4439), 864 * 10**9, tera(fp16=362, bf16=362, fp8=733, int8=733, fp32=91.6),
             "CUDA's out-of-memory message on a 48 GB Ada card: total capacity of 44.39 GiB", "44.34 to 44.53 GiB",
             "NVIDIA L40S data sheet, dense"),
        Card("H100-80GB", 80 * 10**9, gib(7919), 3350 * 10**9, tera(fp16=989.4, bf16=989.4, fp8=1978.9, int8=1978.9,
                                                                 fp32=66.9),
             "llm-d-incubation/llm-d-planner PR#205: 79.19 GiB", "79.10 to 79.20 GiB (nvidia-smi: 81,559 MiB)",
             "NVIDIA H100 data sheet, SXM5, dense"),
        Card("H200", 141 * 10**9, gib(13980), 4800 * 10**9, tera(fp16=989.4, bf16=989.4, fp8=1978.9, int8=1978.9,
                                                              fp32=66.9),
             "CUDA's out-of-memory message on an H200: total capacity of 139.80 GiB", "139.72 to 139.81 GiB",
             "NVIDIA H200 data sheet, SXM, dense"),
        Card("B200", 192 * 10**9, gib(17835), 8000 * 10**9, tera(fp16=2250, bf16=2250, fp8=4500, fp4=9000, int8=4500,
                                                              fp32=75),
             "CUDA's out-of-memory message on a B200: total capacity of 178.35 GiB", "178.35 to 178.36 GiB",
             "NVIDIA DGX B200 data sheet, an eighth of the system, dense"),
        Card("RTX-4090", 24 * 10**9, gib(2364), 1008 * 10**9, tera(fp16=165.2, bf16=165.2, fp8=330.3, int8=660.6,
                                                                fp32=82.6),
             "ali-vilab/VGen#104: total capacity of 23.64 GiB", "23.53 to 23.68 GiB",
             "NVIDIA Ada architecture paper, dense, float32 accumulation"),
        Card("MI300X", 192 * 10**9, 201_310_208 * 1024, 5300 * 10**9, tera(fp16=1307.4, bf16=1307.4, fp8=2614.9,
                                                                         int8=2614.9, fp32=163.4),
             "ROCm/legacy-rocm-build#4414: pool of 201310208 KB (191.98 GiB)", "191.45 to 191.98 GiB",
             "AMD Instinct MI300X data sheet, dense"),
    )
}  # fmt: skip
"""The cards by name."""


def card(name: str) -> Card:
    """The card of that name, in any case, or of that visible memory: "H100-80GB", "95.6GiB", "96 GB".

    A card given by its memory has no rates. GiB = 2³⁰ bytes, GB = 10⁹ bytes. Raises DerivedError with the list of names
    for anything else.
    """
    by_name = {key.lower(): value for key, value in CARDS.items()}
    if name.lower() in by_name:
        return by_name[name.lower()]
    if given := re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?) ?(gib|gb)", name.strip().lower()):
        whole, _, part = given[1].partition(".")
        unit, sign = {"gib": (GIB, "GiB"), "gb": (10**9, "GB")}[given[2]]
        if visible := int(whole + part) * unit // 10 ** len(part):
            return custom(f"{given[1]} {sign} card", visible)
    raise DerivedError(
        f"GPU {name!r} is not in the table: choose one of {', '.join(CARDS)}, "
        "or give the memory that a card makes visible, as 95.6GiB"
    )


def custom(name: str, visible_bytes: int) -> Card:
    """A card of which all `visible_bytes` count, for the arithmetic of a chapter."""
    return Card(name, visible_bytes, visible_bytes, visible_source="given")


class Calibrated(Record):
    """A measured input: its bytes, the band seen, the source. Never mixed with what is derived."""

    bytes: int
    low: int
    high: int
    source: str


class Calibration(Record):
    """What a rank holds beside weights and cache, by its place: inputs with a source and a band."""

    activation: Calibrated
    alone: Calibrated
    tensor: Calibrated
    pipeline: Calibrated

    def rank_bytes(self, t: int, p: int) -> tuple[int, int]:
        """(activation peak, non-torch memory) of one rank of a replica of t × p cards."""
        place = self.tensor if t > 1 else self.pipeline if p > 1 else self.alone
        return self.activation.bytes, place.bytes

    def at(self, end: str) -> "Calibration":
        """The same with every input at the "low" or the "high" end of its band."""
        return Calibration(*(term._replace(bytes=getattr(term, end)) for term in self))


def given(gibibytes: float) -> Calibrated:
    """A term set by hand, in GiB: no band."""
    return Calibrated(*[round(gibibytes * GIB)] * 3, "given")


NOTHING = Calibration(*[Calibrated(0, 0, 0, "left out")] * 4)
"""Derived numbers alone: the default in Python."""

LOGS = "llm-d-incubation/llm-d-planner PR#205 (vLLM 0.19 on H100)"
MEASURED = Calibration(
    activation=Calibrated(
        gib(223), gib(189), gib(564), f"{LOGS}, models of 7 and 8 billion: 1.89 to 2.23 GiB; 5.64 in an earlier engine"
    ),
    alone=Calibrated(gib(25), gib(25), gib(179), f"{LOGS}: 0.25 GiB; vllm-project/vllm PR#10511: 1.79"),
    tensor=Calibrated(gib(213), gib(207), gib(358), f"{LOGS}: 2.07 to 2.13 GiB; vllm-project/vllm PR#10511: 3.58"),
    pipeline=Calibrated(gib(7), gib(7), gib(7), f"{LOGS}: 0.07 GiB"),
)
"""What engines logged beside weights and cache: the default of the command line."""
