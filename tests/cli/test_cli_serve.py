"""`kvoffload serve`: the command it builds, and every way to be used wrongly. Needs no engine."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from kvoffload import __version__
from kvoffload.cli.main import app


@pytest.fixture(autouse=True)
def no_hash_seed(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)


def run(*arguments):
    return CliRunner().invoke(app, list(arguments))


def dry_run(*arguments):
    """The command as words, and the connector's configuration out of it."""
    result = run("serve", "--dry-run", *arguments)
    assert result.exit_code == 0, result.output
    words = shlex.split(result.stdout)
    config = json.loads(words[words.index("--kv-transfer-config") + 1])
    return words, config


def complaint(*arguments):
    """The one line that wrong use leads to."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    line = result.stderr.rstrip("\n")
    assert "\n" not in line, line
    assert line.startswith("kvoffload: error: "), line
    assert "Traceback" not in line
    return line


def test_version_is_the_package_version():
    assert run("--version").stdout == f"kvoffload {__version__}\n"


def test_obj_becomes_the_last_tier():
    address = "s3://bucket/some/prefix?endpoint=http://127.0.0.1:9000&cap=2TiB&path_style=false&ttl=3600.5"
    _, config = dry_run("m", "--obj", address, "--fs", "/kv", "--obj", "gs://other")
    assert config["kv_connector_extra_config"]["secondary_tiers"] == [
        {"type": "fs", "root_dir": "/kv"},
        {
            "type": "obj",
            "url": "s3://bucket/some/prefix",
            "endpoint": "http://127.0.0.1:9000",
            "max_bytes": "2TiB",
            "path_style": False,
            "ttl_s": 3600.5,
        },
        {"type": "obj", "url": "gs://other", "name": "obj2"},
    ]


def test_a_file_that_an_object_store_needs_is_looked_for_before_the_engine_starts():
    line = complaint("serve", "m", "--obj", "s3://bucket/p?credentials_file=/nowhere/file")
    assert "credentials_file='/nowhere/file' cannot be read" in line


@pytest.mark.parametrize(
    "address",
    [
        "s3://AKID:hush-hush@bucket/p",
        "s3://bucket/p?secret_access_key=hush-hush",
        "s3://bucket/p?aws_session_token=hush-hush",
        "az://container/p?account_key=hush-hush",
        "s3://bucket/p?endpoint=http://user:hush-hush@host",
        "hush-hush://bucket",
    ],
)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(address):
    assert "hush" not in complaint("serve", "m", "--obj", address)


def test_help_imports_neither_torch_nor_engine_nor_numpy():
    program = (
        "import sys; from kvoffload.cli.main import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "loaded = {'torch', 'vllm', 'transformers', 'numpy', 'matplotlib'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_connector_configuration_survives_the_shell():
    words, config = dry_run("my org/model")
    assert words[words.index("--kv-transfer-config") - 1] == "my org/model"
    assert config == {
        "kv_connector": "KvoffloadConnector",
        "kv_role": "kv_both",
        "kv_connector_module_path": "kvoffload.connectors.vllm.connector",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"cpu_bytes_to_use": "4GiB"},
    }


def test_switches_become_the_options_of_the_connector():
    _, config = dry_run(
        "m",
        "--cpu-bytes",
        "512MiB",
        "--blocks-per-chunk",
        "4",
        "--offload-answers",
        "--eviction-policy",
        "lru",
    )
    assert config["kv_connector_extra_config"] == {
        "cpu_bytes_to_use": "512MiB",
        "blocks_per_chunk": 4,
        "offload_prompt_only": False,
        "eviction_policy": "lru",
    }


def test_option_values_are_json_or_text_as_the_option_asks(monkeypatch):
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    _, config = dry_run("m", "--option", "store_threshold=2", "--option", "hash_seed=0")
    assert config["kv_connector_extra_config"] == {
        "cpu_bytes_to_use": "4GiB",
        "store_threshold": 2,
        "hash_seed": "0",
    }


def test_a_directory_becomes_a_tier_below_the_host():
    _, config = dry_run("m", "--fs", "/var/cache/kv:100GiB")
    assert config["kv_connector_extra_config"] == {
        "cpu_bytes_to_use": "4GiB",
        "spec_name": "TieringOffloadingSpec",
        "secondary_tiers": [{"type": "fs", "root_dir": "/var/cache/kv", "max_bytes": 100 << 30}],
    }


def test_several_directories_have_names_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, config = dry_run("m", "--fs", "near", "--fs", "/mnt/a:b:1TB")
    assert config["kv_connector_extra_config"]["secondary_tiers"] == [
        {"type": "fs", "root_dir": str(tmp_path / "near")},
        {"type": "fs", "root_dir": "/mnt/a:b", "max_bytes": 10**12, "name": "fs2"},
    ]
    assert not (tmp_path / "near").exists(), "a dry run makes nothing"


@pytest.mark.parametrize("where", ["a file", "no permission", "cannot be made"])
def test_a_directory_that_cannot_be_used_is_refused_before_the_engine_starts(tmp_path, monkeypatch, where):
    (tmp_path / "file").touch()
    path = {"a file": "file", "cannot be made": "file/below", "no permission": "closed"}[where]
    if where == "no permission":
        (tmp_path / "closed").mkdir()
        monkeypatch.setattr("os.access", lambda *_: False)
    assert str(tmp_path / path) in complaint("serve", "m", "--fs", str(tmp_path / path))


def test_engine_options_are_passed_on_untouched_and_last():
    words, _ = dry_run("m", "--", "--max-model-len", "8192", "--dry-run", "x y")
    assert words[-4:] == ["--max-model-len", "8192", "--dry-run", "x y"]


@pytest.mark.parametrize("seed", ["0", "123", "random"])
def test_a_hash_seed_in_the_environment_is_declared(monkeypatch, seed):
    monkeypatch.setenv("PYTHONHASHSEED", seed)
    _, config = dry_run("m")
    assert config["kv_connector_extra_config"]["hash_seed"] == seed


def test_no_hash_seed_in_the_environment_declares_none():
    _, config = dry_run("m")
    assert "hash_seed" not in config["kv_connector_extra_config"]


def test_a_declared_seed_that_the_environment_contradicts_is_refused(monkeypatch):
    assert "PYTHONHASHSEED is not set" in complaint("serve", "m", "--option", "hash_seed=7")
    monkeypatch.setenv("PYTHONHASHSEED", "8")
    assert "hash_seed='8'" in complaint("serve", "m", "--option", "hash_seed=7")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--cpu-bytes", "4 gigs"], "is not a size"),
        (["--blocks-per-chunk", "0"], "must be at least 1"),
        (["--blocks-per-chunk", "2", "--option", "block_size=128"], "exclude each other"),
        (["--eviction-policy", "nonsense"], "unknown eviction policy 'nonsense'"),
        (["--option", "store_treshold=2"], "did you mean 'store_threshold'"),
        (["--option", "store_threshold=often"], "give int"),
        (["--option", "store_threshold"], "give KEY=VALUE"),
        (["--option", "=2"], "give KEY=VALUE"),
        (["--option", "store_threshold=1", "--option", "store_threshold=2"], "given twice"),
        (["--option", "cpu_bytes_to_use=1GiB"], "give --cpu-bytes instead"),
        (["--option", "spec_name=Nonsense"], "unknown spec 'Nonsense'"),
        (["--fs", ""], "give PATH or PATH:CAP"),
        (["--fs", ":1GiB"], "give PATH or PATH:CAP"),
        (["--fs", "/kv:much"], "'much' is not a size"),
        (["--obj", "http://b"], "does not begin with a known scheme"),
        (["--obj", "s3://b_x/../y"], "cannot be part of a prefix"),
        (["--obj", "s3://bucket/p?sice=1"], "unknown option 'sice'"),
        (["--obj", "s3://bucket/p?cap=1GiB&max_bytes=2GiB"], "given twice"),
        (["--obj", "s3://bucket/p?cap=much"], "'much' is not a size"),
        (["--obj", "s3://bucket/p?endpoint=example.net"], "endpoint must be http"),
        (["--obj", "s3://bucket/p", "--obj", "s3://bucket/p"], "the same url"),
        (["--obj", "s3://bucket/p", "--option", "secondary_tiers=[]"], "give --fs or --obj instead"),
        (["--fs", "/kv", "--option", "secondary_tiers=[]"], "give --fs or --obj instead"),
    ],
)
def test_a_bad_option_is_one_line_that_says_how_to_mend_it(arguments, told):
    assert told in complaint("serve", "m", *arguments)


def test_an_engine_option_before_the_dashes_is_told_where_it_belongs():
    assert "kvoffload serve MODEL -- --max-model-len" in complaint("serve", "m", "--max-model-len", "10")


def test_a_short_engine_option_before_the_dashes_is_told_where_it_belongs():
    assert "kvoffload serve MODEL -- -tp" in complaint("serve", "m", "-tp", "2")


@pytest.mark.parametrize(
    "option",
    [
        "--kv-transfer-config",
        "--kv-transfer-config={}",
        "--kv_transfer_config",
        "--kv-transfer-config.kv_role",
        "--kv-tr",
        "--kv-offloading-size",
    ],
)
def test_a_connector_of_the_users_own_is_refused_in_every_spelling(option):
    assert "sets --kv-" in complaint("serve", "m", "--", option, "{}")


@pytest.mark.parametrize("option", ["--kv-cache-dtype", "--kv-cache-memory-bytes", "--kv-events-config"])
def test_neighbours_of_the_connectors_option_are_passed_on(option):
    words, _ = dry_run("m", "--", option, "x")
    assert words[-2:] == [option, "x"]
