"""Exercises: the book's own answer passes, a slip is named, nothing attempted is no failure, and solutions hold."""

import json

import numpy as np
import pytest

from derived import exercises
from derived._exercise_inputs import named
from derived.errors import DerivedError
from derived.exercises import verdict
from tests.support.pages import chapters
from tests.support.solutions import exercises_of, verdicts

CHAPTERS = chapters()
EXERCISES = [exercise for path in CHAPTERS for exercise in exercises_of(path)]


def scaled(function, factor):
    """The function with its first result, and the gradients of its pullback, off by a factor."""

    def off(*args, **kwargs):
        result = function(*args, **kwargs)
        if isinstance(result, tuple) and callable(result[-1]):
            return result[0], scaled(result[1], factor)
        if not isinstance(result, tuple):
            return result * factor
        return (
            type(result)(*[r * factor for r in result])
            if hasattr(result, "_fields")
            else tuple(r * factor for r in result)
        )

    return off


@pytest.mark.parametrize("name", [n for n in exercises.names() if n != "attention_trace"])
def test_the_answer_of_the_book_passes_and_one_part_in_a_thousand_does_not(name):
    reference, _ = named(name)
    assert verdict(reference, name).passed
    found = verdict(scaled(reference, 1.001), name)
    assert found.passed is False and "differs" in found.sentence


def softmax_of(e=lambda s: np.exp(s - s.max(-1, keepdims=True)), axis=-1):
    return lambda s: e(s) / e(s).sum(axis, keepdims=True)


def written_into(s):
    s -= 1
    return s


def raising(s):
    raise ValueError("no such row")


SLIPS = [
    (lambda s: named("softmax")[0](s) / np.sqrt(2), "softmax", "Yours is 0.707107 times the book's everywhere"),
    (lambda s: named("log_softmax")[0](s) + 0.5, "log_softmax", "Yours is the book's plus 0.5 everywhere"),
    (softmax_of(np.exp), "softmax", "Was the row's maximum subtracted"),
    (softmax_of(axis=-2), "softmax", "on plain inputs (s (2, 3, 7)), the result differs: most at ["),
    (lambda s: named("softmax")[0](s).swapaxes(-1, -2), "softmax", "yours has shape (2, 7, 3), the book's (2, 3, 7)"),
    (written_into, "softmax", "yours changes its argument s"),
    (raising, "softmax", "yours raises ValueError: no such row"),
    (lambda s: (s, s), "softmax", "yours returns 2 results, the book's 1"),
    (lambda s: "a word", "softmax", "yours is of type str, an array is expected"),
    (lambda s: s, "softmax_vjp", "yours should return two things"),
    (lambda s: (named("softmax")[0](s), lambda da: da), "softmax_vjp", "ds differs: most at"),
    (lambda q, k, v, do: (do, do), "attention_pullback", "yours gives 2 gradients, the book's 3"),
    (lambda n, m: n * m + 1, "full_pairs", "on n = 13, m = 17, the result differs: most, where yours is 222"),
]


@pytest.mark.parametrize(("mine", "name", "said"), SLIPS, ids=[said[:40] for _, _, said in SLIPS])
def test_a_slip_is_named(mine, name, said):
    found = verdict(mine, name)
    assert found.passed is False and said in found.sentence


def unwritten(s): ...


def announced(s):
    raise NotImplementedError


@pytest.mark.parametrize("mine", [None, unwritten, announced])
def test_what_was_not_attempted_does_not_fail(mine, capsys):
    exercises.check(mine, "softmax")
    assert capsys.readouterr().out == "softmax: not attempted yet.\n"


def test_a_function_can_be_compared_with_any_other():
    def variance(d_k):
        return d_k

    def inputs(rng):
        return (int(rng.integers(2, 100)),)

    assert verdict(lambda d: d, variance, inputs).passed
    assert verdict(lambda d: d + 1, variance, inputs).passed is False
    with pytest.raises(DerivedError, match="needs `inputs`"):
        verdict(variance, variance)


def test_an_unknown_name_is_refused_with_those_near_it():
    with pytest.raises(DerivedError, match=r"no exercise 'softmax_backward'; near it: log_softmax.*softmax_pullback"):
        verdict(unwritten, "softmax_backward")


@pytest.mark.parametrize("exercise", EXERCISES, ids=[f"{e.chapter}-{e.function}" for e in EXERCISES])
def test_a_chapter_s_worked_solution_passes_and_its_stub_is_unattempted(exercise):
    assert exercise.solution, f"{exercise.function} has no worked solution in a folded answer"
    assert [v.passed for v in verdicts(exercise, None)] == [None]
    found = verdicts(exercise, exercise.solution)
    assert [v.passed for v in found] == [True], found


def test_solutions_are_read_from_folded_answers(tmp_path):
    cell = 'def mine(s):\n    ...\n\n\nexercises.check(mine, "softmax")'
    answer = "<details>\n<summary>Answer</summary>\n\n```python\ndef mine(s):\n    return BODY\n```\n</details>"
    for body, passed in (("softmax(s)", True), ("softmax(s) * 2", False)):
        cells = [
            {"cell_type": "code", "source": "from derived import exercises\nfrom derived.ops.softmax import softmax"},
            {"cell_type": "code", "source": cell},
            {"cell_type": "markdown", "source": answer.replace("BODY", body)},
        ]
        notebook = {"cells": [c | {"metadata": {}} for c in cells]}
        (tmp_path / "04-trial.ipynb").write_text(json.dumps(notebook))
        [exercise] = exercises_of(tmp_path / "04-trial.ipynb")
        assert verdicts(exercise, None)[0].passed is None
        assert verdicts(exercise, exercise.solution)[0].passed is passed
