"""Read the numbers of a text: Markdown with LaTeX, or what a cell printed. The rules stand in `prose_numbers`."""

import re
from dataclasses import dataclass, field
from decimal import Decimal

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SMALL = Decimal(10)

# The first spelling that fits wins, so longer ones come first; units that are not here are words like any other.
UNITS = [
    ("byte/s", r"bytes?/s\b|bytes? (?:a|per) second\b"),
    *((f"{p}B/s", rf"{p}B/s\b") for p in ("Ti", "Gi", "Mi", "Ki", "T", "G", "M", "k")),
    *((f"{p}B", rf"{p}B\b") for p in ("Pi", "Ti", "Gi", "Mi", "Ki", "P", "T", "G", "M", "k")),
    *((f"{p}FLOP/s", rf"{p}FLOPs?/s\b") for p in ("P", "T", "G", "M", "")),
    *((f"{p}FLOP", rf"{p}FLOPs?\b") for p in ("E", "P", "T", "G", "M", "")),
    *((f"{p}MAC", rf"{p}MACs?\b") for p in ("P", "T", "G", "M", "")),
    ("byte", r"bytes?\b"),
    ("bit", r"bits?\b"),
    ("%", r"\\?%|per ?cent\b"),
    ("×", r"times\b|-?fold\b"),
    ("card", r"(?:GPU|card)s?\b"),
    ("ms", r"ms\b|milliseconds?\b"),
    ("µs", r"[µμu]s\b|microseconds?\b"),
    ("second", r"seconds\b"),
]
UNIT = re.compile("|".join(f"(?P<u{i}>{spelling})" for i, (_, spelling) in enumerate(UNITS)))

DIGITS = r"\d{1,3}(?:(?:,|\{,\}|\\,|[\u2009\u202f])\d{3})+(?!\d)|\d+"
POWER = r"(?:\^\s*\{?\s*[-−+]?\d+\s*\}?|\*\*\s*-?\d+|[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)"
NUMBER = re.compile(
    rf"(?<![\w.])(?:"
    rf"(?P<base>2|\d{{2,}})\s*(?P<power>{POWER})"
    rf"|(?P<mantissa>(?:{DIGITS})(?:\.\d+)?|\.\d+)"
    rf"(?:[eE](?P<e>[-−+]?\d+)|\s*(?:×|·|\*)\s*10\s*(?P<ten>{POWER}))?"
    rf"(?:[\s~-]*(?P<scale>thousand|million|billion|trillion)s?\b)?"
    rf")"
)
UNITS_SPELLED = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
TENS_SPELLED = "twenty thirty forty fifty sixty seventy eighty ninety"
WORDS = {word: value for value, word in enumerate(UNITS_SPELLED.split())}
WORDS |= {word: 10 * value for value, word in enumerate(TENS_SPELLED.split(), start=2)}
WORD = "|".join(WORDS)
SPELLED = re.compile(
    rf"(?i)\b(?:(?P<tens>{WORD})(?:-(?P<ones>{WORD}))?(?:\s+(?P<big>hundred|thousand|million|billion|trillion))?"
    rf"|a\s+(?P<lone>hundred|thousand|million|billion))\b"
)
ABOUT = re.compile(r"(?i)(?:≈|~|≲|≳|about|roughly|around|nearly|almost|some|close to|approximately)[\s${}(≈~−+±-]*$")


@dataclass(frozen=True)
class Number:
    """A number as it stands in a text."""

    text: str
    start: int
    end: int
    value: Decimal
    places: int  # decimal places shown; negative in 1.2·10⁵
    whole: bool  # written without a decimal point
    exact: bool = False  # a power, which stands for all its digits
    sign: str = ""
    unit: str = ""
    about: bool = False
    nearby: frozenset = field(default=frozenset())  # units that its line or its output names


# --- masking: what is not prose is blanked out, so that every position stays what it was ---


def _blank(text, pattern, flags=0, group=0):
    def blank(match):
        whole, (start, end), at = match[0], match.span(group), match.start()
        return whole[: start - at] + re.sub(r"[^\n]", " ", whole[start - at : end - at]) + whole[end - at :]

    return re.sub(pattern, blank, text, flags=flags)


def _symbol(text, macro, symbol):
    return re.sub(rf"\\{macro}(?![A-Za-z])", lambda m: symbol.ljust(len(m[0])), text)


LABEL = (
    r"(?:chapter|section|§|equation|eq\.|figure|fig\.|table|cell|step|exercise|question|part|appendix|page|line|row"
    r"|column|layer|token|query|key|head|stage|version|takeaway|opset|seed)"
)
LABELS = r"(?:chapters|sections|equations|eqs\.|figures|tables|cells|steps|exercises|questions|parts)"
BEFORE_A_YEAR = r"\b(?:[Ii]n|[Oo]f|[Ss]ince|[Tt]he|[Uu]ntil|[Ff]rom|al\.,?)|[A-Za-z.],|[A-Za-z] ?\("
COUNTED = (
    r"(?:token|key|quer|row|score|entr|conversation|column|position|number|value|layer|parameter|step|sample|byte)"
)
ONE = r"\(?\d{1,3}(?:\.\d{1,2})?[a-z]?\)?(?![\d.]*\d)"


def masked(text):
    """The text with everything that is not a number of the argument blanked out, every position kept."""
    text = _blank(text, r"^(```+|~~~+).*?^\1", re.M | re.S)
    text = _blank(text, r"<!--.*?-->|</?[a-zA-Z][^>]*>", re.S)
    text = _blank(text, r"\]\([^)]*\)|https?://\S+|\b(?:arXiv|doi)[: ]\s*\S+", re.I)
    text = _blank(text, r"^#{1,6}\s*[\d.]+(?=\s)|^\s*\d+[.)](?=\s)", re.M)
    text = _blank(text, r"^#{1,6}[^\n]*\b(?:Sources|Next)\b[^\n]*\n(?:(?!^#).*\n?)*", re.M)
    text = _blank(text, r"\\(?:tag|label|begin|end|color|textcolor)\s*\{[^}]*\}|\\\\\[[^\]]*\]")
    text = _blank(text, r"\\[dt]?frac\d\d|\\[dt]?frac\s*\d\s*\d(?!\d)")
    for macro, symbol in (("times", "×"), ("cdot", "·"), ("approx", "≈"), ("simeq", "≈"), ("sim", "~"), ("pm", "±")):
        text = _symbol(text, macro, symbol)
    text = _blank(text, r"\\(?!,(?<=\d\\,)\d{3})(?:[A-Za-z]+|[,;:! ])")
    text = _blank(text, r"(?<=[\w)}\]])_(?:\{[^{}]*\}|\d+)")  # a subscript is a name
    text = _blank(text, r"(?i)\bpart\s+[IVX]+\b")
    text = _blank(text, rf"(?i)\b{LABELS}\s+{ONE}(?:(?:\s*(?:,|and|or|to|–|-)\s*)+{ONE})*")
    text = _blank(text, rf"(?i)\b{LABEL}\s+{ONE}")
    text = _blank(text, r"\((?:\d{1,2}|[A-Z])\.\d{1,2}[a-z]?\)")  # (5.3): a result in brackets is better off without
    text = _blank(text, r"(?<![\w.])[A-Za-z_][A-Za-z_]*(?:-?\d[\w.]*)(?:-\w[\w.]*)*", group=0)  # fp16, GPT-2, H100
    text = _blank(text, r"(?<![\w.])[A-Z][A-Za-z]+(?:-[A-Za-z]+)*-\d[\w.]*(?:-\w[\w.]*)*")  # Llama-2-7B
    return _blank(text, rf"(?:{BEFORE_A_YEAR})\s?((?:19[5-9]\d|20[0-2]\d)(?![\w%×]|[.,]\d|\s*{COUNTED}))", group=1)


def _math(text):
    """The spans of LaTeX in the text."""
    return [m.span() for m in re.finditer(r"\$\$.*?\$\$|\$[^$\n]+\$", text, re.S)]


# --- reading numbers ---


def _power(text):
    return int(re.sub(r"[\^*{}\s]", "", text.translate(SUPERSCRIPTS)).replace("−", "-"))


def _times_before(text, start, math):
    """Whether a × directly before says `×4` rather than `2 × 4`."""
    before = text[:start].rstrip(" ") if math else text[:start]
    if not before.endswith("×"):
        return False
    left = before[:-1]
    return bool(re.search(r"[$=≈~(,:;&]\s*$", left)) if math else not left or bool(re.search(r"[\s|(\[~≈*]$", left))


def _times_after(text, end, math):
    """Whether a × directly behind says `4×` rather than `4 × n`."""
    match = re.match(r"(?:×|x\b)(\s*)(.?)", text[end:])
    if not match:
        return False
    space, following = match.groups()
    return not re.match(r"[\w(\\{|]", following) or (bool(space) and not math and following.isalpha())


def _unit(text, start, end, math, raw):
    if _times_before(text, start, math) or _times_after(text, end, math):
        return "×"
    gap = re.match(r"[\s{}~$`*-]{0,16}", text[end:]).end()
    if "\n\n" in raw[end : end + gap] or re.search(r"\d", raw[end : end + gap]):
        return ""  # what was blanked out in between is another thing
    gap = 0 if text.startswith("-fold", end) else gap
    found = UNIT.match(text, end + gap)
    return next((UNITS[int(name[1:])][0] for name, hit in found.groupdict().items() if hit), "") if found else ""


def _sign(text, start):
    # `n−1` and `61-63` subtract or span, so does `n − 1` with its space behind; `[−2` and `by −2` are signs
    return "-" if re.search(r"(?<![\w)\]}²³])[-−]$", text[max(0, start - 2) : start]) else ""


def _scientific(match):
    """Value, decimal places, whether whole, whether exact, of a match of NUMBER."""
    if match["base"]:
        power = _power(match["power"])
        return Decimal(match["base"]) ** power, 0, power >= 0, True
    digits = re.sub(r"\{,\}|\\,|[,\u2009\u202f]", "", match["mantissa"])
    value = Decimal(digits)
    places = len(digits.partition(".")[2])
    shift = int(match["e"].replace("−", "-")) if match["e"] else _power(match["ten"]) if match["ten"] else 0
    shift += SCALES.get(match["scale"] or "", 0)
    return value.scaleb(shift), places - shift, "." not in digits and shift >= 0, False


def numbers(text, mask=True):
    """All numbers of a text, spelled-out ones included, in their order."""
    clean = masked(text) if mask else text
    spans = _math(text) if mask else []
    found = []
    for match in NUMBER.finditer(clean):
        start, end = match.span()
        math = any(a <= start < b for a, b in spans)
        unit = _unit(clean, start, end, math, text)
        glued = re.match(r"[A-Za-z_]", clean[end:])
        if glued and not (unit and re.match(UNIT.pattern + "|x", clean[end:])):
            continue  # 7B, 3rd, 2D: a name
        if clean[start:end] in ("2", "10") and re.match(r"\s*\^", clean[end:]) and math:
            continue  # 2^{-L/2}: the exponent carries the meaning
        value, places, whole, exact = _scientific(match)
        sign = _sign(clean, start)
        about = bool(ABOUT.search(clean[max(0, start - 40) : start]))
        found.append(Number(text[start:end], start, end, value, places, whole, exact, sign, unit, about))
    for match in SPELLED.finditer(clean) if mask else ():
        value = WORDS.get((match["tens"] or "").lower(), 1) + WORDS.get((match["ones"] or "").lower(), 0)
        big = (match["big"] or match["lone"] or "").lower()
        value *= 10 ** ({"hundred": 2} | SCALES).get(big, 0)
        start, end = match.span()
        about = bool(ABOUT.search(clean[max(0, start - 40) : start]))
        unit = _unit(clean, start, end, False, text)
        # "two bytes a number" defines; a small number in words is a result as a factor, a share or an order of cards
        unit = unit if value >= SMALL or unit in ("×", "%", "card") else ""
        unit = "" if value == 1 else unit
        found.append(Number(match[0], start, end, Decimal(value), 0, True, unit=unit, about=about))
    return sorted(found, key=lambda number: number.start)


def claims(text):
    """The numbers of a prose text that must be shown or given."""
    return [n for n in numbers(text) if n.unit or not n.whole or n.value >= SMALL]


def shown(text, mask=False):
    """The numbers of an output, each with the units that its line and its output name."""
    everywhere = frozenset(_units(text))
    found = []
    for line in text.splitlines():
        near = frozenset(_units(line))
        for n in numbers(line, mask):
            found.append(Number(**{**n.__dict__, "nearby": near or everywhere}))
    return found


def _units(text):
    names = [UNITS[int(name[1:])][0] for m in UNIT.finditer(text) for name, hit in m.groupdict().items() if hit]
    return names + (["×"] if re.search(r"×|\d\s?x\b", text) else [])
