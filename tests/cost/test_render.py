"""One function, three forms: the number, the LaTeX and the page's expression agree."""

import ast
import math
import random
import xml.etree.ElementTree

import pytest
import sympy
import vl_convert

from derived.cost import attention_memory, crossing, flops, pairs, parameters, roofline
from derived.cost.render import EXACT_BELOW, expression, latex, letter, vega
from derived.errors import DerivedError, DtypeError
from derived.shapes import LETTERS
from tests.support.mutants import planted

FORMULAS = {  # every formula that is made of letters, and what is fixed in it
    "full_pairs": (pairs.full_pairs, {}),
    "causal_pairs": (pairs.causal_pairs, {}),
    "window_pairs": (pairs.window_pairs, {}),
    "tiled_causal_pairs": (pairs.tiled_causal_pairs, {}),
    "padded_causal_pairs": (pairs.padded_causal_pairs, {}),
    "uncached_token_passes": (pairs.uncached_token_passes, {}),
    "uncached_full_pairs": (pairs.uncached_full_pairs, {}),
    "uncached_causal_pairs": (pairs.uncached_causal_pairs, {}),
    "linear_parameters": (parameters.linear_parameters, {"bias": True}),
    "attention_parameters": (parameters.attention_parameters, {"qkv_bias": True}),
    "encoder_block_parameters": (parameters.encoder_block_parameters, {}),
    "decoder_block_parameters": (parameters.decoder_block_parameters, {}),
    "transformer_parameters": (parameters.transformer_parameters, {}),
    "gpt2_parameters": (parameters.gpt2_parameters, {}),
    "llama_parameters": (parameters.llama_parameters, {}),
    "lora_parameters": (parameters.lora_parameters, {}),
    "lora_break_even_rank": (parameters.lora_break_even_rank, {}),
    "projections_macs": (flops.projections_macs, {}),
    "core_macs": (flops.core_macs, {"pairs": 101}),
    "block_macs": (flops.block_macs, {"pairs": 101, "ffn_matrices": 3}),
    "prefill_macs": (flops.prefill_macs, {"ffn_matrices": 3}),
    "decode_step_macs": (flops.decode_step_macs, {"ffn_matrices": 2}),
    "uncached_macs": (flops.uncached_macs, {"ffn_matrices": 3}),
    "training_flops_per_token": (flops.training_flops_per_token, {}),
    "crossing_tokens": (crossing.crossing_tokens, {"ffn_matrices": 3}),
    "crossing_tokens_with_projections": (crossing.crossing_tokens_with_projections, {"ffn_matrices": 2}),
    "linear_intensity": (roofline.linear_intensity, {}),
    "standard_attention_intensity": (roofline.standard_attention_intensity, {}),
    "tiled_attention_bytes": (roofline.tiled_attention_bytes, {}),
    "tiled_attention_intensity": (roofline.tiled_attention_intensity, {}),
    "scores_bytes": (attention_memory.scores_bytes, {}),
    "flash_training_bytes": (attention_memory.flash_training_bytes, {}),
    "plain_training_bytes": (attention_memory.plain_training_bytes, {}),
    "decode_step_flops": (roofline.decode_step_flops, {}),
    "decode_intensity_ceiling": (roofline.decode_intensity_ceiling, {}),
    "lower_bound_seconds": (
        roofline.lower_bound_seconds,
        {"flop_count": 10**9, "byte_count": 3 * 10**7, "flops_per_second": 312e12, "bytes_per_second": 2e12},
    ),
}
HELD_BY_VEGA = {"floor": math.floor, "ceil": math.ceil, "min": min, "max": max, "pow": pow, "sqrt": math.sqrt}


def draw(formula, fixed, seed):
    """Random sizes for the letters a formula leaves open; h a multiple of h_kv, as heads must be."""
    random.seed(seed)
    open_letters = [name for name in parameters_of(formula) if name not in fixed and name in LETTERS]
    sizes = {name: random.randint(1, 997) for name in open_letters}
    if {"h", "h_kv"} <= sizes.keys():
        sizes["h"] = sizes["h_kv"] * random.randint(1, 8)
    return sizes


def parameters_of(formula):
    code = formula.__wrapped__.__code__
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def in_doubles(text, sizes):
    """The page's arithmetic: every number a double, the functions Vega has and no other name."""
    names = {node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)}
    assert names <= sizes.keys() | HELD_BY_VEGA.keys()
    return eval(text, {"__builtins__": {}}, HELD_BY_VEGA | {name: float(size) for name, size in sizes.items()})


def check_vega(name):
    formula, fixed = FORMULAS[name]
    text = vega(formula, **fixed)
    for seed in range(20):
        sizes = draw(formula, fixed, seed)
        number = formula(**sizes, **fixed)
        drawn = in_doubles(text, sizes)
        if isinstance(number, int) and number < EXACT_BELOW / 1000:
            assert drawn == number, (text, sizes)
        else:
            assert drawn == pytest.approx(float(number), rel=1e-14), (text, sizes)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_pages_expression_gives_the_functions_number(name):
    check_vega(name)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_symbolic_form_gives_the_functions_number(name):
    formula, fixed = FORMULAS[name]
    value = expression(formula, **fixed)
    for seed in range(3):
        sizes = draw(formula, fixed, seed)
        number = value.subs({letter(key): size for key, size in sizes.items()})
        assert float(number) == pytest.approx(float(formula(**sizes, **fixed)), rel=1e-14)


def check_letters(name):
    formula, fixed = FORMULAS[name]
    text = latex(formula, **fixed)
    for symbol in expression(formula, **fixed).free_symbols:
        assert LETTERS[symbol.name].latex in text
    assert "x0" not in text and "x1" not in text  # no stand-in left behind
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("name", [name for name in FORMULAS if name != "lower_bound_seconds"])
def test_latex_writes_each_letter_as_the_notation_table_does(name):
    check_letters(name)


def test_the_check_of_latex_sees_a_letter_written_by_its_name_in_code():
    with (
        planted("derived.cost.render", "LETTERS[symbol.name].latex if", "symbol.name if"),
        pytest.raises(AssertionError),
    ):
        check_letters("crossing_tokens")


def test_latex_of_known_formulas():
    d, d_k = letter("d_model"), letter("d_k")
    n = letter("n")
    assert latex(pairs.causal_pairs, m=n) == r"\frac{n \left(n + 1\right)}{2}"
    assert latex(parameters.encoder_block_parameters, d_ff=4 * d) == (r"12 d_{\text{model}}^{2} + 13 d_{\text{model}}")
    assert latex(flops.core_macs, pairs=n * n, h=d / d_k, d_v=d_k) == r"2 n^{2} d_{\text{model}}"
    assert latex(flops.training_flops_per_token) == "6 P + 12 L n h d_k"
    assert latex(roofline.decode_intensity_ceiling) == (r"\frac{2 P + 4 L n h d_k}{2 L n h_{\text{kv}} d_k b}")
    X = expression(crossing.crossing_tokens, h=d / d_k, d_v=d_k, d_ff=4 * d, ffn_matrices=2)
    assert 4 * d == X
    assert crossing.causal_crossing_tokens(X) == 8 * d - 1
    assert crossing.tiled_crossing_tokens(X, letter("B_t")) == 8 * d - letter("B_t")


def test_floor_ceil_and_remainder_reach_the_page():
    assert vega(lambda n, B_t: n // B_t) == "floor((n / B_t))"
    assert "ceil(" in vega(roofline.tiled_attention_bytes)
    assert "\\lceil" in latex(roofline.tiled_attention_bytes)
    assert "%" in vega(pairs.tiled_causal_pairs)
    assert vega(lambda n: sympy.sqrt(n) ** 3) == "pow(n, (3 / 2))"
    assert vega(lambda n: sympy.sqrt(n) - 1 / n**5) == "((pow(n, (11 / 2)) - 1) / pow(n, 5))"


def test_a_chart_may_call_a_letter_by_another_name():
    assert vega(pairs.causal_pairs, {"n": "datum.tokens"}, m=letter("n")) == (
        "((datum.tokens * (datum.tokens + 1)) / 2)"
    )


def test_divisions_come_last_so_whole_results_are_whole():
    # (1/6) n (n + 1) (n + 2) in doubles is off for some n; the printed form is not
    text = vega(pairs.uncached_causal_pairs)
    assert all(in_doubles(text, {"n": n}) == pairs.uncached_causal_pairs(n) for n in range(1, 2000))
    assert any((1 / 6) * n * (n + 1) * (n + 2) != pairs.uncached_causal_pairs(n) for n in range(1, 2000))


def test_beyond_two_to_the_53_the_page_rounds_and_python_does_not():
    text = vega(lambda n: n * n)
    n = 2**27 + 1
    assert n * n > EXACT_BELOW
    assert int(in_doubles(text, {"n": n})) != n * n
    assert EXACT_BELOW == 9_007_199_254_740_992 and float(EXACT_BELOW) + 1 == EXACT_BELOW


def test_vegas_own_evaluator_gives_the_same_numbers():
    """Each expression as a calculated text mark, drawn by the Vega that the book uses, and read back from the SVG."""
    names = sorted(FORMULAS)
    drawn = {name: draw(*FORMULAS[name], 3) for name in names}
    layers = [
        {
            "data": {"values": [drawn[name] | {"place": i}]},
            "transform": [
                {"calculate": vega(formula, {key: f"datum.{key}" for key in drawn[name]}, **fixed), "as": "y"}
            ],
            "mark": "text",
            "encoding": {"text": {"field": "y", "format": ".15e"}, "y": {"field": "place", "type": "nominal"}},
        }
        for i, name in enumerate(names)
        for formula, fixed in [FORMULAS[name]]
    ]
    svg = vl_convert.vegalite_to_svg({"layer": layers, "encoding": {"y": {"axis": None}}})
    texts = [node.text for node in xml.etree.ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]
    read = [float(text.replace("−", "-")) for text in texts if text and "e" in text]
    expected = [float(FORMULAS[name][0](**drawn[name], **FORMULAS[name][1])) for name in names]
    assert read == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    "module, right, wrong, name",
    [
        ("_checks", ".ceiling(n / size)", ".floor(n / size)", "padded_causal_pairs"),
        ("_checks", ".Min(a, b)", ".Max(a, b)", "window_pairs"),
        ("render", "* int(exponent))", "* 3)", "padded_causal_pairs"),
        ("render", ' - {_print(-term, names)}"', ' - {_print(term, names)}"', "causal_pairs"),
        ("render", "/ {_print(below, names)})", "* {_print(below, names)})", "uncached_full_pairs"),
        ("render", '"({} % {})"', '"({} / {})"', "tiled_causal_pairs"),
    ],
)
def test_the_check_of_expressions_sees_planted_errors(module, right, wrong, name):
    with planted(f"derived.cost.{module}", right, wrong), pytest.raises(AssertionError):
        check_vega(name)


def test_what_is_no_letter_is_refused_by_a_sentence():
    with pytest.raises(DerivedError, match=r"'pairs' is no size .* fix it with pairs="):
        latex(flops.core_macs)
    with pytest.raises(DerivedError, match="is no size"):
        letter("Q")  # a letter of the table, but an array's
    with pytest.raises(DerivedError, match="the formula takes n, m; it has no w to fix"):
        vega(pairs.causal_pairs, w=3)
    with pytest.raises(DtypeError, match=r"gamma .* has no counterpart in Vega"):
        vega(lambda n: sympy.gamma(n + sympy.Rational(1, 2)))
