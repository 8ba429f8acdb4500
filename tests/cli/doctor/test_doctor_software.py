"""The doctor's answers about what is installed, and how the whole command ends."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvoffload.cli.doctor import examination, software
from kvoffload.cli.doctor.check import Check, Verdict, fail, ok, warn
from kvoffload.cli.main import app
from kvoffload.cli.preflight import BrokenEnvironmentError


def interpreter(tmp_path: Path, script: str) -> str:
    """Something that stands where the Python of an engine's environment is expected."""
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(0o755)
    return str(path)


def answer(problem: str | None, said: list[str]) -> str:
    text = json.dumps({"problem": problem, "said": said})
    return f"print('noise of the engine')\nprint({software._MARK!r} + {text!r})\nprint('more noise')"


@pytest.mark.parametrize(
    ("script", "verdict", "found"),
    [
        (answer(None, []), Verdict.OK, "fits"),
        (answer(None, ["tested with another"]), Verdict.WARN, "tested with another"),
        (answer("vLLM 0.1 lacks everything", []), Verdict.FAIL, "lacks everything"),
        (
            "import sys; print('ImportError: no torch', file=sys.stderr); sys.exit(1)",
            Verdict.FAIL,
            "no torch",
        ),
        ("import os; os.abort()", Verdict.FAIL, "cannot be imported"),
    ],
    ids=["fits", "untested", "other interface", "no import", "crash"],
)
def test_the_engine_s_interface_is_asked_in_a_process_of_its_own(
    tmp_path: Path, script: str, verdict: Verdict, found: str
) -> None:
    check = software.check_engine_contract(interpreter(tmp_path, script))
    assert check.verdict is verdict
    assert found in check.found
    assert bool(check.mend) is (verdict is not Verdict.OK)


def test_an_engine_that_does_not_end_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "_CONTRACT_TIMEOUT_S", 0.05)
    check = software.check_engine_contract(interpreter(tmp_path, "import time; time.sleep(60)"))
    assert check.verdict is Verdict.WARN


def test_without_an_engine_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "_engine_version", lambda: None)
    monkeypatch.setattr(software, "check_packages_fit", lambda: ok("torchvision", "none"))
    (check,) = [one for one in software.check_software({}) if one.name == "vLLM"]
    assert check.verdict is Verdict.WARN
    assert "pip install" in check.mend


def test_a_torchvision_that_does_not_fit_is_a_failure_with_the_command_that_mends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> None:
        raise BrokenEnvironmentError(
            "torchvision is installed but does not fit torch (nms), so the engine cannot start; text models do not need it: pip x"
        )

    monkeypatch.setattr(software.importlib.util, "find_spec", lambda _name: object())
    monkeypatch.setattr(software, "check_torchvision", broken)
    check = software.check_packages_fit()
    assert (check.verdict, check.mend) == (Verdict.FAIL, "pip x")
    monkeypatch.setattr(software, "check_torchvision", lambda: None)
    assert software.check_packages_fit().verdict is Verdict.OK


def test_a_hash_seed_is_told() -> None:
    assert software.check_hash_seed({}).verdict is Verdict.OK
    check = software.check_hash_seed({"PYTHONHASHSEED": "7"})
    assert check.verdict is Verdict.WARN
    assert "hash_seed='7'" in check.mend


@pytest.mark.parametrize(
    ("checks", "verdict", "exit_code"),
    [
        ([ok("a", "x")], "ok", 0),
        ([ok("a", "x"), warn("b", "y", "z")], "warn", 0),
        ([fail("b", "y", "z"), warn("b", "y", "z"), ok("a", "x")], "fail", 1),
    ],
)
def test_the_worst_verdict_decides_how_it_ends(
    checks: list[Check], verdict: str, exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "all_checks", lambda _wishes: iter(checks))
    result = CliRunner().invoke(app, ["doctor", "--json"])
    assert result.exit_code == exit_code
    found = json.loads(result.stdout)
    assert found["verdict"] == verdict
    assert [one["check"] for one in found["checks"]] == [check.name for check in checks]
    text = CliRunner().invoke(app, ["doctor"])
    assert text.exit_code == exit_code
    assert "how to mend" in text.stdout


def test_the_whole_command_works_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where an engine is installed, importing it would take longer than all of these tests.
    monkeypatch.setattr(software, "check_engine_contract", lambda _interpreter: ok("interface", "not asked"))
    monkeypatch.setattr(software, "check_packages_fit", lambda: ok("torchvision", "not asked"))
    (tmp_path / "store").mkdir()
    result = CliRunner().invoke(
        app,
        ["doctor", "--json", "--fs", str(tmp_path / "store"), "--cpu-bytes", "1MiB", "--fs-bytes", "1MiB"],
    )
    found = json.loads(result.stdout)
    by_name = {one["check"]: one["verdict"] for one in found["checks"]}
    assert {"Python", "host memory", "directory", "O_DIRECT", "speed"} <= by_name.keys()
    assert by_name["host memory"] == by_name["directory"] == "ok"
    assert os.listdir(tmp_path / "store") == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cpu-bytes", "much"],
        ["--fs", ""],
        ["--fs-bytes", "-1"],
        ["--fs", "/kv:much"],
        ["--fs", "/kv:1GiB", "--fs-bytes", "2GiB"],
    ],
)
def test_wrong_use_is_one_line_and_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["doctor", *arguments])
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1


def test_fs_takes_what_serve_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvoffload.cli.doctor import examination

    asked: list[examination.Wishes] = []

    def examine(wishes: examination.Wishes, **_: object) -> bool:
        asked.append(wishes)
        return True

    monkeypatch.setattr(examination, "examine", examine)
    assert CliRunner().invoke(app, ["doctor", "--fs", f"{tmp_path}:10GiB"]).exit_code == 0
    assert CliRunner().invoke(app, ["doctor", "--fs", str(tmp_path)]).exit_code == 0
    assert [(one.fs_path, one.fs_bytes) for one in asked] == [
        (str(tmp_path), 10 * 1024**3),
        (str(tmp_path), None),
    ]
