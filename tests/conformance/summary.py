"""Prints how many of ONNX's cases were run, and how many each voice was asked.

A plugin that tests/conftest.py names, not a conftest of this folder: where workers share the tests, the process
that prints collects none and would not read it.
"""

from collections import Counter


def pytest_terminal_summary(terminalreporter):
    """One line at the end of a run in which ONNX's cases took part."""
    asked, names = Counter(), set()
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        if report.when == "call" and "::test_agrees_with_onnx[" in report.nodeid:
            name, voice = report.nodeid.split("[", 1)[1].removesuffix("]").rsplit("-", 1)
            names.add(name)
            asked[voice] += 1
    if names:
        voices = ", ".join(f"{count} {voice.replace('_', ' ')}" for voice, count in sorted(asked.items()))
        terminalreporter.write_line(f"ONNX node cases: {len(names)} run ({voices})")
