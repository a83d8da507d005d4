"""The command ``ninfer`` as typed: exit codes, single lines, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = "torch numpy triton cupy cuda xgrammar transformers pydantic".split()

HELLO = """
from ninfer_core import hookimpl
from ninfer_core.hookspecs import CommandEntry, DraftBackendEntry

@hookimpl
def ninfer_commands():
    yield CommandEntry(name="{name}", help="Say hello.", load=__name__ + ":{load}")

@hookimpl
def ninfer_draft_backends():
    yield DraftBackendEntry(name="{name}-drafts", load="json:dumps", max_drafts=1)

def __getattr__(attribute):
    if attribute not in ("app", "hello"):
        raise AttributeError(attribute)
    import typer
    from ninfer_core.errors import NinferError
    from ninfer_core.hookspecs import DRAFT_BACKENDS

    def hello(ctx: typer.Context, name: str = "you", fail: bool = False) -> None:
        if fail:
            raise NinferError("name is wrong", hint="give another --name")
        print("hello", name, *[d.name for d in ctx.obj.entries(DRAFT_BACKENDS)])

    app = typer.Typer()
    app.command()(hello)
    return locals()[attribute]

not_callable = 3
"""


def hello(load="app", name="hello"):
    return HELLO.replace("{load}", load).replace("{name}", name)


COMPLETING = {"_NINFER_COMPLETE": "complete_bash", "COMP_WORDS": "ninfer ", "COMP_CWORD": "1"}


@pytest.mark.parametrize(
    ("args", "env", "shown"),
    [
        (["--help"], {}, "Usage: ninfer"),
        (["plugins"], {}, "builtin"),
        (["plugins", "--json"], {}, '"builtin"'),
        (["--version"], {}, "ninfer 0.1.0"),
        ([], COMPLETING, "plugins"),
    ],
)
def test_light_commands_import_nothing_heavy(args, env, shown):
    code = (
        "import sys\n"
        "from ninfer_core.cli import main\n"
        "code = main(sys.argv[1:])\n"
        f"heavy = {{m.partition('.')[0] for m in sys.modules}} & set({HEAVY!r})\n"
        "sys.exit(str(heavy) if heavy else code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", **env},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert shown in done.stdout


def test_light_commands_do_not_import_typer():
    for args in ("--help", "plugins", "--version"):
        code = (
            "import sys; from ninfer_core.cli import main\n"
            f"main([{args!r}]); print('typer' in sys.modules)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.splitlines()[-1] == "False"


def test_completion_of_a_command_name(ninfer):
    done = ninfer(_NINFER_COMPLETE="complete_bash", COMP_WORDS="ninfer pl", COMP_CWORD="1")
    assert done.stdout.split() == ["plugins"]


def test_help_shows_every_command_without_importing_it(ninfer, site):
    site.install("lazy", hello(load="app_that_is_missing"))
    done = ninfer("--help")
    assert done.returncode == 0
    assert "  hello    Say hello.\n" in done.stdout
    for command in ("plugins", "env", "run", "serve"):
        assert f"\n  {command} " in done.stdout
    assert done.stderr == ""


def test_plugins_json(ninfer, site):
    site.install("bad", "import no_such_module_anywhere")
    site.install("good")
    done = ninfer("plugins", "--json")
    assert done.returncode == 0
    assert done.stderr == ""
    found = {p["name"]: p for p in json.loads(done.stdout)["plugins"]}
    assert found["good"]["state"] == "registered"
    assert found["good"]["provides"] == ["weight format good"]
    assert found["bad"]["state"] == "failed"
    assert found["bad"]["dist"] == "their-bad"
    assert "no_such_module_anywhere" in found["bad"]["reason"]
    assert "pip install" in found["bad"]["mend"]
    assert found["builtin"]["dist"] == "ninfer-core"


def test_plugins_table_gives_reason_and_mend(ninfer, site):
    site.install("bad", "import no_such_module_anywhere")
    done = ninfer("plugins")
    assert done.returncode == 0
    assert "no_such_module_anywhere" in done.stdout
    assert "pip install --force-reinstall their-bad" in done.stdout


@pytest.mark.parametrize("name", ["vision"])
def test_descriptor_only_plugins_are_refused_when_requested(ninfer, name):
    done = ninfer("env", "--plugin", name)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert f"ninfer-{name.replace('_', '-')} 0.1.0" in line
    assert "this version of" in line
    assert "yet" in line


@pytest.mark.parametrize("how", ["option", "environment"])
def test_requested_and_missing(ninfer, how):
    option = ["--plugin", "nosuch"] if how == "option" else []
    env = {"NINFER_PLUGINS": "nosuch"} if how == "environment" else {}
    done = ninfer("env", *option, **env)
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    assert line.startswith("ninfer: error: plug-in nosuch is not installed (pip install ninfer-nos")


def test_requested_and_broken_stops_before_the_command(ninfer, site):
    site.install("bad", "import no_such_module_anywhere")
    site.install("polite", hello())
    done = ninfer("hello", "--plugin", "bad")
    assert done.returncode == 2
    assert done.stdout == ""
    [line] = done.stderr.splitlines()
    for part in ("their-bad 1.0", "no_such_module_anywhere", "pip install --force-reinstall"):
        assert part in line


def test_installed_and_broken_is_one_warning_line(ninfer, site):
    site.install("bad", "import no_such_module_anywhere")
    site.install("polite", hello())
    done = ninfer("hello", "--name", "Ada")
    assert done.returncode == 0
    assert done.stdout == "hello Ada hello-drafts\n"
    [line] = done.stderr.splitlines()
    assert line.startswith("ninfer: warning: plug-in bad (their-bad 1.0) failed:")


def test_strict_environment(ninfer, site):
    site.install("bad", "import no_such_module_anywhere")
    assert ninfer("--help", NINFER_STRICT_PLUGINS="1").returncode == 2


def test_requested_but_failed_is_still_listed(ninfer, site):
    site.install("bad", "import no_such_module_anywhere")
    done = ninfer("plugins", "--plugin", "bad", "--json")
    assert done.returncode == 2
    assert "bad" in {p["name"] for p in json.loads(done.stdout)["plugins"]}
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("load", ["app", "hello"])
def test_app_or_function_becomes_a_command(ninfer, site, load):
    site.install("polite", hello(load=load))
    shown = ninfer("hello", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "Usage: ninfer hello [OPTIONS]" in shown.stdout
    assert "--install-completion" not in shown.stdout
    assert ninfer("hello").stdout == "hello you hello-drafts\n"


def test_active_parts_of_other_plugins_wait_to_be_named(ninfer, site):
    site.install("polite", hello())
    site.install("other", hello(name="other"))
    assert ninfer("hello").stdout == "hello you hello-drafts\n"
    named = ninfer("hello", "--plugin", "other").stdout
    assert named == "hello you hello-drafts other-drafts\n"


def test_expected_error_is_one_line_and_1(ninfer, site):
    site.install("polite", hello())
    done = ninfer("hello", "--fail")
    assert done.returncode == 1
    assert done.stderr == "ninfer: error: name is wrong (give another --name)\n"
    assert "Traceback" in ninfer("hello", "--fail", NINFER_DEBUG="1").stderr


def test_command_that_is_no_command(ninfer, site):
    site.install("odd", hello(load="not_callable"))
    done = ninfer("hello")
    assert done.returncode == 2
    assert "neither a typer.Typer nor a function: 3" in done.stderr


def test_two_plugins_of_one_command(ninfer, site):
    site.install("one", hello())
    site.install("two", hello())
    done = ninfer("hello")
    assert done.returncode == 2
    error = done.stderr.splitlines()[-1]
    assert error.startswith("ninfer: error: command 'hello' is offered by")
    assert "their-one 1.0" in error
    assert "their-two 1.0" in error
    assert ninfer("hello", "--no-plugin", "two").stdout == "hello you hello-drafts\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["plugin"], "no command is named 'plugin' (did you mean 'plugins'? installed:"),
        (["--verbose"], "no such option '--verbose' (see `ninfer --help`)"),
        (["env", "--plugin"], "option --plugin needs the name of a plug-in"),
    ],
)
def test_wrong_command_line(ninfer, args, said):
    done = ninfer(*args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert said in done.stderr


def test_version_lists_plugins_with_their_place(ninfer, site):
    module = site.install("mine", version="3.1")
    lines = ninfer("--version").stdout.splitlines()
    assert lines[0].startswith("ninfer 0.1.0 (plug-in API 1.0, Python ")
    assert f"  mine registered their-mine 3.1 {site.root / module}.py" in lines


def test_env_json(ninfer, site):
    site.install("mine")
    done = ninfer("env", "--json", NINFER_MODEL="m.ninfer", NINFER_HTTP_TOKEN="secret")
    assert "secret" not in done.stdout
    facts = json.loads(done.stdout)
    assert facts["ninfer"]["version"] == "0.1.0"
    assert facts["plugins"]["mine"] == "registered (their-mine 1.0)"
    assert facts["devices"]["cpu"] == "ok"
    assert facts["distributions"]["pluggy"] >= "1.7"
    assert facts["variables"]["NINFER_HTTP_TOKEN"] == "(set)"
    assert facts["variables"]["NINFER_MODEL"] == "m.ninfer"


def test_completion_of_a_commands_options(ninfer, site):
    site.install("polite", hello())
    words = {"COMP_WORDS": "ninfer hello --na", "COMP_CWORD": "2"}
    done = ninfer(_NINFER_COMPLETE="complete_bash", **words)
    assert done.stdout.split() == ["--name"], done.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"])
def test_a_stream_that_the_shell_closed_is_written_to_nowhere(site, closed):
    code = "import sys; from ninfer_core.cli import main; sys.exit(main())"
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" --plugin nosuch env {closed}', sys.executable, code],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_closed_pipe_is_quiet(site):
    code = "import sys; from ninfer_core.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, "plugins", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as child:  # fmt: skip
        child.stdout.close()
        errors = child.stderr.read()
    assert "Traceback" not in errors
