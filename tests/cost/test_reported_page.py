"""The page of reported and derived figures, held against the acceptance table: the same cases, facts and verdicts."""

import ast
import json
import re

import pytest

from tests.cost import test_memory_cases as held
from tests.support.pages import BOOK, cells, text

PAGE = BOOK / "appendix" / "reported-and-derived.ipynb"


def bare(value):
    """A field without what is noted in parentheses behind it."""
    return re.sub(r" \((?!tp|pp).*\)$", "", value)


def facts():
    """Case to (source, model, setting, reported), from the page's code."""
    found = {}
    for _, source, _ in cells(PAGE, "code"):
        for node in ast.walk(ast.parse(source.replace("!pip", "#"))) if "facts(" in source else ():
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "facts":
                for line in ast.literal_eval(node.args[0]).strip().splitlines():
                    case, *rest = line.split(" | ")
                    assert case not in found, f"{case} twice"
                    found[case] = rest
    return found


def rows():
    """Case to (reported, derived, verdict), from the tables that the page prints."""
    tables = [
        text(o["data"].get("text/markdown", "")) for _, _, c in cells(PAGE, "code") for o in c["outputs"] if "data" in o
    ]
    lines = [line.strip("| ").split(" | ") for table in tables for line in table.splitlines()[2:]]
    return {case: rest for case, _, *rest in lines}


def different(case, fact):
    """The fields of a case's facts that are not the acceptance table's."""
    source, model, _, reported = fact
    expected = {"source": bare(case["source"]), "model": bare(case["model"]), "reported": bare(case["reported"])}
    return [k for k, v in {"source": source, "model": model, "reported": reported}.items() if expected[k] != v]


def test_the_page_has_every_case_with_its_facts():
    page = facts()
    assert page.keys() == held.CASES.keys()
    assert {case: wrong for case in page if (wrong := different(held.CASES[case], page[case]))} == {}


def test_the_page_prints_every_case_once():
    assert {case: fact[3] for case, fact in facts().items()} == {case: row[0] for case, row in rows().items()}


def test_verdicts_are_those_of_the_tests():
    verdicts = {case: row[2] for case, row in rows().items()}
    derived = {case for case, row in rows().items() if row[1] != "—"}
    agreeing = {case for case in verdicts if verdicts[case].startswith("agrees")}
    covered = held.CASES.keys() - held.NOT_HELD.keys()
    assert agreeing <= covered <= derived
    # held by a test with the difference that the verdict names
    assert covered - agreeing == {"w03", "w07", "w11", "w12"}
    assert derived - covered == {"t08", "t10", "t24"}


def test_the_count_is_that_of_the_table():
    [said] = re.findall(r"(\d+) cases: (\d+) agree, (\d+) cannot be derived, (\d+) differ", json.dumps(
        [text(o.get("text", "")) for _, _, c in cells(PAGE, "code") for o in c["outputs"]]
    ))  # fmt: skip
    total, agreeing, without, differing = map(int, said)
    assert total == len(held.CASES) == agreeing + without + differing


@pytest.mark.parametrize(("field", "value"), [(0, "vllm-project/vllm#12331"), (1, "Llama-3-9B"), (3, "14.9596 GB")])
def test_a_fact_that_drifts_is_seen(field, value):
    fact = list(facts()["w01"])
    assert not different(held.CASES["w01"], fact)
    fact[field] = value
    assert different(held.CASES["w01"], fact)
