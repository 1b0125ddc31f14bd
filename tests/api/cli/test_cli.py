"""The command line itself: its version, what it refuses, and programs that are none."""

import importlib

import pytest

import headrace
from headrace.cli import main


def test_the_version_is_shown(capsys):
    with pytest.raises(SystemExit) as over:
        main(["--version"])
    assert over.value.code == 0
    assert capsys.readouterr().out == f"headrace {headrace.__version__}\n"


@pytest.mark.parametrize("number", ["x", "0", "-1", "1.5"])
def test_a_parallelism_is_a_whole_number(capsys, number):
    with pytest.raises(SystemExit) as over:
        main(["run", f"--parallelism={number}", "program.py"])
    assert over.value.code == 2
    assert f"argument --parallelism/-p: must be a whole number, 1 or more; got '{number}'" in capsys.readouterr().err


def test_a_program_with_a_syntax_error_is_shown_where_it_has_it(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["headrace"])
    monkeypatch.setattr("sys.path", ["."])
    program = tmp_path / "program.py"
    program.write_text("x = 1\ndef f(:\n")
    assert main(["run", "--quiet", str(program)]) == 1
    shown = capsys.readouterr().err
    assert shown.startswith(f'  File "{program}", line 2')
    assert shown.rstrip().endswith("SyntaxError: invalid syntax")
    assert "runpy" not in shown
    (tmp_path / "broken_module.py").write_text("def f(:\n")
    program.write_text("import broken_module\n")
    with pytest.raises(SyntaxError):
        main(["run", "--quiet", str(program)])


@pytest.mark.parametrize(
    ("command", "said"),
    [(["run", "--quiet"], "the job was canceled"), (["stop"], "may go on")],
)
def test_ctrl_c_says_what_becomes_of_the_job(capsys, monkeypatch, tmp_path, command, said):
    """What only asks for something has started nothing, and ends nothing."""

    def interrupted(*_arguments):
        raise KeyboardInterrupt

    module = importlib.import_module("headrace.cli.main")  # the package has a function of its name
    monkeypatch.setattr(module, "run_file", interrupted)
    monkeypatch.setattr(module, "_find_job", interrupted)
    program = tmp_path / "program.py"
    program.write_text("")
    assert main([*command, str(program)]) == 130
    assert said in capsys.readouterr().err
